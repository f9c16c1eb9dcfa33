"""Checks of the device as the kernel shows it (node, driver, firmware, which NPU it is), of locked memory,
and of XRT with its Python bindings, which run a compiled program.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from aerie.board.doctor.machine import CheckResult, CheckStatus, ExaminedMachine
from aerie.runtime.npu import device as npu_device
from aerie.runtime.npu import versions

MODULE = "/sys/module/amdxdna"
ACCEL = "/sys/class/accel"
XRT_SMI = "/opt/xilinx/xrt/bin/xrt-smi"
ROW = re.compile(r"^\W*\[[0-9a-f:.]+\][ |:]*([^|\n]+?)(?:  .*| *\|.*)?$", re.MULTILINE)
"""A device's bus address in brackets, and its name up to two blanks or a bar."""
UNLIMITED = "unlimited"

ENABLE = "enable the NPU (IPU) in the BIOS and install the driver (docs/how-to/install.md); then reboot"
PERMISSION = (
    "sudo usermod -aG render $USER, a udev rule for the node (docs/how-to/install.md), and a new login"
)


def nodes(machine: ExaminedMachine) -> list[Path]:
    """The device nodes /dev/accel/accel*, in order."""
    return sorted(machine.path("/dev/accel").glob("accel[0-9]*"))


def node(machine: ExaminedMachine, can_access: Callable[[Path, int], bool] = os.access) -> CheckResult:
    """The device node, and whether this user may open it."""
    required, device_nodes = "/dev/accel/accel*, readable and writable", nodes(machine)
    if not device_nodes:
        return CheckResult(
            CheckStatus.FAILED, "none", required, f"if this machine has an NPU: {ENABLE}", absent=True
        )
    closed = [path.name for path in device_nodes if not can_access(path, os.R_OK | os.W_OK)]
    names = ", ".join(f"/dev/accel/{path.name}" for path in device_nodes)
    if len(closed) == len(device_nodes):
        return CheckResult(CheckStatus.FAILED, f"{names}, not open to this user", required, PERMISSION)
    return CheckResult(CheckStatus.OK, names, required)


def driver(machine: ExaminedMachine) -> CheckResult:
    """The kernel module amdxdna, and whether it started a device."""
    release = machine.read("/proc/sys/kernel/osrelease") or "unknown"
    required = f"amdxdna; part of Linux {versions.KERNEL_WITH_DRIVER.version} and newer"
    if not machine.path(MODULE).is_dir():
        actual = f"amdxdna is not loaded (Linux {release})"
        fix = f"sudo modprobe amdxdna; if there is none, {ENABLE}"
        return CheckResult(CheckStatus.FAILED, actual, required, fix, absent=True)
    actual = f"amdxdna {machine.read(f'{MODULE}/version') or 'without a version'} (Linux {release})"
    if not list(machine.path(f"{MODULE}/drivers").glob("pci:*/*:*:*.*")) and not nodes(machine):
        fix = "see journalctl -k | grep amdxdna; after a wedged device only a power cycle helps"
        return CheckResult(
            CheckStatus.FAILED, f"{actual}, which found no device it could start", required, fix
        )
    return CheckResult(CheckStatus.OK, actual, required)


def firmware(machine: ExaminedMachine) -> CheckResult:
    """The firmware version of the device, from the driver's attribute fw_version."""
    required = f"{versions.FIRMWARE.version} or newer, as the driver's plugin brings it"
    contents = (machine.read(f"{ACCEL}/{path.name}/device/fw_version") for path in nodes(machine))
    version = next(filter(None, contents), "")
    if not versions.version_numbers(version):
        actual = "unknown: the driver does not report it"
        return CheckResult(
            CheckStatus.WARNING, actual, required, "xrt-smi examine shows it, where XRT is installed"
        )
    if versions.version_numbers(version) < versions.version_numbers(versions.FIRMWARE.version):
        fix = "if commands are aborted: the plugin package of amd/xdna-driver brings the firmware that fits"
        return CheckResult(CheckStatus.WARNING, version, required, fix)
    return CheckResult(CheckStatus.OK, version, required)


def npu(machine: ExaminedMachine) -> CheckResult:
    """The NPU generation, from the names of the driver and xrt-smi: only npu2 passes. It is never guessed."""
    required = f"{npu_device.REQUIRED_GENERATION} (Strix, Strix Halo, Krackan, Gorgon Point)"
    names = [*npu_device.driver_names(machine.path(ACCEL)), *xrt_smi_names(machine)]
    kinds = {npu_device.generation(name) for name in names}
    if not names:
        actual = "unknown: neither the driver nor xrt-smi names a device"
        return CheckResult(CheckStatus.UNKNOWN, actual, required, f"{ENABLE}; then xrt-smi examine names it")
    called = ", ".join(f"'{name}'" for name in dict.fromkeys(names))
    if len(kinds) > 1:
        actual = f"unknown: the names {called} are not of one kind"
        return CheckResult(CheckStatus.UNKNOWN, actual, required, "xrt-smi examine shows what there is")
    if reason := npu_device.unsupported_reason(names[0]):
        status = CheckStatus.UNKNOWN if None in kinds else CheckStatus.FAILED
        return CheckResult(
            status, reason, required, "the virtual NPU runs the same programs: BACKEND=virtual"
        )
    return CheckResult(CheckStatus.OK, f"{npu_device.REQUIRED_GENERATION}: {called}", required)


def xrt_smi_names(machine: ExaminedMachine) -> list[str]:
    """The names in xrt-smi's table of devices (XRT core/tools/common/reports/ReportHost.cpp)."""
    tool = shutil.which("xrt-smi", path=machine.environ.get("PATH", ""))
    answer = machine.run_tool([tool or str(machine.path(XRT_SMI)), "examine"])
    present = answer.text.partition("Present")[2]
    return [] if answer.problem else [name.strip() for name in ROW.findall(present)]


def memlock(_: ExaminedMachine, limits: Callable[[int], tuple[int, int]] = resource.getrlimit) -> CheckResult:
    """How much memory this process may lock. The driver locks what the device reads and writes."""
    soft, hard = limits(resource.RLIMIT_MEMLOCK)
    required = UNLIMITED
    fix = (
        "sudo prlimit -lunlimited --pid $$ for this shell; for good, /etc/security/limits.d/99-amdxdna.conf "
        "with '* soft memlock unlimited' and '* hard memlock unlimited', and a new login"
    )
    if soft == resource.RLIM_INFINITY:
        return CheckResult(CheckStatus.OK, UNLIMITED, required)
    actual = (
        f"{soft >> 20} MiB (at most {UNLIMITED if hard == resource.RLIM_INFINITY else f'{hard >> 20} MiB'})"
    )
    if soft <= versions.MEMLOCK_BYTES:
        return CheckResult(CheckStatus.FAILED, f"{actual}; the driver alone takes 64 MiB", required, fix)
    return CheckResult(CheckStatus.WARNING, f"{actual}; a model's buffers may not fit", required, fix)


INSTALLED = "/opt/xilinx/xrt"
SOURCE = f"source {INSTALLED}/setup.sh"
INSTALL = "install XRT and its amdxdna plugin (docs/how-to/install.md)"

IMPORT = "import pyxrt; print(pyxrt.__file__)"

BINDINGS = (
    "import json, pyxrt; from aerie.runtime.npu.device import missing_bindings; "
    "print(json.dumps(missing_bindings(pyxrt)))"
)
"""Both run in a child process: what pyxrt loads may crash."""


def xrt(machine: ExaminedMachine) -> CheckResult:
    """XRT's own files: their version, and whether its setup.sh was sourced."""
    required = f"XRT {versions.XRT.version} or newer"
    sourced = machine.environ.get("XILINX_XRT")
    folder = Path(sourced) if sourced else machine.path(INSTALLED)
    version = _version(folder)
    if version is None and not folder.is_dir():
        return CheckResult(CheckStatus.FAILED, f"no {folder}", required, INSTALL, absent=not sourced)
    if version is None:
        fix = "reinstall XRT, or set XILINX_XRT to its folder"
        return CheckResult(CheckStatus.UNKNOWN, f"{folder}, whose version.json cannot be read", required, fix)
    if versions.version_numbers(version) < versions.version_numbers(versions.XRT.version):
        return CheckResult(CheckStatus.WARNING, f"{version} in {folder}", required, INSTALL)
    if not sourced:
        return CheckResult(
            CheckStatus.WARNING, f"{version} in {folder}, not set up in this shell", required, SOURCE
        )
    return CheckResult(CheckStatus.OK, f"{version} in {folder}", required)


def _version(folder: Path) -> str | None:
    """XRT's BUILD_VERSION (XRT src/CMake/config/version.json.in)."""
    try:
        version = json.loads((folder / "version.json").read_text())["BUILD_VERSION"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and versions.version_numbers(version) else None


def pyxrt(machine: ExaminedMachine) -> CheckResult:
    """Whether this Python can import pyxrt, which is built for one version of CPython."""
    answer = machine.run_python("import sys; print('%d.%d' % sys.version_info[:2])")
    required = f"pyxrt for Python {answer.first_line if not answer.problem else 'in use'}"
    answer = machine.run_python(IMPORT)
    if not answer.problem:
        return CheckResult(CheckStatus.OK, answer.first_line, required)
    built = _built_for(machine)
    if built:
        actual = f"built as {', '.join(built)}, which this Python cannot import ({answer.last_line})"
        fix = f"{SOURCE}; if that does not help, make distclean setup PYTHON=<the Python it is built for>"
        return CheckResult(CheckStatus.FAILED, actual, required, fix)
    if "No module named 'pyxrt'" in answer.text:
        return CheckResult(CheckStatus.FAILED, "missing", required, f"{SOURCE}, or {INSTALL}", absent=True)
    return CheckResult(
        CheckStatus.FAILED, f"{answer.problem}; {answer.last_line}", required, f"{SOURCE}, or {INSTALL}"
    )


def _built_for(machine: ExaminedMachine) -> list[str]:
    """The files of pyxrt in XRT's folder, such as pyxrt.cpython-312-x86_64-linux-gnu.so."""
    folder = Path(machine.environ.get("XILINX_XRT") or machine.path(INSTALLED))
    return sorted(path.name for path in folder.glob("python/pyxrt*.so"))


def bindings(machine: ExaminedMachine) -> CheckResult:
    """Whether pyxrt has all calls that running an ELF needs; older releases lack some."""
    required = ", ".join(binding.attribute for binding in versions.BINDINGS)
    answer = machine.run_python(BINDINGS)
    try:
        missing = json.loads(answer.first_line)
    except ValueError:
        missing = None
    if answer.problem or not isinstance(missing, list):
        actual = answer.problem or "its output is not a list"
        return CheckResult(
            CheckStatus.UNKNOWN, f"{actual}; its last line: {answer.last_line}", required, INSTALL
        )
    if missing:
        fix = f"install XRT {versions.XRT.version} or newer with its pyxrt (docs/how-to/install.md)"
        return CheckResult(CheckStatus.FAILED, "; ".join(map(str, missing)), required, fix)
    return CheckResult(CheckStatus.OK, "all there", required)
