"""XRT and its Python bindings: what runs a compiled program."""

from __future__ import annotations

import json
from pathlib import Path

from board.doctor.findings import Finding, Status
from board.doctor.machine import Machine
from runtime.npu import versions

INSTALLED = "/opt/xilinx/xrt"
SOURCE = f"source {INSTALLED}/setup.sh"
INSTALL = "install XRT and its amdxdna plugin (docs/install.md)"

IMPORT = "import pyxrt; print(pyxrt.__file__)"

BINDINGS = (
    "import json, pyxrt; from runtime.npu.device import missing_bindings; "
    "print(json.dumps(missing_bindings(pyxrt)))"
)
"""Both run in a process of their own: what pyxrt loads may crash."""


def xrt(machine: Machine) -> Finding:
    """XRT's own files: their version, and whether its setup.sh was sourced."""
    wanted = f"XRT {versions.XRT.version} or newer"
    sourced = machine.environ.get("XILINX_XRT")
    folder = Path(sourced) if sourced else machine.path(INSTALLED)
    version = _version(folder)
    if version is None and not folder.is_dir():
        return Finding(Status.FAILED, f"no {folder}", wanted, INSTALL)
    if version is None:
        fix = "reinstall XRT, or set XILINX_XRT to its folder"
        return Finding(Status.UNKNOWN, f"{folder}, whose version.json cannot be read", wanted, fix)
    if versions.numbers(version) < versions.numbers(versions.XRT.version):
        return Finding(Status.WARNING, f"{version} in {folder}", wanted, INSTALL)
    if not sourced:
        return Finding(Status.WARNING, f"{version} in {folder}, not set up in this shell", wanted, SOURCE)
    return Finding(Status.OK, f"{version} in {folder}", wanted)


def _version(folder: Path) -> str | None:
    """XRT's BUILD_VERSION (XRT src/CMake/config/version.json.in)."""
    try:
        told = json.loads((folder / "version.json").read_text())["BUILD_VERSION"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return told if isinstance(told, str) and versions.numbers(told) else None


def pyxrt(machine: Machine) -> Finding:
    """Whether this very Python can import pyxrt: it is built for one version of CPython."""
    answer = machine.ask_python("import sys; print('%d.%d' % sys.version_info[:2])")
    wanted = f"pyxrt for Python {answer.first_line if not answer.trouble else 'in use'}"
    answer = machine.ask_python(IMPORT)
    if not answer.trouble:
        return Finding(Status.OK, answer.first_line, wanted)
    built = _built_for(machine)
    if built:
        found = f"built as {', '.join(built)}, which this Python cannot import ({answer.last_line})"
        fix = f"{SOURCE}; if that does not help, make distclean setup PYTHON=<the Python it is built for>"
        return Finding(Status.FAILED, found, wanted, fix)
    if "No module named 'pyxrt'" in answer.text:
        return Finding(Status.FAILED, "missing", wanted, f"{SOURCE}, or {INSTALL}")
    return Finding(Status.FAILED, f"{answer.trouble}; {answer.last_line}", wanted, f"{SOURCE}, or {INSTALL}")


def _built_for(machine: Machine) -> list[str]:
    """The files of pyxrt in XRT's folder, such as pyxrt.cpython-312-x86_64-linux-gnu.so."""
    folder = Path(machine.environ.get("XILINX_XRT") or machine.path(INSTALLED))
    return sorted(path.name for path in folder.glob("python/pyxrt*.so"))


def bindings(machine: Machine) -> Finding:
    """Whether pyxrt has all that running an ELF calls; older releases lack some."""
    wanted = ", ".join(binding.attribute for binding in versions.BINDINGS)
    answer = machine.ask_python(BINDINGS)
    try:
        missing = json.loads(answer.first_line)
    except ValueError:
        missing = None
    if answer.trouble or not isinstance(missing, list):
        said = answer.trouble or "the answer makes no sense"
        return Finding(Status.UNKNOWN, f"{said}; its last line: {answer.last_line}", wanted, INSTALL)
    if missing:
        fix = f"install XRT {versions.XRT.version} or newer with its pyxrt (docs/install.md)"
        return Finding(Status.FAILED, "; ".join(map(str, missing)), wanted, fix)
    return Finding(Status.OK, "all there", wanted)
