"""The NPU toolchain against stand-ins for aircc and clang++: command lines, files, failures."""

import os

import pytest

from multi_launch_builder.program import CompileOption, ExternalObject
from runtime import Backend, BackendError, CompileError, KernelCache
from runtime.npu.toolchain import NpuToolchain
from runtime.npu.tools import find_tools
from runtime.toolchain import KERNEL_SOURCES
from virtual_npu import pyxrt

MV = ExternalObject("mv_k2048.o", "mv.cc", ("DIM_M_OUTPUT=8", "matvec=matvec_k2048"), ("matvec_k2048",))


@pytest.fixture
def npu_program(variant):
    return variant(objects=(MV,), options=(CompileOption("--stack-size=4096", "a deep call path"),))


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_command_lines(npu_tools, npu_program, work):
    elf = NpuToolchain().compile(npu_program, work)
    clang, aircc = npu_tools.calls()
    assert clang == [
        *["clang++", "-O2", "-std=c++20", "--target=aie2p-none-unknown-elf", "-DNDEBUG"],
        *["-D__AIE_API_AIE_ADF_HPP__", "-Wno-parentheses", "-Wno-attributes", "-Wno-macro-redefined"],
        *["-Wno-empty-body", f"-I{npu_tools.root}/mlir-aie/include", "-DDIM_M_OUTPUT=8"],
        *["-Dmatvec=matvec_k2048", "-c", f"{KERNEL_SOURCES}/mv.cc", "-o", "mv_k2048.o"],
    ]
    assert aircc == [
        *["aircc", "scale.mlir", "--device", "npu2", "--output-format", "elf", "--elf-name", "scale.elf"],
        *["--tmpdir", "air_project", "--peano", f"{npu_tools.root}/peano", "--no-xchesscc", "--no-xbridge"],
        "--stack-size=4096",
    ]
    assert elf == work / "scale.elf"
    assert (work / "scale.mlir").read_text() == npu_program.text


def test_the_log_keeps_commands_and_output(npu_tools, npu_program, work):
    NpuToolchain().compile(npu_program, work)
    log = (work / "build.log").read_text()
    assert f"$ {npu_tools.root}/peano/bin/clang++ -O2" in log
    assert "output of aircc" in log


def test_a_failing_tool_shows_its_own_lines(npu_tools, npu_program, work):
    npu_tools.script(
        "bin/aircc", "for i in $(seq 50); do echo line $i; done; echo out of channels >&2; exit 3"
    )
    with pytest.raises(CompileError) as caught:
        NpuToolchain().compile(npu_program, work)
    message = str(caught.value)
    assert message.startswith("program 'scale' was not compiled: aircc failed with exit code 3:\n")
    assert message.endswith("line 50\nout of channels")
    assert "line 31\n" not in message
    assert "line 1\n" in (work / "build.log").read_text()


def test_a_failing_kernel_stops_before_aircc(npu_tools, npu_program, work):
    npu_tools.script("peano/bin/clang++", "echo mv.cc:7: error: no such type; exit 1")
    with pytest.raises(
        CompileError, match=r"clang\+\+ failed with exit code 1:\n(.*\n)*mv.cc:7: error: no such type"
    ):
        NpuToolchain().compile(npu_program, work)
    assert npu_tools.calls() == []


def test_success_without_an_elf_is_a_failure(npu_tools, npu_program, work):
    npu_tools.script("bin/aircc", "echo No valid placement found.")
    with pytest.raises(
        CompileError, match=r"aircc ended without an error and without scale.elf:\n(.*\n)*No valid pl"
    ):
        NpuToolchain().compile(npu_program, work)


def test_a_tool_that_does_not_start(npu_tools, npu_program, work):
    toolchain = NpuToolchain()
    (npu_tools.root / "peano/bin/clang++").unlink()
    with pytest.raises(CompileError, match=r"clang\+\+ could not be started: .*No such file"):
        toolchain.compile(npu_program, work)


def test_missing_tools_are_named(monkeypatch, npu_tools):
    (npu_tools.root / "bin" / "aircc").unlink()
    monkeypatch.delenv("PEANO_INSTALL_DIR")
    with pytest.raises(
        BackendError, match=r"cannot compile for the NPU: aircc is missing: it comes .*; Peano is"
    ):
        find_tools()


def test_include_folder_beside_aie_opt(monkeypatch, npu_tools):
    monkeypatch.delenv("MLIR_AIE_INSTALL_DIR")
    with pytest.raises(
        BackendError, match=r"aie_api/aie.hpp is missing: it comes with mlir-aie; install its wheel"
    ):
        find_tools()
    npu_tools.script("mlir-aie/bin/aie-opt", "")
    monkeypatch.setenv("PATH", f"{npu_tools.root}/mlir-aie/bin:{os.environ['PATH']}")
    assert find_tools().include == (npu_tools.root / "mlir-aie/include").resolve()


def test_ingredients_change_with_options_and_tools(npu_tools, npu_program, program):
    ingredients = NpuToolchain().ingredients(npu_program)
    assert ingredients["Peano"] == "output of clang++"
    without = NpuToolchain().ingredients(program)
    assert {name for name in ingredients if ingredients[name] != without[name]} >= {
        "aircc flags",
        "kernel macros",
    }
    npu_tools.script("bin/aircc", "exit 0")
    assert NpuToolchain().ingredients(npu_program)["aircc"] != ingredients["aircc"]


def test_through_the_cache(npu_tools, npu_program, tmp_path):
    cache = KernelCache(tmp_path / "cache", Backend("npu", NpuToolchain(), pyxrt, "for the test"))
    artifact = cache.compile_and_cache(npu_program)
    assert artifact.path.parent.name == "npu"
    assert artifact.path.read_text() == "an elf\n"
    assert "output of aircc" in artifact.path.with_suffix(".log").read_text()
