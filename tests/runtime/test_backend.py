"""The choice of backend."""

import sys

import pytest

from aerie.common.knobs import PLAIN, is_plain
from aerie.runtime import BackendError, select_backend
from aerie.runtime import backend as backend_module
from aerie.runtime.npu.toolchain import NpuToolchain
from aerie.runtime.toolchain import VirtualToolchain
from aerie.virtual_npu import pyxrt as virtual_pyxrt


@pytest.fixture
def pyxrt(monkeypatch, pyxrt_stand_in):
    """A stand-in takes pyxrt's place."""
    module = pyxrt_stand_in.PyxrtStandIn()
    monkeypatch.setitem(sys.modules, "pyxrt", module)
    return module


@pytest.fixture
def no_pyxrt(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyxrt", None)


@pytest.fixture
def no_tools(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PEANO_INSTALL_DIR", raising=False)
    monkeypatch.delenv("MLIR_AIE_INSTALL_DIR", raising=False)


@pytest.mark.parametrize("value", ["fast", "1", "calls,", "calls buffers", "All"])
def test_parts_that_have_no_plain_way(monkeypatch, value):
    monkeypatch.setenv("AERIE_PLAIN", value)
    with pytest.raises(BackendError) as caught:
        select_backend("virtual")
    assert str(caught.value) == (
        f"AERIE_PLAIN='{value}' cannot be used: give some of products, calls, buffers, host_code with commas "
        "between, or all; or unset it"
    )


@pytest.mark.parametrize("choice", ["virtual", "npu"])
@pytest.mark.parametrize(("old", "part"), PLAIN.replaces)
def test_a_variable_that_aerie_plain_has_replaced(monkeypatch, pyxrt, npu_tools, choice, old, part):
    monkeypatch.setenv(old, "0")
    with pytest.raises(
        BackendError, match=f"^{old} is not read any more: AERIE_PLAIN={part} does .*; unset {old}$"
    ):
        select_backend(choice)


@pytest.mark.parametrize("value", ["calls", "buffers, calls", "all"])
def test_parts_that_are_done_the_plain_way(monkeypatch, value):
    monkeypatch.setenv("AERIE_PLAIN", value)
    select_backend("virtual")
    assert is_plain("calls")
    assert is_plain("buffers") is (value != "calls")
    assert is_plain("products") is (value == "all")


def test_virtual():
    backend = select_backend("virtual")
    assert backend.name == "virtual"
    assert isinstance(backend.toolchain, VirtualToolchain)
    assert backend.pyxrt is virtual_pyxrt
    assert backend.reason == "backend virtual: requested"


def test_auto_without_pyxrt_is_virtual_with_a_reason(no_pyxrt):
    backend = select_backend("auto")
    assert backend.name == "virtual"
    assert backend.reason == "backend virtual: no NPU is set up here; BACKEND=npu lists what is missing"


def test_auto_without_a_device_is_virtual_with_a_reason(pyxrt, no_tools):
    pyxrt.fail("device", RuntimeError("No such device with index '0'"))
    assert select_backend().reason.startswith("backend virtual: no NPU is set up here; ")
    pyxrt.fail("device", RuntimeError("No such device with index '0'"))
    with pytest.raises(
        BackendError,
        match=r"pyxrt opens no device \(No such device with index '0': the NPU is gone.*\n  - aircc is",
    ):
        select_backend("npu")


def test_auto_with_a_device_but_no_toolchain_is_virtual_with_a_reason(pyxrt, no_tools):
    assert select_backend().reason == (
        "backend virtual: this machine has an NPU and not its compilers; BACKEND=npu lists what is missing"
    )


@pytest.mark.parametrize(
    ("choice", "reason"),
    [("auto", "backend npu: pyxrt opened a device"), ("npu", "backend npu: requested")],
)
def test_npu_where_all_is_there(pyxrt, npu_tools, choice, reason):
    backend = select_backend(choice)
    assert (backend.name, backend.pyxrt, backend.reason) == ("npu", pyxrt, reason)
    assert isinstance(backend.toolchain, NpuToolchain)


def test_the_toolchain_without_a_device_compiles(no_pyxrt, npu_tools):
    backend = select_backend("npu", compile_only=True)
    assert (backend.name, backend.reason) == ("npu", "backend npu: requested, to compile only")
    with pytest.raises(BackendError, match="this backend only compiles: no NPU was looked for, so nothing"):
        backend.pyxrt.device(0)


def test_compiling_only_still_needs_the_toolchain(no_pyxrt, no_tools):
    with pytest.raises(
        BackendError, match=r"backend 'npu' cannot be used here; [^\n]*\n  - aircc is missing: it comes"
    ):
        select_backend("npu", compile_only=True)


def test_npu_without_anything_lists_what_is_missing(no_pyxrt, no_tools):
    with pytest.raises(BackendError) as caught:
        select_backend("npu")
    refusal, *missing = str(caught.value).splitlines()
    assert refusal == (
        "backend 'npu' cannot be used here; BACKEND=virtual runs the same programs. What is missing, and "
        "where it comes from (docs/how-to/install.md):"
    )
    wanted = ("Python module pyxrt", "aircc", "aiecc", "aiebu-asm", "Peano", "aie_api/aie.hpp")
    for name, line in zip(wanted, missing, strict=True):
        assert line.startswith(f"  - {name} is missing")
        assert len(line) < 140


@pytest.mark.parametrize("choice", ["auto", "virtual"])
def test_a_knob_that_makes_no_sense_is_refused_at_once(no_pyxrt, monkeypatch, choice):
    monkeypatch.setenv("VNPU_OPT", "9")
    with pytest.raises(BackendError, match="VNPU_OPT='9' cannot be used: give one of 0, 1, 2, 3, s"):
        select_backend(choice)


def test_numerics_of_the_virtual_npu(monkeypatch):
    backend = select_backend("virtual", "bfp16")
    assert backend.toolchain == VirtualToolchain("bfp16")
    assert backend.reason == "backend virtual with bfp16 products: requested"
    monkeypatch.setenv("VNPU_NUMERICS", "bfp16")
    assert select_backend("virtual").reason == "backend virtual with bfp16 products: requested"
    assert select_backend("virtual", "exact").reason == "backend virtual: requested"


def test_unknown_numerics_list_the_legal_ones():
    with pytest.raises(BackendError, match="numerics 'fp8' is not known; choose one of: exact, bfp16"):
        select_backend("virtual", "fp8")


@pytest.mark.parametrize("choice", ["auto", "npu"])
def test_numerics_of_the_npu_are_its_own(pyxrt, npu_tools, choice):
    with pytest.raises(BackendError, match=r"numerics 'bfp16' cannot be had on the NPU.*BACKEND=virtual"):
        select_backend(choice, "bfp16")


def test_unknown_backend_lists_the_legal_ones():
    with pytest.raises(BackendError, match="unknown backend 'gpu'; choose one of: auto, virtual, npu"):
        select_backend("gpu")
    assert backend_module.CHOICES == ("auto", "virtual", "npu")
