"""Whether what a design keeps in the memory of a tile has room there, its core's stack too."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation

from aerie.air_dialect.aie.array import CoreOp
from aerie.air_dialect.aie.formats import integer_of
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.aie.design import MEMTILE, Buffer, Device, Place, place_of
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.op_errors import unsupported

STACK = 1024
"""Bytes of a core's stack where the text says nothing; it lies at the begin of the tile's memory."""
_KB = 1024
_MEMORY = {MEMTILE: 512 * _KB}
_CORE_MEMORY = 64 * _KB


def check_memory(device: Device) -> None:
    """Raises UnsupportedOpError for a tile with too little memory, and a stack that reaches a buffer."""
    stacks = {place_of(core.tile): core for core in device.cores}
    for place in dict.fromkeys(buffer.place for buffer in device.buffers):
        core = stacks.get(place)
        stack = integer_of(core, "stack_size", STACK) if core is not None else 0
        _check_size(device, core or device.op, place, stack)
        for buffer in device.buffers:
            if core is not None and buffer.place == place:
                _check_address(core, buffer, stack)
    for core in device.cores:
        _check_stack(core)


def _check_size(device: Device, op: Operation, place: Place, stack: int) -> None:
    whole = device.whole_memory.get(place)
    used = sum(
        _bytes(buffer.type)
        for number, buffer in enumerate(device.buffers)
        if buffer.place == place and number != whole
    )
    most = _MEMORY.get(place[1], _CORE_MEMORY)
    if used + stack > most:
        raise unsupported(
            op,
            f"the buffers of tile {place} take {used} bytes and its stack {stack}, of {most} that there are: "
            "make buffers or depths smaller",
        )


def _check_address(core: CoreOp, buffer: Buffer, stack: int) -> None:
    if buffer.address is not None and buffer.address < stack:
        name = symbol_name(buffer.name) if buffer.name else f"of {buffer.type}"
        raise unsupported(
            core,
            f"its stack has bytes 0 to {stack - 1} of the tile, and buffer {name} begins "
            f"at byte {buffer.address}, so the stack would overwrite it: move the buffer, or give a smaller "
            "stack_size",
        )


def _check_stack(core: CoreOp) -> None:
    """The arrays that lie on the stack; what a compiler adds for registers is not counted."""
    stack = integer_of(core, "stack_size", STACK)
    arrays = [op.results[0].type for op in core.walk() if op.name == "memref.alloca"]
    used = sum(_bytes(type_) for type_ in arrays if isinstance(type_, MemRefType))
    if used > stack:
        raise unsupported(
            core,
            f"memref.alloca takes {used} bytes of a stack of {stack}, which would overwrite buffers: give a "
            "stack_size, or use aie.buffer",
        )


_ALIGNMENT = 32
"""Of buffers, as mlir-aie has it."""


def buffer_addresses(device: Device) -> list[int]:
    """Where each buffer lies in its tile's memory: as the text says, else behind the stack and the buffers
    before it, as mlir-aie's --alloc-scheme=basic-sequential has it. A buffer for a whole memory is at 0."""
    cores = {place_of(core.tile): integer_of(core, "stack_size", STACK) for core in device.cores}
    following: dict[Place, int] = {}
    found = []
    for number, buffer in enumerate(device.buffers):
        start = following.get(buffer.place, cores.get(buffer.place, 0))
        address = start if buffer.address is None else buffer.address
        if device.whole_memory.get(buffer.place) == number:
            found.append(0)
            continue
        end = address + _bytes(buffer.type)
        following[buffer.place] = max(start, -(-end // _ALIGNMENT) * _ALIGNMENT)
        found.append(address)
    return found


def _bytes(type_: MemRefType) -> int:
    return prod(type_.get_shape()) * types.byte_width(type_.element_type)
