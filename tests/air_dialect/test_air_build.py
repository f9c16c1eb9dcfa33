"""Building modules in Python: constructors, accessors, printing, verification."""

import pytest
from xdsl.builder import Builder
from xdsl.dialects import arith, func, memref
from xdsl.dialects.builtin import (
    FunctionType,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    bf16,
    i32,
    i64,
)
from xdsl.ir import Block, Region
from xdsl.rewriter import InsertPoint
from xdsl.utils.exceptions import VerifyException

from aerie import air_dialect
from aerie.air_dialect import AirParseError
from aerie.air_dialect.ops import (
    AsyncTokenType,
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    HerdOp,
    LaunchOp,
    MemorySpace,
    SegmentOp,
    WaitAllOp,
    memory_space,
    memory_space_name,
)

L3 = MemRefType(bf16, [64])
L1 = MemRefType(bf16, [64], memory_space=IntegerAttr(2, i64))


def index(builder: Builder, value: int) -> arith.ConstantOp:
    return builder.insert(arith.ConstantOp(IntegerAttr(value, IndexType())))


def herd_program() -> tuple[ModuleOp, LaunchOp, SegmentOp, HerdOp]:
    """A launch of 4, in it a segment, in it a 2 x 1 herd that loads 64 elements and sends them on."""
    entry = Block(arg_types=[L3])
    builder = Builder(InsertPoint.at_end(entry))
    four = index(builder, 4)
    launch = builder.insert(LaunchOp([four], [entry.args[0]]))
    inside = launch.body_builder()
    segment = inside.insert(SegmentOp([], launch.kernel_args, sym_name="seg"))
    inside = segment.body_builder()
    two, one = index(inside, 2), index(inside, 1)
    herd = inside.insert(
        HerdOp([two, one], segment.kernel_args, sym_name="load", attributes={"link_with": StringAttr("k.o")})
    )
    core = herd.body_builder()
    buffer = core.insert(memref.AllocOp((), (), L1))
    offset, size, stride = index(core, 0), index(core, 64), index(core, 1)
    core.insert(
        DmaMemcpyNdOp(
            buffer,
            herd.kernel_args[0],
            src_offsets=[offset],
            src_sizes=[size],
            src_strides=[stride],
            attributes={"id": IntegerAttr(1, i32)},
        )
    )
    core.insert(ChannelPutOp("c", herd.ids, buffer))
    builder.insert(func.ReturnOp())
    function = func.FuncOp("main", FunctionType.from_lists([L3], []), Region(entry))
    return ModuleOp([ChannelOp("c", [2, 1]), function]), launch, segment, herd


def test_a_built_program_prints_and_parses_to_itself() -> None:
    module, *_ = herd_program()
    air_dialect.verify(module)
    text = air_dialect.print_module(module)
    again = air_dialect.parse(text)
    assert module.is_structurally_equivalent(again)
    assert "air.herd @load tile (%" in text
    assert 'attributes {link_with = "k.o"}' in text
    assert "{id = 1 : i32} : (memref<64xbf16, 2>, memref<64xbf16>)" in text


def test_hierarchy_accessors() -> None:
    _, launch, segment, herd = herd_program()
    assert launch.sym_name is None
    assert (segment.sym_name, herd.sym_name) == ("seg", "load")
    assert herd.link_with == StringAttr("k.o")
    assert [len(op.sizes) for op in (launch, segment, herd)] == [1, 0, 2]
    assert (len(herd.ids), len(herd.size_args), len(herd.kernel_args)) == (2, 2, 1)
    assert [arg.index for arg in (*herd.ids, *herd.size_args, *herd.kernel_args)] == [0, 1, 2, 3, 4]
    assert tuple(herd.kernel_operands) == segment.kernel_args
    assert herd.async_token is None
    assert herd.has_body
    assert not HerdOp([], sym_name="extern").has_body


def test_asynchronous_forms_have_a_token() -> None:
    start = WaitAllOp(is_async=True)
    launch = LaunchOp([], async_dependencies=[start], is_async=True)
    assert launch.async_token is not None
    assert launch.async_token.type == AsyncTokenType()
    assert list(launch.async_dependencies) == [start.async_token]
    body = Region(Block([allocation := memref.AllocOp((), (), L1)]))
    run = ExecuteOp(body, async_dependencies=[launch])
    assert run.async_token.type == AsyncTokenType()
    assert run.body.block.last_op is not allocation
    dma = DmaMemcpyNdOp(allocation, allocation, is_async=True, async_dependencies=[run.async_token])
    assert dma.async_token is not None
    assert WaitAllOp([dma]).async_token is None


def test_channel_accessors() -> None:
    plain = ChannelOp("c")
    assert (plain.sym_name, plain.size, plain.channel_type, plain.broadcast_shape) == (
        "c",
        [],
        "npu_dma_stream",
        None,
    )
    wide = ChannelOp("w", [1, 4], channel_type="npu_cascade", broadcast_shape=[2, 4])
    assert (wide.size, wide.channel_type, wide.broadcast_shape) == ([1, 4], "npu_cascade", [2, 4])


def test_transfer_accessors() -> None:
    buffer = memref.AllocOp((), (), L1)
    zero = arith.ConstantOp(IntegerAttr(0, IndexType()))
    get = ChannelGetOp("w", [zero, zero], buffer, [zero], [zero], [zero], is_async=True)
    assert get.chan_name == "w"
    assert get.memref is buffer.memref
    assert [len(part) for part in (get.indices, get.offsets, get.sizes, get.strides)] == [2, 1, 1, 1]
    assert get.async_token is not None
    assert get.channel() is None
    declaration = ChannelOp("w", [1, 1])
    ModuleOp([declaration, buffer, zero, get])
    assert get.channel() is declaration


def test_a_value_from_outside_breaks_isolation() -> None:
    module, _, segment, herd = herd_program()
    core = herd.body_builder()
    core.insert(memref.DeallocOp.get(segment.kernel_args[0]))
    with pytest.raises(AirParseError, match=r"<built>: error: Operation using value defined out of its"):
        air_dialect.verify(module)


def test_a_body_without_terminator_is_reported() -> None:
    function = func.FuncOp("main", FunctionType.from_lists([], []), Region(Block()))
    with pytest.raises(
        AirParseError, match=r"func\.func has an empty body, which needs at least its terminator"
    ):
        air_dialect.verify(ModuleOp([function]))


def test_an_execute_without_its_terminator() -> None:
    with pytest.raises(VerifyException, match=r"terminates with operation func.return instead of"):
        ExecuteOp(Region(Block([func.ReturnOp()])))


def test_a_value_of_a_body_that_does_not_enclose_its_use() -> None:
    inner = WaitAllOp(is_async=True)
    run = ExecuteOp(Region(Block([inner])))
    with pytest.raises(AirParseError, match=r"is the result of air\.wait_all, which it cannot see"):
        air_dialect.verify(ModuleOp([run, WaitAllOp([inner])]))


def test_a_value_used_inside_its_own_operation() -> None:
    body = Block()
    run = ExecuteOp(Region(body))
    assert body.first_op is not None
    body.insert_op_before(WaitAllOp([run]), body.first_op)
    with pytest.raises(
        AirParseError, match=r"operand 0 of air\.wait_all is a result of the operation around it"
    ):
        air_dialect.verify(ModuleOp([run]))


def test_values_of_blocks_that_run_before() -> None:
    """A block sees the values of blocks that every path passes; one that never runs may use any."""
    air_dialect.parse(
        """func.func @f(%b: i1) {
          %v = arith.constant 1 : index
          cf.cond_br %b, ^one, ^two
        ^one:
          %w = arith.addi %v, %v : index
          cf.br ^two
        ^two:
          %x = arith.addi %v, %v : index
          return
        ^never:
          %y = arith.addi %w, %x : index
          return
        }"""
    )


def test_memory_space() -> None:
    assert [memory_space(level) for level in (L3, L1)] == [MemorySpace.L3, MemorySpace.L1]
    assert [int(space) for space in (MemorySpace.L3, MemorySpace.L1)] == [0, 2]
    assert memory_space(MemRefType(bf16, [1], memory_space=IntegerAttr(1, i32))) == MemorySpace.L2
    assert [memory_space_name(space) for space in (0, 1, 2, 7)] == ["L3", "L2", "L1", "7"]
    with pytest.raises(ValueError, match=r"i32 is not a memref: only a memref has a memory space"):
        memory_space(i32)
    with pytest.raises(ValueError, match=r'memory space "far" of .* is not an integer: write none \(L3\)'):
        memory_space(MemRefType(bf16, [1], memory_space=StringAttr("far")))


def test_location_of_parsed_and_built_operations() -> None:
    module = air_dialect.parse("module {\n  air.channel @c []\n}", "here.mlir")
    channel = module.body.block.first_op
    assert channel is not None
    assert air_dialect.location(channel) == "here.mlir:2:3"
    assert air_dialect.location(ChannelOp("c")) == "<built>"


def test_a_clone_keeps_its_operand_groups() -> None:
    text = (
        "func.func @f(%a: memref<8xi32>, %b: memref<8xi32, 2>, %n: index) {\n"
        "  air.dma_memcpy_nd (%a[%n] [%n] [%n], %b[] [] []) : (memref<8xi32>, memref<8xi32, 2>)\n"
        "  return\n"
        "}"
    )
    module = air_dialect.parse(text)
    assert air_dialect.print_module(module.clone()) == air_dialect.print_module(module)
