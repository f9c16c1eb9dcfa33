"""Faults put into the virtual NPU's results are named for what they are: which launch, where, what, whose."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aerie.board.compare.item_run import JUDGING, RUNNING, run_item
from aerie.board.compare.items import ComparisonItem, plan_item, random_arguments
from aerie.board.compare.records import ItemOutcome, ItemStatus, ResultVerdict, details
from aerie.board.compare.result_check import check_results
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16, f32
from aerie.kernel_builder.kernels import all_kernels
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan

GEMM = ComparisonItem("kernel", "gemm")
"""64 x 256 x 128, 32 cores with tiles of 8 x 32."""
PROGRAM = ComparisonItem("program", "o_ffn")


def outcome_of(
    item: ComparisonItem, argument: str, fault: Any, faulty_npu: ModuleType, programs: Path
) -> ItemOutcome:
    table = plan_item(item).arguments
    backend = faulty_npu.faulty_backend(item.name, table.slot(argument), table[argument], fault)
    return run_item(item, backend, programs, lambda phase: None)


def report_of(outcome: ItemOutcome) -> str:
    return "\n".join(details([outcome]))


def test_one_that_is_right(faulty_npu: ModuleType, programs: Path) -> None:
    phases: list[str] = []
    outcome = run_item(GEMM, faulty_npu.healthy_backend(), programs, phases.append)
    assert outcome.status is ItemStatus.SAME
    assert (outcome.first_failure, outcome.numerics, report_of(outcome)) == (None, "bfp16", "")
    assert phases[-2:] == [RUNNING, JUDGING]
    (finding,) = outcome.findings
    assert finding.distances["bfp16"].differing == 0
    assert 5e-3 < finding.distances["exact"].share < 1e-2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("zero_rows", ["all of rows 3-4", "100% of them are zero", "256 of 8192"]),
        ("nan", ["4 of 8192", "NaN", "worst at [1, 0]: got nan", "written by core (0, 0) alone"]),
        ("transpose_blocks", ["8x8 blocks are transposed"]),
        (
            "swap_tiles",
            ["rows 16-23, columns 32-63", "belongs at rows 0-7, columns 0-31", "core (2, 1) alone"],
        ),
        ("double", ["off by a constant factor of 2"]),
    ],
)
def test_faults_of_a_kernel(fault: str, words: list[str], faulty_npu: ModuleType, programs: Path) -> None:
    outcome = outcome_of(GEMM, "c", getattr(faulty_npu, fault), faulty_npu, programs)
    assert outcome.status is ItemStatus.DIFFERS
    assert outcome.numerics == "exact" or fault == "double"
    text = report_of(outcome)
    assert [word for word in words if word not in text] == [], text


def test_cores_that_round_down(faulty_npu: ModuleType, programs: Path) -> None:
    outcome = run_item(
        ComparisonItem("kernel", "eltwise_add", 3), faulty_npu.flooring_backend(), programs, print
    )
    assert outcome.status is ItemStatus.DIFFERS
    assert "rounded towards minus infinity instead of to the nearest: 100.0% of all elements" in report_of(
        outcome
    )


def test_a_result_of_the_run_before(faulty_npu: ModuleType, programs: Path) -> None:
    """A buffer that is never written in the second run holds what the first one left."""
    kept: list[Any] = []

    def keep(array: Any, runs: int) -> None:
        kept.append(array.copy())
        array[:8] = kept[0][:8]

    text = report_of(outcome_of(GEMM, "c", keep, faulty_npu, programs))
    assert "all of rows 0-7" in text
    assert "stale: what the run before left there" in text


def test_an_answer_that_changes_from_run_to_run(faulty_npu: ModuleType, programs: Path) -> None:
    outcome = outcome_of(GEMM, "c", faulty_npu.flip_first, faulty_npu, programs)
    assert outcome.status is ItemStatus.UNSTEADY
    assert outcome.message == "two runs on the same numbers differ: c in 1 of 8192 elements"


def test_a_weight_that_is_written_over(faulty_npu: ModuleType, programs: Path) -> None:
    outcome = outcome_of(GEMM, "b", faulty_npu.double, faulty_npu, programs)
    assert not outcome.status.is_right
    assert outcome.clobbered == ("b",)
    assert "arguments that are only read have changed: b" in outcome.message


def two_launches() -> ProgramPlan:
    """x (f32) -> low -> low + y."""
    shape, table = (3, 48), {"rows": 3, "cols": 48}
    arguments = ArgumentTable(
        Argument(name, shape, f32 if name == "x" else bf16, role)
        for name, role in (
            ("x", Role.INPUT),
            ("low", Role.INTERMEDIATE),
            ("y", Role.INPUT),
            ("sum", Role.OUTPUT),
        )
    )
    narrow = LaunchPlan("lower", "narrow", table, {"x": "x", "out": "low"})
    return ProgramPlan(
        "two",
        arguments,
        (narrow, LaunchPlan("add", "eltwise_add", table, {"a": "low", "b": "y", "out": "sum"})),
    )


def held_by(plan: ProgramPlan, fault: str = "") -> dict[str, Any]:
    """Every argument after a run, `fault` doubled as soon as it is written."""
    held = random_arguments(plan, 1)
    for step in plan.launches:
        read = {inner: held[outer] for inner, outer in step.wiring.items() if outer in held}
        (made,) = all_kernels()[step.kernel].reference(step.parameters, read).values()
        outer = step.wiring["out"]
        held[outer] = made * 2 if outer == fault else made
    return held


@pytest.mark.parametrize(("fault", "guilty"), [("", []), ("low", ["lower"]), ("sum", ["add"])])
def test_a_launch_is_judged_on_its_actual_inputs(fault: str, guilty: list[str]) -> None:
    """A launch that is right on wrong numbers is not blamed for them."""
    plan = two_launches()
    held = held_by(plan, fault)
    findings = list(check_results(plan, held, held))
    assert [finding.launch for finding in findings] == ["lower", "add"]
    assert [f.launch for f in findings if f.verdict is ResultVerdict.DIFFERS] == guilty
    outcome = ItemOutcome(PROGRAM, ItemStatus.DIFFERS, tuple(findings))
    if guilty:
        position = [finding.launch for finding in findings].index(guilty[0])
        assert report_of(outcome).startswith(f"o_ffn: first at fault, launch {position} {guilty[0]} (")
        assert "off by a constant factor of 2" in report_of(outcome)
    assert (outcome.first_failure is None) == (not guilty)


def test_a_run_that_fails(faulty_npu: ModuleType, programs: Path) -> None:
    outcome = outcome_of(GEMM, "c", faulty_npu.time_out, faulty_npu, programs)
    assert (outcome.status, outcome.lost) == (ItemStatus.FAILED, False)
    assert "ERT_CMD_STATE_TIMEOUT" in outcome.message


def test_a_run_that_leaves_the_device_wedged(faulty_npu: ModuleType, programs: Path) -> None:
    outcome = outcome_of(GEMM, "c", faulty_npu.wedge, faulty_npu, programs)
    assert (outcome.status, outcome.lost) == (ItemStatus.FAILED, True)
    assert "the NPU is wedged" in outcome.message


def test_a_program_that_is_not_compiled(faulty_npu: ModuleType, tmp_path: Path) -> None:
    outcome = run_item(ComparisonItem("kernel", "narrow", 1), faulty_npu.failing_backend(), tmp_path, print)
    assert outcome.status is ItemStatus.NOT_COMPILED
    assert "out of shim channels" in outcome.message
