"""Measurements. `python -m benchmarks` is `make bench`: ours against transformers, side by side."""
