"""Two results of one program, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from virtual_npu.arrays import Array, numbers
from virtual_npu.library import ArgumentType


@dataclass(frozen=True)
class Difference:
    """Where an argument first differs, in row-major order, and by how much it does."""

    argument: int
    index: tuple[int, ...]
    expected: float | int
    found: float | int
    count: int
    """How many elements of the argument differ."""
    size: int
    """How many there are."""

    def __str__(self) -> str:
        place = ", ".join(map(str, self.index))
        return (
            f"arg{self.argument}[{place}] is {self.found!r} instead of {self.expected!r} "
            f"({self.count} of {self.size} elements differ)"
        )

    def as_json(self) -> dict[str, Any]:
        """For machines; numbers that JSON lacks (NaN, infinities) are texts."""
        plain = {"expected": _plain(self.expected), "found": _plain(self.found)}
        place = {"argument": f"arg{self.argument}", "index": list(self.index)}
        return {**place, **plain, "count": self.count, "size": self.size}


def _plain(value: float | int) -> float | int | str:
    return value if np.isfinite(value) else str(value)


def first_difference(
    arguments: Sequence[ArgumentType],
    expected: Sequence[Array],
    found: Sequence[Array],
    tolerance: float = 0,
) -> Difference | None:
    """The first argument that differs: bit for bit, or by more than tolerance * (1 + |expected|)."""
    for number, (argument, left, right) in enumerate(zip(arguments, expected, found, strict=True)):
        differs = _differs(numbers(left, argument), numbers(right, argument), tolerance)
        count = int(np.count_nonzero(differs))
        if count:
            index = tuple(int(i) for i in np.argwhere(differs)[0])
            was, now = (numbers(side, argument)[index].item() for side in (left, right))
            return Difference(number, index, was, now, count, differs.size)
    return None


def _differs(left: Array, right: Array, tolerance: float) -> Array:
    if not tolerance or left.dtype.kind != "f":
        return np.asarray(_bits(left) != _bits(right))
    with np.errstate(invalid="ignore"):
        far = np.abs(right - left) > tolerance * (1 + np.abs(left))
    unlike = np.isfinite(left) != np.isfinite(right)
    special = ~np.isfinite(left) & (_bits(left) != _bits(right))
    return np.asarray(far | unlike | special)


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "f" else array
