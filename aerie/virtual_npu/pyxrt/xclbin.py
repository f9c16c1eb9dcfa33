"""The xclbin flow: what hosts that read an xclbin beside a file of instructions load.

An "xclbin" here is the shared object that `virtual_npu.build` writes of a module with `aie.device`. It has
its runtime sequence, so instructions are taken and not looked at: any file will do for them.
"""

from __future__ import annotations

import enum
import os

from aerie.virtual_npu.pyxrt.objects import Elf, XrtError

KERNEL_NAME = "MLIR_AIE"
"""What mlir-aie calls the kernel of an xclbin."""
FIRST_ARGUMENT = 3
"""The argument of such a kernel that is the sequence's first; before it come an opcode, the instructions and
their number."""


class Uuid:
    """What names an xclbin."""

    def __init__(self, xclbin: Xclbin) -> None:
        self.xclbin = xclbin

    def to_string(self) -> str:
        """A text that is another one for each xclbin that is loaded."""
        return f"{id(self.xclbin):032x}"


class XclbinKernel:
    """A kernel as an xclbin lists it."""

    def get_name(self) -> str:
        """Its name."""
        return KERNEL_NAME


class Xclbin:
    """A program of the xclbin flow."""

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        self.elf = Elf(filename)

    def get_uuid(self) -> Uuid:
        """Its name for a hw_context."""
        return Uuid(self)

    def get_kernels(self) -> list[XclbinKernel]:
        """The one kernel that there is."""
        return [XclbinKernel()]


class Module:
    """`module(elf)`: instructions in an ELF of their own."""

    def __init__(self, elf: Elf | str) -> None:
        if not isinstance(elf, Elf | Xclbin | str):
            raise XrtError(f"module wants a pyxrt.elf, not a {type(elf).__name__}")


class xrt_info_device(enum.Enum):  # noqa: N801  pyxrt's own spelling
    """What `device.get_info` tells."""

    name = "name"
    bdf = "bdf"


DEVICE_INFO = {xrt_info_device.name: "NPU Strix", xrt_info_device.bdf: "0000:00:00.0"}
