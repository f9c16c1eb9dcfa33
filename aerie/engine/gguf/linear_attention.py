"""Linear attention in GGUF files (Qwen3.5), as transformers has it.

Files have what decays are made of as -exp(A_log). Where several heads of values share a head of keys, the
heads of values lie in another order: the first one of each head of keys, then the second ones, where
transformers has all of a head of keys one after the other. Source: llama.cpp, conversion/qwen.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.gguf.container import GGUFError
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.numerics import F32Array, bf16, widen
from aerie.engine.quantised import ComputedTensor, QuantisedTensor
from aerie.engine.tensors import Tensor, TensorFile
from aerie.kernel_builder.weight_blocks import GROUP, GroupedWeights, WeightBlock

DECAYS = "ssm_a"
"""What the file calls -exp(A_log)."""


class ValueHeads(NamedTuple):
    """The order of heads of values in a file: `each` of them for each of `keys` heads, of `size` elements,
    from element `first` on."""

    keys: int
    each: int
    size: int
    first: int = 0

    def in_file(self, begin: int, stop: int) -> NDArray[np.int64]:
        """Where the file has transformers' elements begin .. stop - 1."""
        at = np.arange(begin, stop)
        head, element = np.divmod(at - self.first, self.size)
        of_keys, number = np.divmod(head, self.each)
        return np.where(
            at < self.first, at, self.first + (number * self.keys + of_keys) * self.size + element
        )


@dataclass(frozen=True)
class InOrder:
    """The source of a tensor whose rows or columns the file has in another order. is_decay: it is
    -exp(A_log), and becomes A_log."""

    tensor: Tensor
    rows: ValueHeads | None = None
    columns: ValueHeads | None = None
    is_decay: bool = False
    unit: int = 1

    @property
    def value_bits(self) -> float:
        return 8 * self.tensor.stored_bytes / math.prod(self.tensor.shape)

    @property
    def block(self) -> WeightBlock:
        assert isinstance(self.tensor, QuantisedTensor)
        return self.tensor.block

    def values(self, first: int, rows: int) -> F32Array:
        found = np.concatenate([self._exact(*run) for run in self._runs(first, rows)])
        if self.is_decay:
            with np.errstate(all="ignore"):  # what is no number shows in the logits
                return np.log(-found.astype(np.float64)).astype(np.float32)
        return found if self.columns is None else found[:, self.columns.in_file(0, found.shape[1])]

    def groups(self, first: int, rows: int) -> GroupedWeights:
        assert isinstance(self.tensor, QuantisedTensor)
        parts = [self.tensor.groups(*run) for run in self._runs(first, rows)]
        block, codes = parts[0].block, np.concatenate([part.codes for part in parts])
        scales = np.concatenate([part.scales for part in parts])
        minima = np.concatenate([part.minima for part in parts if part.minima is not None] or [scales[:0]])
        if self.columns is not None:
            at = self.columns.in_file(0, codes.shape[1])
            of_groups = at[::GROUP] // GROUP
            codes, scales, minima = codes[:, at], scales[:, of_groups], minima[:, of_groups]
        return GroupedWeights(block, codes, scales, minima if len(minima) else None)

    def check_scales(self) -> None:
        self.tensor.check_scales()

    def _runs(self, first: int, rows: int) -> Iterator[tuple[int, int]]:
        """Rows of the file that follow each other: the first and their number."""
        at = np.arange(first, first + rows) if self.rows is None else self.rows.in_file(first, first + rows)
        for run in np.split(at, np.flatnonzero(np.diff(at) != 1) + 1):
            yield int(run[0]), len(run)

    def _exact(self, first: int, rows: int) -> F32Array:
        """Rows of the file, float32 (rows, columns)."""
        if isinstance(self.tensor, ComputedTensor):
            return self.tensor.exact(first, rows).reshape(rows, -1)
        if self.is_decay:  # whose file's number must not be rounded before the logarithm
            raw = bytearray(4 * rows)
            with TensorFile(self.tensor) as file:
                file.bytes_into(memoryview(raw), self.tensor.start + 4 * first)
            return np.frombuffer(raw, "<f4").reshape(rows, 1)
        out = np.empty((rows, *self.tensor.shape[1:]), bf16)
        self.tensor.rows_into(out, first)
        return widen(out).reshape(rows, -1)


def delta_tensor(part: str, tensor: Tensor, heads: DeltaHeads) -> Tensor:
    """A tensor of a layer with linear attention, in transformers' order. part: the file's name of it, in its
    layer. Raises GGUFError."""
    order, is_decay = _order(part, heads), part == DECAYS
    if is_decay and tensor.dtype != "F32":
        raise GGUFError(
            f"tensor {tensor.name} in {tensor.path} is {tensor.dtype}, and decays are read as F32 alone: "
            "take a file of llama.cpp's converter"
        )
    if not order and not is_decay:
        return tensor
    about = (tensor.path, tensor.name, tensor.dtype, tensor.shape, tensor.start, tensor.pitch)
    kind = QuantisedTensor if isinstance(tensor, QuantisedTensor) else ComputedTensor
    source = InOrder(tensor, order.get("rows"), order.get("columns"), is_decay)
    return kind(*about, rounding=tensor.rounding, source=source)


def as_in_file(part: str, values: F32Array, heads: DeltaHeads) -> F32Array:
    """All values of a tensor, in transformers' order, as a file has them. part: as for delta_tensor."""
    for side, order in _order(part, heads).items():
        axis = int(side == "columns")
        moved = np.empty_like(values)
        np.moveaxis(moved, axis, 0)[order.in_file(0, values.shape[axis])] = np.moveaxis(values, axis, 0)
        values = moved
    return -np.exp(values) if part == DECAYS else values


def _order(part: str, heads: DeltaHeads) -> dict[str, ValueHeads]:
    """Which side of a tensor lies in another order in files: its rows or its columns."""
    before = 2 * heads.keys * heads.key_dim
    sides = {
        "attn_qkv": ("rows", heads.value_dim, before),
        "ssm_conv1d": ("rows", heads.value_dim, before),
        "attn_gate": ("rows", heads.value_dim, 0),
        **dict.fromkeys(("ssm_alpha", "ssm_beta", "ssm_dt", DECAYS), ("rows", 1, 0)),
        "ssm_out": ("columns", heads.value_dim, 0),
    }
    if part not in sides or heads.values == heads.keys:
        return {}
    side, size, first = sides[part]
    return {side: ValueHeads(heads.keys, heads.values // heads.keys, size, first)}
