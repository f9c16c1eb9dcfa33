"""The fixture command_line: a command ends here as in a process of its own, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

PROGRAM = "func.func @nothing() {\n  return\n}\n"


@pytest.mark.parametrize(
    ("room", "words", "status", "out", "err"),
    [
        ("air_dialect", "-", 0, "func.func @nothing()", ""),
        ("air_dialect", "gone.mlir", 2, "", "error: "),
        ("virtual_npu", "--help", 0, "VNPU_THREADS", ""),
        ("virtual_npu", "rum", 2, "", "error: argument COMMAND"),
        ("board", "report --no-such-flag", 2, "", "error: "),
    ],
)
def test_status_and_both_streams(command_line, tmp_path, room, words, status, out, err) -> None:
    done = command_line(room, words, cwd=tmp_path, stdin=PROGRAM)
    assert done.status == status
    assert out in done.out
    assert err in done.err
    assert bool(done.err) == bool(err)


def test_all_is_as_before(command_line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VNPU_THREADS", raising=False)
    before = os.getcwd(), list(sys.argv), sys.stdin, dict(os.environ)
    (tmp_path / "p.mlir").write_text(PROGRAM)
    done = command_line("virtual_npu", ["run", tmp_path / "p.mlir"], cwd=tmp_path, VNPU_THREADS="none")
    assert (done.status, "VNPU_THREADS='none' cannot be used" in done.err) == (2, True)
    assert (os.getcwd(), sys.argv, sys.stdin, dict(os.environ)) == before
