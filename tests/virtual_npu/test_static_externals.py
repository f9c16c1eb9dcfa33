"""Static check: C++ functions without a declaration, an object file, a source, or a definition in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerie.device import check
from aerie.device.rules.constants import constant_bytes
from aerie.kernel_builder.kernels import cached_attention
from tests.virtual_npu.static_texts import assert_clean, assert_fault, assert_warning, program

CALL = "%b = memref.alloc() : memref<64xbf16, 2>\nfunc.call @k(%b) : (memref<64xbf16, 2>) -> ()"
DEFINITION = 'extern "C" void k(bfloat16 *x) { x[0] = bfloat16(0.0f); }\n'


def declared(attributes: str = "") -> str:
    """A program that calls @k, with these attributes of its declaration."""
    given = f"attributes {{{attributes}}}" if attributes else ""
    return program(CALL, module=f"func.func private @k(memref<64xbf16, 2>) {given}")


LINKED = declared('link_with = "k.o"')

DEFINED = {
    "a declaration": DEFINITION,
    "a block": 'namespace { void k(int) {} }\nextern "C" {\n#define S "}"\nvoid k(short *x) {}\n}\n',
    "a header": '#include "body.h"\n',
    "pasted together": '#define NAME(x) x##_\nextern "C" void NAME(k)() {}\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "body.h").write_text(DEFINITION)
    return tmp_path


@pytest.mark.parametrize("name", DEFINED)
def test_sources_that_define_it(name: str, folder: Path) -> None:
    (folder / "k.cc").write_text(DEFINED[name])
    assert_clean(LINKED, kernel_dirs=[folder])


def test_a_macro_renames_it(folder: Path) -> None:
    (folder / "k.cc").write_text(DEFINITION.replace(" k(", " work("))
    assert_clean(declared('link_with = "k.o", link_defines = "N=8 work=k"'), kernel_dirs=[folder])
    assert_fault(LINKED, "external", "k.cc does not define it", kernel_dirs=[folder])


def test_a_source_of_another_name(folder: Path) -> None:
    (folder / "other.cc").write_text(DEFINITION)
    assert_clean(declared('link_with = "k.o", link_source = "other.cc"'), kernel_dirs=[folder])


def test_the_object_of_the_herd(folder: Path) -> None:
    (folder / "h.cc").write_text(DEFINITION)
    text = program(
        CALL, module="func.func private @k(memref<64xbf16, 2>)", herd_attributes='link_with = "h.o"'
    )
    assert_clean(text, kernel_dirs=[folder])


UNDEFINED = {
    "without C linkage": (
        "void k(bfloat16 *x) {}\n",
        "func.call: f/0/s/h: @k links with k.o, but k.cc does not define it as extern .C., so its sym",
    ),
    "under another name": (
        DEFINITION.replace(" k(", " l("),
        "but k.cc does not define it; name a function that is there, or add it",
    ),
    "in a comment": ("// " + DEFINITION, "but k.cc does not define it; "),
    "as part of a name": (DEFINITION.replace(" k(", " my_k("), "but k.cc does not define it; "),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_sources_that_do_not_define_it(name: str, folder: Path) -> None:
    source, message = UNDEFINED[name]
    (folder / "k.cc").write_text(source)
    assert_fault(LINKED, "external", message, kernel_dirs=[folder])


def test_no_object() -> None:
    message = (
        r"@k has no body and no link_with; declare it with attributes .link_with = .k.o.. .mlir-air AIRTo"
    )
    assert_fault(declared(), "external", message)


def test_no_source(tmp_path: Path) -> None:
    message = (
        f"@k links with k.o, but k.cc is in none of: {tmp_path}, .*kernels_cc; put it there, name its fol"
    )
    assert_fault(LINKED, "external", message, kernel_dirs=[tmp_path])


def test_a_function_is_reported_once() -> None:
    text = program(f"{CALL}\n{CALL.partition(chr(10))[2]}", module="func.func private @k(memref<64xbf16, 2>)")
    assert len(check(text).faults) == 1


def test_an_uncalled_function_is_not_needed() -> None:
    assert_clean(program(module="func.func private @k(memref<64xbf16, 2>)"))


def test_functions_with_a_body_need_no_object() -> None:
    assert_clean(program(CALL, module="func.func private @k(%x: memref<64xbf16, 2>) { return }"))


def test_a_herd_without_a_body() -> None:
    text = """func.func @f() {
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) attributes {link_with = "nowhere.o"}
      return
    }"""
    assert_fault(
        text, "external", "air.herd: f/h: it links with nowhere.o, but nowhere.cc is in none of: .*ker"
    )


def test_an_index_has_no_established_width(folder: Path) -> None:
    (folder / "k.cc").write_text(DEFINITION)
    text = program(
        "func.call @k(%c1) : (index) -> ()",
        module='func.func private @k(index) attributes {link_with = "k.o"}',
    )
    message = "@k takes an index, whose width on a core is not established; pass i32"
    assert_warning(text, "index-argument", message, kernel_dirs=[folder])


def test_a_text_of_llvm_is_merged() -> None:
    assert_fault(declared('link_with = "k.ll"'), "external", "@k links with k.ll, which is no object")


def test_a_symbol_has_one_object(folder: Path) -> None:
    for name in ("h.cc", "g.cc"):
        (folder / name).write_text(DEFINITION)
    other = f'air.herd @g tile (%x, %y) in (%sx=%c1, %sy=%c1) attributes {{link_with = "g.o"}} {{\n{CALL}\n}}'
    text = program(
        CALL,
        segment=other,
        module="func.func private @k(memref<64xbf16, 2>)",
        herd_attributes='link_with = "h.o"',
    )
    message = "@k links with g.o and with h.o; give each variant a name of its own"
    assert_fault(text, "external", message, kernel_dirs=[folder])


def test_an_object_has_one_source(folder: Path) -> None:
    (folder / "k.cc").write_text(DEFINITION)
    again = 'func.func private @l() attributes {link_with = "k.o", link_defines = "N=8"}\n'
    message = "@l and @k link with k.o, made of k.cc N=8 and of k.cc; name another object for one"
    assert_fault(again + LINKED, "external", message, kernel_dirs=[folder])


# ---- constants of C++ objects in a core's L1 ----

ROOM = {(64, 14, 2, 64): 1152, (128, 16, 8, 128): 2816, (64, 9, 3, 64): 3328}
"""The largest run of L1 that mlir-aie's addresses left a core of cached attention: of Qwen2.5-0.5B, of
Qwen3-0.6B with 128 rows, of SmolLM2-135M, by rows, heads, heads of K and V, and head_dim."""


@pytest.mark.parametrize("shape", ROOM, ids=str)
def test_the_room_of_constants(shape: tuple[int, int, int, int]) -> None:
    rows, heads, kv_heads, head_dim = shape
    module = cached_attention.build(rows, 2048, heads, kv_heads, head_dim).module
    report = check(module, stack_bytes=2048)
    (found,) = (usage for usage in report.usages if usage.resource == "constants of C++ objects")
    assert (found.used, found.limit) == (0, ROOM[shape])


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("static const float table[16] = {0};", 64),
        ("alignas(64) static constexpr int16_t table[4][8] = {};", 64),
        ("constexpr unsigned n = 12;\nstatic const bfloat16 table[n] = {};", 24),
        ("#define ROWS 5\nconst uint8_t table[ROWS] = {};", 5),
        ("static const int table[SIZE] = {};", 28),
        ("static const double table[] = {1, 2, 3};", 24),
        ("// static const int table[99] = {};\nint table[99];", 0),
        ("void f(const float *table) { float copy[9]; }", 0),
    ],
)
def test_constants_that_a_source_shows(source: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "k.cc"
    path.write_text(source)
    assert constant_bytes(path, "SIZE=7") == size


def test_constants_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text('static const int table[8192] = {};\nextern "C" void k(int *b) {}')
    text = program(
        "%b = memref.alloc() : memref<8192xi32, 2>\nfunc.call @k(%b) : (memref<8192xi32, 2>) -> ()",
        module='func.func private @k(memref<8192xi32, 2>) attributes {link_with = "k.o"}',
    )
    message = "show 32768 bytes of constant arrays; buffers and stack leave 31744 in a row of a core's L1"
    (warning,) = (
        found for found in check(text, kernel_dirs=[tmp_path]).warnings if found.kind == "constants"
    )
    assert message in str(warning)
