"""Stitches kernel modules into multi-launch programs, and knows the six programs of a Llama-class model."""
