"""Round trips of generated modules: whatever the numbers, the names and the nesting."""

import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    FloatAttr,
    ModuleOp,
    VectorType,
    bf16,
    f32,
)

from aerie import air_dialect

FEW = settings(max_examples=60, deadline=None, derandomize=True)


def round_trip(module: ModuleOp) -> ModuleOp:
    """Print, parse, compare; returns what was parsed."""
    text = air_dialect.print_module(module)
    again = air_dialect.parse(text)
    assert module.is_structurally_equivalent(again)
    assert air_dialect.print_module(again) == text
    return again


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


FLOATS = st.floats(width=32, allow_nan=False)


@FEW
@given(FLOATS, st.sampled_from([f32, bf16]))
def test_float_constants(value: float, kind: AnyFloat) -> None:
    attribute = FloatAttr(value, kind)
    again = round_trip(ModuleOp([arith.ConstantOp(attribute)]))
    constant = again.body.block.first_op
    assert isinstance(constant, arith.ConstantOp)
    assert isinstance(constant.value, FloatAttr)
    assert bits(constant.value.value.data) == bits(attribute.value.data)


@FEW
@given(st.lists(FLOATS, min_size=4, max_size=4), st.sampled_from([f32, bf16]))
def test_dense_float_constants(values: list[float], kind: AnyFloat) -> None:
    attribute = DenseIntOrFPElementsAttr.from_list(VectorType(kind, [2, 2]), values)
    again = round_trip(ModuleOp([arith.ConstantOp(attribute)]))
    constant = again.body.block.first_op
    assert isinstance(constant, arith.ConstantOp)
    assert isinstance(constant.value, DenseIntOrFPElementsAttr)
    assert constant.value.data == attribute.data


NAMES = ["%x", "%x_1", "%x_1_1", "%0", "%7", "%arg0", "%c0", "%a.b"]
SHAPES = st.lists(st.integers(1, 9), max_size=3)


@st.composite
def nests(draw: st.DrawFn) -> str:
    """A launch in a function, in it a segment and a herd, whose names collide across the levels."""
    outer, ids, sizes = (draw(st.permutations(NAMES)) for _ in range(3))
    size = draw(st.sampled_from([name for name in NAMES if name != sizes[2]]))
    element, space = draw(st.sampled_from(["bf16", "i32"])), draw(st.sampled_from("012"))
    kind = f"memref<{''.join(f'{extent}x' for extent in draw(SHAPES))}{element}, {space}>"
    herd = (
        f"{size} = arith.constant {draw(st.integers(1, 8))} : index\n"
        f"air.herd @h tile ({ids[0]}, {ids[1]}) in ({ids[2]}={size}, {ids[3]}={size}) "
        f"args({ids[4]}={sizes[2]}) : {kind} {{\n"
        f"{ids[5]} = arith.addi {ids[0]}, {ids[2]} : index\n"
        f"air.channel.get @c[{ids[5]}] ({ids[4]}[] [] []) : ({kind})\n}}"
    )
    return (
        f"air.channel @c [8]\nfunc.func @f({outer[0]}: {kind}, {outer[1]}: index) {{\n"
        f"air.launch ({sizes[0]}) in ({sizes[1]}={outer[1]}) args({sizes[2]}={outer[0]}) : {kind} {{\n"
        f"air.segment @s args({sizes[2]}={sizes[2]}) : {kind} {{\n{herd}\n}}\n}}\nreturn\n}}"
    )


@FEW
@given(nests())
def test_names_that_collide_across_levels(text: str) -> None:
    round_trip(air_dialect.parse(text))


@FEW
@given(
    st.lists(
        st.tuples(st.integers(0, 2**31), st.integers(1, 2**20), st.integers(0, 2**31)), min_size=1, max_size=4
    ),
    st.dictionaries(
        st.sampled_from(["id", "air.tag", "with space", "x_loc"]),
        st.sampled_from(
            [
                "1 : i32",
                '"text"',
                "[1, 2]",
                "[1 : i32]",
                "[]",
                "unit",
                "array<i64: 3>",
                "{a = 4 : i8}",
                "true",
            ]
        ),
    ),
)
def test_dma_patterns_and_attributes(dims: list[tuple[int, int, int]], attributes: dict[str, str]) -> None:
    groups = "".join(f" {list(group)}" for group in zip(*dims, strict=True))
    entries = ", ".join(f'"{name}" = {value}' for name, value in attributes.items())
    module = air_dialect.parse(
        f"func.func @f(%m: memref<?xi32>) {{\nair.dma_memcpy_nd (%m{groups}, %m{groups}) {{{entries}}} "
        ": (memref<?xi32>, memref<?xi32>)\nreturn\n}"
    )
    round_trip(module)
