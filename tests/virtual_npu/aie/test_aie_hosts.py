"""Hosts that were written for XRT: Python with pyxrt's xclbin flow, and C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import pyxrt
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.toolchain import instructions_header
from tests.virtual_npu.aie.register_designs import LOGICAL
from tests.virtual_npu.aie.scratchpad_designs import MODULE, WANTED

ROWS, FROM_HOST, TO_HOST = 4, 5, 8
INCLUDE = Path(virtual_npu.__file__).parent / "include" / "xrt_stand_in"


@pytest.fixture(scope="module")
def design(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hosts") / "final.xclbin"
    virtual_npu.build(f"module {{ {LOGICAL} }}", path, options=BuildOptions(checks=False))
    return path


def _wanted() -> np.ndarray:
    want = np.full((ROWS, TO_HOST), 42, np.int32)
    want[:, 2:7] = np.arange(ROWS * FROM_HOST).reshape(ROWS, FROM_HOST)
    return want.reshape(-1)


def _python_host(xrt, path: Path) -> np.ndarray:
    """As IRON's and mlir-aie's hosts have it; `xrt` is their `import pyxrt as xrt`."""
    device = xrt.device(0)
    xclbin = xrt.xclbin(str(path))
    name = next(
        kernel.get_name() for kernel in xclbin.get_kernels() if kernel.get_name().startswith("MLIR_AIE")
    )
    device.register_xclbin(xclbin)
    context = xrt.hw_context(device, xclbin.get_uuid())
    kernel = xrt.kernel(context, name)
    instructions = np.zeros(16, np.uint32)
    bo_instr = xrt.bo(device, instructions.nbytes, xrt.bo.cacheable, kernel.group_id(1))
    bo_in = xrt.bo(device, 4 * ROWS * FROM_HOST, xrt.bo.host_only, kernel.group_id(3))
    bo_out = xrt.bo(device, 4 * ROWS * TO_HOST, xrt.bo.host_only, kernel.group_id(4))
    np.frombuffer(bo_in.map(), np.int32)[:] = np.arange(ROWS * FROM_HOST)
    for bo in (bo_instr, bo_in):
        bo.sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
    run = kernel(3, bo_instr, len(instructions), bo_in, bo_out)
    assert run.wait() == xrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
    bo_out.sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
    return np.frombuffer(bo_out.map(), np.int32).copy()


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_python_host_of_the_xclbin_flow(design: Path, strict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VNPU_STRICT", strict)
    assert np.array_equal(_python_host(pyxrt, design), _wanted())


def test_instructions_in_an_elf(design: Path) -> None:
    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.xclbin(str(design)).get_uuid())
    kernel = pyxrt.ext.kernel(context, pyxrt.module(pyxrt.elf(str(design))), "MLIR_AIE")
    assert device.get_info(pyxrt.xrt_info_device.name) == "NPU Strix"
    run = pyxrt.run(kernel)
    first, second = pyxrt.ext.bo(device, 4 * 20), pyxrt.ext.bo(device, 4 * 32)
    np.frombuffer(first.map(), np.int32)[:] = np.arange(20)
    run.set_arg(0, 3)
    run.set_arg(3, first)
    run.set_arg(4, second)
    run.start()
    run.wait2()
    assert np.array_equal(np.frombuffer(second.map(), np.int32), _wanted())


def test_a_module_of_something_else() -> None:
    with pytest.raises(pyxrt.XrtError, match=r"module wants a pyxrt\.elf, not a int"):
        pyxrt.module(3)  # type: ignore[arg-type]


CPP_HOST = r"""
#include <cstdio>
#include <cstring>
#include "numbers.h"
#include "xrt/experimental/xrt_kernel.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_kernel.h"

// A sequence that takes a number by its instructions, and a scratchpad.
static int with_numbers(const char *path) {
  auto device = xrt::device(0);
  xrt::hw_context context(device, xrt::elf(path));
  auto words = *generate_txn_scratch_scratch(10);
  auto instructions = xrt::bo(device, 4 * words.size(), XCL_BO_FLAGS_CACHEABLE, 1);
  instructions.write(words.data());
  auto in = xrt::bo(device, 4 * 64, XRT_BO_FLAGS_HOST_ONLY, 3);
  auto out = xrt::bo(device, 4 * 8, XRT_BO_FLAGS_HOST_ONLY, 4);
  for (int i = 0; i < 64; ++i) in.map<int *>()[i] = i;
  auto run = xrt::run(xrt::kernel(context, "MLIR_AIE"));
  auto *scratchpad = run.get_ctrl_scratchpad_bo().map<unsigned *>();
  scratchpad[0] = 6, scratchpad[1] = (-3u & 0xFFFF) << 2, scratchpad[2] = 0x4020 << 2;
  run.set_arg(1, instructions);
  run.set_arg(3, in);
  run.set_arg(4, out);
  run.start();
  run.wait2();
  for (int i = 0; i < 8; ++i) std::printf("%d ", out.map<int *>()[i]);
  words.pop_back(), words.pop_back();
  auto fewer = xrt::bo(device, 4 * words.size(), XCL_BO_FLAGS_CACHEABLE, 1);
  fewer.write(words.data());
  run.set_arg(1, fewer);
  try {
    run.start();
  } catch (const std::exception &error) {
    std::printf("%s", error.what());
  }
  return 0;
}

int main(int count, char **arguments) {
  if (count > 2) return with_numbers(arguments[1]);
  auto device = xrt::device(0);
  auto xclbin = xrt::xclbin(std::string(arguments[1]));
  auto name = xclbin.get_kernels().front().get_name();
  device.register_xclbin(xclbin);
  xrt::hw_context context(device, xclbin.get_uuid());
  auto kernel = xrt::kernel(context, name);
  auto bo_instr = xrt::bo(device, 64, XCL_BO_FLAGS_CACHEABLE, kernel.group_id(1));
  auto bo_in = xrt::bo(device, 4 * 20, XRT_BO_FLAGS_HOST_ONLY, kernel.group_id(3));
  auto bo_out = xrt::bo(device, 4 * 32, XRT_BO_FLAGS_HOST_ONLY, kernel.group_id(4));
  int *in = bo_in.map<int *>();
  for (int i = 0; i < 20; ++i) in[i] = i;
  bo_in.sync(XCL_BO_SYNC_BO_TO_DEVICE);
  auto run = kernel(3u, bo_instr, 16, bo_in, bo_out);
  if (run.wait() != ERT_CMD_STATE_COMPLETED) return 2;
  bo_out.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
  for (int i = 0; i < 32; ++i) std::printf("%d ", bo_out.map<int *>()[i]);
  auto list = xrt::runlist(context);
  auto again = xrt::run(kernel);
  try {
    again.get_ctrl_scratchpad_bo();
    return 4;
  } catch (const std::exception &error) {
    std::printf("%s; ", error.what());
  }
  again.set_arg(3, bo_in);
  list.add(again);
  try {
    list.execute();
  } catch (const std::exception &error) {
    std::printf("%s", error.what());
    return 0;
  }
  return 3;
}
"""


@pytest.fixture(scope="module")
def cpp_host(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("c++")
    assert compiler is not None
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "host.cpp").write_text(CPP_HOST)
    (folder / "numbers.h").write_text(instructions_header(MODULE))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    binary = str(folder / "host")
    subprocess.run([compiler, *flags, str(folder / "host.cpp"), "-o", binary, "-ldl"], check=True)
    return binary


def test_a_cpp_host(design: Path, cpp_host: str) -> None:
    ran = subprocess.run([cpp_host, str(design)], check=True, capture_output=True, text=True, timeout=60)
    words = ran.stdout.split(" ", 32)
    assert np.array_equal(np.array(words[:32], np.int32), _wanted())
    no_scratchpad, not_set = words[32].split("; ")
    assert no_scratchpad == "the sequence has no scratchpad"
    assert not_set == "the sequence's argument 1 has not been set"


def test_numbers_and_a_scratchpad_in_cpp(cpp_host: str, tmp_path: Path) -> None:
    path = tmp_path / "aie.elf"
    virtual_npu.build(MODULE, path, options=BuildOptions(checks=False))
    ran = subprocess.run([cpp_host, path, "2"], check=True, capture_output=True, text=True, timeout=60)
    words = ran.stdout.split(" ", 8)
    assert np.array_equal(np.array(words[:8], np.int32), WANTED)
    assert words[8] == "the instructions lack the sequence's argument 1"


AIR = """
func.func @copy(%in: memref<20xi32>, %out: memref<32xi32>) {
  air.launch () in () args(%a=%in, %b=%out) : memref<20xi32>, memref<32xi32> {
    air.segment @s args(%c=%a, %d=%b) : memref<20xi32>, memref<32xi32> {
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) args(%e=%c, %f=%d) : memref<20xi32>, memref<32xi32> {
        %c20 = arith.constant 20 : index
        %one = arith.constant 1 : index
        %zero = arith.constant 0 : index
        %l1 = memref.alloc() : memref<20xi32, 2>
        air.dma_memcpy_nd (%l1[] [] [], %e[] [] []) : (memref<20xi32, 2>, memref<20xi32>)
        air.dma_memcpy_nd (%f[%zero] [%c20] [%one], %l1[] [] []) : (memref<32xi32>, memref<20xi32, 2>)
        memref.dealloc %l1 : memref<20xi32, 2>
      }
    }
  }
  return
}"""


@pytest.mark.parametrize("checks", [False, True])
def test_a_cpp_host_runs_a_program_of_the_air_level(tmp_path: Path, cpp_host: str, checks: bool) -> None:
    virtual_npu.build(AIR, tmp_path / "final.xclbin", options=BuildOptions(checks=checks))
    ran = subprocess.run(
        [cpp_host, tmp_path / "final.xclbin"], check=True, capture_output=True, text=True, timeout=60
    )
    words = ran.stdout.split(" ", 32)
    assert [int(word) for word in words[:32]] == [*range(20), *[0] * 12]
    no_scratchpad, not_set = words[32].split("; ")
    assert no_scratchpad == "the sequence has no scratchpad"
    assert not_set == "the sequence's argument 1 has not been set"


def test_a_cpp_host_gets_an_error_for_a_missing_program(cpp_host: str) -> None:
    ran = subprocess.run([cpp_host, "no.xclbin"], check=False, capture_output=True, text=True, timeout=60)
    assert "build it with aerie vnpu build DESIGN.mlir -o no.xclbin" in ran.stderr
