"""The NPU: compiling for it with mlir-air, mlir-aie and Peano, and what its XRT runtime needs."""
