"""Device, elf, context and kernel: what has to be there before anything runs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import virtual_npu
from virtual_npu import knobs
from virtual_npu.pyxrt.errors import XrtError
from virtual_npu.pyxrt.holding import hold
from virtual_npu.pyxrt.queue import RunQueue

if TYPE_CHECKING:
    from virtual_npu.pyxrt.buffers import BufferObject
    from virtual_npu.pyxrt.runs import Run

KERNEL_PREFIX = "main:"
"""A full ELF has one device named `main`; its runtime sequences are XRT's kernels `main:SEQUENCE`."""

DEVICE_GONE = "the device was destroyed before its hw_context; keep it alive"
ELF_GONE = "the elf was destroyed before its hw_context; keep it alive"


class Device:
    """The virtual NPU. There is one, of index 0. `strict` is VNPU_STRICT at the time it was opened."""

    def __init__(self, index: int = 0) -> None:
        if index != 0:
            raise XrtError(f"there is no device {index!r}; the virtual NPU is device 0")
        self.strict = knobs.strict()
        self.queue = RunQueue()


class Elf:
    """A program as `virtual_npu.build` writes it. `library` is the loaded shared object."""

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        path = Path(filename)
        if not path.is_file():
            raise XrtError(f"there is no file '{path}'; build the program first (virtual_npu.build)")
        try:
            self.library = virtual_npu.Library(path)
        except virtual_npu.VirtualNpuError as error:
            raise XrtError(str(error)) from error


class HwContext:
    """The device with one program on it."""

    def __init__(self, device: Device, elf: Elf) -> None:
        if not isinstance(device, Device) or not isinstance(elf, Elf):
            given = f"({type(device).__name__}, {type(elf).__name__})"
            raise XrtError(f"hw_context wants (pyxrt.device, pyxrt.elf), not {given}")
        self.strict = device.strict
        self.get_device = hold(device, self.strict, DEVICE_GONE)
        self.get_elf = hold(elf, self.strict, ELF_GONE)


class Kernel:
    """An entry of the program, named `main:ENTRY`."""

    def __init__(self, context: HwContext, name: str) -> None:
        if not isinstance(context, HwContext):
            raise XrtError(f"kernel wants (pyxrt.hw_context, name), not a {type(context).__name__}")
        self.get_context = hold(
            context,
            context.strict,
            f"the hw_context of kernel '{name}' was destroyed while the kernel is in use; destroy buffers, "
            "then kernel, then context, then elf, then device",
        )
        entries = context.get_elf().library.entries
        self.entry = name[len(KERNEL_PREFIX) :]
        if not name.startswith(KERNEL_PREFIX) or self.entry not in entries:
            raise XrtError(_no_such_kernel(name, entries))
        self.name = name
        self.arguments = entries[self.entry].arguments

    def __call__(self, *arguments: BufferObject) -> Run:
        """A started run with these arguments."""
        from virtual_npu.pyxrt.runs import Run

        run = Run(self)
        for index, argument in enumerate(arguments):
            run.set_arg(index, argument)
        run.start()
        return run


class ExtKernel(Kernel):
    """`ext.kernel(context, "main:ENTRY")`: the kernel of the ELF flow."""


def _no_such_kernel(name: str, entries: Iterable[str]) -> str:
    names = [KERNEL_PREFIX + entry for entry in entries]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4) or names[:1]
    return (
        f"no kernel '{name}' in this elf; it has: {', '.join(names)}. "
        f"Write '{near[0]}' (the real device answers a wrong name with a timeout)"
    )
