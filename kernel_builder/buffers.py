"""Buffers and views of them: memory with a place, a shape and an element type, and ways to walk it.

A view is a list of dimensions, each with an offset, a size and a stride in elements: what a DMA buffer
descriptor holds. Slicing, `reshape`, `permute` and `blocks` only ever rewrite that list; no data moves.

What a DMA engine can walk is checked where the transfer is written. The rules are those of a buffer
descriptor (mlir-aie `AIEXDialect.cpp` `verifyStridesWraps` and `AIEDialect.cpp` `DMABDOp::verify`): lengths,
strides and offsets are whole 4-byte granules, and elements narrower than 4 bytes move in runs of stride 1.
So a bf16 transpose cannot be done element by element. How many dimensions and how large they may be depends
on the tile; `aerie.device` checks that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TypeAlias, Union

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    IntegerAttr,
    IntegerType,
    MemRefType,
    NoneAttr,
)
from xdsl.ir import Attribute, SSAValue

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import DslError, DType
from aerie.kernel_builder.index import Index, IndexLike

ElementType: TypeAlias = BFloat16Type | Float16Type | Float32Type | IntegerType

_ELEMENT_TYPES: dict[str, ElementType] = {
    "byte": IntegerType(8),
    "bf16": BFloat16Type(),
    "f16": Float16Type(),
    "f32": Float32Type(),
    "i1": IntegerType(1),
    "i8": IntegerType(8),
    "i16": IntegerType(16),
    "i32": IntegerType(32),
    "i64": IntegerType(64),
}


def element_type(dtype: DType) -> ElementType:
    """The MLIR element type of `dtype`."""
    return _ELEMENT_TYPES[dtype.name]


@dataclass(frozen=True)
class BufferSpace:
    """A memory of the device: L3 (host DRAM, 0), L2 (memtiles, 1), L1 (one core tile, 2)."""

    name: str
    number: int

    def __call__(self, shape: Sequence[int], dtype: DType) -> BufferType:
        """The type of a buffer here: `L1((8, 64), bf16)`."""
        return BufferType(self, tuple(shape), dtype)

    def __str__(self) -> str:
        return self.name


L3 = BufferSpace("L3", 0)
L2 = BufferSpace("L2", 1)
L1 = BufferSpace("L1", 2)


@dataclass(frozen=True)
class BufferType:
    """Where a buffer lives, its shape in elements and its element type; row-major."""

    space: BufferSpace
    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        if not self.shape or any(not isinstance(extent, int) or extent <= 0 for extent in self.shape):
            raise DslError(f"a buffer has shape {self.shape}; give at least one extent, all positive ints")

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def memref(self) -> MemRefType[Attribute]:
        """The MLIR type; L3 is written without a memory space, as mlir-air does."""
        space = IntegerAttr(self.space.number, IntegerType(64)) if self.space.number else NoneAttr()
        return MemRefType(element_type(self.dtype), self.shape, memory_space=space)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {self.dtype} in {self.space}"


CoreBuffers: TypeAlias = Mapping[str, tuple[BufferType, int]]
"""The buffers of a core in L1, by name, and how many copies of each: 2 if the compiler may double-buffer."""


def l1_bytes(buffers: CoreBuffers) -> int:
    """Bytes of L1 that the buffers take together."""
    return sum(type_.nbytes * copies for type_, copies in buffers.values())


@dataclass(frozen=True)
class ViewDim:
    """One dimension of a view: element i is at (offset + i) * stride. is_kept is False for a dimension that
    an index has fixed: it stays in the descriptor with size 1, and is not in the shape.
    """

    offset: Index
    size: int
    stride: int
    is_kept: bool = True


Subscript: TypeAlias = Union[IndexLike, slice, "EllipsisType"]


class View:
    """A strided view of a buffer, without data of its own. shape: in elements. dims: outermost first."""

    def __init__(self, buffer: Buffer, dims: Sequence[ViewDim]) -> None:
        self.buffer = buffer
        self.dims = tuple(dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all dimensions, in elements, without those that an index has fixed."""
        return tuple(dim.size for dim in self.dims if dim.is_kept)

    @property
    def dtype(self) -> DType:
        """The element type of the buffer."""
        return self.buffer.type.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_whole_buffer(self) -> bool:
        """Whether the view covers its whole buffer, in memory order."""
        full = row_major(self.buffer.type.shape)
        return len(full) == len(self.dims) and all(
            (a.size, a.stride, a.offset.static) == (b.size, b.stride, 0)
            for a, b in zip(self.dims, full, strict=True)
        )

    def __getitem__(self, key: Subscript | tuple[Subscript, ...]) -> View:
        """Slices with a plain extent (`v[i : i + 8, :]`) keep a dimension, single indices drop one."""
        keys = _fill(key if isinstance(key, tuple) else (key,), self.shape)
        subscripts = iter(keys)
        dims = [_narrow(dim, next(subscripts), self) if dim.is_kept else dim for dim in self.dims]
        return View(self.buffer, dims)

    def reshape(self, *shape: int) -> View:
        """The same elements in the same order with another shape. Raises DslError if the strides do not allow
        it.
        """
        if math.prod(shape) != self.size:
            raise DslError(
                f"cannot view {self} as shape {shape}: {self.size} elements against {math.prod(shape)}"
            )
        pinned = [dim for dim in self.dims if not dim.is_kept]
        free = [dim for dim in self.dims if dim.is_kept]
        return View(self.buffer, [*pinned, *_regroup(free, list(shape), self)])

    def permute(self, *order: int) -> View:
        """Dimensions in another order, as `numpy.transpose` does."""
        free = [dim for dim in self.dims if dim.is_kept]
        if sorted(order) != list(range(len(free))):
            raise DslError(f"permute{order} does not name each of the {len(free)} dimensions of {self} once")
        return View(self.buffer, [*(d for d in self.dims if not d.is_kept), *(free[i] for i in order)])

    def blocks(self, *sizes: int) -> View:
        """Cut every dimension into blocks: (M, K).blocks(8, 8) has shape (M/8, K/8, 8, 8)."""
        if len(sizes) != len(self.shape):
            raise DslError(f"blocks{sizes} needs one block size for each dimension of {self}")
        split = [
            part
            for extent, by in zip(self.shape, sizes, strict=True)
            for part in _check_blocks(extent, by, self)
        ]
        outer, inner = range(0, len(split), 2), range(1, len(split), 2)
        return self.reshape(*split).permute(*outer, *inner)

    def __str__(self) -> str:
        extents = "x".join(map(str, self.shape)) or "one element"
        return f"{self.buffer.name} ({extents} {self.dtype} in {self.buffer.type.space})"


class Buffer(View):
    """A whole buffer: an argument of the kernel or an allocation."""

    def __init__(self, name: str, type: BufferType, ssa: SSAValue) -> None:
        self.name = name
        self.type = type
        self.ssa = ssa
        super().__init__(self, row_major(type.shape))


def row_major(shape: Sequence[int]) -> tuple[ViewDim, ...]:
    """The dimensions of a dense buffer of this shape."""
    return tuple(ViewDim(Index({}), size, math.prod(shape[i + 1 :])) for i, size in enumerate(shape))


def _fill(keys: tuple[Subscript, ...], shape: tuple[int, ...]) -> tuple[IndexLike | slice, ...]:
    """`keys` with `...` and missing trailing dimensions written out."""
    places = [i for i, key in enumerate(keys) if key is Ellipsis]
    count = len(keys) - len(places)
    if len(places) > 1 or count > len(shape):
        raise DslError(f"{count} subscripts for {len(shape)} dimensions of shape {shape}")
    at = places[0] if places else len(keys)
    missing = (slice(None),) * (len(shape) - count)
    return tuple(key for key in (*keys[:at], *missing, *keys[at + 1 :]) if not isinstance(key, EllipsisType))


def _narrow(dim: ViewDim, key: IndexLike | slice, view: View) -> ViewDim:
    """`dim` after one subscript."""
    if not isinstance(key, slice):
        _check_inside(Index.from_value(key), 1, dim, view)
        return ViewDim(dim.offset + key, 1, dim.stride, is_kept=False)
    if key.step not in (None, 1):
        raise DslError(
            f"a slice of {view} has step {key.step}; split the dimension with reshape and index that"
        )
    start = Index.from_value(0 if key.start is None else key.start)
    extent = (Index.from_value(dim.size if key.stop is None else key.stop) - start).static
    if extent is None:
        raise DslError(f"a slice of {view} has an extent known only on the device; write it as [i : i + 16]")
    if extent <= 0:
        raise DslError(f"a slice of {view} is empty: extent {extent}")
    _check_inside(start, extent, dim, view)
    return ViewDim(dim.offset + start, extent, dim.stride)


def _check_inside(start: Index, extent: int, dim: ViewDim, view: View) -> None:
    at = start.static
    if extent > dim.size or (at is not None and not 0 <= at <= dim.size - extent):
        described = f"{extent} elements" if at is None else f"elements {at} to {at + extent - 1}"
        raise DslError(f"{described} are outside of {view}, whose dimension there has {dim.size}")


def _check_blocks(extent: int, by: int, view: View) -> tuple[int, int]:
    if by <= 0 or extent % by:
        raise DslError(f"{extent} of {view} is no multiple of the block size {by}")
    return extent // by, by


def _merge(dims: Sequence[ViewDim], view: View) -> ViewDim:
    """Merge adjacent dimensions into one, if the memory order allows it."""
    merged = dims[0]
    for dim in dims[1:]:
        if merged.size != 1 and merged.stride != dim.size * dim.stride:
            raise DslError(
                f"cannot merge dimensions of {view}: strides {merged.stride} and {dim.stride} leave a gap"
            )
        if merged.stride % dim.stride:
            raise DslError(
                f"cannot merge dimensions of {view}: stride {merged.stride} is no multiple of {dim.stride}"
            )
        offset = merged.offset * (merged.stride // dim.stride) + dim.offset
        merged = ViewDim(offset, merged.size * dim.size, dim.stride)
    return merged


def _split(dim: ViewDim, shape: Sequence[int]) -> list[ViewDim]:
    """Split one dimension into several.

    The offset stays with the innermost, whose stride is that of the memref's own dimension: mlir-air uses it
    to find the dimension along which it spreads an L2 buffer over memtiles (`getMemrefDimFromOffsetDim`).
    """
    parts = [ViewDim(Index({}), size, dim.stride * math.prod(shape[i + 1 :])) for i, size in enumerate(shape)]
    parts[-1] = replace(parts[-1], offset=dim.offset)
    return parts


def _regroup(dims: list[ViewDim], shape: list[int], view: View) -> list[ViewDim]:
    """`dims` as dimensions of sizes `shape`: the smallest groups of equal size are merged, then split."""
    result = [] if dims else [ViewDim(Index({}), size, 1) for size in shape]
    while dims:
        left, right = [dims.pop(0)], [shape.pop(0)]
        while (a := math.prod(d.size for d in left)) != (b := math.prod(right)):
            if a < b:
                left.append(dims.pop(0))
            else:
                right.append(shape.pop(0))
        if not shape:
            left, dims = left + dims, []  # only dimensions of size 1 can be left over
        if not dims:
            right, shape = right + shape, []
        result += _split(_merge(left, view), right)
    return result


def check_transfer(destination: View, source: View, device: DeviceModel = NPU2) -> None:
    """Raise DslError if no DMA of the device can move `source` into `destination`."""
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
    check_pattern(destination, device)
    check_pattern(source, device)


def check_pattern(view: View, device: DeviceModel = NPU2) -> None:
    """Raise DslError if no buffer descriptor of the device can walk `view`."""
    width, granule = view.dtype.itemsize, device.granule_bytes
    dims = [dim for dim in view.dims if dim.size != 1]
    innermost = dims[-1] if dims else ViewDim(Index({}), 1, 1)
    if width < granule and innermost.stride != 1:
        raise DslError(
            f"the innermost stride of {view} is {innermost.stride}: elements narrower than {granule} bytes "
            f"move only in runs of stride 1; move whole blocks and transpose in the kernel"
        )
    if innermost.stride == 1 and innermost.size * width % granule:
        raise DslError(
            f"{view} moves in runs of {innermost.size} elements, {innermost.size * width} bytes: a DMA moves "
            f"multiples of {granule} bytes; make the run a multiple of {granule // width} elements"
        )
    places = [("a stride", dim.stride * width) for dim in dims[:-1]]
    places += [("an offset", dim.offset.multiple * dim.stride * width) for dim in view.dims]
    for what, nbytes in places:
        if nbytes % granule:
            raise DslError(
                f"{view} has {what} that is a multiple of only {math.gcd(nbytes, granule)} bytes: a DMA "
                f"addresses whole {granule}-byte words; use an even number of {view.dtype} elements"
            )
