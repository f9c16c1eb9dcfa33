# ruff: noqa: E501 - MLIR has long lines
"""Sizes, offsets, steps and positions that are known only at run time: right ones run, and others end the run with
their place and values, with checks and without; nothing is written that is not the program's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from aerie import virtual_npu

VIEW = "memref<?xf32, strided<[1]>>"
TAKE = f"%x = memref.subview %a[0] [%n] [1] : memref<16xf32> to {VIEW}\n"


@dataclass(frozen=True)
class Kind:
    """What a program does with %n and %m, and for which of them that is legal."""

    body: str
    legal: Callable[[int, int], bool]
    operation: str
    """The one that is refused, or one of several."""
    large: bool = True
    """Whether large numbers are tried: a legal one must not take long."""


def _fill(view: str, type_: str) -> str:
    return f"linalg.fill ins(%z : f32) outs({view} : {type_})\n"


def _loop(text: str) -> str:
    return f"{text} {{\n memref.store %z, %a[%c0] : memref<16xf32>\n }}\n"


def _launch(text: str, sizes: str = "() in ()") -> str:
    head = f"air.launch {sizes} args(%a1=%a, %n1=%n, %m1=%m) : memref<16xf32>, index, index {{\n"
    return f"{head} {text}\n }}\n"


KINDS = {
    "alloc": Kind("%b = memref.alloc(%n) : memref<?xf32>\n memref.dealloc %b : memref<?xf32>\n", lambda n, m: 0 <= n < 1000, "memref.alloc"),
    "alloc_2d": Kind("%b = memref.alloc(%n, %m) : memref<?x?xf32>\n memref.dealloc %b : memref<?x?xf32>\n", lambda n, m: n >= 0 and m >= 0 and n * m < 1 << 30, "memref.alloc"),
    "subview": Kind(TAKE + _fill("%x", VIEW), lambda n, m: 0 <= n <= 16, "memref.subview"),
    "subview_from": Kind(
        "%x = memref.subview %a[%m] [%n] [2] : memref<16xf32> to memref<?xf32, strided<[2], offset: ?>>\n" + _fill("%x", "memref<?xf32, strided<[2], offset: ?>>"),
        lambda n, m: (n == 0 and 0 <= m <= 16) or (n > 0 and m >= 0 and m + 2 * (n - 1) < 16),
        "memref.subview",
    ),
    "subview_step": Kind(
        "%x = memref.subview %a[0] [4] [%n] : memref<16xf32> to memref<4xf32, strided<[?]>>\n" + _fill("%x", "memref<4xf32, strided<[?]>>"),
        lambda n, m: 0 <= 3 * n < 16,
        "memref.subview",
    ),
    "cast": Kind(TAKE + f"%y = memref.cast %x : {VIEW} to memref<8xf32, strided<[1]>>\n" + _fill("%y", "memref<8xf32, strided<[1]>>"), lambda n, m: n == 8, "memref."),
    "expand": Kind(
        TAKE + f"%y = memref.expand_shape %x [[0, 1]] output_shape [%m, 4] : {VIEW} into memref<?x4xf32, strided<[4, 1]>>\n" + _fill("%y", "memref<?x4xf32, strided<[4, 1]>>"),
        lambda n, m: 0 <= n <= 16 and 4 * m == n,
        "memref.",
    ),
    "view": Kind(
        "%b = memref.alloc() : memref<64xi8>\n %y = memref.view %b[%n][%m] : memref<64xi8> to memref<?xf32>\n" + _fill("%y", "memref<?xf32>") + "memref.dealloc %b : memref<64xi8>\n",
        lambda n, m: n >= 0 and n % 4 == 0 and m >= 0 and n + 4 * m <= 64,
        "memref.view",
    ),
    "reinterpret": Kind(
        "%y = memref.reinterpret_cast %a to offset: [%n], sizes: [%m], strides: [1] : memref<16xf32> to memref<?xf32, strided<[1], offset: ?>>\n" + _fill("%y", "memref<?xf32, strided<[1], offset: ?>>"),
        lambda n, m: m == 0 or (m > 0 and n >= 0 and n + m <= 16),
        "memref.reinterpret_cast",
    ),
    "for": Kind(_loop("scf.for %i = %c0 to %c4 step %n"), lambda n, m: n > 0, "scf.for"),
    "parallel": Kind(_loop("scf.parallel (%i, %j) = (%c0, %c0) to (%c4, %c4) step (%c1, %n)"), lambda n, m: n > 0, "scf.parallel"),
    "forall": Kind(_loop("scf.forall (%i) = (0) to (4) step (%n)"), lambda n, m: n > 0, "scf.forall"),
    "launch": Kind(_launch("%k = arith.addi %n1, %m1 : index", "(%i, %j) in (%sx=%n, %sy=%m)"), lambda n, m: n >= 0 and m >= 0, "air.launch", large=False),
    "dma": Kind(
        _launch("%b = memref.alloc() : memref<16xf32, 1>\n air.dma_memcpy_nd (%b[%c0] [%n1] [%c1], %a1[%m1] [%n1] [%c1]) : (memref<16xf32, 1>, memref<16xf32>)\n memref.dealloc %b : memref<16xf32, 1>"),
        lambda n, m: n == 0 or (0 < n <= 16 and m >= 0 and m + n <= 16),
        "air.dma_memcpy_nd",
    ),
    "dma_stride": Kind(
        _launch("%b = memref.alloc() : memref<2xf32, 1>\n air.dma_memcpy_nd (%b[%c0] [%c2] [%c1], %a1[%m1] [%c2] [%n1]) : (memref<2xf32, 1>, memref<16xf32>)\n memref.dealloc %b : memref<2xf32, 1>"),
        lambda n, m: 0 <= m * n < 16 and 0 <= m * n + n < 16,
        "air.dma_memcpy_nd",
    ),
    "channel": Kind(
        _launch("air.channel.put @c[] (%a1[%c0] [%n1] [%c1]) : (memref<16xf32>)\n %b = memref.alloc() : memref<16xf32, 1>\n air.channel.get @c[] (%b[%c0] [%n1] [%c1]) : (memref<16xf32, 1>)\n memref.dealloc %b : memref<16xf32, 1>"),
        lambda n, m: 0 <= n <= 16,
        "air.channel.",
    ),
    "extract": Kind("%v = vector.load %a[%c0] : memref<16xf32>, vector<8xf32>\n %e = vector.extract %v[%n] : f32 from vector<8xf32>\n memref.store %e, %a[%c0] : memref<16xf32>\n", lambda n, m: 0 <= n < 8, "vector.extract"),
    "insert": Kind("%v = vector.load %a[%c0] : memref<16xf32>, vector<8xf32>\n %e = vector.insert %z, %v[%n] : f32 into vector<8xf32>\n vector.store %e, %a[%c0] : memref<16xf32>, vector<8xf32>\n", lambda n, m: 0 <= n < 8, "vector.insert"),
    "operands": Kind(
        TAKE + f"%y = memref.subview %a[0] [%m] [1] : memref<16xf32> to {VIEW}\n linalg.add ins(%x, %x : {VIEW}, {VIEW}) outs(%y : {VIEW})\n",
        lambda n, m: 0 <= n <= 16 and n == m,
        "",
    ),
    "copy": Kind(TAKE + f"%b = memref.alloc(%m) : memref<?xf32>\n memref.copy %x, %b : {VIEW} to memref<?xf32>\n memref.dealloc %b : memref<?xf32>\n", lambda n, m: 0 <= n <= 16 and n == m, "memref."),
    "delinearize": Kind("%q, %r = affine.delinearize_index %m into (4, %n) : index, index\n memref.store %q, %p[%c0] : memref<2xindex>\n", lambda n, m: n > 0, "affine.delinearize_index"),
}  # fmt: skip


def _program() -> str:
    parts = ["air.channel @c [1]\n"]
    for name, kind in KINDS.items():
        parts.append(
            f"func.func @{name}(%a: memref<16xf32>, %p: memref<2xindex>) {{\n %z = arith.constant 0.0 : f32\n"
            " %n = memref.load %p[%c0] : memref<2xindex>\n %m = memref.load %p[%c1] : memref<2xindex>\n"
            f" {kind.body} return\n}}\n"
        )
    return "".join(parts)


@pytest.fixture(scope="module", params=[False, True], ids=["fast", "checks"])
def library(request, program) -> virtual_npu.Library:
    return program(_program(), options=virtual_npu.BuildOptions(checks=request.param))


def drawn(name: str, is_large: bool) -> list[tuple[int, int]]:
    """Pairs of sizes: around what is legal, and far from it."""
    source = random.Random(name)
    near = [*range(-2, 18)]
    far = [-(1 << 63), -(1 << 62), -(1 << 32), -100, -8, 100]
    far += [1 << 40, 1 << 61, 1 << 62, (1 << 63) - 1] if is_large else []
    pairs = [
        (n, m) for numbers in (near, far, near + far) for n in numbers for m in source.sample(numbers, 2)
    ]
    return [*pairs, (8, 2), (4, 1), (0, 0), (16, 4), (8, 8), (3, 3)]


def run_between_guards(library: virtual_npu.Library, name: str, n: int, m: int) -> None:
    """Run a kind on an array in the middle of another one, which must stay as it is."""
    around, sizes = np.full(16 + 2 * 64, 7, np.float32), np.array([n, m])
    try:
        library.run(name, [around[64:80].ctypes.data, sizes.ctypes.data])
    finally:
        assert (around[:64] == 7).all()
        assert (around[80:] == 7).all()


def test_missing_memory_is_reported(library):
    with pytest.raises(
        virtual_npu.VirtualNpuRuntimeError, match=r"memref.alloc: out of memory: \d+ bytes beside"
    ):
        run_between_guards(library, "alloc", 1 << 40, 0)


@pytest.mark.parametrize("name", KINDS)
def test_sizes_that_are_not_legal_end_the_run(library, name):
    kind = KINDS[name]
    pairs = drawn(name, kind.large)
    legal = [pair for pair in pairs if kind.legal(*pair)]
    assert 0 < len(legal) < len(pairs)
    for pair in legal:
        run_between_guards(library, name, *pair)
    for pair in set(pairs) - set(legal):
        message = rf"{name}: line \d+: {kind.operation}.*: .*\d"
        with pytest.raises(virtual_npu.VirtualNpuRuntimeError, match=message):
            run_between_guards(library, name, *pair)
