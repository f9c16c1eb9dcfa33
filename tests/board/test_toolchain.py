"""`make test-toolchain` with stand-ins for upstream's tools: what it says, keeps and exits with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.board.toolchain import results
from aerie.board.toolchain.command import MAX_MIB
from aerie.board.toolchain.subjects import SubjectChoice
from aerie.common.errors import UsageError
from aerie.multi_launch_builder import UnsupportedShapeError
from aerie.multi_launch_builder.shapes import DEMO
from aerie.runtime.npu.stages import StageFiles

Command = Callable[..., Any]

SIZES = {
    "hidden_size": DEMO.emb_dim,
    "num_attention_heads": DEMO.n_heads,
    "num_key_value_heads": DEMO.n_kv_heads,
    "head_dim": DEMO.head_dim,
    "intermediate_size": DEMO.hidden_dim,
    "vocab_size": DEMO.vocab_size,
    "num_hidden_layers": 1,
}


@pytest.fixture
def toolchain(command_line: Command) -> Command:
    """`aerie test-toolchain` with these words."""
    return lambda words, **options: command_line("board", f"test-toolchain {words}", **options)


ADD = "eltwise_add-o_gemv_ffn-attn_add"


@pytest.fixture(scope="module")
def add_text() -> str:
    """The kernel's own text, which a stand-in that lowers nothing writes for a device's module."""
    (subject,) = SubjectChoice(DEMO, 128).build([ADD])
    return subject.program.text


def test_all_stages_and_the_same_bits(stage_machine: Command, toolchain: Command, add_text: str) -> None:
    stage_machine().behave("aie-opt", text=add_text)
    done = toolchain(ADD)
    assert done.status == 0, done.err
    lines = done.err.splitlines()
    assert "air-opt: " in lines[0]
    assert lines[0].endswith("(LLVM version 0.stand-in)")
    name = ADD
    staged = [line.partition(" ok ")[0] for line in lines if " ok " in line]
    titles = ["parse and verify", "placement", "air-to-aie and tiles", "the launch side"]
    assert staged[:4] == [f"{name}: {number} ({title})" for number, title in enumerate(titles, 1)]
    assert len(staged) == 8
    assert any(line.startswith(f"{name}: bits same ") for line in lines)
    assert any(line.startswith(f"{name}: device bits same ") for line in lines)
    assert "8 of 8" in done.out
    assert max(map(len, done.out.splitlines()[:4])) <= 80
    assert done.out.splitlines()[-1] == (
        "[test-toolchain] PASS: 1 through all stages, 1 with the bits of the source, 1 with the bits of the "
        "source on the device's level"
    )


def test_without_tools(stage_machine: Command, toolchain: Command) -> None:
    stage_machine("other")
    done = toolchain("")
    assert done.status == 2
    assert done.err.startswith("error: no stage of the compilers can run here. What is missing, ")
    for name in ("air-opt", "aircc", "aie-opt", "aie-translate"):
        assert f"\n  - {name} is missing: it comes with mlir-ai" in done.err


def test_with_a_part_of_the_tools(stage_machine: Command, toolchain: Command) -> None:
    stage_machine("air-opt", "aircc")
    done = toolchain("narrow --run-up-to 0")
    assert done.status == 0
    for message in (
        "aie-opt is missing: it comes with mlir-aie",
        "stage 5 (locks, descriptors, buffers) is skipped: aie-opt is missing",
        "stage 8 (instruction words) is skipped: aie-opt and aie-translate are missing",
        "narrow: bits not run: its arguments take 1 MiB, and --run-up-to is 0",
    ):
        assert message in done.err
    assert "4 of 4" in done.out
    assert "[test-toolchain] PASS, but for stages 5, 6, 7, 8: 1 through" in done.out


def test_a_failure_has_our_message(stage_machine: Command, toolchain: Command, tmp_path: Path) -> None:
    line = "npu.narrow.mlir:9:7: error: 'aie.dma_bd' op Allocator exhausted available BD IDs (maximum 24)."
    stage_machine().behave("aie-opt", "assign-bd-ids", say=line)
    done = toolchain(f"narrow --run-up-to 0 --keep {tmp_path / 'kept'}")
    assert done.status == 1
    assert "narrow: 5 (locks, descriptors, buffers) failed " in done.err
    assert "6 (routing)" not in done.err
    assert (
        f"narrow, stage 5 (locks, descriptors, buffers): {line}\n  this means: a memtile has 24" in done.out
    )
    assert "locks," in done.out.splitlines()[3]
    assert done.out.endswith("[test-toolchain] FAIL: 1 stopped by a tool\n")
    assert line in (tmp_path / "kept/narrow/stages.narrow.log").read_text()
    assert "air.herd" in (tmp_path / "kept/narrow/placed.narrow.mlir").read_text()


def test_kept_files_are_written_again(stage_machine: Command, toolchain: Command, tmp_path: Path) -> None:
    stage_machine()
    (tmp_path / "kept/narrow").mkdir(parents=True)
    (tmp_path / "kept/narrow/notes").touch()
    refused = toolchain(f"narrow --keep {tmp_path / 'kept'}")
    assert refused.status == 2
    assert "narrow is there, and is none of ours: name another folder with --keep" in refused.err
    (tmp_path / "kept/narrow/stages.narrow.log").touch()
    assert toolchain(f"narrow --run-up-to 0 --keep {tmp_path / 'kept'}").status == 0
    assert not (tmp_path / "kept/narrow/notes").exists()
    (tmp_path / "file").touch()
    assert "cannot write to " in toolchain(f"narrow --keep {tmp_path / 'file'}").err


@pytest.mark.parametrize(
    ("edit", "bits", "message"),
    [
        (("arith.addf", "arith.subf"), "differ", "the placed text: arg2[0] is "),
        (("arith.addf", "arith.nonsense"), "failed", "the placed text does not run on the virtual NPU: "),
    ],
)
def test_a_placed_text_that_computes_something_else(
    stage_machine: Command, toolchain: Command, edit: tuple[str, str], bits: str, message: str
) -> None:
    stage_machine("air-opt", "aircc").behave("aircc", edit=edit)
    done = toolchain(ADD)
    assert done.status == 1
    assert f"{ADD}: bits {bits}" in done.err
    assert f"{ADD}: device bits not run: no module of the device was made" in done.err
    assert f"{ADD}, bits against the source's: {message}" in done.out
    assert done.out.endswith("1 through all stages, 1 with other bits\n")


@pytest.mark.parametrize(
    ("edit", "bits", "message"),
    [
        (("arith.addf", "arith.subf"), "differ", "the device's module before routing: arg2[0] is "),
        (("arith.addf", "arith.nonsense"), "failed", "the device's module before routing does not run"),
    ],
)
def test_a_module_of_the_device_that_computes_something_else(
    stage_machine: Command, toolchain: Command, add_text: str, edit: tuple[str, str], bits: str, message: str
) -> None:
    stage_machine().behave("aie-opt", text=add_text.replace(*edit))
    done = toolchain(ADD)
    assert done.status == 1
    assert f"{ADD}: bits same" in done.err
    assert f"{ADD}: device bits {bits}" in done.err
    assert f"{ADD}, device bits against the source's: {message}" in done.out
    assert done.out.endswith("1 with the bits of the source, 1 with other bits there\n")


def test_programs_and_kernels_in_blocks(stage_machine: Command, toolchain: Command) -> None:
    choice = SubjectChoice(DEMO, 128, "q4")
    names = choice.select([])
    assert names[:6] == [
        *("rms_gemms_rope_q4", "flash_attn", "o_ffn_q4", "rms_gemv_rope_q4", "o_gemv_ffn_q4"),
        "lm_head_gemv_q4",
    ]
    (product,) = choice.build(["gemv"])
    assert product.program.arguments["weight"].shape == (8, 1, 5120)
    assert choice.select(["o_ffn", "o_ffn_ar8", "cached_attn_ar8_cl512"]) == [
        *("o_ffn_q4", "o_ffn_ar8_q4", "cached_attn_ar8_cl512"),
    ]
    assert SubjectChoice(DEMO, 128).select(["o_ffn_ar8_q4_q4_q4_q8"]) == ["o_ffn_ar8_q4_q4_q4_q8"]
    stage_machine("air-opt")
    done = toolchain("gemv --weights q8 --json --run-up-to 0")
    whole = json.loads(done.out)
    assert (whole["weights"], whole["items"][0]["name"]) == ("q8", "gemv")


def test_a_program_that_our_check_refuses_reaches_no_tool(
    stage_machine: Command, toolchain: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aerie.board.toolchain import command
    from aerie.runtime.errors import CompileError

    def refuse(program: Any) -> list[str]:
        raise CompileError(program.name, "too many columns")

    tools = stage_machine()
    monkeypatch.setattr(command, "preflight", refuse)
    done = toolchain("narrow")
    assert done.status == 0
    assert tools.calls() == []
    assert "narrow: refused by our own check" in done.err
    assert "narrow, refused before any tool: too many columns" in done.out
    assert done.out.endswith("[test-toolchain] PASS: 1 refused by our own check\n")


def test_findings_in_the_code_of_cores(
    stage_machine: Command, toolchain: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_machine()
    monkeypatch.setattr(results, "CORE_CHECKS", (lambda text: [f"{len(text.splitlines())} lines are slow"],))
    done = toolchain("narrow --run-up-to 0")
    assert done.status == 1
    assert "narrow, core code, wrong: cores.narrow.first.ll: 10 lines are slow" in done.out
    assert "1 with findings in core code" in done.out
    assert "stage 7 (cores to LLVM IR) ran without arith-expand include-min-max-f=true" in done.out


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        (
            "call void @absent()",
            "narrow, core code, wrong: core_0_2: calls absent, which no object defines",
            1,
        ),
        (
            "br label %a\na:\n  %x = fptrunc float %y to bfloat\n  br label %a",
            "narrow, core code, slow: core_0_2: 1 fptrunc of single floats in innermost loops",
            0,
        ),
    ],
)
def test_core_errors_fail_and_slow_core_code_is_reported(
    stage_machine: Command, toolchain: Command, body: str, message: str, status: int
) -> None:
    text = f"define void @core_0_2() {{\n  {body}\n}}\n"
    stage_machine().behave("aie-translate", "--mlir-to-llvmir", text=text)
    done = toolchain("narrow --run-up-to 0")
    assert message in done.out
    assert done.status == status


def test_matrix_products_of_the_cores_are_reported(tmp_path: Path) -> None:
    """In IR made up: two loops of four products, one with four accumulators and one with a single one."""
    texts = StageFiles(tmp_path, "gemm")
    multiply = "%10 = call <64 x i32> @llvm.aie2p.BFP576.BFP576.ACC2048.mac.conf(<64 x i8> %8, i32 780)\n"
    body = f"5:\n{multiply * 4}br label %2\n"

    def core(held: int) -> str:
        carried = "%4 = phi <64 x float> [ %11, %5 ], [ %2, %1 ]\n" * held
        return f"define void @core_0_{held}() {{\n2:\n{carried}br label %5\n\n{body}}}\n\n"

    assert results.product_note(texts) == ""
    texts.core("one", "ll").write_text(core(4) + core(1))
    assert results.product_note(texts) == (
        "1 loops with 4 products an iteration in 1 accumulators, 0 conversions per product; "
        "1 loops with 4 products an iteration in 4 accumulators, 0 conversions per product"
    )
    (finding,) = results.core_findings(texts)
    assert finding.startswith(
        "cores.gemm.one.ll: 1 of 2 loops of products wait for their own sums: 4 products of 8x8 blocks an "
        "iteration go to 1 accumulators in core_0_1; "
    )
    texts.core("one", "ll").write_text(core(4))
    assert results.core_findings(texts) == []


def test_the_record(stage_machine: Command, toolchain: Command) -> None:
    stage_machine("air-opt", "aircc").behave("aircc", until="placed", say="error: out of shim DMA channels")
    done = toolchain("narrow --json --run-up-to 0 --seq-len 64")
    assert done.status == 1
    whole = json.loads(done.out)
    assert (whole["schema"], whole["model"], whole["seq_len"]) == (1, "demo", 64)
    assert whole["tools"] == dict.fromkeys(("air-opt", "aircc"), "LLVM version 0.stand-in")
    assert whole["stages"][4] == {
        "number": 5,
        "title": "locks, descriptors, buffers",
        "obstacle": "aie-opt is missing",
    }
    (item,) = whole["items"]
    assert (item["name"], item["kind"], item["right"]) == ("narrow", "kernel", False)
    assert item["options"] == ["--stack-size=2048"]
    assert [stage["status"] for stage in item["stages"]] == ["ok", "ok", "failed", *["not run"] * 5]
    assert item["stages"][2]["line"] == "error: out of shim DMA channels"
    assert "16 in each direction" in item["stages"][2]["meanings"][0]
    assert item["bits"]["status"] == "not run"


def test_a_shape_from_a_config_alone(stage_machine: Command, toolchain: Command, tmp_path: Path) -> None:
    stage_machine("air-opt")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SIZES))
    done = toolchain(f"swiglu --json --run-up-to 0 --model {tmp_path}")
    assert [item["name"] for item in json.loads(done.out)["items"]] == ["swiglu", "swiglu-o_gemv_ffn-swiglu"]
    config.write_text("[]")
    assert "holds list, not an object" in toolchain(f"swiglu --model {tmp_path}").err
    config.write_text(json.dumps({**SIZES, "head_dim": 100}))
    refused = toolchain(f"swiglu --model {tmp_path}")
    assert (refused.status, "head_dim=100" in refused.err) == (2, True)


def test_an_unknown_name_is_refused(stage_machine: Command, toolchain: Command) -> None:
    stage_machine()
    done = toolchain("softmax")
    assert done.status == 2
    assert "no kernel or program is called 'softmax'; there are: rms_gemms_rope, " in done.err


def test_variants_are_selected_by_name() -> None:
    asked = ["cached_attn_ar8_cl1024", "swiglu", "AR-8xCL-512"]
    choice = SubjectChoice(DEMO, 128)
    chosen = choice.select(asked)
    assert [name for name in chosen if "_ar" not in name] == ["swiglu", "swiglu-o_gemv_ffn-swiglu"]
    of_variant = ["rms_gemms_rope_ar8", "cached_attn_ar8_cl512", "o_ffn_ar8", "lm_head_ar8"]
    assert [name for name in chosen if "_ar" in name] == ["cached_attn_ar8_cl1024", *of_variant]
    (attention,) = choice.build(["cached_attn_ar8_cl1024"])
    assert (attention.kind, attention.plan.context) == ("program", 1024)
    with pytest.raises(UnsupportedShapeError, match=r"no programs for rows \(AR\)=9"):
        choice.select(["AR-9xCL-512"])
    with pytest.raises(
        UsageError, match=r"'softmax'; .* AR-8xCL-512: those of a variant, such as cached_attn_"
    ):
        choice.select(["softmax"])


def test_the_demos_arguments_are_within_the_limit() -> None:
    choice = SubjectChoice(DEMO, 128)
    subjects = choice.build(choice.select(["programs"]))
    assert max(subject.argument_bytes for subject in subjects) < MAX_MIB * results.MIB


def test_ctrl_c_ends_everything(stage_machine: Command, tmp_path: Path) -> None:
    note = tmp_path / "note"
    stage_machine().behave("aircc", hang=str(note))
    words = ["-m", "aerie", "test-toolchain", "narrow", "swiglu", "--keep", str(tmp_path / "kept")]
    child = subprocess.Popen(
        [sys.executable, *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    for _ in range(3000):
        if note.exists() and note.read_text():
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, output = child.communicate(timeout=300)
    assert child.returncode == 130
    assert output.endswith("stopped\n")
    for pid in note.read_text().split():
        state = Path("/proc") / pid / "stat"
        assert not state.exists() or state.read_text().split()[2] == "Z"
