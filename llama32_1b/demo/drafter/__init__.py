"""A draft model for the demo: two layers of its shape and its vocabulary, which guess what it will say."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
