"""The xclbin flow of pyxrt: a program is registered with the device, and its one kernel takes instructions.

The virtual NPU's xclbin is the same file as its elf. The instructions, which the caller hands over first,
mean nothing to it.
"""

from __future__ import annotations

import os
import sys
import uuid

from aerie.virtual_npu.pyxrt.objects import (
    BufferObject,
    Device,
    Elf,
    HwContext,
    XrtError,
    ert_cmd_state,
)
from aerie.virtual_npu.pyxrt.runs import KERNEL_PREFIX, Run, XrtKernel

KERNEL_NAME = "MLIR_AIE"
"""What aircc calls the kernel of an xclbin where nobody names it."""
FIRST_ARGUMENT = 3
"""A kernel's first three arguments are the opcode, the instructions and their number."""


class XclbinKernel:
    """What `xclbin.get_kernels` tells of a kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def get_name(self) -> str:
        """The name for `pyxrt.kernel`."""
        return self._name


class Xclbin(Elf):
    """A program as the virtual NPU's aircc writes it."""

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        super().__init__(filename)
        self._uuid = uuid.uuid4()

    def get_uuid(self) -> uuid.UUID:
        """The name under which the device knows the program."""
        return self._uuid

    def get_kernels(self) -> list[XclbinKernel]:
        """The program's one kernel."""
        return [XclbinKernel(KERNEL_NAME)]


class XclbinDevice(Device):
    """A device that also takes xclbins."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self._registered: dict[uuid.UUID, Xclbin] = {}

    def register_xclbin(self, xclbin: Xclbin) -> uuid.UUID:
        """Make a program known to the device."""
        self._registered[xclbin.get_uuid()] = xclbin
        return xclbin.get_uuid()

    load_xclbin = register_xclbin

    def find_registered(self, name: uuid.UUID) -> Xclbin:
        """The program of that uuid. Raises XrtError."""
        if name not in self._registered:
            raise XrtError(f"no xclbin with uuid {name} is registered: call device.register_xclbin first")
        return self._registered[name]


class XclbinContext(HwContext):
    """`hw_context(device, elf)`, or `hw_context(device, uuid)` of a registered xclbin."""

    def __init__(self, device: Device, program: Elf | uuid.UUID, *_mode: object) -> None:
        if isinstance(program, uuid.UUID) and isinstance(device, XclbinDevice):
            program = device.find_registered(program)
        super().__init__(device, program)  # type: ignore[arg-type]  # it says what it wants itself
        self.program = program


class XclbinRun(Run):
    """A run of the xclbin flow, whose callers look at the state alone: it prints why it failed."""

    def wait(self, timeout_ms: int = 0) -> ert_cmd_state:
        """As of any run."""
        state = super().wait(timeout_ms)
        if state == ert_cmd_state.ERT_CMD_STATE_ERROR:
            print(f"error: {self._failure}", file=sys.stderr, flush=True)
        return state


class XclbinFlowKernel(XrtKernel):
    """`kernel(context, "main:ENTRY")`, or `kernel(context, "MLIR_AIE")` of an xclbin."""

    def __init__(self, context: HwContext, name: str) -> None:
        self._of_xclbin = isinstance(getattr(context, "program", None), Xclbin)
        if self._of_xclbin:
            entries = list(context.get_elf().library.entries)
            if len(entries) != 1:
                raise XrtError(f"an xclbin has one kernel, and this program has {len(entries)}: use an elf")
            name = f"{KERNEL_PREFIX}{entries[0]}"
        super().__init__(context, name)

    def group_id(self, index: int) -> int:
        """The memory of an argument; there is one memory."""
        return index

    def __call__(self, *arguments: BufferObject | int) -> Run:
        """A started run. Of an xclbin the arguments are opcode, instructions, their number, buffers."""
        of_kernel = arguments[FIRST_ARGUMENT:] if self._of_xclbin else arguments
        run = XclbinRun(self) if self._of_xclbin else Run(self)
        # As on the device, an argument too many has no effect.
        for index, argument in enumerate(of_kernel[: len(self.arguments)]):
            run.set_arg(index, argument)
        run.start()
        return run
