"""Element types and argument tables of kernels and programs, and the errors of this room.

Slots, static and intermediate sets are derived from roles here, so that no caller writes a slot number. This
file needs no IR, so that running a program does not load it.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import AerieError


class KernelBuilderError(AerieError):
    """Base of all errors raised here on purpose."""


class DslError(KernelBuilderError):
    """The code of a kernel cannot become a legal program."""


class IllegalShapeError(KernelBuilderError, ValueError):
    """A kernel does not support a shape or tile size. The message names a supported one."""


class ArgumentTableError(AerieError, ValueError):
    """An argument is not in the table, or does not fit it."""


@dataclass(frozen=True)
class DType:
    """An element type. `mlir` is its spelling in MLIR text, `itemsize` its width in bytes."""

    name: str
    numpy: Any
    mlir: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.numpy).itemsize)

    def __str__(self) -> str:
        return self.name


bf16 = DType("bf16", ml_dtypes.bfloat16, "bf16")
f16 = DType("f16", np.float16, "f16")
f32 = DType("f32", np.float32, "f32")
i1 = DType("i1", np.bool_, "i1")
i8 = DType("i8", np.int8, "i8")
i16 = DType("i16", np.int16, "i16")
i32 = DType("i32", np.int32, "i32")
i64 = DType("i64", np.int64, "i64")

byte = DType("byte", np.uint8, "i8")
"""Of packed weights (weight_blocks.py): bytes, which only C++ on the cores takes for numbers."""

DTYPES: tuple[DType, ...] = (bf16, f16, f32, i8, i16, i32, i64, byte)

u8 = DType("u8", np.uint8, "ui8")
u16 = DType("u16", np.uint16, "ui16")
"""Used for quantised results only: no kernel of ours reads or writes it."""


def pack_bits(bits: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Pack booleans (rows, columns) into bits, column 0 in the lowest: (rows, columns / 32) int32, a mask's
    layout.
    """
    packed = np.packbits(np.ascontiguousarray(bits, bool), axis=1, bitorder="little")
    return packed.view("<u4").view(np.int32)


class Role(enum.Enum):
    """How the caller uses an argument.

    INPUT is written before every call. WEIGHT and LUT are written once per buffer-object set.
    INTERMEDIATE and OUTPUT are overwritten by the program; an OUTPUT is read back.
    """

    INPUT = "input"
    WEIGHT = "weight"
    LUT = "lut"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


STATIC_ROLES = frozenset({Role.WEIGHT, Role.LUT})
WRITTEN_ROLES = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


@dataclass(frozen=True)
class Argument:
    """One argument: its name, shape in elements, element type and role.

    scale, offset: of a quantised argument: an element q means (q + offset) * scale. None and 0: an element is
    its own value.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role
    scale: float | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if self.scale is None and self.offset:
            raise ArgumentTableError(
                f"argument {self} has offset={self.offset} and no scale, so nothing says what its elements "
                "stand for; give both, or neither"
            )
        if self.scale is not None and not (math.isfinite(self.scale) and self.scale > 0):
            raise ArgumentTableError(
                f"argument {self} has scale={self.scale}, and a step is a positive number; give that of its "
                "quantisation"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the whole argument."""
        return math.prod(self.shape) * self.dtype.itemsize

    def dequantise(self, elements: NDArray[Any]) -> NDArray[np.float32]:
        """The values of elements of this argument in f32: logits of any element type, quantised or not.

        Raises ArgumentTableError for elements of another type.
        """
        if elements.dtype != np.dtype(self.dtype.numpy):
            raise ArgumentTableError(
                f"argument {self} was given elements of {elements.dtype}, which would be read as other "
                f"numbers; give {np.dtype(self.dtype.numpy)}"
            )
        if self.scale is None:
            return elements.astype(np.float32)
        return ((elements.astype(np.float64) + self.offset) * self.scale).astype(np.float32)

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
            raise ArgumentTableError(f"argument declared twice: {', '.join(twice)}; give each its own name")

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
        """The names of all arguments, in order of their slots."""
        return tuple(argument.name for argument in self._arguments)

    def slot(self, name: str) -> int:
        """The slot of `name`. Raises ArgumentTableError, with the nearest names, if there is none."""
        try:
            return self._slots[name]
        except KeyError:
            near = difflib.get_close_matches(name, self.names, n=3) or self.names
            raise ArgumentTableError(f"no argument named '{name}'; there are: {', '.join(near)}") from None

    def _slots_of(self, roles: frozenset[Role]) -> tuple[int, ...]:
        return tuple(slot for slot, argument in enumerate(self._arguments) if argument.role in roles)

    @property
    def static_input_indices(self) -> frozenset[int]:
        """Slots written once per buffer-object set: weights and look-up tables."""
        return frozenset(self._slots_of(STATIC_ROLES))

    @property
    def intermediate_indices(self) -> frozenset[int]:
        """Slots that the program overwrites; their content on entry does not matter."""
        return frozenset(self._slots_of(WRITTEN_ROLES))

    @property
    def output_indices(self) -> tuple[int, ...]:
        """Slots read back after a call, in table order."""
        return self._slots_of(frozenset({Role.OUTPUT}))
