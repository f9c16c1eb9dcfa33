"""Activations of a gated FFN, by their names in config.json."""

SILU, GELU = "silu", "gelu_pytorch_tanh"
