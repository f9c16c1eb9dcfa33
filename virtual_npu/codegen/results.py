"""Makes the memrefs that a public function returns, and several returned values, arguments at its end.

The caller of an entry owns all memory: it gives a buffer per result, which the function fills. This is what
MLIR's buffer-results-to-out-params does. A value that an argument already is, is not returned again.
"""

from __future__ import annotations

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import FunctionType, MemRefType, ModuleOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from air_dialect.ops import AsyncTokenType
from virtual_npu.codegen import types
from virtual_npu.codegen.refusals import reason, unsupported


def check_single_blocks(module: ModuleOp) -> None:
    """Refuse branches between blocks, naming the first. Raises UnsupportedOpError."""
    for op in module.walk():
        for region in op.regions:
            if len(region.blocks) > 1:
                branch = region.blocks[0].last_op or op
                raise unsupported(branch, reason(branch.name))


def results_to_arguments(function: func.FuncOp) -> None:
    """Change the function in place. Raises UnsupportedOpError for a result without a static shape."""
    end = function.body.blocks[-1].last_op
    assert isinstance(end, func.ReturnOp)
    returned = [value for value in end.arguments if not isinstance(value.type, AsyncTokenType)]
    if len(returned) == 1 and not isinstance(returned[0].type, MemRefType):
        return
    added = [_fill(function, end, value) for value in returned if not _is_argument(function, value)]
    kept = [value for value in end.arguments if isinstance(value.type, AsyncTokenType)]
    new_end = func.ReturnOp(*kept)
    new_end.location = end.location
    Rewriter.replace_op(end, new_end, [])
    inputs = [*function.function_type.inputs, *added]
    function.properties["function_type"] = FunctionType.from_lists(inputs, [value.type for value in kept])
    function.properties.pop("res_attrs", None)


def _is_argument(function: func.FuncOp, value: SSAValue) -> bool:
    return isinstance(value, BlockArgument) and value.block is function.body.blocks[0]


def _fill(function: func.FuncOp, end: Operation, value: SSAValue) -> Attribute:
    """Add an argument and copy a result into it; gives its type."""
    block = function.body.blocks[0]
    if isinstance(value.type, MemRefType):
        if types.DYNAMIC in value.type.get_shape():
            raise unsupported(end, f"returns {value.type}: an entry gives results of static shape only")
        type_ = MemRefType(value.type.element_type, value.type.get_shape())
        target = block.insert_arg(type_, len(block.args))
        copy: Operation = memref.CopyOp(value, target)
    else:
        type_ = MemRefType(value.type, [])
        target = block.insert_arg(type_, len(block.args))
        copy = memref.StoreOp.get(value, target, [])
    target.name_hint = f"result_{value.name_hint or len(block.args)}"
    copy.location = end.location
    Rewriter.insert_op(copy, InsertPoint.before(end))
    return type_
