"""The device with programs that virtual_npu built, in both memory modes."""

import numpy as np
import pytest

import virtual_npu
from virtual_npu import pyxrt

TO_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM_DEVICE = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE

TEXT = """
module {
  air.channel @never [1, 1]
  func.func @add(%a: memref<64xf32>, %b: memref<64xf32>, %n: i32) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    %f = arith.sitofp %n : i32 to f32
    scf.for %i = %c0 to %c64 step %c1 {
      %x = memref.load %a[%i] : memref<64xf32>
      %y = arith.addf %x, %f : f32
      memref.store %y, %b[%i] : memref<64xf32>
    }
    return
  }
  func.func @stuck(%a: memref<64xf32>) {
    air.channel.get @never[] (%a[] [] []) : (memref<64xf32>)
    return
  }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyxrt") / "program.elf"
    virtual_npu.build(TEXT, path)
    return path


@pytest.fixture(params=["0", "1"], ids=["shared", "strict"])
def opened(request, monkeypatch, program):
    monkeypatch.setenv("VNPU_STRICT", request.param)
    device = pyxrt.device(0)
    elf = pyxrt.elf(str(program))
    return device, elf, pyxrt.hw_context(device, elf)


def test_a_program_runs(opened):
    device, _, context = opened
    kernel = pyxrt.ext.kernel(context, "main:add")
    a, b = (pyxrt.ext.bo(device, 256) for _ in range(2))
    np.frombuffer(a.map(), np.float32)[:] = np.arange(64)
    a.sync(TO_DEVICE)
    run = pyxrt.run(kernel)
    for index, argument in enumerate((a, b, 5)):
        run.set_arg(index, argument)
    run.start()
    run.wait2()
    b.sync(FROM_DEVICE)
    np.testing.assert_array_equal(np.frombuffer(b.map(), np.float32), np.arange(64) + 5)


def test_a_deadlock_ends_in_error_with_the_reason(opened):
    device, _, context = opened
    kernel = pyxrt.ext.kernel(context, "main:stuck")
    a = pyxrt.ext.bo(device, 256)
    run = pyxrt.run(kernel)
    run.set_arg(0, a)
    run.start()
    assert run.wait() == pyxrt.ert_cmd_state.ERT_CMD_STATE_ERROR
    with pytest.raises(pyxrt.XrtError, match=r"(?s)run of 'main:stuck' ended in ERT_CMD_STATE_ERROR.*never"):
        run.wait2()


def test_a_wrong_name_lists_the_entries(opened):
    with pytest.raises(
        pyxrt.XrtError, match=r"no kernel 'main:sub' in this elf; it has: main:add, main:stuck"
    ):
        pyxrt.ext.kernel(opened[2], "main:sub")


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "other.elf"
    path.write_text("not a shared object")
    with pytest.raises(pyxrt.XrtError, match=r"other.elf is not a program of the virtual NPU"):
        pyxrt.elf(str(path))
