"""Memory of a buffer object: page-aligned, and given by the system only where it is touched."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

from virtual_npu.pyxrt.errors import XrtError

POISON = 0xFF
"""Fills device memory in strict mode: NaN in every float type, -1 in every signed integer."""

HUGE_PAGE = 2 << 20
"""Bytes; a buffer at least this large asks for huge pages, which its sequential readers profit from."""


class Storage:
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
