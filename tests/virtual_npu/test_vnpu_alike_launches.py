"""Launches that are alike share their C++, and each still reports its own lines, names and numbers."""

from __future__ import annotations

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu.codegen import alike_launches
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.toolchain import emit
from benchmarks.checks_scale import launches

CHECKS = BuildOptions(checks=True)
SHARED = "launches share this"


def bodies(text: str, options: BuildOptions = CHECKS) -> int:
    """How many bodies of herds the C++ of a program has."""
    return sum("static" in line and " herd_" in line for line in emit(text, options=options).text.split("\n"))


def test_launches_that_differ_in_numbers_and_names_are_one_body_with_checks():
    cpp = emit(launches(6), options=CHECKS).text
    assert bodies(launches(6)) == 2  # the first reads from offset 0, which is not added
    assert f"5 {SHARED}" in cpp
    assert cpp.count("struct Channels") == 2
    assert cpp.count("launch_3_alike") == 0
    assert cpp.count("static constexpr Alike alike_") == 5


def test_without_checks_only_what_no_number_tells_apart_is_shared():
    assert SHARED not in emit(launches(4)).text
    same = launches(4)
    for number in range(1, 4):
        same = same.replace(f"constant {number * 128} : index", "constant 0 : index")
        same = same.replace(f"dense<{number}.0>", "dense<0.0>")
    assert f"4 {SHARED}" in emit(same).text


def test_a_program_of_one_launch_of_each_kind_is_emitted_as_it_stands():
    assert "alike" not in emit(launches(1), options=CHECKS).text


def test_another_structure_is_not_shared():
    text = launches(3).replace("%w = arith.addf %v, %more", "%w = arith.subf %v, %more", 1)
    text = text.replace("dense<2.0>", "dense<0x7FC00000>")
    assert SHARED not in emit(text, options=CHECKS).text


@pytest.fixture(scope="module")
def shared() -> virtual_npu.Program:
    """Four launches, of which three share their C++."""
    return virtual_npu.Program.from_text(launches(4))


def test_each_launch_computes_with_its_own_numbers(shared):
    x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
    result = shared.run(x, np.zeros_like(x), perturb=2)
    assert np.array_equal(result.outputs[1], x + np.repeat(np.arange(4, dtype=np.float32), 128))


def test_a_note_names_the_line_of_the_launch_that_it_is_about(shared):
    x = np.zeros(512, np.float32)
    x[300] = np.finfo(np.float32).max
    text = launches(4).replace("dense<2.0>", "dense<3.0e38>")
    (note,) = virtual_npu.Program.from_text(text).run(x, np.zeros_like(x)).notes
    line = 1 + [i for i, line in enumerate(text.split("\n")) if "arith.addf" in line][2]
    assert f"line {line}: arith.addf" in note
    assert "herd @h2 (0, 0)" in note


def test_a_trace_has_the_names_of_every_launch(shared):
    x = np.zeros(512, np.float32)
    record = shared.run(x, x, stats=True).record
    assert record is not None
    places = [tile["where"] for tile in record["stats"]["tiles"] if tile["where"].startswith("herd")]
    assert places == [f"herd @h{number} ({column}, 0)" for number in range(4) for column in range(2)]


def pieces(text: str, *, with_numbers: bool = True) -> list[str]:
    """What may differ in the body of a function."""
    function = f"static void f(vnpu::i64 v_x) {{\n  {text}\n}}"
    names = alike_launches._Names({"at_1": "const vnpu::OperandPlace &"}, {})
    return [slot.text for slot in alike_launches._Launch([function], names, with_numbers).slots]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("const vnpu::i64 v_y = 8 + v_x;", ["8"]),
        ("g(v_x < 8, h(9));", ["8", "9"]),
        ("g({8}, v_x);", []),
        ("g(vnpu::splat<float, 16>(float(0x1.8p+1)));", ["0x1.8p+1"]),
        ("static const G g(8, at_1); h(9);", ["9"]),
        ("case 8: h(9);", []),
        ("g(4294967296, 8u, -7);", ["7"]),
        ('g(vnpu::Site{"memref.load", 8}, "text", at_1);', ['"memref.load"', "8", "at_1"]),
        ("v_x.at_1(8); // at_1 9", ["8"]),
    ],
)
def test_what_may_differ_is_what_needs_no_constant(text, expected):
    assert pieces(text) == expected


def test_without_checks_lines_and_names_may_differ_but_no_number():
    assert pieces('g(8, vnpu::Site{"memref.load", 9}, at_1);', with_numbers=False) == [
        '"memref.load"',
        "9",
        "at_1",
    ]
