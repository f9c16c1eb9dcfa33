"""The doctor on the NPU compilers: there, missing, broken, talking nonsense, and known to be bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.board.doctor import compilers
from aerie.board.doctor.machine import CheckResult, CheckStatus
from aerie.runtime.npu import versions
from tests.board.made_up_machine import machine, put, tool

GOOD = "clang version 21.0.0 (https://github.com/Xilinx/llvm-aie f4a72c27aa)"
AIE = "  Registered Targets:\n    aie - Xilinx AI Engine"


def peano(root: Path, clang: str = GOOD, llc: str = AIE) -> Path:
    tool(root / "bin" / "clang++", f"echo '{clang}'")
    tool(root / "bin" / "llc", f"echo '{llc}'")
    return root


def look_at_peano(tmp_path: Path, root: Path, wheel: str = "") -> CheckResult:
    """Check a Peano in `root`, with a wheel of that version if the folder is the wheel's."""
    if wheel and root.name == "llvm-aie":
        (root.parent / f"llvm_aie-{wheel}.dist-info").mkdir()
    wheels = {"llvm-aie": wheel} if wheel else {}
    return compilers.peano(machine(tmp_path, {"Peano": root}, wheels))


def test_the_pinned_peano(tmp_path: Path) -> None:
    root = peano(tmp_path / "llvm-aie")
    finding = look_at_peano(tmp_path, root, versions.PEANO.version)
    assert finding == CheckResult(
        CheckStatus.OK, f"{root}: llvm-aie {versions.PEANO.version}", finding.required
    )


def test_the_pinned_peano_by_its_commit(tmp_path: Path) -> None:
    assert look_at_peano(tmp_path, peano(tmp_path / "install")).status is CheckStatus.OK


@pytest.mark.parametrize("bad", versions.PEANO_KNOWN_BAD, ids=lambda bad: bad.version)
def test_a_peano_known_to_be_bad(tmp_path: Path, bad: versions.BadRelease) -> None:
    finding = look_at_peano(tmp_path, peano(tmp_path / "llvm-aie", "clang version 22"), bad.version)
    assert finding.status is CheckStatus.FAILED
    assert bad.version in finding.actual
    assert bad.reason in finding.actual
    assert versions.PEANO.version in finding.fix


@pytest.mark.parametrize("bad", versions.PEANO_KNOWN_BAD, ids=lambda bad: bad.version)
def test_a_bad_peano_that_was_built_by_hand(tmp_path: Path, bad: versions.BadRelease) -> None:
    commit = bad.version.partition("+")[2]
    version_line = f"clang version 22.0.0 (https://github.com/Xilinx/llvm-aie {commit}00)"
    finding = look_at_peano(tmp_path, peano(tmp_path / "install", version_line))
    assert finding.status is CheckStatus.FAILED
    assert bad.reason in finding.actual


def test_another_peano(tmp_path: Path) -> None:
    finding = look_at_peano(tmp_path, peano(tmp_path / "llvm-aie"), "23.0.0.2027010101+abcdef12")
    assert finding.status is CheckStatus.WARNING
    assert "not the release upstream pins" in finding.actual


def test_the_wheel_version_is_not_that_of_another_peano(tmp_path: Path) -> None:
    root = peano(tmp_path / "install", "clang version 19.0.0")
    assert "19.0.0, not the release" in look_at_peano(tmp_path, root, versions.PEANO.version).actual


def test_a_clang_that_is_no_peano(tmp_path: Path) -> None:
    finding = look_at_peano(tmp_path, peano(tmp_path / "install", llc="    x86-64 - 64-bit X86"))
    assert finding.status is CheckStatus.FAILED
    assert "does not show the target AIE" in finding.actual


def test_a_peano_that_does_not_run(tmp_path: Path) -> None:
    root = peano(tmp_path / "install")
    tool(root / "bin" / "clang++", "echo 'libtinfo.so.5: no such file' >&2", "exit 127")
    finding = look_at_peano(tmp_path, root)
    assert finding.status is CheckStatus.FAILED
    assert "exit code 127; it printed: libtinfo.so.5: no such file" in finding.actual


def test_a_peano_is_found_although_its_variable_is_wrong(tmp_path: Path) -> None:
    root, environ = peano(tmp_path / "llvm-aie"), {"PEANO_INSTALL_DIR": "/no/peano"}
    message = "PEANO_INSTALL_DIR='/no/peano' holds no bin/clang++ and is passed over"
    (tmp_path / f"llvm_aie-{versions.PEANO.version}.dist-info").mkdir()
    wheels = {versions.PEANO.name: versions.PEANO.version}
    finding = compilers.peano(machine(tmp_path, {"Peano": root}, wheels, environ))
    assert finding.status is CheckStatus.WARNING
    assert finding.actual.endswith(message)
    assert finding.fix.startswith("unset PEANO_INSTALL_DIR")
    assert compilers.peano(machine(tmp_path, environ=environ)).actual == f"missing; {message}"


def test_headers_are_missing_where_the_variable_points(tmp_path: Path) -> None:
    finding = compilers.aie_api(machine(tmp_path, environ={"MLIR_AIE_INSTALL_DIR": "/no/aie"}))
    assert finding.actual == (
        "missing; MLIR_AIE_INSTALL_DIR='/no/aie' holds no include/aie_api/aie.hpp and is passed over"
    )


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("aircc", compilers.mlir_air),
        ("aiecc", compilers.mlir_aie),
        ("aie_api", compilers.aie_api),
        ("Peano", compilers.peano),
        ("aiebu-asm", compilers.aiebu_asm),
    ],
)
def test_missing(tmp_path: Path, name: str, look: compilers.FindTool) -> None:
    finding = look(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "missing" in finding.actual
    assert "is missing" not in finding.fix
    assert finding.fix


STAGE_TOOLS = ("air-opt", "aircc", "aie-opt", "aie-translate")


@pytest.mark.parametrize(
    ("there", "status", "found"),
    [
        (STAGE_TOOLS, CheckStatus.OK, "all 8 can run"),
        (
            STAGE_TOOLS[:1],
            CheckStatus.WARNING,
            "only 1, 2, 3, 4 of 8 can run, without aircc, aie-opt, aie-translate",
        ),
        (STAGE_TOOLS[3:], CheckStatus.FAILED, "none of 8 can run, without air-opt, aircc, aie-opt"),
        ((), CheckStatus.FAILED, "none of 8 can run, without air-opt, aircc, aie-opt, aie-translate"),
    ],
)
def test_the_stages_that_can_run(
    tmp_path: Path, there: tuple[str, ...], status: CheckStatus, found: str
) -> None:
    finding = compilers.stages(machine(tmp_path, {name: tool(tmp_path / name) for name in there}))
    assert (finding.status, finding.actual) == (status, found)
    assert finding.absent == (not there)
    assert (finding.fix == "") == (status is CheckStatus.OK)


@pytest.mark.parametrize(
    ("name", "wheel", "look"),
    [
        ("aircc", "mlir_air", compilers.mlir_air),
        ("aiecc", "mlir_aie", compilers.mlir_aie),
        ("aiebu-asm", "", compilers.aiebu_asm),
    ],
)
class TestDrivers:
    def test_there(self, tmp_path: Path, name: str, wheel: str, look: compilers.FindTool) -> None:
        tools = {name: tool(tmp_path / name, "echo USAGE: that tool")}
        finding = look(machine(tmp_path, tools, {wheel: "1.2.3"}))
        assert finding.status is CheckStatus.OK
        assert str(tmp_path / name) in finding.actual
        assert ("1.2.3" in finding.actual) == bool(wheel)

    def test_broken(self, tmp_path: Path, name: str, wheel: str, look: compilers.FindTool) -> None:
        tools = {name: tool(tmp_path / name, "echo 'error while loading shared libraries' >&2", "exit 127")}
        finding = look(machine(tmp_path, tools))
        assert finding.status is CheckStatus.FAILED
        assert "exit code 127; it printed: error while loading shared libraries" in finding.actual

    def test_not_a_program(self, tmp_path: Path, name: str, wheel: str, look: compilers.FindTool) -> None:
        nothing = tmp_path / name
        nothing.write_bytes(b"\x00\x01\x02")
        nothing.chmod(0o755)
        finding = look(machine(tmp_path, {name: nothing}))
        assert finding.status is CheckStatus.FAILED
        assert "it could not be started" in finding.actual


def test_mlir_aie_that_mlir_air_was_not_tested_with(tmp_path: Path) -> None:
    tools = {"aiecc": tool(tmp_path / "aiecc", "echo help")}
    air = f"0.0.1.2026082304+{versions.MLIR_AIR.version}"
    right = machine(tmp_path, tools, {"mlir_air": air, "mlir_aie": versions.MLIR_AIE.version})
    other = machine(tmp_path, tools, {"mlir_air": air, "mlir_aie": "1.5.0"})
    assert compilers.mlir_aie(right).status is CheckStatus.OK
    assert compilers.mlir_aie(other).status is CheckStatus.WARNING
    assert "was not tested with" in compilers.mlir_aie(other).actual


def test_headers(tmp_path: Path) -> None:
    finding = compilers.aie_api(machine(tmp_path, {"aie_api": tmp_path}))
    assert (finding.status, finding.actual) == (CheckStatus.OK, str(tmp_path))


@pytest.mark.parametrize(
    ("module", "status", "found"),
    [
        (None, CheckStatus.WARNING, "not installed; our own verifiers are used instead"),
        ("Context = Location = Module = None", CheckStatus.OK, "installed"),
        (
            "raise ImportError('libMLIR.so: no such file')",
            CheckStatus.FAILED,
            "installed, and not to be loaded",
        ),
        (
            "import os; os.abort()",
            CheckStatus.FAILED,
            "installed, and not to be loaded: it was ended by SIGABRT",
        ),
    ],
)
def test_air_bindings(tmp_path: Path, module: str | None, status: CheckStatus, found: str) -> None:
    if module is not None:
        put(tmp_path, "air/__init__.py")
        put(tmp_path, "air/ir.py", module)
    finding = compilers.air_bindings(machine(tmp_path, environ={"PYTHONPATH": str(tmp_path)}))
    assert finding.status is status
    assert finding.actual.startswith(found)
