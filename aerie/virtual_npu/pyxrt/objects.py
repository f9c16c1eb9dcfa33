"""What is there before anything runs: device, elf, context and buffer objects, and what the API shares."""

from __future__ import annotations

import enum
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from aerie import virtual_npu
from aerie.common import knobs

T = TypeVar("T")

ALIGNMENT = 64
"""Bytes; a program may assume that every argument starts on this boundary."""

POISON = 0xFF
"""Fills device memory in strict mode: NaN in every float type, -1 in every signed integer."""

HUGE_PAGE = 2 << 20
"""Bytes; a buffer at least this large asks for huge pages, which its sequential readers profit from."""

KERNEL_NAME = "MLIR_AIE"
"""What mlir-aie calls the kernel of an xclbin."""
FIRST_ARGUMENT = 3
"""The argument of such a kernel that is the sequence's first; before it come an opcode, the instructions and
their number."""

DEVICE_GONE = "the device was destroyed before its hw_context; keep it alive"
ELF_GONE = "the elf was destroyed before its hw_context; keep it alive"


class XrtError(RuntimeError):
    """A use that the device refuses, or a run that failed. A RuntimeError, as pyxrt raises."""


class xclBOSyncDirection(enum.IntEnum):  # noqa: N801  pyxrt's own spelling
    """Which way `bo.sync` moves bytes. The GMIO directions belong to other devices and are refused."""

    XCL_BO_SYNC_BO_TO_DEVICE = 0
    XCL_BO_SYNC_BO_FROM_DEVICE = 1
    XCL_BO_SYNC_BO_GMIO_TO_AIE = 2
    XCL_BO_SYNC_BO_AIE_TO_GMIO = 3


class xrt_info_device(enum.Enum):  # noqa: N801  pyxrt's own spelling
    """What `device.get_info` can be asked for."""

    name = "name"
    bdf = "bdf"


DEVICE_INFO = {xrt_info_device.name: "NPU Strix", xrt_info_device.bdf: "0000:00:00.0"}


class ert_cmd_state(enum.IntEnum):  # noqa: N801  pyxrt's own spelling
    """The state of a run. RUNNING (3) is not exported by pyxrt: a started run is QUEUED until it ends."""

    ERT_CMD_STATE_NEW = 1
    ERT_CMD_STATE_QUEUED = 2
    ERT_CMD_STATE_COMPLETED = 4
    ERT_CMD_STATE_ERROR = 5
    ERT_CMD_STATE_ABORT = 6
    ERT_CMD_STATE_SUBMITTED = 7
    ERT_CMD_STATE_TIMEOUT = 8
    ERT_CMD_STATE_NORESPONSE = 9
    ERT_CMD_STATE_SKERROR = 10
    ERT_CMD_STATE_SKCRASHED = 11


TO_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE


def make_reference(target: T, strict: bool, complaint: str) -> Callable[[], T]:
    """A function that gives `target`. In strict mode it holds a weak reference only, and raises XrtError with
    `complaint` once the owner has dropped the target."""
    if not strict:
        return lambda: target
    reference = weakref.ref(target)

    def follow() -> T:
        found = reference()
        if found is None:
            raise XrtError(complaint)
        return found

    return follow


class QueuedCommand(Protocol):
    """A run, as the queue knows it."""

    @property
    def pending(self) -> bool:
        """Whether it was started and has not ended."""

    def execute(self) -> None:
        """Carry it out."""


class RunQueue:
    """Holds started runs until someone waits: whoever waits carries them out, on its own thread."""

    def __init__(self) -> None:
        self._started: deque[QueuedCommand] = deque()
        self.busy = threading.Lock()

    def submit(self, run: QueuedCommand) -> None:
        """Put a started run at the end of the queue."""
        self._started.append(run)

    def drain(self, until: QueuedCommand) -> None:
        """Carry out started runs up to and with `until`; on return it is no longer pending."""
        with self.busy:
            started = self._started
            while until.pending and started:
                run = started.popleft()
                run.execute()
                if run is until:
                    break

    def finish_started(self) -> None:
        """Carry out all that was started; the caller holds `busy`, so that nothing else is meanwhile."""
        while self._started:
            self._started.popleft().execute()

    def drain_within(self, until: QueuedCommand, milliseconds: float | None) -> None:
        """As `drain`, but give up waiting (not running) after that time; None does not wait at all."""
        worker = threading.Thread(target=self.drain, args=(until,), name="virtual-npu", daemon=True)
        worker.start()
        worker.join(0.0 if milliseconds is None else milliseconds / 1000)


class Device:
    """One of the virtual NPUs, of which there are VNPU_DEVICES. Each has its own queue of runs, and no other
    one's buffers. `strict` is VNPU_STRICT at the time it was opened."""

    def __init__(self, index: int = 0) -> None:
        if index not in range(count := knobs.device_count()):
            there = "device 0 alone" if count == 1 else f"the devices 0 to {count - 1}"
            raise XrtError(
                f"there is no device {index!r}; the virtual NPU has {there}: VNPU_DEVICES sets the number"
            )
        self.strict = knobs.is_strict()
        self.queue = RunQueue()

    def register_xclbin(self, xclbin: Xclbin) -> Uuid:
        """Take an xclbin; what it gives is for hw_context."""
        return xclbin.get_uuid()

    def get_info(self, what: xrt_info_device) -> str:
        """What is known of the device; its name is that of an NPU2."""
        return DEVICE_INFO[what]


class Elf:
    """A program as `virtual_npu.build` writes it. `library` is the loaded shared object."""

    def __init__(self, filename: str | os.PathLike[str]) -> None:
        path = Path(filename)
        if not path.is_file():
            raise XrtError(f"there is no file '{path}'; build the program first (virtual_npu.build)")
        try:
            self.library = virtual_npu.Library(path)
        except virtual_npu.ProgramError as error:
            raise XrtError(str(error)) from error


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
    """A program of the xclbin flow, as hosts load it that read an xclbin beside a file of instructions.

    It is the shared object that `virtual_npu.build` writes. That has its runtime sequence, so instructions
    are taken and not looked at: any file will do for them.
    """

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


class HwContext:
    """The device with one program on it: of an ELF, or of the xclbin that a UUID names."""

    def __init__(self, device: Device, program: Elf | Uuid) -> None:
        elf = program if isinstance(program, Elf) else _elf_of(program)
        self.is_xclbin = elf is not program
        if not isinstance(device, Device) or not isinstance(elf, Elf):
            given = f"({type(device).__name__}, {type(elf).__name__})"
            raise XrtError(f"hw_context wants (pyxrt.device, pyxrt.elf), not {given}")
        self.strict = device.strict
        self.get_device = make_reference(device, self.strict, DEVICE_GONE)
        self.get_elf = make_reference(elf, self.strict, ELF_GONE)


def _elf_of(uuid: object) -> object:
    """The program of an xclbin; what is no UUID stays as it is, for the caller to refuse."""
    xclbin = getattr(uuid, "xclbin", None)
    return getattr(xclbin, "elf", uuid)


class DeviceMemory:
    """`nbytes` of private, zeroed memory. `bytes` is a uint8 view on it, `address` where it starts."""

    def __init__(self, nbytes: int) -> None:
        try:
            self.map = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise XrtError(
                f"no memory for a buffer object of {nbytes} bytes ({error}); "
                "release other buffers or choose a smaller shape"
            ) from error
        if nbytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self.map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.map, dtype=np.uint8)
        self.address: int = self.bytes.ctypes.data


class BufferObject:
    """`size` bytes that host and device see. `bo(parent, size, offset)` is a part of another one.

    Host memory starts as zero. In strict mode the device has memory of its own, filled with POISON, and only
    `sync` moves bytes between the two; otherwise the two are one. `ext.bo(device, size)` makes a whole one,
    and so does `bo(device, size, flags, group)` of the xclbin flow.
    """

    normal, cacheable, host_only = 0, 1 << 24, 1 << 29
    """Flags of the xclbin flow, which change nothing here."""

    def __init__(
        self, parent: BufferObject | Device, size: int, offset: int = 0, group: int | None = None
    ) -> None:
        if isinstance(parent, Device) and group is not None:
            self._make(parent, size)
            return
        if not isinstance(parent, BufferObject):
            raise XrtError(
                "pyxrt.bo(buffer, size, offset) makes a part of a buffer; for a new buffer of the ELF flow "
                "call pyxrt.ext.bo(device, size)"
            )
        if offset % ALIGNMENT:
            below = offset // ALIGNMENT * ALIGNMENT
            raise XrtError(
                f"sub-buffer offset {offset} is not on a {ALIGNMENT}-byte boundary, as programs expect; "
                f"use offset {below} or {below + ALIGNMENT}"
            )
        _check_range("sub-buffer", size, offset, parent._size)
        self._parent = parent  # a part keeps the whole alive, as XRT's does
        self._set(parent._host, parent._device, parent._start + offset, size, parent._strict)

    def _make(self, device: Device, size: int) -> None:
        if size <= 0:
            raise XrtError(f"a buffer object of {size} bytes is empty; its size must be 1 or more")
        host = DeviceMemory(size)
        on_device = host
        if device.strict:
            on_device = DeviceMemory(size)
            on_device.bytes.fill(POISON)
        self._set(host, on_device, 0, size, device.strict)

    def _set(self, host: DeviceMemory, device: DeviceMemory, start: int, size: int, strict: bool) -> None:
        self._host, self._device = host, device
        self._start, self._size = start, size
        self._strict = strict
        self._address = device.address + start

    def map(self) -> memoryview:
        """The host side as writable bytes. Valid as long as the buffer object is."""
        return memoryview(self._host.map)[self._start : self._start + self._size]

    def sync(self, direction: xclBOSyncDirection, size: int | None = None, offset: int = 0) -> None:
        """Make host writes visible to the device, or the reverse: all, or `size` bytes from `offset`."""
        if direction not in (TO_DEVICE, FROM_DEVICE):
            raise XrtError(
                f"sync direction {direction!r} is not one of the NPU's; use "
                "xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE or XCL_BO_SYNC_BO_FROM_DEVICE"
            )
        if size is not None or offset:
            size = self._size - offset if size is None else size
            _check_range("sync", size, offset, self._size)
        if self._strict:
            size = self._size if size is None else size
            part = slice(self._start + offset, self._start + offset + size)
            to, of = (self._device, self._host) if direction == TO_DEVICE else (self._host, self._device)
            to.bytes[part] = of.bytes[part]

    def write(self, content: bytes | bytearray | memoryview, offset: int = 0) -> None:
        """Copy bytes to the host side, from `offset` on."""
        data = bytes(content)
        _check_range("write", len(data), offset, self._size)
        self.map()[offset : offset + len(data)] = data

    def read(self, size: int, offset: int = 0) -> memoryview:
        """Bytes of the host side."""
        _check_range("read", size, offset, self._size)
        return self.map()[offset : offset + size]

    def size(self) -> int:
        """Bytes."""
        return self._size

    def address(self) -> int:
        """Where the device sees the buffer."""
        return self._address


class ExtBufferObject(BufferObject):
    """`ext.bo(device, size)`: a buffer of `size` bytes, on a page boundary."""

    def __init__(self, device: Device, size: int) -> None:
        if not isinstance(device, Device):
            raise XrtError(f"ext.bo wants (pyxrt.device, size), not a {type(device).__name__}")
        self._make(device, size)

    def __del__(self) -> None:
        # A view from map() outlives its buffer in Python but not with the real pyxrt: let it read NaN.
        if getattr(self, "_strict", False):
            self._host.bytes.fill(POISON)


def _check_range(what: str, size: int, offset: int, limit: int) -> None:
    if size <= 0 or offset < 0 or offset + size > limit:
        raise XrtError(
            f"{what} of {size} bytes at offset {offset} leaves the buffer object of {limit} bytes; "
            f"offset plus size must be at most {limit}, and size at least 1"
        )
