"""Gives arguments `memref<*xT>`, as Triton's texts have them, the elements of the arrays of a run."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, UnrankedMemRefType
from xdsl.ir import BlockArgument
from xdsl.rewriter import Rewriter


def give_elements(module: ModuleOp, elements: Sequence[int]) -> None:
    """Make unranked arguments of public functions, and of sequences, memrefs of one dimension, in place.

    elements: for each argument, how many it has; arguments without a number stay as they are.
    """
    for op in module.body.ops if elements else ():
        if isinstance(op, func.FuncOp) and not op.is_declaration:
            _give_to(op.args, elements)
            op.update_function_type()  # type: ignore[no-untyped-call]
        elif op.name == "aie.device":
            for inner in op.regions[0].block.ops:
                if inner.name == "aie.runtime_sequence":
                    _give_to(inner.regions[0].block.args, elements)


def _give_to(arguments: Sequence[BlockArgument], elements: Sequence[int]) -> None:
    for argument, count in zip(arguments, elements, strict=False):
        type_ = argument.type
        if isinstance(type_, UnrankedMemRefType):
            ranked = MemRefType(type_.element_type, [count], memory_space=type_.memory_space)
            Rewriter.replace_value_with_new_type(argument, ranked)
