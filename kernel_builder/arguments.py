"""The argument table: what a kernel or program is called with, declared once.

Slots, static and intermediate sets are derived from roles here, so that no caller
ever writes a slot number.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from kernel_builder.dtypes import DType


class ArgumentError(ValueError):
    """An argument that is not in the table, or does not fit it."""


class Role(enum.Enum):
    """What an argument is to its caller.

    INPUT is written before every call. WEIGHT and LUT are written once per buffer-object set.
    INTERMEDIATE and OUTPUT are overwritten by the program; an OUTPUT is read back.
    """

    INPUT = "input"
    WEIGHT = "weight"
    LUT = "lut"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


STATIC_ROLES = frozenset({Role.WEIGHT, Role.LUT})
OVERWRITTEN_ROLES = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


@dataclass(frozen=True)
class Argument:
    """One argument: its name, shape in elements, element type and role."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} ({'x'.join(map(str, self.shape))} {self.dtype})"


class ArgumentTable(Sequence[Argument]):
    """Arguments in call order, found by name."""

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self._arguments = tuple(arguments)
        self._slots = {argument.name: slot for slot, argument in enumerate(self._arguments)}
        if len(self._slots) != len(self._arguments):
            names = [argument.name for argument in self._arguments]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ArgumentError(f"argument declared twice: {', '.join(twice)}; give each its own name")

    @overload
    def __getitem__(self, key: int | str) -> Argument: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[Argument]: ...
    def __getitem__(self, key: int | str | slice) -> Argument | Sequence[Argument]:
        return self._arguments[self.slot(key) if isinstance(key, str) else key]

    def __len__(self) -> int:
        return len(self._arguments)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self._arguments)

    def slot(self, name: str) -> int:
        """The slot of `name`; ArgumentError, with the nearest names, where there is none."""
        try:
            return self._slots[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.names, n=3) or self.names
            raise ArgumentError(f"no argument named '{name}'; there are: {', '.join(near)}") from None

    def _slots_of(self, roles: frozenset[Role]) -> tuple[int, ...]:
        return tuple(slot for slot, argument in enumerate(self._arguments) if argument.role in roles)

    @property
    def static_input_indices(self) -> frozenset[int]:
        """Slots written once per buffer-object set: weights and look-up tables."""
        return frozenset(self._slots_of(STATIC_ROLES))

    @property
    def intermediate_indices(self) -> frozenset[int]:
        """Slots the program overwrites: what they hold on entry does not matter."""
        return frozenset(self._slots_of(OVERWRITTEN_ROLES))

    @property
    def output_indices(self) -> tuple[int, ...]:
        """Slots read back after a call, in table order."""
        return self._slots_of(frozenset({Role.OUTPUT}))
