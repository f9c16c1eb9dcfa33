# ruff: noqa: E501 - MLIR has long lines
"""Names, messages and lines of programs as C++: any of them, everywhere a program can have one."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from aerie import virtual_npu
from aerie.common import shown_names
from aerie.virtual_npu import cpp_quoting

KEYWORDS = """
alignas and asm auto bool break class co_await co_return const constexpr default delete do double
else enum explicit export extern false float for friend goto if inline int long namespace new not nullptr
operator private public register reinterpret_cast requires return short signed sizeof static struct switch
template this thread_local throw true try typedef typeid union unsigned using virtual void volatile while xor
linux unix NULL INT64_MAX vnpu v channels task_loop arguments flat where sequencer arena main memcpy
""".split()  # noqa: SIM905 - a list of so many is no easier to read
PIECES = ["a", "b", "_", "x", "2e", "_x2e_", ".", "-", "$", "7"]
WILD = [*PIECES, '"', "\\", "\n", "\r", "\t", "\0", "*/", "/*", "//", "??/", "??'", "%s%n", "{}", ")json\"", "é", "中",
        "\u202e", "\u2028", "\U0001f600", " ", "'", "#", "@", "\x7f", "\\\n"]  # fmt: skip


def drawn(seed: int, count: int, pieces: list[str] = WILD) -> list[str]:
    """So many different names, keywords and long ones among them."""
    source = random.Random(seed)
    names = {"".join(source.choices(pieces, k=source.randint(1, 8))) for _ in range(count)}
    long = ["a" * 3999 + end for end in ("b", "c")] + [pieces[-1] * 4000]
    return [*sorted(names), *KEYWORDS, *long]


def unescaped(literal: str) -> str:
    """The text that C++ makes of a string literal with simple escapes."""
    assert re.fullmatch(r'"([ -~])*"', literal)
    assert "??" not in literal
    found = re.sub(
        rb'\\([0-7]{3}|["\\])',
        lambda m: bytes([int(m[1], 8)]) if len(m[1]) == 3 else m[1],
        literal[1:-1].encode(),
    )
    return found.decode()


def test_names_become_identifiers_each_its_own():
    names = drawn(1, 3000) + drawn(2, 3000, PIECES)
    names = [*sorted(set(names)), ""]
    made = [cpp_quoting.mangled(name) for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch(r"\w*", name, re.ASCII) and len(name) <= 200 for name in made)
    assert len({shown_names.display_name(name) for name in names}) == len(names)
    for name in names:
        local = cpp_quoting.local_name(name)
        assert re.fullmatch(r"v|v_\w+", local, re.ASCII)
        assert cpp_quoting.local_name(local) == local or not name
        assert re.fullmatch("[ -~]+", shown_names.symbol_name(name))
        assert len(shown_names.symbol_name(name)) < 120


def test_what_is_plain_stays_readable():
    assert cpp_quoting.mangled("herd_0") == "herd_0"
    assert cpp_quoting.mangled("a.b") == "a_x2e_b"
    assert shown_names.symbol_name("my.kernel-1") == "@my.kernel-1"
    assert shown_names.symbol_name('a"\n') == r'@"a\"\0A"'
    assert cpp_quoting.local_name("sum") == "v_sum"


def test_texts_become_literals_and_comments():
    for text in drawn(3, 2000):
        assert unescaped(cpp_quoting.string_literal(text)) == text
        line = cpp_quoting.line_comment(text)
        assert "\n" not in line
        assert line.isprintable()
        assert not line.rstrip().endswith(("\\", "??/"))


# One function: every place where a program has a name. out = 2 * in, by way of a global, a channel and a tile.
FUNCTION = """
  memref.global "private" @{g} : memref<4xf32> = dense<2.0> // {line}
  air.channel @{c} [1, 1] // {line}
  func.func private @{p}(%{s}: f32, %{s}_0: f32) -> f32 {{ // {line}
    %{s}_size = arith.mulf %{s}, %{s}_0 : f32 // {line}
    return %{s}_size : f32 // {line}
  }}
  func.func @{f}(%{s}: memref<4xf32>, %out: memref<4xf32>) attributes {{{a} = {note}}} {{ // {line}
    %k = memref.get_global @{g} : memref<4xf32> // {line}
    %c0 = arith.constant 0 : index // {line}
    %holds = arith.constant true // {line}
    cf.assert %holds, {note} // {line}
    %two = memref.load %k[%c0] : memref<4xf32> // {line}
    air.launch @{h} () in () args(%{s}1=%{s}, %o=%out, %t=%two) : memref<4xf32>, memref<4xf32>, f32 {{ // {line}
      %z = arith.constant 0 : index // {line}
      air.channel.put @{c}[%z, %z] (%{s}1[] [] []) : (memref<4xf32>) // {line}
      air.channel.get @{c}back[%z, %z] (%o[] [] []) : (memref<4xf32>) // {line}
      air.segment @{h} args(%t1=%t) : f32 {{ // {line}
        %one = arith.constant 1 : index // {line}
        air.herd @{h} tile (%x, %y) in (%{s}=%one, %ny=%one) args(%t2=%t1) : f32 {{ // {line}
          %zero = arith.constant 0 : index // {line}
          %step = arith.constant 1 : index // {line}
          %{s}9 = arith.constant 4 : index // {line}
          %{s}8 = memref.alloc() : memref<4xf32, 2> // {line}
          air.channel.get @{c}[%zero, %zero] (%{s}8[] [] []) : (memref<4xf32, 2>) // {line}
          scf.for %{s}7 = %zero to %{s}9 step %step {{ // {line}
            %element = memref.load %{s}8[%{s}7] : memref<4xf32, 2> // {line}
            %w = func.call @{p}(%element, %t2) : (f32, f32) -> f32 // {line}
            memref.store %w, %{s}8[%{s}7] : memref<4xf32, 2> loc({note}) // {line}
          }} // {line}
          air.channel.put @{c}back[%zero, %zero] (%{s}8[] [] []) : (memref<4xf32, 2>) // {line}
          memref.dealloc %{s}8 : memref<4xf32, 2> // {line}
        }} // {line}
      }} // {line}
    }} // {line}
    return
  }}
"""
BACK = "  air.channel @{c}back [1, 1]\n"
ENDS = ["\\", "\\ \\", "??/", "\\ ", "*/ \\"]


def in_quotes(text: str) -> str:
    """A string of MLIR: bytes that are not plain as two hexadecimal digits."""
    return (
        '"'
        + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode())
        + '"'
    )


def function(number: int, name: str, local: str) -> str:
    kinds = {kind: in_quotes(f"{kind}{number}{name}") for kind in "gcpfh"}
    text = (FUNCTION + BACK).replace("@{c}back", "@{back}")
    back = in_quotes(f"back{number}{name}")
    return text.format(
        **kinds,
        back=back,
        s=local,
        a=f"note_{number}",
        note=in_quotes(name),
        line=f"{name!r} {ENDS[number % len(ENDS)]}",
    )


@pytest.mark.parametrize("checks", [False, True], ids=["fast", "checks"])
def test_names_change_no_result(program, run, checks):
    names = [*random.Random(5).sample(drawn(6, 60), 3), "a.b", "a_b", "a" * 4000, '"); x(']
    locals_ = [*random.Random(7).sample(KEYWORDS, 4), "a.b", "v_", "a" * 300]
    text = "module {" + "".join(map(function, range(7), names, locals_)) + "}"
    library = program(text, options=virtual_npu.BuildOptions(checks=checks))
    assert list(library.entries) == [f"f{number}{name}" for number, name in enumerate(names)]
    given = np.arange(4, dtype=np.float32)
    for entry in library.entries:
        np.testing.assert_array_equal(run(library, entry, given, np.zeros_like(given))[1], 2 * given)
