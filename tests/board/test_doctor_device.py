"""The doctor on the device, XRT and pyxrt. The modules named pyxrt here are stand-ins of a few lines."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from aerie.board.doctor import device
from aerie.board.doctor.machine import CheckStatus
from aerie.runtime.npu import versions
from tests.board.made_up_machine import machine, put, tool, with_pyxrt

TABLE = """System Configuration
  OS Name              : Linux
XRT
  Version              : 2.23.0
  amdxdna Version      : 2.23.0, 1234
  NPU Firmware Version : 1.5.5.391

Device(s) Present
|BDF             |Name          |Architecture  |Topology  |
|----------------|--------------|--------------|----------|
|[0000:c5:00.1]  |NAME  |aie2p         |6x8       |
"""
PLAIN = """Device(s) Present
  BDF             :  Name
 ------------------------------------
  [0000:66:00.1]  :  NAME
"""


def owner(root: Path, name: str | None = "RyzenAI-npu4", firmware: str | None = "255.0.11.71") -> None:
    """A machine whose driver has brought up one device."""
    put(root, "/dev/accel/accel0")
    put(root, "/sys/module/amdxdna/version", "0.1\n")
    put(root, "/proc/sys/kernel/osrelease", "6.14.0-27-generic\n")
    for attribute, text in {"vbnv": name, "fw_version": firmware}.items():
        if text is not None:
            put(root, f"/sys/class/accel/accel0/device/{attribute}", f"{text}\n")


def with_xrt_smi(folder: Path, output: str) -> Mapping[str, str]:
    put(folder, "examined.txt", output)
    tool(folder / "bin" / "xrt-smi", f"cat '{folder}/examined.txt'")
    return {"PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}


def test_node(tmp_path: Path) -> None:
    owner(tmp_path)
    finding = device.node(machine(tmp_path))
    assert (finding.status, finding.actual) == (CheckStatus.OK, "/dev/accel/accel0")


def test_no_node(tmp_path: Path) -> None:
    assert device.node(machine(tmp_path)).status is CheckStatus.FAILED


def test_node_of_others(tmp_path: Path) -> None:
    owner(tmp_path)
    finding = device.node(machine(tmp_path), can_access=lambda path, mode: False)
    assert finding.status is CheckStatus.FAILED
    assert "not open to this user" in finding.actual
    assert "usermod -aG render" in finding.fix


def test_driver(tmp_path: Path) -> None:
    owner(tmp_path)
    finding = device.driver(machine(tmp_path))
    assert (finding.status, finding.actual) == (CheckStatus.OK, "amdxdna 0.1 (Linux 6.14.0-27-generic)")


def test_no_driver(tmp_path: Path) -> None:
    finding = device.driver(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "modprobe amdxdna" in finding.fix


def test_driver_of_a_device_without_a_node(tmp_path: Path) -> None:
    put(tmp_path, "/sys/module/amdxdna/drivers/pci:amdxdna/0000:c5:00.1/uevent")
    assert device.driver(machine(tmp_path)).status is CheckStatus.OK
    assert device.node(machine(tmp_path)).status is CheckStatus.FAILED


def test_driver_without_a_device(tmp_path: Path) -> None:
    put(tmp_path, "/sys/module/amdxdna/version", "0.1")
    finding = device.driver(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "found no device it could start" in finding.actual
    assert "power cycle" in finding.fix


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("1.1.2.65", CheckStatus.OK),
        ("255.0.11.71", CheckStatus.OK),
        ("1.0.7.123", CheckStatus.WARNING),
        ("garbage", CheckStatus.WARNING),
        (None, CheckStatus.WARNING),
    ],
)
def test_firmware(tmp_path: Path, version: str | None, status: CheckStatus) -> None:
    owner(tmp_path, firmware=version)
    assert device.firmware(machine(tmp_path)).status is status


@pytest.mark.parametrize(
    ("soft", "hard", "status"),
    [
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, CheckStatus.OK),
        (4 << 30, 4 << 30, CheckStatus.WARNING),
        (64 << 20, resource.RLIM_INFINITY, CheckStatus.FAILED),
        (8 << 20, 8 << 20, CheckStatus.FAILED),
    ],
)
def test_memlock(tmp_path: Path, soft: int, hard: int, status: CheckStatus) -> None:
    finding = device.memlock(machine(tmp_path), limits=lambda which: (soft, hard))
    assert finding.status is status
    assert ("prlimit" in finding.fix) == (status is not CheckStatus.OK)


@pytest.mark.parametrize(
    "name", ["RyzenAI-npu4", "RyzenAI-npu5", "RyzenAI-npu6", "NPU Strix Halo", "NPU Krackan 1"]
)
def test_npu2(tmp_path: Path, name: str) -> None:
    owner(tmp_path, name)
    finding = device.npu(machine(tmp_path))
    assert (finding.status, finding.actual) == (CheckStatus.OK, f"npu2: '{name}'")


def test_npu1(tmp_path: Path) -> None:
    owner(tmp_path, "RyzenAI-npu1")
    finding = device.npu(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "is an npu1" in finding.actual


@pytest.mark.parametrize("name", ["RyzenAI-npu3", "RyzenAI-npu10", "something new"])
def test_an_unknown_npu(tmp_path: Path, name: str) -> None:
    owner(tmp_path, name)
    finding = device.npu(machine(tmp_path))
    assert finding.status is CheckStatus.UNKNOWN
    assert "not one that Aerie knows" in finding.actual


def test_an_npu_without_a_name(tmp_path: Path) -> None:
    owner(tmp_path, name=None)
    finding = device.npu(machine(tmp_path))
    assert finding.status is CheckStatus.UNKNOWN
    assert finding.actual == "unknown: neither the driver nor xrt-smi names a device"


@pytest.mark.parametrize("table", [TABLE, PLAIN])
@pytest.mark.parametrize(
    ("name", "status"),
    [("NPU Strix", CheckStatus.OK), ("RyzenAI-npu1", CheckStatus.FAILED), ("new", CheckStatus.UNKNOWN)],
)
def test_xrt_smi_output(tmp_path: Path, table: str, name: str, status: CheckStatus) -> None:
    owner(tmp_path, name=None)
    examined = machine(tmp_path, environ=with_xrt_smi(tmp_path, table.replace("NAME", name)))
    assert device.xrt_smi_names(examined) == [name]
    assert device.npu(examined).status is status


def test_two_names_that_do_not_fit_together(tmp_path: Path) -> None:
    owner(tmp_path, "RyzenAI-npu4")
    finding = device.npu(machine(tmp_path, environ=with_xrt_smi(tmp_path, PLAIN.replace("NAME", "Phoenix"))))
    assert finding.status is CheckStatus.UNKNOWN
    assert finding.actual == "unknown: the names 'RyzenAI-npu4', 'Phoenix' are not of one kind"


@pytest.mark.parametrize("output", ["", "garbage", "Device(s) Present\n  0 devices found\n", "\x00\xff[[["])
def test_xrt_smi_that_names_nothing(tmp_path: Path, output: str) -> None:
    owner(tmp_path, name=None)
    assert device.npu(machine(tmp_path, environ=with_xrt_smi(tmp_path, output))).status is CheckStatus.UNKNOWN


def test_xrt_smi_that_fails(tmp_path: Path) -> None:
    environ = with_xrt_smi(tmp_path, "")
    tool(tmp_path / "bin" / "xrt-smi", "echo '[0000:66:00.1] : NPU Strix'", "exit 1")
    assert device.npu(machine(tmp_path, environ=environ)).status is CheckStatus.UNKNOWN


COMPLETE = '''
class device: pass
class elf: pass
class run:
    def wait(self): pass
class ext:
    class bo: pass
    class kernel: pass
class hw_context:
    def __init__(self, *args):
        """__init__(*args, **kwargs)
        Overloaded function.

        1. __init__(self: pyxrt.hw_context, arg0: pyxrt.device, arg1: pyxrt.uuid) -> None
        2. __init__(self: pyxrt.hw_context, arg0: pyxrt.device, arg1: xrt::elf) -> None
        """
'''
"""With the docstring that pybind11 makes of XRT #9560."""


def install(root: Path, version: object) -> None:
    put(root, "/opt/xilinx/xrt/version.json", json.dumps({"BUILD_VERSION": version}))


def test_no_xrt(tmp_path: Path) -> None:
    finding = device.xrt(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert finding.actual == f"no {tmp_path}/opt/xilinx/xrt"


def test_xrt_that_is_set_up(tmp_path: Path) -> None:
    install(tmp_path, "2.26.95")
    folder = tmp_path / "opt/xilinx/xrt"
    finding = device.xrt(machine(tmp_path, environ={"XILINX_XRT": str(folder)}))
    assert (finding.status, finding.actual) == (CheckStatus.OK, f"2.26.95 in {folder}")


def test_xrt_that_was_not_sourced(tmp_path: Path) -> None:
    install(tmp_path, "2.26.95")
    finding = device.xrt(machine(tmp_path))
    assert finding.status is CheckStatus.WARNING
    assert finding.fix == "source /opt/xilinx/xrt/setup.sh"


def test_old_xrt(tmp_path: Path) -> None:
    install(tmp_path, "2.19.0")
    finding = device.xrt(machine(tmp_path))
    assert finding.status is CheckStatus.WARNING  # whether its pyxrt will do is asked of pyxrt
    assert finding.actual.startswith("2.19.0")


@pytest.mark.parametrize("version", ["garbage", "", None, 7, ["2"]])
def test_xrt_that_does_not_say(tmp_path: Path, version: object) -> None:
    install(tmp_path, version)
    assert device.xrt(machine(tmp_path)).status is CheckStatus.UNKNOWN


@pytest.mark.parametrize("text", ["[]", "not json", '"2.26"'])
def test_xrt_with_a_broken_version_file(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/opt/xilinx/xrt/version.json", text)
    assert device.xrt(machine(tmp_path)).status is CheckStatus.UNKNOWN


def test_pyxrt(tmp_path: Path) -> None:
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, COMPLETE)))
    assert (finding.status, finding.actual) == (CheckStatus.OK, str(tmp_path / "pyxrt.py"))


def test_no_pyxrt(tmp_path: Path) -> None:
    finding = device.pyxrt(machine(tmp_path))
    assert (finding.status, finding.actual) == (CheckStatus.FAILED, "missing")


def test_pyxrt_for_another_python(tmp_path: Path) -> None:
    put(tmp_path, "/opt/xilinx/xrt/python/pyxrt.cpython-38-x86_64-linux-gnu.so")
    finding = device.pyxrt(machine(tmp_path))
    assert finding.status is CheckStatus.FAILED
    assert "built as pyxrt.cpython-38-x86_64-linux-gnu.so, which this Python cannot import" in finding.actual
    assert "PYTHON=" in finding.fix


def test_pyxrt_that_cannot_load(tmp_path: Path) -> None:
    source = "raise ImportError('libxrt_coreutil.so.2: cannot open shared object file')"
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, source)))
    assert finding.status is CheckStatus.FAILED
    assert "libxrt_coreutil.so.2" in finding.actual


def test_pyxrt_that_crashes(tmp_path: Path) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, source)))
    assert finding.status is CheckStatus.FAILED
    assert "SIGSEGV" in finding.actual


def test_all_bindings(tmp_path: Path) -> None:
    finding = device.bindings(machine(tmp_path, environ=with_pyxrt(tmp_path, COMPLETE)))
    assert (finding.status, finding.actual) == (CheckStatus.OK, "all there")


@pytest.mark.parametrize(
    ("line", "attribute"),
    [
        ("class bo: pass", "ext.bo"),
        ("class kernel: pass", "ext.kernel"),
        ("def wait(self): pass", "run.wait"),
        ("class elf: pass", "elf"),
        ("2. __init__(self: pyxrt.hw_context, arg0: pyxrt.device, arg1: xrt::elf) -> None", "hw_context"),
    ],
)
def test_a_missing_binding(tmp_path: Path, line: str, attribute: str) -> None:
    source = COMPLETE.replace(line, "pass" if line[0] in "cd" else "")
    finding = device.bindings(machine(tmp_path, environ=with_pyxrt(tmp_path, source)))
    assert finding.status is CheckStatus.FAILED
    assert f"no {attribute}" in finding.actual
    assert finding.actual.count("this pyxrt has no") == 1
    assert versions.XRT.version in finding.fix


@pytest.mark.parametrize("output", ["garbage", "{}", ""])
def test_bindings_with_unreadable_output(tmp_path: Path, output: str) -> None:
    python = tool(tmp_path / "python", f"echo '{output}'")
    finding = device.bindings(machine(tmp_path, python=str(python)))
    assert finding.status is CheckStatus.UNKNOWN
    assert "is not a list" in finding.actual
