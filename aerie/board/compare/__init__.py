"""The comparison: every kernel and every program on one backend, against the virtual NPU in both numerics."""
