"""The demo checkpoint: a tiny Llama that ships with the project, and the code that made it.

Importing this package costs nothing: only training and evaluation import torch.
What the model knows, how it was trained and where it ends: `docs/dev/demo-models.md`.
"""

from pathlib import Path
from typing import Final

CHECKPOINT: Final[Path] = Path(__file__).resolve().parent / "checkpoint"
"""Folder of the trained model in Hugging Face format: config, generation config, bf16 weights, tokenizer."""
