"""Every instruction set's products of bf16: by its manual, and the same bits however a program makes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aerie.common import cpu
from tests.virtual_npu.instruction_sets import (
    BF16,
    ODD_PAIRS,
    ONE_BY_ONE,
    PAIRS,
    SETS,
    TILES,
    Sums,
    in_order,
    sets,
    sums_on,
)

Array = np.ndarray[Any, Any]
Operands = tuple[Array, Array, Array]

BLOCKS = ("8x8x8", "4x8x8", "8x4x8")
OTHER_BLOCKS = ("4x16x16", "8x8x4", "4x8x32")
GOES = {"contract": 8, "four": 32, "mmul": 32}
"""Steps of k that a text sums in one go, by the functions that do."""


@pytest.fixture(params=sets())
def sums(request: pytest.FixtureRequest) -> Sums:
    """The products of each set that this machine can run or emulate."""
    return sums_on(request.param)


def drawn(m: int, n: int, k: int, seed: int) -> Operands:
    """Normal numbers."""
    rng = np.random.default_rng(seed)
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    return a.astype(BF16), b.astype(BF16), c


def far_apart(m: int, n: int, k: int, seed: int) -> Operands:
    """Numbers whose sums lose most of what is added, some of it below 2^-126, and zeros of both signs."""
    rng = np.random.default_rng(seed)

    def spread(shape: tuple[int, int], low: int, high: int) -> Array:
        values = rng.standard_normal(shape) * np.exp2(rng.integers(low, high, shape))
        values[rng.random(shape) < 0.1] = 0.0
        values[rng.random(shape) < 0.1] = -0.0
        return values.astype(np.float32)

    a, b = spread((m, k), -75, -50), spread((k, n), -75, -50)
    a[0], b[:, 0] = np.float32(2.0**-130), np.float32(-(2.0**10))
    return a.astype(BF16), b.astype(BF16), spread((m, n), -135, -110)


def same(got: Array, want: Array) -> None:
    """Equal bits, the signs of zeros too."""
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def has_fast_pairs() -> bool:
    return "avx512bf16" in cpu.cpu_features() and "-DVNPU_SLOW_PAIRS" not in cpu.cpu_defines()


def test_which_order_a_set_has() -> None:
    wanted = {"AVX2": ONE_BY_ONE, "AVX-512": ONE_BY_ONE, "AVX512-BF16": PAIRS, "AMX emulated": TILES}
    wanted["BFMMLA emulated"] = ODD_PAIRS
    orders = {name: sums_on(name).order_of(8, 8) for name in SETS if SETS[name].is_here()}
    assert orders.items() >= {name: order for name, order in wanted.items() if name in orders}.items()


def test_blocks_that_an_order_cannot_take_have_the_next_one() -> None:
    sums = sums_on("AMX emulated")
    assert [sums.order_of(*block) for block in ((8, 8), (16, 4), (8, 2), (1, 8))] == [
        TILES, TILES, ONE_BY_ONE, ONE_BY_ONE,
    ]  # fmt: skip
    assert sums.order_of(4, 8) == (PAIRS if has_fast_pairs() else ONE_BY_ONE)


NUMBERS = (drawn, far_apart)
STEPS = sorted({*GOES.values()})


def test_products_are_those_of_the_manual(sums: Sums) -> None:
    for numbers, go in itertools.product(NUMBERS, STEPS):
        a, b, c = numbers(5, 16, 96, 1)
        same(sums.by_rows(a, b, c, (go, 8)), in_order(sums.order_of(go, 8), a, b, c, go))


def test_blocks_have_the_bits_of_the_product(sums: Sums) -> None:
    """One by itself, and four in one go."""
    for numbers, block, made_by in itertools.product(NUMBERS, BLOCKS, GOES):
        a, b, c = numbers(24, 48, 64, 2)
        by_blocks = sums.by_blocks(f"{made_by}_{block}", a, b, c)
        same(by_blocks, sums.by_rows(a, b, c, (GOES[made_by], 8)))


def test_other_blocks_have_the_bits_of_their_product_too(sums: Sums) -> None:
    a, b, c = drawn(8, 32, 96, 3)
    for block in OTHER_BLOCKS:
        _, columns, steps = map(int, block.split("x"))
        by_blocks = sums.by_blocks(f"contract_{block}", a, b, c)
        same(by_blocks, sums.by_rows(a, b, c, (steps, columns)))
        same(by_blocks, in_order(sums.order_of(steps, columns), a, b, c, 32 if steps == 32 else 8))


def test_blocks_of_one_step_are_added_one_by_one(sums: Sums) -> None:
    a, b, c = drawn(8, 8, 5, 4)
    want = in_order(ONE_BY_ONE, a, b, c)
    same(sums.by_blocks("contract_2x8x1", a, b, c), want)
    same(sums.by_blocks("mmul_8x8x1", a, b, c), want)


def test_blocks_that_remain_of_mmul_are_summed_together(sums: Sums) -> None:
    for block, left in itertools.product(BLOCKS, (1, 2, 3)):
        m, n, k = map(int, block.split("x"))
        order, done = sums.order_of(k, n), 4 * k
        a, b, c = far_apart(m, n, done + left * k, 9)
        four = in_order(order, a[:, :done], b[:done], c, 32)
        want = in_order(order, a[:, done:], b[done:], four, left * k)
        same(sums.by_blocks(f"mmul_{block}", a, b, c), want)


def test_rows_have_the_same_bits_alone_and_together(sums: Sums) -> None:
    """And columns: panels are of 8 to 32, and the last is filled up."""
    a, b, c = drawn(47, 70, 96, 5)
    for go in STEPS:
        whole = sums.by_rows(a, b, c, (go, 8))
        for rows in (1, 2, 3, 15, 16, 17, 31, 32, 33, 47):
            columns = 1 + 3 * rows % 70
            right, start = np.ascontiguousarray(b[:, :columns]), c[:rows, :columns].copy()
            same(sums.by_rows(a[:rows], right, start, (go, 8)), whole[:rows, :columns])


def test_sums_are_within_a_rounding_of_f64(sums: Sums) -> None:
    """One to bf16, of the sum of magnitudes."""
    a, b, c = drawn(33, 40, 1024, 6)
    x, y = a.astype(np.float64), b.astype(np.float64)
    error = np.abs(sums.by_rows(a, b, c) - (c + x @ y))
    assert (error <= 2.0**-9 * (np.abs(c) + np.abs(x) @ np.abs(y)) * 2.0**-8).all()


def test_infinities_and_nans_come_through(sums: Sums) -> None:
    a, b, c = drawn(8, 32, 64, 7)
    a[5, 3], b[7, 9] = np.inf, np.nan
    out = sums.by_rows(a, b, c)
    assert np.isnan(out[:, 9]).all()
    assert np.isinf(np.delete(out, 9, 1)[5]).all()
    assert np.isfinite(np.delete(np.delete(out, 9, 1), 5, 0)).all()


def test_orders_differ() -> None:
    """What the tests above tell apart."""
    operands = drawn(16, 16, 64, 8)
    results = [in_order(order, *operands) for order in (ONE_BY_ONE, PAIRS, ODD_PAIRS, TILES)]
    results.append(in_order(TILES, *operands, depth=32))
    assert len({result.tobytes() for result in results}) == len(results)
