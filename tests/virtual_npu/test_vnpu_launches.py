# ruff: noqa: E501 - MLIR has long lines
"""Which launches become one rounded product (virtual_npu.codegen.passes.launches), and that it gives the same bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie import virtual_npu
from aerie.kernel_builder.kernels import all_kernels, gemm
from aerie.kernel_builder.spec import KernelModule
from aerie.runtime.toolchain import KERNEL_SOURCES
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.instruction_sets import SETS

BF16 = ml_dtypes.bfloat16
STATEMENT = "vnpu::multiply_rounded("
WATCHED, SLOW = BuildOptions(checks=True), BuildOptions(fast=False)
Array = np.ndarray[Any, Any]

SHAPES: dict[str, dict[str, Any]] = {
    "one point": {"m": 8, "k": 32, "n": 16},
    "four points": {"m": 32, "k": 32, "n": 32, "tile_m": 8, "tile_n": 8, "tile_k_l1": 16, "tile_k_l2": 16, "herd_m": 2, "herd_n": 2},
    "nothing even": {"m": 24, "k": 40, "n": 88},
    "weights": {"m": 64, "k": 256, "n": 256, "b_transposed": True},
    "weights, nothing even": {"m": 24, "k": 96, "n": 88, "b_transposed": True},
    "blocks of rows": {"m": 272, "k": 64, "n": 144, "b_transposed": True},
    "steps by parts": {"m": 40, "k": 8320, "n": 48, "b_transposed": True},
}  # fmt: skip


FEW_ROWS = {"m": 8, "k": 64, "b_transposed": True}


def emitted(text: str, options: BuildOptions | None = None) -> str:
    return virtual_npu.emit(text, kernel_dirs=(KERNEL_SOURCES,), options=options or BuildOptions()).text


def operands(module: KernelModule, seed: int = 1) -> list[Array]:
    """Random A and B, and C with what must not stay."""
    rng = np.random.default_rng(seed)
    a, b, c = (np.asarray(rng.standard_normal(each.shape), BF16) for each in module.arguments)
    return [a, b, c]


def block_by_block(name: str) -> BuildOptions:
    """What makes the same sums block by block on a set: without fast paths sums are in order, which those of
    these two sets are anyway; with checks they are in the set's own order."""
    return SLOW if name in ("AVX2", "AVX-512") else WATCHED


OTHER_SETS = [name for name in SETS if not name.startswith("native")]
PAIRS = [
    *((shape, "native") for shape in SHAPES),
    *((shape, OTHER_SETS[number % len(OTHER_SETS)]) for number, shape in enumerate(SHAPES)),
]
"""Every shape on the CPU's own set, and on one of the others. What each set multiplies with is tested by itself
(test_vnpu_product_kernels.py)."""


@pytest.mark.parametrize(
    ("shape", "name"),
    [pytest.param(*pair, marks=() if pair[1] == "native" else pytest.mark.slow) for pair in PAIRS],
)
def test_a_launch_is_one_product_with_the_same_bits(program, run, shape, name):
    """As a program gives them that goes block by block, whatever multiplies."""
    module = gemm.build(**SHAPES[shape])
    assert emitted(module.text).count(STATEMENT) == 1
    assert not any(STATEMENT in emitted(module.text, options) for options in (WATCHED, SLOW))
    given = operands(module)
    with SETS[name].chosen(level=0):
        made, wanted = (
            run(program(module.text, (KERNEL_SOURCES,), options), "gemm", *given)[2]
            for options in (BuildOptions(), block_by_block(name))
        )
    np.testing.assert_array_equal(made.view(np.uint16), wanted.view(np.uint16))


@pytest.mark.parametrize(
    "kernel", [name for name in all_kernels() if name.startswith("gemm") and name != "gemm_f32"]
)
def test_every_product_of_rows_is_recognised(kernel):
    """Of weights in blocks, which are unpacked part by part, each product of such a part."""
    for parameters in all_kernels()[kernel].cases:
        module = all_kernels()[kernel].build(**parameters)
        launches, code = module.text.count("air.launch"), emitted(module.text)
        if "weight" in parameters:
            assert "vnpu::multiply_add(" in code, parameters
        else:
            assert code.count(STATEMENT) == launches, parameters


def test_sums_that_are_not_rounded_are_left_alone():
    assert STATEMENT not in emitted(all_kernels()["gemm_f32"].build(m=64, k=256, n=128).text)


@pytest.mark.parametrize("threads", ["1", "2", "5", "16"])
@pytest.mark.parametrize(
    ("shape", "n"), [("blocks of rows", 1152), ("steps by parts", 1152), ("few rows", 6144)]
)
def test_threads_change_no_bit(program, run, monkeypatch, threads, shape, n):
    """The twelve points of the widest one are cut into parts for 5 and for 16 threads."""
    module = gemm.build(**{**SHAPES.get(shape, FEW_ROWS), "n": n})
    library, given = program(module.text, (KERNEL_SOURCES,)), operands(module)
    monkeypatch.setenv("VNPU_THREADS", "3")
    want = run(library, "gemm", *given)[2]
    monkeypatch.setenv("VNPU_THREADS", threads)
    np.testing.assert_array_equal(run(library, "gemm", *given)[2].view(np.uint16), want.view(np.uint16))


UNUSUAL = {
    "rows of zeros": lambda a, b: a.__setitem__(slice(3, 60, 2), 0),
    "rows of negative zeros": lambda a, b: a.__setitem__(slice(0, 63), -0.0),
    "an infinity by rows of zeros": lambda a, b: (a.__setitem__(slice(1, 64), 0), b.__setitem__((5, 7), np.inf)),
    "no number by rows of zeros": lambda a, b: (a.__setitem__(slice(1, 64), 0), b.__setitem__((5, 7), np.nan)),
    "sums that round to an infinity": lambda a, b: (a.__setitem__(slice(9, 64), 0), a.__setitem__(3, 3.3e38), b.__setitem__((5, 7), 1.0)),
    "no number that keeps its bits": lambda a, b: a.view(np.uint16).__setitem__((2, 3), 0xFFB1),
    "numbers near zero": lambda a, b: a.__setitem__(slice(None), a * BF16(2.0**-126)),
}  # fmt: skip


@pytest.mark.parametrize("name", ["native", "AVX2"])
@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_numbers_have_the_same_bits(program, run, case, name):
    module = gemm.build(**SHAPES["weights"])
    a, b, c = operands(module)
    UNUSUAL[case](a, b)
    with SETS[name].chosen(level=0):
        made, wanted = (
            run(program(module.text, (KERNEL_SOURCES,), options), "gemm", a, b, c)[2].view(np.uint16)
            for options in (BuildOptions(), block_by_block(name))
        )
    if name == "native":  # which NaN a sum of products is, instructions for bf16 decide
        is_nan = np.isnan(made.view(BF16))
        np.testing.assert_array_equal(is_nan, np.isnan(wanted.view(BF16)))
        made, wanted = made[~is_nan], wanted[~is_nan]
    np.testing.assert_array_equal(made, wanted)


def test_points_that_write_what_others_read_run_one_after_the_other(program, monkeypatch):
    """C in A's place: the second half of the columns is made of the first one's results."""
    monkeypatch.setenv("VNPU_THREADS", "1")
    module = gemm.build(8, 32, 32, tile_n=8, herd_m=1, herd_n=2, tile_k_l1=32, tile_k_l2=32)
    library = program(module.text, (KERNEL_SOURCES,))
    a, b, _ = operands(module)
    got, want = a.copy(), a.copy()
    for half in (slice(0, 16), slice(16, 32)):
        want[:, half] = (want.astype(np.float32) @ b[:, half].astype(np.float32)).astype(BF16)
    library.run("gemm", [array.ctypes.data for array in (got, b, got)])
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2**-6, atol=2e-2)


TEXT = gemm.build(**SHAPES["four points"]).text
PIECES = TEXT.split("air.herd @gemm_herd")
assert len(PIECES) == 4


def other(phase: int, old: str, new: str, count: int = 1) -> str:
    """The program with another piece of text: before the herds, in one of them, or after it."""
    pieces = list(PIECES)
    assert pieces[phase].count(old) >= 1, old
    pieces[phase] = pieces[phase].replace(old, new, count)
    return "air.herd @gemm_herd".join(pieces)


CLEAR, DRAIN = 1, 3
READ = "vector.transfer_read %accumulator_1[%hx, %hy, %i_1, %i_2, %c0_1, %c0_1]"
TO_L2 = "air.dma_memcpy_nd (%l2_c_1[%at_2, %at_3] [%c8, %c8] [%c16_1, %c1_1]"
TO_C = "air.dma_memcpy_nd (%c_2[%at_2, %at_3] [%c16, %c16] [%c32, %c1]"
LEFT_ALONE = {
    "sums that begin with one": other(CLEAR, "dense<0.000000e+00>", "dense<1.000000e+00>"),
    "sums that begin with -0": other(CLEAR, "dense<0.000000e+00>", "dense<-0.000000e+00>"),
    "sums that are not all cleared": other(CLEAR, "%accumulator_1[%hx, %hy, %i, %i_1", "%accumulator_1[%hx, %c0_1, %i, %i_1"),
    "sums that stay where another tile's were": other(DRAIN, READ, READ.replace("%hx, %hy", "%hx, %c0_1")),
    "tiles that send to one place": other(DRAIN, "(s0 * 8)", "(s0 * 0)"),
    "a buffer that is sent in part": other(DRAIN, TO_L2, TO_L2.replace("[%c8, %c8] [%c16_1, %c1_1]", "[%c8, %c8] [%c16_1, %c0_1]")),
    "points that write over each other": other(DRAIN, "((s0 * 16))> ()[%ly_1]", "((s0 * 8))> ()[%ly_1]"),
    "points that leave C": other(DRAIN, "((s0 * 16))> ()[%lx_1]", "((s0 * 24))> ()[%lx_1]"),
    "a point's part of C that both coordinates move alike": other(DRAIN, "((s0 * 16))> ()[%lx_1]", "((s0 * 16))> ()[%ly_1]"),
    "sums that are sent a second time": other(DRAIN, "        memref.dealloc %l2_a", f"        {TO_C}, %l2_c[] [] []) : (memref<32x32xbf16>, memref<16x16xbf16, 1>)\n        memref.dealloc %l2_a"),
    "a buffer that something else is sent to": other(DRAIN, "        air.dma_memcpy_nd (%c_2", "        air.dma_memcpy_nd (%l2_c[] [] [], %l2_a[] [] []) : (memref<16x16xbf16, 1>, memref<16x16xbf16, 1>)\n        air.dma_memcpy_nd (%c_2"),
    "a rounded sum that is changed": other(DRAIN, "vector.transfer_write %1,", "%more = arith.negf %1 : vector<8x8xbf16>\n vector.transfer_write %1,").replace("vector.transfer_write %1, %rounded", "vector.transfer_write %more, %rounded"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_is_no_rounded_product_is_left_alone(case):
    assert STATEMENT in emitted(TEXT)
    assert STATEMENT not in emitted(LEFT_ALONE[case])


def test_the_way_of_the_sums_may_be_any_that_is_even(program, run):
    """C the other way round: steps along m and n are what the DMAs make of them."""
    text = TEXT.replace(TO_C, "air.dma_memcpy_nd (%c_2[%at_2, %at_3] [%c16, %c16] [%c1, %c32]")
    assert STATEMENT in emitted(text)
    given = operands(gemm.build(**SHAPES["four points"]))
    turned, plain = (run(program(each), "gemm", *given)[2] for each in (text, TEXT))
    np.testing.assert_array_equal(turned.view(np.uint16), plain.T.view(np.uint16))


def test_programs_of_points_in_three_dimensions(program, run):
    """A coordinate that leads nowhere is none: each point of it would write the same."""
    text = TEXT.replace(
        "%c2 = arith.constant 2 : index\n",
        "%c2 = arith.constant 2 : index\n    %c1_9 = arith.constant 1 : index\n",
        1,
    )
    head = "air.launch (%lx, %ly) in (%lsx=%c2, %lsy=%c2)"
    assert text.count(head) == 1
    given = operands(gemm.build(**SHAPES["four points"]))
    want = run(program(TEXT), "gemm", *given)[2]
    one = text.replace(head, "air.launch (%lx, %ly, %lz) in (%lsx=%c2, %lsy=%c2, %lsz=%c1_9)")
    two = text.replace(head, "air.launch (%lx, %ly, %lz) in (%lsx=%c2, %lsy=%c2, %lsz=%c2)")
    assert (STATEMENT in emitted(one), STATEMENT in emitted(two)) == (True, False)
    np.testing.assert_array_equal(run(program(one), "gemm", *given)[2].view(np.uint16), want.view(np.uint16))
