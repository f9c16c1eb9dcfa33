"""Static check: forms that compilers lower, those they do not, those nobody tells of; stack and alignment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from aerie.air_dialect import parse
from aerie.device import NPU1, check
from aerie.device.lowering import (
    TABLE,
    LoweringRule,
    LoweringVerdict,
    OpForm,
    find_rule,
    forms_of,
    nearest_lowered_rule,
)
from aerie.device.lowering.air import air_forms_of
from aerie.device.lowering.rule import ANY
from aerie.device.rules.lowering import core_operations
from tests.virtual_npu.static_texts import assert_clean, assert_fault, assert_warning, faults_of, program


def on_core(op: str, element: str, lanes: int = 16, result: str = "") -> str:
    """A herd that applies one operation to a vector that it loads: `op` names the loaded value %v."""
    vector = f"vector<{lanes}x{element}>"
    return program(
        f"%b = memref.alloc() : memref<64x{element}, 2>\n"
        f"%v = vector.load %b[%c0] : memref<64x{element}, 2>, {vector}\n"
        f"%r = {op} : {result or vector}"
    )


def scalar(op: str, element: str = "f32", result: str = "") -> str:
    return program(
        f"%b = memref.alloc() : memref<64x{element}, 2>\n"
        f"%v = memref.load %b[%c0] : memref<64x{element}, 2>\n%r = {op} : {result or element}"
    )


def widened(op: str, lanes: int = 16) -> str:
    """%w is a vector of bf16 made f32, %z one of f32."""
    return program(
        f"%b = memref.alloc() : memref<64xbf16, 2>\n%v = vector.load %b[%c0] : memref<64xbf16, 2>, "
        f"vector<{lanes}xbf16>\n%w = arith.extf %v : vector<{lanes}xbf16> to vector<{lanes}xf32>\n"
        f"%z = arith.constant dense<0.0> : vector<{lanes}xf32>\n%r = {op} : vector<{lanes}xf32>"
    )


CLEAN = {
    "max of bf16": on_core("arith.maximumf %v, %v", "bf16"),
    "product of bf16": on_core("arith.mulf %v, %v", "bf16"),
    "sum of 16 f32": on_core("arith.addf %v, %v", "f32"),
    "sum of 32 bf16": on_core("arith.addf %v, %v", "bf16", 32),
    "sum of 16 i32": on_core("arith.addi %v, %v", "i32"),
    "quotient of f32": on_core("arith.divf %v, %v", "f32"),
    "exp of bf16": on_core("math.exp %v", "bf16"),
    "tanh of bf16": on_core("math.tanh %v", "bf16"),
    "max of scalars": scalar("arith.maximumf %v, %v"),
    "rsqrt of a scalar": scalar("math.rsqrt %v"),
    "product of widened": widened("arith.mulf %w, %w"),
    "multiply-add of widened": widened("vector.fma %w, %w, %z"),
    "difference of widened": widened("arith.subf %w, %w"),
    "f32 added to widened": widened("arith.addf %z, %w"),
    "sum of all lanes": on_core("vector.reduction <add>, %v", "f32", result="vector<16xf32> into f32"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_lowered(name: str) -> None:
    assert_clean(CLEAN[name])


REFUSED = {
    "sum of 8 f32": (
        on_core("arith.addf %v, %v", "f32", 8),
        "arith.addf: .* vector<8xf32>: the backend of the core cannot legalize <8 x s32> G_FADD; use 16",
    ),
    "sum of 8 i32": (
        on_core("arith.addi %v, %v", "i32", 8),
        "vector<8xi32>: .*<8 x s32> G_ADD; use 16 lanes .mlir-air python/air/api/types.py",
    ),
    "quotient of bf16": (
        on_core("arith.divf %v, %v", "bf16"),
        "cannot legalize G_FDIV of bf16 vectors; divide in f32 .mlir-air python/air/api/ops.py",
    ),
    "exp of f32": (on_core("math.exp %v", "f32"), "cannot legalize G_FEXP of f32; convert to bf16"),
    "exp of a scalar": (scalar("math.exp %v"), "math.exp: .* f32: .*G_FEXP of f32"),
    "tanh of f32": (on_core("math.tanh %v", "f32"), "G_FTANH; use vectors of 16 bf16"),
    "tanh of a scalar": (scalar("math.tanh %v", "bf16"), "math.tanh: .* bf16: .*G_FTANH"),
    "rsqrt of a scalar of bf16": (scalar("math.rsqrt %v", "bf16"), "AIE2P has no rsqrt of bf16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_lowered(name: str) -> None:
    text, message = REFUSED[name]
    assert_fault(text, "lowering", message)


READ = {
    "rsqrt of bf16": (on_core("math.rsqrt %v", "bf16"), "AIE2P has no rsqrt of bf16; widen to f32"),
    "product of i32": (on_core("arith.muli %v, %v", "i32"), "multiplies vectors of bf16 only; .*contract"),
    "largest of f32": (
        on_core("vector.reduction <maximumf>, %v", "f32", result="vector<16xf32> into f32"),
        "vector<16xf32> maximumf: .*; sum 16 lanes; find the largest in bf16",
    ),
    "sum of all of 32 f32": (
        on_core("vector.reduction <add>, %v", "f32", 32, "vector<32xf32> into f32"),
        "vector<32xf32> add: f32 vectors are summed 16 lanes at a time",
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_the_source_does_not_lower(name: str) -> None:
    """A warning: the compiler at hand may be another state of it."""
    text, message = READ[name]
    assert_warning(text, "lowering", message)


def test_what_aie2_lacks() -> None:
    tanh, quotient = on_core("math.tanh %v", "bf16"), on_core("arith.divf %v, %v", "f32")
    assert_fault(tanh, "lowering", "only AIE2P has a tanh; call a C.. function", device=NPU1)
    assert_fault(quotient, "lowering", "only AIE2P divides vectors; divide scalars", device=NPU1)


def test_what_is_recorded_of_aie2p_only() -> None:
    assert_clean(on_core("math.exp %v", "f32"), device=NPU1)
    assert_clean(on_core("arith.mulf %v, %v", "f32"), device=NPU1)
    assert_clean(on_core("math.erf %v", "bf16"), device=NPU1)


EMULATED = {
    "max": (on_core("arith.maximumf %v, %v", "f32"), "has no f32 max or min; convert to bf16"),
    "product": (
        on_core("arith.mulf %v, %v", "f32"),
        "vector<16xf32>: arith.mulf of f32 vectors is not legalized",
    ),
    "product with one widened factor": (
        widened("arith.mulf %w, %z"),
        "one factor widened from bf16: arith.mulf of f32 vectors is not legalized; convert to bf16",
    ),
    "comparison": (
        on_core("arith.cmpf olt, %v, %v", "f32"),
        "aievec.cmp of f32 vectors is not legalized",
    ),
    "multiply-add": (
        on_core("vector.fma %v, %v, %v", "f32"),
        "only where both factors come straight from arith.extf of bf16; widen them just before it",
    ),
    "multiply-add with one widened factor": (
        widened("vector.fma %w, %z, %z"),
        "one factor widened from bf16",
    ),
    "multiply-add of 32 lanes": (widened("vector.fma %w, %w, %z", 32), "lowered only for 16 lanes"),
}


@pytest.mark.parametrize("name", EMULATED)
def test_f32_vectors_need_emulation(name: str) -> None:
    text, message = EMULATED[name]
    assert_warning(text, "lowering", message)
    assert_clean(text, bf16_emulation=True)


@pytest.mark.parametrize(
    "source", ["arith.constant dense<0.5> : vector<16xbf16>", "vector.broadcast %k : bf16 to vector<16xbf16>"]
)
def test_a_constant_is_no_widened_factor(source: str) -> None:
    """MLIR folds its widening, so nothing tells any more that it was bf16."""
    text = widened("vector.fma %w, %h, %z").replace(
        "%z = ",
        f"%k = arith.constant 0.5 : bf16\n%q = {source}\n"
        "%h = arith.extf %q : vector<16xbf16> to vector<16xf32>\n%z = ",
    )
    assert_warning(text, "lowering", "one factor widened from bf16: .*come straight from arith.extf")


def test_a_difference_whose_sign_is_lost() -> None:
    assert_warning(
        widened("arith.subf %z, %w"), "lowering", "less bf16 widened: .*the other sign; widen both"
    )


UNKNOWN = {
    "24 lanes": (
        on_core("arith.addf %v, %v", "bf16", 32).replace("vector<32", "vector<24"),
        r"arith.addf: .* vector<24xbf16>: there is no evidence that AIE2P lowers it; use a known form: "
        r"`arith.addf`, `arith.subf` (16|32) x bf16",
    ),
    "an operation that nobody tells of": (
        on_core("math.erf %v", "bf16"),
        "math.erf: .* vector<16xbf16>: there is no evidence .*; write it in operations that the table knows "
        r"\(docs/dev/lowering.md\), or in C\+\+ \(aerie/device/lowering\)",
    ),
    "a carried vector": (
        program(
            "%z = arith.constant dense<0.0> : vector<16xf32>\n"
            "%r = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %z) -> (vector<16xf32>) {\n"
            "scf.yield %s : vector<16xf32>\n}"
        ),
        "scf.for: .* vector<16xf32> carried: there is no evidence .*: `scf.for` 64 x f32 carried",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_forms_without_evidence(name: str) -> None:
    text, message = UNKNOWN[name]
    report = check(text)
    assert report.ok
    assert any(re.search(message, str(found)) for found in report.warnings)


def test_a_form_is_complained_about_once_in_a_place() -> None:
    text = on_core("math.exp %v", "f32")
    again = text.replace("%r = ", "%q = math.exp %v : vector<16xf32>\n%r = ")
    assert len(check(again).faults) == len(check(text).faults) == 1


def test_the_host_may_do_what_a_core_cannot() -> None:
    assert_clean(program(function="%x = arith.constant 1.0 : f32\n%r = math.exp %x : f32"))


# ---- the forms that operations have ----

MAPS = {
    "plain": ("d0, d2", "d2, d1", "d0, d1"),
    "b transposed": ("d0, d2", "d1, d2", "d0, d1"),
    "c transposed": ("d0, d2", "d2, d1", "d1, d0"),
    "a transposed": ("d2, d0", "d2, d1", "d0, d1"),
}


def product(kind: str) -> str:
    maps = ", ".join(f"affine_map<(d0, d1, d2) -> ({each})>" for each in MAPS[kind])
    return program(
        "%v = arith.constant dense<0.0> : vector<8x8xbf16>\n"
        "%z = arith.constant dense<0.0> : vector<8x8xf32>\n"
        f"%r = vector.contract {{indexing_maps = [{maps}], "
        'iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>} %v, %v, %z : '
        "vector<8x8xbf16>, vector<8x8xbf16> into vector<8x8xf32>"
    )


def test_layouts_of_a_product() -> None:
    assert_clean(product("plain"))
    assert_warning(
        product("b transposed"), "lowering", "8x8x8 bf16 by bf16 into f32 b transposed: .*hold B as"
    )
    for kind in ("a transposed", "c transposed"):
        assert_warning(
            product(kind), "lowering", "in another layout: the lowering does not look at the layout"
        )


def read(
    memref: str, vector: str, indices: str = "%c0, %c0", rest: str = "{in_bounds = [true, true]}"
) -> str:
    return program(
        f"%p = arith.constant 0.0 : bf16\n%b = memref.alloc() : {memref}\n"
        f"%r = vector.transfer_read %b[{indices}], %p {rest} : {memref}, {vector}"
    )


def test_blocks_of_memory() -> None:
    assert_clean(read("memref<16x8xbf16, 2>", "vector<8x8xbf16>"))
    assert_clean(read("memref<4x64xbf16, 2>", "vector<1x64xbf16>"))
    text = read("memref<64x64xbf16, 2>", "vector<8x8xbf16>")
    assert_warning(
        text, "lowering", "vector<64xbf16> strided: a block that is no single run .*; read or write one row"
    )


def test_reads_that_are_not_plain() -> None:
    one = "%c0", "{in_bounds = [true], permutation_map = affine_map<(d0) -> (0)>}"
    assert_clean(read("memref<64xbf16, 2>", "vector<16xbf16>", *one))
    assert_warning(
        read("memref<64xbf16, 2>", "vector<16xbf16>", "%c0", "{in_bounds = [false]}"),
        "lowering",
        "vector<16xbf16> padded: there is no evidence",
    )


def test_masks_have_a_warning() -> None:
    text = program(
        "%p = arith.constant 0.0 : bf16\n%b = memref.alloc() : memref<64xbf16, 2>\n"
        "%m = arith.constant dense<true> : vector<16xi1>\n"
        "%r = vector.transfer_read %b[%c0], %p, %m {in_bounds = [true]} : memref<64xbf16, 2>, vector<16xbf16>"
    )
    warnings = map(str, check(text).warnings)
    assert any("masked: AIE has no masked loads; read all lanes and choose" in each for each in warnings)


def test_forms_of_a_loop_and_of_a_call() -> None:
    text = program(
        "%z = arith.constant dense<0.0> : vector<2x8xf32>\n%n = arith.constant 1 : i32\n"
        "%r:2 = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %z, %t = %n) -> (vector<2x8xf32>, i32) {\n"
        "scf.yield %s, %t : vector<2x8xf32>, i32\n}\nfunc.call @k(%n) : (i32) -> ()",
        module='func.func private @k(i32) attributes {link_with = "mv.o"}',
    )
    found = {form for op in core_operations(parse(text)) for form in forms_of(op)}
    assert {form for form in found if form.op in ("scf.for", "func.call")} == {
        OpForm("scf.for"),
        OpForm("scf.for", "f32", 16, "carried, not flat"),
        OpForm("scf.for", "i32", 0, "carried"),
        OpForm("func.call"),
        OpForm("func.call", "i32", 0, "passed"),
    }


# ---- the table ----


def forms(row: LoweringRule) -> Iterator[OpForm]:
    """Some form for everything that a row lists."""
    elements = row.elements or ("bf16" if any(row.lanes) else "",)
    lanes = [16 if count == ANY else count for count in row.lanes]
    for op, element, count, detail in itertools.product(row.ops, elements, lanes, row.details):
        yield OpForm(op, element, count, detail)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.verdict.name} {row.forms}")
def test_rows_have_a_source_and_are_not_hidden(row: LoweringRule) -> None:
    assert row.evidence
    assert all(
        each.startswith(("mlir-air ", "mlir-aie ", "llvm-aie ", "amd/Triton-XDNA")) for each in row.evidence
    )
    assert row.verdict.lowers or (row.note and row.alternative)
    found = [find_rule(form, architecture) for form in forms(row) for architecture in row.architectures]
    assert row in found


def test_the_nearest_form() -> None:
    wide = nearest_lowered_rule(OpForm("arith.mulf", "bf16", 48), "aie2p")
    assert wide is not None
    assert (wide.ops, wide.elements, wide.lanes) == (("arith.mulf",), ("bf16",), (32,))
    assert nearest_lowered_rule(OpForm("math.erf", "bf16", 16), "aie2p") is None


def test_what_does_not_lower_is_never_proposed() -> None:
    proposed = {nearest_lowered_rule(form, "aie2p") for row in TABLE for form in forms(row)}
    assert {row.verdict for row in proposed if row} == {
        LoweringVerdict.DIRECT,
        LoweringVerdict.SPLIT,
        LoweringVerdict.SCALAR,
    }


# ---- forms of AIR that mlir-air lowers to something else ----

CASCADE = 'air.channel @c [1] {channel_type = "npu_cascade"}'
ALLOC = "%b = memref.alloc() : memref<128xf32, 2>\n"
SETS = "affine_set<()[s0] : (s0 - 1 == 0)>", "affine_set<()[s0] : (s0 == 0)>"


def chain(walk: str) -> str:
    """Core (0, 1) sends to core (0, 0) over a cascade; `walk` is the part of its buffer."""
    ends = (
        f"affine.if {SETS[0]}()[%y] {{\nair.channel.put @c[%c0] (%b{walk}) : (memref<128xf32, 2>)\n}}\n"
        f"affine.if {SETS[1]}()[%y] {{\nair.channel.get @c[%c0] (%b{walk}) : (memref<128xf32, 2>)\n}}\n"
    )
    return program(ALLOC + ends, module=CASCADE, tiles="%c1, %c2")


def test_a_whole_buffer_over_a_cascade() -> None:
    assert_clean(chain("[] [] []"))


def test_part_of_a_buffer_over_a_cascade() -> None:
    report = check(chain("[%c0] [%c64] [%c1]"))
    assert faults_of(report) == []
    assert [str(found).partition(": ")[2] for found in report.warnings] == [
        f"air.channel.{end}: f/0/s/h: part of a buffer over a cascade: mlir-air's lowering of cascades "
        "passes over offsets and sizes and moves the whole buffer; send and receive whole buffers of "
        "one type (mlir-air AIRToAIEPass.cpp)"
        for end in ("put", "get")
    ]


def test_forms_of_transfers_and_of_what_is_around_cores() -> None:
    """A transfer goes by the channel it names, a copy by its two memories, a map by whether it divides."""
    text = program(
        ALLOC + "air.channel.put @d[] (%b[] [] []) : (memref<128xf32, 2>)\n"
        "air.channel.put @c[%c0] (%b[] [] []) : (memref<128xf32, 2>)\n"
        "%n = memref.alloc() : memref<64x64xbf16, 2>\n"
        "air.dma_memcpy_nd (%n[] [] [], %a[] [] []) : (memref<64x64xbf16, 2>, memref<64x64xbf16>)",
        segment="%m = memref.alloc() : memref<64x64xbf16, 1>\n"
        "air.dma_memcpy_nd (%m[] [] [], %a[] [] []) : (memref<64x64xbf16, 1>, memref<64x64xbf16>)\n"
        "%plain = affine.apply affine_map<(d) -> (d * 2 + 1)>(%c8)",
        launch="%divided = affine.apply affine_map<(d) -> (d floordiv 2 + 1)>(%c8)",
        module=f"{CASCADE}\nair.channel @d []",
    )
    assert {(form.op, form.detail) for op in parse(text).walk() for form in air_forms_of(op)} == {
        ("air.launch", "0 dimensions"),
        ("air.segment", ""),
        ("air.herd", ""),
        ("air.herd", "given L3"),
        ("air.channel", "npu_cascade"),
        ("air.channel", "npu_dma_stream"),
        ("air.channel.put", "a buffer over a cascade"),
        ("air.channel.put", "in the herd"),
        ("air.dma_memcpy_nd", "L3 to L1 in the herd"),
        ("air.dma_memcpy_nd", "L3 to L2 in the segment"),
        ("memref.alloc", "L2 in the segment"),
        ("affine.apply", "outside of cores"),
        ("affine.apply", "outside of cores, with floordiv"),
    }


# ---- what vectors and divisions ask of a core: stack and alignment ----

QUOTIENT = program(
    "%b = memref.alloc() : memref<64xf32, 2>\n%v = memref.load %b[%c0] : memref<64xf32, 2>\n"
    "%r = arith.divf %v, %v : f32"
)


def test_a_division_of_scalars_takes_stack() -> None:
    message = (
        "a division of scalar floats takes about 1152 bytes of stack, and a core has 1024; multiply with"
    )
    assert_fault(QUOTIENT, "stack", message, stack_bytes=1024)
    assert_clean(QUOTIENT, stack_bytes=2048)
    assert_warning(
        QUOTIENT, "stack", "a core has 1024 unless aircc gets another size; multiply with a reciprocal"
    )


@pytest.mark.parametrize(("divisor", "takes"), [(0.5, 0), (-8.0, 0), (3.0, 1), (0.0, 1)])
def test_a_division_by_a_power_of_two_is_a_product(divisor: float, takes: int) -> None:
    text = program(
        "%b = memref.alloc() : memref<64xf32, 2>\n%v = memref.load %b[%c0] : memref<64xf32, 2>\n"
        f"%d = arith.constant {divisor} : f32\n%r = arith.divf %v, %d : f32"
    )
    assert [fault.kind for fault in check(text, stack_bytes=1024).faults] == ["stack"] * takes


SHIFT = (
    "%b = memref.alloc() : memref<64xi32, 2>\n%v = memref.load %b[%c0] : memref<64xi32, 2>\n"
    "%k = arith.constant 4 : i32\n%m = arith.constant -16 : i32\n%z = arith.constant 127 : i32\n"
    "%masked = arith.andi %v, %m : i32\n%l = arith.shli %v, %k : i32\n"
)


@pytest.mark.parametrize("how", ["%v, %k", "%v, %v", "%v, %z"])
def test_a_shift_of_a_scalar_may_round(how: str) -> None:
    message = "i32: mlir-aie shifts a scalar as a vector, by SRS, which rounds halves up.*: then both agree"
    assert_warning(program(f"{SHIFT}%r = arith.shrsi {how} : i32"), "shift", message)


@pytest.mark.parametrize(
    "shift",
    [
        "%r = arith.shrsi %masked, %k : i32",
        "%r = arith.shrsi %l, %k : i32",
        "%n = arith.constant 0 : i32\n%r = arith.shrsi %v, %n : i32",
        "%r = arith.shrui %v, %k : i32",
        "%r = arith.shrsi %v, %k : i32\n%h = arith.minsi %r, %z : i32\n%o = arith.maxsi %h, %m : i32\n"
        "%t = arith.trunci %o : i32 to i8",
    ],
)
def test_a_shift_that_rounds_nothing_or_as_it_should(shift: str) -> None:
    assert_clean(program(SHIFT + shift))


def test_the_host_may_divide() -> None:
    assert_clean(program(function="%x = arith.constant 1.0 : f32\n%r = arith.divf %x, %x : f32"))


def at(index: str) -> str:
    return program(
        "%b = memref.alloc() : memref<256xbf16, 2>\nscf.for %i = %c0 to %c8 step %c1 {\n"
        f"%o = affine.apply affine_map<(d0) -> ({index})>(%i)\n"
        "%v = vector.load %b[%o] : memref<256xbf16, 2>, vector<16xbf16>\n"
        "vector.store %v, %b[%o] : memref<256xbf16, 2>, vector<16xbf16>\n}"
    )


def test_vectors_are_aligned_to_their_width() -> None:
    assert_clean(at("d0 * 16"))
    text = program(
        "%b = memref.alloc() : memref<256xbf16, 2>\n"
        "%v = vector.load %b[%c8] : memref<256xbf16, 2>, vector<16xbf16>"
    )
    message = "vector.load: .* 256 bits at byte 16 of its memref; a core drops the low bits of an address, so"
    assert_fault(text, "misaligned", message)


def test_an_unknown_alignment_has_no_finding() -> None:
    text = program(
        "%b = memref.alloc() : memref<256xbf16, 2>\n%n = memref.alloc() : memref<1xindex, 2>\n"
        "%o = memref.load %n[%c0] : memref<1xindex, 2>\n"
        "%v = vector.load %b[%o] : memref<256xbf16, 2>, vector<16xbf16>"
    )
    assert_clean(text)


# ---- vectors that the compiler would have to shift ----


def through(view: str, lanes: int, element: str = "bf16") -> str:
    """A read of a buffer at an element, or through a view that begins there."""
    memref, vector = f"memref<256x{element}, 2>", f"vector<{lanes}x{element}>"
    zero = f"%zero = arith.constant 0.0 : {element}\n%b = memref.alloc() : {memref}\n"
    at, _, how = view.partition(" ")
    if how == "of a view":
        type_ = f"memref<64x{element}, strided<[1], offset: {at}>, 2>"
        made = f"%s = memref.subview %b[{at}] [64] [1] : {memref} to {type_}\n"
        read = f"%v = vector.transfer_read %s[%c0], %zero {{in_bounds = [true]}} : {type_}, {vector}"
    else:
        made = f"%at = arith.constant {at} : index\n"
        read = f"%v = vector.transfer_read %b[%at], %zero {{in_bounds = [true]}} : {memref}, {vector}"
    return program(zero + made + read)


@pytest.mark.parametrize("how", ["", " of a view"], ids=["itself", "through a view"])
@pytest.mark.parametrize(
    ("element", "lanes", "at"), [("bf16", 16, 8), ("bf16", 16, 24), ("f32", 8, 4), ("bf16", 64, 8)]
)
def test_no_shift_serves(how: str, element: str, lanes: int, at: int) -> None:
    """aievec.shift has a lowering for 512 bits alone."""
    message = "which has a lowering .aievec.shift. for 512 bits alone; begin at a multiple of 32 bytes"
    kinds = {fault.kind: str(fault) for fault in faults_of(check(through(f"{at}{how}", lanes, element)))}
    assert re.search(message, kinds["vector-alignment"])


@pytest.mark.parametrize("how", ["", " of a view"], ids=["itself", "through a view"])
def test_a_shift_serves_512_bits(how: str) -> None:
    assert_warning(
        through(f"8{how}", 32), "vector-alignment", "the compiler reads twice as much and shifts .ml"
    )
    assert_clean(through(f"32{how}", 32))
    assert_clean(through(f"16{how}", 16))
