"""Every rule, broken once: where the error is and what it says."""

# ruff: noqa: E501  (messages are quoted whole)

import re

import pytest

from aerie import air_dialect
from aerie.air_dialect import AirParseError

TYPES = "%l3: memref<64xbf16>, %l2: memref<64xbf16, 1>, %l1: memref<64xbf16, 2>, %f: memref<64xf32, 2>"
HEAD = f"""air.channel @c [2, 4]
air.channel @wide [1, 4] {{broadcast_shape = [2, 4]}}
air.channel @mmio [] {{channel_type = "npu_mmio"}}
air.channel @heap [] {{channel_type = "gpu_symmetric_heap"}}
func.func @f({TYPES}, %i: index, %t: !air.async.token) {{
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%c2 = arith.constant 2 : index
"""
TAIL = "\nreturn\n}"
LINE = HEAD.count("\n") + 1
HERD = "air.herd tile (%x, %y) in (%sx=%c2, %sy=%c2) args(%a=%l2, %b=%l1) : memref<64xbf16, 1>, memref<64xbf16, 2> {\n"


def dma(dst: str, src: str, types: str = "memref<64xbf16, 2>, memref<64xbf16>", attributes: str = "") -> str:
    return f"air.dma_memcpy_nd ({dst}, {src}) {attributes} : ({types})"


BROKEN = {
    # hierarchy
    "herd_dims": (
        "air.herd tile (%x, %y, %z) in (%sx=%c2, %sy=%c2, %sz=%c2) {\n}",
        "air.herd has 3 dimensions: write columns and rows, as in (%x, %y)",
    ),
    "herd_size_unknown": (
        "air.herd tile (%x, %y) in (%sx=%i, %sy=%c2) {\n}",
        "air.herd number of columns is not a constant: a grid of cores is fixed at compile time, write an "
        "arith.constant just outside the herd",
    ),
    "herd_size_zero": (
        "air.herd tile (%x, %y) in (%sx=%c2, %sy=%c0) {\n}",
        "air.herd has 0 rows: it must be at least 1",
    ),
    "herd_counts_differ": (
        "air.herd tile (%x, %y) in (%sx=%c2) {\n}",
        "air.herd names 2 indices but 1 sizes: write one size per index",
    ),
    "herd_without_body": (
        "air.herd tile (%x, %y) in (%sx=%c2, %sy=%c2)\nreturn",
        "air.herd without a body needs a @name and link_with: write them, or a body",
    ),
    "herd_isolated": (
        "air.herd tile (%x, %y) in (%sx=%c2, %sy=%c2) {\n%z = arith.addi %x, %c1 : index\n}",
        "%c1 used in a body that does not define it: a hierarchy body is isolated from above, pass the value "
        "through args(...) or create the constant inside",
    ),
    "herd_alloc": (
        HERD + "%m = memref.alloc() : memref<8xf32, 1>\n}",
        "memref.alloc of memref<8xf32, 1> inside air.herd is in L2: only memory space 2 (L1) or more can "
        "be allocated there",
    ),
    "segment_alloc": (
        "air.segment @s {\n%m = memref.alloc() : memref<8xf32>\n%n = air.wait_all async\n}",
        "memref.alloc of memref<8xf32> inside air.segment is in L3: only memory space 1 (L2) or more can be "
        "allocated there",
    ),
    "herd_load": (
        HERD + "%v = memref.load %a[%x] : memref<64xbf16, 1>\n}",
        "memref.load inside air.herd accesses memref<64xbf16, 1> in L2: a core reaches only its own L1 "
        "(memory space 2), copy the data there with air.dma_memcpy_nd or a channel first",
    ),
    "herd_transfer_read": (
        HERD + "%p = arith.constant 0.0 : bf16\n"
        "%v = vector.transfer_read %a[%x], %p {in_bounds = [true]} : memref<64xbf16, 1>, vector<8xbf16>\n}",
        "vector.transfer_read inside air.herd accesses memref<64xbf16, 1> in L2",
    ),
    "herd_vector_load": (
        HERD + "%v = vector.load %a[%x] : memref<64xbf16, 1>, vector<8xbf16>\n}",
        "vector.load inside air.herd accesses",
    ),
    "async_unnamed": (
        "air.wait_all async [%t]",
        "air.wait_all needs to be named when marked 'async': write %token = air.wait_all async ...",
    ),
    "rank_in_herd": (
        HERD + "%c = arith.constant 2 : index\nair.rank (%r) in (%n=%c) {\n}\n}",
        "air.rank cannot be nested inside air.herd: put it around air.launch, or inside one",
    ),
    "execute_values": (
        "%a, %r = air.execute -> (memref<8xf32, 1>) {\n}",
        "air.execute returns (memref<8xf32, 1>) but its terminator hands over (): make the two lists equal",
    ),
    # transfers
    "dma_strides": (
        dma("%l1[] [] []", "%l3[%c0] [%c2, %c2] [%c1]"),
        "air.dma_memcpy_nd src has 2 sizes and 1 strides: one each per dimension",
    ),
    "dma_offsets": (
        dma("%l1[%c0, %c0] [%c2] [%c1]", "%l3[%c0] [%c2] [%c1]"),
        "air.dma_memcpy_nd dst has 2 offsets for 1 sizes: give one per dimension",
    ),
    "dma_size_zero": (
        dma("%l1[] [] []", "%l3[%c0] [%c0] [%c1]"),
        "air.dma_memcpy_nd src has a size of 0: every size must be at least 1",
    ),
    "dma_element_type": (
        dma("%f[] [] []", "%l3[] [] []", "memref<64xf32, 2>, memref<64xbf16>"),
        "air.dma_memcpy_nd copies elements of bf16 into elements of f32: a DMA does not convert, make the "
        "element types equal",
    ),
    "dma_counts": (
        dma("%l1[] [] []", "%l3[%c0] [%c2] [%c1]"),
        "air.dma_memcpy_nd writes 64 elements to dst but reads 2 from src: the products of the sizes must be equal",
    ),
    "pad_alone": (
        dma("%l1[] [] []", "%l3[] [] []", attributes="{pad_before = array<i32: 1>}"),
        "air.dma_memcpy_nd lacks pad_after: give both pad_before and pad_after, or none",
    ),
    "pad_lengths": (
        dma(
            "%l1[] [] []",
            "%l3[] [] []",
            attributes="{pad_before = array<i32: 1>, pad_after = array<i32: 1, 2>}",
        ),
        "air.dma_memcpy_nd has 1 values in pad_before and 2 in pad_after: give one of each per dimension",
    ),
    "pad_range": (
        dma(
            "%l1[] [] []",
            "%l3[] [] []",
            attributes="{pad_before = array<i32: -1>, pad_after = array<i32: 0>}",
        ),
        "air.dma_memcpy_nd pads by -1: padding must be from 0 to 65535",
    ),
    "rank_negative": (
        dma("%l1[] [] []", "%l3[] [] []", attributes="{src_rank = -1 : i64}"),
        "src_rank is -1: it must be at least 0",
    ),
    "rank_missing": (
        dma("%l1[] [] []", "%l3[] [] []", attributes="{src_rank = 1 : i64}"),
        "air.dma_memcpy_nd with src_rank needs an enclosing air.rank: only ranks have peers",
    ),
    "rank_not_symmetric": (
        "air.rank (%r) in (%n=%c2) args(%a=%l1) : memref<64xbf16, 2> {\n%m = memref.alloc() : memref<64xbf16>\n"
        + dma("%a[] [] []", "%m[] [] []", attributes="{src_rank = 1 : i64}")
        + "\n}",
        "src_rank names another rank, but the memref.alloc has no air.symmetric: only what every rank allocates "
        "alike can be reached across ranks",
    ),
    # channels
    "channel_unknown": (
        "air.channel.put @d[] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.put uses channel @d, which is not declared: add air.channel @d [...] to the module",
    ),
    "channel_indices": (
        "air.channel.put @c[%c0] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.put has 1 indices into @c, a bundle [2, 4]: give one per dimension",
    ),
    "put_index_range": (
        "air.channel.put @c[2, 0] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.put index 0 is 2: @c has 2 there, use 0 to 1",
    ),
    "put_index_range_of_broadcast": (
        "air.channel.put @wide[1, 0] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.put index 0 is 1: @wide has 1 there, use 0 to 0",
    ),
    "get_index_range": (
        "air.channel.get @wide[1, 4] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.get index 1 is 4: @wide has 4 there, use 0 to 3",
    ),
    "index_in_time": (
        "scf.for %k = %c0 to %c2 step %c1 {\nair.channel.put @c[%k, %c0] (%l1[] [] []) : (memref<64xbf16, 2>)\n}",
        "air.channel.put index 0 is the induction variable of an scf.for: a channel of a bundle is chosen in "
        "space, use a herd index or an scf.parallel, or unroll the loop",
    ),
    "get_strides": (
        "air.channel.get @c[%c0, %c0] (%l1[%c0] [%c2] []) : (memref<64xbf16, 2>)",
        "air.channel.get dst has 1 sizes and 0 strides: one each per dimension",
    ),
    "mmio_put": (
        "air.channel.put @mmio[] (%l1[] [] []) : (memref<64xbf16, 2>)",
        "air.channel.put on an npu_mmio channel has its src in L1: it must be in L3 (memory space 0)",
    ),
    "mmio_get": (
        "air.channel.get @mmio[] (%l2[] [] []) : (memref<64xbf16, 1>)",
        "air.channel.get on an npu_mmio channel has its dst in L2: it must be in L1 (memory space 2)",
    ),
    "get_dest": (
        "air.channel.get @c[%c0, %c0] (%l1[] [] []) dest(%c1) : (memref<64xbf16, 2>)",
        "air.channel.get has a dest: only the put chooses which get receives",
    ),
    "heap_outside_rank": (
        "air.channel.put @heap[] (%l3[] [] []) : (memref<64xbf16>)",
        "air.channel.put with a gpu_symmetric_heap channel needs an enclosing air.rank: only ranks have peers",
    ),
    # upstream operations
    "contract_maps": (
        '%v0 = arith.constant dense<0.0> : vector<4xf32>\n%v = "vector.contract"(%v0, %v0, %v0) {} : (vector<4xf32>, vector<4xf32>, vector<4xf32>) -> vector<4xf32>',
        "property 'indexing_maps' expected in operation 'vector.contract'",
    ),
    "use_before_definition": (
        "%a = arith.addi %b, %c1 : index\n%b = arith.constant 1 : index",
        "operand 0 of arith.addi is the result of arith.constant, which comes later: define it first",
    ),
    "block_need_not_run": (
        "%b = arith.constant true\ncf.cond_br %b, ^one, ^two\n^one:\n%v = arith.constant 1 : index\ncf.br ^two\n"
        "^two:\n%w = arith.addi %v, %v : index",
        "operand 0 of arith.addi is the result of arith.constant in a block that need not run before: hand the "
        "value over as a block argument",
    ),
    "rank_of_load": (
        "%v = memref.load %l3[%c0, %c1] : memref<64xbf16>",
        "memref.load does not verify: expected an index for each dimension",
    ),
    "copy_shapes": (
        "%m = memref.alloc() : memref<8xbf16>\nmemref.copy %m, %l3 : memref<8xbf16> to memref<64xbf16>",
        "memref.copy from memref<8xbf16> to memref<64xbf16>: shape and element type must be equal",
    ),
    "to_tensor": (
        "%v = bufferization.to_tensor %l1 : memref<64xbf16, 2> to tensor<8xbf16>",
        "bufferization.to_tensor from memref<64xbf16, 2> to tensor<8xbf16>: shape and element type must be equal",
    ),
    "global_type": (
        "}\nmemref.global @g : tensor<4xi32> = dense<0>\nfunc.func @g2() {",
        "memref.global declares a memref, not tensor<4xi32>",
    ),
    "extension": (
        "%a = arith.constant 1 : i32\n%b = arith.extsi %a : i32 to i8",
        "arith.extsi from i32 to i8: write an integer and a wider integer, both scalars or both vectors of one "
        "shape",
    ),
    "conversion_shapes": (
        "%a = arith.constant dense<1> : vector<4xi32>\n%b = arith.sitofp %a : vector<4xi32> to vector<2xf32>",
        "arith.sitofp from vector<4xi32> to vector<2xf32>: write an integer and a float, both scalars or both "
        "vectors of one shape",
    ),
    "conversion_to_integer": (
        "%b = arith.fptosi %c1 : index to i32",
        "arith.fptosi from index to i32: write a float and an integer, both",
    ),
    "conversion_of_index": (
        "%b = arith.index_cast %c1 : index to index",
        "arith.index_cast from index to index: write an index and an integer, in either order, both",
    ),
    "truncation": (
        "%a = arith.constant 1 : i8\n%b = arith.trunci %a : i8 to i8",
        "arith.trunci from i8 to i8: write an integer and a narrower integer, both",
    ),
    "float_extension": (
        "%a = arith.constant 1.0 : f32\n%b = arith.extf %a : f32 to bf16",
        "arith.extf from f32 to bf16: write a float and a wider float, both",
    ),
    "float_truncation": (
        "%a = arith.constant 1.0 : bf16\n%b = arith.truncf %a : bf16 to f16",
        "arith.truncf from bf16 to f16: write a float and a narrower float, both",
    ),
    "comparison_of_floats": (
        "%a = arith.constant 1.0 : bf16\n%b = arith.cmpi slt, %a, %a : bf16",
        "arith.cmpi of bf16 and bf16: write integers or indices, or vectors of them, of one type",
    ),
    "comparison_of_integers": (
        "%b = arith.cmpf olt, %c1, %c1 : index",
        "arith.cmpf of index and index: write floats, or vectors of them, of one type",
    ),
    "comparison_predicate": (
        "%b = arith.cmpi lt, %c1, %c1 : index",
        "no comparison is called lt: write one of eq, ne, slt, sle, sgt, sge, ult, ule, ugt, uge",
    ),
    "comparison_result": (
        "%a = arith.constant dense<1> : vector<4xi32>\n"
        '%b = "arith.cmpi"(%a, %a) <{predicate = 2 : i64}> : (vector<4xi32>, vector<4xi32>) -> i1',
        "arith.cmpi of vector<4xi32> gives vector<4xi1>, not i1",
    ),
    "select_condition": (
        "%a = arith.constant dense<1> : vector<4xi32>\n%b = arith.constant dense<1> : vector<2xi1>\n"
        "%c = arith.select %b, %a, %a : vector<2xi1>, vector<4xi32>",
        "arith.select of vector<4xi32> by vector<2xi1>: the condition must be an i1 or a vector<4xi1>",
    ),
    "select_types": (
        '%b = arith.constant 1 : i1\n%c = "arith.select"(%b, %c1, %b) : (i1, index, i1) -> index',
        "arith.select of index or i1 as index: the three types must be equal",
    ),
    "affine_if_operands": (
        "affine.if affine_set<(d0)[s0] : (d0 - s0 >= 0)>(%i) {\n}",
        "affine.if has 1 operands but its set takes 1 dimensions and 1 symbols",
    ),
    "affine_parallel_counts": (
        "affine.parallel (%x, %y) = (0, 0) to (4) {\n}",
        "affine.parallel has 2 indices, 2 lower bounds, 1 upper bounds and 2 steps: write one of each per index",
    ),
    "affine_parallel_results": (
        '%r = "affine.parallel"() <{reductions = ["addf"], lowerBoundsMap = affine_map<() -> (0)>, lowerBoundsGroups '
        "= dense<1> : tensor<1xi32>, upperBoundsMap = affine_map<() -> (4)>, upperBoundsGroups = dense<1> : "
        "tensor<1xi32>, steps = [1]}> ({\n^bb0(%k: index):\n%v = arith.constant 1 : i32\naffine.yield %v : i32\n}) "
        ": () -> f32",
        "affine.parallel has 1 results, 1 reductions and 1 yielded values: write one of each, of one type",
    ),
    "delinearize_extents": (
        "%a = affine.delinearize_index %i into (2, 4, 8) : index",
        "affine.delinearize_index has 3 extents and 1 results: write one extent per result, or leave the first out",
    ),
    "matvec_shapes": (
        "%m = memref.alloc() : memref<8x32xbf16>\n%v = memref.alloc() : memref<8xbf16>\n"
        "linalg.matvec ins(%m, %l3 : memref<8x32xbf16>, memref<64xbf16>) outs(%v : memref<8xbf16>)",
        "linalg.matvec (m k, k -> m) of memref<8x32xbf16>, memref<64xbf16>, memref<8xbf16>: k is 32 and 64",
    ),
    "vecmat_ranks": (
        "linalg.vecmat ins(%l3, %l3 : memref<64xbf16>, memref<64xbf16>) outs(%l3 : memref<64xbf16>)",
        "linalg.vecmat of memref<64xbf16>, memref<64xbf16>, memref<64xbf16>: write operands of ranks 1, 2, 1 "
        "(k, k n -> n)",
    ),
    "reduce_shapes": (
        "%e = tensor.empty() : tensor<8x64xbf16>\n%u = tensor.empty() : tensor<64xf32>\n"
        "%r = linalg.reduce ins(%e : tensor<8x64xbf16>) outs(%u : tensor<64xf32>) dimensions = [1]\n"
        "(%in: bf16, %acc: f32) {\n  linalg.yield %acc : f32\n}",
        "linalg.reduce of tensor<8x64xbf16> over [1] gives (8), not tensor<64xf32>",
    ),
    "affine_max_operands": (
        "%m = affine.max affine_map<(d0) -> (d0, 4)>(%i, %c1)",
        "affine.max has 2 operands but its map takes 1 dimensions and 0 symbols",
    ),
}


def error_of(text: str) -> str:
    with pytest.raises(AirParseError) as caught:
        air_dialect.parse(text, "bad.mlir")
    return str(caught.value)


@pytest.mark.parametrize(("statement", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_statement(statement: str, message: str) -> None:
    error = error_of(HEAD + statement + TAIL)
    place, _, text = error.partition(": error: ")
    assert message in text
    matched = re.fullmatch(r"bad\.mlir:(\d+):(\d+)", place)
    assert matched is not None
    assert LINE <= int(matched[1]) <= LINE + statement.count("\n") + 1


CHANNELS = {
    '[] {channel_type = "ddr_stream"}': 'unsupported channel_type "ddr_stream": write one of npu_dma_stream, '
    "npu_dma_packet, npu_cascade, npu_mmio, gpu_symmetric_heap, or leave it out for npu_dma_stream",
    "[0, 2]": "air.channel size[0] is 0: it must be at least 1",
    "[1, 1] {broadcast_shape = [4]}": "broadcast_shape [4] has rank 1, the bundle [1, 1] has rank 2: they must be "
    "equal",
    "[4] {broadcast_shape = [2]}": "broadcast_shape[0] is 2, less than size[0] = 4: a broadcast cannot shrink a "
    "dimension",
    "[2] {broadcast_shape = [4]}": "size[0] is 2 and broadcast_shape[0] is 4: a size must be 1 or equal to the "
    "broadcast shape",
    "[1] {broadcast_shape = 4 : i64}": "broadcast_shape is 4 : i64: write an array of integers, as in [1, 4]",
    "[] {packet_ids = [1]}": 'packet_ids on a channel of type npu_dma_stream: only a channel_type "npu_dma_packet" '
    "has them",
    '[] {channel_type = "npu_dma_packet", packet_ids = [32]}': "packet id 32 is not from 0 to 31 (it has 5 bits)",
    '[] {channel_type = "npu_dma_packet", packet_ids = [1, 1]}': "packet id 1 is given twice: ids must be unique",
    "[] {air.refeed_count = 0 : i32}": "air.refeed_count is 0: it must be from 1 to 2147483647",
    '[] {air.refeed_count = "two"}': 'air.refeed_count is "two": it must be an integer',
}


@pytest.mark.parametrize(("declaration", "message"), CHANNELS.items(), ids=CHANNELS.keys())
def test_broken_channel(declaration: str, message: str) -> None:
    error = error_of(f"module {{\n  air.channel @d {declaration}\n}}")
    assert error == f"bad.mlir:2:3: error: {message}"


VECTORS = {
    "%r = vector.transpose %a, [0, 0] : vector<2x3xf32> to vector<3x2xf32>": "vector.transpose permutation [0, 0] "
    "is no permutation of 0..1",
    "%r = vector.transpose %a, [1, 0] : vector<2x3xf32> to vector<2x3xf32>": "vector.transpose of [2, 3] by [1, 0] "
    "gives [3, 2], not [2, 3]",
    "%r = vector.shape_cast %a : vector<2x3xf32> to vector<5xf32>": "vector.shape_cast from vector<2x3xf32> to "
    "vector<5xf32> changes the element type or the number of elements",
    "%r = vector.multi_reduction <add>, %a, %b [0] : vector<2x3xf32> to vector<2xf32>": "vector.multi_reduction of "
    "[2, 3] over [0] gives [3], not [2]",
    "%r = vector.from_elements %s, %s : vector<3xf32>": "vector.from_elements has 2 elements for vector<3xf32>, "
    "which holds 3",
    "%r = vector.from_elements %s : f32": "vector.from_elements gives a vector, not f32",
    "%r = vector.contract {} %a, %a, %b : vector<2x3xf32>, vector<2x3xf32> into vector<2xf32>": "vector.contract "
    "lacks indexing_maps and iterator_types in its attribute dictionary",
}
MAPS = "affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ({})>, affine_map<(d0, d1) -> (d0)>"
CONTRACT = (
    '%r = vector.contract {{indexing_maps = [{}], iterator_types = ["parallel", "reduction"]}} %a, %a, %b '
    ": vector<2x3xf32>, vector<2x3xf32> into vector<2xf32>"
)
VECTORS[CONTRACT.format(MAPS.format("d1, d0"))] = (
    "vector.contract rhs gives iterator d1 extent 2, another side 3: they must agree"
)
VECTORS[CONTRACT.format(MAPS.format("d1"))] = (
    "vector.contract rhs has shape [2, 3], 2 iterators and map (d0, d1) -> (d1): write one dimension per iterator, "
    "one result per vector dimension"
)
VECTORS[CONTRACT.format(MAPS.format("d0 + 1, d1"))] = "is no projected permutation"
VECTORS[CONTRACT.format("affine_map<(d0, d1) -> (d0, d1)>")] = (
    "vector.contract needs 3 indexing maps (lhs, rhs, acc), got 1"
)


@pytest.mark.parametrize(("statement", "message"), VECTORS.items())
def test_broken_vector_operation(statement: str, message: str) -> None:
    head = "func.func @f(%a: vector<2x3xf32>, %b: vector<2xf32>, %s: f32) {\n"
    error = error_of(head + statement + TAIL)
    assert error.startswith("bad.mlir:2:")
    assert message in error


SYNTAX = {
    "": "bad.mlir:1:1: error: the text holds no operation: write a module, or the operations of one",
    "// only a comment\n": "bad.mlir:2:1: error: the text holds no operation: write a module, or",
    "air.channel @c []\n}": "bad.mlir:2:1: error: expected an operation, found }",
    "func.func @f() {\nair.nonsense\n}": "bad.mlir:2:1: error: operation air.nonsense is not known to the AIR dialect's reader",
    "func.func @f() {\nair.wait_all [%x]\nreturn\n}": "values used but not defined: [%x]",
    "func.func @f() {\n": "error: ",
    "func.func @f(%a: !air.token) {\nreturn\n}": "'air.token' is not registered",
    "func.func @f(%a: memref<4xf32>) {\nair.wait_all [%a]\nreturn\n}": "bad.mlir:2:",
    "transform.named_sequence @s(%a: !transform.any_op) {\n": "bad.mlir:1:26: error: this "
    "transform.named_sequence has no closing brace",
    "%a = arith.constant dense<0x1FF800000> : vector<2xf32>": "0x1FF800000 does not fit into the 32 bits of f32",
    'air.channel @c [] {a = "'
    + "unterminated and long, with words in it }\\n": "bad.mlir:1:24: error: this string has "
    "no closing quote",
    "%a = arith.constant #vector.iterator_type<window> : i32": "#vector.iterator_type<window>: write one of parallel, "
    "reduction",
    "%a = arith.constant #linalg.type_fn<signed> : i32": "#linalg.type_fn<signed>: write one of cast_signed, "
    "cast_unsigned",
}


@pytest.mark.parametrize(("text", "message"), SYNTAX.items())
def test_broken_syntax(text: str, message: str) -> None:
    assert message in error_of(text)


def test_fragments_may_break_the_strict_rules() -> None:
    text = HEAD + "air.channel.put @d[] (%l1[] [] []) : (memref<64xbf16, 2>)" + TAIL
    module = air_dialect.parse(text, strict=False)
    with pytest.raises(AirParseError, match="uses channel @d, which is not declared"):
        air_dialect.verify(module)


def test_block_arguments_of_a_generic_herd() -> None:
    herd = (
        '"air.herd"(%c2, %c2) <{operandSegmentSizes = array<i32: 0, 2, 0>}> ({\n'
        '^bb0(%x: index):\n"air.herd_terminator"() : () -> ()\n}) : (index, index) -> ()'
    )
    assert "air.herd body has 1 block arguments, expected 4: 2 indices, 2 sizes and 0 args" in error_of(
        HEAD + herd + TAIL
    )


def test_argument_types_of_a_generic_segment() -> None:
    segment = (
        '"air.segment"(%l1) <{operandSegmentSizes = array<i32: 0, 0, 1>}> ({\n'
        '^bb0(%x: memref<64xf32>):\n"air.segment_terminator"() : () -> ()\n}) : (memref<64xbf16, 2>) -> ()'
    )
    assert (
        "air.segment hands a value of type memref<64xbf16, 2> to an argument of type memref<64xf32>: they "
        "must be equal"
    ) in error_of(HEAD + segment + TAIL)
