"""The micro-kernels of the matrix product (vnpu/product_driver.h) alone, against numpy."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.virtual_npu.compiler import INCLUDE, OWN_KERNELS, find_compiler
from aerie.virtual_npu.library import FORMAT, Library
from aerie.virtual_npu.options import BuildOptions

BF16 = ml_dtypes.bfloat16

SOURCE = """
#include "vnpu/product_driver.h"

extern "C" __attribute__((visibility("default"))) void multiply(
    int best, const vnpu::bf16 *a, const vnpu::bf16 *b, float *c, const vnpu::Axes *axes) {
  const vnpu::Product product{a, b, c, axes[0], axes[1], axes[2]};
  if (best) vnpu::product::Driver<vnpu::product::Best>(product).run();
  else vnpu::product::Driver<vnpu::product::Plain>(product).run();
}
"""

ENDLESS = """
#include "vnpu/entry.h"
#include "vnpu/product_driver.h"

static void endless(void *const *arguments) {
  const vnpu::bf16 one{0x3f80};
  const vnpu::Axes again{2, {{1 << 9, 0, 0}, {1 << 9, 0, 0}}};
  const vnpu::Product product{&one, &one, static_cast<float *>(arguments[0]), again, again, again};
  vnpu::product::Driver<vnpu::product::Best>(product).run();
}

using namespace vnpu;
VNPU_EXPORT int vnpu_entry_endless(void *const *arguments, const RunOptions *options, RunReport *report) {
  return call_entry(endless, arguments, options, report);
}
VNPU_EXPORT const char vnpu_metadata[];
const char vnpu_metadata[] =
    R"({"format": %d, "entries": {"endless": {"arguments": [{"shape": [1], "dtype": "f32"}]}}})";
"""
"""A product of 2^54 multiplications, all of the same numbers."""

MOST_AXES = 6
Axis = tuple[int, int, int]
"""Extent, and the steps in the two operands."""


class Axes(ctypes.Structure):
    """vnpu::Axes."""

    _fields_ = (("count", ctypes.c_int), ("list", ctypes.c_int64 * 3 * MOST_AXES))

    def __init__(self, axes: list[Axis]) -> None:
        super().__init__(len(axes))
        for place, axis in enumerate(axes):
            self.list[place] = axis


def built(text: str, folder: Path) -> Path:
    """A shared object of this C++ and the runtime."""
    (folder / "product.cc").write_text(text)
    compiler, include = find_compiler(BuildOptions()), (f"-I{INCLUDE}", f"-I{OWN_KERNELS / 'host'}")
    sources = {"product": folder / "product.cc", "runtime": INCLUDE / "vnpu" / "runtime.cc"}
    for name, source in sources.items():
        compiler.compile(source, folder / f"{name}.o", include)
    compiler.link([folder / f"{name}.o" for name in sources], folder / "product.so")
    return folder / "product.so"


@pytest.fixture(scope="module")
def multiply(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., np.ndarray]:
    """multiply(best, a, b, c, m, n, k) -> c after the product, over the axes of its three indices."""
    function = ctypes.CDLL(str(built(SOURCE, tmp_path_factory.mktemp("product")))).multiply

    def call(best: bool, a: Any, b: Any, c: Any, *indices: list[Axis]) -> np.ndarray:
        out = c.copy()
        axes = (Axes * 3)(*(Axes(index) for index in indices))
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, out)]
        function(int(best), *pointers, axes)
        return out

    return call


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
    "rows, packed in pieces": plain(600, 160, 800, False),
    "rows transposed, packed in pieces": plain(530, 200, 500, True),
    "rows transposed": plain(24, 64, 288, True),
    "rows transposed, odd": plain(5, 37, 77, True),
    "scattered": scattered(13, 50, 31),
    "one element": plain(1, 1, 1, False),
}


@pytest.mark.parametrize("form", FORMS)
def test_plain_adds_one_by_one(multiply, form):
    indices = FORMS[form]
    operands = random_operands(indices, 1)
    np.testing.assert_array_equal(multiply(False, *operands, *indices), one_by_one(*operands, *indices))


def bound(operands: Any, indices: list[list[Axis]]) -> np.ndarray:
    """How far sums in another order may be apart: an f32 rounding of the sum of magnitudes per product."""
    a, b, c = operands
    magnitudes = one_by_one(np.abs(a), np.abs(b), np.abs(c), *indices)
    return np.asarray(magnitudes * extents(indices)[2] * np.float32(2.0**-23))


@pytest.mark.parametrize("form", FORMS)
def test_the_best_kernel_differs_by_the_order_of_sums_alone(multiply, form):
    indices = FORMS[form]
    operands = random_operands(indices, 2)
    got, want = multiply(True, *operands, *indices), one_by_one(*operands, *indices)
    assert (np.abs(got - want) <= bound(operands, indices)).all()


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(multiply, best, seed):
    rng = np.random.default_rng(seed)
    counts, block = (tuple(int(x) for x in rng.integers(1, most, 3)) for most in (6, 12))
    indices = blocked(counts, block, bool(seed % 2))
    operands = random_operands(indices, seed)
    got, want = multiply(best, *operands, *indices), one_by_one(*operands, *indices)
    assert (np.abs(got - want) <= bound(operands, indices)).all()


@pytest.mark.parametrize("best", [False, True])
def test_an_element_does_not_depend_on_the_others(multiply, best):
    """Rows and columns of a larger product have the bits of a smaller one, whatever their micro-kernel."""
    (m, n, k), rows, columns = (40, 96, 160), 13, 41
    a, b, c = random_operands(plain(m, n, k, False), 4)
    whole = multiply(best, a, b, c, *plain(m, n, k, False)).reshape(m, n)
    part = multiply(best, a, b, c, [(rows, k, n)], [(columns, 1, 1)], [(k, 1, n)]).reshape(m, n)
    np.testing.assert_array_equal(part[:rows, :columns], whole[:rows, :columns])


@pytest.mark.parametrize("best", [False, True])
def test_a_product_in_pieces_of_k_has_the_same_bits(multiply, best):
    m, n, k = 16, 64, 128
    a, b, c = random_operands(plain(m, n, k, False), 5)
    whole = multiply(best, a, b, c, *plain(m, n, k, False))
    half = [[(m, k, n)], [(n, 1, 1)], [(k // 2, 1, n)]]
    first = multiply(best, a, b, c, *half)
    np.testing.assert_array_equal(multiply(best, a[k // 2 :], b[n * k // 2 :], first, *half), whole)


def test_special_values_come_through(multiply):
    indices = plain(8, 32, 64, False)
    a, b, c = random_operands(indices, 6)
    a[5], b[7] = np.inf, np.nan
    for best in (False, True):
        out = multiply(best, a, b, c, *indices).reshape(8, 32)
        assert np.isnan(out[:, 7]).all()
        assert np.isinf(out[0, :7]).all()
        assert np.isfinite(out[1:, 8:]).all()


def test_a_product_ends_where_a_signal_is_handled_that_raises(tmp_path, monkeypatch):
    """In its middle, whichever threads share it: this one would take days."""
    path = built(ENDLESS.replace("%d", str(FORMAT)), tmp_path)
    sums = np.zeros(1, np.float32)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for threads in ("1", "2"):
            monkeypatch.setenv("VNPU_THREADS", threads)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                Library(path).run("endless", [sums.ctypes.data])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sums[0] > 0
