"""Compares two readings of quantised weights, ours and the reference's, before anything runs on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from aerie.common.errors import UserError
from aerie.engine.folder import INDEX_FILE
from aerie.engine.model_family import CONV, FUSED, LAYER_TENSORS, QKV_BIAS
from aerie.engine.numerics import F32Array, widen
from aerie.engine.weights import Weights

NAMES = {**LAYER_TENSORS, **QKV_BIAS, **CONV}
"""Of the tensors that files may have in one, within a layer."""


class ReadingError(UserError):
    """Our reading of quantised weights is another than the reference's: a fault of reading."""


def check_reading(ours: Weights, written: Path) -> None:
    """Raises ReadingError for the first tensor of which the files in `written` have other values, in bf16. A
    zero's sign does not count: llama.cpp's Q4_0 has it, and a code of 8 bits cannot."""
    from safetensors import safe_open

    where = json.loads((written / INDEX_FILE).read_text())["weight_map"]
    sizes = {name: tensor.shape[0] for name, tensor in ours.named()}
    for name, tensor in ours.named():
        stored, first = place(name, where, sizes)
        with safe_open(written / where[stored], "np") as file:
            theirs = file.get_slice(stored)[first : first + tensor.shape[0]]
        _check_same(name, widen(tensor.read()), theirs.astype(ml_dtypes.bfloat16).astype(np.float32))


def _check_same(name: str, ours: F32Array, theirs: F32Array) -> None:
    if ours.shape == theirs.shape and np.array_equal(ours, theirs):
        return
    if ours.shape != theirs.shape:
        raise ReadingError(
            f"tensor {name} has shape {ours.shape}, and {theirs.shape} in the second reading; no program ran "
            "on it: report this with the file's name"
        )
    differ = ours != theirs
    at = tuple(int(each) for each in np.argwhere(differ)[0])
    raise ReadingError(
        f"tensor {name} is read wrong: {differ.sum()} of {differ.size} weights are others than in the second "
        f"reading, the first at {list(at)}, {ours[at]:.6g} where {theirs[at]:.6g} is right; no program ran "
        "on them: report this with the file's name"
    )


def place(name: str, where: dict[str, str], sizes: dict[str, int]) -> tuple[str, int]:
    """The stored tensor that holds `name`, and its first row there."""
    bare = name.removeprefix("model.")
    for stored in (name, bare, f"model.{name}"):
        if stored in where:
            return stored, 0
    return next(_in_fused(name, where, sizes))


def _in_fused(name: str, where: dict[str, str], sizes: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The fused tensor that holds `name`, and its first row there."""
    for fields, fused in FUSED.items():
        parts = [NAMES[field] for field in fields]
        part = next((each for each in parts if name.endswith(f".{each}")), None)
        if part is None:
            continue
        layer = name.removesuffix(part)
        before = sum(sizes[layer + earlier] for earlier in parts[: parts.index(part)])
        yield from ((layer + whole, before) for whole in fused if layer + whole in where)
