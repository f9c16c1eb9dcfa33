"""What is counted in the code of a GEMM's cores: in IR made up, and in the tools' where they are on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.board.toolchain.product_loops import ProductLoop, product_loops
from aerie.board.toolchain.results import BitComparison, compare
from aerie.board.toolchain.subjects import SubjectChoice
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.runtime.npu.stage_runner import StageRunner
from aerie.runtime.npu.stages import CORES, StageFiles, StageStatus, StageTools

WIDEN = "%7 = call <32 x float> @llvm.aie2p.v32bf16.to.v32accfloat(<32 x bfloat> %6)\n"
CONVERT = "%8 = call { <64 x i8>, <8 x i8> } @llvm.aie2p.v64accfloat.to.v64bfp16ebs8(<64 x float> %7)\n"
SHUFFLE = "%9 = call <16 x i32> @llvm.aie2p.vshuffle(<16 x i32> %6, <16 x i32> %6, i32 52)\n"
MULTIPLY = "%10 = call <64 x i32> @llvm.aie2p.BFP576.BFP576.ACC2048.mac.conf(<64 x i8> %8, i32 780)\n"
LOAD = "%6 = load <64 x bfloat>, ptr %5, align 2\n"
CARRY = "%4 = phi <64 x float> [ %11, %5 ], [ %2, %1 ]\n"


def core(name: str, held: int, body: str) -> str:
    head = "%3 = phi i32 [ %12, %5 ], [ 0, %1 ]\n" + CARRY * held + "%13 = icmp slt i32 %3, 4\n"
    head += "br i1 %13, label %5, label %14\n"
    loop = f"1:\nbr label %2\n\n2:\n{head}\n5:\n{body}br label %2, !llvm.loop !1\n\n14:\nret void\n"
    return f"define void @{name}() {{\n{loop}}}\n\n"


def test_work_of_an_iteration_is_counted() -> None:
    one = (LOAD + WIDEN * 2 + CONVERT) * 2 + SHUFFLE * 2 + MULTIPLY
    ir = core("core_0_2", 1, one) + core("core_0_3", 2, one + MULTIPLY) + core("core_0_4", 1, LOAD)
    ir += "define void @core_0_5() {\n  ret void\n}\n"
    assert product_loops(ir) == [
        ProductLoop("core_0_2", 1, 2, 1, widenings=4, shuffles=2, loads=2, trips=4),
        ProductLoop("core_0_3", 2, 2, 2, widenings=4, shuffles=2, loads=2, trips=4),
    ]


@pytest.mark.parametrize(
    ("counts", "cycles"),
    [
        ((1, 2, 1, 4, 2, 2, 4), 6),
        ((4, 4, 4, 8, 4, 4, 4), 12),
        ((8, 2, 8, 2, 2, 2, 4), 8),
        ((1, 7, 1, 2, 2, 2, 4), 7),
        ((1, 1, 1, 1, 1, 9, 4), 9),
    ],
)
def test_the_busiest_slot_bounds_an_iteration(counts: tuple[int, ...], cycles: int) -> None:
    assert ProductLoop("core_0_2", *counts).min_cycles == cycles


SHAPE = ModelShape(256, 4, 2, 64, 768, 1500, 1e-5)


@pytest.mark.parametrize(("rows", "conversions"), [(64, 1.25), (128, 1.0)])
def test_cores_of_a_gemm_hold_four_sums_and_convert_a_block_once(
    rows: int, conversions: float, tmp_path: Path
) -> None:
    """The tools' own code, and their placed text with the bits of its source: o_ffn's down product at the
    demo's shape, with 1 and 2 blocks down on a core."""
    tools = StageTools.from_machine()
    if obstacle := tools.blocker(CORES):
        pytest.skip(obstacle)
    (subject,) = SubjectChoice(SHAPE, rows).build(["gemm-o_ffn-down_gemm"])
    results = StageRunner(tools).run(subject.program, tmp_path)
    assert [result.failure for result in results if result.status is StageStatus.FAILED] == []
    texts = StageFiles(tmp_path, subject.name)
    loops = [loop for path in texts.cores for loop in product_loops(path.read_text())]
    assert {loop.core for loop in loops} == {f"core_{x}_{y}" for x in range(8) for y in range(2, 6)}
    assert {(loop.products, loop.accumulators, loop.trips) for loop in loops} == {(4, 4, 4)}
    assert {loop.conversions_per_product for loop in loops} == {conversions}
    assert compare(subject, texts, 16).placed.bits is BitComparison.SAME
