"""Find checkpoints: built-in ones, folders, and Hugging Face ids or short names of them."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from aerie import rooms
from aerie.common.errors import own_command
from aerie.engine.errors import CheckpointError
from aerie.engine.folder import advice_on
from aerie.engine.gguf.container import is_gguf
from aerie.engine.gguf.model_files import SUFFIX
from aerie.engine.reporter import Reporter

DEMO = "demo"
DEMO_FOLDER = rooms.folder("llama32_1b") / "demo" / "checkpoint"
DIFFUSION_FOLDER = rooms.folder("llama32_1b") / "demo" / "diffusion" / "checkpoint"
DRAFTER_FOLDER = rooms.folder("llama32_1b") / "demo" / "drafter" / "checkpoint"

BUILT_IN_MODELS = {DEMO: DEMO_FOLDER, "demo-diffusion": DIFFUSION_FOLDER, "demo-drafter": DRAFTER_FOLDER}
"""Checkpoints that come with the project."""

ALIASES = {"base": "meta-llama/Llama-3.2-1B", "instruct": "meta-llama/Llama-3.2-1B-Instruct"}
"""Short names of the guide's models. A folder of the same name takes precedence."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
HUB_OTHERS = ["consolidated*", "original/*", "onnx/*"]
"""The same weights in other formats: Mistral's and Meta's own, ONNX."""


def find_checkpoint(model: str) -> Path:
    """The folder of `model`, or its GGUF file: one of BUILT_IN_MODELS, a folder, a GGUF file, one of ALIASES,
    or a Hugging Face id, as owner/name.

    An id is looked up in the local Hugging Face cache, and downloaded if it is not there. Raises
    CheckpointError if there is no such model.
    """
    if model in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[model]
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if folder.suffix == SUFFIX or is_gguf(folder):
        return folder
    if folder.exists():
        other = f" ({advice_on([folder.name])})" if folder.suffix in (".bin", ".pt", ".pth") else ""
        raise CheckpointError(
            f"--model {model} is a file, and not in GGUF; give the folder that holds config.json{other}"
        )
    if hub_id(model) is None:
        raise CheckpointError(
            f"--model {model!r} is neither a folder, nor a GGUF file, nor a Hugging Face id (owner/name), "
            f"nor one of {', '.join((*BUILT_IN_MODELS, *ALIASES))}"
        )
    return _fetch(model)


def hub_id(model: str) -> str | None:
    """The Hugging Face id of `model`; None if it is none."""
    name = ALIASES.get(model, model)
    return name if HUB_ID.fullmatch(name) else None


def cached_checkpoint(name: str) -> Path | None:
    """The folder of a Hugging Face id in the local cache; None if it is missing or incomplete."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, allow_patterns=HUB_FILES, ignore_patterns=HUB_OTHERS, local_files_only=True
        )
    except (OSError, ValueError):
        return None
    return Path(folder)


def _fetch(model: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    name = ALIASES.get(model, model)
    if not constants.HF_HUB_OFFLINE and cached_checkpoint(name) is None:
        Reporter().note(f"fetching {name} from Hugging Face, which needs a network; later runs do not")
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=HUB_OTHERS))
    except Exception as error:  # network, authentication, disk: the hub raises many unrelated types
        subject = (
            f"--model {model}" if name == model else f"--model {model}, which is {name} of Hugging Face,"
        )
        raise CheckpointError(f"{subject} is not on this machine, and {_why_not(name, error)}") from error


def login_advice() -> str:
    """How to log in to Hugging Face."""
    return f"log in with `{own_command('hf', 'huggingface_hub.cli.hf')} auth login`, or set HF_TOKEN"


def _why_not(name: str, error: Exception) -> str:
    """Why an id could not be downloaded, and what to do."""
    from huggingface_hub import constants, errors

    page = f"https://huggingface.co/{name}"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: ask for access at {page}, then {login_advice()}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"Hugging Face shows none at {page}: mend the name, or if it is private, {login_advice()}"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so it is not fetched: unset it, or give the folder of a checkpoint"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            f"there is no space for it at {constants.HF_HUB_CACHE}: make room, or set HF_HOME to a folder on "
            "another disk"
        )
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")
    return (
        f"fetching it from Hugging Face failed ({reason}). Without a network, give the folder of a "
        f"checkpoint; for a gated model, {login_advice()}"
    )
