"""The functions that kernels declare in MLIR and those that their C++ sources define: one list of arguments.

mlir-aie lowers core functions with bare pointers: a buffer arrives as its address alone, an i32 as itself.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdsl.dialects.func import FuncOp

from aerie.air_dialect.parser_printer import parse
from tests.kernels_cc.declarations import Declared, complaints, declared, defined
from tests.kernels_cc.host_compiler import KERNELS


def test_declarations_and_definitions_agree() -> None:
    assert len(declared()) > 20
    if found := complaints(sorted(KERNELS.glob("*.cc")), declared()):
        pytest.fail("\n".join(found), pytrace=False)


def test_every_definition_is_declared_by_a_kernel_or_known_to_stand_by() -> None:
    """linalg_fill_bf16 serves programs that clear first; our own GEMV does not."""
    called = {(d.source, d.name) for d in declared()}
    for source in KERNELS.glob("*.cc"):
        names = set(defined(source.read_text())) - {name for file, name in called if file == source.name}
        for name in names - {"linalg_fill_bf16"}:
            pytest.fail(
                f"kernels_cc/{source.name}: no kernel calls {name} at any of its cases; add a case that "
                "does, or take the function away",
                pytrace=False,
            )


def test_functions_are_found_in_either_style() -> None:
    block = 'extern "C" {\nvoid f(const bfloat16* __restrict x,\n  int32_t n) {\n}\nvoid g(float *y) {}\n}\n'
    single = 'static void help(int n) {}\nextern "C" void f(const bfloat16 *x, int32_t n) {\n}\n'
    assert defined(block) == {"f": ["bfloat16*", "int32_t"], "g": ["float*"]}
    assert defined(single) == {"f": ["bfloat16*", "int32_t"]}


def declaration(types: str) -> Declared:
    (op,) = (op for op in parse(f"func.func private @f({types})").walk() if isinstance(op, FuncOp))
    return Declared("k", "f", "f.cc", "f", tuple(op.function_type.inputs))


@pytest.mark.parametrize(
    ("text", "types", "sentence"),
    [
        (
            'extern "C" void f(float* x) {',
            "memref<8xbf16, 2 : i32>",
            r"passes memref<8xbf16.* `float\*`",
        ),
        ('extern "C" void f(int64_t n) {', "i32", "passes i32 to f where kernels_cc/f.cc takes `int64_t`; "),
        ('extern "C" void f(int32_t n) {', "index", "passes index to f"),
        ('extern "C" void f(float n) {', "f32", r"passes f32 .* comes as a macro \(defines=\)"),
        (
            'extern "C" void f(int32_t n) {',
            "i32, i32",
            r"with 2 arguments \(i32, i32\), .* 1 \(int32_t\)",
        ),
        (
            "void f(int32_t n) {}",
            "i32",
            r"defines no function; write `extern \"C\" void f\(",
        ),
        (None, "i32", "calls f of kernels_cc/f.cc, which is not there; save it under that name"),
    ],
)
def test_mismatched_signatures_are_reported(
    tmp_path: Path, text: str | None, types: str, sentence: str
) -> None:
    sources = [tmp_path / "f.cc"] if text else []
    for path in sources:
        path.write_text(text or "")
    (found,) = complaints(sources, [declaration(types)])
    assert re.search(sentence, found), found


def test_an_uncalled_source_is_reported(tmp_path: Path) -> None:
    (tmp_path / "g.cc").write_text('extern "C" void g(int32_t n) {}')
    (found,) = complaints([tmp_path / "g.cc"], [])
    assert found.startswith(
        "kernels_cc/g.cc: no kernel calls it at any of its cases; declare its function in"
    )
