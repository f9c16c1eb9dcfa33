"""Views walk memory as numpy's strided views do, and refuse what a DMA cannot walk."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block

from kernel_builder.arguments import DslError, bf16, f32, i32
from kernel_builder.buffers import L1, L3, Buffer, View, check_pattern, check_transfer
from kernel_builder.index import Index, Variable

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
    assert x.whole
    assert x[0:4, :].whole
    assert not x[0:2, :].whole
    assert not x.permute(1, 0).whole


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
