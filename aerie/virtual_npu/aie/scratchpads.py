"""Parameters that a host gives a run by a scratchpad: in cores, and as offsets of descriptors.

Sources: mlir-aie's AIEX.td and AIELowerScratchpadParameters.cpp, 3ca0193c. The firmware adds a word to two
words of a tile and clears the lowest two bits. So hosts write a core's parameter shifted left by two bits,
and cores shift it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import (
    BFloat16Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from aerie.air_dialect.aie import array, scratchpads, sequence
from aerie.air_dialect.aie.formats import integer_of
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen.op_errors import attribute, unsupported

WORDS = 32
"""Words of a scratchpad, each a parameter."""
SHIFT = 2
"""Bits that the firmware clears."""
SYNC_ATTRIBUTE, OFFSET_ATTRIBUTE, OFFSET_INDEX = (
    "emit_parameter_sync_preamble",
    "offset_parameter",
    "offset_state_table_idx",
)


@dataclass(frozen=True)
class Parameter:
    """A word of the scratchpad. kind: `core` or `addr`, as mlir-aie calls a core's and an offset."""

    index: int
    type: Attribute
    kind: str


Parameters = Mapping[str, Parameter]


def has_scratchpad(module: ModuleOp) -> bool:
    """Whether sequences of a module take a scratchpad, as their last argument."""
    kinds = (scratchpads.ScratchpadParameterOp, scratchpads.CreateScratchpadOp)
    return any(isinstance(op, kinds) for op in module.walk())


def read_parameters(module: ModuleOp) -> dict[str, Parameter]:
    """The parameters of a module by name, numbered in the order of the text. Raises UnsupportedOpError."""
    declared = [op for op in module.body.block.ops if isinstance(op, scratchpads.ScratchpadParameterOp)]
    if len(declared) > WORDS:
        raise unsupported(declared[WORDS], f"{len(declared)} parameters, and a scratchpad has {WORDS} words")
    in_cores, in_offsets = _uses(module)
    found: dict[str, Parameter] = {}
    for index, op in enumerate(declared):
        name = op.sym_name.data
        if name in in_cores and name in in_offsets:
            raise unsupported(op, "is read by a core and is an offset: declare one for each")
        kind = "addr" if name in in_offsets else "core"
        _check_type(op, kind)
        found[name] = Parameter(index, op.value_type, kind)
    for name, user in {**in_cores, **in_offsets}.items():
        if name not in found:
            raise unsupported(user, f"no aiex.scratchpad_parameter {symbol_name(name)} beside the devices")
    return found


def _uses(module: ModuleOp) -> tuple[dict[str, Operation], dict[str, Operation]]:
    in_cores: dict[str, Operation] = {}
    in_offsets: dict[str, Operation] = {}
    for op in module.walk():
        offset = attribute(op, OFFSET_ATTRIBUTE)
        if isinstance(op, scratchpads.ReadScratchpadParameterOp):
            in_cores[op.parameter.root_reference.data] = op
        elif isinstance(offset, SymbolRefAttr):
            in_offsets[offset.root_reference.data] = op
    return in_cores, in_offsets


def _check_type(op: scratchpads.ScratchpadParameterOp, kind: str) -> None:
    type_ = op.value_type
    if kind == "addr" and type_ != i32:
        raise unsupported(op, f"is an offset, and has type {type_}: give it i32")
    if not isinstance(type_, BFloat16Type) and not (
        isinstance(type_, IntegerType) and type_.width.data in (8, 16, 32)
    ):
        raise unsupported(op, f"has type {type_}: a core reads i8, i16, i32 or bf16")


def parameters_text(module: ModuleOp) -> str:
    """What mlir-aie's hosts read to find parameters by name: their number, then name, word, type and kind."""
    found = read_parameters(module)
    lines = [f"{name} {one.index} {one.type} {one.kind}" for name, one in found.items()]
    return "\n".join([str(len(lines)), *lines]) + "\n"


# ---- what a device does with them ----


def lower_scratchpads(module: ModuleOp) -> Parameters:
    """Replace what reads parameters: cores get a buffer for each, and wait for a lock that a sequence sets
    when it has given the parameters. Returns the parameters. Raises UnsupportedOpError."""
    parameters = read_parameters(module)
    if has_scratchpad(module):
        for op in module.body.block.ops:
            if isinstance(op, array.DeviceOp):
                _Lowering(op, parameters).lower()
    return parameters


class _Lowering:
    """Makes the operations of one device plain ones."""

    def __init__(self, device: array.DeviceOp, parameters: Parameters) -> None:
        self._device, self._parameters = device, parameters
        self._buffers: dict[tuple[str, SSAValue], array.BufferOp] = {}
        self._locks: list[array.LockOp] = []

    def lower(self) -> None:
        """Lower all cores and sequences."""
        ops = list(self._device.body.block.ops)
        has_offsets = any(attribute(op, name) for op in self._device.walk() for name in _OFFSETS)
        for op in ops:
            if isinstance(op, array.CoreOp):
                self._lower_core(op)
        for op in ops:
            if isinstance(op, sequence.RuntimeSequenceOp):
                self._lower_sequence(op, has_offsets)

    def _lower_core(self, core: array.CoreOp) -> None:
        reads = [op for op in core.walk() if isinstance(op, scratchpads.ReadScratchpadParameterOp)]
        if _asks_for_sync(core, default=bool(reads)):
            lock = array.LockOp(
                operands=[core.tile],
                result_types=[IndexType()],
                properties={"lock_id": IntegerAttr(self._free_lock(core.tile), i32)},
                attributes={"init": IntegerAttr(0, i32), "sym_name": StringAttr("parameters")},
            )
            self._insert(InsertPoint.before(core), core, lock)
            self._locks.append(lock)
            one = arith.ConstantOp(IntegerAttr(1, i32))
            use = array.UseLockOp(
                operands=[lock.result, one.result], properties={"action": StringAttr("Acquire")}
            )
            self._insert(InsertPoint.at_start(core.body.blocks[0]), core, one, use)
        for op in reads:
            self._lower_read(op, core)

    def _free_lock(self, tile: SSAValue) -> int:
        ops = self._device.body.block.ops
        taken = {
            integer_of(op, "lock_id", -1) for op in ops if isinstance(op, array.LockOp) and op.tile is tile
        }
        return max(number for number in range(16) if number not in taken)

    def _lower_read(self, op: scratchpads.ReadScratchpadParameterOp, core: array.CoreOp) -> None:
        name = op.parameter.root_reference.data
        if (name, core.tile) not in self._buffers:
            column, row = core.tile.owner.place  # type: ignore[union-attr]
            buffer = array.BufferOp(
                operands=[core.tile],
                result_types=[MemRefType(i32, [2])],
                attributes={"sym_name": StringAttr(f"__param_{name}_{column}_{row}")},
            )
            self._insert(InsertPoint.before(core), core, buffer)
            self._buffers[name, core.tile] = buffer
        first = arith.ConstantOp(IntegerAttr(0, IndexType()))
        raw = memref.LoadOp.get(self._buffers[name, core.tile].result, [first.result])
        by = arith.ConstantOp(IntegerAttr(SHIFT, i32))
        word = arith.ShRUIOp(raw.res, by.result)
        ops: list[Operation] = [first, raw, by, word, *_converted(word.result, op.result.type)]
        op.result.replace_all_uses_with(ops[-1].results[0])
        self._insert(InsertPoint.before(op), op, *ops)
        Rewriter.erase_op(op)

    def _lower_sequence(self, op: sequence.RuntimeSequenceOp, has_offsets: bool) -> None:
        syncs = [one for one in op.walk() if isinstance(one, scratchpads.SyncScratchpadParametersOp)]
        uses = bool(self._buffers) or has_offsets
        if _asks_for_sync(op, default=uses and not syncs):
            sync = scratchpads.SyncScratchpadParametersOp()
            self._insert(InsertPoint.at_start(op.body.block), op, sync)
            syncs.append(sync)
        for sync in syncs:
            self._insert(InsertPoint.before(sync), sync, *self._sync())
            Rewriter.erase_op(sync)

    def _sync(self) -> list[Operation]:
        """Copies the scratchpad, writes each parameter of a core, and raises the locks of the cores."""
        size = IntegerAttr(4 * len(self._parameters), i32)
        ops: list[Operation] = [scratchpads.CreateScratchpadOp(attributes={"size": size})]
        for (name, _), buffer in self._buffers.items():
            at: dict[str, Attribute] = {"buffer": SymbolRefAttr(buffer.attributes["sym_name"])}  # type: ignore[arg-type]
            zero, zero_value = arith.ConstantOp(IntegerAttr(0, i32)), arith.ConstantOp(IntegerAttr(0, i32))
            ops += [
                zero,
                zero_value,
                sequence.Write32Op(operands=[zero.result, zero_value.result], attributes=at),
            ]
            index = {"state_table_idx": IntegerAttr(self._parameters[name].index, i32)}
            properties = {"function": StringAttr(scratchpads.FUNCTIONS[0])}
            ops.append(scratchpads.UpdateFromScratchpadOp(properties=properties, attributes={**at, **index}))
        for lock in self._locks:
            value = {"value": IntegerAttr(1, i32)}
            ops.append(sequence.SetLockOp(operands=[lock.result], properties=value))
        return ops

    @staticmethod
    def _insert(point: InsertPoint, like: Operation, *ops: Operation) -> None:
        """Insert operations that have the line of another one."""
        for op in ops:
            op.location = like.location
        Rewriter.insert_op(list(ops), point)


_OFFSETS = (OFFSET_ATTRIBUTE, OFFSET_INDEX)


def _asks_for_sync(op: Operation, *, default: bool) -> bool:
    given = attribute(op, SYNC_ATTRIBUTE)
    return bool(given.value.data) if isinstance(given, IntegerAttr) else default


def _converted(word: SSAValue, type_: Attribute) -> Sequence[Operation]:
    """A parameter's type from the 32 bits that its buffer holds."""
    if type_ == i32:
        return []
    if isinstance(type_, BFloat16Type):
        half = arith.TruncIOp(word, IntegerType(16))
        return [half, arith.BitcastOp(half.result, type_)]
    assert isinstance(type_, IntegerType)
    return [arith.TruncIOp(word, type_)]


# ---- descriptors ----


def offset_index(op: Operation, parameters: Parameters) -> int | None:
    """The word that is added to the offset of a descriptor; None where there is none."""
    name: Any = attribute(op, OFFSET_ATTRIBUTE)
    if isinstance(name, SymbolRefAttr):
        return parameters[name.root_reference.data].index
    index = integer_of(op, OFFSET_INDEX, -1)
    if index >= WORDS:
        raise unsupported(op, f"word {index} of a scratchpad that has {WORDS}")
    return index if index >= 0 else None
