"""What wrong elements look like, on made-up arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.board.compare.error_patterns import describe_positions, describe_ranges, patterns

Array = np.ndarray[Any, Any]


def numbers(rows: int = 64, columns: int = 64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, columns))


def patterns_of(change: Callable[[Array], object], noise: float = 0.0, previous: Array | None = None) -> str:
    """Describe a result that `change` made wrong, with `noise` on all of it."""
    want = numbers()
    got = want + noise * numbers(seed=1)
    change(got)
    wrong = np.abs(got - want) > 6 * noise
    wrong |= np.isnan(got)
    return "; ".join(patterns(got, want, wrong, previous, {}))


def turn(edge: int) -> Callable[[Array], None]:
    def change(array: Array) -> None:
        for i in range(0, 64, edge):
            for j in range(0, 64, edge):
                array[i : i + edge, j : j + edge] = array[i : i + edge, j : j + edge].T.copy()

    return change


@pytest.mark.parametrize("noise", [0.0, 0.004], ids=["exact", "noisy"])
@pytest.mark.parametrize("edge", [4, 8, 16, 64])
def test_blocks_that_are_turned_round(edge: int, noise: float) -> None:
    assert f"{edge}x{edge} blocks are transposed" in patterns_of(turn(edge), noise)


def tile(array: Array) -> None:
    array[16:32, 32:48] = array[48:64, 0:16]


def roll(array: Array) -> None:
    array[:] = np.roll(array, 1, axis=0)


def rows_scaled(array: Array) -> None:
    array *= np.linspace(0.5, 2, 64)[:, None]


@pytest.mark.parametrize("noise", [0.0, 0.004], ids=["exact", "noisy"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (tile, "they hold what belongs at rows 48-63, columns 0-15: the result of another tile"),
        (roll, "rows are exchanged: row 0 holds row 63, row 1 holds row 0, row 2 holds row 1 and so on"),
        (rows_scaled, "every row is off by a factor of its own (0.5 to 2)"),
        (lambda array: np.multiply(array, -1, out=array), "off by a constant factor of -1"),
        (lambda array: array[:, 8:16].fill(0), "100% of them are zero"),
        (lambda array: array[5].fill(np.nan), "100% of them are NaN or infinite"),
    ],
)
def test_marks_of_mistakes(change: Callable[[Array], None], words: str, noise: float) -> None:
    assert words in patterns_of(change, noise)


def test_results_of_the_run_before_are_recognised() -> None:
    before = numbers(seed=5)

    def keep(array: Array) -> None:
        array[:4] = before[:4]

    assert "100% of them are stale: what the run before left there" in patterns_of(keep, previous=before)


def test_bits_cut_off() -> None:
    def cut(array: Array) -> None:
        array.view(np.uint64)[...] &= np.uint64(0xFFFF_F000_0000_0000)

    assert (
        "100% of them are nearer to zero than expected: bits are cut off instead of rounded"
        in patterns_of(cut)
    )


def test_a_bias() -> None:
    assert "100% of them are too high: a bias" in patterns_of(lambda array: np.add(array, 0.3, out=array))


def test_rounding_as_predicted() -> None:
    want, down = numbers(), numbers() - 0.001
    lines = patterns(down, want, down != want, None, {"exact, rounded down": down})
    assert lines[0].startswith(
        "rounded towards minus infinity instead of to the nearest: 100.0% of all elements"
    )
    assert "VNPU_ROUNDING=floor" in lines[0]


def test_nothing_known() -> None:
    def noise(array: Array) -> None:
        array[...] = numbers(seed=9)

    assert patterns_of(noise).startswith("no known pattern: the differences are 1")


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 70))
def test_every_wrong_result_has_a_description(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    want = rng.standard_normal((rows, columns))
    wrong = rng.random((rows, columns)) < 0.5
    wrong[0, 0] = True
    got = np.where(wrong, rng.choice([0.0, np.nan, np.inf, 1e30, 3.0], (rows, columns)), want)
    wrong = got != want
    assert all(patterns(got, want, wrong, None, {}))
    assert describe_positions(wrong)


@pytest.mark.parametrize(
    ("region", "words"),
    [
        (np.s_[3:5, :], "all of rows 3-4"),
        (np.s_[:, 8:16], "all of columns 8-15"),
        (np.s_[0:8, 8:16], "all of rows 0-7, columns 8-15"),
        (np.s_[0:8:4, 8:16:4], "all of rows 0, 4, columns 8, 12"),
        (np.s_[:, :], "all of them"),
    ],
)
def test_where_they_are(region: Any, words: str) -> None:
    wrong = np.zeros((16, 32), bool)
    wrong[region] = True
    assert describe_positions(wrong) == words


def test_where_they_are_in_a_vector_or_all_over() -> None:
    assert describe_positions(np.arange(16) == 3) == "elements 3"
    assert describe_positions(np.eye(8, dtype=bool)) == "scattered over rows 0-7, columns 0-7"
    assert describe_ranges(np.arange(0, 100, 2), max_ranges=2) == "0, 2 and 48 more ranges"
