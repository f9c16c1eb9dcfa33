"""Programs through the stages, with stand-ins for the tools: lines, failures, missing tools, limits; and with
the real tools where they are on PATH."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.device.npu2 import NPU2
from aerie.multi_launch_builder.program import CompileOption, Program
from aerie.runtime.npu.pipelines import (
    AirccOptions,
    NestedPipeline,
    ToolPasses,
    aie_passes,
    npu_passes,
    pipeline,
    placement_passes,
    resource_passes,
)
from aerie.runtime.npu.stage_runner import StageRunner, devices_with_cores
from aerie.runtime.npu.stages import STAGES, StageFiles, StageOutcome, StageStatus, StageTools

FLAGS = ("--stack-size=2048", "--air-runtime-loop-tiling-sizes=2", "--air-runtime-loop-tiling-sizes=4")


def program(*flags: str, text: str = "module {\n}\n") -> Program:
    options = tuple(CompileOption(flag, "for the test", "no source") for flag in flags)
    return Program("add", text, (), (), (), options)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., list[StageOutcome]]:
    """Runs a program with the tools that are found; the results."""

    def run_one(
        *flags: str, on_result: Callable[[StageOutcome], None] = lambda _: None
    ) -> list[StageOutcome]:
        (tmp_path / "work").mkdir()
        return StageRunner(StageTools.from_machine()).run(program(*flags), tmp_path / "work", on_result)

    return run_one


def statuses(results: list[StageOutcome]) -> str:
    """A letter per stage: ok, Failed, skipped (-), not run (.)."""
    return "".join({"ok": "o", "failed": "F", "skipped": "-", "not run": "."}[r.status] for r in results)


def test_core_errors_are_reported(stage_machine: Any, run: Any) -> None:
    text = "define void @core_0_2() {\n  call void @absent()\n  ret void\n}\n"
    stage_machine().behave("aie-translate", "--mlir-to-llvmir", text=text)
    absent = "core_0_2: calls absent, which no object defines; link_with names the object that has it"
    result = run(*FLAGS)[6]
    assert [(str(finding), finding.wrong) for finding in result.findings] == [(absent, True)]
    assert result.note == "2 cores in 2 devices"


def test_every_stage_in_order(stage_machine: Any, run: Any, tmp_path: Path) -> None:
    tools, outcomes = stage_machine(), list[StageOutcome]()
    results = run(*FLAGS, on_result=outcomes.append)
    assert statuses(results) == "oooooooo"
    assert outcomes == results
    assert [result.stage for result in results] == list(STAGES)
    called = [call[0] for call in tools.calls()]
    lowered = ["aie-opt", "aie-translate"]
    assert called == ["air-opt", "aircc", "aie-opt", "aie-opt", *lowered, *lowered, *lowered]
    elf = ("--output-format", "elf", "--elf-name", "add.elf")
    assert tools.calls("aircc") == [["aircc", "add.mlir", "--device", "npu2", *elf, "--tmpdir", ".", *FLAGS]]
    assert results[6].note == "2 cores in 2 devices"
    assert results[7].note == "2 words"
    texts = StageFiles(tmp_path / "work", "add")
    assert [path.name for path in texts.cores] == ["cores.add.first.ll", "cores.add.second.one.ll"]
    assert texts.placed.read_text() == program().text
    assert "$ " in texts.log.read_text()


def test_missing_options_of_a_release_are_left_out_with_a_note(stage_machine: Any, run: Any) -> None:
    tools = stage_machine()
    results = run()
    lowering = next(call for call in tools.calls("aie-opt") if "device=first" in call[1])
    assert "arith-expand,finalize-memref-to-llvm" in lowering[1]
    assert "arith-expand include-min-max-f=true" in results[6].left_out
    assert "aie-transform-bfp-types" in results[6].left_out


@pytest.mark.parametrize(
    ("tool", "plan", "expected", "line", "meaning"),
    [
        ("air-opt", {"say": "a.mlir:1:1: error: bad"}, "F.......", "a.mlir:1:1: error: bad", ""),
        ("aircc", {"until": "nothing", "say": "x: error: 1"}, "oF......", "x: error: 1", ""),
        (
            "aircc",
            {"until": "placed", "say": "loc: error: Fan-in no\nerror: out of shim DMA channels"},
            "ooF.....",
            "loc: error: Fan-in no",
            "16 in each direction",
        ),
        ("aircc", {"until": "aie", "say": "x: error: 3"}, "oooF....", "x: error: 3", ""),
        (
            "aircc",
            {"until": "npu", "say": "add.mlir:1:1: error: No valid placement found.", "exit": 0},
            "oF......",
            "add.mlir:1:1: error: No valid placement found.",
            "at most 8 columns",
        ),
        ("aircc", {"say": "Error running command: aiecc"}, "oooF....", "Error running command: aiecc", ""),
        (
            "aie-opt",
            {"where": "assign-bd-ids", "say": "note: y\nx: error: Allocator exhausted available BD IDs."},
            "ooooF...",
            "x: error: Allocator exhausted available BD IDs.",
            "24 for its odd channels",
        ),
        ("aie-opt", {"where": "pathfinder", "say": "error: Unable to find a legal routing"}, "oooooF..",
         "error: Unable to find a legal routing", "no way for all streams"),
        ("aie-opt", {"where": "device=second.one", "say": "error: 6"}, "ooooooF.", "error: 6", ""),
        ("aie-translate", {"where": "llvmir", "say": "error: 7"}, "ooooooF.", "error: 7", ""),
        ("aie-translate", {"where": "binary", "say": "error: 8"}, "oooooooF", "error: 8", ""),
        ("aie-translate", {"where": "binary", "write": "nothing"}, "oooooooF",
         "aie-translate ended without an error and without words.add.txt:", ""),
    ],
)  # fmt: skip
def test_the_first_failure_ends_it(
    stage_machine: Any, run: Any, tool: str, plan: dict[str, Any], expected: str, line: str, meaning: str
) -> None:
    tools = stage_machine()
    tools.behave(tool, **plan)
    results = run()
    assert statuses(results) == expected
    failure = results[expected.index("F")].failure
    assert failure is not None
    assert failure.line == line
    assert meaning in "".join(failure.meanings)
    assert line in failure.full_text


@pytest.mark.parametrize(
    ("names", "expected", "reason"),
    [
        (("air-opt",), "oooo----", "aie-opt is missing"),
        (("aircc",), "-ooo----", "aie-opt is missing"),
        (("aie-opt", "aie-translate"), "--------", "aircc is missing"),
        (("air-opt", "aie-opt"), "oooooo--", "aie-translate is missing"),
        (("air-opt", "aircc", "aie-translate"), "oooo----", "aie-opt is missing"),
    ],
)
def test_with_a_part_of_the_tools(
    stage_machine: Any, run: Any, names: tuple[str, ...], expected: str, reason: str
) -> None:
    stage_machine(*names)
    results = run("--stack-size=2048")
    assert statuses(results) == expected
    assert reason in [result.note for result in results if result.status is StageStatus.SKIPPED]
    tools = StageTools.from_machine()
    assert len(tools.missing) == 4 - len(names)
    assert [stage.number for stage in tools.runnable] == [n + 1 for n in range(8) if expected[n] == "o"]


def test_stages_after_a_missing_stage_say_so(stage_machine: Any) -> None:
    stage_machine("air-opt")
    found = StageTools.from_machine()
    assert found.blocker(STAGES[4]) == "aie-opt is missing"
    assert found.blocker(STAGES[6]) == "aie-opt and aie-translate are missing"
    stand_ins_of_aie = StageTools({"aie-opt": Path("x"), "aie-translate": Path("y")})
    assert stand_ins_of_aie.blocker(STAGES[4]) == "stage 4 (the launch side) cannot run"


def test_air_opt_stands_in_for_aircc_as_far_as_it_knows_the_options(stage_machine: Any, run: Any) -> None:
    tools = stage_machine("air-opt")
    results = run("--stack-size=2048", "--trace-size=64")
    assert statuses(results) == "o-------"
    assert results[1].note == "aircc is missing, and air-opt alone cannot follow --trace-size=64"
    assert len(tools.calls("air-opt")) == 1


def test_a_tool_that_does_not_end(
    stage_machine: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_COMPILE_TIMEOUT", "4")  # all other tools answer sooner
    stage_machine().behave("aie-opt", "pathfinder", hang=str(tmp_path / "note"))
    results = run()
    assert statuses(results) == "oooooF.."
    assert "aie-opt had not ended after 4 s" in results[5].failure.line
    assert ended((tmp_path / "note").read_text().split())


def test_stop_ends_the_tools(stage_machine: Any, tmp_path: Path) -> None:
    note = tmp_path / "note"
    stage_machine().behave("aircc", hang=str(note))
    runner, results = StageRunner(StageTools.from_machine()), list[StageOutcome]()
    (tmp_path / "work").mkdir()
    thread = threading.Thread(target=lambda: results.extend(runner.run(program(), tmp_path / "work")))
    thread.start()
    while not (note.exists() and note.read_text()):
        thread.join(0.01)
    runner.stop()
    thread.join(120)
    assert statuses(results) == "oF......"
    assert results[1].failure is not None
    assert results[1].failure.full_text.startswith("aircc was killed by SIGKILL")
    assert ended(note.read_text().split())


def test_a_tool_that_cannot_be_started(stage_machine: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    tools = StageTools({"air-opt": tmp_path / "none"})
    assert tools.version("air-opt") == "it prints no version"
    result = StageRunner(tools).run(program(), tmp_path / "work")[0]
    assert result.failure is not None
    assert result.failure.line.startswith("air-opt could not be started: ")


def ended(pids: list[str]) -> bool:
    """Whether no process of these numbers runs. One that was killed may take a moment to go."""
    for _ in range(1000):
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.01)
    return False


def is_running(pid: str) -> bool:
    """One that ended and that nobody waited for yet does not run."""
    try:
        return Path("/proc", pid, "stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_devices_with_cores() -> None:
    text = "module {\n  aie.device(npu2) @a {\n  aie.core(%t)\n  aie.device(npu2) {\n  }\n"
    assert devices_with_cores(text) == ["a"]
    assert devices_with_cores("  aie.device(npu2) {\n  aie.core(%t)") == ["main"]
    assert devices_with_cores("module {\n}\n") == []


HELP = ToolPasses.from_help(
    "  --general - not a pass\n      --first   -   A pass\n        --size=<uint>  - its option\n"
    "      --aie-X-y=<z>    -   Another\n"
)


def test_the_passes_of_a_tool() -> None:
    assert HELP.options == {"first": frozenset({"size"}), "aie-X-y": frozenset()}


@pytest.mark.parametrize(
    ("passes", "text", "left_out"),
    [
        (("first", "second"), "builtin.module(first,second)", ()),
        (("first", "second?"), "builtin.module(first)", ("second",)),
        (("first{size=1 depth=2?}",), "builtin.module(first{size=1})", ("first depth=2",)),
        (("first{depth=2?}",), "builtin.module(first)", ("first depth=2",)),
        (("first{a=1}?",), "builtin.module(first{a=1})", ()),
        (
            (NestedPipeline("func.func", ("aie-X-y", "b?")), "first"),
            "builtin.module(func.func(aie-X-y),first)",
            ("b",),
        ),
    ],
)
def test_a_pipeline_is_fitted_to_the_tool(passes: Any, text: str, left_out: tuple[str, ...]) -> None:
    fitted = pipeline(passes, HELP)
    assert (fitted.text, fitted.left_out) == (text, left_out)


def test_without_help_nothing_is_left_out() -> None:
    assert pipeline(("a?", "b{c=1?}"), ToolPasses({})).text == "builtin.module(a,b{c=1})"


@pytest.mark.parametrize(
    ("flags", "has", "lacks"),
    [
        ((), "air-ping-pong-transform,", "omit-memory-space"),
        (("--omit-ping-pong-transform=L2",), "air-ping-pong-transform{omit-memory-space=L2}", "=all"),
        (("--omit-ping-pong-transform",), "air-fuse-alloc-dealloc", "ping-pong"),
        (("--omit-auto-broadcast",), "air-dma-to-channel", "air-broadcast"),
        ((), "emit-while-loop=true", "stack-size"),
        (("--omit-while-true-loop", "--stack-size=2048"), "emit-while-loop=false", "stack-size=1024"),
        (("--stack-size=2048",), "stack-size=2048}", "shim-dma-tile-sizes"),
        (FLAGS, "air-opt-shim-dma-bds{device=npu2 shim-dma-tile-sizes=2,4}", "bf16-emulation"),
        (("--coalesce-shim-dma",), "coalesce-shim-dma=true", "bf16-emulation"),
        (("--bf16-emulation",), "aie-target=aie2p bf16-emulation=true", "coalesce-shim-dma=true"),
    ],
)
def test_options_of_aircc_reach_the_passes(flags: tuple[str, ...], has: str, lacks: str) -> None:
    made = [
        step(AirccOptions(flags), NPU2)
        for step in (placement_passes, aie_passes, npu_passes, resource_passes)
    ]
    text = " ".join(pipeline(passes, ToolPasses({})).text for passes in made)
    assert has in text
    assert lacks not in text


REAL = StageTools.from_machine()


@pytest.mark.skipif(len(REAL.paths) < 4, reason=f"not with the real tools here: {'; '.join(REAL.missing)}")
def test_with_the_real_tools(tmp_path: Path) -> None:
    """A kernel goes through all of them, and air-opt alone makes the texts that aircc makes."""
    from aerie.multi_launch_builder.builder import kernel_uses
    from aerie.multi_launch_builder.shapes import DEMO

    given = kernel_uses(DEMO, 64)["eltwise_add"].program("eltwise_add")
    texts = []
    for names in (REAL.paths, REAL.paths.keys() - {"aircc"}):
        work = tmp_path / str(len(names))
        work.mkdir()
        results = StageRunner(StageTools({name: REAL.paths[name] for name in names})).run(given, work)
        assert statuses(results) == "oooooooo", results
        found = StageFiles(work, "eltwise_add")
        texts.append([path.read_text().strip() for path in (found.placed, found.hex_words, *found.cores)])
    assert texts[0] == texts[1]
