"""Every operation and type of the AIR dialect, under one name."""

from __future__ import annotations

from xdsl.ir import Dialect

from air_dialect.channels import ChannelGetOp, ChannelOp, ChannelPutOp, ChannelTransferOp
from air_dialect.execution import ExecuteOp, ExecuteTerminatorOp, WaitAllOp
from air_dialect.hierarchy import (
    HerdOp,
    HerdTerminatorOp,
    HierarchyOp,
    LaunchOp,
    LaunchTerminatorOp,
    SegmentOp,
    SegmentTerminatorOp,
)
from air_dialect.ranks import (
    CustomOp,
    RankOp,
    RankTerminatorOp,
    SymmetricHeapAttr,
    TranslateOp,
    UniverseAllocOp,
    UniverseType,
)
from air_dialect.transfers import DmaMemcpyNdOp
from air_dialect.types import AsyncTokenType, MemorySpace, memory_space, memory_space_name

AIR = Dialect(
    "air",
    [
        ChannelGetOp,
        ChannelOp,
        ChannelPutOp,
        CustomOp,
        DmaMemcpyNdOp,
        ExecuteOp,
        ExecuteTerminatorOp,
        HerdOp,
        HerdTerminatorOp,
        LaunchOp,
        LaunchTerminatorOp,
        RankOp,
        RankTerminatorOp,
        SegmentOp,
        SegmentTerminatorOp,
        TranslateOp,
        UniverseAllocOp,
        WaitAllOp,
    ],
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
