"""The matrix product (vnpu/product_driver.h) alone, on every instruction set, however operands lie."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.common import cpu
from aerie.virtual_npu.errors import VirtualNpuRuntimeError
from aerie.virtual_npu.library import FORMAT, Library
from aerie.virtual_npu.objects import TranslationUnit
from tests.virtual_npu.instruction_sets import BF16, SETS, InstructionSet, Sums, sets, sums_on, with_products

PROGRAM = """
#include "vnpu/entry.h"
#include "vnpu/product.h"

static void product(void *const *arguments) {
  const auto a = static_cast<const vnpu::bf16 *>(arguments[0]);
  const auto b = static_cast<const vnpu::bf16 *>(arguments[1]);
  vnpu::multiply_add({a, b, static_cast<float *>(arguments[2]), AXES, 8, 8});
}

using namespace vnpu;
VNPU_EXPORT int vnpu_entry_product(void *const *arguments, const RunOptions *options, RunReport *report) {
  return call_entry(product, arguments, options, report);
}
VNPU_EXPORT const char vnpu_metadata[];
const char vnpu_metadata[] = R"({"format": FORMAT, "kernels": [], "entries": {"product": {"arguments": [
    {"shape": [1], "dtype": "bf16"}, {"shape": [1], "dtype": "bf16"}, {"shape": [1], "dtype": "f32"}]}}})";
"""
ENDLESS = [[(1 << 9, 0, 0)] * 2] * 3
"""The axes of a product of 2^54 multiplications, all of the same numbers."""
PATIENCE_S = 60

Axis = tuple[int, int, int]
"""Extent, and the steps in the two operands."""


@pytest.fixture(params=sets())
def sums(request: pytest.FixtureRequest) -> Sums:
    """The products of each set that this machine can run or emulate."""
    return sums_on(request.param)


def places(axes: list[Axis], side: int) -> np.ndarray:
    """Where every value of an index lies in one of its operands."""
    at = np.zeros(1, np.int64)
    for axis in axes:
        at = (at[:, None] + np.arange(axis[0]) * axis[side]).ravel()
    return at


def one_by_one(a: Any, b: Any, c: Any, m: list[Axis], n: list[Axis], k: list[Axis]) -> np.ndarray:
    """The product in order of k, each exact product added with one rounding."""
    out = c.copy()
    left = a[places(m, 1)[:, None] + places(k, 1)].astype(np.float32)
    right = b[places(k, 2)[:, None] + places(n, 1)].astype(np.float32)
    at = places(m, 2)[:, None] + places(n, 2)
    for step in range(left.shape[1]):
        out[at] += np.outer(left[:, step], right[step])
    return out


def blocked(counts: tuple[int, int, int], block: tuple[int, int, int], transposed: bool) -> list[list[Axis]]:
    """Axes of operands in blocks, columns of blocks after each other: m, n and k."""
    (i, j, p), (r, s, t) = counts, block
    b_row, b_column = (1, t) if transposed else (s, 1)
    return [
        [(i, r * t, r * s), (r, t, s)],
        [(j, p * s * t, i * r * s), (s, b_column, 1)],
        [(p, i * r * t, s * t), (t, 1, b_row)],
    ]


def plain(m: int, n: int, k: int, transposed: bool) -> list[list[Axis]]:
    """Axes of row-major operands."""
    b_row, b_column = (1, k) if transposed else (n, 1)
    return [[(m, k, n)], [(n, b_column, 1)], [(k, 1, b_row)]]


def scattered(m: int, n: int, k: int) -> list[list[Axis]]:
    """Axes of operands that no run of elements is in: a and c by columns, every other element of b."""
    return [[(m, 1, 1)], [(n, 2, m)], [(k, m, 2 * n)]]


def few_rows(m: int, n: int, k: int) -> list[list[Axis]]:
    """Axes of a product of few rows by a weight (n, k), whose sums are in blocks of 8x8."""
    return [[(m // 8, 8 * k, 64), (8, k, 8)], [(n // 8, 8 * k, 8 * m), (8, k, 1)], [(k, 1, 1)]]


def extents(indices: list[list[Axis]]) -> list[int]:
    return [int(np.prod([axis[0] for axis in index])) for index in indices]


def random_operands(indices: list[list[Axis]], seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    m, n, k = extents(indices)
    a, b, c = (rng.standard_normal(count, np.float32) for count in (m * k, 2 * n * k, m * n))
    return a.astype(BF16), b.astype(BF16), c


FORMS = {
    "8x8x8": blocked((4, 16, 4), (8, 8, 8), False),
    "8x8x8 transposed": blocked((2, 5, 3), (8, 8, 8), True),
    "4x8x8": blocked((3, 8, 2), (4, 8, 8), False),
    "8x8x4": blocked((2, 11, 4), (8, 4, 8), False),
    "rows": plain(33, 96, 320, False),
    "rows, many threads": plain(256, 320, 64, False),
    "rows, deep": plain(8, 32, 600, False),
    "rows transposed": plain(24, 64, 288, True),
    "rows transposed, odd": plain(5, 37, 77, True),
    "few rows": few_rows(16, 96, 160),
    "few rows, no whole panel": few_rows(8, 40, 32),
    "few rows, some of eight": plain(3, 72, 288, True),
    "40 rows, as they lie": plain(40, 48, 96, True),
    "64 rows, as they lie": plain(64, 32, 64, True),
    "few rows, columns in pieces": [
        [(8, 256, 8)],
        [(8, 512, 64), (8, 64, 1)],
        [(4, 64, 4096), (64, 1, 1)],
    ],
    "scattered": scattered(13, 50, 31),
    "one element": plain(1, 1, 1, False),
}
LARGE = {
    "rows, packed in pieces": plain(600, 160, 800, False),
    "rows transposed, packed in pieces": plain(530, 200, 500, True),
    "few rows, packed in pieces": plain(18, 56, 4448, True),
    "few rows, many threads": few_rows(32, 136, 416),
    "8 rows, in parts": few_rows(8, 104, 4448),
    "many rows by a weight, in pieces": few_rows(264, 80, 4160),
}
"""More rows and steps than are packed at once; too large for what is emulated."""


def check_rows(sums: Sums, indices: list[list[Axis]], seed: int, form: str) -> None:
    """That a product has the bits that it has of row-major operands."""
    m, n, k = indices
    a, b, c = random_operands(indices, seed)
    left, right = a[places(m, 1)[:, None] + places(k, 1)], b[places(k, 2)[:, None] + places(n, 1)]
    at = places(m, 2)[:, None] + places(n, 2)
    for steps in (32, 8, 2):
        if len(places(k, 1)) % steps == 0:
            got = sums.multiply(a, b, c, indices, (steps, 8))
            want = sums.by_rows(left, right, c[at], (steps, 8))
            np.testing.assert_array_equal(got[at], want, err_msg=f"{form}, {steps} steps")


def check_one_by_one(sums: Sums, indices: list[list[Axis]], form: str) -> None:
    """That a product of blocks of one step adds one product after the other."""
    operands = random_operands(indices, 1)
    got = sums.multiply(*operands, indices, (1, 1))
    np.testing.assert_array_equal(got, one_by_one(*operands, *indices), err_msg=form)


def test_plain_adds_one_by_one(sums):
    for form, indices in FORMS.items():
        check_one_by_one(sums, indices, form)


def test_an_arrangement_has_the_bits_of_rows(sums):
    for form, indices in FORMS.items():
        check_rows(sums, indices, 2, form)


@pytest.mark.parametrize("name", sets("native", "AVX2", "AVX-512"))
def test_a_large_arrangement_has_the_bits_of_rows(name):
    sums = sums_on(name)
    for form, indices in LARGE.items():
        check_rows(sums, indices, 2, form)
        check_one_by_one(sums, indices, form)


def test_random_shapes(sums):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        (m, n, k), block = (rng.integers(1, most, 3).tolist() for most in (6, 12))
        check_rows(sums, blocked((m, n, k), block, bool(seed % 2)), seed, f"seed {seed}")


def test_a_product_in_pieces_of_k_has_the_same_bits(sums):
    m, n, k = 16, 64, 128
    a, b, c = random_operands(plain(m, n, k, False), 5)
    whole = sums.multiply(a, b, c, plain(m, n, k, False), (8, 8))
    half = [[(m, k, n)], [(n, 1, 1)], [(k // 2, 1, n)]]
    first = sums.multiply(a, b, c, half, (8, 8))
    second = sums.multiply(a[k // 2 :], b[n * k // 2 :], first, half, (8, 8))
    np.testing.assert_array_equal(second, whole)


def bits(array: Any) -> np.ndarray:
    return np.asarray(array).view(np.uint32)


def with_zero_rows(a: Any, m: list[Axis], k: list[Axis], rows: list[int]) -> Any:
    """a, in these rows of which zeros of both signs are."""
    out = a.copy()
    at = places(m, 1)[:, None] + places(k, 1)
    out[at[rows]] = np.where(np.arange(at.shape[1]) % 3, 0.0, -0.0).astype(BF16)
    return out


def row_by_row(sums: Sums, a: Any, b: Any, c: Any, indices: list[list[Axis]]) -> np.ndarray:
    """Each row of c by a product of its own, of which no row can be left out."""
    out, (m, n, k) = c.copy(), indices
    for left, to in zip(places(m, 1), places(m, 2), strict=True):
        row = sums.multiply(a[left:], b, c[to:], [[(1, 0, 0)], n, k], (32, 8))
        out[to + places(n, 2)] = row[places(n, 2)]
    return out


ZEROS = {
    "few rows": few_rows(16, 96, 160),
    "few rows, 8": few_rows(8, 64, 64),
    "many rows": plain(40, 64, 32, False),
}
PLANTED = {
    "numbers": (),
    "an infinity": (np.inf,),
    "a NaN": (np.nan,),
    "infinities that meet": (np.inf, -np.inf),
}


def test_rows_of_zeros_have_the_bits_of_a_product_of_their_own(sums):
    """Whichever they are, and whatever b holds."""
    for form, planted in itertools.product(ZEROS, PLANTED):
        check_rows_of_zeros(sums, form, planted)


def check_rows_of_zeros(sums: Sums, form: str, planted: str) -> None:
    """Zeros in some rows of a, and numbers of no size in b."""
    m, n, k = indices = ZEROS[form]
    rng = np.random.default_rng(6)
    a, b, _ = random_operands(indices, 6)
    right = places(k, 2)[:, None] + places(n, 1)
    b[right[rng.permutation(len(right))[: len(PLANTED[planted])], 5]] = PLANTED[planted]
    c = np.zeros(len(places(m, 2)) * len(places(n, 2)), np.float32)
    count = len(places(m, 1))
    for zeros in (0, 1, count // 2, count - 3, count - 1, count):
        rows = sorted(rng.permutation(count)[:zeros])
        left = with_zero_rows(a, m, k, rows)
        want = row_by_row(sums, left, b, c, indices)
        got = sums.multiply(left, b, c, indices, (32, 8))
        np.testing.assert_array_equal(bits(got), bits(want), err_msg=f"{form}, {planted}, {zeros} rows")
        of_zeros = want[(places(m, 2)[:, None] + places(n, 2))[rows]]
        assert np.isfinite(of_zeros).all() == (planted == "numbers" or not rows)


def test_rows_of_zeros_keep_special_sums(sums):
    """-0 becomes +0, a NaN stays; and a subnormal goes where the instructions flush it."""
    m, n, k = indices = ZEROS["few rows"]
    a, b, c = random_operands(indices, 7)
    at = places(m, 2)[:, None] + places(n, 2)
    c[at[:8]] = 0
    c[at[1, :4]] = -0.0, np.nan, 1e-40, 1.5
    left = with_zero_rows(a, m, k, [1, 2, 9])
    want = row_by_row(sums, left, b, c, indices)
    got = sums.multiply(left, b, c, indices, (32, 8))
    np.testing.assert_array_equal(bits(got), bits(want))
    assert bits(got)[at[1, 0]] == 0
    assert np.isnan(got[at[1, 1]])
    assert got[at[1, 3]] == 1.5


def initializer(axes: list[Axis]) -> str:
    """vnpu::Axes in C++."""
    each = ", ".join(f"{{{extent}, {first}, {second}}}" for extent, first, second in axes)
    return f"{{{len(axes)}, {{{each}}}}}"


def program(indices: list[list[Axis]]) -> Library:
    """One that makes a product along these axes, built as the environment has it."""
    text = PROGRAM.replace("AXES", ", ".join(map(initializer, indices))).replace("FORMAT", str(FORMAT))
    return Library(with_products(TranslationUnit(Path("product.cc"), text)))


def run(product: Library, *operands: Any) -> None:
    product.run("product", [operand.ctypes.data for operand in operands])


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", sets("native", "AVX2", "AVX-512"))
def test_threads_that_share_a_product_of_few_rows_change_no_bit(name, rows, monkeypatch):
    """The last panel has 8 columns, the last chunk 32 steps, and what one thread has is no whole panel."""
    indices = few_rows(8, 168, 1056)
    a, b, c = random_operands(indices, 3)
    c[:] = 0
    a[1056 * rows :] = 0
    want, got = c.copy(), c.copy()
    with SETS[name].chosen():
        product = program(indices)
    for threads, sums in (("1", want), ("2", got)):
        monkeypatch.setenv("VNPU_THREADS", threads)
        run(product, a, b, sums)
    np.testing.assert_array_equal(bits(got), bits(want))
    assert want.any()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_product_ends_where_a_signal_is_handled_that_raises(threads, monkeypatch):
    """In its middle, whichever threads share it: this one would take days. On a busy machine it may not have
    begun when the signal comes; then it gets more time."""
    product, one, sums, seconds = program(ENDLESS), np.ones(1, BF16), np.zeros(1, np.float32), 0.05
    monkeypatch.setenv("VNPU_THREADS", threads)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        while not sums[0] > 0:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with pytest.raises(KeyboardInterrupt):
                run(product, one, one, sums)
            seconds *= 2
            assert seconds < PATIENCE_S
    finally:
        signal.signal(signal.SIGALRM, before)


DENIED = {
    "emulated": InstructionSet("", "native", "tiles.h", "-DEMULATED_TILES_DENIED=1"),
    "by Linux": InstructionSet("", "x86-64-v4+avx512bf16", "", "-mamx-tile -mamx-bf16"),
}


@pytest.mark.parametrize("way", DENIED)
def test_tiles_that_the_system_denies_end_a_product_by_name(way):
    """Before anything is computed in another order."""
    if way == "by Linux" and ("amx-tile" in cpu.cpu_features() or "avx512bf16" not in cpu.cpu_features()):
        pytest.skip("this CPU has tiles, or not what else such a program may use")
    one, sums = np.ones(1, BF16), np.zeros(1, np.float32)
    with DENIED[way].chosen(), pytest.raises(VirtualNpuRuntimeError) as raised:
        run(program(ENDLESS), one, one, sums)
    assert "was built for the tiles of AMX, and the system denies them to this process (" in str(raised.value)
    assert "or build it with VNPU_MARCH=x86-64-v4+avx512bf16" in str(raised.value)
    assert sums[0] == 0
