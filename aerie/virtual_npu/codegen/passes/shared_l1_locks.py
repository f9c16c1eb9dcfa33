"""Adds locks around the accesses of an L1 buffer that cores share, so that one writes before others read.

air-to-aie gives such a buffer a pair of locks (`allocateSharedL1BufferLocks` in AIRToAIEPass.cpp): a core
that writes waits until the buffer is free and hands it over; a core that reads waits until it is filled and
gives it back. A lock is held for one trip of the outermost `scf.for` that has all accesses of its core; where
there is none, for accesses that follow each other directly; and where some cores have loops and others none,
for what stands in the body of the herd itself.

Here a pair of locks is two channels without data between each writer and each reader. A reader says at first
that the buffer is free, and a writer waits at last until it is again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from xdsl.builder import Builder
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import DenseArrayBase, IndexType, IntegerAttr, ModuleOp, UnitAttr, i32
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue
from xdsl.rewriter import InsertPoint

from aerie.air_dialect.assembly import OPERAND_SEGMENT_SIZES
from aerie.air_dialect.ops import (
    AsyncTokenType,
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    ExecuteOp,
    HerdOp,
    MemorySpace,
    WaitAllOp,
)
from aerie.air_dialect.values import walk
from aerie.air_dialect.verifiers import parent_ops
from aerie.virtual_npu.codegen.memory import LOCK_SHARED
from aerie.virtual_npu.codegen.op_errors import line_of, unsupported
from aerie.virtual_npu.codegen.sharing import (
    CoreAccesses,
    HerdCore,
    HerdUse,
    accesses_of,
    are_shared,
    cores_of,
    herd_names,
    herds_using,
    is_in,
    is_reached,
)


def add_shared_l1_locks(module: ModuleOp) -> None:
    """Change a module in place. Raises UnsupportedOpError for cores that cannot share a buffer so."""
    for alloc in [op for op in walk(module) if isinstance(op, memref.AllocOp)]:
        uses = herds_using(alloc.memref) if is_in(alloc.memref, MemorySpace.L1) else []
        if uses and are_shared(uses):
            of_several = len(herd_names(uses)) > 1
            accesses = [each for use in uses for each in accesses_of(use, of_several=of_several)]
            if of_several and _run_once_each(uses, accesses):
                _BufferLocks(alloc, accesses).insert()
                alloc.attributes[LOCK_SHARED] = UnitAttr()
                _run_side_by_side([use.herd for use in uses])
            elif len(uses) == 1:
                _check_cores(alloc, accesses)
                _BufferLocks(alloc, accesses).insert()


def _run_once_each(uses: Sequence[HerdUse], accesses: Sequence[CoreAccesses]) -> bool:
    """Whether herds that run once each write or read a buffer, and none does both."""
    blocks = {use.herd.parent for use in uses}
    is_once = len(blocks) == 1 and not any(isinstance(op, scf.ForOp) for op in parent_ops(uses[0].herd))
    writes = [bool(each.writes) for each in accesses]
    return is_once and len(set(writes)) == 2 and not any(each.reads and each.writes for each in accesses)


def _check_cores(alloc: memref.AllocOp, accesses: Sequence[CoreAccesses]) -> None:
    """Refuse cores that are no neighbours, or of which several write and some of these read."""
    writers = [each for each in accesses if each.writes]
    name = f"%{alloc.memref.name_hint or 'buffer'}"
    if len(writers) > 1 and any(each.reads for each in writers):
        raise unsupported(
            alloc,
            f"{name} is handed from core to core, and {_named([each.core for each in writers])} write it, "
            "some of which read it too: such a core waits for both locks, for ever; give each step a buffer",
        )
    cores = [each.core for each in accesses]
    if not any(all(_reaches(core, owner) for core in cores) for owner in cores):
        raise unsupported(
            alloc,
            f"{name} goes between {_named(cores)}, and none has a memory that all reach: a core reaches its "
            "own, those above and below, and the one to the left; so each has a copy, and none reads what "
            "another one writes: send the data through a channel",
        )


def _named(cores: Sequence[HerdCore]) -> str:
    return "cores " + ", ".join(f"({', '.join(map(str, core.at))})" for core in cores)


def _reaches(core: HerdCore, owner: HerdCore) -> bool:
    """Whether a core reaches the memory of another one (isLegalMemAffinity of mlir-aie's AIE2 model)."""
    (x, y), (column, row) = ((*each.at, 0, 0)[:2] for each in (core, owner))
    return (x == column and abs(y - row) <= 1) or (y == row and column == x - 1)


# ---- locks ----


@dataclass
class _Section:
    """What is done under a lock: everything from one operation to another of its block."""

    first: Operation
    last: Operation


class _LockElement(NamedTuple):
    """What the channels of a herd carry: an element that means nothing, and the herd's work is between."""

    memref: SSAValue
    begin: Operation
    end: Operation


class _BufferLocks:
    """The locks of one buffer."""

    def __init__(self, alloc: memref.AllocOp, accesses: Sequence[CoreAccesses]) -> None:
        self.alloc = alloc
        self.writers = [each for each in accesses if each.writes]
        self.readers = [each for each in accesses if not each.writes]
        self.numbers = {each.core: n for n, each in enumerate([*self.writers, *self.readers])}
        loops = [_has_loop(each) for each in accesses]
        self.in_body = any(loops) and not all(loops)
        self.blanks: dict[HerdOp, _LockElement] = {}
        name = f"%{alloc.memref.name_hint or 'buffer'} (line {line_of(alloc)})"
        self.free, self.filled = (f"{name} is {state}" for state in ("free", "filled"))

    def insert(self) -> None:
        """Declare the channels and put their operations around the accesses of every core."""
        *_, module = parent_ops(self.alloc)
        for name in (self.free, self.filled):
            channel = ChannelOp(name, [len(self.numbers)] * 2)
            channel.location = self.alloc.location
            Builder(InsertPoint.at_start(module.regions[0].block)).insert(channel)
        for each in self.writers:
            for section in self._sections(each):
                self._around(each.core, section, self._take_free, self._give_filled)
            self._at_end(each.core, self._take_free)
        for each in self.readers:
            for section in self._sections(each):
                self._around(each.core, section, self._take_filled, self._give_free)
            self._at_begin(each.core, self._give_free)

    # each of these inserts the transfers of one core, with all cores on the other side

    def _take_free(self, core: HerdCore, builder: Builder) -> None:
        for reader in self.readers:
            self._transfer(builder, ChannelGetOp, self.free, (core, reader.core), core)

    def _give_filled(self, core: HerdCore, builder: Builder) -> None:
        for reader in self.readers:
            self._transfer(builder, ChannelPutOp, self.filled, (core, reader.core), core)

    def _take_filled(self, core: HerdCore, builder: Builder) -> None:
        for writer in self.writers:
            self._transfer(builder, ChannelGetOp, self.filled, (writer.core, core), core)

    def _give_free(self, core: HerdCore, builder: Builder) -> None:
        for writer in self.writers:
            self._transfer(builder, ChannelPutOp, self.free, (writer.core, core), core)

    def _transfer(
        self,
        builder: Builder,
        kind: type[ChannelPutOp | ChannelGetOp],
        channel: str,
        pair: tuple[HerdCore, HerdCore],
        core: HerdCore,
    ) -> None:
        indices = [_constant(builder, self.numbers[each]) for each in pair]
        builder.insert(kind(channel, indices, self._blank(core.herd).memref))

    def _blank(self, herd: HerdOp) -> _LockElement:
        if herd not in self.blanks:
            block = herd.body.block
            end = block.last_op
            assert end is not None
            builder = Builder(InsertPoint.at_start(block))
            made = builder.insert(memref.AllocOp.get(i32, shape=[1], memory_space=IntegerAttr(2, 64)))
            zero = builder.insert(arith.ConstantOp(IntegerAttr(0, i32)))
            store = builder.insert(memref.StoreOp.get(zero.result, made.memref, [_constant(builder, 0)]))
            freed = Builder(InsertPoint.before(end)).insert(memref.DeallocOp.get(made.memref))
            for op in (made, zero, store, freed):
                op.location = herd.location
            made.memref.name_hint = "lock"
            self.blanks[herd] = _LockElement(made.memref, store, freed)
        return self.blanks[herd]

    # ---- where ----

    def _around(
        self,
        core: HerdCore,
        section: _Section,
        before: Callable[[HerdCore, Builder], None],
        after: Callable[[HerdCore, Builder], None],
    ) -> None:
        self._insert(core, section.first, InsertPoint.before(section.first), before)
        self._insert(core, section.first, InsertPoint.after(section.last), after)

    def _at_begin(self, core: HerdCore, what: Callable[[HerdCore, Builder], None]) -> None:
        begin = self._blank(core.herd).begin
        self._insert(core, begin, InsertPoint.after(begin), what)

    def _at_end(self, core: HerdCore, what: Callable[[HerdCore, Builder], None]) -> None:
        end = self._blank(core.herd).end
        self._insert(core, end, InsertPoint.before(end), what)

    def _insert(
        self, core: HerdCore, near: Operation, place: InsertPoint, what: Callable[[HerdCore, Builder], None]
    ) -> None:
        """Insert what one core does; behind a comparison of coordinates where other cores come there too."""
        builder, block = Builder(place), Block()
        what(core, Builder(InsertPoint.at_end(block)))
        if [each for each in cores_of(core.herd) if is_reached(near, each)] != [core]:
            Builder(InsertPoint.at_end(block)).insert(scf.YieldOp())
            condition = _is_core(builder, core)
            inserted: list[Operation] = [scf.IfOp(condition, [], Region(block))]
            builder.insert(inserted[0])
        else:
            inserted = list(block.ops)
            for op in inserted:
                op.detach()  # type: ignore[no-untyped-call]
                builder.insert(op)
        for op in inserted:
            for inner in walk(op):
                inner.location = near.location

    def _sections(self, each: CoreAccesses) -> Iterator[_Section]:
        anchors = [_outside_execute(op) for op in _in_order(each)]
        if self.in_body:
            anchors = [_in_body(op, each.core.herd) for op in anchors]
        else:
            loop = _loop_of_all(anchors, each.core.herd)
            if loop is not None:
                first, last = loop.body.block.first_op, loop.body.block.last_op
                assert first is not None
                assert last is not None
                assert last.prev_op is not None
                yield _Section(first, last.prev_op)
                return
        anchors = list(dict.fromkeys(anchors))
        first = anchors[0]
        for one, other in pairwise(anchors):
            if one.next_op is not other:
                yield _Section(first, one)
                first = other
        yield _Section(first, anchors[-1])


def _constant(builder: Builder, number: int) -> SSAValue:
    return builder.insert(arith.ConstantOp(IntegerAttr(number, IndexType()))).result


def _is_core(builder: Builder, core: HerdCore) -> SSAValue:
    """Insert a comparison of the coordinates of who executes with those of a core."""
    parts: list[SSAValue] = []
    for index, coordinate in zip(core.herd.ids, core.at, strict=True):
        parts.append(builder.insert(arith.CmpiOp(index, _constant(builder, coordinate), "eq")).result)
    while len(parts) > 1:
        parts = [builder.insert(arith.AndIOp(parts[0], parts[1])).result, *parts[2:]]
    return parts[0]


# ---- where accesses stand ----


def _in_order(each: CoreAccesses) -> list[Operation]:
    """The accesses of a core in the order of the text."""
    accesses = {id(op) for op in (*each.reads, *each.writes)}
    return [op for op in walk(each.core.herd) if id(op) in accesses]


def _outside_execute(op: Operation) -> Operation:
    around = op.parent_op()
    while isinstance(around, ExecuteOp):
        op, around = around, around.parent_op()
    return op


def _in_body(op: Operation, herd: HerdOp) -> Operation:
    """The operation of the herd's own block that another one stands in."""
    while op.parent_op() is not herd:
        around = op.parent_op()
        assert around is not None
        op = around
    return op


def _has_loop(each: CoreAccesses) -> bool:
    return any(isinstance(loop, scf.ForOp) for op in _in_order(each) for loop in _around(op, each.core.herd))


def _around(op: Operation, herd: HerdOp) -> Iterator[Operation]:
    """The operations around one inside of a herd, nearest first."""
    for parent in parent_ops(op):
        if parent is herd:
            return
        yield parent


def _loop_of_all(ops: Sequence[Operation], herd: HerdOp) -> scf.ForOp | None:
    """The outermost loop that has all of some operations."""
    loops = [loop for loop in _around(ops[0], herd) if isinstance(loop, scf.ForOp)]
    common = [loop for loop in loops if all(loop in _around(op, herd) for op in ops)]
    return common[-1] if common else None


# ---- herds that hand over ----


def _run_side_by_side(herds: Sequence[HerdOp]) -> None:
    """Let none of some herds wait for the token of another one: on the device they all run at once, and locks
    order what they do."""
    tokens = {herd.async_token for herd in herds if herd.async_token is not None}
    for herd in herds:
        kept = dict.fromkeys(each for token in herd.async_dependencies for each in _without(token, tokens))
        groups = [list(kept), list(herd.sizes), list(herd.kernel_operands)]
        herd.operands = [value for group in groups for value in group]
        herd.properties[OPERAND_SEGMENT_SIZES] = DenseArrayBase.from_list(
            i32, [len(group) for group in groups]
        )


def _without(token: SSAValue, dropped: set[OpResult]) -> list[SSAValue]:
    """The tokens to wait for in place of one, without some."""
    if token in dropped:
        return []
    owner = token.owner
    if isinstance(owner, WaitAllOp) and isinstance(token.type, AsyncTokenType):
        return [each for one in owner.async_dependencies for each in _without(one, dropped)]
    return [token]
