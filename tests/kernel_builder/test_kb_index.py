"""Index arithmetic: sums stay symbolic, so extents of slices are plain numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr

from kernel_builder.arguments import DslError
from kernel_builder.index import Index, Variable

BLOCK = Block(arg_types=[IndexType()] * 2)
X = Index({Variable(BLOCK.args[0], "loop", 0, 4): 1})
Y = Index({Variable(BLOCK.args[1], "herd", 1): 1})


def value(index: Index, x: int, y: int) -> int:
    """The index where the two variables are x and y."""
    expression = index.affine(lambda v: AffineExpr.symbol(0 if v.kind == "loop" else 1))
    return expression.eval([], [x, y])


def test_difference_of_equal_starts_is_a_number() -> None:
    assert ((X * 3 + Y + 16) - (X * 3 + Y)).static == 16


def test_floor_division_takes_out_what_divides() -> None:
    assert ((X * 8 + 3) // 8 - X).static == 0
    assert ((X * 8 + 19) % 8).static == 3


@given(st.integers(-8, 8), st.integers(-8, 8), st.integers(-20, 20), st.integers(1, 9))
def test_arithmetic_agrees_with_integers(a: int, b: int, c: int, d: int) -> None:
    index = X * a + b * Y + c
    for x, y in itertools.product(range(0, 12, 4), range(3)):
        number = x * a + b * y + c
        assert value(index, x, y) == number
        assert value(index // d, x, y) == number // d
        assert value(index % d, x, y) == number % d
        assert value(5 - index // d * 2, x, y) == 5 - number // d * 2


@pytest.mark.parametrize(
    ("index", "expected"), [(X, 4), (X * 6 + 8, 8), (Y * 2, 2), (X + Y, 1), (X % 6, 2), (Index.of(0), 0)]
)
def test_multiple_divides_every_value(index: Index, expected: int) -> None:
    assert index.multiple == expected


def test_product_of_device_values_is_refused() -> None:
    with pytest.raises(DslError, match="a product of two device values is not affine"):
        X * Y


@pytest.mark.parametrize("divisor", [0, -2, Y])
def test_division_by_anything_but_a_positive_number_is_refused(divisor: object) -> None:
    with pytest.raises(DslError, match="an index can only be divided by a positive int"):
        X // divisor  # type: ignore[operator]


@pytest.mark.parametrize("other", ["a", None, 1.5, True])
def test_what_is_no_index_is_refused(other: object) -> None:
    with pytest.raises(DslError, match="is no index; give an int, a loop variable or a tile id"):
        X + other  # type: ignore[operator]


def test_comparisons_have_no_truth_while_writing() -> None:
    with pytest.raises(DslError, match="has no truth while the kernel is written"):
        bool(X == 3)
    with pytest.raises(DslError, match="an index known only on the device has no truth"):
        bool(X)
    with pytest.raises(DslError, match="`!=` of device values is no affine condition"):
        X != 3  # noqa: B015


def test_symbolic_index_is_no_int() -> None:
    assert list(range(Index.of(3))) == [0, 1, 2]
    with pytest.raises(DslError, match="a plain int is needed here"):
        range(X)
