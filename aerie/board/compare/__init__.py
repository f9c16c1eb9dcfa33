"""Compares every kernel and every program on one backend with the virtual NPU in both numerics."""
