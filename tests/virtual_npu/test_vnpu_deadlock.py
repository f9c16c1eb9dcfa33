# ruff: noqa: E501 - MLIR has long lines
"""A program that stops tells the cycle of who waits for whom, or what nobody is left to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.virtual_npu import BuildOptions
from tests.virtual_npu.air_texts import with_constants

L3, L1 = "memref<16xf32>", "memref<16xf32, 2>"


def function(name: str, body: str) -> str:
    return f"""
  func.func @{name}(%x: {L3}) {{
    air.launch () in () args(%a=%x) : {L3} {{
      {body}
    }}
    return
  }}"""


def herd(body: str, columns: str = "%c1", order: str = "", name: str = "h") -> str:
    return f"""
      air.herd @{name} {order} tile (%tx, %ty) in (%sx={columns}, %sy=%c1) {{
        %m = memref.alloc() : {L1}
        %zero = arith.constant 0.0 : f32
        linalg.fill ins(%zero : f32) outs(%m : {L1})
        {body}
        memref.dealloc %m : {L1}
      }}"""


RING = """
  air.channel @c_ring [3]
""" + function("ring", herd(f"""
        %next = arith.addi %tx, %c1 : index
        %is_last = arith.cmpi eq, %tx, %c2 : index
        %to = arith.select %is_last, %c0, %next : index
        air.channel.get @c_ring[%tx] (%m[] [] []) : ({L1})
        air.channel.put @c_ring[%to] (%m[] [] []) : ({L1})""", "%c3"))  # fmt: skip

TOKEN = """
  air.channel @out []
""" + function("token", f"""
      %got = air.channel.get async @out[] (%a[] [] []) : ({L3})
      %done = """ + herd(f"air.channel.put @out[] (%m[] [] []) : ({L1})", order="async [%got]").strip())  # fmt: skip

TWO = """
  air.channel @there []
  air.channel @back []
""" + function("two", herd(f"""
        air.channel.get @there[] (%m[] [] []) : ({L1})
        air.channel.put @back[] (%m[] [] []) : ({L1})""", name="one") + herd(f"""
        air.channel.get @back[] (%m[] [] []) : ({L1})
        air.channel.put @there[] (%m[] [] []) : ({L1})""", name="other"))  # fmt: skip

ITSELF = """
  air.channel @self []
""" + function("itself", herd(f"""
        air.channel.get @self[] (%m[] [] []) : ({L1})
        air.channel.put @self[] (%m[] [] []) : ({L1})"""))  # fmt: skip

ONE_SHORT = """
  air.channel @short []
""" + function("one_short", herd(f"""
        scf.for %i = %c0 to %c3 step %c1 {{
          air.channel.get @short[] (%m[] [] []) : ({L1})
        }}""") + f"""
      air.channel.put @short[] (%a[] [] []) : ({L3})
      air.channel.put @short[] (%a[] [] []) : ({L3})""")  # fmt: skip

WAITED = """
  air.channel @never []
""" + function("waited", f"""
      %got = air.channel.get async @never[] (%a[] [] []) : ({L3})
      air.wait_all [%got]
      air.channel.put @never[] (%a[] [] []) : ({L3})""")  # fmt: skip


def ahead(name: str, puts: str) -> str:
    """Three points, in which a herd puts `puts` blocks before the one that another herd gets first."""
    many, one = (f"air.channel.{{}} @{name}_{which}[] (%m[] [] []) : ({L1})" for which in ("many", "one"))

    def loop(what: str) -> str:
        return f"%count = {puts} : index\nscf.for %i = %c0 to %count step %c1 {{\n{many.format(what)}\n}}"

    herds = herd(f"{loop('put')}\n{one.format('put')}", name="from") + herd(
        f"{one.format('get')}\n{loop('get')}", name="to"
    )
    return f"""
  air.channel @{name}_many []
  air.channel @{name}_one []
  func.func @{name}(%x: {L3}) {{
    air.launch (%lx) in (%ls=%c3) {{
      {herds.replace("%sy=%c1)", "%sy=%c1) args(%l=%lx) : index")}
    }}
    return
  }}"""


AHEAD = ahead("ahead", "arith.addi %c1, %c2") + ahead("later", "arith.addi %l, %c1")
IN_TIME = ahead("in_time", "arith.addi %c1, %c1")

WHERE = r"[\w@ ]+(?: \(\d+(?:, \d+)?\))?, line \d+: "
CYCLES = {
    "ring": [r"get @c_ring\[\d\] \(0 put so far, 0 in flight\), until a put comes"] * 3,
    "token": [
        r"get @out\[0\] \(0 put so far, 0 in flight\), until a put comes",
        "air.herd @h, held back by what it depends on",
    ],
    "two": [r"get @\w+\[0\] \(0 put so far, 0 in flight\), until a put comes"] * 2,
}
ENDS = {
    "itself": "This one waits for what only it could do later:\n"
    r"  herd @h \(0, 0\), line \d+: get @self\[0\] \(0 put so far, 0 in flight\), until a put comes",
    "one_short": "No operation is left that these could wait for:\n"
    r"  herd @h \(0, 0\), line \d+: get @short\[0\] \(2 put so far, 0 in flight\): no put comes",
}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checks"])
def library(program, request):
    text = "module {" + RING + TOKEN + TWO + ITSELF + ONE_SHORT + WAITED + AHEAD + IN_TIME + "}"
    return program(text, options=virtual_npu.BuildOptions(checks=request.param))


def message(library, entry: str) -> str:
    x = np.zeros(16, np.float32)
    with pytest.raises(virtual_npu.VirtualNpuDeadlock) as caught:
        library.run(entry, [x.ctypes.data])
    assert caught.value.kind == "deadlock"
    return str(caught.value)


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_is_reported_in_order(library, name):
    steps = CYCLES[name]
    head = f"{name}: deadlock: nothing can make progress. Each of these {len(steps)} waits for the next one, the last for the first:"
    first, *rest = message(library, name).splitlines()
    assert first == head
    # It may begin anywhere.
    turns = [rest[i:] + rest[:i] for i in range(len(rest))]
    patterns = [f"  {WHERE}{step}" for step in steps]
    fits = [all(re.fullmatch(p, line) for p, line in zip(patterns, turn, strict=True)) for turn in turns]
    assert any(fits), rest


def test_a_ring_names_every_tile(library):
    tiles = re.findall(r"herd @h \((\d), 0\), line \d+: get @c_ring\[(\d)\]", message(library, "ring"))
    assert sorted(tiles) == [("0", "0"), ("1", "1"), ("2", "2")]


@pytest.mark.parametrize("name", ENDS)
def test_a_missing_operation_is_reported(library, name):
    assert re.search(ENDS[name], message(library, name))


@pytest.mark.parametrize("name", ["ahead", "later"])
def test_a_put_is_two_blocks_ahead_at_most(library, name):
    """Points may be further ahead that do what the first one did; in the second program they do not."""
    first, *rest = message(library, name).splitlines()
    assert first.endswith("Each of these 2 waits for the next one, the last for the first:")
    assert any(f"put @{name}_many[0] (2 put so far, 2 in flight)" in line for line in rest), rest
    assert any(f"get @{name}_one[0] (0 put so far, 0 in flight)" in line for line in rest), rest


def test_two_blocks_ahead_are_enough(library):
    library.run("in_time", [np.zeros(16, np.float32).ctypes.data])


def test_points_that_follow_the_first_are_known():
    def follows(text: str, **options: Any) -> bool:
        return "flat > 0" in virtual_npu.emit(with_constants(text), options=BuildOptions(**options)).text

    assert follows(ahead("ahead", "arith.addi %c1, %c2"))
    assert not follows(ahead("ahead", "arith.addi %c1, %c2"), fast=False)
    assert not follows(ahead("later", "arith.addi %l, %c1"))


def test_a_body_that_waits_for_itself(library):
    text = message(library, "waited")
    assert re.search(
        r"launch, line \d+: get @never\[0\] \(0 put so far, 0 in flight\), until a put comes", text
    )


def test_names_with_quotes_and_backslashes(program):
    text = f"""module {{
  air.channel @"a\\"b" []
  func.func @"f\\\\g"(%x: {L3}) {{
    air.launch @"l\\"1" () in () args(%a=%x) : {L3} {{
      air.channel.get @"a\\"b"[] (%a[] [] []) : ({L3})
    }}
    return
  }}
}}"""
    assert r'launch @"l\"1", line 5: get @"a\"b"[0]' in message(program(text), "f\\g")
