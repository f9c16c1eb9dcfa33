"""Verifies a whole module, operation by operation, so that an error has a place in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, FileLineColLoc, MemRefType, ModuleOp
from xdsl.dialects.linalg.abstract_ops import NamedOperation
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from aerie.air_dialect.index_constants import constant_int, constant_ints
from aerie.air_dialect.transfers import ChannelPutOp, ChannelTransferOp, DmaMemcpyNdOp
from aerie.air_dialect.verifiers import check_indices_in_space
from aerie.common.errors import AerieError


class AirParseError(AerieError):
    """The text is not a valid module. The message is `file:line:col: error: what, and what to do`."""


def location(op: Operation) -> str:
    """`file:line:col` of an operation that came from text, `<built>` for one made in Python."""
    place = op.location
    if isinstance(place, FileLineColLoc):
        return f"{place.filename.data}:{place.line.data}:{place.column.data}"
    return "<built>"


def one_line(message: str) -> str:
    """A message without line breaks: one error is one line."""
    return " ".join(message.split())


def verify(module: ModuleOp, *, strict: bool = True, in_time: bool = False) -> None:
    """Check every rule of every operation in a module; raises AirParseError at the first broken one.

    `strict=False` accepts what mlir-air's verifiers accept, such as a transfer over a channel that the
    module does not declare: a fragment that cannot run, but can be parsed and transformed. `in_time=True`
    accepts what they refuse and what can run: a channel of a bundle that the induction variable of an
    scf.for chooses.
    """
    seen, dominance = set[Operation](), dict[Region, DominanceInfo]()
    for op in _written_operations(module):
        try:
            _check(op)
            if isinstance(op, ChannelTransferOp) and not in_time:
                check_indices_in_space(op, op.indices)
            _check_operands(op, seen, dominance)
            seen.add(op)
            if strict:
                check_runnable(op)
        except VerifyException as error:
            raise AirParseError(f"{location(op)}: error: {one_line(str(error))}") from error


def _written_operations(op: Operation) -> Iterator[Operation]:
    """The operation and all inside it, save the bodies that named linalg operations imply.

    xDSL builds those without the casts that mixed element types need, and the assembly hides them.
    """
    yield op
    if isinstance(op, NamedOperation):
        return
    for region in op.regions:
        for block in region.blocks:
            for inner in block.ops:
                yield from _written_operations(inner)


def _check(op: Operation) -> None:
    try:
        op.verify(verify_nested_ops=False)
    except VerifyException:
        raise
    except Exception as error:  # xDSL's verifiers also raise bare Exception and AssertionError
        raise VerifyException(f"{op.name} does not verify: {error}") from error
    _check_blocks(op)


def _check_blocks(op: Operation) -> None:
    for region in op.regions:
        if len(region.blocks) == 1 and region.blocks[0].is_empty and not op.has_trait(NoTerminator):
            raise VerifyException(f"{op.name} has an empty body, which needs at least its terminator")


def _check_operands(op: Operation, seen: Set[Operation], dominance: dict[Region, DominanceInfo]) -> None:
    """An operation uses only values that it sees and that are defined whenever it runs.

    `seen` are the operations met so far; `dominance` keeps what is known of the regions met.
    """
    for position, operand in enumerate(op.operands):
        owner = operand.owner
        region = owner.parent if isinstance(owner, Block) else owner.parent_region()
        user: Operation | None = op
        while user is not None and user.parent_region() is not region:
            user = user.parent_op()
        if user is None or region is None:
            raise VerifyException(
                f"operand {position} of {op.name} is {_described(owner)}, which it cannot see: the value is "
                "of a body that does not enclose the use"
            )
        home = owner if isinstance(owner, Block) else owner.parent
        if user.parent is not home and not _runs_before(home, user.parent, dominance):
            raise VerifyException(
                f"operand {position} of {op.name} is {_described(owner)} in a block that need not run "
                "before: hand the value over as a block argument"
            )
        if isinstance(owner, Operation) and user.parent is home and owner not in seen:
            raise VerifyException(
                f"operand {position} of {op.name} is {_described(owner)}, which comes later: define it first"
            )
        if user is owner:
            raise VerifyException(f"operand {position} of {op.name} is a result of the operation around it")


def _runs_before(one: Block | None, other: Block | None, dominance: dict[Region, DominanceInfo]) -> bool:
    """Whether one block of a region has run whenever another runs; a block that never runs has no say."""
    if one is None or other is None or one.parent is None:
        return False
    if one.parent not in dominance:
        dominance[one.parent] = DominanceInfo(one.parent)
    known, entry = dominance[one.parent], one.parent.blocks[0]
    return known.dominates(one, other) or not known.dominates(entry, other)


def _described(owner: Operation | Block) -> str:
    return "a block argument" if isinstance(owner, Block) else f"the result of {owner.name}"


# ---- what a program that runs must keep besides ----


def check_runnable(op: Operation) -> None:
    """Check what mlir-air's verifiers leave open; raises VerifyException.

    A compiler's test fragment may use a channel nobody declares or move 256 elements into 1024; on the device
    the first does not compile and the second hangs.
    """
    if isinstance(op, DmaMemcpyNdOp):
        _check_sizes(op, "dst", op.dst_sizes)
        _check_sizes(op, "src", op.src_sizes)
        _check_counts(op)
    if isinstance(op, ChannelTransferOp):
        _check_sizes(op, "src" if isinstance(op, ChannelPutOp) else "dst", op.sizes)
        _check_bundle(op)


def transfer_elements(memref_type: Attribute, sizes: Sequence[SSAValue]) -> int | None:
    """How many elements a side of a transfer moves, None when that is not known at compile time."""
    if sizes:
        extents = constant_ints(sizes)
        return None if extents is None else prod(extents)
    if not isinstance(memref_type, MemRefType) or DYNAMIC_INDEX in memref_type.get_shape():
        return None
    return prod(memref_type.get_shape())


def _check_sizes(op: Operation, side: str, sizes: Sequence[SSAValue]) -> None:
    for size in sizes:
        extent = constant_int(size)
        if extent is not None and extent < 1:
            raise VerifyException(f"{op.name} {side} has a size of {extent}: every size must be at least 1")


def _check_counts(op: DmaMemcpyNdOp) -> None:
    if op.pad_before is not None:
        return
    written, read = transfer_elements(op.dst.type, op.dst_sizes), transfer_elements(op.src.type, op.src_sizes)
    if written is not None and read is not None and written != read:
        raise VerifyException(
            f"air.dma_memcpy_nd writes {written} elements to dst but reads {read} from src: the products of "
            "the sizes must be equal"
        )


def _check_bundle(op: ChannelTransferOp) -> None:
    """The channel is declared, and the indices are one per dimension of its bundle, inside it.

    No indices at all mean the bundle as a whole; a single channel takes any number of them, all 0. A get
    indexes the shape after broadcasting.
    """
    channel = op.channel()
    if channel is None:
        raise VerifyException(
            f"{op.name} uses channel @{op.chan_name}, which is not declared: add "
            f"air.channel @{op.chan_name} [...] to the module"
        )
    is_put = isinstance(op, ChannelPutOp)
    extents = channel.size if is_put else channel.broadcast_shape or channel.size
    extents = extents or [1] * len(op.indices)
    if op.indices and len(op.indices) != len(extents):
        raise VerifyException(
            f"{op.name} has {len(op.indices)} indices into @{op.chan_name}, a bundle {extents}: give one per "
            "dimension"
        )
    for axis, (index, extent) in enumerate(zip(op.indices, extents, strict=False)):
        position = constant_int(index)
        if position is not None and not 0 <= position < extent:
            raise VerifyException(
                f"{op.name} index {axis} is {position}: @{op.chan_name} has {extent} there, use 0 to "
                f"{extent - 1}"
            )
