"""`aerie air`: what it prints, where, and with which exit status."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.air_dialect.__main__ import main

GOOD = "air.channel @c []\n"
FRAGMENT = (
    "func.func @f(%m: memref<4xf32>) {\nair.channel.put @c[] (%m[] [] []) : (memref<4xf32>)\nreturn\n}\n"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.mlir"


def test_prints_the_module(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(GOOD)
    assert main([str(source)]) == 0
    assert capsys.readouterr() == ("builtin.module {\n  air.channel @c []\n}\n", "")


def test_reads_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"air.channel @c [0]")))
    assert main(["-"]) == 1
    assert capsys.readouterr() == (
        "",
        "<stdin>:1:1: error: air.channel size[0] is 0: it must be at least 1\n",
    )


def test_invalid_module(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(FRAGMENT)
    assert main([str(source)]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error == (
        f"{source}:2:1: error: air.channel.put uses channel @c, which is not declared: add air.channel @c "
        "[...] to the module\n"
    )


def test_fragment(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(FRAGMENT)
    assert main(["--fragment", str(source)]) == 0
    assert "air.channel.put @c[] (%m[] [] [])" in capsys.readouterr().out


def test_missing_file(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(source)]) == 2
    assert capsys.readouterr().err == f"{source}: error: cannot read: No such file or directory\n"


def test_file_that_is_no_text(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_bytes(b"\xff\xfe\x00")
    assert main([str(source)]) == 2
    assert capsys.readouterr().err == f"{source}: error: cannot read: not UTF-8 text\n"


def test_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert capsys.readouterr() == (
        "",
        "error: the following arguments are required: file (see aerie air --help)\n",
    )


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aerie.air_dialect", "-"],
        input="nonsense",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("<stdin>:1:")
    assert "Traceback" not in done.stderr


def test_a_deep_file_is_no_traceback(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nesting beyond Python's recursion limit is an error with a place."""
    depth = 2000
    head = "func.func @f(%b: i1) {\n"
    source.write_text(head + "scf.if %b {\n" * depth + "}\n" * depth + "return\n}\n")
    assert main([str(source)]) == 1
    assert "recursion" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback(source: Path) -> None:
    source.write_text("\n".join(f"air.channel @c{number} []" for number in range(100)))
    reader = subprocess.Popen(
        [sys.executable, "-m", "aerie.air_dialect", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.close()
    error = reader.stderr.read()
    reader.stderr.close()
    reader.wait()
    assert error == b""
