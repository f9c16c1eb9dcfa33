"""python -m kernel_builder: list, show, preflight, and what it refuses with status 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from air_dialect import parse
from kernel_builder.__main__ import main
from kernel_builder.kernels import eltwise_add


def test_list_names_every_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "eltwise_add      out = a + b, bf16" in out
    assert "parameters: rows, cols, herd_x" in out


def test_show_prints_a_module_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "eltwise_add", "--rows=none", "--cols=64", "--herd-x=4"]) == 0
    out = capsys.readouterr().out
    assert out == eltwise_add.build(None, 64, herd_x=4).text
    parse(out)


def test_show_without_parameters_shows_the_first_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "rms_norm", "--eps=1e-6"]) == 0
    assert "memref<64x256xbf16>" in capsys.readouterr().out


def test_preflight_of_a_kernel_and_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "gemm", "--m=64"]) == 0
    assert "herd gemm_herd L1 bytes" in capsys.readouterr().out
    path = tmp_path / "add.mlir"
    path.write_text(eltwise_add.build(8, 32).text)
    assert main(["preflight", str(path)]) == 0
    assert "eltwise_add/0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "gem"], "no kernel named 'gem'; there are: eltwise_add"),
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
