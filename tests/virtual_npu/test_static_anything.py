"""Static check: whatever parses can be checked and shown, without a traceback; compiled forms count alike."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import pytest

from aerie.air_dialect import AirParseError, parse
from aerie.device import NPU1, NPU2, CheckReport, check

TESTS = Path(__file__).parents[1]
TEXTS = sorted(
    [*TESTS.glob("*/programs/*.mlir"), *TESTS.glob("*/texts/*.mlir"), *TESTS.glob("lit/kernels/*.mlir")]
)
NUMBER = re.compile(r"(?<![\w.%#@])\d+(?![\w.])")
CHOICES = ("0", "1", "2", "3", "5", "7", "16", "33", "64", "255", "256", "1024", "4099", "65536")


def shown(report: CheckReport) -> int:
    """Everything a report is shown as; gives how much there is to show."""
    parts = [report.table(), str(report.to_json()), *map(str, (*report.faults, *report.warnings))]
    return sum(map(len, parts))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_text_of_the_tests(path: Path) -> None:
    module = parse(path.read_text(), strict=False)
    assert shown(check(module, NPU2)) > 0
    assert shown(check(module, NPU1)) > 0


@pytest.mark.parametrize("seed", range(4))
def test_programs_with_other_numbers(seed: int) -> None:
    """Numbers of real programs replaced at random: most are nonsense, some still parse."""
    draw = random.Random(seed)
    checked = 0
    while checked < 5:
        text = draw.choice(TEXTS).read_text()
        places = draw.sample([found.span() for found in NUMBER.finditer(text)], 2)
        for start, end in sorted(places, reverse=True):
            text = text[:start] + draw.choice(CHOICES) + text[end:]
        try:
            module = parse(text, strict=False)
        except AirParseError:
            continue
        checked += shown(check(module, draw.choice((NPU1, NPU2)))) > 0


@pytest.mark.parametrize(
    "text",
    [
        "module { }",
        "func.func private @f()",
        "func.func @f() { return }",
        "module { module { func.func @f() { air.launch () in () { } return } } }",
        "air.channel @c [2, 2]",
        "air.launch () in () { }",
        "func.func @f(%n: index) { air.launch (%i) in (%si=%n) { } return }",
        "func.func @f(%a: memref<f32>, %b: memref<f32, 2>) { "
        "air.dma_memcpy_nd (%b[] [] [], %a[] [] []) : (memref<f32, 2>, memref<f32>) return }",
        "func.func @f(%a: memref<?x?xf32>) { air.channel.put @c[] (%a[] [] []) : (memref<?x?xf32>) return }",
        "func.func @f(%a: memref<4xf32, affine_map<(d0) -> (d0)>>) { "
        "air.channel.put @c[] (%a[] [] []) : (memref<4xf32, affine_map<(d0) -> (d0)>>) return }",
    ],
)
def test_odd_modules(text: str) -> None:
    module = parse(text, strict=False)
    assert shown(check(module)) > 0
    assert shown(check(module, NPU1, omit_ping_pong="all", stack_bytes=64, bf16_emulation=True)) > 0


def test_numbers_beyond_all_devices() -> None:
    text = """air.channel @c [4611686018427387904]
    func.func @f(%a: memref<8xi32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %low = arith.constant -9223372036854775808 : index
      %n = arith.constant 9223372036854775807 : index
      air.launch (%i) in (%si=%n) {
        %m = arith.constant 9223372036854775807 : index
        air.segment @s unroll(%u) in (%su=%m) {
          %k = arith.constant 9223372036854775807 : index
          air.herd @h tile (%x, %y) in (%sx=%k, %sy=%k) attributes {x_loc = 0 : i64, y_loc = 2 : i64} { }
          air.herd @g tile (%x, %y) in (%sx=%k, %sy=%k) { }
        }
      }
      scf.parallel (%i) = (%low) to (%n) step (%c1) {
        air.channel.put @c[%i] (%a[%n] [%n] [%n]) : (memref<8xi32>)
        scf.reduce
      }
      return
    }"""
    report = check(parse(text, strict=False))
    assert {"columns (x)", "rows (y)", "unrolled copies"} <= {
        usage.resource for usage in report.usages if not usage.fits
    }
    assert shown(report) > 0


# ---- what a compiler makes of a program takes of each core what the program did ----

FORMS = sorted((Path(__file__).parent / "compiled_forms").glob("*.mlir"))
DOUBLED_BEFORE = {"swiglu_pingpong", "rope_pingpong", "flash_attention_pingpong", "flash_attention_placed"}
"""Made by the passes of March 2026, which doubled the buffers of loops that call functions."""
OF_A_CORE = ("L1 bytes", "input channels", "output channels", "descriptors")


@cache
def of_a_core(path: Path) -> dict[str, int]:
    report = check(path.read_text(), filename=str(path))
    assert {fault.kind for fault in report.faults} <= {"fan-in"}
    return {usage.resource: usage.used for usage in report.usages if usage.resource in OF_A_CORE}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_takes_what_its_program_takes(path: Path) -> None:
    kernel, _, _ = path.stem.rpartition("_")
    first = next(form for form in FORMS if form.stem.rpartition("_")[0] == kernel)
    actual, wanted = of_a_core(path), of_a_core(first)
    if path.stem in DOUBLED_BEFORE:
        actual, wanted = (
            {name: found[name] for name in OF_A_CORE if "channels" in name} for found in (actual, wanted)
        )
    assert actual == wanted
    assert len(of_a_core(path)) == len(OF_A_CORE)
