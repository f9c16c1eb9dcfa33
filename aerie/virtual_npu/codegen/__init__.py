"""From AIR-dialect MLIR to C++: `module.generate` is the way in."""
