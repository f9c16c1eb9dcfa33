"""Gives arguments `memref<*xT>`, as Triton's texts have them, the elements of the arrays of a run."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp, UnrankedMemRefType
from xdsl.rewriter import Rewriter


def give_elements(module: ModuleOp, elements: Sequence[int]) -> None:
    """Make unranked arguments of public functions memrefs of one dimension, in place.

    elements: for each argument, how many it has; arguments without a number stay as they are.
    """
    for function in module.body.ops if elements else ():
        if not isinstance(function, func.FuncOp) or function.is_declaration:
            continue
        for argument, count in zip(function.args, elements, strict=False):
            type_ = argument.type
            if isinstance(type_, UnrankedMemRefType):
                ranked = MemRefType(type_.element_type, [count], memory_space=type_.memory_space)
                Rewriter.replace_value_with_new_type(argument, ranked)
        function.update_function_type()  # type: ignore[no-untyped-call]
