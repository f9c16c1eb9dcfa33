"""aerie kernels: list, show, preflight, and what it refuses with status 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from aerie.air_dialect import parse
from aerie.device import check
from aerie.kernel_builder.__main__ import main
from aerie.kernel_builder.kernels import eltwise_add
from aerie.kernel_builder.spec import Array, KernelDifference, KernelModule, Parameters


def test_list_names_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "eltwise_add      out = a + b, or a + b * scale, bf16" in out
    assert "parameters: rows, cols, herd_x" in out


def test_show_prints_a_module_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "eltwise_add", "--rows=none", "--cols=64", "--herd-x=4"]) == 0
    out = capsys.readouterr().out
    assert out == eltwise_add.build(None, 64, herd_x=4).text
    parse(out)


def test_show_without_parameters_shows_the_first_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "rms_norm", "--eps=1e-6"]) == 0
    assert "memref<64x256xbf16>" in capsys.readouterr().out


def test_check_runs_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "eltwise_add"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["case", "result", "worst", "error", "allowed", "differ"]
    assert [line.split("  ")[0] for line in lines[1:]] == [
        " ".join(f"{name}={value}" for name, value in case.items()) for case in eltwise_add.KERNEL.cases
    ]
    assert all(line.endswith("  ok") for line in lines[1:])


def test_check_of_one_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "eltwise_add", "--rows=8", "--cols=32"]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.startswith("rows=8 cols=32")
    assert line.split()[-6:] == ["out", "0", "0", "of", "256", "ok"]


def test_check_of_wrong_results(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def off_by_one(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
        out = np.array(eltwise_add.reference(parameters, arrays)["out"])
        out[3, 5] = 400
        return {"out": out}

    spec = dataclasses.replace(eltwise_add.KERNEL, reference=off_by_one)
    monkeypatch.setattr("aerie.kernel_builder.__main__.all_kernels", lambda: {"eltwise_add": spec})
    assert main(["check", "eltwise_add", "--rows=8", "--cols=32"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].endswith("1 of 256  WRONG")
    assert captured.err.startswith("error: eltwise_add rows=8 cols=32")
    assert ": out: 1 of 256 elements differ, worst at index [3, 5]: got " in captured.err
    assert captured.err.endswith(", wanted 400\n")


def test_check_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VNPU_CXX", "no-such-compiler")
    assert main(["check", "eltwise_add", "--rows=16", "--cols=32"]) == 2
    assert capsys.readouterr().err.startswith("error: no C++ compiler: looked for no-such-compiler")


def test_preflight_of_a_kernel_and_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "gemm", "--m=64"]) == 0
    assert "gemm_herd  L1 bytes" in capsys.readouterr().out
    path = tmp_path / "add.mlir"
    path.write_text(eltwise_add.build(8, 32).text)
    assert main(["preflight", str(path)]) == 0
    assert "eltwise_add/0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "gem"], "no kernel named 'gem'; there are: bias_add, block_attention, cache_update, c"),
        (["show", "gem"], "no kernel named 'gem'; there are: bias_add, block_attention, cache_update, c"),
        (
            ["show", "gemm", "--rows=3"],
            "'--rows=3' is no parameter of gemm; write --name=value with one of: m, k, n",
        ),
        (["show", "gemm", "m=3"], "'m=3' is no parameter of gemm"),
        (["show", "gemm", "--m=few"], "'--m=few' has no number after the equals sign"),
        (["show", "gemm", "--m=12"], "gemm: m=12 is no positive multiple of 8"),
        (["show", "gemm", "--m=none"], "gemm: m=None is no whole number"),
        (["preflight", "missing.mlir"], "cannot read missing.mlir: No such file or directory"),
        (["list", "all"], "unknown argument all"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_file_that_does_not_parse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @f() { air.nonsense }")
    assert main(["preflight", str(path)]) == 2
    assert "bad.mlir:1:" in capsys.readouterr().err


def test_a_program_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tall.mlir"
    path.write_text(eltwise_add.build(8, 32).text.replace("%c1 = arith.constant 1", "%c1 = arith.constant 5"))
    assert main(["preflight", str(path)]) == 2
    captured = capsys.readouterr()
    assert "TOO MUCH" in captured.out
    assert "rows (y) takes 5, npu2 has 4" in captured.err


def test_preflight_prints_every_fault_and_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tall.mlir"
    path.write_text(eltwise_add.build(8, 32).text.replace("%c1 = arith.constant 1", "%c1 = arith.constant 5"))
    report = check(path.read_text())
    assert main(["preflight", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(report.faults) > 1
    assert lines == [
        *(f"warning: {warning}" for warning in report.warnings),
        *(f"error: {fault}" for fault in report.faults),
    ]


def test_preflight_prints_warnings_of_kernels_that_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quotient.mlir"
    path.write_text(
        "func.func @f() { air.launch () in () { air.segment @s { %c1 = arith.constant 1 : index\n"
        "air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) { %v = arith.constant 3.0 : f32\n"
        "%r = arith.divf %v, %v : f32 } } } return }"
    )
    assert main(["preflight", str(path)]) == 0
    assert (
        "warning: line 3: arith.divf: f/0/s/h: a division of scalar floats takes" in capsys.readouterr().err
    )


def test_check_reports_kernels_that_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The virtual NPU has as many rows of cores as a kernel asks for; the device has four."""

    def tall(rows: int, cols: int) -> KernelModule:
        kernel = eltwise_add.build(rows, cols)
        return dataclasses.replace(kernel, module=parse(kernel.text.replace("%hsy=%c1", "%hsy=%c8")))

    spec = dataclasses.replace(eltwise_add.KERNEL, build=tall)
    monkeypatch.setattr("aerie.kernel_builder.__main__.all_kernels", lambda: {"eltwise_add": spec})
    same = {"out": KernelDifference(4, 0, 2)}
    monkeypatch.setattr("aerie.kernel_builder.__main__.compare", lambda spec, case: same)
    assert main(["check", "eltwise_add", "--rows=8", "--cols=32"]) == 2
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].endswith("0 of 4  ok")
    assert captured.err.startswith("error: eltwise_add rows=8 cols=32: cannot be built for npu2: ")
    assert "cores takes 64, npu2 has 32" in captured.err
    assert captured.err.endswith("`aerie kernels preflight eltwise_add --rows=8 --cols=32` shows all\n")
