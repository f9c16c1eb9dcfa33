"""The virtual NPU's results of one launch: in both numerics, on cores whose rounding mode was not set, and
with tagged cores, which shows which core wrote which element.

In the tagged copy of a kernel, each transfer out of an L1 buffer reads from a buffer filled with the core's
own number instead of its results. The numbers that arrive in the arguments identify the writer. A number is
core + CORES * launch iteration, as a bit pattern: nothing on the way to L3 computes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.builder import Builder
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, MemRefType
from xdsl.dialects.linalg.ops import FillOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from aerie.air_dialect import print_module
from aerie.air_dialect.ops import (
    ChannelPutOp,
    DmaMemcpyNdOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    MemorySpace,
    SegmentOp,
    memory_space,
)
from aerie.board.compare.error_patterns import describe_ranges
from aerie.device.npu2 import NPU2
from aerie.kernel_builder.spec import Array, KernelModule
from aerie.kernel_builder.testing import READ_ROLES
from aerie.virtual_npu import BuildOptions, Program

UNFUSED = BuildOptions(fast=False)
"""Every product and copy one by one, as the program says and a core does it."""

NUMERICS = {"exact": UNFUSED, "bfp16": replace(UNFUSED, numerics="bfp16")}
"""How bf16 matrices are multiplied: exactly in f32, or in block floating point as AIE2P emulates it."""

FLOOR = {f"{name}, rounded down": replace(options, rounding="floor") for name, options in NUMERICS.items()}
"""The same with the rounding mode in which cores start, for kernels that do not set it
(docs/explanation/numerics.md).
"""


PRODUCTS = ("vector.contract", "BFP16")
"""A kernel whose text has neither has no matrix product that can use blocks (docs/explanation/numerics.md),
so its results are the same in both numerics.
"""


def has_products(kernel: KernelModule) -> bool:
    """Whether the numerics can change the kernel's results."""
    return any(mark in kernel.text for mark in PRODUCTS)


def run_launch(
    kernel: KernelModule, read: Mapping[str, Array], variants: Mapping[str, BuildOptions]
) -> dict[str, dict[str, Array]]:
    """For each variant the arrays that the kernel writes, by name, from the arrays that it reads."""
    results: dict[str, dict[str, Array]] = {}
    for name, options in variants.items():
        same = next(iter(results.values()), None) if not has_products(kernel) else None
        results[name] = _run(kernel, read, options) if same is None else same
    return results


def _run(kernel: KernelModule, read: Mapping[str, Array], options: BuildOptions) -> dict[str, Array]:
    arguments = [
        read[a.name].reshape(a.shape) if a.role in READ_ROLES else np.full(a.shape, np.nan, a.dtype.numpy)
        for a in kernel.arguments
    ]
    outputs = Program.from_text(kernel.text, kernel.name, options=options).run(*arguments).outputs
    results = zip(kernel.arguments, outputs, strict=True)
    return {argument.name: array for argument, array in results if argument.role not in READ_ROLES}


COLUMNS, ROWS = NPU2.columns, NPU2.rows
CORES = COLUMNS * ROWS
"""A number modulo CORES is the core: x * ROWS + y."""
NO_WRITER = 0x7F80
"""Numbers from here on are NaN or infinite in bf16: the content of elements that no core wrote."""

INDEX = IndexType()


def writers(kernel: KernelModule, argument: str) -> Array:
    """For every element of an argument, the number of its writer; NO_WRITER or more if it has none.

    Raises ProgramError if the tagged kernel cannot run.
    """
    signed = tag_cores(kernel)
    arguments = [np.full(a.shape, np.nan, a.dtype.numpy) for a in kernel.arguments]
    outputs = Program.from_text(signed, f"signed {kernel.name}", options=UNFUSED).run(*arguments).outputs
    numbers = outputs[kernel.arguments.slot(argument)]
    return numbers.view(f"u{numbers.dtype.itemsize}")


def describe_writers(kernel: KernelModule, argument: str, wrong: Array, worst: tuple[int, ...]) -> str:
    """Which cores, by their position in the herd, and which launch iterations wrote the wrong elements."""
    numbers = writers(kernel, argument).reshape(wrong.shape)
    mine = int(numbers[worst])
    if mine >= NO_WRITER:
        return "no core writes the worst of them"
    guilty, everyone = (np.unique(part[part < NO_WRITER]) for part in (numbers[wrong], numbers))
    cores = _some([_core(core) for core in np.unique(guilty % CORES)], len(np.unique(everyone % CORES)))
    iterations = np.unique(guilty // CORES)
    total = len(np.unique(everyone // CORES))
    when = (
        f" in launch iteration {describe_ranges(iterations)} (of {total})" if len(iterations) < total else ""
    )
    return f"written by {cores}{when}; the worst by core {_core(mine % CORES)}, iteration {mine // CORES}"


def _some(cores: Sequence[str], everyone: int) -> str:
    if len(cores) == everyone:
        return f"all {everyone} cores" if everyone > 1 else f"core {cores[0]}, the only one"
    shown = ", ".join(cores[:4]) + (f" and {len(cores) - 4} more" if len(cores) > 4 else "")
    return f"core {shown} alone" if len(cores) == 1 else f"cores {shown} (of {everyone})"


def _core(number: int) -> str:
    return f"({number // ROWS}, {number % ROWS})"


def tag_cores(kernel: KernelModule) -> str:
    """The kernel's text, changed so that every core sends its number."""
    module = kernel.module.clone()
    for launch in [op for op in module.walk() if isinstance(op, LaunchOp)]:
        _tag_launch(launch)
    return print_module(module)


def _tag_launch(launch: LaunchOp) -> None:
    """Pass the iteration's coordinates down to the herds, and tag there."""
    extents = [_constant(size) for size in launch.sizes]
    for segment in [op for op in launch.walk() if isinstance(op, SegmentOp)]:
        outer, handed = _with_arguments(segment, launch.ids)
        for herd in [op for op in outer.walk() if isinstance(op, HerdOp)]:
            inner, ids = _with_arguments(herd, handed)
            _tag_herd(inner, ids, extents)


def _with_arguments(op: HierarchyOp, values: Sequence[SSAValue]) -> tuple[HierarchyOp, list[SSAValue]]:
    """The operation with more captured values, and the names of these in its body."""
    block = op.body.block
    inside = [block.insert_arg(INDEX, len(block.args)) for _ in values]
    new = type(op)(
        list(op.sizes),
        [*op.kernel_operands, *values],
        op.detach_region(op.body),
        sym_name=op.sym_name,
        async_dependencies=list(op.async_dependencies),
        is_async=op.async_token is not None,
        attributes=op.attributes,
    )
    parent = op.parent_block()
    assert parent is not None
    parent.insert_op_before(new, op)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    parent.erase_op(op)
    return new, list(inside)


def _tag_herd(herd: HierarchyOp, launch_ids: Sequence[SSAValue], extents: Sequence[int]) -> None:
    start = Builder(InsertPoint.at_start(herd.body.block))
    x, y = herd.ids
    number = _linear_index(start, [*launch_ids, x, y], [*extents, COLUMNS, ROWS])
    for op in list(herd.body.walk()):
        if isinstance(op, (DmaMemcpyNdOp, ChannelPutOp)):
            _tag_transfer(op, number)


def _linear_index(builder: Builder, ids: Sequence[SSAValue], extents: Sequence[int]) -> SSAValue:
    """The row-major index of `ids` in a space of these extents."""
    total: SSAValue = builder.insert(arith.ConstantOp.from_int_and_width(0, INDEX)).result
    for value, extent in zip(ids, extents, strict=True):
        width = builder.insert(arith.ConstantOp.from_int_and_width(extent, INDEX)).result
        scaled = builder.insert(arith.MuliOp(total, width)).result
        total = builder.insert(arith.AddiOp(scaled, value)).result
    return total


def _tag_transfer(op: DmaMemcpyNdOp | ChannelPutOp, number: SSAValue) -> None:
    """Let a transfer out of L1 read from a buffer with this core's number."""
    source = op.src if isinstance(op, DmaMemcpyNdOp) else op.memref
    kind = source.type
    if not isinstance(kind, MemRefType) or memory_space(kind) != MemorySpace.L1:
        return
    before = Builder(InsertPoint.before(op))
    width = kind.element_type.bitwidth
    plain = MemRefType(kind.element_type, kind.get_shape(), memory_space=kind.memory_space)
    buffer = before.insert(memref.AllocOp([], [], plain)).memref
    bits = before.insert(arith.IndexCastOp(number, IntegerType(width))).result
    value = before.insert(arith.BitcastOp(bits, kind.element_type)).result
    before.insert(FillOp([value], [buffer], []))
    op.operands[op.operands.index(source)] = buffer
    Builder(InsertPoint.after(op)).insert(memref.DeallocOp.get(buffer))


def _constant(value: SSAValue) -> int:
    assert isinstance(value.owner, arith.ConstantOp)
    assert isinstance(value.owner.value, IntegerAttr)
    return int(value.owner.value.value.data)
