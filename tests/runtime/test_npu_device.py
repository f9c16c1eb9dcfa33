"""Which NPU there is, what pyxrt must offer, and the knobs of running."""

import re
import sys
from types import SimpleNamespace

import pytest

from aerie.runtime import BackendError, knobs, select_backend
from aerie.runtime.npu import device as device_module
from aerie.runtime.npu import versions
from aerie.runtime.npu.device import (
    device_name,
    driver_names,
    generation,
    missing_bindings,
    missing_device,
    unsupported_reason,
)


@pytest.fixture
def pyxrt(monkeypatch, pyxrt_stand_in, tmp_path):
    """A stand-in takes pyxrt's place, on a machine whose driver says nothing."""
    module = pyxrt_stand_in.PyxrtStandIn()
    monkeypatch.setitem(sys.modules, "pyxrt", module)
    monkeypatch.setattr(device_module, "ACCELERATORS", tmp_path)
    return module


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("RyzenAI-npu1", "npu1"),
        ("NPU Phoenix", "npu1"),
        ("RyzenAI-npu4", "npu2"),
        ("RyzenAI-npu5", "npu2"),
        ("RyzenAI-npu6", "npu2"),
        ("NPU Strix", "npu2"),
        ("NPU Strix Halo", "npu2"),
        ("NPU Krackan 1", "npu2"),
        ("NPU Gorgon Point 3", "npu2"),
        ("RyzenAI-npu3", None),
        ("RyzenAI-npu10", None),
        ("RyzenAI-npu11-pf", None),
        ("", None),
    ],
)
def test_generations_by_the_drivers_names(name, kind):
    assert generation(name) == kind


def test_all_is_there(pyxrt):
    assert missing_device() == []
    assert not any(pyxrt.alive.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "NPU Phoenix",
            r"the NPU found, 'NPU Phoenix', is an npu1, and programs are compiled for npu2 \(Strix",
        ),
        ("RyzenAI-npu10", "the NPU found, 'RyzenAI-npu10', is not one that Aerie knows"),
        ("", "neither pyxrt nor the driver reports which one; .* would load and compute nothing"),
    ],
)
def test_another_device_is_refused_with_words(pyxrt, name, words):
    pyxrt.device_name = name
    (missing,) = missing_device()
    assert re.search(words, missing)
    with pytest.raises(BackendError, match=words):
        select_backend("npu")


def test_the_driver_names_the_device_if_pyxrt_cannot(pyxrt, tmp_path, monkeypatch):
    del pyxrt.xrt_info_device
    (tmp_path / "accel0" / "device").mkdir(parents=True)
    (tmp_path / "accel0" / "device" / "vbnv").write_text("NPU Krackan 1\n")
    monkeypatch.setattr(device_module, "driver_names", lambda: driver_names(tmp_path))
    assert device_name(pyxrt, pyxrt.device(0)) == "NPU Krackan 1"
    assert missing_device() == []


def test_a_driver_without_names(tmp_path):
    (tmp_path / "accel0").mkdir()
    assert driver_names(tmp_path) == driver_names(tmp_path / "nowhere") == []
    assert "would load and compute nothing" in unsupported_reason("")


def test_pyxrt_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    (missing,) = missing_device()
    assert missing.startswith("Python module pyxrt is missing (")
    assert missing.endswith("it comes with XRT: source its setup.sh")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("ext", "ext.bo"),
        ("ext", "ext.kernel"),
        ("elf", "elf"),
        ("run", "run.wait"),
        ("hw_context", "hw_context"),
    ],
)
def test_an_older_pyxrt_is_recognised_by_its_name(pyxrt, part, name):
    delattr(pyxrt, part)
    assert any(
        re.match(rf"this pyxrt has no {re.escape(name)}\b.* \(since .*\); install XRT [\d.]+ or newer", line)
        for line in missing_bindings(pyxrt)
    )
    assert missing_device() == missing_bindings(pyxrt)


def test_an_overload_shows_in_the_docstring(pyxrt):
    """pybind11 lists them there."""
    overloads = (
        "__init__(*args, **kwargs)\nOverloaded function.\n\n1. (self, device: pyxrt.device, uuid: pyxrt.uuid)"
    )
    pyxrt.hw_context = type("hw_context", (), {"__init__": SimpleNamespace(__doc__=overloads)})
    (line,) = missing_bindings(pyxrt)
    assert line.startswith(
        "this pyxrt has no hw_context that takes an elf (since XRT #9560, 2026-01-23); install"
    )
    more = overloads + "\n2. (self, device: pyxrt.device, elf: pyxrt.elf)"
    pyxrt.hw_context = type("hw_context", (), {"__init__": SimpleNamespace(__doc__=more)})
    assert missing_bindings(pyxrt) == []


def test_what_running_calls_is_in_the_table_of_bindings():
    assert {"device", "elf", "hw_context", "ext.bo", "ext.kernel", "run", "run.wait"} <= {
        binding.attribute for binding in versions.BINDINGS
    }


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("AERIE_NPU_TIMEOUT", "0", "a whole number of seconds from 1 to 86400"),
        ("AERIE_NPU_TIMEOUT", "soon", "a whole number of seconds"),
        ("AERIE_NPU_CONTEXTS", "17", "a whole number from 1 to 16"),
        ("AERIE_NPU_CONTEXTS", "-1", "a whole number from 1 to 16"),
        ("AERIE_NPU_CONTEXTS", "many", "a whole number from 1 to 16"),
        ("AERIE_NPU_CONTEXTS", "1_0", "a whole number from 1 to 16"),
        ("AERIE_NPU_LOCK", "/", "a path to a file; this is a folder"),
    ],
)
def test_knobs_that_make_no_sense(pyxrt, npu_tools, monkeypatch, name, value, wanted):
    monkeypatch.setenv(name, value)
    with pytest.raises(BackendError, match=f"{name}='{value}' cannot be used: give {wanted}"):
        select_backend("npu")


def test_every_knob_has_a_meaning():
    assert [knob.name for knob in knobs.NPU_TABLE] == [
        "AERIE_NPU_TIMEOUT",
        "AERIE_NPU_CONTEXTS",
        "AERIE_NPU_LOCK",
    ]
    assert all(knob.meaning and knob.expected for knob in knobs.NPU_TABLE)
