"""How mlir-air lowers the forms of AIR itself: launches, herds, channels, and transfers around the cores.

The evidence is what upstream runs on an NPU2 in the same form, then mlir-air's own tests, then its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from xdsl.dialects import affine, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerType, MemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineExpr

from aerie.air_dialect.ops import (
    ChannelOp,
    ChannelTransferOp,
    DmaMemcpyNdOp,
    HerdOp,
    HierarchyOp,
    LaunchOp,
    SegmentOp,
)
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.lowering.rule import ALL, LoweringRule, OpForm, direct, split, wrong
from aerie.device.transfers import space_of

_EXAMPLES: Final = "mlir-air programming_examples"
_FUSED: Final = f"{_EXAMPLES}/flash_attention/kernel_fusion_based"
SEQ_FIRST: Final = f"{_FUSED}/attn_npu2_seqfirst.py"
SKIPPING: Final = f"{_FUSED}/attn_npu2.py"
TEMPORAL: Final = f"{_FUSED}/attn_npu2_temporal_causal.py"
GEMM: Final = f"{_EXAMPLES}/matrix_multiplication/bf16/run.py"
GEMV: Final = f"{_EXAMPLES}/matrix_vector_multiplication/bf16/matvec.py"
CASCADE: Final = f"{_EXAMPLES}/matrix_vector_multiplication/bf16_cascade/matvec_cascade.py"
ROPE: Final = f"{_EXAMPLES}/rope_halfsplit/rope_halfsplit.py"
SILU: Final = f"{_EXAMPLES}/silu_and_mul/silu_and_mul.py"
RMS_NORM: Final = f"{_EXAMPLES}/weighted_rms_norm/weighted_rms_norm.py"
STITCHED: Final = f"{_EXAMPLES}/llms/shared/infra/stitching.py"
FUSED_DECODE: Final = f"{_EXAMPLES}/fused_decode/fused_decode.py"
LAUNCHES: Final = "mlir-air test/xrt/50_multi_launch_attention/attention.mlir"
BRANCHES: Final = "mlir-air test/xrt/51_scf_if_channel_herd"
TEST_PARAMETERS: Final = "mlir-air mlir/test/Conversion/AIRRtToNpu/rtp_setlock_region_scoping_multiiter.mlir"
TEST_CASCADE: Final = "mlir-air mlir/test/Conversion/AIRToAIE/air_channel_to_locks_core_to_core.mlir"
TEST_SPLIT: Final = "mlir-air mlir/test/Transform/AIRDependencyScheduleOpt/isolate_async_dma_loop_nest.mlir"
TEST_SHIM: Final = "mlir-air mlir/test/Transform/AIRDependencyScheduleOpt/opt_shim_dma_bds.mlir"
TO_AIE: Final = "mlir-air AIRToAIEPass.cpp"

DMA = "air.dma_memcpy_nd"
PUT, GET = "air.channel.put", "air.channel.get"
EVERY_DEPTH = ("", ", in a loop")


def _in(*places: str) -> tuple[str, ...]:
    """Each place, as it is and in a loop there."""
    return tuple(place + depth for place in places for depth in EVERY_DEPTH)


LEVELS = (
    direct("air.launch", "", ROPE, SILU, details=("0 dimensions",)),
    direct("air.launch", "", GEMV, details=("1 dimensions",)),
    direct("air.launch", "", GEMM, SEQ_FIRST, details=("2 dimensions",)),
    direct("air.launch", "", LAUNCHES, details=("3 dimensions",)),
    direct("func.func", "", LAUNCHES, STITCHED, details=("several launches",)),
    direct("air.segment", "", ROPE, GEMM),
    direct("air.segment", "", SEQ_FIRST, details=("unrolled",)),
    direct("air.herd", "", ROPE, GEMM),
    direct("air.herd", "", GEMM, LAUNCHES, details=("in phases",)),
    direct("air.herd", "", ROPE, SILU, RMS_NORM, details=("given L3",)),
    direct("air.herd", "", GEMM, LAUNCHES, details=("given L2", "given L1")),
    direct(
        "air.herd", "index i32", FUSED_DECODE, LAUNCHES, TEST_PARAMETERS, details=("given a number",),
        note="a run-time parameter, written to every core at each launch point",
    ),
)  # fmt: skip

CHANNELS = (
    direct("air.channel", "", SEQ_FIRST, details=("npu_dma_stream", "npu_dma_stream, broadcast")),
    direct("air.channel", "", SEQ_FIRST, CASCADE, TEST_CASCADE, details=("npu_cascade",)),
    direct(
        f"{PUT} {GET}", "", SEQ_FIRST, TEMPORAL, TEST_SHIM, TEST_SPLIT, details=_in("in the launch"),
        note="a loop's puts on one channel stay in order; only other channels get loops of their own",
    ),
    direct(f"{PUT} {GET}", "", SEQ_FIRST, details=_in("in the segment")),
    direct(
        f"{PUT} {GET}", "", SEQ_FIRST, SKIPPING, details=_in("in the herd"),
        note="what is received may be left unused in a branch (causal_skip there); upstream saw another "
        "attention of its own go wrong so after 8 K/V tiles (attn_npu2_temporal_causal.py)",
    ),
    direct(f"{PUT} {GET}", "", SEQ_FIRST, BRANCHES, details=_in("in the herd, in a branch")),
    split(
        f"{PUT} {GET}", "", SEQ_FIRST, CASCADE, TEST_CASCADE, details=("a buffer over a cascade",),
        note="512 bits at a time",
    ),
    wrong(
        f"{PUT} {GET}", "", TO_AIE, details=("part of a buffer over a cascade",), architectures=ALL,
        note="mlir-air's lowering of cascades passes over offsets and sizes and moves the whole buffer",
        alternative="send and receive whole buffers of one type",
    ),
)  # fmt: skip

TRANSFERS = (
    direct(DMA, "", ROPE, SILU, RMS_NORM, details=_in("L3 to L1 in the herd", "L1 to L3 in the herd")),
    direct(DMA, "", GEMM, LAUNCHES, details=_in("L3 to L2 in the segment", "L2 to L1 in the herd")),
    direct(DMA, "", GEMM, LAUNCHES, details=("L1 to L2 in the herd", "L2 to L3 in the segment")),
    direct("memref.alloc", "", GEMM, SEQ_FIRST, details=("L2 in the segment", "L1 in the segment")),
    direct("affine.apply", "", SEQ_FIRST, LAUNCHES, details=("outside of cores",)),
    direct("affine.apply", "", SEQ_FIRST, details=("outside of cores, with floordiv",)),
)  # fmt: skip

AIR_TABLE: tuple[LoweringRule, ...] = (*LEVELS, *CHANNELS, *TRANSFERS)
"""The first row that matches a form is the one about it."""


def find_air(form: OpForm, architecture: str) -> LoweringRule | None:
    """What is known of a form of AIR; None where there is no evidence either way."""
    return next((rule for rule in AIR_TABLE if rule.matches(form, architecture)), None)


def air_forms_of(op: Operation) -> Iterator[OpForm]:
    """The forms that an operation has for mlir-air; none for what the cores compute."""
    if isinstance(op, LaunchOp):
        yield OpForm(op.name, detail=f"{len(op.sizes)} dimensions")
    elif isinstance(op, SegmentOp):
        yield OpForm(op.name, detail="unrolled" if op.sizes else "")
    elif isinstance(op, HerdOp):
        yield from _herd(op)
    elif isinstance(op, ChannelOp):
        broadcast = ", broadcast" if "broadcast_shape" in {**op.attributes, **op.properties} else ""
        yield OpForm(op.name, detail=op.channel_type + broadcast)
    elif isinstance(op, ChannelTransferOp):
        yield OpForm(op.name, detail=_over_channel(op))
    elif isinstance(op, DmaMemcpyNdOp):
        yield OpForm(op.name, detail=f"{_space(op.src.type)} to {_space(op.dst.type)} {place(op)}")
    elif isinstance(op, FuncOp) and sum(isinstance(inner, LaunchOp) for inner in op.walk()) > 1:
        yield OpForm(op.name, detail="several launches")
    elif level(op) is not None and not isinstance(level(op), HerdOp):
        yield from _around(op)


def level(op: Operation) -> HierarchyOp | None:
    """The launch, segment or herd that an operation stands in."""
    return next((parent for parent in parent_ops(op) if isinstance(parent, HierarchyOp)), None)


def place(op: Operation) -> str:
    """`in the herd, in a branch, in a loop`: the level, and what else is around an operation there."""
    around = list(parent_ops(op))
    depth = next((i for i, parent in enumerate(around) if isinstance(parent, HierarchyOp)), len(around))
    if depth == len(around):
        return "in no launch"
    branch = any(isinstance(parent, scf.IfOp | affine.IfOp) for parent in around[:depth])
    loop = any(isinstance(parent, scf.ForOp | scf.ParallelOp | affine.ForOp) for parent in around[:depth])
    where = around[depth].name.removeprefix("air.")
    return f"in the {where}{', in a branch' if branch else ''}{', in a loop' if loop else ''}"


def _herd(op: HerdOp) -> Iterator[OpForm]:
    """A herd, what it is given, and whether it is one of several phases of the same cores."""
    yield OpForm(op.name)
    scope = level(op)
    twins = [] if scope is None else [h for h in scope.walk() if isinstance(h, HerdOp)]
    if op.sym_name is not None and sum(twin.sym_name == op.sym_name for twin in twins) > 1:
        yield OpForm(op.name, detail="in phases")
    for type_ in dict.fromkeys(argument.type for argument in op.kernel_args):
        if isinstance(type_, MemRefType):
            yield OpForm(op.name, detail=f"given {_space(type_)}")
        elif isinstance(type_, IndexType | IntegerType):
            yield OpForm(op.name, str(type_), detail="given a number")


def _over_channel(op: ChannelTransferOp) -> str:
    module = list(parent_ops(op))[-1]
    channels = (c for c in module.walk() if isinstance(c, ChannelOp) and c.sym_name == op.chan_name)
    channel = next(channels, None)
    if channel is None or channel.channel_type != "npu_cascade":
        return place(op)
    return "part of a buffer over a cascade" if op.sizes else "a buffer over a cascade"


def _around(op: Operation) -> Iterator[OpForm]:
    """What launches and segments hold beside transfers."""
    if isinstance(op, memref.AllocOp):
        yield OpForm(op.name, detail=f"{_space(op.memref.type)} {place(op)}")
    elif isinstance(op, affine.ApplyOp):
        divides = any(map(_divides, op.map.data.results))
        yield OpForm(op.name, detail="outside of cores" + (", with floordiv" if divides else ""))


def _divides(expr: AffineExpr) -> bool:
    if not isinstance(expr, AffineBinaryOpExpr):
        return False
    plain = expr.kind in (AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul)
    return not plain or _divides(expr.lhs) or _divides(expr.rhs)


def _space(type_: Attribute) -> str:
    return f"L{3 - (space_of(type_) or 0)}"
