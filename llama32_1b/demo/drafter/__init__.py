"""A draft model for the demo: two layers of its shape and its vocabulary, which draft its tokens."""

from pathlib import Path
from typing import Final

CHECKPOINT: Final = Path(__file__).parent / "checkpoint"
