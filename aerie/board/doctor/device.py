"""The device as the kernel shows it (node, driver, firmware, which NPU it is), what a process may lock, and
XRT with its Python bindings, which run a compiled program."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from aerie.board.doctor.machine import Finding, Machine, Status
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


def nodes(machine: Machine) -> list[Path]:
    """The device nodes /dev/accel/accel*, in order."""
    return sorted(machine.path("/dev/accel").glob("accel[0-9]*"))


def node(machine: Machine, may: Callable[[Path, int], bool] = os.access) -> Finding:
    """The device node, and whether this user may open it."""
    wanted, found = "/dev/accel/accel*, readable and writable", nodes(machine)
    if not found:
        return Finding(Status.FAILED, "none", wanted, f"if this machine has an NPU: {ENABLE}", absent=True)
    closed = [path.name for path in found if not may(path, os.R_OK | os.W_OK)]
    names = ", ".join(f"/dev/accel/{path.name}" for path in found)
    if len(closed) == len(found):
        return Finding(Status.FAILED, f"{names}, not open to this user", wanted, PERMISSION)
    return Finding(Status.OK, names, wanted)


def driver(machine: Machine) -> Finding:
    """The kernel module amdxdna, and whether it brought a device up."""
    release = machine.read("/proc/sys/kernel/osrelease") or "unknown"
    wanted = f"amdxdna; part of Linux {versions.KERNEL_WITH_DRIVER.version} and newer"
    if not machine.path(MODULE).is_dir():
        found = f"amdxdna is not loaded (Linux {release})"
        fix = f"sudo modprobe amdxdna; if there is none, {ENABLE}"
        return Finding(Status.FAILED, found, wanted, fix, absent=True)
    found = f"amdxdna {machine.read(f'{MODULE}/version') or 'without a version'} (Linux {release})"
    if not list(machine.path(f"{MODULE}/drivers").glob("pci:*/*:*:*.*")) and not nodes(machine):
        fix = "see journalctl -k | grep amdxdna; after a wedged device only a power cycle helps"
        return Finding(Status.FAILED, f"{found}, which found no device it could start", wanted, fix)
    return Finding(Status.OK, found, wanted)


def firmware(machine: Machine) -> Finding:
    """The firmware that the device runs, as the driver's attribute fw_version tells."""
    wanted = f"{versions.FIRMWARE.version} or newer, as the driver's plugin brings it"
    asked = (machine.read(f"{ACCEL}/{path.name}/device/fw_version") for path in nodes(machine))
    told = next(filter(None, asked), "")
    if not versions.numbers(told):
        found = "the driver does not say"
        return Finding(Status.WARNING, found, wanted, "xrt-smi examine shows it, where XRT is installed")
    if versions.numbers(told) < versions.numbers(versions.FIRMWARE.version):
        fix = "if commands are aborted: the plugin package of amd/xdna-driver brings the firmware that fits"
        return Finding(Status.WARNING, told, wanted, fix)
    return Finding(Status.OK, told, wanted)


def npu(machine: Machine) -> Finding:
    """Which NPU this is, by what the driver and xrt-smi call it: npu2 and no other, and never a guess."""
    wanted = f"{npu_device.WANTED} (Strix, Strix Halo, Krackan, Gorgon Point)"
    names = [*npu_device.driver_names(machine.path(ACCEL)), *xrt_smi_names(machine)]
    kinds = {npu_device.generation(name) for name in names}
    if not names:
        found = "unknown: neither the driver nor xrt-smi names a device"
        return Finding(Status.UNKNOWN, found, wanted, f"{ENABLE}; then xrt-smi examine names it")
    called = ", ".join(f"'{name}'" for name in dict.fromkeys(names))
    if len(kinds) > 1:
        found = f"unknown: the names {called} are not of one kind"
        return Finding(Status.UNKNOWN, found, wanted, "xrt-smi examine shows what there is")
    if reason := npu_device.unfit(names[0]):
        status = Status.UNKNOWN if None in kinds else Status.FAILED
        return Finding(status, reason, wanted, "the virtual NPU runs the same programs: BACKEND=virtual")
    return Finding(Status.OK, f"{npu_device.WANTED}: {called}", wanted)


def xrt_smi_names(machine: Machine) -> list[str]:
    """The names in xrt-smi's table of devices (XRT core/tools/common/reports/ReportHost.cpp)."""
    tool = shutil.which("xrt-smi", path=machine.environ.get("PATH", ""))
    answer = machine.ask([tool or str(machine.path(XRT_SMI)), "examine"])
    present = answer.text.partition("Present")[2]
    return [] if answer.trouble else [name.strip() for name in ROW.findall(present)]


def memlock(_: Machine, limits: Callable[[int], tuple[int, int]] = resource.getrlimit) -> Finding:
    """How much memory this process may lock; the driver locks what the device reads and writes."""
    soft, hard = limits(resource.RLIMIT_MEMLOCK)
    wanted = UNLIMITED
    fix = (
        "sudo prlimit -lunlimited --pid $$ for this shell; for good, /etc/security/limits.d/99-amdxdna.conf "
        "with '* soft memlock unlimited' and '* hard memlock unlimited', and a new login"
    )
    if soft == resource.RLIM_INFINITY:
        return Finding(Status.OK, UNLIMITED, wanted)
    found = (
        f"{soft >> 20} MiB (at most {UNLIMITED if hard == resource.RLIM_INFINITY else f'{hard >> 20} MiB'})"
    )
    if soft <= versions.MEMLOCK_BYTES:
        return Finding(Status.FAILED, f"{found}; the driver alone takes 64 MiB", wanted, fix)
    return Finding(Status.WARNING, f"{found}; a model's buffers may not fit", wanted, fix)


INSTALLED = "/opt/xilinx/xrt"
SOURCE = f"source {INSTALLED}/setup.sh"
INSTALL = "install XRT and its amdxdna plugin (docs/how-to/install.md)"

IMPORT = "import pyxrt; print(pyxrt.__file__)"

BINDINGS = (
    "import json, pyxrt; from aerie.runtime.npu.device import missing_bindings; "
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
        return Finding(Status.FAILED, f"no {folder}", wanted, INSTALL, absent=not sourced)
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
        return Finding(Status.FAILED, "missing", wanted, f"{SOURCE}, or {INSTALL}", absent=True)
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
        fix = f"install XRT {versions.XRT.version} or newer with its pyxrt (docs/how-to/install.md)"
        return Finding(Status.FAILED, "; ".join(map(str, missing)), wanted, fix)
    return Finding(Status.OK, "all there", wanted)
