"""GEMV: what it refuses, what it chooses, and that products of different shapes stand in one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_builder.arguments import IllegalShapeError
from kernel_builder.kernels import gemv
from kernel_builder.testing import random_arrays, run
from virtual_npu.static import check

REFUSED = [
    ({"m": 256, "k": 100}, r"gemv: k=100 is no positive multiple of 64 .*; use 64 or 128"),
    ({"m": 255, "k": 128}, r"gemv: m=255 is no positive multiple of 2 .*; use 254 or 256"),
    ({"m": 36, "k": 64, "herd_m": 8}, r"herd_m=8 cores cannot share m=36 rows in even numbers .*; use 6"),
    ({"m": 256, "k": 64, "herd_m": 16}, r"herd_m=16 cores cannot share m=256 rows .* 8 columns; use 8"),
    ({"m": 256, "k": 64, "tile_m": 3}, r"tile_m=3 is no even divisor of the 32 rows of a core; use 8"),
    ({"m": 256, "k": 64, "m_input": 3}, r"m_input=3 does not divide tile_m=8; use 8"),
    ({"m": 256, "k": 8192, "m_input": 4}, r"takes 147488 bytes of L1, a core has 63488; use m_input=1"),
    ({"m": 256, "k": 32000}, r"x of k=32000 elements leaves no room in L1 .* use a k of at most 31424"),
    ({"m": 256, "k": 768, "k_piece": 96}, r"k_piece=96 is no divisor of k=768 .* of 64; use 768"),
    ({"m": 256, "k": 768, "k_piece": 512}, r"k_piece=512 is no divisor of k=768 .* of 64; use 768"),
    ({"m": 256, "k": 768, "k_piece": 0}, r"k_piece=0 is no divisor of k=768"),
    (
        {"m": 256, "k": 768, "k_piece": 384, "m_input": 2},
        r"m_input=2 rows at a time come whole, and k_piece=384 is less .*; use m_input=1, or k_piece=768",
    ),
    (
        {"m": 256, "k": 14336, "k_piece": 14336},
        r"k=14336 in pieces of k_piece=14336 takes 86048 bytes of L1, .* use k_piece=7168",
    ),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_illegal_shapes_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        gemv.build(**parameters)


@pytest.mark.parametrize("k", [10560, 10624, 31424])
def test_the_longest_rows_are_legal(k: int) -> None:
    """The longest that fits whole, the next longer one, and the longest beside which a piece fits."""
    check(gemv.build(256, k).module).require()


@pytest.mark.parametrize(
    ("k", "piece"), [(8192, 8192), (10560, 10560), (10624, 5312), (11008, 5504), (14336, 7168), (28672, 1024)]
)
def test_rows_that_do_not_fit_come_in_pieces(k: int, piece: int) -> None:
    assert gemv.build(64, k).text == gemv.build(64, k, m_input=1, k_piece=piece).text
    assert ("mv_pieces.cc" in gemv.build(64, k).text) == (piece < k)


@pytest.mark.parametrize("m", [128, 256, 512, 768, 1024, 2048, 8192, 16032])
@pytest.mark.parametrize("k", [256, 768, 2048, 8192, 11008, 14336, 28672])
def test_shapes_of_the_models_fit_the_device(m: int, k: int) -> None:
    check(gemv.build(m, k).module).require()


def test_products_of_one_k_share_a_symbol_and_others_do_not() -> None:
    def symbol(m: int, k: int) -> str:
        return gemv.build(m, k).text.split("@")[1].split("(")[0]

    assert symbol(256, 2048) == symbol(8192, 2048)
    assert len({symbol(256, 256), symbol(256, 768), symbol(256, 2048)}) == 3
    assert 'link_source = "mv.cc"' in gemv.build(256, 256).text


def test_random_cases_fit() -> None:
    rng = np.random.default_rng(7)
    for _ in range(15):
        check(gemv.build(**gemv.random_case(rng)).module).require()


def test_result_does_not_depend_on_tiles_or_cores() -> None:
    """The sum over k has one order, whatever the tiles."""
    arrays = random_arrays(gemv.KERNEL, {"m": 64, "k": 512}, np.random.default_rng(1))
    plain = run(gemv.build(64, 512), arrays)["out"]
    other = run(gemv.build(64, 512, tile_m=4, m_input=2, herd_m=2), arrays)["out"]
    assert plain.tobytes() == other.tobytes()
    for piece in (64, 128, 256):
        in_pieces = run(gemv.build(64, 512, k_piece=piece), arrays)["out"]
        assert plain.tobytes() == in_pieces.tobytes()


def test_a_wrong_row_is_noticed() -> None:
    arrays = random_arrays(gemv.KERNEL, {"m": 64, "k": 512}, np.random.default_rng(1))
    got = run(gemv.build(64, 512), arrays)["out"]
    arrays["weight"][[3, 4]] = arrays["weight"][[4, 3]]
    assert gemv.KERNEL.tolerance.excess(got, gemv.reference({}, arrays)["out"]) > 1
