"""The checkpoint that would be run: there, readable, and not larger than the memory."""

from __future__ import annotations

from pathlib import Path

from board.doctor.findings import Finding, Status
from board.doctor.machine import Machine
from llama32_1b.checkpoint import DEMO, HUB_FILES, HUB_ID, find_checkpoint
from llama32_1b.compiling import choose_seq_len
from llama32_1b.config import LlamaConfig, load_config
from llama32_1b.errors import UserError
from llama32_1b.footprint import footprint
from llama32_1b.weights import Weights
from runtime.memory import available_bytes, size

WANTED = "a Llama checkpoint that fits in memory"


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
    seq_len = choose_seq_len(config, None)
    needed, available = footprint(config, seq_len), available_bytes(machine.root)
    layers = config.num_hidden_layers
    found = (
        f"{machine.model}, {layers} layers, {size(needed.total)} of memory for prompts of {seq_len} tokens"
    )
    if available is not None and needed.total > available:
        fix = (
            f"close other programs, or take a shorter SEQ_LEN or a smaller model: {size(available)} are free"
        )
        return Finding(Status.FAILED, f"{found} ({needed})", WANTED, fix)
    return Finding(Status.OK, found, WANTED)
