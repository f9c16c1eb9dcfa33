"""KernelCache over the real virtual NPU: built by the system's compiler, run, rebuilt after a change."""

import re

import numpy as np
import pytest

from aerie.common import cpu
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, f32, i32
from aerie.multi_launch_builder.program import ExternalObject, Program
from aerie.runtime import CompileError, KernelCache, RunError, select_backend
from aerie.runtime import toolchain as toolchain_module
from aerie.runtime.toolchain import VirtualToolchain

TEXT = """
module {
  func.func @scale(%x: memref<4x8xf32>, %w: memref<4x8xf32>, %divisor: memref<1xi32>, %y: memref<4x8xf32>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %d = memref.load %divisor[%c0] : memref<1xi32>
    %one = arith.constant 1 : i32
    %q = arith.divsi %one, %d : i32
    scf.for %i = %c0 to %c4 step %c1 {
      scf.for %j = %c0 to %c8 step %c1 {
        %a = memref.load %x[%i, %j] : memref<4x8xf32>
        %b = memref.load %w[%i, %j] : memref<4x8xf32>
        %p = arith.mulf %a, %b : f32
        memref.store %p, %y[%i, %j] : memref<4x8xf32>
      }
    }
    return
  }
}
"""

EXTERNAL = """
module {
  func.func private @fill(memref<32xf32>) attributes {link_with = "fill.o", link_defines = "VALUE=7"}
  func.func @external(%y: memref<32xf32>) {
    func.call @fill(%y) : (memref<32xf32>) -> ()
    return
  }
}
"""

SOURCE = """
extern "C" void fill(float *y) {
  for (int i = 0; i < 32; ++i) y[i] = VALUE;
}
"""


def external_program(text=EXTERNAL):
    table = ArgumentTable([Argument("y", (32,), f32, Role.OUTPUT)])
    fill = ExternalObject("fill.o", "fill.cc", ("VALUE=7",), ("fill",))
    return Program("external", text, table, (), (fill,))


@pytest.fixture(autouse=True)
def fake_library():
    """Here the programs are real."""


@pytest.fixture
def real_cache(tmp_path, strict, reports):
    with KernelCache(tmp_path / "cache", select_backend("virtual"), report=reports.append) as cache:
        yield cache


@pytest.fixture
def kernel_folder(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "fill.cc").write_text(SOURCE)
    monkeypatch.setattr(toolchain_module, "KERNEL_SOURCES", folder)
    return folder


@pytest.fixture
def scale():
    roles = {"x": Role.INPUT, "w": Role.WEIGHT, "divisor": Role.INPUT, "y": Role.OUTPUT}
    table = ArgumentTable(
        Argument(name, (1,) if name == "divisor" else (4, 8), i32 if name == "divisor" else f32, role)
        for name, role in roles.items()
    )
    return Program("scale", TEXT, table, (), ())


def test_a_program_is_built_and_run(real_cache, scale, arrays):
    artifact = real_cache.compile_and_cache(scale)
    assert artifact.path.read_bytes()[:4] == b"\x7fELF"
    real_cache.preload(scale, "L0", w=arrays["w"])
    divisor = np.ones(1, np.int32)
    result = real_cache.run(scale, bo_key="L0", x=arrays["x"], divisor=divisor)
    np.testing.assert_array_equal(result["y"], arrays["x"] * arrays["w"])
    with pytest.raises(RunError, match=r"program 'scale' on buffers 'L0' failed: .*zero"):
        real_cache.run(scale, bo_key="L0", x=arrays["x"], divisor=0 * divisor)
    result = real_cache.run(scale, bo_key="L0", x=arrays["x"], divisor=divisor)
    np.testing.assert_array_equal(result["y"], arrays["x"] * arrays["w"])


def test_a_changed_kernel_source_is_compiled_again(tmp_path, kernel_folder):
    backend = select_backend("virtual")
    with KernelCache(tmp_path / "cache", backend) as cache:
        cache.compile_and_cache(external_program())
        assert (cache.run("external")["y"] == 7).all()
        assert cache.compile_and_cache(external_program()).reused
        (kernel_folder / "fill.cc").write_text(SOURCE.replace("= VALUE", "= VALUE + 1"))
        assert not cache.compile_and_cache(external_program()).reused
        assert (cache.run("external")["y"] == 8).all()


def test_compiler_output_is_shown_and_saved(tmp_path, kernel_folder):
    (kernel_folder / "fill.cc").write_text(SOURCE.replace("VALUE;", "VALU;"))
    cache = KernelCache(tmp_path / "cache", select_backend("virtual"))
    with pytest.raises(
        CompileError, match=r"(?s)program 'external' was not compiled: .*fill.cc.*VALU"
    ) as caught:
        cache.compile_and_cache(external_program())
    assert caught.value.log
    assert "VALU" in caught.value.log.read_text()


def test_text_that_does_not_parse(tmp_path):
    cache = KernelCache(tmp_path / "cache", select_backend("virtual"))
    with pytest.raises(CompileError, match=r"program 'external' was not compiled: .*:3:"):
        cache.compile_and_cache(external_program("module {\n func.func\n )"))


def test_no_compiler_names_the_package(tmp_path, monkeypatch, scale):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path / "built"))
    monkeypatch.delenv("VNPU_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    cache = KernelCache(tmp_path / "cache", select_backend("virtual"))
    with pytest.raises(
        CompileError, match=r"program 'scale' was not compiled: no C\+\+ compiler.*apt install g\+\+"
    ):
        cache.compile_and_cache(scale)


def test_ingredients(scale, monkeypatch):
    monkeypatch.delenv("VNPU_OPT")
    ingredients = VirtualToolchain().ingredients(scale)
    assert list(ingredients) == [
        *["program text", "kernel sources", "kernel macros", "air_dialect", "common"],
        *["device", "virtual_npu"],
        *["AIE API for the host", "xdsl", "CPU", "compiler", "compiler flags", "numerics"],
        *["rounding", "fast"],
    ]
    assert re.search(r"\d+\.\d+", ingredients["compiler"])
    assert ingredients["compiler flags"].endswith(" ".join([" -O3", *cpu.cpu_flags()]))
    monkeypatch.setenv("VNPU_OPT", "1")
    assert " -O1" in VirtualToolchain().ingredients(scale)["compiler flags"]
    assert VirtualToolchain().ingredients(scale)["CPU"] == ingredients["CPU"] == cpu.cpu_identity()
    monkeypatch.setenv("VNPU_MARCH", "x86-64-v2")
    assert VirtualToolchain().ingredients(scale)["CPU"] == cpu.cpu_identity()


def test_what_is_compiled_runs_without_a_compiler(tmp_path, scale, arrays, monkeypatch, reports):
    """Also where nothing is left of what the virtual NPU keeps: the manifest says what fits."""
    monkeypatch.setenv("VNPU_OPT", "0")
    with KernelCache(tmp_path / "cache", select_backend("virtual")) as cache:
        made = cache.compile_and_cache(scale)
    for name in ("VNPU_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VNPU_CACHE", "off")
    with KernelCache(tmp_path / "cache", select_backend("virtual"), report=reports.append) as cache:
        found = cache.compile_and_cache(scale)
        assert (found.path, found.key, found.reused) == (made.path, made.key, True)
        result = cache.run(scale, x=arrays["x"], w=arrays["w"], divisor=np.ones(1, np.int32))
    np.testing.assert_array_equal(result["y"], arrays["x"] * arrays["w"])
    monkeypatch.setenv("VNPU_OPT", "1")
    with pytest.raises(CompileError, match=r"no C\+\+ compiler"):
        KernelCache(tmp_path / "cache", select_backend("virtual")).compile_and_cache(scale)
    assert reports == []


def test_numerics_are_chosen_by_name_or_by_the_environment(scale, monkeypatch):
    usual, bfp16 = (VirtualToolchain(name).ingredients(scale) for name in (None, "bfp16"))
    assert (usual["numerics"], bfp16["numerics"]) == ("exact", "bfp16")
    assert bfp16 == {**usual, "numerics": "bfp16"}
    monkeypatch.setenv("VNPU_NUMERICS", "bfp16")
    assert VirtualToolchain().ingredients(scale) == bfp16
    assert VirtualToolchain("exact").ingredients(scale) == usual


def test_programs_of_other_numerics_are_kept_side_by_side(tmp_path, scale):
    for numerics, reused in [("exact", False), ("bfp16", False), ("exact", True), ("bfp16", True)]:
        with KernelCache(tmp_path / "cache", select_backend("virtual", numerics)) as cache:
            assert cache.compile_and_cache(scale).reused is reused
