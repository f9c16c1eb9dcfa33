"""The host's side of a program: the sequence of NPU instructions that aircc makes of its launches.

Run with mlir-air e972f294 and mlir-aie 7e00b579. A scalar that a herd is given becomes a run-time parameter:
a word of each core's L1, `__air_herd_rtp`, that the sequence writes before the core reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from xdsl.dialects import memref, scf
from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from aerie.air_dialect.index_constants import constant_int, leaves
from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp, HierarchyOp, LaunchOp
from aerie.air_dialect.values import resolve_alias, root_value
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.buffer_copies import trip_count
from aerie.device.conditions import is_dead
from aerie.device.descriptors import Dims, contiguous, stride_of
from aerie.device.launches import host_loop_trips, loop_trips
from aerie.device.npu2 import (
    DMA_TO_CHANNEL,
    INSTRUCTIONS,
    LOCALITY,
    LOWERING,
    SEQUENCES,
    TASK_QUEUE,
    DmaLimits,
)
from aerie.device.report import Fault, Finding
from aerie.device.scopes import CheckedProgram, op_location
from aerie.device.transfers import TransferSide, extents, space_of, transfer_sides

Scalar = IndexType | IntegerType | AnyFloat


def check_parameters(program: CheckedProgram) -> Iterator[Finding]:
    """Scalars that a herd is given, where the sequence cannot write them."""
    for herd in program.module.walk():
        if not isinstance(herd, HerdOp):
            continue
        for operand, inside in zip(herd.kernel_operands, herd.kernel_args, strict=True):
            if isinstance(operand.type, Scalar) and not _is_id(operand) and _stays_on_core(inside):
                yield from _parameter(program, herd, operand, inside)


def _is_id(value: SSAValue) -> bool:
    """Whether it is an id of a segment or launch, handed on by none: a constant of each core."""
    around = value.owner.parent_op() if isinstance(value, BlockArgument) else None
    return isinstance(around, HierarchyOp) and value in around.ids


def _stays_on_core(value: SSAValue) -> bool:
    """Whether a core works with it: where it only says which part of L3 or L2 a DMA moves, it leaves the herd
    with the DMA."""
    return any(_is_work(use.operation, value) for use in value.uses)


def _is_work(op: Operation, value: SSAValue) -> bool:
    if isinstance(op, DmaMemcpyNdOp):
        return any(side.space == 2 and value in side.offsets for side in transfer_sides(op))
    if op.name == "affine.apply" or op.name.startswith("arith."):
        return any(map(_stays_on_core, op.results))
    return True


def _parameter(program: CheckedProgram, herd: HerdOp, operand: SSAValue, inside: SSAValue) -> Iterator[Fault]:
    given = f"the herd gets %{inside.name_hint or inside.type}"
    place = op_location(herd)
    if isinstance(operand.type, AnyFloat):
        message = (
            f"{given}, a float: its cores read a run-time parameter that the host never writes, so hand over "
            "its bits as an i32"
        )
        yield Fault("parameter", place, message, TASK_QUEUE, herd, certain=False)
    launch = next((op for op in parent_ops(herd) if isinstance(op, LaunchOp)), None)
    left = 1 if launch is None else host_loop_trips(launch, program.options.loop_tiling)
    if _comes_from_the_caller(operand):
        message = (
            f"{given}, which the caller chooses: a sequence of instructions has constants only, so make it "
            "one, or put it into a buffer"
        )
        yield Fault("parameter", place, message, INSTRUCTIONS, herd)
    elif left > 1:
        known = program.options.loop_tiling is not None
        unless = "" if known else ", unless the launch is unrolled"
        message = (
            f"{given}, and {left} points of the launch are a loop of the host{unless}: mlir-aie finds the "
            "buffer of a run-time parameter outside of loops only, which is a fault of its own; compile with "
            "--air-runtime-loop-tiling-sizes=1 for each dimension of the launch, or work the value out on "
            "the core"
        )
        yield Fault("parameter", place, message, SEQUENCES, herd, certain=known)


def _comes_from_the_caller(value: SSAValue) -> bool:
    return any(map(_is_of_the_caller, leaves(value)))


def _is_of_the_caller(value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) and isinstance(value.owner.parent_op(), FuncOp)


def check_caller_extents(program: CheckedProgram) -> Iterator[Finding]:
    """Transfers of L3 whose size, stride or offset the caller chooses."""
    for op in program.module.walk():
        if isinstance(op, DmaMemcpyNdOp | ChannelTransferOp) and _reaches_the_host(op):
            numbers = [value for value in op.operands if isinstance(value.type, IndexType | IntegerType)]
            if any(map(_comes_from_the_caller, numbers)):
                message = (
                    "a transfer of L3 that a scalar argument of the function changes: a sequence of "
                    "instructions has constants only, so compile a program for each value"
                )
                yield Fault("parameter", op_location(op), message, INSTRUCTIONS, op)


def check_traffic(program: CheckedProgram) -> Iterator[Finding]:
    """A program of which nothing reaches the host: there is no sequence to make, and nothing to run.

    A text in which nothing moves at all is taken for a part of a program.
    """
    around = [op for op in program.module.walk() if isinstance(op, HierarchyOp)]
    moves = [op for op in program.module.walk() if isinstance(op, DmaMemcpyNdOp | ChannelTransferOp)]
    reaching = [op for op in moves if _reaches_the_host(op)]
    if around and moves and all(map(is_dead, reaching)):
        idle = " but in loops of no trips" if reaching else ""
        message = (
            f"nothing moves between L3 and the array{idle}, so aircc makes no sequence of instructions; move "
            "inputs and results from and to arguments of the function"
        )
        yield Fault("traffic", op_location(around[0]), message, INSTRUCTIONS, around[0])


def _reaches_the_host(op: DmaMemcpyNdOp | ChannelTransferOp) -> bool:
    ends = (op.src, op.dst) if isinstance(op, DmaMemcpyNdOp) else (op.memref,)
    return any(space_of(value.type) == 0 for value in ends)


def check_copies(program: CheckedProgram) -> Iterator[Finding]:
    """Copies into an argument of the function, which the host would have to make itself."""
    bare = [f for f in program.functions if not any(isinstance(op, LaunchOp) for op in f.walk())]
    for op in (op for function in bare for op in function.walk()):
        if op.name == "memref.copy" and _is_of_the_caller(root_value(op.operands[1])):
            message = (
                "a copy in L3 beside a herd without a launch, which aircc takes into the host's sequence and "
                "cannot write; put the herd into a launch, or copy in the program that calls this one"
            )
            yield Fault("host-copy", op_location(op), message, LOWERING, op)


def check_branches(program: CheckedProgram) -> Iterator[Finding]:
    """DMAs between L3 and a core in an scf.if that is no constant: aircc takes the L3 side out of the herd,
    and the condition stays with it."""
    for op in program.module.walk():
        if isinstance(op, DmaMemcpyNdOp) and _reaches_the_host(op):
            yield from _in_branch(op)


def _in_branch(op: DmaMemcpyNdOp) -> Iterator[Fault]:
    inside = takewhile(lambda parent: not isinstance(parent, HierarchyOp), parent_ops(op))
    branch = next((p for p in inside if isinstance(p, scf.IfOp) and constant_int(p.cond) is None), None)
    herd = next((parent for parent in parent_ops(op) if isinstance(parent, HerdOp)), None)
    if branch is None or herd is None:
        return
    ids = {root_value(id_) for id_ in herd.ids}
    on_ids = any(root_value(leaf) in ids for leaf in leaves(branch.cond))
    of = "a tile id" if on_ids else "a value of the core"
    message = (
        f"a DMA of L3 in an scf.if on {of}: air-dma-to-channel takes its L3 side to the launch with all its "
        "members, and air-to-aie finds no core for those that the condition shuts out; use affine.if on the "
        "tile ids, or move the DMA out of the branch"
    )
    yield Fault("branch", op_location(op), message, DMA_TO_CHANNEL, op, certain=on_ids)


def check_shared_writes(program: CheckedProgram) -> Iterator[Finding]:
    """Places of L3 that several points of a launch write: no offset has one of its coordinates in it."""
    for side in program.transfers:
        launch = next((op for op in parent_ops(side.op) if isinstance(op, LaunchOp)), None)
        if side.space != 0 or side.reads or launch is None or not _is_whole(side.memref):
            continue
        indices = side.op.indices if isinstance(side.op, ChannelTransferOp) else ()
        used = {root_value(leaf) for value in (*side.offsets, *indices) for leaf in leaves(value)}
        for axis, (id_, size) in enumerate(zip(launch.ids, extents(launch), strict=True)):
            if size > 1 and id_ not in used:
                message = (
                    f"all {size} points of the launch along dimension {axis} write the same place of L3, "
                    "which air-verify-hierarchy-locality refuses; let an offset depend on the coordinate"
                )
                yield Fault("shared-write", op_location(side.op), message, LOCALITY, side.op)


def _is_whole(value: SSAValue) -> bool:
    """Whether it is a buffer itself, not a view whose place may depend on coordinates."""
    while (source := resolve_alias(value)) is not None:
        value = source
    return isinstance(value, BlockArgument) or isinstance(value.owner, memref.AllocOp)


# ---- loops around a transfer of L3 ----


def check_loop_strides(program: CheckedProgram) -> Iterator[Finding]:
    """Loops around a transfer of L3 that become dimensions of its descriptor, with a stride that is too far.

    `air-opt-shim-dma-bds` makes dimensions of loops while there are any left. airrt-to-npu writes a dimension
    whose stride is too far as several transfers, but only where none that is further out walks.
    """
    limits, granule = program.device.shim, program.device.granule_bytes * 8
    furthest = limits.max_stride_granules
    for side in program.transfers:
        dims = side.known_dims if side.space == 0 else None
        if dims is None:
            continue
        walk = contiguous(dims)
        room = limits.dims - sum(size > limits.max_wrap for size, _ in walk)
        for count, stride in _outer_loops(program, side):
            if count > 1 and len(walk) <= room:
                walk = _with_loop(walk, count, stride, limits)
        far = next((at for at, dim in enumerate(walk) if dim[1] * side.bits // granule > furthest), 0)
        if far and walk[far][1] not in {stride for _, stride in dims}:
            message = (
                f"a loop moves this transfer of L3 by {walk[far][1] * side.bits // 8} bytes a trip, and "
                f"others around it repeat that; a descriptor's stride holds {furthest * granule // 8}, so "
                "move less of the buffer at a time"
            )
            known = program.options.loop_tiling is not None
            yield Fault("stride", op_location(side.op), message, TASK_QUEUE, side.op, certain=known)


def _with_loop(walk: Dims, count: int, stride: int, limits: DmaLimits) -> Dims:
    """A walk repeated by a loop; one dimension with its outermost where a register holds the size."""
    size, step = walk[0] if walk else (1, stride)
    if stride == size * step and count * size <= limits.max_wrap:
        return [(count * size, step), *walk[1:]]
    return [(count, stride), *walk]


def _outer_loops(program: CheckedProgram, side: TransferSide) -> Iterator[tuple[int, int]]:
    """(trips, stride in elements) of the loops around a transfer, innermost first; the launch's are last."""
    for op in parent_ops(side.op):
        if isinstance(op, scf.ForOp):
            yield trip_count(op) or 1, stride_of(side, op.body.block.args[0], constant_int(op.step) or 1) or 0
        if isinstance(op, LaunchOp):
            sizes = extents(op)
            given = program.options.loop_tiling or ()
            for axis in reversed(range(len(sizes))):
                left = loop_trips(sizes[axis], given[axis] if axis < len(given) else None)
                yield left, stride_of(side, op.ids[axis], 1) or 0
            return
