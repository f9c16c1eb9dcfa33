"""Index arithmetic; and views, which walk memory as numpy's do and refuse what a DMA cannot walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block
from xdsl.ir.affine import AffineExpr

from aerie.kernel_builder.arguments import DslError, bf16, f32, i32
from aerie.kernel_builder.buffers import L1, L3, Buffer, View, check_pattern, check_transfer
from aerie.kernel_builder.index import Condition, Index, Variable

AT = Index({Variable(Block(arg_types=[IndexType()]).args[0], "loop", 0): 1})


def buffer(*shape: int, dtype=bf16, space=L3) -> Buffer:
    type_ = space(shape, dtype)
    return Buffer("x", type_, Block(arg_types=[type_.memref]).args[0])


def addresses(view: View) -> np.ndarray:
    """The element addresses a view walks, in its shape."""
    walks = [[(dim.offset.constant + i) * dim.stride for i in range(dim.size)] for dim in view.dims]
    return np.array([sum(point) for point in itertools.product(*walks)]).reshape(view.shape)


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape)


def test_slices_and_single_indices() -> None:
    assert (addresses(buffer(1, 8)[0, 2:6]) == numbers(1, 8)[0, 2:6]).all()
    assert (addresses(buffer(6, 8, 4)[2:5, 3, ...]) == numbers(6, 8, 4)[2:5, 3]).all()
    assert (addresses(buffer(6, 8)[..., 2:6]) == numbers(6, 8)[..., 2:6]).all()


def test_blocks_cut_every_dimension() -> None:
    expected = numbers(32, 24).reshape(4, 8, 3, 8).transpose(0, 2, 1, 3)
    assert (addresses(buffer(32, 24).blocks(8, 8)) == expected).all()


def test_blocks_of_a_window_keep_its_offset() -> None:
    expected = numbers(32, 24)[8:24, 16:24].reshape(2, 8, 1, 8).transpose(2, 0, 1, 3)
    assert (addresses(buffer(32, 24)[8:24, 16:24].blocks(8, 8).permute(1, 0, 2, 3)) == expected).all()


@given(
    st.permutations([2, 3, 4, 6]),
    st.sampled_from([(24, 6), (4, 36), (2, 6, 12), (144,), (1, 144, 1), (12, 3, 4)]),
)
def test_reshape_agrees_with_numpy(shape: list[int], target: tuple[int, ...]) -> None:
    assert (addresses(buffer(*shape).reshape(*target)) == numbers(*shape).reshape(target)).all()


@given(st.permutations([0, 1, 2]))
def test_permute_agrees_with_numpy(order: list[int]) -> None:
    assert (addresses(buffer(2, 3, 4).permute(*order)) == numbers(2, 3, 4).transpose(order)).all()


def test_symbolic_starts_keep_plain_extents() -> None:
    view = buffer(64, 32)[AT * 8 : AT * 8 + 8, :]
    assert view.shape == (8, 32)
    assert view.dims[0].offset.key() == (AT * 8).key()


def test_whole_buffer_is_recognised() -> None:
    x = buffer(4, 8)
    assert x.is_whole_buffer
    assert x[0:4, :].is_whole_buffer
    assert not x[0:2, :].is_whole_buffer
    assert not x.permute(1, 0).is_whole_buffer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x[0:40, :], "elements 0 to 39 are outside of x .* whose dimension there has 32"),
        (lambda x: x[32, :], "elements 32 to 32 are outside of x"),
        (lambda x: x[AT : AT + 40, :], "40 elements are outside of x"),
        (lambda x: x[::2, :], "has step 2; split the dimension with reshape"),
        (lambda x: x[AT:8, :], "has an extent known only on the device; write it as"),
        (lambda x: x[4:4, :], "is empty: extent 0"),
        (lambda x: x[0, 0, 0], "3 subscripts for 2 dimensions"),
        (lambda x: x.reshape(5, 5), "768 elements against 25"),
        (lambda x: x[:, 0:8].reshape(256), "strides 24 and 1 leave a gap"),
        (lambda x: x.permute(0, 0), r"permute\(0, 0\) does not name each of the 2 dimensions"),
        (lambda x: x.blocks(8), "needs one block size for each dimension"),
        (lambda x: x.blocks(5, 8), "32 of x .* is no multiple of the block size 5"),
    ],
)
def test_impossible_views_are_refused(make, message: str) -> None:
    with pytest.raises(DslError, match=message):
        make(buffer(32, 24))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: x.permute(1, 0), "the innermost stride of x .* is 24: elements narrower than 4 bytes"),
        (lambda x: x[:, 3], "the innermost stride of x .* is 24"),
        (lambda x: x[:, 0:3], "moves in runs of 3 elements, 6 bytes"),
        (lambda x: x[0, 1], "moves in runs of 1 elements, 2 bytes"),
        (lambda x: x[:, 1:5], "has an offset that is a multiple of only 2 bytes"),
        (lambda x: x[:, AT : AT + 4], "has an offset that is a multiple of only 2 bytes"),
    ],
)
def test_bf16_walks_that_no_descriptor_holds_are_refused(make, message: str) -> None:
    with pytest.raises(DslError, match=message):
        check_pattern(make(buffer(32, 24)))


def test_odd_bf16_strides_are_refused() -> None:
    with pytest.raises(DslError, match="has a stride that is a multiple of only 2 bytes"):
        check_pattern(buffer(8, 25)[:, 0:24])


def test_full_width_elements_may_be_transposed() -> None:
    check_pattern(buffer(32, 24, dtype=f32).permute(1, 0))
    check_pattern(buffer(7, 5, dtype=i32)[3, 2])


def test_transfers_that_do_not_match_are_refused() -> None:
    x, near = buffer(32, 24), buffer(32, 24, space=L1)
    with pytest.raises(DslError, match=r"x .32x24 bf16 in L3. has 768, x .16x24 bf16 in L1. has 384"):
        check_transfer(near[0:16, :], x)
    with pytest.raises(DslError, match=r"cannot convert x .* to f32; load, convert with .to and store"):
        check_transfer(buffer(32, 24, dtype=f32, space=L1), x)
    with pytest.raises(DslError, match="are both in L3"):
        check_transfer(buffer(32, 24), x)


BLOCK = Block(arg_types=[IndexType()] * 2)
X = Index({Variable(BLOCK.args[0], "loop", 0, 4): 1})
Y = Index({Variable(BLOCK.args[1], "herd", 1): 1})


def holds(condition: Condition, y: int) -> bool:
    """Whether a condition does, where X is 0."""
    values = [(at_point(one.left, 0, y), one.equal) for one in condition.comparisons]
    return all(value == 0 if equal else value >= 0 for value, equal in values)


def at_point(index: Index, x: int, y: int) -> int:
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
        assert at_point(index, x, y) == number
        assert at_point(index // d, x, y) == number // d
        assert at_point(index % d, x, y) == number % d
        assert at_point(5 - index // d * 2, x, y) == 5 - number // d * 2


@pytest.mark.parametrize("n", range(-2, 3))
def test_comparisons_are_those_of_ints(n: int) -> None:
    index = Y
    conditions = index == n, index >= n, index > n, index <= n, index < n, (index >= n) & (index < n + 2)
    for y in range(-4, 5):
        found = [holds(one, y) for one in conditions]
        assert found == [y == n, y >= n, y > n, y <= n, y < n, n <= y < n + 2]


@pytest.mark.parametrize(
    ("index", "expected"),
    [(X, 4), (X * 6 + 8, 8), (Y * 2, 2), (X + Y, 1), (X % 6, 2), (Index.from_value(0), 0)],
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
    assert list(range(Index.from_value(3))) == [0, 1, 2]
    with pytest.raises(DslError, match="a plain int is needed here"):
        range(X)
