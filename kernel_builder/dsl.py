"""Write a kernel for the NPU in Python.

A kernel says where data lives (L3 host memory, L2 memtiles, L1 cores), which DMA moves what, and what every
core computes. The whole of eltwise add:

    k = Kernel("eltwise_add")
    a = k.argument("a", (rows, cols), bf16, Role.INPUT)
    b = k.argument("b", (rows, cols), bf16, Role.INPUT)
    out = k.argument("out", (rows, cols), bf16, Role.OUTPUT)
    with k.launch(), k.segment("add_seg"), k.herd(8, 1, name="add_herd") as (tx, _):
        l1_a, l1_b, l1_out = (k.alloc(L1, (cols,), bf16) for _ in range(3))
        for own in k.loop(rows // 8):
            row = tx * (rows // 8) + own
            k.dma(l1_a, a[row, :])
            k.dma(l1_b, b[row, :])
            for j in k.loop(0, cols, 16):
                k.store(l1_out[j : j + 16], k.load(l1_a[j : j + 16]) + k.load(l1_b[j : j + 16]))
            k.dma(out[row, :], l1_out)
    module = k.finish()          # a verified KernelModule: .text, .arguments

- Regions are `with` blocks, loops on the device are `for ... in k.loop(...)`, a plain `range` unrolls.
- What a region uses from outside is passed in for you; so are constants.
- Loop variables and tile ids are `Index` values: `+ - * // %` with ints stay affine; comparisons go into
  `with k.when(tx == 0):` / `with k.otherwise():`.
- Views: `x[i : i + 8, :]` slices, `x.reshape(...)`, `x.permute(...)`, `x.blocks(8, 8)`; a DMA walks them.
- On a core: `k.load(view)` gives a scalar or vector `Value`, with operators, `.to(f32)`, `.rsqrt()`,
  `.reduce("add")`, `.broadcast(16)`, `fma`, `contract`; `k.store(view, value)`.
- A value that a loop carries: `total = k.carried(zero)`, `for j in k.loop(..., carry=[total])`,
  `total.set(...)`, then `total.value`.
- C++ functions: `f = k.external("f", "f.o", [L1((64,), bf16), i32])`, then `f(buffer, 64)`.
- `k.round_to_even(buffer)` before the first rounding of a kernel with neither C++ nor matrix products.
- Channels: `c = k.channel("c", 4, 4)`, `k.put(c[tx, ty], view)`, `k.get(c[tx, ty], view)`.

The result is synchronous AIR (no tokens): mlir-air's `air-dependency` pass makes the asynchronous form.
Mistakes raise `DslError` at the line that made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import func, memref
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    VectorType,
)
from xdsl.dialects.vector import TransferReadOp, TransferWriteOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.rewriter import Rewriter

from aerie.air_dialect import AirParseError, verify
from aerie.air_dialect.ops import ChannelGetOp, ChannelOp, ChannelPutOp, DmaMemcpyNdOp
from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import Argument, ArgumentTable, DslError, DType, Role, bf16, f32, i32
from aerie.kernel_builder.buffers import (
    L1,
    L2,
    L3,
    Buffer,
    BufferSpace,
    BufferType,
    CoreBuffers,
    View,
    ViewDim,
    check_pattern,
    check_transfer,
)
from aerie.kernel_builder.index import Index, IndexLike
from aerie.kernel_builder.regions import LoopCarried, Regions
from aerie.kernel_builder.scopes import UNFINISHED_LOOP
from aerie.kernel_builder.spec import KernelModule
from aerie.kernel_builder.values import (
    ArgumentType,
    ExternalFunction,
    OptLevel,
    Value,
    contract,
    external_declaration,
    fma,
)

__all__ = ["L1", "L2", "L3", "Index", "Kernel", "Role", "Value", "bf16", "contract", "f32", "fma", "i32"]

ROUND_TO_EVEN = "round_to_even"
"""kernels_cc/round_to_even.cc, and how the symbols that are built of it begin."""


class Channel:
    """A bundle of channels; `channel[i, j]` names one of them for `k.put` and `k.get`."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape

    def __getitem__(self, indices: IndexLike | tuple[IndexLike, ...]) -> ChannelRef:
        picked = indices if isinstance(indices, tuple) else (indices,)
        if len(picked) != len(self.shape):
            raise DslError(
                f"channel {self.name} has {len(self.shape)} dimensions, {len(picked)} indices given"
            )
        return ChannelRef(self, tuple(Index.from_value(i) for i in picked))


class ChannelRef:
    """One channel of a bundle, by its indices."""

    def __init__(self, channel: Channel, indices: tuple[Index, ...]) -> None:
        if any(variable.kind == "loop" for index in indices for variable in index.variables()):
            raise DslError(
                f"channel {channel.name} is picked by a loop variable, but each core's channels are fixed "
                "when it is built; use a tile id, k.parallel or a Python range"
            )
        self.channel = channel
        self.indices = indices


class Kernel(Regions):
    """A kernel being written for a device: one function `name` of its arguments, built region by region."""

    def __init__(self, name: str, device: DeviceModel = NPU2) -> None:
        self.name = name
        self.device = device
        self._block = Block()
        super().__init__(self._block)
        self._arguments: list[Argument] = []
        self._declarations: dict[str, Operation] = {}
        self._objects: dict[str, tuple[str | None, dict[str, object], OptLevel | None]] = {}

    def argument(self, name: str, shape: Sequence[int], dtype: DType, role: Role) -> Buffer:
        """The next argument: a row-major buffer in L3. Declare all before the first launch."""
        if len(self.scopes.stack) != 1 or self._block.first_op is not None:
            raise DslError(
                f"argument {name} of {self.name} is declared after the first launch; declare it before"
            )
        type_ = L3(shape, dtype)
        value = self._block.insert_arg(type_.memref, len(self._block.args))
        value.name_hint = name
        self._arguments.append(Argument(name, tuple(shape), dtype, role))
        return Buffer(name, type_, value)

    def alloc(
        self, space: BufferSpace, shape: Sequence[int], dtype: DType, name: str | None = None
    ) -> Buffer:
        """Allocate a buffer that lives until the enclosing region ends.

        L1 in a herd is private to each core; L1 in a segment is shared by the herds in it, so give it leading
        dimensions [herd x, herd y] and index those with the tile id. L2 belongs in a segment.
        """
        if space is L3 or (space is L2 and self.scopes.inside("herd")) or not self.scopes.inside("segment"):
            raise DslError(
                f"{space} cannot be allocated here: allocate L2 or L1 in a segment, L1 in a herd, "
                "and take L3 as an argument"
            )
        type_ = BufferType(space, tuple(shape), dtype)
        op = memref.AllocOp([], [], type_.memref)
        value = self.scopes.result(op)
        value.name_hint = name or f"{space.name.lower()}_buffer"
        self.scopes.current.allocated.append(value)
        return Buffer(value.name_hint, type_, value)

    def alloc_each(self, buffer_types: CoreBuffers) -> dict[str, Buffer]:
        """Allocate the buffers of a core, one of each: the compiler makes the copies."""
        return {
            name: self.alloc(type_.space, type_.shape, type_.dtype, name)
            for name, (type_, _) in buffer_types.items()
        }

    def dma(self, destination: View, source: View) -> None:
        """Copy `source` to `destination`, element by element in the order each is walked.

        DslError where sizes or types differ, both are in one memory, or a descriptor cannot walk a side.
        """
        check_transfer(destination, source, self.device)
        (to, *to_pattern), (start, *start_pattern) = self._pattern(destination), self._pattern(source)
        self.scopes.emit(
            DmaMemcpyNdOp(
                to[0],
                start[0],
                dst_offsets=to_pattern[0],
                dst_sizes=to_pattern[1],
                dst_strides=to_pattern[2],
                src_offsets=start_pattern[0],
                src_sizes=start_pattern[1],
                src_strides=start_pattern[2],
            )
        )

    def _pattern(self, view: View) -> tuple[list[SSAValue], list[SSAValue], list[SSAValue], list[SSAValue]]:
        """[memref], offsets, sizes, strides; the lists are empty for a whole buffer."""
        buffer = [self.scopes.capture(view.buffer.ssa)]
        if view.is_whole_buffer:
            return buffer, [], [], []
        dims = view.dims
        if dims[-1].stride != 1:
            # mlir-air's get1DOffset takes the last offset without its stride: give it one of stride 1.
            dims = (*dims, ViewDim(Index({}), 1, 1))
        constant = self.scopes.index_constant
        return (
            buffer,
            self.scopes.indices([dim.offset for dim in dims]),
            [constant(dim.size) for dim in dims],
            [constant(dim.stride) for dim in dims],
        )

    def channel(
        self,
        name: str,
        *shape: int,
        broadcast: Sequence[int] | None = None,
        kind: str = "npu_dma_stream",
        shim_column: int | None = None,
    ) -> Channel:
        """A bundle of channels at module level.

        `broadcast`: the bundle's shape on the receiving side, where one put reaches several gets.
        `kind`: "npu_dma_stream", "npu_dma_packet" or "npu_cascade" (512 bit from a core to its neighbour).
        `shim_column`: the column whose shim tile it leaves or enters L3 by (`air.shim_col`, mlir-air
        mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp); the compiler chooses one where there is none.
        """
        pinned = {} if shim_column is None else {"air.shim_col": IntegerAttr(shim_column, 32)}
        declared = ChannelOp(name, shape, channel_type=kind, broadcast_shape=broadcast, attributes=pinned)
        self._declare(name, declared)
        return Channel(name, tuple(shape))

    def put(self, end: ChannelRef, source: View) -> None:
        """Send what `source` walks into a channel."""
        self._transfer(ChannelPutOp, end, source)

    def get(self, end: ChannelRef, destination: View) -> None:
        """Receive from a channel into what `destination` walks."""
        self._transfer(ChannelGetOp, end, destination)

    def _transfer(self, kind: type[ChannelPutOp] | type[ChannelGetOp], end: ChannelRef, view: View) -> None:
        check_pattern(view, self.device)
        indices = self.scopes.indices(end.indices)
        (buffer,), *pattern = self._pattern(view)
        self.scopes.emit(kind(end.channel.name, indices, buffer, *pattern))

    def _declare(self, name: str, op: Operation) -> None:
        declared = self._declarations.setdefault(name, op)
        if declared is not op and not declared.is_structurally_equivalent(op):
            raise DslError(f"{name} is declared twice in {self.name}, differently; give each its own name")

    def external(
        self,
        name: str,
        link_with: str,
        types: Sequence[ArgumentType],
        source: str | None = None,
        defines: Mapping[str, object] | None = None,
        optimize: OptLevel | None = None,
    ) -> ExternalFunction:
        """Declare the `extern "C"` function `name` of the object file `link_with`.

        types: a `BufferType` (`L1((64,), bf16)`) for a pointer, a dtype for a scalar.
        source: the C++ file in kernels_cc/, where it is not the object's name with .cc.
        defines: -D macros it is built with; the same for every function of one object file.
        optimize: how hard the cores' compiler works on it, where it is not as for every kernel (O2).
        """
        built = (source, dict(defines or {}), optimize)
        if self._objects.setdefault(link_with, built) != built:
            raise DslError(
                f"{link_with} is built in two ways, for {name} and before: one object file has one source, "
                "one set of macros and one level of optimisation; name a second object file"
            )
        self._declare(name, external_declaration(name, types, link_with, source, defines or {}, optimize))
        return ExternalFunction(name, tuple(types), self.scopes)

    def round_to_even(self, first_buffer: Buffer) -> None:
        """Have the core round f32 to nearest even from here on. first: the L1 buffer that it works on next.

        A core rounds as a register says, which starts with floor: towards minus infinity. No operation of a
        herd sets it. mlir-aie's compiler sets it when a core starts: to nearest even where it multiplies
        matrices of bf16, and to floor, in the version we name, where f32 is only rounded
        (lib/Dialect/AIE/Transforms/AIECoreToStandard.cpp; pull request 3587 is about that). So a kernel that
        rounds without a C++ function of its own calls one for it, before the first rounding.

        mlir-air orders what a core does by its buffers (air-dependency), so the call takes one. Where a loop
        fills that buffer, call inside the loop: used outside as well it would no longer be double-buffered.
        """
        symbol = "_".join([ROUND_TO_EVEN, first_buffer.dtype.name, *map(str, first_buffer.type.shape)])
        source, defines = f"{ROUND_TO_EVEN}.cc", {ROUND_TO_EVEN: symbol}
        self.external(symbol, f"{symbol}.o", [first_buffer.type], source, defines)(first_buffer)

    def constant(self, value: float, dtype: DType, *shape: int) -> Value:
        """A scalar constant, or with a shape a vector of it."""
        ssa = self.scopes.constant(value, dtype, shape or None)
        return Value(ssa, dtype, shape or None, self.scopes)

    def carried(self, start: Value) -> LoopCarried:
        """A value that loops named in `carry=` hand from one iteration to the next."""
        return LoopCarried(start)

    def load(self, view: View) -> Value:
        """What `view` covers: a scalar where every dimension is indexed, else a vector of its shape.

        The view is a slice of a buffer in L1: leading dimensions indexed, trailing ones sliced.
        """
        buffer, indices = self._core_access(view)
        if not view.shape:
            return self._value(memref.LoadOp.get(buffer, indices), view)
        padding = self.scopes.constant(0, view.dtype)
        op = TransferReadOp(buffer, indices, padding, _vector_type(view), _in_bounds(view), _minor_map(view))
        return self._value(op, view)

    def _value(self, op: Operation, view: View) -> Value:
        return Value(self.scopes.result(op), view.dtype, view.shape or None, self.scopes)

    def store(self, view: View, value: Value) -> None:
        """Write a scalar or vector of the view's type and shape into it."""
        if value.dtype != view.dtype or (value.shape or ()) != view.shape:
            raise DslError(
                f"cannot store {value} into {view}; convert with .to({view.dtype}) or match the slice"
            )
        buffer, indices = self._core_access(view)
        if not view.shape:
            self.scopes.emit(memref.StoreOp.get(value.in_region(), buffer, indices))
            return
        self.scopes.emit(
            TransferWriteOp(
                value.in_region(), buffer, indices, _in_bounds(view), permutation_map=_minor_map(view)
            )
        )

    def _core_access(self, view: View) -> tuple[SSAValue, list[SSAValue]]:
        """The buffer and start indices of a load or store; DslError where a core cannot make it."""
        if not self.scopes.inside("herd") or view.buffer.type.space is not L1:
            raise DslError(
                f"{view} is loaded or stored outside of a core's L1: bring it to L1 with k.dma, in a herd"
            )
        are_kept = [dim.is_kept for dim in view.dims]
        plain = [d.stride for d in view.dims] == [d.stride for d in view.buffer.dims]
        if not plain or are_kept != sorted(are_kept):
            raise DslError(
                f"a load or store of {view} needs a plain slice: index the leading dimensions and slice the "
                "trailing ones; reshape and permute are for DMAs"
            )
        return self.scopes.capture(view.buffer.ssa), self.scopes.indices([dim.offset for dim in view.dims])

    def finish(self) -> KernelModule:
        """Close the kernel and verify it. A verification failure here is a fault of this DSL, and says so."""
        if len(self.scopes.stack) != 1:
            raise DslError(
                f"{self.name} is finished inside an open {self.scopes.current.kind}; close it first"
            )
        if self.scopes.abandoned:
            raise DslError(f"a loop of {self.name} was left early; {UNFINISHED_LOOP}")
        self.scopes.emit(func.ReturnOp())
        inputs = [argument.type for argument in self._block.args]
        body = func.FuncOp(self.name, FunctionType.from_lists(inputs, []), Region(self._block))
        module = ModuleOp([*self._declarations.values(), body])
        try:
            verify(module)
        except AirParseError as error:
            raise DslError(
                f"the DSL built an invalid module for {self.name}, which is its own fault: {error}"
            ) from error
        return KernelModule(self.name, module, ArgumentTable(self._arguments))


def remove_rounding_calls(module: ModuleOp) -> ModuleOp:
    """A copy whose cores set no rounding mode: like upstream's own, or ours if the call had no effect."""
    copy = module.clone()
    for op in [op for op in copy.walk() if _sets_rounding(op)]:
        Rewriter.erase_op(op)
    return copy


def _sets_rounding(op: Operation) -> bool:
    if isinstance(op, func.CallOp):
        return op.callee.root_reference.data.startswith(f"{ROUND_TO_EVEN}_")
    return isinstance(op, func.FuncOp) and op.sym_name.data.startswith(f"{ROUND_TO_EVEN}_")


def _vector_type(view: View) -> VectorType[Attribute]:
    return VectorType(view.buffer.type.memref.element_type, view.shape)


def _in_bounds(view: View) -> ArrayAttr[BoolAttr]:
    return ArrayAttr([BoolAttr.from_bool(True)] * len(view.shape))


def _minor_map(view: View) -> AffineMapAttr:
    return AffineMapAttr(AffineMap.minor_identity(len(view.dims), len(view.shape)))
