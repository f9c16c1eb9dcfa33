"""Decode attention in C++ (decode_attention.cc): compiled where there is a compiler, else done without.

The compiler, its flags and the cache folder are those of the virtual NPU's programs; so are the threads and
their number. AERIE_PLAIN=host_code turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import KnobError, UserError
from aerie.common.knobs import PLAIN, is_plain
from aerie.engine.numerics import BF16Array, bf16
from aerie.runtime import HostCode, HostWork
from aerie.virtual_npu import ProgramError
from aerie.virtual_npu.objects import load_host_code

SOURCE = Path(__file__).parent / "decode_attention.cc"

ELEMENTS = 32
"""A head's width must be a multiple of this: of two of the widest vectors."""


class KVPosition(ctypes.Structure):
    """The position of the first of so many new rows, or of each of them, and the positions that a decoded
    token attends to; KVPosition in decode_attention.cc."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("position", "rows", "first", "last")),
        ("to", ctypes.c_void_p),
        ("seen", ctypes.c_void_p),
    )

    position: int
    rows: int
    visible_start: int
    visible_stop: int
    row_positions: int | None
    visible: int | None

    def set_rows(self, position: int, rows: int = 1) -> None:
        self.position, self.rows, self.row_positions = position, rows, None

    def set_row_positions(self, positions: NDArray[np.int64]) -> None:
        """New rows have these positions, one each."""
        self._positions = np.ascontiguousarray(positions, np.int64)  # to which `to` points
        self.rows, self.row_positions = len(positions), self._positions.ctypes.data

    @property
    def positions(self) -> NDArray[np.int64]:
        """Those of new rows."""
        return self._positions if self.row_positions else self.position + np.arange(self.rows)

    def set_visible(self, visible: slice | NDArray[np.int64], capacity: int) -> None:
        """A decoded token attends to a run of positions, or to these, in this order. IndexError for positions
        that the cache does not have."""
        if isinstance(visible, slice):
            self.visible_start, self.visible_stop, _ = visible.indices(capacity)
            self.visible = None
        else:
            if visible.min() < 0 or visible.max() >= capacity:
                raise IndexError(f"positions {visible.min()}..{visible.max()} in a cache of {capacity}")
            self._seen = np.ascontiguousarray(visible, np.int64)  # to which `seen` points
            self.visible_start, self.visible_stop, self.visible = 0, len(self._seen), self._seen.ctypes.data


_ARRAYS = ("query", "key_rows", "value_rows", "keys", "values", "out")
_SIZES = ("heads", "kv_heads", "head_dim", "capacity", "threads")


class _Layer(ctypes.Structure):
    """Layer in decode_attention.cc."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("place", ctypes.POINTER(KVPosition)),
    )


class NativeLayer:
    """The functions of decode_attention.cc on the arrays of one layer, which stay where they are.

    keys and values are (kv_heads, capacity, head_dim). To keep rows, there are key_rows and value_rows,
    (rows, kv_heads * head_dim) both; to attend, query and out, (heads * head_dim,). All are bf16 and
    contiguous. Raises ValueError for others.
    """

    def __init__(
        self, native: NativeAttention, position: KVPosition, threads: int, **arrays: BF16Array
    ) -> None:
        kv_heads, capacity, head_dim = arrays["keys"].shape
        whole = arrays["query"].size if "query" in arrays else 0
        sizes = whole // head_dim, kv_heads, head_dim, capacity, threads
        row = kv_heads * head_dim
        rows = arrays["key_rows"].size // row * row if "key_rows" in arrays else 0
        expected = {"key_rows": rows, "value_rows": rows, "values": row * capacity, "out": whole}
        for name, array in arrays.items():
            _check(name, array, expected.get(name, array.size))
        pointers = (arrays[name].ctypes.data if name in arrays else None for name in _ARRAYS)
        self._native = native
        self._in_c = _Layer(*pointers, *sizes, ctypes.pointer(position))
        self._keeps = self._in_c, arrays

    def keep_rows(self) -> HostWork:
        """Store as many of key_rows and value_rows as the place has rows, from its position on."""
        return self._work(self._native.keep_rows)

    def attend(self) -> HostWork:
        """The token's attention to `out`."""
        return self._work(self._native.attend)

    def _work(self, function: Any) -> HostWork:
        argument = ctypes.addressof(self._in_c)
        code = HostCode(ctypes.cast(function, ctypes.c_void_p).value or 0, argument, self._keeps)
        return HostWork(partial(self._do, function), code)

    def _do(self, function: Any) -> None:
        self._native.timed(function, self._in_c)


def _check(name: str, array: BF16Array, size: int) -> None:
    if array.size != size or array.dtype != bf16 or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is {array.shape} {array.dtype}; decode attention reads {size} elements of bf16 in a row"
        )


class NativeAttention:
    """The functions of decode_attention.cc. `seconds` is the time spent so far in calls from Python."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.seconds = 0.0
        self.keep_rows, self.attend = library.keep_rows, library.decode_attention
        for function in (self.keep_rows, self.attend):
            function.argtypes = [ctypes.c_void_p] * 3

    def can_attend(self, keys: BF16Array, visible: object) -> bool:
        """Whether it can attend to these: `visible` a run of positions, or where positions lie, one or more
        in either; whole vectors, a cache as it lies."""
        if keys.shape[2] % ELEMENTS or not keys.flags.c_contiguous:
            return False
        if isinstance(visible, slice):
            start, stop, step = visible.indices(keys.shape[1])
            return step == 1 and start < stop
        return isinstance(visible, np.ndarray) and visible.dtype == np.int64 and visible.size > 0

    def timed(self, function: Any, layer: _Layer) -> None:
        """Call one of the functions."""
        started = time.perf_counter()
        function(ctypes.byref(layer), None, None)
        self.seconds += time.perf_counter() - started


def native_attention() -> NativeAttention | None:
    """The C++ form, or None where it is not wanted or cannot be had. Compiled at the first call."""
    if is_plain("host_code"):
        return None
    found = _load()
    return found if isinstance(found, NativeAttention) else None


def prepare_native() -> str:
    """Compile, so that no token waits for it; a line to tell the user, or "". UserError for a bad knob."""
    try:
        is_wanted = not is_plain("host_code")
    except KnobError as error:
        raise UserError(str(error)) from None
    if not is_wanted:
        return f"decode attention: numpy ({PLAIN.name} asks for it)"
    found = _load()
    return found if isinstance(found, str) else ""


@functools.cache
def _load() -> NativeAttention | str:
    """It, or why there is none."""
    try:
        return NativeAttention(load_host_code(SOURCE, with_team=True))
    except ProgramError as error:
        reason = str(error).splitlines()[0]
        return f"decode attention: numpy, which is slower at long contexts, because C++ failed ({reason})"
