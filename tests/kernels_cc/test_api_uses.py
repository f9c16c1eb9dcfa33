"""kernels_cc/aie_api_uses.json against the sources that call the AIE API, and against the host API."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.kernels_cc.api_uses import calls, use
from tests.kernels_cc.declarations import sources_of_programs
from tests.kernels_cc.host_compiler import KERNELS

TABLE = json.loads((KERNELS / "aie_api_uses.json").read_text())
SOURCES = sorted(KERNELS.glob("*.cc"))
TYPES = {"vector", "accum", "mask", "mmul", "rounding_mode"}
INCLUDES = {"<cstdint>", "<aie_api/aie.hpp>"}
Compile = Callable[..., CompletedProcess[str]]


def text_of(source: Path) -> str:
    """A source without its comments."""
    return re.sub(r"//[^\n]*", "", source.read_text())


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, set[str]]]:
    """For each source every form of every function that it calls, its own functions left out."""
    folder = tmp_path_factory.mktemp("uses")
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for source in SOURCES:
        for call in calls(source, folder):
            function, form = use(call)
            found[source.name][function].add(form)
    return found


def test_every_call_of_a_program_has_a_row_and_every_row_a_call(used: dict[str, dict[str, set[str]]]) -> None:
    """For the six programs the table says of every call where AIE2P has it."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources_of_programs():
        for function, forms in used[source].items():
            found[function] |= forms
    assert dict(found) == {row["function"]: set(row["forms"]) for row in TABLE["uses"]}, (
        "kernels_cc/aie_api_uses.json lists what programs call of the AIE API: give it a row for each "
        "function, and a form for each call, that is only on the left; take away what is only on the right"
    )


def test_no_source_calls_what_aie2p_is_not_known_to_have(used: dict[str, dict[str, set[str]]]) -> None:
    known = set(TABLE["host_offers"]) | {row["function"] for row in TABLE["uses"]}
    for source, functions in used.items():
        for name in (f for f in functions if f not in known and f.partition("::")[0] not in TYPES):
            pytest.fail(
                f"kernels_cc/{source} calls {name}, which is no part of the AIE API that is known to be on "
                "AIE2P (host_offers in kernels_cc/aie_api_uses.json); write it with functions of that list",
                pytrace=False,
            )


def test_a_call_that_is_not_in_the_table_is_found(tmp_path: Path) -> None:
    source = tmp_path / "other.cc"
    source.write_text(
        '#include <aie_api/aie.hpp>\n#include <cmath>\nextern "C" void f(float *x) {\n'
        "  *x = std::sqrt(*x); aie::store_v(x, aie::abs(aie::load_v<16>(x))); }\n"
    )
    found = {use(call) for call in calls(source, tmp_path)}
    assert ("abs", "abs(vector<float, 16>)") in found
    assert {function for function, _ in found} == {"abs", "load_v", "std::sqrt", "store_v"}


def test_rows_say_where_upstream_has_it() -> None:
    for row in TABLE["uses"]:
        assert re.search(r"\.h(pp)?\b", row["header"]), row
        assert row["on_aie2p"], row


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_sources_name_nothing_else(source: Path) -> None:
    text = text_of(source)
    unknown = set(re.findall(r"\baie::(\w+)", text)) - set(TABLE["host_offers"]) - TYPES
    included = set(re.findall(r"#\s*include\s*(\S+)", text)) - INCLUDES
    named = [*(f"aie::{name}" for name in unknown), *included, *(["std::"] if "std::" in text else [])]
    if named:
        pytest.fail(
            f"kernels_cc/{source.name} names {', '.join(named)}; a core has no library of C++, so include "
            f"{' and '.join(sorted(INCLUDES))} alone and keep to host_offers in kernels_cc/aie_api_uses.json",
            pytrace=False,
        )


def offered() -> set[str]:
    """The functions in namespace aie of the host API."""
    patterns = (
        r"^(?:AIE_HOST_INLINE|static inline|inline)\s[^;{=(]*?[ *&](\w+)\(",
        r"^vector<TR, N> (\w+)\(",
        r"^AIE_HOST_(?:VECTOR_OP|BIT_OP|COMPARISON)\((\w+),",
    )
    names: set[str] = set()
    for header in (KERNELS / "host" / "aie_api" / "host").glob("*.hpp"):
        if header.name != "native.hpp":  # what stands beside the namespace
            text = re.sub(
                r"\nnamespace host \{.*?\n\}  // namespace host", "", header.read_text(), flags=re.S
            )
            names.update(*(re.findall(pattern, text, re.M) for pattern in patterns))
    return names


def test_the_host_offers_no_function_that_was_not_found_upstream() -> None:
    assert offered() == set(TABLE["host_offers"])
    assert {row["function"] for row in TABLE["uses"] if "::" not in row["function"]} <= offered()


def accepted() -> list[str]:
    """A declaration for every width and shape of the table."""
    return [
        *(f"aie::vector<{t}, {n}> x;" for t, lanes in TABLE["vectors"].items() for n in lanes),
        *(f"aie::accum<{t}, {n}> x;" for t, lanes in TABLE["accums"].items() for n in lanes),
        *(
            f"aie::mmul<{shape.replace('x', ', ')}, {m['a']}, {m['b']}, {m['accumulates']}> x;"
            for m in TABLE["mmul"]
            for shape in m["shapes"]
        ),
    ]


def shapes(a: str, b: str) -> set[str]:
    """The shapes of the table for two types."""
    return {shape for m in TABLE["mmul"] if (m["a"], m["b"]) == (a, b) for shape in m["shapes"]}


def refused() -> list[str]:
    """Widths and shapes beside those of the table, and calls that the API has for other types."""
    pairs = [("bfloat16", "bfloat16"), ("float", "float"), ("int8", "int8"), ("int16", "int16")]
    return [
        *(
            f"aie::vector<{t}, {n}> x;"
            for t, (least, *_) in TABLE["vectors"].items()
            for n in (least // 2, 3 * least)
        ),
        *(
            f"aie::accum<{t}, {n}> x;"
            for t, (least, *_) in TABLE["accums"].items()
            for n in (least // 2, 3 * least)
        ),
        *(f"aie::accum<{t}, {2 * lanes[-1]}> x;" for t, lanes in TABLE["accums"].items()),
        *(
            f"aie::mmul<{m}, {k}, {n}, {a}, {b}> x;"
            for a, b in pairs
            for m, k, n in itertools.product((2, 4, 8), (1, 4, 8, 16), (4, 8))
            if f"{m}x{k}x{n}" not in shapes(a, b)
        ),
        "aie::mmul<4, 8, 4, float, bfloat16> x;",
        "aie::mmul<8, 8, 8, bfloat16, bfloat16, acc32> x;",
        "aie::mmul<8, 8, 8, int8, int8, acc64> x;",
        *REFUSED_CALLS,
    ]


F32, BF16, I16 = (f"(aie::zeros<{t}, 16>())" for t in ("float", "bfloat16", "int16"))
ACC = "(aie::zeros<accfloat, 16>())"
REFUSED_CALLS = [
    f"aie::mul({F32}, {BF16});",
    f"aie::mul({BF16}, 2.0f);",
    f"aie::mul({F32}, 2);",
    "aie::mul((aie::zeros<int8, 16>()), (aie::zeros<int32, 16>()));",
    f"aie::mac({ACC}, {I16}, {I16});",
    f"aie::mac((aie::zeros<accfloat, 32>()), {BF16}, {BF16});",
    f"aie::negmul({BF16}, {F32});",
    f"aie::msc({ACC}, {BF16}, 1.0f);",
    f"aie::add({F32}, 1);",
    f"aie::add({F32}, 1.0);",
    f"aie::add({ACC}, 1);",
    f"aie::sub({BF16}, 1.0f);",
    f"aie::max({F32}, {BF16});",
    f"aie::max({BF16}, 0.0f);",
    f"aie::lt({BF16}, 0.0f);",
    f"aie::select({F32}, 0, aie::mask<16>());",
    f"aie::select({F32}, {F32}, aie::mask<8>());",
    f"aie::bit_and(0x7fff, {I16});",
    f"aie::bit_and({F32}, {F32});",
    f"aie::clamp({F32}, 0, 1);",
    "aie::mask<8>::from_uint32(0u, 0u);",
    "aie::mask<64>::from_uint32(0u);",
    "aie::mask<16>::from_uint64(0ull);",
    f"aie::exp2<bfloat16>({I16});",
    f"aie::vector<bfloat16, 16> x = {F32};",
    "aie::vector<float, 64> x = (aie::zeros<accfloat, 64>());",
    "AIE_LOOP_UNROLL(4) for (;;) {}",
]


def compile_lines(compile_cc: Compile, folder: Path, lines: list[str]) -> tuple[int, set[int]]:
    """The compiler's status, and which of the lines its errors speak of; all in one run."""
    source = folder / "lines.cc"
    body = "\n".join(f"void f{i}() {{ {line} }}" for i, line in enumerate(lines))
    source.write_text(f"#include <aie_api/aie.hpp>\n{body}\n")
    done = compile_cc(source, folder / "none.o", "-fsyntax-only", "-w", "-fno-diagnostics-show-caret")
    return done.returncode, {int(found) - 2 for found in re.findall(r"lines\.cc:(\d+):", done.stderr)}


def test_the_host_accepts_every_width_and_shape_of_the_table(compile_cc: Compile, tmp_path: Path) -> None:
    assert compile_lines(compile_cc, tmp_path, accepted()) == (0, set())


def test_the_host_accepts_nothing_else(compile_cc: Compile, tmp_path: Path) -> None:
    lines = refused()
    status, named = compile_lines(compile_cc, tmp_path, lines)
    assert status != 0
    assert not [line for i, line in enumerate(lines) if i not in named]


def test_block_products_name_their_accumulators(compile_cc: Compile, tmp_path: Path) -> None:
    lines = [
        f"using B = aie::mmul<{shape.replace('x', ', ')}, {m['a']}, {m['b']}>; "
        f"static_assert(std::is_same_v<B::accum_type::value_type, {m['accumulates']}>);"
        for m in TABLE["mmul"]
        for shape in m["shapes"]
    ]
    assert compile_lines(compile_cc, tmp_path, lines) == (0, set())


def row_of(name: str) -> Any:
    """The row of a function."""
    return next(row for row in TABLE["uses"] if row["function"] == name)


def test_forms_are_those_that_the_notes_rest_on() -> None:
    """Products of floats are emulated and exp2 takes floats: the table would be wrong for other forms."""
    assert all("bfloat16" not in form for form in row_of("exp2")["forms"])
    assert {re.sub(r"\d+", "N", form) for form in row_of("mul")["forms"]} == {
        "mul(vector<bfloatN, N>, vector<bfloatN, N>)",
        "mul(vector<float, N>, vector<float, N>)",
        "mul(vector<float, N>, float)",
    }
