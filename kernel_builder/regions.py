"""The regions of a kernel: launch, segment, herd, loops and branches, as Python blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from xdsl.dialects import affine, arith, memref, scf
from xdsl.dialects.builtin import AffineSetAttr, IndexType
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineConstraintExpr, AffineConstraintKind, AffineExpr, AffineSet

from aerie.air_dialect.ops import HerdOp, HierarchyOp, LaunchOp, SegmentOp
from aerie.kernel_builder.arguments import DslError
from aerie.kernel_builder.index import AffineConstraint, Condition, Index, IndexLike, Variable
from aerie.kernel_builder.scopes import KernelRegion, RegionStack
from aerie.kernel_builder.values import Value

_AXES = "xyzw"


class LoopCarried:
    """A value passed from one loop iteration to the next; after the loop it is the last one."""

    def __init__(self, start: Value) -> None:
        self.value = start

    def set(self, value: Value) -> None:
        """Set the value for the next iteration, of the same type."""
        self.value = self.value.coerce(value)

    def _become(self, ssa: SSAValue) -> None:
        self.value = Value(ssa, self.value.dtype, self.value.shape, self.value.scopes)


class Regions:
    """The part of `Kernel` that opens and closes regions."""

    def __init__(self, body: Block) -> None:
        self.scopes = RegionStack(body)
        self._variables = 0

    def _variable(self, ssa: SSAValue, kind: str, multiple: int = 1) -> Index:
        self._variables += 1
        return Index({Variable(ssa, kind, self._variables, multiple): 1})

    @contextmanager
    def launch(self, *sizes: int, name: str | None = None) -> Iterator[tuple[Index, ...]]:
        """`air.launch`, which the host starts: the body runs for each point of `sizes`, in any order."""
        if self.scopes.current.kind != "func":
            raise DslError("a launch is opened inside another region; open it at the top level")
        with self._hierarchy("launch", LaunchOp, sizes, name) as ids:
            yield ids

    @contextmanager
    def segment(self, name: str | None = None, unroll: Sequence[int] = ()) -> Iterator[tuple[Index, ...]]:
        """`air.segment`: a part of the array with its memtiles. `unroll` makes several in parallel."""
        if self.scopes.current.kind != "launch":
            raise DslError("a segment must be directly inside a launch; open `with k.launch(...):` around it")
        with self._hierarchy("segment", SegmentOp, unroll, name) as ids:
            yield ids

    @contextmanager
    def herd(self, x: int, y: int, name: str | None = None) -> Iterator[tuple[Index, Index]]:
        """`air.herd`: x columns by y rows of cores that all run the body; yields the core's (x, y)."""
        if not self.scopes.inside("segment") or self.scopes.inside("herd"):
            raise DslError(
                "a herd must be inside a segment, not inside another herd; open `with k.segment(...):` "
                "around it"
            )
        with self._hierarchy("herd", HerdOp, (x, y), name) as ids:
            yield ids[0], ids[1]

    @contextmanager
    def _hierarchy(
        self, kind: str, op: type[HierarchyOp], sizes: Sequence[int], name: str | None
    ) -> Iterator[tuple[Index, ...]]:
        if any(size <= 0 for size in sizes):
            raise DslError(
                f"a {kind} of {'x'.join(map(str, sizes))} has no points; every extent must be positive"
            )
        block = Block(arg_types=[IndexType()] * (2 * len(sizes)))
        for axis, (id_, size) in enumerate(zip(block.args, block.args[len(sizes) :], strict=False)):
            id_.name_hint, size.name_hint = f"{kind[0]}{_AXES[axis]}", f"{kind[0]}s{_AXES[axis]}"
        ids = tuple(self._variable(argument, kind) for argument in block.args[: len(sizes)])
        with self.scopes.open(kind, block) as scope:
            yield ids
            self._free(scope)
        extents = [self.scopes.index_constant(size) for size in sizes]
        operands = [self.scopes.capture(value) for value in scope.captured]
        self.scopes.emit(op(extents, operands, Region(block), sym_name=name))

    def _free(self, scope: KernelRegion) -> None:
        """Free the buffers of a region at its end."""
        for value in scope.allocated:
            self.scopes.emit(memref.DeallocOp.get(value))

    def loop(
        self,
        start: IndexLike,
        stop: IndexLike | None = None,
        step: int = 1,
        carry: Sequence[LoopCarried] = (),
        *,
        unwraps: bool = False,
    ) -> Iterator[Index]:
        """A loop on the device, with `range`'s arguments. Write `for i in k.loop(...)`, without break.

        unwraps: a loop of one trip becomes its body alone. aircc folds such a loop, and what comes after it
        has then lost its tokens: a buffer is freed while it is read.
        """
        first, last = (
            (Index.from_value(0), Index.from_value(start))
            if stop is None
            else (Index.from_value(start), Index.from_value(stop))
        )
        if step <= 0:
            raise DslError(f"a loop has step {step}; it must be positive")
        if unwraps and first.static is not None and (last - first).static in range(1, step + 1):
            return iter([first])
        low, high = (self.scopes.index(bound, "bound") for bound in (first, last))
        starts = [carried.value for carried in carry]
        block = Block(arg_types=[IndexType(), *(value.mlir_type for value in starts)])
        op = scf.ForOp(
            low, high, self.scopes.index_constant(step), [v.in_region() for v in starts], Region(block)
        )
        self.scopes.emit(op)
        block.args[0].name_hint = "i"
        return self._iterate(op, math.gcd(first.multiple, step), carry)

    def _iterate(self, op: scf.ForOp, multiple: int, carry: Sequence[LoopCarried]) -> Iterator[Index]:
        block = op.body.block
        with self.scopes.open("loop", block) as scope:
            for carried, argument in zip(carry, block.args[1:], strict=True):
                carried._become(argument)
            yield self._variable(block.args[0], "loop", multiple)
            self._free(scope)
            self.scopes.emit(scf.YieldOp(*(carried.value.in_region() for carried in carry)))
        for carried, result in zip(carry, op.results, strict=True):
            carried._become(result)

    @contextmanager
    def parallel(self, *sizes: int) -> Iterator[tuple[Index, ...]]:
        """Points that all exist at once, as the channels of a bundle do (`scf.parallel`)."""
        zero, one = self.scopes.index_constant(0), self.scopes.index_constant(1)
        extents = [self.scopes.index_constant(size) for size in sizes]
        block = Block(arg_types=[IndexType()] * len(sizes))
        count = len(sizes)
        self.scopes.emit(scf.ParallelOp([zero] * count, extents, [one] * count, Region(block)))
        with self.scopes.open("parallel", block) as scope:
            yield tuple(self._variable(argument, "parallel") for argument in block.args)
            self._free(scope)
            self.scopes.emit(scf.ReduceOp())

    @contextmanager
    def when(self, condition: Condition | Value) -> Iterator[None]:
        """A branch: the body runs if the condition holds.

        Conditions on tile ids alone become `affine.if`, which mlir-air decides for each core at compile time;
        others become `scf.if`.
        """
        if isinstance(condition, bool):
            raise DslError("this condition is decided while the kernel is written; use a Python `if`")
        if isinstance(condition, Value):
            op: Operation = scf.IfOp(condition.in_region(), [], Region(Block()), Region())
        elif all(v.kind == "herd" for c in condition.comparisons for v in c.left.variables()):
            op = self._affine_if(condition)
        else:
            op = scf.IfOp(self._decide(condition), [], Region(Block()), Region())
        self.scopes.emit(op)
        with self._branch(op, 0):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The else branch of the `k.when` just closed."""
        op = self.scopes.current.block.last_op
        if not isinstance(op, scf.IfOp | affine.IfOp) or op.regions[1].blocks:
            raise DslError("k.otherwise() must directly follow its `with k.when(...)` block")
        op.regions[1].add_block(Block())
        with self._branch(op, 1):
            yield

    @contextmanager
    def _branch(self, op: Operation, region: int) -> Iterator[None]:
        with self.scopes.open("branch", op.regions[region].block) as scope:
            yield
            self._free(scope)
            self.scopes.emit(affine.YieldOp.get() if isinstance(op, affine.IfOp) else scf.YieldOp())

    def _affine_if(self, condition: Condition) -> affine.IfOp:
        variables = sorted(
            {v for c in condition.comparisons for v in c.left.variables()}, key=lambda v: v.order
        )
        places = {variable: AffineExpr.symbol(i) for i, variable in enumerate(variables)}
        constraints = tuple(
            AffineConstraintExpr(
                AffineConstraintKind.eq if c.equal else AffineConstraintKind.ge,
                c.left.affine(places.__getitem__),
                AffineExpr.constant(0),
            )
            for c in condition.comparisons
        )
        return affine.IfOp.create(
            operands=[self.scopes.capture(variable.ssa) for variable in variables],
            properties={"condition": AffineSetAttr(AffineSet(0, len(variables), constraints))},
            regions=[Region(Block()), Region()],
        )

    def _decide(self, condition: Condition) -> SSAValue:
        """The condition as an i1 computed on the core."""
        decided = [self._compare(comparison) for comparison in condition.comparisons]
        result = decided[0]
        for other in decided[1:]:
            result = self.scopes.result(arith.AndIOp(result, other))
        return result

    def _compare(self, comparison: AffineConstraint) -> SSAValue:
        difference, zero = self.scopes.index(comparison.left), self.scopes.index_constant(0)
        return self.scopes.result(arith.CmpiOp(difference, zero, "eq" if comparison.equal else "sge"))
