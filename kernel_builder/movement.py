"""What a DMA engine can walk, checked where the transfer is written.

The rules are those of a buffer descriptor (mlir-aie `AIEXDialect.cpp` `verifyStridesWraps` and
`AIEDialect.cpp` `DMABDOp::verify`): lengths, strides and offsets are whole 4-byte granules, and elements
narrower than 4 bytes move in runs of stride 1. So a bf16 transpose cannot be done element by element.
How many dimensions and how large they may be depends on the tile; `virtual_npu.static` checks that.
"""

from __future__ import annotations

import math

from kernel_builder.buffers import Dim, View
from kernel_builder.errors import DslError
from kernel_builder.index import Index
from virtual_npu.static.device import NPU2

GRANULE = NPU2.granule_bytes


def check_transfer(destination: View, source: View) -> None:
    """Raises DslError where no DMA can move `source` into `destination`."""
    if destination.dtype != source.dtype:
        raise DslError(
            f"a DMA cannot convert {source} to {destination.dtype}; load, convert with .to and store"
        )
    if destination.size != source.size:
        raise DslError(
            f"a DMA moves as many elements out as in: {source} has {source.size}, "
            f"{destination} has {destination.size}"
        )
    if destination.buffer.type.space == source.buffer.type.space:
        raise DslError(
            f"a DMA moves between memories, but {source} and {destination} are both in "
            f"{source.buffer.type.space}"
        )
    check_pattern(destination)
    check_pattern(source)


def check_pattern(view: View) -> None:
    """Raises DslError where no buffer descriptor can walk `view`."""
    width = view.dtype.itemsize
    dims = [dim for dim in view.dims if dim.size != 1]
    innermost = dims[-1] if dims else Dim(Index({}), 1, 1)
    if width < GRANULE and innermost.stride != 1:
        raise DslError(
            f"the innermost stride of {view} is {innermost.stride}: elements narrower than {GRANULE} bytes "
            f"move only in runs of stride 1; move whole blocks and transpose in the kernel"
        )
    if innermost.stride == 1 and innermost.size * width % GRANULE:
        raise DslError(
            f"{view} moves in runs of {innermost.size} elements, {innermost.size * width} bytes: a DMA moves "
            f"multiples of {GRANULE} bytes; make the run a multiple of {GRANULE // width} elements"
        )
    for dim in dims[:-1]:
        _check_granule(view, dim.stride * width, "a stride")
    for dim in view.dims:
        _check_granule(view, dim.offset.multiple * dim.stride * width, "an offset")


def _check_granule(view: View, nbytes: int, what: str) -> None:
    if nbytes % GRANULE:
        raise DslError(
            f"{view} has {what} that is a multiple of only {math.gcd(nbytes, GRANULE)} bytes: a DMA "
            f"addresses whole {GRANULE}-byte words; use an even number of {view.dtype} elements"
        )
