"""Where the buffers of a core lie in its L1, as mlir-aie's aie-assign-buffer-addresses puts them.

Read in AIEAssignBuffers.cpp (mlir-aie 7e00b579): the largest buffer first, into the banks in turn, behind
the stack in the first of them; where one fits into no bank, all again, one behind the other. Each begins at a
multiple of the width of the core's loads and stores, which the target model says is 256 bits on AIE2P as on
AIE2: vectors of 512 bits want more.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import SSAValue

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.values import origin
from aerie.virtual_npu.static.device import Device
from aerie.virtual_npu.static.scopes import Scope
from aerie.virtual_npu.static.transfers import extents, memref_bytes, space_of


def buffers_of_core(herds: Sequence[HerdOp]) -> dict[SSAValue, int]:
    """The L1 buffers of one core of some herds, in the order of the text, each with its bytes."""
    found: dict[SSAValue, int] = {
        op.memref: memref_bytes(op.memref.type) or 0
        for herd in herds
        for op in herd.walk()
        if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 2
    }
    for herd in herds:
        for operand in herd.kernel_operands:
            if isinstance(operand.type, MemRefType) and space_of(operand.type) == 2:
                found.setdefault(origin(operand), _share_of_core(origin(operand), herd))
    return found


def bytes_of_core(scope: Scope, herds: Sequence[HerdOp]) -> int:
    """L1 bytes of one core: the stack and every buffer, each as often as the compiler makes it.

    The phases of a herd share its memory, not in turns: each allocation is a buffer of its own.
    """
    sizes = buffers_of_core(herds).items()
    return scope.program.stack_bytes + sum(size * scope.buffers_of(buffer) for buffer, size in sizes)


def _share_of_core(value: SSAValue, herd: HerdOp) -> int:
    """One core's part of an L1 buffer made in the segment, in bytes: leading dimensions like the herd's are
    divided."""
    if not isinstance(value.type, MemRefType):
        return 0
    grid, whole = extents(herd), memref_bytes(value.type) or 0
    return whole // prod(grid) if tuple(value.type.get_shape()[: len(grid)]) == grid else whole


def addresses(sizes: Sequence[int], device: Device, stack_bytes: int) -> list[int]:
    """The byte at which each buffer begins, by their sizes in bytes; they may reach beyond L1."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    found = _in_banks(sizes, order, device, stack_bytes)
    if found is None:
        found, end = {}, stack_bytes
        for i in order:
            found[i] = _aligned(end, device)
            end = found[i] + sizes[i]
    return [found[i] for i in range(len(sizes))]


def _in_banks(
    sizes: Sequence[int], order: Sequence[int], device: Device, stack_bytes: int
) -> dict[int, int] | None:
    """Each buffer in the next bank that has room for it; None where one finds no room."""
    count, bank_bytes = device.l1_banks, device.l1_bytes // device.l1_banks
    ends = [bank * bank_bytes for bank in range(count)]
    ends[0] += stack_bytes
    found: dict[int, int] = {}
    turn = 0
    for i in order:
        banks = [(turn + further) % count for further in range(count)]
        room = (b for b in banks if _aligned(ends[b], device) + sizes[i] <= (b + 1) * bank_bytes)
        bank = next(room, None)
        if bank is None:
            return None
        found[i] = _aligned(ends[bank], device)
        ends[bank], turn = found[i] + sizes[i], (bank + 1) % count
    return found


def _aligned(address: int, device: Device) -> int:
    return -(-address // device.bus_bytes) * device.bus_bytes


def misplaced(scope: Scope, herds: Sequence[HerdOp]) -> dict[SSAValue, int]:
    """The buffers of a core that begin at no multiple of the widest vector, each with its address.

    A buffer that the compiler doubles is there twice, and counts where one of the two does.
    """
    device, sizes = scope.device, buffers_of_core(herds)
    if all(size % device.vector_bytes == 0 for size in (*sizes.values(), scope.program.stack_bytes)):
        return {}
    each = [buffer for buffer in sizes for _ in range(scope.buffers_of(buffer))]
    places = addresses([sizes[buffer] for buffer in each], device, scope.program.stack_bytes)
    return {buffer: place for buffer, place in zip(each, places, strict=True) if place % device.vector_bytes}
