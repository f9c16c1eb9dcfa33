"""L1 buffers of a tile that borrow the blocks that come from a channel, instead of getting copies.

A channel that feeds a row of tiles copies every block as often as there are tiles, and again for those that
are not ready for it. Where a tile only reads what it gets, a pointer to one copy does as well: the buffer is
filled by nothing but channels, all of it each time, and every other use of it reads, or gives it back. A
kernel in C++ reads what its source takes as a pointer to const (virtual_npu.external). Nobody writes to a
block that is on its way, and it stays for as long as somebody has it.

The channel still copies into the buffer where what a get takes is not one block; so the buffer is there too.
"""

from __future__ import annotations

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from air_dialect.ops import ChannelTransferOp
from virtual_npu.codegen import types
from virtual_npu.codegen.body import Body
from virtual_npu.codegen.borrowed import is_l1_of_a_tile, written_by
from virtual_npu.codegen.execution import Mode


def takes_loans(body: Body, buffer: SSAValue) -> bool:
    """Whether a buffer that a herd allocates borrows what it gets from channels."""
    if not body.unit.options.is_fast or body.mode is not Mode.PROCESS:
        return False
    if not is_l1_of_a_tile(buffer) or not _is_dense(buffer):
        return False
    users = [use.operation for use in buffer.uses]
    gets = [user for user in users if user.name == "air.channel.get"]
    if not gets or not all(isinstance(get, ChannelTransferOp) and _fills(get) for get in gets):
        return False
    others = [user for user in users if user not in gets and user.name != "memref.dealloc"]
    return all(_only_reads(body, user, buffer) for user in others)


def _is_dense(buffer: SSAValue) -> bool:
    assert isinstance(buffer.type, MemRefType)
    return types.memref_strides(buffer.type) == types.row_major(buffer.type.get_shape())


def _fills(get: ChannelTransferOp) -> bool:
    """Whether a get writes all of its buffer, as it lies."""
    return not get.offsets and not get.sizes and not get.strides


def _only_reads(body: Body, user: Operation, buffer: SSAValue) -> bool:
    return user.name in _READERS and all(value is not buffer for value in written_by(body, user))


_READERS = frozenset([
    "func.call", "memref.load", "affine.load", "vector.load", "vector.transfer_read", "air.channel.put",
])  # fmt: skip
"""Operations that read a memref operand and do nothing else with it, or say so (a call, by its signature)."""
