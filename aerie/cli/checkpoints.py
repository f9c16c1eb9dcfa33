"""Find the checkpoint for a value of --model: a name, a folder, a file, or a model of another program."""

from __future__ import annotations

import os
import re
from pathlib import Path

from aerie import rooms
from aerie.cli.hub import (
    ALIASES,
    HUB,
    advice_on_url,
    fetch_checkpoint,
    find_hub_model,
    hub_id,
    hub_model_here,
)
from aerie.cli.model_folders import LM_STUDIO, OLLAMA, find_lm_studio, find_ollama
from aerie.cli.package_models import PACKAGE_MODELS, fetch, is_fetched
from aerie.engine.errors import CheckpointError
from aerie.engine.folder import advice_on
from aerie.engine.gguf.container import is_gguf
from aerie.engine.gguf.model_files import SUFFIX

DEMO = "demo"
DEMO_FOLDER = rooms.folder("llama32_1b") / "demo" / "checkpoint"
DIFFUSION_FOLDER = rooms.folder("llama32_1b") / "demo" / "diffusion" / "checkpoint"
DRAFTER_FOLDER = rooms.folder("llama32_1b") / "demo" / "drafter" / "checkpoint"

BUILT_IN_MODELS = {DEMO: DEMO_FOLDER, "demo-diffusion": DIFFUSION_FOLDER, "demo-drafter": DRAFTER_FOLDER}
"""Checkpoints that come with the project."""

MAX_NAME_LENGTH = 200
"""Characters of a wrong name in a message."""

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def find_checkpoint(model: str) -> Path:
    """The folder of `model`, or its GGUF file: one of BUILT_IN_MODELS, a folder, a GGUF file, one of
    PACKAGE_MODELS, a model of Ollama's, LM Studio's or Hugging Face's with its prefix, one of ALIASES, or a
    Hugging Face id, as owner/name.

    What is not on this machine is fetched where it comes from Hugging Face or a package. Raises
    CheckpointError if there is no such model.
    """
    if model in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[model]
    folder = Path(os.path.expanduser(model))
    if os.path.isdir(folder):  # false where pathlib raises, as for a name that is too long
        return folder
    for prefix, find in WITH_PREFIX.items():
        if model.startswith(prefix):
            return find(model)
    if URL.match(model):
        raise CheckpointError(f"--model {model} is an address, which is not fetched: {advice_on_url(model)}")
    if folder.suffix == SUFFIX or is_gguf(folder):
        return folder
    if os.path.exists(folder):
        advice = "" if folder.suffix == ".safetensors" else advice_on([folder.name])
        other = f" ({advice})" if advice else ""
        raise CheckpointError(
            f"--model {model} is a file, and not in GGUF; give the folder that holds config.json{other}"
        )
    if model in PACKAGE_MODELS:
        return fetch(model)
    if hub_id(model) is None:
        raise CheckpointError(
            f"--model {model[:MAX_NAME_LENGTH]!r} is neither a folder, nor a GGUF file, nor a Hugging Face "
            f"id (owner/name), nor one of {', '.join((*BUILT_IN_MODELS, *PACKAGE_MODELS, *ALIASES))}; `aerie "
            "models` lists those that are here"
        )
    return fetch_checkpoint(model)


def checkpoint_here(model: str) -> Path | None:
    """Return the folder or file of `model`; None if find_checkpoint would download it. Raises
    CheckpointError if there is no such model."""
    if model in BUILT_IN_MODELS or os.path.exists(os.path.expanduser(model)):
        return find_checkpoint(model)
    if model in PACKAGE_MODELS and not is_fetched(model):
        return None
    if model.startswith(HUB) or hub_id(model) is not None:
        return hub_model_here(model)
    return find_checkpoint(model)


WITH_PREFIX = {
    OLLAMA: lambda model: find_ollama(model.removeprefix(OLLAMA)),
    LM_STUDIO: lambda model: find_lm_studio(model.removeprefix(LM_STUDIO)),
    HUB: find_hub_model,
}
"""The lookup function for each prefix of a name."""
