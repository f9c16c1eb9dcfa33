"""A checkpoint: where it is, and everything in it, checked before anything is compiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from aerie.llama32_1b.config import LlamaConfig, load_config
from aerie.llama32_1b.errors import CheckpointError
from aerie.llama32_1b.tokenizer import Tokenizer, load_tokenizer
from aerie.llama32_1b.weights import Weights

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo" / "checkpoint"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint folder. Weights stay on disk until they are asked for."""

    folder: Path
    config: LlamaConfig
    tokenizer: Tokenizer
    weights: Weights


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config and tokenizer, and check every tensor's shape and type. Raises CheckpointError."""
    config = load_config(folder)
    return Checkpoint(folder, config, load_tokenizer(folder), Weights(folder, config))


def find_checkpoint(model: str) -> Path:
    """The folder of `model`: "demo", a folder, or a Hugging Face id such as meta-llama/Llama-3.2-1B.

    An id is looked for in the local Hugging Face cache and fetched where it is not there. Raises
    CheckpointError where there is no such thing.
    """
    if model == DEMO:
        return DEMO_FOLDER
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CheckpointError(f"--model {model} is a file; give the folder that holds config.json")
    if not HUB_ID.fullmatch(model):
        raise CheckpointError(
            f"--model {model!r} is neither a folder, nor a Hugging Face id (owner/name), nor '{DEMO}'"
        )
    return _fetch(model)


def _fetch(model: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except Exception as error:  # network, authentication, disk: the hub raises many unrelated types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
        raise CheckpointError(
            f"--model {model} is not a folder here, and fetching it from Hugging Face failed ({reason}). "
            f"Without a network, give a folder; for a gated model, log in with `hf auth login`"
        ) from error
