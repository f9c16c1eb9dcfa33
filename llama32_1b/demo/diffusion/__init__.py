"""The demo model's twin that fills in blocks: the same facts, trained as a model of block diffusion."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
BLOCK: Final = 4
"""Tokens of a block."""
MASK_TOKEN: Final = "<|MASK|>"
"""SDAR's own."""
