"""The tools that compile programs for the NPU. A machine without an NPU may have them too."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from aerie.board.doctor.machine import Finding, Machine, Status
from aerie.runtime.npu import tools, versions
from aerie.runtime.npu.stages import STAGES, StageTools

NOT_INSTALLED = re.compile(r"No module named 'air(\.ir)?'")

Look = Callable[[Machine], Finding]

SETUP = "make setup-npu installs upstream's wheels"


def _advice(part: str) -> str:
    """What helps where a part is missing, without saying once more that it is."""
    return tools.FINDERS[part][1].partition(": ")[2]


def mlir_air(machine: Machine) -> Finding:
    """mlir-air's compiler driver: it must be there and start."""
    return _driver(machine, "aircc", versions.MLIR_AIR.name, f"mlir-air, read at {versions.MLIR_AIR.version}")


def mlir_aie(machine: Machine) -> Finding:
    """mlir-aie's compiler driver, which aircc starts."""
    finding = _driver(
        machine, "aiecc", versions.MLIR_AIE.name, f"mlir-aie, such as {versions.MLIR_AIE.version}"
    )
    air, aie = machine.version(versions.MLIR_AIR.name), machine.version(versions.MLIR_AIE.name)
    known = air is not None and air.endswith(versions.MLIR_AIR.version)
    if finding.status is not Status.OK or not known or aie in (None, versions.MLIR_AIE.version):
        return finding
    found = f"{finding.found}, which mlir-air {air} was not tested with"
    return Finding(Status.WARNING, found, finding.wanted, SETUP)


def _driver(machine: Machine, tool: str, wheel: str, wanted: str) -> Finding:
    path = machine.find(tool)
    if path is None:
        return Finding(Status.FAILED, f"{tool} is missing", wanted, f"{_advice(tool)}; {SETUP}", absent=True)
    answer = machine.ask([str(path), "--help"])
    if answer.trouble:
        found = f"{path}, but {answer.trouble}; it says: {answer.last_line}"
        return Finding(Status.FAILED, found, wanted, f"reinstall it; {SETUP}")
    version = machine.version(wheel)
    return Finding(Status.OK, f"{path} ({f'wheel {version}' if version else 'no wheel'})", wanted)


def aie_api(machine: Machine) -> Finding:
    """The headers that our C++ kernels include."""
    folder, wanted = machine.find("aie_api"), "aie_api/aie.hpp, which comes with mlir-aie"
    if folder is None:
        elsewhere = tools.passed_over("MLIR_AIE_INSTALL_DIR", machine.environ)
        found = "; ".join(filter(None, ("missing", elsewhere)))
        return Finding(Status.FAILED, found, wanted, f"{_advice('aie_api')}; {SETUP}", absent=not elsewhere)
    return Finding(Status.OK, str(folder), wanted)


def peano(machine: Machine) -> Finding:
    """Peano, the C++ compiler for the cores: found, running, for AIE, and not a release known to be bad."""
    wanted, root = f"llvm-aie {versions.PEANO.version}", machine.find("Peano")
    elsewhere = tools.passed_over("PEANO_INSTALL_DIR", machine.environ)
    if root is None:
        found = "; ".join(filter(None, ("missing", elsewhere)))
        return Finding(Status.FAILED, found, wanted, f"{_advice('Peano')}; {SETUP}", absent=not elsewhere)
    finding = _peano_at(machine, root, wanted)
    if elsewhere and finding.status is Status.OK:
        fix = "unset PEANO_INSTALL_DIR, or let it name a folder with bin/clang++"
        return Finding(Status.WARNING, f"{finding.found}; {elsewhere}", wanted, fix)
    return finding


def _peano_at(machine: Machine, root: Path, wanted: str) -> Finding:
    answer = machine.ask([str(root / "bin" / "clang++"), "--version"])
    if answer.trouble:
        found = f"{root}, but clang++ does not run: {answer.trouble}; it says: {answer.last_line}"
        return Finding(Status.FAILED, found, wanted, f"reinstall it; {SETUP}")
    version = _peano_version(machine, root) or answer.first_line
    return _known_bad(root, version, answer.text, wanted) or _peano_target(machine, root, version, wanted)


def _peano_version(machine: Machine, root: Path) -> str | None:
    """The wheel's version, if `root` is the folder that the wheel installed."""
    wheel = machine.version(versions.PEANO.name)
    installed = (root.parent / f"llvm_aie-{wheel}.dist-info").is_dir()
    return f"llvm-aie {wheel}" if wheel and installed else None


def _known_bad(root: Path, version: str, said: str, wanted: str) -> Finding | None:
    """A release that must not be used, by its wheel's version or by the commit that clang++ tells."""
    for bad in versions.PEANO_KNOWN_BAD:
        if bad.version in version or bad.version.partition("+")[2] in said:
            found = f"{root}: {version}, which is known to be bad: {bad.reason}"
            return Finding(Status.FAILED, found, wanted, f"install {wanted}; {SETUP}")
    return None


def _peano_target(machine: Machine, root: Path, version: str, wanted: str) -> Finding:
    """Whether its llc knows the AI Engine, as mlir-air's programming_examples/lit.cfg.py asks it."""
    answer = machine.ask([str(root / "bin" / "llc"), "-mtriple=aie", "--version"])
    if answer.trouble or "Xilinx AI Engine" not in answer.text:
        said = answer.trouble or f"llc says: {answer.first_line}"
        found = f"{root}: {version}, which does not show the target AIE ({said})"
        return Finding(Status.FAILED, found, wanted, f"PEANO_INSTALL_DIR must name a Peano; {SETUP}")
    if versions.PEANO.version in version or versions.PEANO.version.partition("+")[2] in version:
        return Finding(Status.OK, f"{root}: {version}", wanted)
    return Finding(Status.WARNING, f"{root}: {version}, not the release upstream pins", wanted, SETUP)


def aiebu_asm(machine: Machine) -> Finding:
    """XRT's assembler, which aiecc starts to write the ELF."""
    path, wanted = machine.find("aiebu-asm"), "aiebu-asm, which comes with XRT"
    if path is None:
        return Finding(Status.FAILED, "missing", wanted, _advice("aiebu-asm"), absent=True)
    answer = machine.ask([str(path), "--help"])
    if answer.trouble and not re.search("usage|target", answer.text, re.IGNORECASE):
        found = f"{path}, but {answer.trouble}; it says: {answer.last_line}"
        return Finding(Status.FAILED, found, wanted, "source /opt/xilinx/xrt/setup.sh, or reinstall XRT")
    return Finding(Status.OK, str(path), wanted)


def stages(machine: Machine) -> Finding:
    """The stages of the compilers that can run without Peano and without an NPU."""
    wanted = f"{', '.join(tools.STAGE_FINDERS)}: all {len(STAGES)} stages of make test-toolchain"
    found = {name: path for name in tools.STAGE_FINDERS if (path := machine.find(name)) is not None}
    there = StageTools(found)
    if not there.missing:
        return Finding(Status.OK, f"all {len(STAGES)} can run", wanted)
    lacking = ", ".join(name for name in tools.STAGE_FINDERS if name not in found)
    numbers = ", ".join(str(stage.number) for stage in there.runnable)
    said = f"{f'only {numbers}' if numbers else 'none'} of {len(STAGES)} can run, without {lacking}"
    status = Status.WARNING if numbers else Status.FAILED
    return Finding(status, said, wanted, SETUP, absent=not found)


def air_bindings(machine: Machine) -> Finding:
    """mlir-air's Python bindings, which verify every module before aircc sees it.

    Where they are installed they are asked, so that they must work; without them our own verifiers stand in.
    """
    wanted = "air.ir, mlir-air's own verifier of what we print"
    answer = machine.ask_python("from air.ir import Context, Location, Module")
    if not answer.trouble:
        return Finding(Status.OK, "installed", wanted)
    if NOT_INSTALLED.search(answer.text):
        return Finding(
            Status.WARNING, "not installed; our own verifiers stand in", wanted, SETUP, absent=True
        )
    found = f"installed, and not to be loaded: {answer.trouble}; it says: {answer.last_line}"
    return Finding(Status.FAILED, found, wanted, f"reinstall mlir-air's wheel; {SETUP}")
