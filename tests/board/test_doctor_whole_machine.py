"""The doctor on whole machines that are made up, and the one kernel that it really runs."""

from __future__ import annotations

import importlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from aerie import virtual_npu
from aerie.board.doctor import one_kernel
from aerie.board.doctor.checks import CHECKS, GOALS, run_checks
from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine
from aerie.board.doctor.one_kernel import CASE, main, run_add_kernel
from aerie.kernel_builder.kernels.eltwise_add import KERNEL
from aerie.runtime import select_backend
from aerie.runtime.npu import versions
from tests.board.made_up_machine import machine, put, tool


def test_on_the_virtual_npu() -> None:
    finding = one_kernel.on_virtual_npu(ExaminedMachine())
    assert finding.status is CheckStatus.OK, finding
    assert finding.actual.startswith("compiled and run in ")


def test_without_a_compiler() -> None:
    here = ExaminedMachine()
    without = ExaminedMachine(environ={**here.environ, "VNPU_CXX": "no-such-compiler"})
    finding = one_kernel.on_virtual_npu(without)
    assert finding.status is CheckStatus.FAILED
    assert "no C++ compiler: looked for no-such-compiler" in finding.actual


def test_without_a_compiler_that_there_once_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what is compiled runs, whether this kernel is among it or not."""
    put(tmp_path, "compilers.json", '[{"files": "0", "version": "g++ 13.2.0"}]')
    gone = {"PATH": str(tmp_path), "VNPU_CACHE": str(tmp_path), "CXX": "", "VNPU_CXX": ""}
    for name, value in gone.items():
        monkeypatch.setenv(name, value)
    finding = one_kernel.on_virtual_npu(ExaminedMachine())
    assert finding.status is CheckStatus.WARNING
    assert finding.actual.startswith("not tried: its kernel was never compiled here")


def test_without_an_npu() -> None:
    finding = one_kernel.on_npu(ExaminedMachine())
    assert finding.status is CheckStatus.FAILED
    assert "backend 'npu' cannot be used here" in finding.actual


def test_numpy_version_is_read(tmp_path: Path) -> None:
    assert run_add_kernel(select_backend("virtual"), tmp_path) == 0


def test_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("no such backend") == 0
    assert "unknown backend 'no such backend'" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ('{"error": "", "wrong": 0, "seconds": 1.25}', "compiled and run in 1.2 s, result right"),
        ('{"error": "", "wrong": 7, "seconds": 1}', "it ran, and 7 elements are wrong"),
        ('{"error": "the NPU is wedged", "wrong": 0, "seconds": 1}', "the NPU is wedged"),
        ('{"error": broken', "its output is not a result"),
        ("garbage", "its output is not a result"),
        ('{"error": ""}', "its output is not a result"),
    ],
)
def test_output_of_the_child(tmp_path: Path, output: str, found: str) -> None:
    python = tool(tmp_path / "python", "echo noise from XRT", f"echo '{output}'")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.actual.startswith(found)
    assert finding.status is (CheckStatus.OK if "right" in found else CheckStatus.FAILED)


def test_waiting_is_reported_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_kernel, "NPU_S", 0.5)
    python = tool(tmp_path / "python", "echo 'the NPU is in use by process 7' >&2", "sleep 60")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.actual == "no answer within 0.5 s; its last line: the NPU is in use by process 7"


def test_a_crash(tmp_path: Path) -> None:
    python = tool(tmp_path / "python", "echo 'Segmentation fault' >&2", "kill -SEGV $$")
    finding = one_kernel.on_npu(machine(tmp_path, python=str(python)))
    assert finding.actual == "it was ended by SIGSEGV; its last line: Segmentation fault"


STAND_INS = Path(__file__).parents[1] / "stand_ins"
PYXRT = f"""
import sys
sys.path.insert(0, {str(STAND_INS)!r})
from pyxrt_stand_in import PyxrtStandIn
sys.modules["pyxrt"] = PyxrtStandIn()
sys.modules["pyxrt"].__file__ = __file__
import pathlib
import pyxrt_stand_in
load = pyxrt_stand_in.virtual.elf
pyxrt_stand_in.virtual.elf = lambda path: load(pathlib.Path(__file__).with_name("prebuilt.so"))
"""


@pytest.fixture
def owners_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExaminedMachine:
    """A root with a Strix, and an environment with stand-ins for mlir-air, mlir-aie, Peano, XRT and pyxrt."""
    monkeypatch.syspath_prepend(str(STAND_INS))
    importlib.import_module("npu_tools").Tools(tmp_path / "tools")
    says = f"clang version 21.0.0 (llvm-aie {versions.PEANO.version.partition('+')[2]})"
    for name in ("aircc", "aiecc", "aiebu-asm"):  # the stand-ins know no --help
        real = tmp_path / "tools" / "bin" / name
        tool(tmp_path / "bin" / name, f'[ "$1" = --help ] && echo USAGE && exit 0; exec {real} "$@"')
    tool(tmp_path / "bin" / "xrt-smi", "echo 'Device(s) Present'; echo '[0000:c5:00.1] : NPU Strix'")
    clang = tmp_path / "tools" / "peano" / "bin" / "clang++"
    stand_in = clang.rename(clang.with_name("stand-in"))
    tool(clang, f'[ "$1" = --version ] && echo \'{says}\' && exit 0; exec {stand_in} "$@"')
    tool(clang.with_name("llc"), "echo 'aie - Xilinx AI Engine'")
    put(tmp_path, "pyxrt.py", PYXRT)
    put(tmp_path, "xrt/version.json", '{"BUILD_VERSION": "2.26.95"}')
    put(tmp_path, "dev/accel/accel0")
    put(tmp_path, "sys/module/amdxdna/version", "0.1")
    put(tmp_path, "sys/class/accel/accel0/device/vbnv", "NPU Strix")
    put(tmp_path, "sys/class/accel/accel0/device/fw_version", versions.FIRMWARE.version)
    put(tmp_path, "proc/meminfo", "MemAvailable: 16777216 kB")
    put(tmp_path, "proc/sys/kernel/osrelease", "6.14.0")
    for name, value in {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PEANO_INSTALL_DIR": str(tmp_path / "tools" / "peano"),
        "MLIR_AIE_INSTALL_DIR": str(tmp_path / "tools" / "mlir-aie"),
        "PYTHONPATH": str(tmp_path),
        "XILINX_XRT": str(tmp_path / "xrt"),
        "AERIE_NPU_LOCK": str(tmp_path / "npu.lock"),
    }.items():
        monkeypatch.setenv(name, value)
    return ExaminedMachine(root=tmp_path, cache_dir=tmp_path)


def examine(machine: ExaminedMachine) -> dict[str, CheckResult]:
    """All checks but two: this process's limit of locked memory is not the made-up machine's."""
    left_out = {"memlock", "virtual_npu"}
    kept = [check for check in CHECKS if check.name not in left_out]
    return run_checks(
        [replace(c, needs=tuple(n for n in c.needs if n not in left_out)) for c in kept], machine
    )


def loads(machine: ExaminedMachine, text: str) -> None:
    """Let the stand-in for pyxrt load this program, whatever ELF it is given: aircc's stand-in made none."""
    virtual_npu.build(text, machine.root / "prebuilt.so")


def test_every_layer_is_found_and_the_kernel_is_run(owners_machine: ExaminedMachine) -> None:
    loads(owners_machine, KERNEL.build(**CASE).text)
    results = examine(owners_machine)
    broken = {name: finding for name, finding in results.items() if finding.status is not CheckStatus.OK}
    assert set(broken) <= {"air_bindings", "disk", "stages"}  # there are no stand-ins for aie-opt
    assert "aiebu-asm" in (owners_machine.root / "tools" / "calls.jsonl").read_text()
    well = {**results, **dict.fromkeys(("memlock", "virtual_npu", "stages"), results["npu"])}
    assert [goal.first_blocker(well) for goal in GOALS] == [None, None, None, None]


def test_a_device_that_computes_something_else(owners_machine: ExaminedMachine) -> None:
    loads(owners_machine, KERNEL.build(**CASE).text.replace("arith.addf", "arith.subf"))
    finding = one_kernel.on_npu(owners_machine)
    assert finding.status is CheckStatus.FAILED
    assert re.fullmatch(r"it ran, and \d+ elements are wrong", finding.actual)


def test_a_device_that_is_lost(owners_machine: ExaminedMachine) -> None:
    loads(owners_machine, KERNEL.build(**CASE).text)
    with (owners_machine.root / "pyxrt.py").open("a") as source:
        source.write("sys.modules['pyxrt'].fail('start', sys.modules['pyxrt_stand_in'].LOST)\n")
    finding = one_kernel.on_npu(owners_machine)
    assert finding.status is CheckStatus.FAILED
    assert "failed on the NPU" in finding.actual


def test_a_compiled_program_that_cannot_be_loaded(owners_machine: ExaminedMachine) -> None:
    (owners_machine.root / "prebuilt.so").write_bytes(b"nothing")
    finding = one_kernel.on_npu(owners_machine)
    assert finding.status is CheckStatus.FAILED
    assert "could not load 'eltwise_add'" in finding.actual
