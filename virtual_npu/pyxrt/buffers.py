"""Buffer objects: what host and device exchange."""

from __future__ import annotations

from virtual_npu.pyxrt.enums import xclBOSyncDirection
from virtual_npu.pyxrt.errors import XrtError
from virtual_npu.pyxrt.objects import Device
from virtual_npu.pyxrt.storage import POISON, Storage

ALIGNMENT = 64
"""Bytes; a program may assume that every argument starts on this boundary."""

TO_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
FROM_DEVICE = xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE


class BufferObject:
    """`size` bytes that host and device see. `bo(parent, size, offset)` is a part of another one.

    Host memory starts as zero. In strict mode the device has memory of its own, filled with POISON, and only
    `sync` moves bytes between the two; otherwise the two are one. `ext.bo(device, size)` makes a whole one.
    """

    def __init__(self, parent: BufferObject, size: int, offset: int = 0) -> None:
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

    def _set(self, host: Storage, device: Storage, start: int, size: int, strict: bool) -> None:
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
        if size <= 0:
            raise XrtError(f"a buffer object of {size} bytes is empty; its size must be 1 or more")
        host = Storage(size)
        on_device = host
        if device.strict:
            on_device = Storage(size)
            on_device.bytes.fill(POISON)
        self._set(host, on_device, 0, size, device.strict)

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
