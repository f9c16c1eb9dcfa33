"""Every mistake the stitcher refuses, with the words it refuses it in."""

from __future__ import annotations

import re

import pytest

from aerie.multi_launch_builder.stitcher import Stitcher
from aerie.multi_launch_builder.submodule import DataflowError, StitchError, SymbolConflictError, WiringError


@pytest.fixture
def program(table):
    arguments = table(
        x=(128, "input"), w=(128, "weight"), mid=(128, "intermediate"), wide=(256, "input"), y=(128, "output")
    )
    return Stitcher("prog", arguments)


def refuse(error, *words):
    """The error's message must contain every one of `words`, in this order."""
    return pytest.raises(error, match="(?s)" + ".*".join(re.escape(word) for word in words))


def test_an_argument_wired_to_nothing(program, text):
    with refuse(
        WiringError, "launch 'd'", "argument 'y' (128 bf16) is wired to nothing", "x, w, mid, wide, y"
    ):
        program.add(text("double"), {"x": "x"}, label="d")


def test_an_unknown_kernel_argument(program, text):
    with refuse(WiringError, "launch 'd'", "no argument 'yy'; there are: y"):
        program.add(text("double"), {"x": "x", "yy": "mid"}, label="d")


def test_an_unknown_kernel_position(program, text):
    with refuse(WiringError, "launch 'd'", "no argument 2; the kernel has 2, numbered from 0: x, y"):
        program.add(text("double"), {0: "x", 2: "mid"}, label="d")


def test_an_unknown_program_argument(program, text):
    with refuse(
        WiringError, "argument 'y' (128 bf16)", "program argument 'mids', which does not exist", "mid"
    ):
        program.add(text("double"), {"x": "x", "y": "mids"}, label="d")


def test_one_argument_wired_twice(program, text):
    with refuse(WiringError, "argument 'y' is wired twice, to 'mid' and to 'y'", "keep one"):
        program.add(text("double"), {"x": "x", "y": "mid", 1: "y"}, label="d")


def test_another_element_type(program, text):
    f32 = text("pass_through").replace("bf16", "f32").replace("64", "128")
    ends = ("launch 'c': argument 'src' is 128 f32", "program argument x (128 bf16)", "declare 'x' as f32")
    with refuse(WiringError, *ends):
        program.add(f32, {"src": "x", "dst": "mid"}, label="c")


def test_another_element_count(program, text):
    ends = ("launch 'd': argument 'x' is 128 bf16", "wide (256 bf16)", "128 elements against 256")
    with refuse(WiringError, *ends):
        program.add(text("double"), {"x": "wide", "y": "mid"}, label="d", reshape=True)


def test_another_shape_without_asking(table, text):
    stitcher = Stitcher("prog", table(x=((2, 64), "input"), y=(128, "output")))
    ends = ("argument 'x' is 128 bf16", "x (2x64 bf16)", "same 128 elements", "reshape=True")
    with refuse(WiringError, *ends):
        stitcher.add(text("double"), {"x": "x", "y": "y"}, label="d")


def test_an_argument_that_is_no_buffer(program, text):
    scalar = text("double").replace("%y: memref<128xbf16>)", "%y: memref<128xbf16>, %n: i32)")
    with refuse(WiringError, "argument 'n' is i32", "only buffers can be wired", "as a constant"):
        program.add(scalar, {"x": "x", "y": "mid", "n": "w"}, label="d")


def test_an_argument_in_l1(program):
    kernel = "func.func @k(%b: memref<128xbf16, 2>) { return }"
    with refuse(WiringError, "argument 'b' is 128 bf16", "contiguous buffer in L3", "inside the kernel"):
        program.add(kernel, {"b": "x"}, label="k")


def test_a_label_used_twice(program, text):
    program.add(text("double"), {"x": "x", "y": "mid"}, label="d")
    with refuse(SymbolConflictError, "two launches of program 'prog' are labelled 'd'"):
        program.add(text("double"), {"x": "mid", "y": "y"}, label="d")


def test_a_label_that_is_no_name(program, text):
    with refuse(StitchError, "launch label '2nd gemm' cannot start a symbol name"):
        program.add(text("double"), {"x": "x", "y": "mid"}, label="2nd gemm")


@pytest.fixture
def scales(table, text):
    stitcher = Stitcher("scales", table(x=(512, "input"), mid=(512, "intermediate"), y=(512, "output")))
    stitcher.add(text("scale"), {0: "x", 1: "mid"}, label="first")
    return stitcher


def test_one_symbol_with_two_signatures(scales, text):
    other = text("scale").replace(", i32)", ", i64)").replace("64 : i32", "64 : i64")
    ends = ("@scale_bf16 is declared in two ways", "launch 'first' has", "i32", "launch 'second' has", "i64")
    with refuse(SymbolConflictError, *ends, "build the second under another name"):
        scales.add(other, {0: "mid", 1: "y"}, label="second")


def test_one_symbol_from_two_objects(scales, text):
    other = text("scale").replace("scale.o", "scale_k8192.o")
    ends = ("launch 'first' has", '"scale.o"', "launch 'second' has", '"scale_k8192.o"')
    with refuse(SymbolConflictError, "@scale_bf16 is declared in two ways", *ends):
        scales.add(other, {0: "mid", 1: "y"}, label="second")


def test_one_object_built_in_two_ways(scales, text):
    other = text("scale").replace("@scale_bf16", "@scale_two")
    other = other.replace('"scale.o", llvm', '"scale.o", link_defines = "FACTOR=2", llvm')
    ends = ("scale.o is built in two ways", "launch 'first'", "launch 'second'", '"FACTOR=2"')
    with refuse(SymbolConflictError, *ends):
        scales.add(other, {0: "mid", 1: "y"}, label="second")


def test_a_program_named_like_an_external_function(table, text):
    stitcher = Stitcher("scale_bf16", table(x=(512, "input"), y=(512, "output")))
    with refuse(
        SymbolConflictError, "launch 's' calls an external function @scale_bf16", "rename the program"
    ):
        stitcher.add(text("scale"), {0: "x", 1: "y"}, label="s")


def test_reading_before_anyone_wrote(program, text):
    ends = ("launch 'd' reads its argument 'x'", "mid (128 bf16) of role 'intermediate'", "before any launch")
    with refuse(DataflowError, *ends):
        program.add(text("double"), {"x": "mid", "y": "y"}, label="d")


def test_writing_a_weight(program, text):
    with refuse(DataflowError, "launch 'd' writes its argument 'y'", "w (128 bf16) of role 'weight'"):
        program.add(text("double"), {"x": "x", "y": "w"}, label="d")


def test_writing_over_what_the_launch_reads(program, text):
    program.add(text("double"), {"x": "x", "y": "mid"}, label="d")
    ends = ("launch 'e': its arguments 'x' and 'y' are both program argument mid", "it writes 'y'")
    with refuse(DataflowError, *ends):
        program.add(text("double"), {"x": "mid", "y": "mid"}, label="e")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"w": (64, "weight")}, ("w (64 bf16) of role 'weight' is never used", "128 bytes")),
        ({"z": (64, "output")}, ("z (64 bf16) of role 'output' is never used",)),
    ],
)
def test_an_argument_nobody_is_wired_to(table, text, extra, words):
    stitcher = Stitcher("prog", table(x=(128, "input"), y=(128, "output"), **extra))
    stitcher.add(text("double"), {"x": "x", "y": "y"}, label="d")
    with refuse(DataflowError, *words):
        stitcher.finish()


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("output", ("z (64 bf16) of role 'output' is never written", "wire it to an argument")),
        ("input", ("z (64 bf16) of role 'input' is never read by any launch", "take it out")),
    ],
)
def test_an_argument_that_a_launch_leaves_alone(table, text, role, words):
    idle = text("double").replace("%y: memref<128xbf16>)", "%y: memref<128xbf16>, %z: memref<64xbf16>)")
    stitcher = Stitcher("prog", table(x=(128, "input"), y=(128, "output"), z=(64, role)))
    stitcher.add(idle, {"x": "x", "y": "y", "z": "z"}, label="d")
    with refuse(DataflowError, *words):
        stitcher.finish()


def test_an_intermediate_nobody_reads(table, text):
    stitcher = Stitcher("prog", table(x=(128, "input"), mid=(128, "intermediate")))
    stitcher.add(text("double"), {"x": "x", "y": "mid"}, label="d")
    with refuse(DataflowError, "mid (128 bf16) of role 'intermediate' is never read", "make it an output"):
        stitcher.finish()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("func.func private @f()", ("exactly one public func.func", "0 (none)")),
        (
            "func.func @f() { return }\nfunc.func @g() { return }",
            ("exactly one public func.func", "2 (@f, @g)"),
        ),
        (
            "func.func @f() -> i32 { %0 = arith.constant 1 : i32\n return %0 : i32 }",
            ("kernel @f returns 1 value(s)", "let it return nothing"),
        ),
        ("func.func @f() { cf.br ^a\n^a:\n return }", ("the body of kernel @f has 2 blocks", "scf.for")),
        (
            "%0 = arith.constant 1 : i32\nfunc.func @f() { return }",
            ("'arith.constant' at module level is not a symbol", "into the kernel function"),
        ),
    ],
)
def test_a_module_that_is_no_kernel(program, kernel, words):
    with refuse(StitchError, "launch 'k'", *words):
        program.add(kernel, {}, label="k")


def test_too_few_names(program, text):
    with refuse(StitchError, "launch 'd': 1 argument names for kernel @double, which has 2 arguments"):
        program.add(text("double"), {}, label="d", argument_names=["x"])


def test_a_name_given_twice(program, text):
    with refuse(StitchError, "several arguments of kernel @double are named 'x'", "argument_names"):
        program.add(text("double"), {}, label="d", argument_names=["x", "x"])


def test_a_herd_that_hangs_on_its_surroundings(table, text):
    tied = text("pass_through").replace("air.channel.put @c_in", "%t = air.channel.put async @c_in")
    tied = tied.replace("air.herd tile", "%h = air.herd async tile")
    tied = tied.replace("air.channel.get @c_out[] (%dst", "%g = air.channel.get async [%h] @c_out[] (%dst")
    stitcher = Stitcher("prog", table(x=(64, "input"), y=(64, "output")))
    ends = ("launch 'c': 'air.channel.get' depends on a result across the border of the air.segment",)
    with refuse(StitchError, *ends, "write air.segment around both"):
        stitcher.add(tied, {"src": "x", "dst": "y"}, label="c")
