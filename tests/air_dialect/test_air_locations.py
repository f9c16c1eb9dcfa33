# ruff: noqa: E501 - MLIR has long lines
"""Locations in a text, in all forms and places: they are skipped, and messages name the text itself."""

from __future__ import annotations

import re

import pytest

from aerie.air_dialect import AirParseError, location, parse, print_module, source_places

TEXT = r"""#map = affine_map<(d0) -> (d0)>
#loc20 = loc("early")
module attributes {dlti.x = 1 : i32} {
  air.channel @c [1] loc(#loc9)
  "func.func"() <{function_type = (memref<16xf32>, memref<4xf32>) -> (), sym_name = "g", sym_visibility = "private"}> ({
  ^bb0(%arg0: memref<16xf32> loc("a.py":1:2 to 3:4), %arg1: memref<4xf32> loc(unknown)):
    "func.return"() : () -> () loc(fused<"CSE">[#loc3, unknown, callsite("f"(#loc2) at "m.py":1:1)])
  }) : () -> () loc("a.py":1:2 to :4)
  func.func @f(%arg0: memref<16xf32> {llvm.noalias} loc(fused["x", "y"]), %arg1: memref<4xf32> loc(callsite("a" at "b"))) attributes {foo} {
    %c0 = arith.constant 0 : index loc(#loc4)
    %c4 = arith.constant 4 : index loc("quote \" ) in name"(#loc4))
    %c1 = arith.constant 1 : index loc(fused<#di>["a.py":1:1])
    scf.for %i = %c0 to %c4 step %c1 {
      %v = memref.load %arg0[%i] : memref<16xf32> loc(#loc5)
      memref.store %v, %arg1[%i] : memref<4xf32> loc(#loc5)
    } loc(#loc6)
    linalg.generic {indexing_maps = [#map, #map], iterator_types = ["parallel"]} ins(%arg1 : memref<4xf32>) outs(%arg1 : memref<4xf32>) {
    ^bb0(%in: f32 loc(#loc5), %out: f32 loc("q")):
      %s = arith.addf %in, %in : f32 loc(#loc1)
      linalg.yield %s : f32 loc(#loc1)
    } loc(#loc6)
    linalg.map ins(%arg1 : memref<4xf32>) outs(%arg1 : memref<4xf32>) (%in: f32 loc("q":1:1), %init: f32 loc("z")) {
      %s = arith.addf %in, %in : f32 loc(#loc1)
      linalg.yield %s : f32 loc(#loc1)
    } loc(#loc6)
    air.launch (%lx) in (%ls=%c1) args(%a=%arg0) : memref<16xf32> {
      air.segment @s args(%b=%a) : memref<16xf32> {
        %k = arith.constant 1 : index loc(#loc)
        air.herd @h tile (%x, %y) in (%sx=%k, %sy=%k) args(%c=%b) : memref<16xf32> {
          %m = memref.alloc() : memref<4xf32, 2> loc(#loc3)
          %z = arith.constant 0.0 : f32 loc(#loc3)
          linalg.fill ins(%z : f32) outs(%m : memref<4xf32, 2>) loc(#loc3)
          memref.dealloc %m : memref<4xf32, 2> loc(#loc3)
        } loc(#loc8)
      } loc(#loc8)
    } loc(#loc8)
    return loc(#loc7)
  } loc(#loc1)
} loc(#loc)
#loc = loc("../cases/x.mlir":0:0)
#loc1 = loc(fused<#loc2>[#loc3])
#loc2 = loc("n"(#loc3))
#loc3 = loc(unknown)
#loc4 = loc(callsite(#loc2 at #loc3))
#loc5 = loc(fused[#loc2, #loc3])
#loc6 = loc("../cases/x.mlir":4:3)
#loc7 = loc("../cases/x.mlir":5:3 to 6:7)
"""


def _without_locations(text: str) -> str:
    """The text without aliases of locations, and without every `loc(...)`, however deep its parentheses go."""
    lines = [line for line in text.splitlines() if not re.match(r"#loc\d* = ", line)]
    text, inner = "\n".join(lines), r"(?:\"(?:\\.|[^\"\\])*\"|[^()\"])"
    for _ in range(4):
        inner = rf"(?:{inner}|\({inner}*\))"
    return re.sub(rf" loc\({inner}*\)", "", text)


def test_a_text_with_locations_is_the_text_without() -> None:
    assert print_module(parse(TEXT)) == print_module(parse(_without_locations(TEXT)))


def test_an_operation_has_its_line() -> None:
    loads = [op for op in parse(TEXT, "a.mlir").walk() if op.name == "memref.load"]
    line = next(n for n, text in enumerate(TEXT.splitlines(), 1) if "memref.load" in text)
    assert [location(op) for op in loads] == [f"a.mlir:{line}:7"]
    with pytest.raises(AirParseError, match="this location has no closing parenthesis"):
        parse('func.func @f() { return } loc(fused["a"')


def test_a_channel_without_a_size_is_a_single_one() -> None:
    forms = ("air.channel @c", "air.channel @c []", '"air.channel"() <{sym_name = "c"}> : () -> ()')
    assert len({print_module(parse(form)) for form in forms}) == 1
    use = """
      func.func @f(%a: memref<4xf32>) {
        %c0 = arith.constant 0 : index
        air.channel.put @c[%c0, %c0, %c0] (%a[] [] []) : (memref<4xf32>)
        air.channel.get @c[] (%a[] [] []) : (memref<4xf32>)
        return
      }"""
    parse(f"air.channel @c {use}")
    with pytest.raises(AirParseError, match="index 2 is 1: @c has 1 there, use 0 to 0"):
        parse("air.channel @c" + use.replace("%c0, %c0, %c0]", "%c0, %c0, 1]"))


def test_lines_and_columns_count_from_one() -> None:
    module = parse("func.func private @f()\n  func.func private @g()", "a.mlir")
    assert [location(op) for op in module.ops] == ["a.mlir:1:1", "a.mlir:2:3"]


PLACES = r"""
func.func @f() {
  %a = arith.constant 0 : index loc("k.py":12:7)
  %b = arith.constant 0 : index loc(#loc2)
  %c = arith.constant 0 : index loc(callsite("f"("in.py":3:4 to :9) at "out.py":1:1))
  %d = arith.constant 0 : index loc(fused<"CSE">[unknown, #loc1, "z.py":9:9])
  %e = arith.constant 0 : index loc(unknown)
  %g = arith.constant 0 : index loc("x.py":0:0)
  %h = arith.constant 0 : index loc(#loop)
  scf.for %i = %a to %b step %c {
    %s = arith.constant 0 : index loc("in \"):1:1 body.py":20:1)
  } loc("loop.py":5:6)
  scf.for %i = %a to %b step %c {
    %t = arith.constant 0 : index loc("body.py":21:1)
  }
  return
}
#loc1 = loc("a.py":4:5)
#loc2 = loc("name"(#loc1))
#loop = loc(fused[#loop, #loop2])
#loop2 = loc(#loop)
"""


def test_the_places_of_the_source():
    assert source_places(PLACES) == {
        3: "k.py:12:7",
        4: "a.py:4:5",
        5: "in.py:3:4",
        6: "a.py:4:5",
        10: "loop.py:5:6",
        11: 'in \\"):1:1 body.py:20:1',
        14: "body.py:21:1",
    }
    assert source_places("func.func @f() {\n  return\n}\n") == {}
    with pytest.raises(AirParseError, match="operation loc is not known"):
        source_places("loc(")
