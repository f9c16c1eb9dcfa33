"""Activations of a gated FFN, by their names in config.json."""

SILU, GELU = "silu", "gelu_pytorch_tanh"
NO_ACTIVATION = "none"
"""The gate itself: a product of two activations, as around a short convolution."""
