"""The version, and the name that pip knows."""

VERSION = "0.1.0"
DISTRIBUTION = "aerie-npu"
"""On the public index `aerie` is another project."""
