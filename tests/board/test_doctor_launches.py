"""The doctor's one kernel: really built and run on the virtual NPU; what it says is judged line by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_machine import machine, tool

from board.doctor import one_kernel
from board.doctor.machine import Machine, Status
from board.doctor.one_kernel import main, run_one
from runtime import select_backend


def test_on_the_virtual_npu() -> None:
    finding = one_kernel.on_virtual_npu(Machine())
    assert finding.status is Status.OK, finding
    assert finding.found.startswith("compiled and run in ")


def test_without_a_compiler() -> None:
    here = Machine()
    without = Machine(environ={**here.environ, "VNPU_CXX": "no-such-compiler"})
    finding = one_kernel.on_virtual_npu(without)
    assert finding.status is Status.FAILED
    assert "no C++ compiler: looked for no-such-compiler" in finding.found


def test_without_an_npu() -> None:
    finding = one_kernel.on_npu(Machine())
    assert finding.status is Status.FAILED
    assert "backend 'npu' cannot be used here" in finding.found


def test_numpy_is_asked(tmp_path: Path) -> None:
    assert run_one(select_backend("virtual"), tmp_path) == 0


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("no such backend") == 0
    assert "unknown backend 'no such backend'" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"error": "", "wrong": 0, "seconds": 1.25}', "compiled and run in 1.2 s, result right"),
        ('{"error": "", "wrong": 7, "seconds": 1}', "it ran, and 7 elements are wrong"),
        ('{"error": "the NPU is wedged", "wrong": 0, "seconds": 1}', "the NPU is wedged"),
        ('{"error": broken', "it says nothing that makes sense"),
        ("garbage", "it says nothing that makes sense"),
        ('{"error": ""}', "it says nothing that makes sense"),
    ],
)
def test_what_it_says(tmp_path: Path, said: str, found: str) -> None:
    python = tool(tmp_path / "python", "echo noise from XRT", f"echo '{said}'")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.found.startswith(found)
    assert finding.status is (Status.OK if "right" in found else Status.FAILED)


def test_what_it_waits_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_kernel, "NPU_S", 0.5)
    python = tool(tmp_path / "python", "echo 'the NPU is in use by process 7' >&2", "sleep 60")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.found == "no answer within 0.5 s; its last line: the NPU is in use by process 7"


def test_a_crash(tmp_path: Path) -> None:
    python = tool(tmp_path / "python", "echo 'Segmentation fault' >&2", "kill -SEGV $$")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.found == "it was ended by SIGSEGV; its last line: Segmentation fault"
