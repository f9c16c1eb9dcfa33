"""The device as the kernel shows it: node, driver, firmware, which NPU it is; and what a process may lock."""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from board.doctor.findings import Finding, Status
from board.doctor.machine import Machine
from runtime.npu import device as npu_device
from runtime.npu import versions

MODULE = "/sys/module/amdxdna"
ACCEL = "/sys/class/accel"
XRT_SMI = "/opt/xilinx/xrt/bin/xrt-smi"
ROW = re.compile(r"^\W*\[[0-9a-f:.]+\][ |:]*([^|\n]+?)(?:  .*| *\|.*)?$", re.MULTILINE)
"""A device's bus address in brackets, and its name up to two blanks or a bar."""
UNLIMITED = "unlimited"

ENABLE = "enable the NPU (IPU) in the BIOS and install the driver (docs/install.md); then reboot"
PERMISSION = "sudo usermod -aG render $USER, a udev rule for the node (docs/install.md), and a new login"


def nodes(machine: Machine) -> list[Path]:
    """The device nodes /dev/accel/accel*, in order."""
    return sorted(machine.path("/dev/accel").glob("accel[0-9]*"))


def node(machine: Machine, may: Callable[[Path, int], bool] = os.access) -> Finding:
    """The device node, and whether this user may open it."""
    wanted, found = "/dev/accel/accel*, readable and writable", nodes(machine)
    if not found:
        return Finding(Status.FAILED, "none", wanted, f"if this machine has an NPU: {ENABLE}")
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
        return Finding(Status.FAILED, found, wanted, f"sudo modprobe amdxdna; if there is none, {ENABLE}")
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
