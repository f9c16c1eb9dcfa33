"""Puts the bodies of functions that move data or start herds in place of the calls to them.

A plain C++ function cannot suspend, and what it touches is not seen from outside. So a call stays a call
only where the function computes on what it is given and returns at most one scalar or vector.
"""

from __future__ import annotations

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from virtual_npu.codegen import types
from virtual_npu.codegen.refusals import unsupported


def inline_calls(module: ModuleOp) -> None:
    """Inline such calls in place. Raises UnsupportedOpError for a function that calls itself."""
    functions = {op.sym_name.data: op for op in module.walk() if isinstance(op, func.FuncOp)}
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, done, ())


def _inline_into(
    name: str, functions: dict[str, func.FuncOp], done: set[str], callers: tuple[str, ...]
) -> None:
    """Inline the calls in a function, those in what it calls first."""
    if name in done:
        return
    for call in [op for op in functions[name].walk() if isinstance(op, func.CallOp)]:
        callee = call.callee.root_reference.data
        if callee not in functions or not functions[callee].body.blocks:
            continue
        if callee in (*callers, name):
            raise unsupported(call, f"@{callee} calls itself: recursion is not supported")
        _inline_into(callee, functions, done, (*callers, name))
        if _must_inline(functions[callee]):
            _inline(call, functions[callee])
    done.add(name)


def _must_inline(function: func.FuncOp) -> bool:
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    if len(outputs) > 1 or any(isinstance(type_, MemRefType) or not _has_cpp(type_) for type_ in outputs):
        return True
    if any(not _is_bare(type_) for type_ in inputs):
        return True
    return any(op.name.startswith("air.") for op in function.walk())


def _has_cpp(type_: object) -> bool:
    return not str(type_).startswith("!air")


def _is_bare(type_: object) -> bool:
    """Whether a pointer alone, or a plain value, stands for an argument of this type."""
    if not isinstance(type_, MemRefType):
        return _has_cpp(type_)
    return types.DYNAMIC not in (*type_.get_shape(), *types.memref_strides(type_))


def _inline(call: func.CallOp, function: func.FuncOp) -> None:
    if len(function.body.blocks) != 1:
        raise unsupported(
            call, f"@{function.sym_name.data} has several blocks: use scf.if and scf.for instead of branches"
        )
    copy = function.clone()
    _keep_locations(function, copy)
    block = copy.body.block
    end = block.last_op
    assert isinstance(end, func.ReturnOp)
    Rewriter.inline_block(block, InsertPoint.before(call), call.arguments)
    Rewriter.replace_op(call, [], end.arguments)
    Rewriter.erase_op(end)


def _keep_locations(original: Operation, copy: Operation) -> None:
    for old, new in zip(original.walk(), copy.walk(), strict=True):
        new.location = old.location
