"""A device with pyxrt's API for the ELF flow, carried out by the virtual NPU.

    device = pyxrt.device(0)
    context = pyxrt.hw_context(device, pyxrt.elf("program.so"))
    kernel = pyxrt.ext.kernel(context, "main:program")
    buffer = pyxrt.ext.bo(device, nbytes)
    numpy.frombuffer(buffer.map(), dtype=numpy.uint8)[:] = ...
    buffer.sync(pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
    run = pyxrt.run(kernel)
    run.set_arg(0, buffer)
    run.start()
    run.wait2()

Names and call order are XRT's (src/python/pybind11/src/pyxrt.cpp), so a caller can use either module.
An "elf" here is the shared object that `virtual_npu.build` writes.

With VNPU_STRICT=1 host and device have memory of their own, device memory starts as NaN, sizes must match
to the byte, and nothing keeps alive what its owner has dropped: what the real device would answer with wrong
numbers, a hang or a fault is an XrtError here. Without it host and device share memory, and `sync` copies
nothing.

Hosts of the xclbin flow (mlir-aie, IRON) run too: `xclbin`, `device.register_xclbin`, `hw_context(device,
uuid)`, `bo(device, size, flags, group)`, `kernel(opcode, instructions, count, buffers...)`; see pyxrt.xclbin.

Runs are carried out in start order by the thread that waits for them (`wait`, `wait2`); `state` and a `wait`
with a timeout hand them to a thread of their own.
"""

from aerie.virtual_npu.pyxrt.objects import BufferObject as bo  # noqa: N813  pyxrt's own spelling
from aerie.virtual_npu.pyxrt.objects import Device as device  # noqa: N813
from aerie.virtual_npu.pyxrt.objects import Elf as elf  # noqa: N813
from aerie.virtual_npu.pyxrt.objects import (
    ExtBufferObject,
    XrtError,
    ert_cmd_state,
    xclBOSyncDirection,
    xrt_info_device,
)
from aerie.virtual_npu.pyxrt.objects import HwContext as hw_context  # noqa: N813
from aerie.virtual_npu.pyxrt.objects import Module as module  # noqa: N813
from aerie.virtual_npu.pyxrt.objects import Uuid as uuid  # noqa: N813
from aerie.virtual_npu.pyxrt.objects import Xclbin as xclbin  # noqa: N813
from aerie.virtual_npu.pyxrt.runs import ExtKernel
from aerie.virtual_npu.pyxrt.runs import Run as run  # noqa: N813
from aerie.virtual_npu.pyxrt.runs import RunList as runlist  # noqa: N813
from aerie.virtual_npu.pyxrt.runs import XrtKernel as kernel  # noqa: N813


class ext:  # noqa: N801
    """The constructors of the ELF flow."""

    bo, kernel = ExtBufferObject, ExtKernel


__all__ = [
    "XrtError",
    "bo",
    "device",
    "elf",
    "ert_cmd_state",
    "ext",
    "hw_context",
    "kernel",
    "module",
    "run",
    "runlist",
    "uuid",
    "xclBOSyncDirection",
    "xclbin",
    "xrt_info_device",
]
