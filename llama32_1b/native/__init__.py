"""Decode attention in C++ (decode_attention.cc): compiled where there is a compiler, else done without.

The compiler, its flags and the cache folder are those of the virtual NPU's programs; so is the number of
threads. AERIE_HOST_CODE=numpy turns it off.
"""

from __future__ import annotations

import ctypes
import functools
import math
import time
import weakref
from pathlib import Path

import numpy as np

from llama32_1b.errors import UserError
from llama32_1b.numerics import BF16Array, bf16
from virtual_npu import VirtualNpuError
from virtual_npu.errors import KnobError
from virtual_npu.host_code import load_host_code
from virtual_npu.knobs import Knob

SOURCE = Path(__file__).parent / "decode_attention.cc"

HOST_CODE = Knob(
    "AERIE_HOST_CODE",
    "native",
    "decode attention on the CPU: native (C++, compiled once) or numpy",
    "native or numpy",
    {"native", "numpy"}.__contains__,
)

ELEMENTS = 32
"""A head's width must be a multiple of this: of two of the widest vectors."""


class Addresses:
    """Where arrays lie: numpy is asked once for each, as long as it lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[BF16Array], int]] = {}

    def of(self, array: BF16Array) -> int:
        key = id(array)
        found = self._known.get(key)
        if found is None or found[0]() is not array:
            gone = weakref.ref(array, lambda _: self._known.pop(key, None))
            found = self._known[key] = gone, array.ctypes.data
        return found[1]


class NativeAttention:
    """The function of decode_attention.cc. `seconds` is the time spent in it so far."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.seconds = 0.0
        self._addresses = Addresses()
        self._function = library.decode_attention
        pointers, sizes = [ctypes.c_void_p] * 4, [ctypes.c_int64] * 6
        self._function.argtypes = [*pointers, *sizes, ctypes.c_float, ctypes.c_int64]
        self._function.restype = None

    def serves(self, query: BF16Array, keys: BF16Array, values: BF16Array, visible: object) -> bool:
        """Whether it can attend to these: `visible` a run of positions, whole vectors, cache as it lies."""
        if not isinstance(visible, slice) or keys.shape[2] % ELEMENTS:
            return False
        start, stop, step = visible.indices(keys.shape[1])
        in_place = query.flags.c_contiguous and keys.flags.c_contiguous and values.flags.c_contiguous
        return step == 1 and start < stop and in_place

    def __call__(
        self, query: BF16Array, keys: BF16Array, values: BF16Array, visible: slice, threads: int = 1
    ) -> BF16Array:
        """As attention.reference_attention, for what `serves` accepts. The cache is read in place."""
        kv_heads, capacity, head_dim = keys.shape
        start, stop, _ = visible.indices(capacity)
        out = np.empty(query.shape, bf16)
        at = self._addresses.of
        pointers = at(query), at(keys), at(values), out.__array_interface__["data"][0]
        sizes = query.size // head_dim, kv_heads, head_dim, capacity * head_dim, start, stop
        started = time.perf_counter()
        self._function(*pointers, *sizes, 1 / math.sqrt(head_dim), threads)
        self.seconds += time.perf_counter() - started
        return out


def native_attention() -> NativeAttention | None:
    """The C++ form, or None where it is not wanted or cannot be had. Compiled at the first call."""
    if HOST_CODE.get() != "native":
        return None
    found = _load()
    return found if isinstance(found, NativeAttention) else None


def prepare_native() -> str:
    """Compile, so that no token waits for it; a line to tell the user, or "". UserError for a bad knob."""
    try:
        wanted = HOST_CODE.get() == "native"
    except KnobError as error:
        raise UserError(str(error)) from None
    if not wanted:
        return f"decode attention: numpy ({HOST_CODE.name} asks for it)"
    found = _load()
    return found if isinstance(found, str) else ""


@functools.cache
def _load() -> NativeAttention | str:
    """It, or why there is none."""
    try:
        return NativeAttention(load_host_code(SOURCE))
    except VirtualNpuError as error:
        reason = str(error).splitlines()[0]
        return f"decode attention: numpy, which is slower at long contexts, because C++ failed ({reason})"
