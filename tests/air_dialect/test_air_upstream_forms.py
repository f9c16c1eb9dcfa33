"""Programs and the upstream operations they hold print as MLIR writes them, and read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie import air_dialect
from aerie.air_dialect import AirParseError

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.mlir"))
HEAD = """func.func @f(%m: memref<8xf32>, %k: memref<8xi32>, %w: memref<8x16xf32>, %p: memref<2x2x4x8xf32>,
  %v: vector<8xf32>, %u: vector<8xi32>, %mask: vector<8xi1>, %s: vector<4xf32>, %i: index, %j: index,
  %x: f32, %n: i32) {
"""
FORMS = """\
%r = affine.linearize_index disjoint [%i, %j] by (4, 8) : index
%r = affine.linearize_index [%i, %j] by (%i, 8) : index
%r = affine.parallel (%q) = (0) to (8) reduce ("addf") -> (f32) { affine.yield %x : f32 }
%r = arith.index_castui %n : i32 to index
%r = index.and %i, %j
%r = index.shru %i, %j
%r = index.cmp slt(%i, %j)
%r = index.sizeof
%r = index.bool.constant true
%r = math.erfc %x fastmath<fast> : f32
%r, %t = math.sincos %v : vector<8xf32>
%r = math.isnan %v : vector<8xf32>
%r = math.clampf %x to [%x, %x] : f32
%r = memref.atomic_rmw addf %x, %m[%i] : (f32, memref<8xf32>) -> f32
%r = memref.generic_atomic_rmw %m[%i] : memref<8xf32> { ^bb0(%o: f32): memref.atomic_yield %o : f32 }
memref.prefetch %m[%i], read, locality<3>, data : memref<8xf32>
%r = memref.alloca_scope -> (f32) { memref.alloca_scope.return %x : f32 }
memref.alloca_scope { }
%r = memref.extract_aligned_pointer_as_index %m : memref<8xf32> -> index
%r = memref.rank %m : memref<8xf32>
%r = vector.step : vector<4xindex>
%r = vector.constant_mask [3] : vector<8xi1>
%r = vector.splat %x : vector<8xf32>
%r, %t = vector.to_elements %z : vector<2xf32>
%r = vector.extractelement %v[%n : i32] : vector<8xf32>
%r = vector.insertelement %x, %v[%n : i32] : vector<8xf32>
%r = vector.interleave %v, %v : vector<8xf32> -> vector<16xf32>
%r, %t = vector.deinterleave %v : vector<8xf32> -> vector<4xf32>
%r = vector.outerproduct %s, %v {kind = #vector.kind<add>} : vector<4xf32>, vector<8xf32>
%r = vector.outerproduct %v, %x, %v {kind = #vector.kind<maximumf>} : vector<8xf32>, f32
%r = vector.gather %m[%i] [%u], %mask, %v : memref<8xf32>, vector<8xi32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
vector.scatter %m[%i] [%u], %mask, %v : memref<8xf32>, vector<8xi32>, vector<8xi1>, vector<8xf32>
%r = vector.expandload %m[%i], %mask, %v : memref<8xf32>, vector<8xi1>, vector<8xf32> into vector<8xf32>
vector.compressstore %m[%i], %mask, %v : memref<8xf32>, vector<8xi1>, vector<8xf32>
%r = vector.mask %mask, %v { %q = vector.fma %v, %v, %v : vector<8xf32> } : vector<8xi1> -> vector<8xf32>
linalg.pack %w inner_dims_pos = [0, 1] inner_tiles = [4, 8] into %p : memref<8x16xf32> -> memref<2x2x4x8xf32>
linalg.unpack %p outer_dims_perm = [1, 0] inner_dims_pos = [0, 1] inner_tiles = [4, 8] into %w : memref<2x2x4x8xf32> -> memref<8x16xf32>
linalg.pack %w padding_value(%x : f32) inner_dims_pos = [0, 1] inner_tiles = [4, 8] into %p : memref<8x16xf32> -> memref<2x2x4x8xf32>
%r = async.execute { } %t = async.execute [%r] attributes {a} { } async.await %t : !async.token
linalg.dot ins(%m, %m : memref<8xf32>, memref<8xf32>) outs(%zero : memref<f32>)
linalg.square ins(%m : memref<8xf32>) outs(%m : memref<8xf32>)
linalg.pooling_nwc_max {strides = dense<2> : tensor<1xi64>} ins(%a, %b : memref<1x8x3xf32>, memref<2xf32>) outs(%c : memref<1x4x3xf32>)
"""  # noqa: E501
EXTRA = """\
%z = arith.constant dense<1.0> : vector<2xf32>
%zero = memref.alloc() : memref<f32>
%a = memref.alloc() : memref<1x8x3xf32>
%b = memref.alloc() : memref<2xf32>
%c = memref.alloc() : memref<1x4x3xf32>
"""


def _words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("form", FORMS.splitlines())
def test_form_prints_as_it_is_written(form: str) -> None:
    module = air_dialect.parse(HEAD + EXTRA + form + "\nreturn\n}")
    text = air_dialect.print_module(module)
    assert _words(form).replace("^bb0(%o: f32):", "^bb0(%o: f32):") in _words(text)
    assert air_dialect.parse(text).is_structurally_equivalent(module)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_round_trips(program: Path) -> None:
    """print(parse(text)) parses to an equal module, and prints the same again."""
    module = air_dialect.parse(program.read_text(), program.name)
    text = air_dialect.print_module(module)
    again = air_dialect.parse(text, "printed")
    assert module.is_structurally_equivalent(again)
    assert air_dialect.print_module(again) == text


def test_scan_and_switches_and_slices_read_back() -> None:
    form = """
  %init = arith.constant dense<0.0> : vector<4xf32>
  %all, %last = vector.scan <add>, %g, %init {inclusive = false, reduction_dim = 1 : i64}
    : vector<4x8xf32>, vector<4xf32>
  scf.index_switch %i
  case 2 {
    memref.store %x, %m[%i] : memref<8xf32>
  }
  default {
  }
  %t = tensor.empty() : tensor<8xf32>
  %f = scf.forall (%q) in (2) shared_outs(%o = %t) -> (tensor<8xf32>) {
    %e = tensor.empty() : tensor<4xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %e into %o[%q] [4] [1] : tensor<4xf32> into tensor<8xf32>
    }
  }
  return
}"""
    head = HEAD + "%g = arith.constant dense<1.0> : vector<4x8xf32>"
    module = air_dialect.parse(head + form)
    assert air_dialect.parse(air_dialect.print_module(module)).is_structurally_equivalent(module)


BROKEN = {
    "memref.atomic_rmw plus %x, %m[%i] : (f32, memref<8xf32>) -> f32": "knows no plus: write one of addf",
    "linalg.pack %w inner_dims_pos = [0, 1] inner_tiles = [4, 4] into %p : memref<8x16xf32> -> "
    "memref<2x2x4x8xf32>": "these tiles make (2, 4, 4, 4)",
    "linalg.pack %w inner_dims_pos = [2] inner_tiles = [4] into %p : memref<8x16xf32> -> "
    "memref<2x2x4x8xf32>": "write one dimension of memref<8x16xf32> per tile",
    "vector.interleave %v, %v : vector<8xf32> -> vector<8xf32>": "gives [16], not vector<8xf32>",
    "vector.constant_mask [9] : vector<8xi1>": "from 0 to the extent",
    "affine.linearize_index [%i] by (4, 8) : index": "1 indices and 2 extents",
    "index.cmp lt(%i, %j)": "no comparison is called lt",
    "vector.step : vector<4xi32>": "vector.step gives a 1-d vector of indices, not vector<4xi32>",
    "%q, vector.deinterleave %v : vector<8xf32> -> vector<8xf32>": "two halves of the last dimension",
    "math.isnan %n : i32": "math.isnan takes floats, not i32",
    'affine.parallel (%q) = (0) to (8) reduce ("sum") -> (f32) { affine.yield %x : f32 }': "reduces by sum",
    "memref.load %m[%later] : memref<8xf32>\n%later = arith.constant 1 : index": "comes later",
    "memref.load %m[%never] : memref<8xf32>": "%never",
    "affine.if affine_set<() : (0 == 0)> () -> index { affine.yield %i : index } else { }": "arm yields 0",
    "linalg.reduce { arith.nosuch } ins(%w : memref<8x16xf32>) outs(%m : memref<8xf32>) "
    "dimensions = [1]": "operation arith.nosuch is not known",
    "linalg.tanh ins(%m : memref<8xf32>) outs(%w : memref<8x16xf32>)": "the shapes must be equal",
}


@pytest.mark.parametrize(("form", "message"), BROKEN.items())
def test_broken_form(form: str, message: str) -> None:
    statement = form if form.startswith("linalg") else f"%r = {form}".replace("%r = %q,", "%r, %q =")
    with pytest.raises(AirParseError) as caught:
        air_dialect.parse(HEAD + statement + "\nreturn\n}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bound_that_is_the_loops_own_index_is_not_defined_there() -> None:
    """xDSL resolves it to nothing, and says nothing."""
    loop = "scf.parallel (%a, %b) = (%i, %j) to (%i, %b) step (%i, %j) {\n}"
    with pytest.raises(
        AirParseError, match=r":4:1: error: operand 3 of scf.parallel is a value, not defined"
    ):
        air_dialect.parse(HEAD + loop + "\nreturn\n}")
