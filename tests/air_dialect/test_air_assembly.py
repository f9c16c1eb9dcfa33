"""What the assembly of each operation reads and writes, one statement at a time."""

# ruff: noqa: E501  (statements are quoted whole)

import pytest

from aerie import air_dialect

HEAD = """
air.channel @c [2, 4]
air.channel @one []
func.func @f(%l3: memref<64xbf16>, %l3m: memref<8x8xbf16>, %l1: memref<64xbf16, 2>,
            %c0: index, %c1: index, %t: !air.async.token, %n: i32) {
"""
TAIL = "\nreturn\n}"


def reprint(statement: str) -> str:
    """The statement, parsed inside a function and printed again without the surroundings."""
    module = air_dialect.parse(HEAD + statement + TAIL)
    text = air_dialect.print_module(module)
    again = air_dialect.parse(text)
    assert module.is_structurally_equivalent(again)
    assert air_dialect.print_module(again) == text
    lines = [line[4:] for line in text.splitlines()]
    start = next(number for number, line in enumerate(text.splitlines()) if "func.func @f" in line)
    return "\n".join(lines[start + 1 : -3])


UNCHANGED = {
    "dma": "air.dma_memcpy_nd (%l1[] [] [], %l3[] [] []) {id = 1 : i32} "
    ": (memref<64xbf16, 2>, memref<64xbf16>)",
    "dma_async": "%a = air.dma_memcpy_nd async [%t] (%l1[] [] [], %l3[%c0] [%c1] [%c1]) "
    ": (memref<64xbf16, 2>, memref<64xbf16>)",
    "dma_dynamic": "air.dma_memcpy_nd (%l3m[%c0, %c1] [%c1, %c1] [%c0, %c1], %l3[] [] []) "
    ": (memref<8x8xbf16>, memref<64xbf16>)",
    "dma_padded": "air.dma_memcpy_nd (%l1[] [] [], %l3[%c0] [%c1] [%c1]) "
    "{pad_before = array<i32: 1>, pad_after = array<i32: 2>} : (memref<64xbf16, 2>, memref<64xbf16>)",
    "put": "air.channel.put @c[%c0, %c1] (%l1[] [] []) : (memref<64xbf16, 2>)",
    "put_async": "%a = air.channel.put async [%t] @one[] (%l3[%c0] [%c1] [%c1]) "
    "{id = 3 : i32} : (memref<64xbf16>)",
    "put_dest": "air.channel.put @one[] (%l1[] [] []) dest(%c1) : (memref<64xbf16, 2>)",
    "get": "air.channel.get @c[%c0, %c1] (%l1[] [] []) : (memref<64xbf16, 2>)",
    "get_async": "%a = air.channel.get async @c[%c0, %c1] (%l1[] [] []) : (memref<64xbf16, 2>)",
    "wait_all_blocking": "air.wait_all [%t]",
    "wait_all_async": "%a = air.wait_all async [%t]",
    "wait_all_nothing": "%a = air.wait_all async",
    "launch_zero_dims": "air.launch () in () {\n}",
    "launch_async": "%a = air.launch async [%t] (%i, %j) in (%si=%c0, %sj=%c1) args(%x=%l3) "
    ": memref<64xbf16> attributes {id = 2 : i32} {\n}",
    "launch_named": "air.launch @go (%i) in (%si=%c0) {\n  air.segment @here {\n    %a = air.wait_all async\n  }\n}",
    "segment_unroll": "%a = air.segment @s async [%t] unroll (%i) in (%si=%c0) args(%x=%l3) : memref<64xbf16> "
    "attributes {x_loc = 0 : i64, x_size = 4 : i64, y_loc = 2 : i64, y_size = 4 : i64} {\n  %b = air.wait_all async\n}",
    "execute": "%a = air.execute [%t] {\n  memref.dealloc %l1 : memref<64xbf16, 2>\n} {id = 4 : i32}",
    "execute_values": "%a, %r = air.execute -> (memref<8xf32, 1>) {\n"
    "  %m = memref.alloc() : memref<8xf32, 1>\n"
    "  air.execute_terminator %m : memref<8xf32, 1>\n}",
    "rank": "air.rank (%i) in (%si=%c0) {\n  air.launch () in () {\n  }\n}",
    "custom": 'air.custom @k operands (%n, %l1) : i32, memref<64xbf16, 2> attributes {latency = "5"}',
    "translate": "%m = memref.alloc() : memref<2xindex>\n"
    "%p = air.translate %l3, %c0, %c1, %m : memref<64xbf16>, memref<2xindex>",
    "symmetric_heap": "%m = memref.alloc() : memref<8xf32, #air.symmetric_heap>",
    "index": "%a = index.constant -4\n%b = index.maxs %a, %c0\n%d = index.casts %b : index to i32",
    "integer_vectors": "%a = arith.constant dense<1> : vector<4xi8>\n"
    "%b = arith.extsi %a : vector<4xi8> to vector<4xi32>\n"
    "%d = arith.extui %a : vector<4xi8> to vector<4xi16>\n"
    "%e = arith.trunci %b : vector<4xi32> to vector<4xi8>",
    "lanes_compared": "%a = arith.constant dense<1> : vector<4xi32>\n"
    "%b = arith.sitofp %a : vector<4xi32> to vector<4xf32>\n"
    "%i = arith.cmpi slt, %a, %a : vector<4xi32>\n"
    "%m = arith.cmpf olt, %b, %b fastmath<nnan> : vector<4xf32>\n"
    "%e = arith.select %m, %b, %b : vector<4xi1>, vector<4xf32>\n"
    "%o = arith.cmpi ult, %c0, %c1 : index\n"
    "%g = arith.select %o, %e, %b : vector<4xf32>\n"
    "%s = arith.select %o, %c0, %c1 : index",
    "lanes_converted": "%a = arith.constant dense<1> : vector<4xi32>\n"
    "%f = arith.uitofp %a : vector<4xi32> to vector<4xf32>\n"
    "%h = arith.truncf %f : vector<4xf32> to vector<4xbf16>\n"
    "%w = arith.extf %h : vector<4xbf16> to vector<4xf32>\n"
    "%s = arith.fptosi %w : vector<4xf32> to vector<4xi32>\n"
    "%u = arith.fptoui %w : vector<4xf32> to vector<4xi8>\n"
    "%i = arith.index_cast %s : vector<4xi32> to vector<4xindex>\n"
    "%j = arith.index_cast %c0 : index to i32\n"
    "%b = arith.bitcast %f : vector<4xf32> to vector<4xi32>",
    "lanes_of_floats": "%f = arith.constant dense<1.000000e+00> : vector<4xf32>\n"
    + "\n".join(
        f"%{number} = arith.{name} %f, %f : vector<4xf32>"
        for number, name in enumerate(("maximumf", "minimumf", "maxnumf", "minnumf", "remf"))
    ),
    "affine_parallel": "affine.parallel (%i, %j) = (0, %c0) to (%c1 * 2 + 4, min(%c1, 8)) step (2, 3) {\n"
    "  %a = arith.addi %i, %j : index\n} {tag = 1 : i8}",
    "affine_parallel_plain": "affine.parallel (%i) = (0) to (4) {\n}",
    "delinearize": "%a, %b = affine.delinearize_index %c1 into (%c0, 8) : index, index\n"
    "%d, %e = affine.delinearize_index %c1 into (8) : index, index",
    "assert": '%b = arith.constant true\ncf.assert %b, "why not"',
    "for_of_integers": "%b = arith.extsi %n : i32 to i64\n"
    "%r = scf.for %i = %n to %n step %n iter_args(%x = %b) -> (i64)  : i32 {\n  scf.yield %x : i64\n}",
    "matrix_vector": "%m = memref.alloc() : memref<8x64xbf16>\n%v = memref.alloc() : memref<8xbf16>\n"
    "linalg.matvec ins(%m, %l3 : memref<8x64xbf16>, memref<64xbf16>) outs(%v : memref<8xbf16>)\n"
    "linalg.vecmat ins(%v, %m : memref<8xbf16>, memref<8x64xbf16>) outs(%l3 : memref<64xbf16>)",
    "negative_infinity": "%a = arith.constant dense<0xff800000> : vector<8xf32>",
    "tensors": "%a = bufferization.to_tensor %l1 restrict writable : memref<64xbf16, 2> to tensor<64xbf16>\n"
    "%b = bufferization.to_buffer %a read_only : tensor<64xbf16> to memref<64xbf16, 1>\n"
    "bufferization.materialize_in_destination %a in writable %b : (tensor<64xbf16>, memref<64xbf16, 1>) -> ()",
    "reshape": "%s = memref.alloc() : memref<2xindex>\n"
    "%m = memref.reshape %l3(%s) : (memref<64xbf16>, memref<2xindex>) -> memref<8x8xbf16>",
    "reinterpret": "%u = memref.cast %l3 : memref<64xbf16> to memref<*xbf16>\n"
    "%m = memref.reinterpret_cast %u to offset: [0], sizes: [4, %c1], strides: [%c1, 1] : memref<*xbf16> to "
    "memref<4x?xbf16, strided<[?, 1]>>",
    "space_cast": "%m = memref.memory_space_cast %l3 : memref<64xbf16> to memref<64xbf16, 1>",
    "foreign_attribute": "%m = memref.alloc() {loop = #llvm.loop_unroll<disable = true>} : memref<4xf32>",
    "i32_memory_space": "%m = memref.alloc() : memref<8xf32, 2 : i32>",
    "strided": "%s = memref.subview %l3m[0, 0] [4, 8] [1, 1] : memref<8x8xbf16> to "
    "memref<4x8xbf16, strided<[8, 1]>>",
}


@pytest.mark.parametrize("statement", UNCHANGED.values(), ids=UNCHANGED.keys())
def test_statement_prints_as_written(statement: str) -> None:
    assert reprint(statement) == statement


HERD = "%two = arith.constant 2 : index\n"


@pytest.mark.parametrize(
    "herd",
    [
        "air.herd tile (%x, %y) in (%sx=%two, %sy=%two) {\n}",
        "air.herd @h tile (%x, %y) in (%sx=%two, %sy=%two) args(%a=%l1) : memref<64xbf16, 2> "
        'attributes {link_with = "k.o", x_loc = 1 : i64, y_loc = 2 : i64} {\n'
        "  %z = arith.addi %x, %sy : index\n}",
        "air.herd @extern tile (%x, %y) in (%sx=%two, %sy=%two) args(%a=%l1) : memref<64xbf16, 2> "
        'attributes {link_with = "k.o"}',
        "%a = air.herd @h async [%t] tile (%x) in (%sx=%two) {\n  %z = arith.addi %x, %sx : index\n}",
    ],
    ids=["plain", "everything", "without_body", "async"],
)
def test_herd_prints_as_written(herd: str) -> None:
    assert reprint(HERD + herd) == HERD + herd


CHANNELS = {
    "air.channel @d []": "air.channel @d []",
    "air.channel @d [2,2]": "air.channel @d [2, 2]",
    'air.channel @d [] {channel_type = "dma_stream"}': 'air.channel @d [] {channel_type = "npu_dma_stream"}',
    'air.channel @d [] {channel_type = "dma_packet"}': 'air.channel @d [] {channel_type = "npu_dma_packet"}',
    'air.channel @d [3] {channel_type = "cascade"}': 'air.channel @d [3] {channel_type = "npu_cascade"}',
    "air.channel @d [1, 1] {broadcast_shape = [1, 4]}": "air.channel @d [1, 1] {broadcast_shape = [1, 4]}",
    'air.channel @d [] {channel_type = "npu_dma_packet", packet_ids = [1, 4]}': (
        'air.channel @d [] {channel_type = "npu_dma_packet", packet_ids = [1, 4]}'
    ),
}


@pytest.mark.parametrize(("written", "printed"), CHANNELS.items(), ids=CHANNELS.keys())
def test_channel_declaration(written: str, printed: str) -> None:
    text = air_dialect.print_module(air_dialect.parse(written))
    assert text == f"builtin.module {{\n  {printed}\n}}\n"


def test_integers_become_constants_before_their_user() -> None:
    dma = "air.dma_memcpy_nd (%l1[] [] [], %l3[{}] [{}] [{}]) : (memref<64xbf16, 2>, memref<64xbf16>)"
    assert reprint(dma.format(0, 64, 1)) == (
        "%c0_1 = arith.constant 0 : index\n"
        "%c64 = arith.constant 64 : index\n"
        "%c1_1 = arith.constant 1 : index\n" + dma.format("%c0_1", "%c64", "%c1_1")
    )


def test_integers_as_bundle_indices_and_sizes() -> None:
    text = reprint("air.channel.put @c[1, 3] (%l1[] [] []) : (memref<64xbf16, 2>)")
    assert "air.channel.put @c[%c1_1, %c3] (" in text


def test_a_loop_may_write_its_only_type_without_parentheses() -> None:
    loop = "%r = scf.for %i = %c0 to %c1 step %c1 iter_args(%x = %n) -> {} {{\n  scf.yield %x : i32\n}}"
    assert reprint(loop.format("i32")) == loop.format("(i32)")


def test_generic_affine_parallel_with_dimensions_and_symbols() -> None:
    loop = (
        '"affine.parallel"(%c0, %c1, %c1) <{reductions = [], lowerBoundsMap = affine_map<() -> (0)>, '
        "lowerBoundsGroups = dense<1> : tensor<1xi32>, upperBoundsMap = affine_map<(d0, d1)[s0] -> (d0 + s0, d1)>, "
        "upperBoundsGroups = dense<2> : tensor<1xi32>, steps = [1]}> ({\n"
        '^bb0(%i: index):\n"affine.yield"() : () -> ()\n}) : (index, index, index) -> ()'
    )
    text = air_dialect.print_module(air_dialect.parse(HEAD + loop + TAIL))
    assert "affine.parallel (%i) = (0) to (min(%c0 + %c1, %c1)) {" in text


def test_linalg_reduce_into_a_wider_type() -> None:
    reduce = (
        "%e = tensor.empty() : tensor<64xbf16>\n%u = tensor.empty() : tensor<f32>\n"
        "%r = linalg.reduce ins(%e : tensor<64xbf16>) outs(%u : tensor<f32>) dimensions = [0] "
        "(%in: bf16, %acc: f32) {\n  %w = arith.extf %in : bf16 to f32\n"
        "  %s = arith.addf %w, %acc : f32\n  linalg.yield %s : f32\n}"
    )
    assert reprint(reduce) == reduce


def test_attribute_and_map_aliases_are_resolved() -> None:
    text = air_dialect.print_module(
        air_dialect.parse(
            "#map = affine_map<()[s0] -> (s0 * 64)>\n!buf = memref<8xf32, 1>\n"
            "func.func @f(%i: index, %b: !buf) {\n%0 = affine.apply #map()[%i]\nreturn\n}"
        )
    )
    assert "affine.apply affine_map<()[s0] -> ((s0 * 64))> ()[%i]" in text
    assert "%b: memref<8xf32, 1>" in text


def test_generic_form_is_read() -> None:
    herd = (
        '"air.herd"(%t, %two, %two, %l1) <{operandSegmentSizes = array<i32: 1, 2, 1>, sym_name = "h"}> ({\n'
        "^bb0(%x: index, %y: index, %sx: index, %sy: index, %a: memref<64xbf16, 2>):\n"
        '  "air.herd_terminator"() : () -> ()\n'
        "}) : (!air.async.token, index, index, memref<64xbf16, 2>) -> ()"
    )
    assert "air.herd @h [%t] tile (%x, %y) in (%sx=%two, %sy=%two) args(%a=%l1)" in reprint(HERD + herd)


DYNAMIC = -(2**63)
GENERIC = {
    "dma": (
        '"air.dma_memcpy_nd"(%l1, %l3m, %c1, %c0) <{operandSegmentSizes = array<i32: 0, 1, 0, 0, 0, 1, 1, 1, 0>, '
        "static_dst_offsets = array<i64>, static_dst_sizes = array<i64>, static_dst_strides = array<i64>, "
        f"static_src_offsets = array<i64: {DYNAMIC}, 0>, static_src_sizes = array<i64: 4, {DYNAMIC}>, "
        "static_src_strides = array<i64: 8, 1>}> {id = 1 : i32} : "
        "(memref<64xbf16, 2>, memref<8x8xbf16>, index, index) -> ()",
        "air.dma_memcpy_nd (%l1[] [] [], %l3m[%c1, %c0_1] [%c4, %c0] [%c8, %c1_1]) {id = 1 : i32} : "
        "(memref<64xbf16, 2>, memref<8x8xbf16>)",
    ),
    "put": (
        '%a = "air.channel.put"(%t, %l3, %c0, %c1) <{chan_name = @one, '
        "operandSegmentSizes = array<i32: 1, 0, 1, 1, 0, 0, 1>, "
        f"static_src_offsets = array<i64: {DYNAMIC}>, static_src_sizes = array<i64: 32>, "
        "static_src_strides = array<i64: 1>}> : "
        "(!air.async.token, memref<64xbf16>, index, index) -> !air.async.token",
        "%a = air.channel.put async [%t] @one[] (%l3[%c0] [%c32] [%c1_1]) dest(%c1) : (memref<64xbf16>)",
    ),
    "put_without_dest": (
        '"air.channel.put"(%l3, %c0, %c1, %c1) <{chan_name = @one, '
        "operandSegmentSizes = array<i32: 0, 0, 1, 1, 1, 1>}> : (memref<64xbf16>, index, index, index) -> ()",
        "air.channel.put @one[] (%l3[%c0] [%c1] [%c1]) : (memref<64xbf16>)",
    ),
    "get": (
        '"air.channel.get"(%c0, %c1, %l1) <{chan_name = @c, operandSegmentSizes = array<i32: 0, 2, 1, 0, 0, 0>, '
        "static_dst_offsets = array<i64: -8>, static_dst_sizes = array<i64: 32>, "
        "static_dst_strides = array<i64: 1>}> : (index, index, memref<64xbf16, 2>) -> ()",
        "air.channel.get @c[%c0, %c1] (%l1[%cm8] [%c32] [%c1_1]) : (memref<64xbf16, 2>)",
    ),
    "contract": (
        '%a = arith.constant dense<0.0> : vector<2xf32>\n%r = "vector.contract"(%a, %a, %a) <{fastmath = '
        "#arith.fastmath<none>, indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, "
        "affine_map<(d0) -> (d0)>], iterator_types = [#vector.iterator_type<parallel>], kind = "
        "#vector.kind<add>}> : (vector<2xf32>, vector<2xf32>, vector<2xf32>) -> vector<2xf32>",
        "%r = vector.contract {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, "
        'affine_map<(d0) -> (d0)>], iterator_types = ["parallel"], kind = #vector.kind<add>} %a, %a, %a : '
        "vector<2xf32>, vector<2xf32> into vector<2xf32>",
    ),
    "unknown_property": (
        '%m = "memref.alloc"() <{novelty = 1 : i8, operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<4xf32>',
        "%m = memref.alloc() {novelty = 1 : i8} : memref<4xf32>",
    ),
}


@pytest.mark.parametrize(("written", "printed"), GENERIC.values(), ids=GENERIC.keys())
def test_generic_form_that_mlir_prints(written: str, printed: str) -> None:
    """Integers of a list are attributes there; defaults and properties unknown to xDSL do no harm."""
    assert reprint(written).splitlines()[-1] == printed


@pytest.mark.parametrize("name", ["put", "get"])
def test_generic_form_with_all_in_one_dictionary(name: str) -> None:
    """As Python prints operations of a dialect that is not registered, and MLIR did before 2023."""
    written, printed = GENERIC[name]
    assert reprint(written.replace("<{", "{").replace("}>", "}")).splitlines()[-1] == printed


def test_generic_global_without_visibility() -> None:
    text = '"memref.global"() <{sym_name = "g", type = memref<4xi32>, initial_value}> : () -> ()'
    assert "  memref.global @g : memref<4xi32> = uninitialized\n" in air_dialect.print_module(
        air_dialect.parse(text)
    )


def test_execute_may_leave_its_token_unnamed() -> None:
    assert reprint("air.execute [%t] {\n}") == "%0 = air.execute [%t] {\n}"


def test_symbol_name_in_the_attribute_dictionary() -> None:
    herd = 'air.herd tile (%x, %y) in (%sx=%two, %sy=%two) attributes {sym_name = "h"} {\n}'
    assert "air.herd @h tile" in reprint(HERD + herd)


def test_schedule_text_is_unchanged() -> None:
    schedule = (
        "transform.named_sequence @main(%arg: !transform.any_op {transform.readonly}) {\n"
        '      // a brace } in a comment, and "one" {\n'
        '      %0 = transform.structured.match ops{["linalg.fill", "}"]} in %arg\n'
        "    transform.yield\n  }"
    )
    text = f"module {{\n  {schedule}\n  air.channel @c []\n}}"
    module = air_dialect.parse(text)
    assert air_dialect.print_module(module) == f"builtin.{text}\n"


def test_globals_initialised_uninitialised_and_elsewhere() -> None:
    text = (
        "builtin.module {\n"
        '  memref.global "private" constant @a : memref<2xi32, 1> = dense<[1, 2]> {alignment = 64 : i64}\n'
        "  memref.global @b : memref<2xi32> = uninitialized\n"
        '  memref.global "private" @c : memref<2xi32>\n}\n'
    )
    assert air_dialect.print_module(air_dialect.parse(text)) == text


def test_operations_of_xdsl_itself_print_in_custom_assembly() -> None:
    """A module built with xDSL's own memref.copy prints like one built with this package's."""
    from xdsl.dialects import memref

    module = air_dialect.parse(
        "func.func @f(%a: memref<4xf32>, %b: memref<4xf32>) {\nmemref.copy %a, %b : memref<4xf32> to "
        "memref<4xf32>\nreturn\n}"
    )
    copy = next(op for op in module.walk() if isinstance(op, memref.CopyOp))
    plain = memref.CopyOp(copy.source, copy.destination)
    assert copy.parent is not None
    copy.parent.insert_op_before(plain, copy)
    copy.detach()
    assert "memref.copy %a, %b : memref<4xf32> to memref<4xf32>" in air_dialect.print_module(module)
