"""Checks of the tools that compile programs for the NPU. A machine without an NPU may have them too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine
from aerie.runtime.npu import tools, versions
from aerie.runtime.npu.stages import STAGES, StageTools

NOT_INSTALLED = re.compile(r"No module named 'air(\.ir)?'")

FindTool = Callable[[ExaminedMachine], CheckResult]

SETUP = "make setup-npu installs upstream's wheels"


def _advice(part: str) -> str:
    """What to do if a part is missing, without repeating that it is missing."""
    return tools.FINDERS[part][1].partition(": ")[2]


def mlir_air(machine: ExaminedMachine) -> CheckResult:
    """mlir-air's compiler driver: it must exist and start."""
    return _driver(machine, "aircc", versions.MLIR_AIR.name, f"mlir-air, read at {versions.MLIR_AIR.version}")


def mlir_aie(machine: ExaminedMachine) -> CheckResult:
    """mlir-aie's compiler driver, which aircc starts."""
    finding = _driver(
        machine, "aiecc", versions.MLIR_AIE.name, f"mlir-aie, such as {versions.MLIR_AIE.version}"
    )
    air, aie = machine.version(versions.MLIR_AIR.name), machine.version(versions.MLIR_AIE.name)
    is_tested = air is not None and air.endswith(versions.MLIR_AIR.version)
    if finding.status is not CheckStatus.OK or not is_tested or aie in (None, versions.MLIR_AIE.version):
        return finding
    actual = f"{finding.actual}, which mlir-air {air} was not tested with"
    return CheckResult(CheckStatus.WARNING, actual, finding.required, SETUP)


def _driver(machine: ExaminedMachine, tool: str, wheel: str, required: str) -> CheckResult:
    path = machine.find(tool)
    if path is None:
        return CheckResult(
            CheckStatus.FAILED, f"{tool} is missing", required, f"{_advice(tool)}; {SETUP}", absent=True
        )
    answer = machine.run_tool([str(path), "--help"])
    if answer.problem:
        actual = f"{path}, but {answer.problem}; it printed: {answer.last_line}"
        return CheckResult(CheckStatus.FAILED, actual, required, f"reinstall it; {SETUP}")
    version = machine.version(wheel)
    return CheckResult(CheckStatus.OK, f"{path} ({f'wheel {version}' if version else 'no wheel'})", required)


def aie_api(machine: ExaminedMachine) -> CheckResult:
    """The headers that our C++ kernels include."""
    folder, required = machine.find("aie_api"), "aie_api/aie.hpp, which comes with mlir-aie"
    if folder is None:
        elsewhere = tools.ignored_variable_note("MLIR_AIE_INSTALL_DIR", machine.environ)
        actual = "; ".join(filter(None, ("missing", elsewhere)))
        return CheckResult(
            CheckStatus.FAILED, actual, required, f"{_advice('aie_api')}; {SETUP}", absent=not elsewhere
        )
    return CheckResult(CheckStatus.OK, str(folder), required)


def peano(machine: ExaminedMachine) -> CheckResult:
    """Peano, the C++ compiler for the cores: it must exist, start, support AIE, and not be a known bad
    release.
    """
    required, root = f"llvm-aie {versions.PEANO.version}", machine.find("Peano")
    elsewhere = tools.ignored_variable_note("PEANO_INSTALL_DIR", machine.environ)
    if root is None:
        actual = "; ".join(filter(None, ("missing", elsewhere)))
        return CheckResult(
            CheckStatus.FAILED, actual, required, f"{_advice('Peano')}; {SETUP}", absent=not elsewhere
        )
    finding = _peano_at(machine, root, required)
    if elsewhere and finding.status is CheckStatus.OK:
        fix = "unset PEANO_INSTALL_DIR, or let it name a folder with bin/clang++"
        return CheckResult(CheckStatus.WARNING, f"{finding.actual}; {elsewhere}", required, fix)
    return finding


def _peano_at(machine: ExaminedMachine, root: Path, required: str) -> CheckResult:
    answer = machine.run_tool([str(root / "bin" / "clang++"), "--version"])
    if answer.problem:
        actual = f"{root}, but clang++ does not run: {answer.problem}; it printed: {answer.last_line}"
        return CheckResult(CheckStatus.FAILED, actual, required, f"reinstall it; {SETUP}")
    version = _peano_version(machine, root) or answer.first_line
    return _known_bad(root, version, answer.text, required) or _peano_target(machine, root, version, required)


def _peano_version(machine: ExaminedMachine, root: Path) -> str | None:
    """The wheel's version, if `root` is the folder that the wheel installed."""
    wheel = machine.version(versions.PEANO.name)
    installed = (root.parent / f"llvm_aie-{wheel}.dist-info").is_dir()
    return f"llvm-aie {wheel}" if wheel and installed else None


def _known_bad(root: Path, version: str, version_text: str, required: str) -> CheckResult | None:
    """The result for a known bad release, found by its wheel's version or the commit that clang++ prints."""
    for bad in versions.PEANO_KNOWN_BAD:
        if bad.version in version or bad.version.partition("+")[2] in version_text:
            actual = f"{root}: {version}, which is known to be bad: {bad.reason}"
            return CheckResult(CheckStatus.FAILED, actual, required, f"install {required}; {SETUP}")
    return None


def _peano_target(machine: ExaminedMachine, root: Path, version: str, required: str) -> CheckResult:
    """Whether its llc supports the AI Engine, tested as mlir-air's programming_examples/lit.cfg.py does."""
    answer = machine.run_tool([str(root / "bin" / "llc"), "-mtriple=aie", "--version"])
    if answer.problem or "Xilinx AI Engine" not in answer.text:
        detail = answer.problem or f"llc says: {answer.first_line}"
        actual = f"{root}: {version}, which does not show the target AIE ({detail})"
        return CheckResult(
            CheckStatus.FAILED, actual, required, f"PEANO_INSTALL_DIR must name a Peano; {SETUP}"
        )
    if versions.PEANO.version in version or versions.PEANO.version.partition("+")[2] in version:
        return CheckResult(CheckStatus.OK, f"{root}: {version}", required)
    return CheckResult(
        CheckStatus.WARNING, f"{root}: {version}, not the release upstream pins", required, SETUP
    )


def aiebu_asm(machine: ExaminedMachine) -> CheckResult:
    """XRT's assembler, which aiecc starts to write the ELF."""
    path, required = machine.find("aiebu-asm"), "aiebu-asm, which comes with XRT"
    if path is None:
        return CheckResult(CheckStatus.FAILED, "missing", required, _advice("aiebu-asm"), absent=True)
    answer = machine.run_tool([str(path), "--help"])
    if answer.problem and not re.search("usage|target", answer.text, re.IGNORECASE):
        actual = f"{path}, but {answer.problem}; it printed: {answer.last_line}"
        return CheckResult(
            CheckStatus.FAILED, actual, required, "source /opt/xilinx/xrt/setup.sh, or reinstall XRT"
        )
    return CheckResult(CheckStatus.OK, str(path), required)


def stages(machine: ExaminedMachine) -> CheckResult:
    """The stages of the compilers that can run without Peano and without an NPU."""
    required = f"{', '.join(tools.STAGE_FINDERS)}: all {len(STAGES)} stages of make test-toolchain"
    paths = {name: path for name in tools.STAGE_FINDERS if (path := machine.find(name)) is not None}
    there = StageTools(paths)
    if not there.missing:
        return CheckResult(CheckStatus.OK, f"all {len(STAGES)} can run", required)
    lacking = ", ".join(name for name in tools.STAGE_FINDERS if name not in paths)
    numbers = ", ".join(str(stage.number) for stage in there.runnable)
    actual = f"{f'only {numbers}' if numbers else 'none'} of {len(STAGES)} can run, without {lacking}"
    status = CheckStatus.WARNING if numbers else CheckStatus.FAILED
    return CheckResult(status, actual, required, SETUP, absent=not paths)


def air_bindings(machine: ExaminedMachine) -> CheckResult:
    """mlir-air's Python bindings, which verify every module before aircc sees it.

    If they are installed they are tried, and must work; without them our own verifiers are used.
    """
    required = "air.ir, mlir-air's own verifier of what we print"
    answer = machine.run_python("from air.ir import Context, Location, Module")
    if not answer.problem:
        return CheckResult(CheckStatus.OK, "installed", required)
    if NOT_INSTALLED.search(answer.text):
        return CheckResult(
            CheckStatus.WARNING,
            "not installed; our own verifiers are used instead",
            required,
            SETUP,
            absent=True,
        )
    actual = f"installed, and not to be loaded: {answer.problem}; it printed: {answer.last_line}"
    return CheckResult(CheckStatus.FAILED, actual, required, f"reinstall mlir-air's wheel; {SETUP}")
