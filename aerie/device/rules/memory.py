"""Bytes of L1 and L2, with the stack and the copies of double buffers, and of what the host hands over."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import memref
from xdsl.dialects.builtin import MemRefType, UnrankedMemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from aerie.air_dialect.ops import ChannelTransferOp, DmaMemcpyNdOp, HerdOp, HierarchyOp
from aerie.air_dialect.types import attribute_text
from aerie.air_dialect.values import root_value
from aerie.device.descriptors import buffer_bytes
from aerie.device.l1_placement import bytes_of_core
from aerie.device.npu2 import ADDRESS_PATCH, DIALECT, TARGET_MODEL, TO_AIE, XRT_BACKEND
from aerie.device.report import Fault, Finding, ResourceUsage
from aerie.device.scopes import ArrayConfiguration, CheckedProgram, op_location
from aerie.device.transfers import allocated_bytes, element_bits, memref_bytes, space_of


def check_l1(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Stack and every L1 buffer of one core of each herd."""
    for name, herds in scope.herds.items():
        yield ResourceUsage(
            scope.report_name(name),
            "L1 bytes",
            bytes_of_core(scope, herds),
            scope.device.l1_bytes,
            TARGET_MODEL,
            "use smaller L1 tiles",
            herds[0],
        )


def check_l2(scope: ArrayConfiguration) -> Iterator[Finding]:
    """Every L2 buffer of the segment, over all the memtiles it has."""
    buffers = [op.memref for op in scope.ops if isinstance(op, memref.AllocOp)]
    used = sum(
        buffer_bytes(scope, value) * scope.buffer_count(value)
        for value in buffers
        if space_of(value.type) == 1
    )
    yield ResourceUsage(
        scope.place,
        "L2 bytes",
        used * scope.copies,
        scope.memtiles * scope.device.l2_bytes,
        TARGET_MODEL,
        f"use smaller L2 tiles, or more columns ({scope.memtiles} memtiles, one per column)",
        scope.root,
    )


def check_memories(program: CheckedProgram) -> Iterator[Finding]:
    """Buffers and transfers whose memory no NPU has, or whose size is known only at run time."""
    for op in program.module.walk():
        if isinstance(op, memref.AllocOp):
            yield from _allocated(op)
        elif isinstance(op, HerdOp):
            yield from _captured(op)
        elif isinstance(op, DmaMemcpyNdOp):
            yield from (fault for value in (op.src, op.dst) for fault in _transferred(op, value))
        elif isinstance(op, ChannelTransferOp):
            yield from _transferred(op, op.memref)


def _allocated(op: memref.AllocOp) -> Iterator[Fault]:
    yield from _space(op, op.memref)
    type_ = op.memref.type
    if space_of(type_) in (1, 2) and element_bits(type_) is not None and allocated_bytes(op.memref) is None:
        message = (
            f"{attribute_text(type_)} has a size known only at run time; memory of the array is laid out "
            "before, so give it a constant shape"
        )
        yield Fault("memory", op_location(op), message, TO_AIE, op)


def _captured(herd: HerdOp) -> Iterator[Fault]:
    for operand in herd.kernel_operands:
        outside = root_value(operand)
        around = outside.owner.parent_op() if isinstance(outside, BlockArgument) else None
        if isinstance(around, FuncOp) and space_of(operand.type) in (1, 2):
            message = (
                f"{attribute_text(operand.type)} comes from the caller, who has no memory of the array; "
                "allocate it in the segment or herd"
            )
            yield Fault("memory", op_location(herd), message, TO_AIE, herd)


def _transferred(op: Operation, value: SSAValue) -> Iterator[Fault]:
    if isinstance(value.type, UnrankedMemRefType) and space_of(value.type) != 0:
        message = f"{attribute_text(value.type)} is a memref of unknown rank; give it a shape"
        yield Fault("memory", op_location(op), message, DIALECT, op)
        return
    yield from _space(op, value)
    if isinstance(value.type, MemRefType) and element_bits(value.type) is None:
        kind = attribute_text(value.type)
        message = f"elements of {kind} are none that a DMA moves; use integers or floats"
        yield Fault("memory", op_location(op), message, TO_AIE, op)


def _space(op: Operation, value: SSAValue) -> Iterator[Fault]:
    if space_of(value.type) is None:
        message = (
            f"{attribute_text(value.type)} is in no memory of an NPU; there are L3 (0 or none), L2 (1) and "
            "L1 (2)"
        )
        yield Fault("memory", op_location(op), message, DIALECT, op)


# ---- arguments of a program ----


def check_arguments(program: CheckedProgram) -> Iterator[Finding]:
    """Number and size of the arguments of each function that runs something on the array."""
    device = program.device
    for function in program.functions:
        if not any(isinstance(op, HierarchyOp) for op in function.walk()):
            continue
        name = function.sym_name.data
        limit = None if device.elf else device.xclbin_arguments
        others = ", ELF any" if device.elf else ""
        source = f"{XRT_BACKEND}: xclbin takes {device.xclbin_arguments}{others}"
        advice = "put several into one buffer, or split the program"
        used = len(function.function_type.inputs)
        yield ResourceUsage(name, "host arguments", used, limit, source, advice, function)
        yield from _sizes(function, name, device.host_buffer_bytes)


def _sizes(function: FuncOp, name: str, limit: int) -> Iterator[Fault]:
    for number, type_ in enumerate(function.function_type.inputs):
        nbytes = memref_bytes(type_) if isinstance(type_, MemRefType) else None
        if nbytes is not None and nbytes >= limit:
            message = (
                f"argument {number} has {nbytes} bytes; offsets of {limit} and more are cut to 32 "
                "bits, so split it into several buffers"
            )
            yield Fault("host-buffer", name, message, ADDRESS_PATCH, function)
