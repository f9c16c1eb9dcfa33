"""The instruction sets that products of bf16 are made with, as the CPU has them or emulated, and what each
computes by its manual: an independent model for every order of sums that vnpu/dots.h knows."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.common import cpu
from aerie.common.compiler import known_compilers
from aerie.common.store import programs_store
from aerie.virtual_npu.codegen.module import RUNTIME
from aerie.virtual_npu.objects import INCLUDE, TranslationUnit, shared_object
from aerie.virtual_npu.options import BuildOptions

BF16 = ml_dtypes.bfloat16
EMULATED = Path(__file__).with_name("emulated")
Array = np.ndarray[Any, Any]

ONE_BY_ONE, PAIRS, ODD_PAIRS, TILES = range(4)
"""vnpu::dots::Order."""


@dataclass(frozen=True)
class InstructionSet:
    """march: VNPU_MARCH. emulates: a header in emulated/ that takes the place of what the CPU lacks."""

    name: str
    march: str
    emulates: str = ""
    more: str = ""
    """Further options of the compiler."""
    level: int = 1
    """Of optimisation (VNPU_OPT)."""

    def is_here(self) -> bool:
        """Whether this machine runs it."""
        level, *more = self.march.split("+")
        return {*(each.name for each in cpu.LEVELS.get(level, ())), *more} <= {*cpu.cpu_features()}

    @property
    def options(self) -> str:
        """The compiler's further options. With the headers' digest it counts as another compiler's."""
        if not self.emulates:
            return self.more
        headers = [header.read_bytes() for header in sorted(EMULATED.glob("*.h"))]
        digest = hashlib.sha256(b"".join([self.emulates.encode(), *headers])).hexdigest()[:16]
        return f"-include {EMULATED / self.emulates} -DEMULATED_DIGEST=0x{digest} {self.more}"

    @contextmanager
    def chosen(self, level: int | None = None) -> Iterator[None]:
        """As long as it holds, programs are built for this set.

        level: of optimisation; None: the set's own.
        """
        if not self.is_here():
            pytest.skip(f"this CPU has no {self.march}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VNPU_MARCH", self.march)
            if self.march != "native":  # as on the CPUs that have no more, whoever made this one
                patch.setattr(cpu, "cpu_defines", tuple)
            patch.setenv("VNPU_OPT", str(self.level if level is None else level))
            if self.options:
                patch.setenv("VNPU_CXX", f"{known_compilers()[0].command[0]} {self.options}")
            yield


SETS = {
    each.name: each
    for each in (
        InstructionSet("native", "native", level=0),  # as all other tests build: most is built already
        InstructionSet("native, as users build it", "native", level=3),
        InstructionSet("AVX2", "x86-64-v3"),
        InstructionSet("AVX-512", "x86-64-v4"),
        InstructionSet("AVX512-BF16", "x86-64-v4+avx512bf16"),
        InstructionSet("AMX emulated", "native", "tiles.h"),
        InstructionSet("AMX emulated on AVX2", "x86-64-v3", "tiles.h"),
        InstructionSet("AMX by signal", "x86-64-v4+avx512bf16", "tiles_by_signal.h", "-mamx-tile -mamx-bf16"),
        InstructionSet("BFMMLA emulated", "x86-64-v3", "arm_bf16.h"),
    )
}


QUICK = ("native", "AMX emulated")
"""Those that `make test` builds products for; each takes the compiler seconds."""


def sets(*names: str) -> list[Any]:
    """These sets, or all of them, as parameters of a test: slow but for QUICK."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names or SETS]


class Axes(ctypes.Structure):
    """vnpu::Axes, of axes with an extent and the steps in two operands each."""

    _fields_ = (("count", ctypes.c_int), ("list", ctypes.c_int64 * 3 * 6))

    def __init__(self, axes: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(len(axes))
        for place, axis in enumerate(axes):
            self.list[place] = axis


class Sums:
    """What sums.cc exports, built for a set."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def order_of(self, steps: int, columns: int) -> int:
        """The order of sums of blocks with so many steps of k and columns."""
        order: int = self._library.order_of(steps, columns)
        return order

    def multiply(self, a: Array, b: Array, c: Array, axes: Sequence[Any], block: tuple[int, int]) -> Array:
        """c after a product along the axes of m, n and k, of blocks of so many steps and columns."""
        out = c.copy()
        along = (Axes * 3)(*map(Axes, axes))
        self._library.multiply(*pointers(a, b, out), along, *block)
        return out

    def by_rows(self, a: Array, b: Array, c: Array, block: tuple[int, int] = (8, 8)) -> Array:
        """c + a b for row-major matrices."""
        (m, k), n = a.shape, b.shape[1]
        return self.multiply(a, b, c, [[(m, k, n)], [(n, 1, 1)], [(k, 1, n)]], block)

    def by_blocks(self, name: str, a: Array, b: Array, c: Array) -> Array:
        """The same block by block, by one of the functions, such as contract_8x8x8."""
        m, n, k = map(int, name.partition("_")[2].split("x"))
        out, count = np.empty_like(c), a.shape[1] // k
        for i in range(0, c.shape[0], m):
            left = np.ascontiguousarray(a[i : i + m].reshape(m, count, k).swapaxes(0, 1))
            for j in range(0, c.shape[1], n):
                sums = aligned(c[i : i + m, j : j + n])
                right = np.ascontiguousarray(b[:, j : j + n])
                getattr(self._library, name)(*pointers(left, right, sums), count)
                out[i : i + m, j : j + n] = sums
        return out


def pointers(*arrays: Array) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def aligned(source: Array) -> Array:
    """A copy at a multiple of 64 bytes."""
    raw = np.zeros(source.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
    out[...] = source
    return out


@functools.cache
def sums_on(name: str) -> Sums:
    """sums.cc built for a set, from the tests' cache where it was built before."""
    with SETS[name].chosen():
        return Sums(ctypes.CDLL(str(with_products(TranslationUnit(EMULATED.parent / "sums.cc")))))


def with_products(unit: TranslationUnit) -> Path:
    """The shared object of one C++ file, of products and of the runtime, as the environment has it."""
    units = [unit, *(TranslationUnit(INCLUDE / "vnpu" / name) for name in ("product.cc", *RUNTIME))]
    store = programs_store()
    assert store is not None
    return shared_object(known_compilers(BuildOptions().compiler_flags), units, store)


# ---- what the manuals say ----


def flushed(x: Array) -> Array:
    """With zeros for numbers below 2^-126."""
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float64(0), x), x)


def to_f32(x: Array) -> Array:
    """f64 numbers rounded to f32, to nearest even, numbers that are then below 2^-126 to zero."""
    with np.errstate(over="ignore"):
        narrow = np.where(np.abs(x) < 1, (x * 2.0**64).astype(np.float32) * 2.0**-64, x.astype(np.float32))
    return flushed(narrow.astype(np.float64))


def in_order(order: int, a: Array, b: Array, c: Array, depth: int = 8) -> Array:
    """c + a b of row-major bf16 matrices, summed in an order, by the manuals of the CPUs that have it.

    depth: steps that an instruction for tiles is given.

    In f64, where a product of bf16 is exact, and what a sum with an f32 loses lies too far below its last
    place in f32 to matter to the rounding.
    """
    x, y, sums = a.astype(np.float64), b.astype(np.float64), c.astype(np.float64)
    if order == ONE_BY_ONE:
        for k in range(a.shape[1]):
            sums = (sums + np.outer(x[:, k], y[k])).astype(np.float32).astype(np.float64)
    elif order == PAIRS:
        x, y, sums = map(flushed, (x, y, sums))
        for k in range(0, a.shape[1], 2):
            for step in (k + 1, k):
                sums = to_f32(sums + np.outer(x[:, step], y[step]))
    elif order == TILES:
        x, y, sums = map(flushed, (x, y, sums))
        for k in range(0, a.shape[1], depth):
            chains = [np.zeros(c.shape), np.zeros(c.shape)]
            for step in range(k, k + depth):
                chains[step % 2] = to_f32(chains[step % 2] + np.outer(x[:, step], y[step]))
            sums = to_f32(sums + to_f32(chains[0] + chains[1]))
    else:
        for at in np.ndindex(c.shape):
            sums[at] = _in_odd_pairs(x[at[0]], y[:, at[1]], float(sums[at]))
    return sums.astype(np.float32)


def _in_odd_pairs(row: Array, column: Array, total: float) -> float:
    """One element by BFDOT, for finite numbers."""
    row, column, total = flushed(row), flushed(column), float(flushed(np.array(total)))
    for k in range(0, len(row), 2):
        even, odd = (float(row[i] * column[i]) for i in (k, k + 1))  # exact
        total = odd_sum(total, odd_sum(to_odd(Fraction(even), even), to_odd(Fraction(odd), odd)))
    return total


def odd_sum(x: float, y: float) -> float:
    return to_odd(Fraction(x) + Fraction(y), x + y)


def to_odd(x: Fraction, sign: float) -> float:
    """Rounded to f32 so that the last bit tells whether anything was lost; numbers below 2^-126 are 0."""
    if abs(x) < Fraction(1, 2**126):
        return math.copysign(0.0, sign)
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    places = abs(x) / Fraction(2) ** (exponent - 23)
    whole = int(places)
    kept = whole | (whole != places)
    return math.copysign(float(kept * Fraction(2) ** (exponent - 23)), sign)
