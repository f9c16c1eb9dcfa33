"""Products of weights in blocks: the bits that the same kernel gives for these weights in bf16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aerie.device import NPU2, check
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.kernels import all_kernels, gemm, gemm_rows, gemv
from aerie.kernel_builder.quantised_tiles import choose_row_tiles
from aerie.kernel_builder.spec import Array
from aerie.kernel_builder.testing import run
from aerie.kernel_builder.weight_blocks import Q4, Q8, WEIGHT_BLOCKS, quantise
from aerie.virtual_npu.options import BuildOptions

BF16 = ml_dtypes.bfloat16
SHAPES: list[Any] = [
    ("gemv", {"m": 96, "k": 576}),
    ("gemm_rows", {"m": 8, "k": 320, "n": 64}),
    ("gemm", {"m": 64, "k": 512, "n": 96, "b_transposed": True}),
]
SHAPES += [
    pytest.param(name, shape, marks=pytest.mark.slow)
    for name, shape in [
        ("gemv", {"m": 192, "k": 896}),
        ("gemv", {"m": 64, "k": 8192}),
        ("gemv", {"m": 32, "k": 64}),
        ("gemm_rows", {"m": 32, "k": 2048, "n": 512}),
        ("gemm_rows", {"m": 24, "k": 64, "n": 32}),
        ("gemm", {"m": 64, "k": 896, "n": 576, "b_transposed": True}),
        ("gemm", {"m": 128, "k": 768, "n": 256, "b_transposed": True}),
        ("gemm", {"m": 8, "k": 128, "n": 32, "b_transposed": True}),
    ]
]


def both(
    name: str, kind: str, shape: dict[str, Any], scale: float = 1.0, options: BuildOptions | None = None
) -> tuple[Array, Array]:
    """The results by blocks, and by the same weights in bf16."""
    rng, spec = np.random.default_rng(7), all_kernels()[name]
    rows, columns = (shape["m"], shape["k"]) if name == "gemv" else (shape["n"], shape["k"])
    weights = (rng.standard_normal((rows, columns)) * scale).astype(np.float32)
    grouped = quantise(weights, WEIGHT_BLOCKS[kind])
    x = rng.standard_normal((shape["k"],) if name == "gemv" else (shape["m"], shape["k"])).astype(BF16)
    x[..., 3] = 0
    weight, other = ("weight", "x") if name == "gemv" else ("b", "a")
    results = [
        run(spec.build(**shape, weight=each), {weight: array, other: x}, options)
        for each, array in ((kind, grouped.pack()), ("bf16", grouped.to_bf16()))
    ]
    (blocks,), (plain,) = (result.values() for result in results)
    return blocks, plain


@pytest.mark.parametrize("kind", WEIGHT_BLOCKS)
@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_blocks_give_the_bits_of_their_weights(name: str, shape: dict[str, Any], kind: str) -> None:
    blocks, plain = both(name, kind, shape)
    assert blocks.tobytes() == plain.tobytes()
    assert np.isfinite(plain.astype(np.float32)).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-30])
def test_the_smallest_weights_are_no_zeros(scale: float) -> None:
    """Instructions for bf16 take numbers below 2^-126 for zero."""
    blocks, plain = both("gemv", "q4", {"m": 96, "k": 576}, scale)
    assert blocks.tobytes() == plain.tobytes()
    assert plain.astype(np.float32).any()


@pytest.mark.parametrize("kind", WEIGHT_BLOCKS)
@pytest.mark.parametrize("shape", [{"m": 8, "k": 256, "n": 64}, {"m": 16, "k": 576, "n": 96}])
def test_few_rows_of_the_smallest_weights(shape: dict[str, Any], kind: str) -> None:
    """Blocks that the CPU's own instructions do not unpack; a call unpacks 64 or 192 columns."""
    blocks, plain = both("gemm_rows", kind, shape, 1e-37)
    assert blocks.tobytes() == plain.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), SHAPES[:3])
def test_vectors_of_the_api_give_the_same_bits(name: str, shape: dict[str, Any]) -> None:
    """Without fast paths the C++ on the AIE API runs as it stands."""
    blocks, _ = both(name, "q4", shape, options=BuildOptions(checks=True))
    fast, _ = both(name, "q4", shape)
    assert blocks.tobytes() == fast.tobytes()


@pytest.mark.parametrize("kind", WEIGHT_BLOCKS)
@pytest.mark.parametrize("width", [576, 896, 1536, 2048, 3072, 4864, 8192])
def test_the_array_has_room_for_models(width: int, kind: str) -> None:
    """k and n of SmolLM2-135M, Qwen2.5-0.5B, Llama-3.2-1B and 3B."""
    check(gemv.build(width, width, weight=kind).module).raise_faults()
    check(gemm_rows.build(32, width, width, weight=kind).module).raise_faults()
    check(gemm.build(512, width, width, b_transposed=True, weight=kind).module).raise_faults()


def test_few_rows_of_blocks_go_to_few_cores() -> None:
    tiles = choose_row_tiles(8, 576, 192, Q4, NPU2, {})
    assert (tiles.herd_x * tiles.herd_y, tiles.tile_n) == (6, 32)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: gemv.build(64, 64, weight="q5"), "weight='q5' is no kind of a weight, .* bf16, q4, q8"),
        (lambda: gemv.build(48, 64, weight="q4"), "m=48 is no positive multiple of 32 .*use 32 or 64"),
        (lambda: gemv.build(64, 96, weight="q4"), "k=96 is no positive multiple of 64"),
        (lambda: gemv.build(64, 64, tile_m=8, weight="q4"), "tile_m, m_input and k_piece cut rows"),
        (lambda: gemv.build(96, 64, herd_m=2, weight="q4"), "herd_m=2 cores cannot share 3 rows .* use 3"),
        (lambda: gemv.build(96, 64, herd_y=4, weight="q4"), "herd_y=4 rows of cores cannot share 3 .* use 3"),
        (
            lambda: gemv.build(1024, 8192, herd_y=4, weight="q4"),
            "a row of blocks for each of herd_y=4 cores .* take 655616 bytes of a memtile, which has 524288",
        ),
        (
            lambda: gemv.build(32 * 2 * 257, 64, herd_y=2, herd_m=1, weight="q4"),
            "1x2 cores make 257 points of 514 rows of blocks, and a launch has at most 255; use herd_y=1",
        ),
        (
            lambda: gemv.build(64, 64, herd_y=2),
            "herd_y=2 rows of cores would wait, .* give a weight in blocks",
        ),
        (lambda: gemv.build(32, 32768, weight="q8"), "x of k=32768 .* use a k of at most 14"),
        (lambda: gemm.build(8, 64, 32, weight="q4"), "packed from .n, k., .* give b_transposed=True"),
        (
            lambda: gemm.build(8, 64, 32, tile_k_l1=8, b_transposed=True, weight="q4"),
            "tile_k_l1 and tile_k_l2 cut K",
        ),
        (
            lambda: gemm.build(8, 64, 512, tile_n=512, herd_n=1, b_transposed=True, weight="q8"),
            "beside blocks of q8 for 64 columns take .* use tile_n=32",
        ),
        (lambda: gemm_rows.build(8, 64, 40, weight="q4"), "n=40 is no positive multiple of 32"),
        (lambda: gemm_rows.build(40, 64, 32, weight="q4"), "m=40 rows, and a core holds at most 32"),
        (
            lambda: gemm_rows.build(8, 64, 32 * 257, weight="q4"),
            "n makes 257 blocks, a launch has at most 255 in one direction; pad n",
        ),
    ],
)
def test_refusals(build: Any, message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        build()


def test_quantising_reaches_the_extremes() -> None:
    weights = np.linspace(-1, 1, 64, dtype=np.float32)[None]
    for block in (Q4, Q8):
        grouped = quantise(weights, block)
        least, greatest = block.code_range
        assert grouped.codes.min() >= least
        assert grouped.codes.max() == greatest
        error = np.abs(grouped.to_bf16().astype(np.float32) - weights)
        assert error.max() <= 0.6 * grouped.scales.astype(np.float32).max() + 2**-8
