"""What the stitcher makes: names kept apart, externals shared, herds wrapped, arguments joined by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.dialects.memref import AllocOp

from aerie import virtual_npu
from aerie.air_dialect import parse, print_module
from aerie.air_dialect.ops import ChannelOp, ChannelPutOp, HerdOp, LaunchOp, SegmentOp
from aerie.kernel_builder.arguments import ArgumentTable, bf16
from aerie.multi_launch_builder.stitcher import Stitcher
from aerie.multi_launch_builder.submodule import StitchError


def ops(module, kind):
    return [op for op in module.walk() if isinstance(op, kind)]


def names(module, kind):
    return [op.get_attr_or_prop("sym_name").data for op in ops(module, kind)]


@pytest.fixture
def double_twice(text, table):
    stitcher = Stitcher("twice", table(x=(128, "input"), mid=(128, "intermediate"), y=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "mid"}, label="first")
    stitcher.add(text("double"), {"x": "mid", "y": "y"}, label="second")
    return stitcher.finish()


def test_the_result_parses_to_itself(double_twice):
    printed = print_module(double_twice)
    assert print_module(parse(printed)) == printed


def test_every_symbol_takes_the_label_of_its_launch(double_twice):
    assert names(double_twice, ChannelOp) == ["first_in", "first_out", "second_in", "second_out"]
    assert names(double_twice, LaunchOp) == ["first", "second"]
    assert names(double_twice, SegmentOp) == ["first_s", "second_s"]
    assert names(double_twice, FuncOp) == ["first_times", "second_times", "twice"]


def test_references_follow_their_symbols_into_loops_and_herds(double_twice):
    text = print_module(double_twice)
    for label in ("first", "second"):
        assert text.count(f"@{label}_in[") == 3
        assert text.count(f"func.call @{label}_times(") == 1
        assert text.count(f"memref.get_global @{label}_two ") == 1
    assert "@in" not in text
    assert "@times" not in text


def test_herds_of_one_name_in_one_kernel_stay_on_the_same_cores(double_twice):
    assert names(double_twice, HerdOp) == ["first_h", "first_h", "second_h", "second_h"]


def test_a_label_that_makes_a_taken_name_gets_another(text, table):
    stitcher = Stitcher("first_in", table(x=(128, "input"), y=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "y"}, label="first")
    assert names(stitcher.finish(), ChannelOp) == ["first_in_1", "first_out"]
    stitcher = Stitcher("first_h", table(x=(128, "input"), y=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "y"}, label="first")
    assert names(stitcher.finish(), HerdOp) == ["first_h_1", "first_h_1"]


def test_a_symbol_that_begins_with_the_letters_of_a_label_has_not_got_it(text, table):
    stitcher = Stitcher("twice", table(x=(128, "input"), y=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "y"}, label="t")
    assert names(stitcher.finish(), FuncOp) == ["t_times", "twice"]


def test_identical_external_functions_are_declared_once(text, table):
    stitcher = Stitcher("scales", table(x=(512, "input"), mid=(512, "intermediate"), y=(512, "output")))
    stitcher.add(text("scale"), {0: "x", 1: "mid"}, label="first")
    stitcher.add(text("scale"), {0: "mid", 1: "y"}, label="second")
    module = stitcher.finish()
    assert names(module, FuncOp) == ["scale_bf16", "scales"]
    assert print_module(module).count("func.call @scale_bf16(") == 2


def test_a_bare_herd_gets_a_launch_and_a_segment(text, table):
    stitcher = Stitcher("p", table(x=(512, "input"), y=(512, "output")))
    stitcher.add(text("scale"), {"arg0": "x", "arg1": "y"}, label="scale")
    (herd,) = ops(stitcher.finish(), HerdOp)
    segment = herd.parent_op()
    assert isinstance(segment, SegmentOp)
    assert isinstance(segment.parent_op(), LaunchOp)
    assert segment.sym_name == "scale_segment"


def test_a_launch_whose_herd_has_no_segment_gets_one(text, table):
    stitcher = Stitcher("p", table(x=(256, "input"), y=(256, "output")))
    stitcher.add(text("add"), {"a": "x", "b": "x", "c": "y"}, label="add")
    module = stitcher.finish()
    assert len(ops(module, LaunchOp)) == 1
    (segment,) = ops(module, SegmentOp)
    assert [type(op) for op in segment.body.block.ops][2] is HerdOp


def test_l3_ends_of_channels_stay_in_the_launch(text, table):
    stitcher = Stitcher("p", table(x=(64, "input"), y=(64, "output")))
    stitcher.add(text("pass_through"), {"src": "x", "dst": "y"}, label="copy")
    module = stitcher.finish()
    first, second = ops(module, ChannelPutOp)
    assert isinstance(first.parent_op(), LaunchOp)
    assert isinstance(second.parent_op(), HerdOp)
    assert not ops(module, SegmentOp)[0].kernel_operands


def test_a_herd_beside_a_launch_gets_a_launch_of_its_own(text, table):
    both = text("add").replace("    return", BESIDE.format(a="%a", c="%c"))
    stitcher = Stitcher("p", table(x=(256, "input"), y=(256, "output")))
    stitcher.add(both, {"a": "x", "b": "x", "c": "y"}, label="add")
    module = stitcher.finish()
    assert names(module, LaunchOp) == ["add", "add_1"]
    assert all(isinstance(herd.parent_op(), SegmentOp) for herd in ops(module, HerdOp))


BESIDE = """
    %n1 = arith.constant 1 : index
    air.herd tile (%tx, %ty) in (%sx = %n1, %sy = %n1)
        args(%ha = {a}, %hc = {c}) : memref<256xbf16>, memref<256xbf16> {{
      %b = memref.alloc() : memref<256xbf16, 2>
      air.dma_memcpy_nd (%b[] [] [], %ha[] [] []) : (memref<256xbf16, 2>, memref<256xbf16>)
      air.dma_memcpy_nd (%hc[] [] [], %b[] [] []) : (memref<256xbf16>, memref<256xbf16, 2>)
      memref.dealloc %b : memref<256xbf16, 2>
    }}
    return"""


def test_a_scratch_buffer_in_l3_stays_one_buffer(text, table):
    """Two herds hand numbers over in a buffer that the kernel allocates in L3."""
    scratch = text("scale").replace("%c8 =", "%scratch = memref.alloc() : memref<512xbf16>\n    %c8 =")
    herd = scratch[scratch.index("    air.herd") : scratch.index("    return")]
    two = herd.replace("%arg7=%arg1", "%arg7=%scratch") + herd.replace("%arg6=%arg0", "%arg6=%scratch")
    stitcher = Stitcher("p", table(x=(512, "input"), y=(512, "output")))
    stitcher.add(scratch.replace(herd, two), {0: "x", 1: "y"}, label="scale")
    module = stitcher.finish()
    assert [op.memref.type.get_shape() for op in module.walk() if isinstance(op, AllocOp)].count((512,)) == 1
    first, second = ops(module, HerdOp)
    assert first.kernel_operands[1] is second.kernel_operands[0]


def test_a_parsed_module_is_left_as_it_was(text, table):
    module = parse(text("double"))
    before = print_module(module)
    stitcher = Stitcher("p", table(x=(128, "input"), y=(128, "output")))
    stitcher.add(module, {"x": "x", "y": "y"}, label="first")
    stitcher.finish()
    assert print_module(module) == before


@dataclass
class Named:
    module: ModuleOp
    arguments: ArgumentTable


def test_a_module_with_an_argument_table_is_wired_by_its_names(text, table):
    kernel = Named(parse(text("scale")), table(source=(512, "input"), target=(512, "output")))
    stitcher = Stitcher("p", table(x=(512, "input"), y=(512, "output")))
    stitcher.add(kernel, {"source": "x", "target": "y"}, label="scale")
    assert len(ops(stitcher.finish(), LaunchOp)) == 1


def test_text_names_its_arguments_by_attribute(text, table):
    named = text("scale").replace(
        "%arg0: memref<512xbf16>", '%arg0: memref<512xbf16> {aerie.name = "source"}'
    )
    stitcher = Stitcher("p", table(x=(512, "input"), y=(512, "output")))
    stitcher.add(named, {"source": "x", "arg1": "y"}, label="scale")
    assert len(ops(stitcher.finish(), LaunchOp)) == 1


def test_given_names_come_first(text, table):
    stitcher = Stitcher("p", table(x=(512, "input"), y=(512, "output")))
    stitcher.add(text("scale"), {"in": "x", "out": "y"}, label="scale", argument_names=["in", "out"])
    assert len(ops(stitcher.finish(), LaunchOp)) == 1


def test_numbered_arguments_are_called_by_position(text, table):
    numbered = text("add").replace("%a,", "%0,").replace("%a:", "%0:").replace("%a)", "%0)")
    stitcher = Stitcher("p", table(x=(256, "input"), y=(256, "output")))
    stitcher.add(numbered, {"arg0": "x", "b": "x", "c": "y"}, label="add")
    assert len(ops(stitcher.finish(), LaunchOp)) == 1


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((2, 64), "memref.collapse_shape %x [[0, 1]] : memref<2x64xbf16> into memref<128xbf16>"),
        ((2, 4, 16), "memref<2x4x16xbf16> into memref<128xbf16>"),
    ],
)
def test_another_shape_is_seen_through_a_view_when_asked_for(text, table, shape, view):
    stitcher = Stitcher("p", table(x=(shape, "input"), y=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "y"}, label="double", reshape=True)
    printed = print_module(stitcher.finish())
    assert view in printed
    assert print_module(parse(printed)) == printed


def test_a_flat_buffer_is_seen_in_two_dimensions(text, table):
    matrix = text("pass_through").replace("%src: memref<64xbf16>", "%src: memref<8x8xbf16>")
    matrix = matrix.replace("(%src[] [] []) : (memref<64xbf16>)", "(%src[] [] []) : (memref<8x8xbf16>)")
    stitcher = Stitcher("p", table(x=(64, "input"), y=(64, "output")))
    stitcher.add(matrix, {"src": "x", "dst": "y"}, label="copy", reshape=True)
    printed = print_module(stitcher.finish())
    assert "memref.expand_shape %x [[0, 1]] output_shape [8, 8]" in printed
    assert print_module(parse(printed)) == printed


def test_arguments_are_named_in_the_text(double_twice):
    assert "func.func @twice(%x: memref<128xbf16>, %mid: memref<128xbf16>, %y: memref<128xbf16>)" in (
        print_module(double_twice)
    )


def test_stitched_kernels_run_one_after_the_other(text, table, tmp_path):
    """z = 2x + x on 128 elements, then copied: channels, DMA and wrapped herds in one program."""
    small = text("add").replace("256", "128").replace("%c4 = arith.constant 4", "%c4 = arith.constant 2")
    copy = text("pass_through").replace("64", "128")
    rows = {"x": (128, "input"), "twice": (128, "intermediate"), "sum": (128, "intermediate")}
    stitcher = Stitcher("p", table(**rows, z=(128, "output")))
    stitcher.add(text("double"), {"x": "x", "y": "twice"}, label="double")
    stitcher.add(small, {"a": "twice", "b": "x", "c": "sum"}, label="add")
    stitcher.add(copy, {"src": "sum", "dst": "z"}, label="copy")
    virtual_npu.build(print_module(stitcher.finish()), tmp_path / "p.so")
    x = np.arange(128).astype(bf16.numpy)
    results = [np.zeros_like(x) for _ in range(3)]
    virtual_npu.Library(tmp_path / "p.so").run("p", [array.ctypes.data for array in (x, *results)])
    assert np.array_equal(results[-1], (3 * x.astype(np.float32)).astype(bf16.numpy))


def test_bad_text_is_refused_with_its_place(table):
    stitcher = Stitcher("p", table(x=(64, "input")))
    with pytest.raises(Exception, match=r"copy:1:\d+: error"):
        stitcher.add("module { nonsense }", {}, label="copy")


def test_all_refusals_are_stitch_errors():
    assert issubclass(StitchError, ValueError)
