"""What each tensor of a checkpoint is in its file and on the device, and what is lost in between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from aerie.engine.numerics import F32Array, widen
from aerie.engine.quantised import ComputedTensor
from aerie.engine.reporter import OnProgress
from aerie.engine.tensors import Tensor
from aerie.engine.weights import Weights

VALUES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class TensorReport:
    """One tensor. stored: its type in the file. kind: of it on the device. loss: the relative RMS of what it
    is there against its values in the file; None where that is not measured. Sizes are in bytes."""

    name: str
    shape: tuple[int, ...]
    stored: str
    kind: str
    stored_bytes: int
    device_bytes: int
    loss: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class KindReport:
    """All tensors of a type in the files that are of one kind on the device. loss: as in TensorReport, of all
    of them together; largest_loss: of the tensor that loses most."""

    stored: str
    kind: str
    tensors: int
    stored_bytes: int
    device_bytes: int
    loss: float | None
    largest_loss: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def report_tensors(weights: Weights, step: OnProgress) -> Iterator[TensorReport]:
    """A report on each tensor, whose values are all read. Raises WeightsError."""
    for done, (name, tensor) in enumerate(weights.named(), 1):
        loss, sizes = _loss(tensor), (tensor.stored_bytes, tensor.device_bytes)
        yield TensorReport(name, tensor.shape, tensor.dtype, tensor.kind, *sizes, loss)
        step(name, done)


def sum_up(reports: list[TensorReport]) -> list[KindReport]:
    """Reports by type in the file and kind on the device, the largest in the file first."""
    groups = defaultdict[tuple[str, str], list[TensorReport]](list)
    for report in reports:
        groups[report.stored, report.kind].append(report)
    found = [_sum(*key, group) for key, group in groups.items()]
    return sorted(found, key=lambda each: -each.stored_bytes)


def _sum(stored: str, kind: str, group: list[TensorReport]) -> KindReport:
    measured = [(each.loss, math.prod(each.shape)) for each in group if each.loss is not None]
    values = sum(count for _, count in measured)
    loss = math.sqrt(sum(loss**2 * count for loss, count in measured) / values) if values else None
    sizes = (sum(each.stored_bytes for each in group), sum(each.device_bytes for each in group))
    return KindReport(
        stored, kind, len(group), *sizes, loss, max((loss for loss, _ in measured), default=None)
    )


def _loss(tensor: Tensor) -> float | None:
    """The relative RMS of what is lost; None for plain tensors that are not bf16."""
    if not isinstance(tensor, ComputedTensor):
        return 0.0 if tensor.dtype == "BF16" else None
    at_once = max(1, VALUES_AT_ONCE // max(1, math.prod(tensor.shape[1:])))
    squares = lost = 0.0
    for first in range(0, tensor.shape[0], at_once):
        rows = min(at_once, tensor.shape[0] - first)
        exact, kept = tensor.exact(first, rows), widen(tensor.part(first, rows).read())
        squares += _squares(exact)
        lost += _squares(exact - kept)
    return math.sqrt(lost / squares) if squares else 0.0


def _squares(values: F32Array) -> float:
    return float(np.square(values, dtype=np.float64).sum())
