"""The kernels of few rows and of rows that continue a cache: the bits that a prompt in one pass gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aerie.device import check
from aerie.kernel_builder.arguments import IllegalShapeError, pack_bits
from aerie.kernel_builder.dsl import bf16
from aerie.kernel_builder.gemm_tiles import choose_row_tiles
from aerie.kernel_builder.kernels import block_attention, cached_attention, flash_attention, gemm, gemm_rows
from aerie.kernel_builder.kernels.cached_attention import unpack_mask
from aerie.kernel_builder.spec import Array
from aerie.kernel_builder.testing import run

HEADS, KV_HEADS, DIM = 4, 2, 64


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(bf16.numpy)


# ---- products ----


@pytest.mark.parametrize("m", [8, 16, 32])
def test_a_row_has_the_bits_it_has_in_a_prefill(m: int) -> None:
    k, n = 256, 512
    a, b = normal(1, 64, k), normal(2, n, k)
    prefill = run(gemm.build(64, k, n, b_transposed=True), {"a": a, "b": b})["c"]
    assert run(gemm_rows.build(m, k, n), {"a": a[:m], "b": b})["c"].tobytes() == prefill[:m].tobytes()


@pytest.mark.parametrize(
    ("shape", "cores", "tile_n"),
    [
        ((8, 2048, 2048), (8, 4), 64),
        ((8, 2048, 8192), (8, 4), 64),
        ((8, 2048, 512), (8, 2), 32),  # four sums in a core before more cores
        ((32, 2048, 512), (8, 4), 16),
        ((8, 896, 128), (4, 1), 32),
    ],
)
def test_the_whole_array_shares_the_columns(
    shape: tuple[int, int, int], cores: tuple[int, int], tile_n: int
) -> None:
    tiles = choose_row_tiles(*shape)
    assert ((tiles.herd_x, tiles.herd_y), tiles.tile_n) == (cores, tile_n)
    check(gemm_rows.build(*shape).module).raise_faults()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"m": 40}, "m=40 rows, and a core holds at most 32 beside its weights; use 32, or gemm"),
        ({"m": 9}, "m=9 is no positive multiple of 8"),
        ({"herd_x": 3}, "3x1 cores cannot share n=256 in tiles of 8 on an array of 8x4; use 8x1"),
        (
            {"n": 8 * 257},
            "n=2056 makes 257 blocks of 8, a launch has at most 255; pad n to a multiple of 256",
        ),
        ({"tile_k_l1": 1024, "k": 1024}, "use at most 8x64x64"),
        ({"tile_n": 96}, "n=256 is no positive multiple of 96"),
    ],
)
def test_refusals_of_a_product_of_rows(given: dict[str, Any], message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        gemm_rows.build(**{"m": 8, "k": 256, "n": 256, **given})


# ---- attention ----


def attend(n: int, arrays: Mapping[str, Array], seen: Array, **cut: Any) -> Array:
    """Rows of queries against a cache, each over what it sees."""
    m = arrays["k"].shape[1]
    kernel = cached_attention.build(n, m, HEADS, KV_HEADS, DIM, **cut)
    return run(kernel, {**arrays, "mask": pack_bits(seen)})["out"]


def causal(first: int, rows: int, positions: int) -> Array:
    """What rows see that stand from position `first` on."""
    return np.asarray(np.arange(positions)[None, :] <= first + np.arange(rows)[:, None])


def cache_of(length: int, beyond: float = np.nan, positions: int = 256) -> dict[str, Array]:
    """Keys and values of `length` positions, and what is stale behind them."""
    kept = {name: normal(seed, KV_HEADS, positions, DIM) for name, seed in (("k", 3), ("v", 4))}
    for array in kept.values():
        array[:, length:] = beyond
    return kept


def test_a_prompt_at_once_has_the_bits_of_flash_attention() -> None:
    q, cache = normal(5, 256, HEADS * DIM), cache_of(256)
    as_rows = {name: array.swapaxes(0, 1).reshape(256, -1) for name, array in cache.items()}
    want = run(flash_attention.build(256, 256, HEADS, KV_HEADS, DIM), {"q": q, **as_rows})["out"]
    assert attend(256, {"q": q, **cache}, causal(0, 256, 256)).tobytes() == want.tobytes()


def test_chunks_and_a_larger_cache_and_other_tiles_change_no_bit() -> None:
    """The rows from 120 on: 64 of them at once, 8, and 8 against a cache of 512, or cut otherwise."""
    q = normal(6, 64, HEADS * DIM)
    whole = attend(64, {"q": q, **cache_of(184)}, causal(120, 64, 256))
    eight = {"q": q[:8], **cache_of(128)}
    wide = cache_of(128, positions=512)
    wide["k"][:, :128], wide["v"][:, :128] = eight["k"][:, :128], eight["v"][:, :128]
    parts = [
        attend(8, eight, causal(120, 8, 256)),
        attend(8, {"q": q[:8], **wide}, causal(120, 8, 512)),
        attend(8, eight, causal(120, 8, 256), heads=1),
        attend(8, eight, causal(120, 8, 256), positions=4),
    ]
    assert {part.tobytes() for part in parts} == {whole[:8].tobytes()}


def test_masked_positions_change_no_bit() -> None:
    """Stale rows in the middle of a tile and beyond it, NaN or anything else; a row that sees nothing."""
    q, seen = normal(7, 8, HEADS * DIM), causal(96, 8, 256)
    seen[:, 10:30], seen[7] = False, False
    results = []
    for beyond in (np.nan, np.inf, 3.0):
        cache = cache_of(104, beyond)
        for array in cache.values():
            array[:, 10:30] = beyond
        results.append(attend(8, {"q": q, **cache}, seen))
    assert len({result.tobytes() for result in results}) == 1
    assert not results[0][7].any()
    assert np.isfinite(results[0].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("n", "n_heads", "herd"),
    [
        (8, 2, "1 x 4"),
        (16, 2, "4 x 4"),
        (8, 4, "4 x 4"),
        (16, 6, "4 x 4"),
        (24, 6, "6 x 4"),
        (64, 1, "4 x 4"),
    ],
)
def test_a_herd_has_one_column_or_as_many_as_rows(n: int, n_heads: int, herd: str) -> None:
    """Of two columns of four rows mlir-air makes a wrong program."""
    module = cached_attention.build(n, 512, n_heads, 1, DIM)
    assert cores_of(module.text) == herd


@pytest.mark.parametrize(("block", "n_heads", "herd"), [(8, 2, "1 x 4"), (8, 4, "4 x 4"), (32, 2, "8 x 4")])
def test_a_herd_of_a_blocks_attention_too(block: int, n_heads: int, herd: str) -> None:
    module = block_attention.build(0, 1, 1, block, 512, n_heads, 1, DIM)
    assert cores_of(module.text) == herd


def cores_of(text: str) -> str:
    """Columns and rows of the herd of attention."""
    names = re.search(r"@attention_herd tile .*? in \(%\w+=(%\w+), %\w+=(%\w+)\)", text)
    assert names
    sizes = (re.search(rf"{name} = arith.constant (\d+) ", text) for name in names.groups())
    return " x ".join(size[1] for size in sizes if size)


def test_a_mask_is_a_bit_for_each_position() -> None:
    seen = np.random.default_rng(8).random((3, 96)) < 0.5
    assert pack_bits(seen).shape == (3, 3)
    np.testing.assert_array_equal(unpack_mask(pack_bits(seen)), seen)
    assert pack_bits(causal(0, 2, 32)).tolist() == [[1], [3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"m": 100}, "m=100 is no positive multiple of 64"),
        (
            {"m": 320},
            "m=320 is no positive multiple of 256 .a K/V tile for each row of cores.; use 256 or 512",
        ),
        ({"n": 0}, "n=0 is no positive multiple of 1"),
        ({"n": 3, "n_heads": 2}, "use an n that is a multiple of 8, and a head_dim of at most"),
        (
            {"heads": 3},
            "with heads=3 make no tile of a multiple of 8 rows that fits .*; use heads=2 positions=8",
        ),
        ({"n": 8 * 8 * 257}, "blocks of .* rows, a launch has at most 255 trips; use an n of at most"),
        ({"m": 65536}, "m=65536 makes 256 tiles of 64 keys for each of 4 rows .* use an m of at most 65280"),
        ({"num_stages": 5}, "num_stages=5 rows of cores, the array has 4; use 1 to 4"),
        ({"n_heads": 3}, "every KV head serves as many query heads"),
    ],
)
def test_refusals_of_attention_to_a_cache(given: dict[str, Any], message: str) -> None:
    shape = {"n": 8, "m": 256, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "head_dim": DIM}
    with pytest.raises(IllegalShapeError, match=message):
        cached_attention.build(**{**shape, **given})
