"""Inlines every entry into one function: without ranks and calls that move data, results as arguments.

- `air.rank` becomes loops over its instances, one after another, as mlir-air's air-rank-to-launch does: an
  NPU program that names several ranks runs them all on its one device (ConvertToAIRPass.cpp,
  AIRRankToLaunchPass).
- The bodies of functions that move data or start herds stand in place of the calls to them. A plain C++
  function cannot suspend, and what it touches is not known outside. So a call stays a call only where the
  function computes on what it is given and returns at most one scalar or vector.
- The memrefs that a public function returns, and several returned values, become arguments at its end. The
  caller of an entry owns all memory: it gives a buffer per result, which the function fills. This is what
  MLIR's buffer-results-to-out-params does. A value that an argument already is, is not returned again.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects import func, memref, scf
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import FunctionType, IndexType, IntegerAttr, MemRefType, ModuleOp, UnitAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from aerie.air_dialect.ops import AsyncTokenType, RankOp, UniverseAllocOp, WaitAllOp
from aerie.air_dialect.values import walk
from aerie.common.shown_names import symbol_name
from aerie.virtual_npu.codegen import types
from aerie.virtual_npu.codegen.execution import RECURSIVE, public_functions
from aerie.virtual_npu.codegen.op_errors import unsupported, unsupported_reason, with_op_in_errors


def inline_program(module: ModuleOp) -> None:
    """Change a module in place.

    Raises UnsupportedOpError for branches between blocks, a function that calls itself and would have to be
    inlined, and a result without a static shape.
    """
    _check_single_blocks(module)
    _serialise_ranks(module)
    _inline_calls(module)
    for function in public_functions(module):
        with with_op_in_errors(function):
            _results_to_arguments(function)


def _check_single_blocks(module: ModuleOp) -> None:
    """Refuse branches between blocks, naming the first. Raises UnsupportedOpError."""
    for op in walk(module):
        for region in op.regions:
            if len(region.blocks) > 1:
                branch = region.blocks[0].last_op or op
                raise unsupported(branch, unsupported_reason(branch.name))


# ---- ranks ----


def _serialise_ranks(module: ModuleOp) -> None:
    """Put loops in place of every `air.rank`, innermost first, and drop the universes they were given."""
    for op in reversed([op for op in walk(module) if isinstance(op, RankOp)]):
        _serialise(op)
    for universe in [op for op in walk(module) if isinstance(op, UniverseAllocOp)]:
        Rewriter.erase_op(universe)


def _serialise(op: RankOp) -> None:
    """Wait for what the rank waits for, run its body once per instance, and hand out a token that is done."""
    before = InsertPoint.before(op)
    if op.async_dependencies:
        _insert(op, WaitAllOp.build(operands=[op.async_dependencies], result_types=[None]), before)
    ids: list[SSAValue] = []
    for size in op.sizes:
        ids.append(_open_loop(op, size, before))
        loop = ids[-1].owner
        assert isinstance(loop, Block)
        end = loop.last_op
        assert end is not None
        before = InsertPoint.before(end)
    if op.has_body:
        body = op.body.block
        end = body.last_op
        assert end is not None
        Rewriter.erase_op(end)
        Rewriter.inline_block(body, before, [*ids, *op.sizes, *op.kernel_operands])
    tokens: list[SSAValue] = []
    if op.async_token is not None:
        done = WaitAllOp.build(operands=[[]], result_types=[AsyncTokenType()])
        _insert(op, done, InsertPoint.before(op))
        tokens = [done.results[0]]
    Rewriter.replace_op(op, [], tokens)


def _open_loop(op: Operation, size: SSAValue, before: InsertPoint) -> SSAValue:
    """Insert a loop from 0 to `size`; gives its induction variable."""
    zero, one = (ConstantOp(IntegerAttr(number, IndexType())) for number in (0, 1))
    body = Block([scf.YieldOp()], arg_types=[IndexType()])
    body.args[0].name_hint = "rank"
    for new in (zero, one, scf.ForOp(zero.result, size, one.result, [], Region(body))):
        _insert(op, new, before)
    return body.args[0]


def _insert(origin: Operation, op: Operation, before: InsertPoint) -> None:
    op.location = origin.location
    Rewriter.insert_op(op, before)


# ---- calls ----


def _inline_calls(module: ModuleOp) -> None:
    """Inline such calls in place. Raises UnsupportedOpError for one that comes back to its function."""
    functions = {op.sym_name.data: op for op in walk(module) if isinstance(op, func.FuncOp)}
    recursive = _on_cycles(functions)
    done: set[str] = set()
    for name in functions:
        _inline_into(name, functions, recursive, done)
    for name in functions:
        for call in _calls(functions, name):
            _keep_recursive(call, functions, recursive)


def _calls(functions: Mapping[str, func.FuncOp], name: str) -> list[func.CallOp]:
    """The calls in a function of functions that have a body."""
    calls = [op for op in walk(functions[name]) if isinstance(op, func.CallOp)]
    return [call for call in calls if _called(call) in functions and functions[_called(call)].body.blocks]


def _called(call: func.CallOp) -> str:
    return call.callee.root_reference.data


def _on_cycles(functions: Mapping[str, func.FuncOp]) -> set[str]:
    """The functions that call themselves, by way of others too."""
    called = {name: {_called(call) for call in _calls(functions, name)} for name in functions}
    recursive = set()
    for name in functions:
        seen, pending = set[str](), [*called[name]]
        while pending:
            other = pending.pop()
            if other not in seen:
                seen.add(other)
                pending += called[other]
        if name in seen:
            recursive.add(name)
    return recursive


def _inline_into(name: str, functions: dict[str, func.FuncOp], recursive: set[str], done: set[str]) -> None:
    """Inline the calls in a function, those in what it calls first."""
    if name in done:
        return
    done.add(name)
    for call in _calls(functions, name):
        callee = _called(call)
        if callee in recursive:
            continue
        _inline_into(callee, functions, recursive, done)
        if _must_inline(functions[callee]):
            _inline(call, functions[callee])


def _keep_recursive(call: func.CallOp, functions: Mapping[str, func.FuncOp], recursive: set[str]) -> None:
    """Mark a function that calls itself, which stays one; refuse one that would have to be inlined."""
    name = _called(call)
    if name not in recursive:
        return
    if _must_inline(functions[name]):
        raise unsupported(
            call,
            f"{symbol_name(name)} calls itself, which only a function can that computes on numbers and "
            "memrefs of static layout, moves no data and returns at most one number or vector: write a loop",
        )
    functions[name].attributes[RECURSIVE] = UnitAttr()


def _must_inline(function: func.FuncOp) -> bool:
    inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
    if len(outputs) > 1 or any(isinstance(type_, MemRefType) or not _has_cpp(type_) for type_ in outputs):
        return True
    if any(not _is_bare(type_) for type_ in inputs):
        return True
    return any(op.name.startswith("air.") for op in walk(function))


def _has_cpp(type_: object) -> bool:
    return not str(type_).startswith("!air")


def _is_bare(type_: object) -> bool:
    """Whether a pointer alone, or a plain value, stands for an argument of this type."""
    if not isinstance(type_, MemRefType):
        return _has_cpp(type_)
    return types.DYNAMIC not in (*type_.get_shape(), *types.memref_strides(type_))


def _inline(call: func.CallOp, function: func.FuncOp) -> None:
    if len(function.body.blocks) != 1:
        name = symbol_name(function.sym_name.data)
        raise unsupported(call, f"{name} has several blocks: use scf.if and scf.for instead of branches")
    copy = function.clone()
    _keep_locations(function, copy)
    block = copy.body.block
    end = block.last_op
    assert isinstance(end, func.ReturnOp)
    Rewriter.inline_block(block, InsertPoint.before(call), call.arguments)
    Rewriter.replace_op(call, [], end.arguments)
    Rewriter.erase_op(end)


def _keep_locations(original: Operation, copy: Operation) -> None:
    for old, new in zip(walk(original), walk(copy), strict=True):
        new.location = old.location


# ---- results ----


def _results_to_arguments(function: func.FuncOp) -> None:
    """Change the function in place. Raises UnsupportedOpError for a result without a static shape."""
    end = function.body.blocks[-1].last_op
    assert isinstance(end, func.ReturnOp)
    returned = [value for value in end.arguments if not isinstance(value.type, AsyncTokenType)]
    if len(returned) == 1 and not isinstance(returned[0].type, MemRefType):
        return
    added = [_fill(function, end, value) for value in returned if not _is_argument(function, value)]
    tokens = [value for value in end.arguments if isinstance(value.type, AsyncTokenType)]
    new_end = func.ReturnOp(*tokens)
    new_end.location = end.location
    Rewriter.replace_op(end, new_end, [])
    inputs = [*function.function_type.inputs, *added]
    function.properties["function_type"] = FunctionType.from_lists(inputs, [value.type for value in tokens])
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
