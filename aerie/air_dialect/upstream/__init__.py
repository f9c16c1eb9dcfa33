"""MLIR's own dialects, one file each: the operations that xDSL lacks or reads in part only."""
