"""Decode attention in C++ (decode_attention.cc), compiled at first use. Without a compiler numpy does the
work (attention.py).

The compiler, its flags, the cache folder and the threads are those of the virtual NPU's programs.
AERIE_PLAIN=host_code turns the C++ code off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.compiler import stop_compilers
from aerie.common.errors import KnobError, UserError
from aerie.common.knobs import PLAIN, is_plain
from aerie.common.store import interrupt_lock_waits
from aerie.engine.numerics import BF16Array, bf16
from aerie.runtime import HostCode, HostWork
from aerie.virtual_npu import ProgramError
from aerie.virtual_npu.objects import load_host_code

SOURCE = Path(__file__).parent / "decode_attention.cc"

ELEMENTS = 32
"""head_dim must be a multiple of this number: two of the widest vectors."""


class KVPosition(ctypes.Structure):
    """Positions for one call of the C++ code. The same struct is in decode_attention.cc.

    Rows are stored at positions `position` .. `position + rows - 1`, or at `row_positions` (int64[rows]) if
    that pointer is set. A query attends to positions `visible_start` .. `visible_stop - 1`, or to
    `visible[visible_start .. visible_stop - 1]` (int64) if that pointer is set.
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("position", "rows", "visible_start", "visible_stop")),
        ("row_positions", ctypes.c_void_p),
        ("visible", ctypes.c_void_p),
    )

    position: int
    rows: int
    visible_start: int
    visible_stop: int
    row_positions: int | None
    visible: int | None

    def set_rows(self, position: int, rows: int = 1) -> None:
        """Store `rows` rows from `position` on."""
        self.position, self.rows, self.row_positions = position, rows, None

    def set_row_positions(self, positions: NDArray[np.int64]) -> None:
        """Store one row at each of these positions, int64 (rows,)."""
        self._positions = np.ascontiguousarray(positions, np.int64)  # the pointer needs it alive
        self.rows, self.row_positions = len(positions), self._positions.ctypes.data

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of the rows to store, int64 (rows,)."""
        return self._positions if self.row_positions else self.position + np.arange(self.rows)

    def set_visible(self, visible: slice | NDArray[np.int64], capacity: int) -> None:
        """Attend to this slice of positions, or to these positions (int64) in this order. Raises IndexError
        if one is outside a cache of `capacity` positions."""
        if isinstance(visible, slice):
            self.visible_start, self.visible_stop, _ = visible.indices(capacity)
            self.visible = None
        else:
            if visible.min() < 0 or visible.max() >= capacity:
                raise IndexError(f"positions {visible.min()}..{visible.max()} in a cache of {capacity}")
            self._visible = np.ascontiguousarray(visible, np.int64)  # the pointer needs it alive
            self.visible_start = 0
            self.visible_stop = len(self._visible)
            self.visible = self._visible.ctypes.data


class StatePositions(ctypes.Structure):
    """The positions whose rows of a state each token reads (layer_states.py). The same struct is in
    decode_attention.cc."""

    _fields_ = (
        ("tokens", ctypes.c_int64),
        ("reads", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
    )

    def set(self, positions: NDArray[np.int64]) -> None:
        """Read these rows, int64 (tokens, reads), the token's own last; -1 where there is none."""
        self.array = np.ascontiguousarray(positions, np.int64)  # the pointer needs it alive
        self.tokens, self.reads = self.array.shape
        self.positions = self.array.ctypes.data


class _StateLayer(ctypes.Structure):
    """A state's rows, and the new or the gathered ones. The same struct is in decode_attention.cc."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("state", "rows")),
        *((name, ctypes.c_int64) for name in ("width", "nbytes")),
        ("positions", ctypes.POINTER(StatePositions)),
    )


_ARRAYS = ("query", "key_rows", "value_rows", "keys", "values", "out")
_SIZES = ("heads", "kv_heads", "head_dim", "capacity", "threads")


class _Layer(ctypes.Structure):
    """Arrays and sizes of one layer. The same struct is in decode_attention.cc."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_int64) for name in _SIZES),
        ("scale", ctypes.c_double),
        ("position", ctypes.POINTER(KVPosition)),
    )


class NativeLayer:
    """The C++ functions bound to the arrays of one layer. The arrays must stay at their addresses.

    keys and values: (kv_heads, capacity, head_dim). To store rows, pass key_rows and value_rows, (rows,
    kv_heads * head_dim). To attend, pass query and out, (heads * head_dim,). All are bf16 and contiguous.
    scale: what scores are multiplied with; None means 1 / sqrt(head_dim). Raises ValueError for other arrays.
    """

    def __init__(
        self,
        native: NativeAttention,
        position: KVPosition,
        threads: int,
        scale: float | None = None,
        **arrays: BF16Array,
    ) -> None:
        kv_heads, capacity, head_dim = arrays["keys"].shape
        query_size = arrays["query"].size if "query" in arrays else 0
        sizes = query_size // head_dim, kv_heads, head_dim, capacity, threads
        row = kv_heads * head_dim
        rows = arrays["key_rows"].size // row * row if "key_rows" in arrays else 0
        expected = {"key_rows": rows, "value_rows": rows, "values": row * capacity, "out": query_size}
        for name, array in arrays.items():
            _check(name, array, expected.get(name, array.size))
        pointers = (arrays[name].ctypes.data if name in arrays else None for name in _ARRAYS)
        self._native = native
        self._in_c = _Layer(*pointers, *sizes, scale or 1 / math.sqrt(head_dim), ctypes.pointer(position))
        self._keeps = self._in_c, arrays

    def keep_rows(self) -> HostWork:
        """Store the first `position.rows` rows of key_rows and value_rows at the positions of `position`."""
        return self._work(self._native.keep_rows)

    def attend(self) -> HostWork:
        """Write the attention of `query` over the visible positions to `out`."""
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
    """The functions of decode_attention.cc. `seconds`: total time of the calls made from Python."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.seconds = 0.0
        self.keep_rows, self.attend = library.keep_rows, library.decode_attention
        self._of_states = {name: getattr(library, name) for name in ("store_state_rows", "gather_state_rows")}
        for function in (self.keep_rows, self.attend, *self._of_states.values()):
            function.argtypes = [ctypes.c_void_p] * 3

    def can_attend(self, keys: BF16Array, visible: object) -> bool:
        """Whether the C++ code can attend to these keys: contiguous, head_dim a multiple of ELEMENTS, and
        `visible` a slice with step 1 or an int64 array, not empty."""
        if keys.shape[2] % ELEMENTS or not keys.flags.c_contiguous:
            return False
        if isinstance(visible, slice):
            start, stop, step = visible.indices(keys.shape[1])
            return step == 1 and start < stop
        return isinstance(visible, np.ndarray) and visible.dtype == np.int64 and visible.size > 0

    def state_work(self, name: str, positions: StatePositions, state: BF16Array, rows: BF16Array) -> HostWork:
        """The host work of `store_state_rows` or `gather_state_rows` on a layer's state, (capacity, width),
        and rows of its width; all are contiguous and stay at their addresses."""
        for array_name, array in (("state", state), ("rows", rows)):
            _check(array_name, array, array.size // state.shape[1] * state.shape[1])
        pointers = (array.ctypes.data for array in (state, rows))
        in_c = _StateLayer(*pointers, state.shape[1], rows.nbytes, ctypes.pointer(positions))
        function, keeps = self._of_states[name], (in_c, positions, state, rows)
        code = HostCode(ctypes.cast(function, ctypes.c_void_p).value or 0, ctypes.addressof(in_c), keeps)
        return HostWork(partial(self.timed, function, in_c), code)

    def timed(self, function: Any, layer: _Layer | _StateLayer) -> None:
        """Call one of the functions, and add its time to `seconds`."""
        started = time.perf_counter()
        function(ctypes.byref(layer), None, None)
        self.seconds += time.perf_counter() - started


def native_attention() -> NativeAttention | None:
    """The C++ functions, compiled at the first call. Returns None if AERIE_PLAIN turns them off or they do
    not compile."""
    if is_plain("host_code"):
        return None
    native = _load()
    return native if isinstance(native, NativeAttention) else None


def prepare_native() -> str:
    """Compile the C++ code now, so that no token waits for it. Returns a line for the user if numpy is used
    instead, else "". Raises UserError for a bad value of AERIE_PLAIN."""
    if not _is_enabled():
        return f"decode attention: numpy ({PLAIN.name} asks for it)"
    native = _load()
    return native if isinstance(native, str) else ""


def _is_enabled() -> bool:
    try:
        return not is_plain("host_code")
    except KnobError as error:
        raise UserError(str(error)) from None


@contextlib.contextmanager
def preparing_native() -> Iterator[Future[str]]:
    """Inside, `prepare_native` runs in a thread of its own; its result is the future's. It takes as long as
    several programs. Ctrl-C inside ends it: then the code is compiled at the next call. Raises UserError for
    a bad value of AERIE_PLAIN."""
    _is_enabled()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile") as pool:
        prepared = pool.submit(prepare_native)
        try:
            yield prepared
        except KeyboardInterrupt:
            if not prepared.done():
                _stop(prepared)
            raise


def _stop(prepared: Future[str]) -> None:
    """Stop repeatedly: the next compiler, or wait for a lock, may begin after the first stop."""
    while not prepared.done():
        stop_compilers()
        interrupt_lock_waits()
        wait([prepared], timeout=0.1)
    _load.cache_clear()  # which says that C++ failed


@functools.cache
def _load() -> NativeAttention | str:
    """The compiled functions, or the reason why there are none."""
    try:
        return NativeAttention(load_host_code(SOURCE, with_team=True))
    except ProgramError as error:
        reason = str(error).splitlines()[0]
        return f"decode attention: numpy, which is slower at long contexts, because C++ failed ({reason})"
