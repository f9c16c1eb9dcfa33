"""`aerie air-run`: what takes the place of a build of mlir-air, and programs of its style that run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.device.errors import KernelSourceError
from aerie.device.external_kernels import OBJECT_MARK, ExternalKernel, constant_parameters, kernel_objects
from aerie.virtual_npu.air_run import bindings, checkouts, compiler, environment, operations, table
from aerie.virtual_npu.air_run import kernel_objects as objects_command
from aerie.virtual_npu.air_run.__main__ import main
from aerie.virtual_npu.errors import OptionError

PROJECT = Path(__file__).parents[2]
HAS_BINDINGS = importlib.util.find_spec("mlir") is not None
needs_bindings = pytest.mark.skipif(not HAS_BINDINGS, reason="needs the extra air-run")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a checkout of mlir-air, with an example."""
    folder = tmp_path / "mlir-air"
    dialects = folder / "python" / "air" / "dialects"
    dialects.mkdir(parents=True)
    (dialects / "_air_ops_ext.py").write_text("from ._air_ops_gen import *\n")
    (dialects / "air.py").write_text("from ._air_ops_ext import *\nfrom ._air_enum_gen import *\n")
    (folder / "python" / "air" / "backend").mkdir()
    (folder / "python" / "air" / "backend" / "xrt.py").write_text(
        "def text_for_aircc(module):\n    return str(module)\n"
    )
    monkeypatch.setenv("AERIE_MLIR_AIR", str(folder))
    return folder


# ---- the operation classes ----


def tables() -> dict[str, operations.OperationTable]:
    return {each.name: each for each in operations.operation_tables()}


def test_the_operations_have_the_parameters_of_mlir_air() -> None:
    found = tables()
    put = found["air.channel.put"]
    assert (put.class_name, put.function_name) == ("ChannelPutOp", "channel_put")
    assert put.parameters[:2] == ("async_token", "async_dependencies")
    assert {"src", "dynamic_src_sizes", "static_src_sizes", "dest", "chan_name"} < set(put.parameters)
    assert {"dst", "dynamic_src_offsets", "static_dst_strides"} < set(found["air.dma_memcpy_nd"].parameters)
    assert "herd_operands" in found["air.herd"].parameters
    assert found["air.channel"].parameters == ("sym_name", "size", "channel_type")
    assert found["air.execute"].parameters == ("async_token", "results_", "async_dependencies")
    assert found["air.herd"].n_regions == 1


def test_an_unknown_parameter_names_those_that_there_are() -> None:
    channel = tables()["air.channel"]
    with pytest.raises(TypeError, match="ChannelOp has no parameter 'depth': it takes sym_name, size, chan"):
        operations._bind(channel, ["c"], {"depth": 2})
    with pytest.raises(TypeError, match="ChannelOp has 3 parameters"):
        operations._bind(channel, [1, 2, 3, 4], {})


# ---- kernels ----


def kernel(object_name: str = "k.o") -> ExternalKernel:
    return ExternalKernel("f", object_name, "k.cc", (), 3, 1)


def test_an_object_holds_its_source_and_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src" / "own.cc"
    source.parent.mkdir()
    source.write_text('extern "C" void f(float *x) { x[0] = N; }\n')
    monkeypatch.chdir(tmp_path)
    assert objects_command.main(["-O2", "-c", "src/own.cc", "-o", "k.o", "-DN=3", "-I", "inc"]) == 0
    (found,) = kernel_objects([kernel()], [tmp_path])
    assert found.source == source
    assert found.flags[-2:] == ("-DN=3", f"-I{tmp_path}/inc")
    assert objects_command.main(["aie2", "-c", "src/own.cc", "-o", "k.o"]) == 0
    assert kernel_objects([kernel()], [tmp_path])[0].flags[-2:] == ("-D__AIEARCH__=20", "-D__AIE_ARCH__=20")
    source.unlink()
    with pytest.raises(KernelSourceError, match=r"own\.cc, which is gone: compile the kernel again"):
        kernel_objects([kernel()], [tmp_path])


@pytest.mark.parametrize("objects", ["", ', "objects": [{"source": "own.cc"}]', ', "objects": 3'])
def test_an_object_with_our_mark_that_was_changed(tmp_path: Path, objects: str) -> None:
    (tmp_path / "k.o").write_text(f'{{"kind": "{OBJECT_MARK}"{objects}}}')
    with pytest.raises(
        KernelSourceError, match=r"k\.o does not say for each object .*: compile the kernel again"
    ):
        kernel_objects([kernel()], [tmp_path])


def test_an_object_of_another_compiler_is_built_from_its_source(tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text('extern "C" void f(float *x) {}\n')
    for content in (b"\x7fELF", b"{}", b"[1]"):
        (tmp_path / "k.o").write_bytes(content)
        assert kernel_objects([kernel()], [tmp_path])[0].source == tmp_path / "k.cc"


def test_objects_are_linked_into_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.cc").write_text('extern "C" void f(const float *x) {}\n')
    Path("g.cc").write_text('extern "C" void g(float *x) {}\n')
    for name in "fg":
        assert objects_command.main(["-c", f"{name}.cc", f"-D{name}"]) == 0
    assert objects_command.main(["-r", "-o", "k.o", "f.o", "g.o"]) == 0
    found = kernel_objects([kernel()], [tmp_path])
    assert [item.source.name for item in found] == ["f.cc", "g.cc"]
    assert [item.flags[-1] for item in found] == ["-Df", "-Dg"]
    assert constant_parameters(kernel(), [tmp_path]) == {0}
    Path("other.o").write_text("[]")
    for name in ("none.o", "other.o"):
        assert objects_command.main(["-r", "-o", "k.o", "f.o", name]) == 1
        assert f"error: {name} is no object that the virtual NPU's compiler wrote" in capsys.readouterr().err


def test_a_compilation_without_source_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert objects_command.main(["-c", "none.cc"]) == 1
    assert "error: no source of a kernel in: -c none.cc" in capsys.readouterr().err


def test_the_compiler_prints_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert objects_command.main(["--version"]) == 0
    assert "clang version" in capsys.readouterr().out


# ---- aircc ----

NOTHING = "module { func.func @nothing(%x: memref<64xf32>) { return } }\n"


def test_aircc_builds_what_pyxrt_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aerie.virtual_npu import pyxrt

    monkeypatch.chdir(tmp_path)
    Path("air.mlir").write_text(NOTHING)
    words = ["--device", "npu2", "air.mlir", "-o", "air.xclbin", "-i", "air.insts.bin", "--peano", "x"]
    words += ["--no-xbridge", "--host-target", "x86_64", "-stack-size=2048", "-num-rows", "6"]
    assert compiler.main(words) == 0
    device, xclbin = pyxrt.device(0), pyxrt.xclbin("air.xclbin")
    device.register_xclbin(xclbin)
    context = pyxrt.hw_context(device, xclbin.get_uuid())
    (found,) = [each for each in xclbin.get_kernels() if "MLIR_AIE" in each.get_name()]
    run_kernel = pyxrt.kernel(context, found.get_name())
    instructions = pyxrt.bo(device, 4, pyxrt.bo.cacheable, run_kernel.group_id(1))
    instructions.write(Path("air.insts.bin").read_bytes())
    buffer = pyxrt.bo(device, 256, pyxrt.bo.host_only, run_kernel.group_id(3))
    buffer.write(bytes(range(256)))
    assert run_kernel(3, instructions, 1, buffer).wait() == pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    assert bytes(buffer.read(4, 8)) == bytes([8, 9, 10, 11])
    with pytest.raises(pyxrt.XrtError, match=r"write of 2 bytes at offset 255 leaves the buffer"):
        buffer.write(b"ab", 255)


STUCK = """\
module {
  air.channel @c [1]
  func.func @stuck(%x: memref<64xf32>) { air.channel.get @c[] (%x[] [] []) : (memref<64xf32>)
    return }
}
"""


def test_a_run_of_the_xclbin_flow_says_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from aerie.virtual_npu import pyxrt

    monkeypatch.chdir(tmp_path)
    Path("air.mlir").write_text(STUCK.replace("    return", 'loc("kernel.py":3:9)\n    return'))
    assert compiler.main(["air.mlir", "-o", "air.xclbin"]) == 0
    device, xclbin = pyxrt.device(0), pyxrt.xclbin("air.xclbin")
    context = pyxrt.hw_context(device, device.register_xclbin(xclbin))
    buffer = pyxrt.bo(device, 256, pyxrt.bo.host_only, 0)
    run = pyxrt.kernel(context, "MLIR_AIE")(3, buffer, 1, buffer)
    assert run.wait() == pyxrt.ert_cmd_state.ERT_CMD_STATE_ERROR
    message = capfd.readouterr().err
    assert "error: stuck: deadlock" in message
    assert message.endswith("; line 3 is kernel.py:3:9\n")


def test_aircc_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("air.mlir").write_text("module { air.nonsense }")
    assert compiler.main(["air.mlir", "--elf-name", "air.elf"]) == 1
    assert "error: air.mlir:1:10: error: operation air.nonsense is not known" in capsys.readouterr().err
    unsupported = "func.func @f(%x: memref<4xf32>) { %t = bufferization.to_tensor %x : memref<4xf32> to "
    Path("air.mlir").write_text(f'{unsupported} tensor<4xf32> loc("kernel.py":3:9) return }}')
    assert compiler.main(["air.mlir", "--elf-name", "air.elf"]) == 1
    assert capsys.readouterr().err.endswith("; line 1 is kernel.py:3:9\n")
    assert compiler.main(["air.mlir"]) == 2
    assert "aircc takes one file, and the output by -o or --elf-name" in capsys.readouterr().err


def test_the_commands_that_take_the_place_of_a_build(tmp_path: Path, checkout: Path) -> None:
    variables = environment.environment(checkout, "npu1", checks=False)
    assert variables["AIR_TARGET_DEVICE"] == "npu1"
    assert variables["AERIE_AIR_CHECKS"] == "0"
    source = tmp_path / "k.cc"
    source.write_text("")
    found = subprocess.run(
        ["xchesscc_wrapper", "aie2", "-c", source, "-o", tmp_path / "k.o"],
        env={**os.environ, "PATH": variables["PATH"]},
        check=False,
    )
    assert found.returncode == 0
    assert json.loads((tmp_path / "k.o").read_text())["objects"][0]["source"] == str(source)
    assert (Path(variables["PEANO_INSTALL_DIR"]) / "bin" / "clang++").stat().st_mode & 0o111


def compiled_host(folder: Path, checkout: Path, text: str) -> Path:
    """A C++ host, compiled as the Makefiles of examples do."""
    variables = environment.environment(checkout, "npu2")
    xrt = Path(variables["XILINX_XRT"])
    library = Path(variables["MLIR_AIE_INSTALL_DIR"]) / "runtime_lib/x86_64/test_lib"
    (folder / "test.cpp").write_text(text)
    folders = [f"-I{xrt}/include", f"-L{xrt}/lib", f"-I{library}/include", f"-L{library}/lib"]
    libraries = ["-luuid", "-lxrt_coreutil", "-lrt", "-lstdc++", "-ltest_utils"]
    command = ["c++", "-std=c++20", "-Wall", "-Werror", "test.cpp", "-o", "test.exe", *folders, *libraries]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "test.exe"


def test_cpp_hosts_find_xrt_and_what_they_link(tmp_path: Path, checkout: Path) -> None:
    host = compiled_host(
        tmp_path, checkout, '#include "xrt/xrt_bo.h"\nint main() { return xrt::bo().size(); }'
    )
    assert subprocess.run([host], check=False).returncode == 0


PARSING_HOST = """
#include "test_utils.h"
int main(int argc, const char *argv[]) {
  cxxopts::Options options("host");
  options.add_options()("x,xclbin", "", cxxopts::value<std::string>())(
      "i,instr", "", cxxopts::value<std::string>())("h,help", "");
  cxxopts::ParseResult result;
  test_utils::parse_options(argc, argv, options, result);
  try {
    const auto words = test_utils::load_instr_binary(result["instr"].as<std::string>());
    for (uint32_t word : words) std::cout << word << "\\n";
  } catch (const std::exception &error) {
    std::cout << error.what() << "\\n";
  }
}
"""
HAS_CXXOPTS = subprocess.run(
    ["c++", "-E", "-x", "c++", "-"], input=b"#include <cxxopts.hpp>", capture_output=True, check=False
).returncode == 0  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not HAS_CXXOPTS, reason="needs the header cxxopts.hpp")
def test_cpp_hosts_share_a_library(tmp_path: Path, checkout: Path) -> None:
    host = compiled_host(tmp_path, checkout, PARSING_HOST)

    def output(*arguments: object) -> str:
        ran = subprocess.run([host, *map(str, arguments)], check=False, capture_output=True, text=True)
        return ran.stdout + ran.stderr

    instructions = tmp_path / "insts.bin"
    instructions.write_bytes(bytes([1, 0, 0, 0, 0, 1, 0, 0]))
    assert output("-x", host, "-i", instructions) == "1\n256\n"
    assert "error: the option --instr is missing" in output("-x", host)
    assert "error: --xclbin none: there is no such file" in output("-x", "none", "-i", instructions)
    assert "Usage" in output("--help")
    instructions.write_bytes(bytes(7))
    assert f"{instructions} has 7 bytes: instructions have 4 each" in output("-x", host, "-i", instructions)


def test_kernels_of_mlir_aie_are_found_in_a_checkout(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_MLIR_AIE", str(tmp_path))
    with pytest.raises(OptionError, match="is no checkout of mlir-aie: one has the folder aie_kernels"):
        environment.environment(checkout, "npu2")
    (tmp_path / "aie_kernels").mkdir()
    (tmp_path / "aie_kernels" / "a.cc").write_text("")
    installed = Path(environment.environment(checkout, "npu2")["MLIR_AIE_INSTALL_DIR"])
    assert (installed / "include" / "aie_kernels" / "a.cc").is_file()


# ---- messages ----


def test_a_missing_checkout_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AERIE_MLIR_AIR", raising=False)
    with pytest.raises(OptionError, match=r"is in no checkout of mlir-air .*--mlir-air or AERIE_MLIR_AIR"):
        checkouts.find_checkout(tmp_path)
    monkeypatch.setenv("AERIE_MLIR_AIR", str(tmp_path))
    with pytest.raises(OptionError, match=f"AERIE_MLIR_AIR={tmp_path} is no checkout of mlir-air"):
        checkouts.find_checkout()


def test_missing_bindings_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["x.py"]) == 2
    assert "bindings are not installed" in (error := capsys.readouterr().err)
    assert "pip install '.[air-run]' in the project's folder" in error


def test_a_command_is_needed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bindings, "check_installed", lambda: None)
    assert main([]) == 2
    assert "name a script or a command" in capsys.readouterr().err
    assert main(["--env"]) == 0
    assert f"export AERIE_MLIR_AIR={checkout}\n" in capsys.readouterr().out


# ---- the table ----

LIT = """\
// REQUIRES: ryzen_ai_npu1, peano
// RUN: mkdir -p here
// RUN: %run_on_npu1% echo "size  is 12" | FileCheck %s
// RUN: sh -c 'echo "error: no room"; exit 3' 2>&1 | FileCheck %s
// RUN: echo "9 GB/s" | FileCheck --check-prefix=PROFILE %s
// CHECK: size is {{[0-9]+}}
// PROFILE: GB/s
"""


def test_the_table_says_which_pass_and_why_not(tmp_path: Path, checkout: Path) -> None:
    example = checkout / "programming_examples" / "sizes"
    example.mkdir(parents=True)
    (example / "run.lit").write_text(LIT)
    (checkout / "programming_examples" / "llms").mkdir()
    (checkout / "programming_examples" / "llms" / "model.lit").write_text(LIT)
    output = tmp_path / "table.tsv"
    assert table.write(output, checkout, "", 1) == 0
    assert table.read(output) == [
        table.Row("sizes/run:1", "npu1", "pass", ""),
        table.Row("sizes/run:2", "npu1", "fail", "error: no room"),
        table.Row("sizes/run:3", "npu1", "pass", ""),
    ]


def test_a_run_that_passed_and_fails_is_an_error(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = checkout / "programming_examples" / "sizes"
    example.mkdir(parents=True)
    (example / "run.lit").write_text(LIT)
    before = tmp_path / "before.tsv"
    before.write_text("run\tdevice\tresult\twhy\nsizes/run:2\tnpu1\tpass\t\ngone/run:2\tnpu1\tpass\t\n")
    assert table.write(tmp_path / "now.tsv", checkout, "run:2", 1, before) == 1
    assert "error: sizes/run:2 passed, and fails now: error: no room" in capsys.readouterr().err
    assert table.write(tmp_path / "now.tsv", checkout, "run:1", 1, tmp_path / "now.tsv") == 0


# ---- programs ----

PROGRAM = """\
import numpy as np
import pyxrt
from air.backend.xrt import text_for_aircc
from air.ir import *
from air.dialects import arith, func, memref
from air.dialects.air import *

with Context(), Location.unknown():
    module = Module.create()
    space, f32 = IntegerAttr.get(IntegerType.get_signless(32), MemorySpace.L1), F32Type.get()
    host, own = MemRefType.get([64], f32), MemRefType.get([64], f32, memory_space=space)
    with InsertionPoint(module.body):
        ChannelOp("in")
        channel("out", size=[1])

        @func.FuncOp.from_py_func(host, host)
        def copy(x, y):
            global block, part
            ChannelPutOp(None, [], [], x, [], [], [], chan_name="in", static_src_offsets=[],
                         static_src_sizes=[], static_src_strides=[])
            one = arith.constant(IndexType.get(), 1)
            tile = HerdOp(None, [], [one, one], [], sym_name="tile")
            block = tile.body.blocks.append(*[IndexType.get()] * 4)
            with InsertionPoint(block):
                part = memref.AllocOp(own, [], [])
                ChannelGetOp(async_token=None, async_dependencies=[], chan_name="in", indices=[], dst=part,
                             dynamic_dst_offsets=[], dynamic_dst_sizes=[], dynamic_dst_strides=[])
                ChannelPutOp(async_dependencies=[], chan_name="out", indices=[], src=part)
                memref.DeallocOp(part)
                HerdTerminatorOp()
            ChannelGetOp(async_dependencies=[], chan_name="out", indices=[], dst=y)
            assert tile.async_token is None and list(tile.sizes) == [one, one]
    declared = func.FuncOp("declared", ([own], []), ip=InsertionPoint.at_block_begin(module.body))
    declared.attributes["sym_visibility"] = StringAttr.get("private")
    with InsertionPoint(block.operations[2]):
        func.CallOp([], "declared", [part])
        assert module.operation.verify() and declared.operation.verify()
    with InsertionPoint(block.operations[1]):
        wrong = func.CallOp([], "undeclared", [part])
    try:
        module.operation.verify()
    except MLIRError as error:
        assert "'undeclared' does not reference a valid function" in str(error)
    else:
        raise AssertionError("a call of nothing was taken")
    wrong.operation.erase()
text = str(module)
assert "air.channel.put" in text and text.startswith("module {"), text
again = Module.parse(text, Context())
assert str(again) == text, str(again)
located = text_for_aircc(module)
put = next(line for line in located.splitlines() if "air.channel.put @in" in line)
assert " loc(" not in text and "program.py" in put and Module.parse(located, Context()), located
print("PASS", pyxrt.device(0) is not None)
"""


def run_program(checkout: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aerie", "air-run", "--mlir-air", str(checkout), *words]
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)


@needs_bindings
def test_a_program_of_operations_is_made_printed_and_read(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run_program(checkout, tmp_path, "program.py")
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["PASS"]), done.stderr


PASSES = """
from air.ir import Context
from air.passmanager import PassManager

with Context():
    for name in ("canonicalize", "air-copy-to-dma"):
        PassManager.parse(f"builtin.module({name})")
        print("read")
"""


@needs_bindings
def test_a_compiler_pass_of_mlir_air_is_refused_by_name(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "program.py").write_text(PASSES)
    done = run_program(checkout, tmp_path, "program.py")
    assert (done.returncode, done.stdout.split()) == (1, ["read"])
    assert "air-copy-to-dma is a compiler pass of mlir-air, and none of mlir-air is built here" in done.stderr
