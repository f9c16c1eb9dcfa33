"""The addresses of a core's buffers in L1, as mlir-aie's aie-assign-buffer-addresses assigns them.

Read in AIEAssignBuffers.cpp (mlir-aie 7e00b579): the largest buffer first, into the banks round robin, after
the stack in the first bank. If a buffer fits no bank, all are placed again, one after the other. Each starts
at a multiple of the width of the core's loads and stores, which is 256 bits on AIE2P and AIE2 by the target
model. Vectors of 512 bits need a larger alignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from math import prod

from xdsl.dialects import affine, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from aerie.air_dialect.ops import HerdOp
from aerie.air_dialect.values import root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.conditions import may_run_on
from aerie.device.descriptors import buffer_bytes
from aerie.device.npu2 import DeviceModel
from aerie.device.scopes import ArrayConfiguration
from aerie.device.streams import cores
from aerie.device.transfers import allocated_bytes, extents, space_of

Buffers = dict[SSAValue, int]
"""The L1 buffers of one core, in the order of the text, each with the bytes of one copy."""


def buffers_of_cores(scope: ArrayConfiguration, herds: Sequence[HerdOp]) -> list[Buffers]:
    """The buffers of each kind of core. A core lacks the buffers of branches that its ids exclude.

    herds: the phases of one herd. They share L1 at the same time: each allocation is a separate buffer.
    """
    made = [
        (op, herd)
        for herd in herds
        for op in herd.walk()
        if isinstance(op, memref.AllocOp) and space_of(op.memref.type) == 2
    ]
    branching = any(isinstance(p, affine.IfOp | scf.IfOp) for op, herd in made for p in _between(op, herd))
    kinds = {
        tuple(may_run_on(op, herd, dict(zip(herd.ids, core, strict=False))) for op, herd in made)
        for core in ([at for at, _ in cores(herds[0])] if branching else [(0, 0)])
    }
    captured = _captured_buffers(herds)
    return [
        {
            op.memref: buffer_bytes(scope, op.memref)
            for (op, _), is_there in zip(made, kind, strict=True)
            if is_there
        }
        | captured
        for kind in kinds
    ]


def _between(op: Operation, herd: HerdOp) -> Iterator[Operation]:
    return takewhile(lambda parent: parent is not herd, parent_ops(op))


def _captured_buffers(herds: Sequence[HerdOp]) -> Buffers:
    """The segment's buffers that the herds capture, each with the bytes of one core's part."""
    buffers: Buffers = {}
    for herd in herds:
        for operand in herd.kernel_operands:
            if isinstance(operand.type, MemRefType) and space_of(operand.type) == 2:
                buffers.setdefault(root_value(operand), _share_of_core(root_value(operand), herd))
    return buffers


def bytes_of_core(scope: ArrayConfiguration, herds: Sequence[HerdOp]) -> int:
    """L1 bytes of the fullest core: its stack, and all copies of its buffers."""
    each = (
        sum(size * scope.buffer_count(buffer) for buffer, size in buffers.items())
        for buffers in buffers_of_cores(scope, herds)
    )
    return scope.program.stack_bytes + max(each, default=0)


def _share_of_core(value: SSAValue, herd: HerdOp) -> int:
    """Bytes of one core's part of an L1 buffer of the segment. Leading dimensions equal to the herd's are
    divided among the cores."""
    if not isinstance(value.type, MemRefType):
        return 0
    grid, whole = extents(herd), allocated_bytes(value) or 0
    return whole // prod(grid) if tuple(value.type.get_shape()[: len(grid)]) == grid else whole


def assign_addresses(sizes: Sequence[int], device: DeviceModel, stack_bytes: int) -> list[int]:
    """The start address of each buffer, from sizes in bytes. Addresses may exceed L1."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    addresses = _in_banks(sizes, order, device, stack_bytes)
    if addresses is None:
        addresses, end = {}, stack_bytes
        for i in order:
            addresses[i] = _aligned(end, device)
            end = addresses[i] + sizes[i]
    return [addresses[i] for i in range(len(sizes))]


def _in_banks(
    sizes: Sequence[int], order: Sequence[int], device: DeviceModel, stack_bytes: int
) -> dict[int, int] | None:
    """Addresses with each buffer in the next bank that has space; None if a buffer fits no bank."""
    count, bank_bytes = device.l1_banks, device.l1_bytes // device.l1_banks
    ends = [bank * bank_bytes for bank in range(count)]
    ends[0] += stack_bytes
    addresses: dict[int, int] = {}
    turn = 0
    for i in order:
        banks = [(turn + further) % count for further in range(count)]
        room = (b for b in banks if _aligned(ends[b], device) + sizes[i] <= (b + 1) * bank_bytes)
        bank = next(room, None)
        if bank is None:
            return None
        addresses[i] = _aligned(ends[bank], device)
        ends[bank], turn = addresses[i] + sizes[i], (bank + 1) % count
    return addresses


def _aligned(address: int, device: DeviceModel) -> int:
    return -(-address // device.bus_bytes) * device.bus_bytes


def placed_buffers(scope: ArrayConfiguration, buffers: Buffers) -> list[tuple[SSAValue, int, int]]:
    """(buffer, address, bytes) of each copy of one core's buffers."""
    each = [buffer for buffer in buffers for _ in range(scope.buffer_count(buffer))]
    sizes = [buffers[buffer] for buffer in each]
    places = assign_addresses(sizes, scope.device, scope.program.stack_bytes)
    return list(zip(each, places, sizes, strict=True))


def misaligned_buffers(scope: ArrayConfiguration, herds: Sequence[HerdOp]) -> dict[SSAValue, int]:
    """The buffers of a core that do not start at a multiple of the widest vector, each with its address.

    A double-buffered one counts if one of its copies is misaligned.
    """
    width, misaligned = scope.device.vector_bytes, {}
    for buffers in buffers_of_cores(scope, herds):
        if any(size % width for size in (*buffers.values(), scope.program.stack_bytes)):
            misaligned.update({buffer: at for buffer, at, _ in placed_buffers(scope, buffers) if at % width})
    return misaligned


def largest_gap(scope: ArrayConfiguration, herds: Sequence[HerdOp]) -> int:
    """The largest contiguous free part of L1, in bytes, on the core with the least."""
    return min((_gap(scope, buffers) for buffers in buffers_of_cores(scope, herds)), default=0)


def _gap(scope: ArrayConfiguration, buffers: Buffers) -> int:
    end, largest = scope.program.stack_bytes, 0
    for at, size in sorted((at, size) for _, at, size in placed_buffers(scope, buffers)):
        largest, end = max(largest, at - end), max(end, at + size)
    return max(largest, scope.device.l1_bytes - end)
