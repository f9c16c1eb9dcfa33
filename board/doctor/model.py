"""The checkpoint that would be run: there, readable, and not larger than the memory."""

from __future__ import annotations

import math
from pathlib import Path

from board.doctor.basics import available_memory, size
from board.doctor.findings import Finding, Status
from board.doctor.machine import Machine
from llama32_1b.checkpoint import DEMO, HUB_FILES, HUB_ID, find_checkpoint
from llama32_1b.config import LlamaConfig, load_config
from llama32_1b.errors import UserError
from llama32_1b.weights import FINAL_NORM, Weights, expected_shapes

BF16_BYTES = 2
WANTED = "a Llama checkpoint whose weights fit in memory"


def checkpoint(machine: Machine) -> Finding:
    """Config and tensors of the checkpoint. Nothing is fetched: an id is looked for in the local cache."""
    try:
        folder = _folder(machine.model)
        if folder is None:
            fix = "the first run fetches it; for a gated model, log in with `hf auth login` first"
            return Finding(Status.WARNING, f"{machine.model} is not on this machine yet", WANTED, fix)
        config = load_config(folder)
        Weights(folder, config)  # which checks every tensor
    except UserError as error:
        return Finding(Status.FAILED, str(error), WANTED, "name another with MODEL=... (--model)")
    return _fits(machine, config)


def _folder(model: str) -> Path | None:
    """The checkpoint's folder; None for an id of the hub that the local cache lacks."""
    if model == DEMO or Path(model).expanduser().exists() or not HUB_ID.fullmatch(model):
        return find_checkpoint(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES, local_files_only=True))
    except (OSError, ValueError):  # not in the cache, or not all of it
        return None


def _fits(machine: Machine, config: LlamaConfig) -> Finding:
    needed, available = weight_bytes(config), available_memory(machine)
    found = f"{machine.model}, {config.num_hidden_layers} layers, {size(needed)} of weights in memory"
    if available is not None and needed > available:
        fix = f"close other programs, or take a smaller model: {size(available)} are free"
        return Finding(Status.FAILED, found, WANTED, fix)
    return Finding(Status.OK, found, WANTED)


def weight_bytes(config: LlamaConfig) -> int:
    """Bytes of the weights as a session holds them.

    One copy of a layer serves prefill and decode. Of the embedding table only the rows of a prompt are read;
    where it is the output projection too, that is held.
    """
    sizes = {name: math.prod(shape) for name, shape in expected_shapes(config).items()}
    layers = sum(size for name, size in sizes.items() if ".layers." in name)
    head = config.vocab_size * config.hidden_size
    return BF16_BYTES * (layers + sizes[FINAL_NORM] + head)
