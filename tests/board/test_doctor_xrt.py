"""The doctor on XRT and pyxrt. The modules named pyxrt here are stand-ins of a few lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_machine import machine, put, tool, with_pyxrt

from board.doctor import device
from board.doctor.machine import Status
from runtime.npu import versions

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
    assert finding.status is Status.FAILED
    assert finding.found == f"no {tmp_path}/opt/xilinx/xrt"


def test_xrt_that_is_set_up(tmp_path: Path) -> None:
    install(tmp_path, "2.26.95")
    folder = tmp_path / "opt/xilinx/xrt"
    finding = device.xrt(machine(tmp_path, environ={"XILINX_XRT": str(folder)}))
    assert (finding.status, finding.found) == (Status.OK, f"2.26.95 in {folder}")


def test_xrt_that_was_not_sourced(tmp_path: Path) -> None:
    install(tmp_path, "2.26.95")
    finding = device.xrt(machine(tmp_path))
    assert finding.status is Status.WARNING
    assert finding.fix == "source /opt/xilinx/xrt/setup.sh"


def test_old_xrt(tmp_path: Path) -> None:
    install(tmp_path, "2.19.0")
    finding = device.xrt(machine(tmp_path))
    assert finding.status is Status.WARNING  # whether its pyxrt will do is asked of pyxrt
    assert finding.found.startswith("2.19.0")


@pytest.mark.parametrize("version", ["garbage", "", None, 7, ["2"]])
def test_xrt_that_does_not_say(tmp_path: Path, version: object) -> None:
    install(tmp_path, version)
    assert device.xrt(machine(tmp_path)).status is Status.UNKNOWN


@pytest.mark.parametrize("text", ["[]", "not json", '"2.26"'])
def test_xrt_with_a_broken_version_file(tmp_path: Path, text: str) -> None:
    put(tmp_path, "/opt/xilinx/xrt/version.json", text)
    assert device.xrt(machine(tmp_path)).status is Status.UNKNOWN


def test_pyxrt(tmp_path: Path) -> None:
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, COMPLETE)))
    assert (finding.status, finding.found) == (Status.OK, str(tmp_path / "pyxrt.py"))


def test_no_pyxrt(tmp_path: Path) -> None:
    finding = device.pyxrt(machine(tmp_path))
    assert (finding.status, finding.found) == (Status.FAILED, "missing")


def test_pyxrt_for_another_python(tmp_path: Path) -> None:
    put(tmp_path, "/opt/xilinx/xrt/python/pyxrt.cpython-38-x86_64-linux-gnu.so")
    finding = device.pyxrt(machine(tmp_path))
    assert finding.status is Status.FAILED
    assert "built as pyxrt.cpython-38-x86_64-linux-gnu.so, which this Python cannot import" in finding.found
    assert "PYTHON=" in finding.fix


def test_pyxrt_that_cannot_load(tmp_path: Path) -> None:
    source = "raise ImportError('libxrt_coreutil.so.2: cannot open shared object file')"
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, source)))
    assert finding.status is Status.FAILED
    assert "libxrt_coreutil.so.2" in finding.found


def test_pyxrt_that_crashes(tmp_path: Path) -> None:
    source = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    finding = device.pyxrt(machine(tmp_path, environ=with_pyxrt(tmp_path, source)))
    assert finding.status is Status.FAILED
    assert "SIGSEGV" in finding.found


def test_all_bindings(tmp_path: Path) -> None:
    finding = device.bindings(machine(tmp_path, environ=with_pyxrt(tmp_path, COMPLETE)))
    assert (finding.status, finding.found) == (Status.OK, "all there")


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
    assert finding.status is Status.FAILED
    assert f"no {attribute}" in finding.found
    assert finding.found.count("this pyxrt has no") == 1
    assert versions.XRT.version in finding.fix


@pytest.mark.parametrize("said", ["garbage", "{}", ""])
def test_bindings_that_cannot_be_told(tmp_path: Path, said: str) -> None:
    python = tool(tmp_path / "python", f"echo '{said}'")
    finding = device.bindings(machine(tmp_path, python=str(python)))
    assert finding.status is Status.UNKNOWN
    assert "makes no sense" in finding.found
