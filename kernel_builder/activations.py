"""Activations of a gated FFN, by their names in config.json."""

SILU, GELU = "silu", "gelu_pytorch_tanh"
SIGMOID = "sigmoid"
"""Of a gate by itself: that of attention's output, and x sigmoid(x), where SiLU has no product behind it."""
NO_ACTIVATION = "none"
"""The gate itself: a product of two activations, as around a short convolution."""
