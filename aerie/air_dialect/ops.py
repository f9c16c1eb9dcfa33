"""Every operation and type of the AIR dialect, under one name."""

from __future__ import annotations

from xdsl.ir import Dialect

from aerie.air_dialect import execution, hierarchy, transfers
from aerie.air_dialect.assembly import op_classes
from aerie.air_dialect.execution import CustomOp, ExecuteOp, ExecuteTerminatorOp, WaitAllOp
from aerie.air_dialect.hierarchy import (
    HerdOp,
    HerdTerminatorOp,
    HierarchyOp,
    LaunchOp,
    LaunchTerminatorOp,
    RankOp,
    RankTerminatorOp,
    SegmentOp,
    SegmentTerminatorOp,
    SymmetricHeapAttr,
    TranslateOp,
    UniverseAllocOp,
    UniverseType,
)
from aerie.air_dialect.transfers import (
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
)
from aerie.air_dialect.types import AsyncTokenType, MemorySpace, memory_space, memory_space_name

AIR = Dialect(
    "air",
    [op for module in (execution, hierarchy, transfers) for op in op_classes(module)],
    [AsyncTokenType, SymmetricHeapAttr, UniverseType],
)

__all__ = [
    "AIR",
    "AsyncTokenType",
    "ChannelGetOp",
    "ChannelOp",
    "ChannelPutOp",
    "ChannelTransferOp",
    "CustomOp",
    "DmaMemcpyNdOp",
    "ExecuteOp",
    "ExecuteTerminatorOp",
    "HerdOp",
    "HerdTerminatorOp",
    "HierarchyOp",
    "LaunchOp",
    "LaunchTerminatorOp",
    "MemorySpace",
    "RankOp",
    "RankTerminatorOp",
    "SegmentOp",
    "SegmentTerminatorOp",
    "SymmetricHeapAttr",
    "TranslateOp",
    "UniverseAllocOp",
    "UniverseType",
    "WaitAllOp",
    "memory_space",
    "memory_space_name",
]
