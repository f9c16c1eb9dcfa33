"""Write a synthetic checkpoint in pieces, so that it needs little memory, and completely or not at all.

Everything goes to a folder `.NAME.unfinished` beside the target, which is renamed when it is complete. The
next writer replaces the folder of a killed one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.folder import SINGLE_FILE
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.reporter import Reporter
from aerie.llama32_1b.demo.tokenizer import tokenizer_config
from aerie.llama32_1b.synthetic.shape import TensorSpec, config_json, generation_json, tensors
from aerie.llama32_1b.synthetic.tokenizer import make_tokenizer
from aerie.runtime.memory import format_bytes

PIECE = 1 << 22
"""Elements generated at a time: 16 MiB of float32 and 8 MiB of bf16."""

OTHER_FILES = 16 << 20
"""Maximum bytes of a checkpoint without its weights; most of it is the tokenizer."""


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors(config))


def write_checkpoint(config: ModelConfig, folder: Path, seed: int, report: Reporter) -> None:
    """Write the checkpoint to `folder`, which must not exist. The same seed gives the same bytes.

    Raises UserError if the folder exists or cannot be made, or the disk is too small.
    """
    folder = folder.expanduser().absolute()
    if folder.exists():
        raise UserError(
            f"{folder} is there already and is not overwritten; remove it, or name another folder"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _check_space(config, folder.parent)
        _write_alone(config, folder, seed, report)
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror or error}); nothing is left of it: name another folder"
        ) from None


def _check_space(config: ModelConfig, parent: Path) -> None:
    needed, free = weight_bytes(config) + OTHER_FILES, shutil.disk_usage(parent).free
    if needed > free:
        raise UserError(
            f"the checkpoint takes {format_bytes(needed)} and {parent} has {format_bytes(free)} free; free "
            "some space, name a folder on another disk, or ask for fewer --layers"
        )


def _write_alone(config: ModelConfig, folder: Path, seed: int, report: Reporter) -> None:
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"another process is writing {folder}; wait for it, or name another folder") from None
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # left behind by a process that was killed
        unfinished.mkdir()
        _write_files(config, unfinished, seed, report)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _write_files(config: ModelConfig, folder: Path, seed: int, report: Reporter) -> None:
    make_tokenizer(config.vocab_size).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(config.max_position_embeddings))
    _write_json(folder / "generation_config.json", generation_json(config))
    _write_json(folder / "config.json", config_json(config))
    _write_weights(folder / SINGLE_FILE, list(tensors(config)), seed, report)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(path: Path, specs: Sequence[TensorSpec], seed: int, report: Reporter) -> None:
    """One safetensors file: the length of the header in eight bytes, the header, then the tensors."""
    header = _header(specs)
    with path.open("wb") as file, report.bar("writing weights", len(specs)) as step:
        file.write(len(header).to_bytes(8, "little") + header)
        for number, tensor in enumerate(specs):
            step(tensor.name, number)
            for piece in pieces(tensor, np.random.default_rng([seed, number])):
                file.write(piece.view(np.uint8).data)


def _header(specs: Sequence[TensorSpec]) -> bytes:
    """The JSON header, padded with blanks to whole eight bytes: https://github.com/huggingface/safetensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in specs:
        start, end = end, end + tensor.nbytes
        entries[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def pieces(tensor: TensorSpec, random: np.random.Generator) -> Iterator[BF16Array]:
    """The elements of a tensor in order, at most PIECE at a time."""
    for start in range(0, tensor.count, PIECE):
        values = random.standard_normal(min(PIECE, tensor.count - start), dtype=np.float32)
        values *= np.float32(tensor.std)
        values += np.float32(tensor.mean)
        yield values.astype(bf16)
