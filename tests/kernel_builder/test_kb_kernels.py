"""The MLIR-only kernels: shapes they refuse, and tiles they choose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_builder.arguments import IllegalShapeError
from kernel_builder.kernels import eltwise_add, gemm, registry, rms_norm
from kernel_builder.spec import Tolerance
from kernel_builder.testing import library, random_arrays
from virtual_npu import toolchain
from virtual_npu.static import check


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: eltwise_add.build(8, 40), r"cols=40 is no positive multiple of 16 .*; use 32 or 48"),
        (lambda: eltwise_add.build(8, 8), r"cols=8 is no positive multiple of 16 .*; use 16"),
        (lambda: eltwise_add.build(8, 16.0), "cols=16.0 is no whole number; use a multiple of 16"),
        (lambda: eltwise_add.build(0, 16), "eltwise_add: 0 rows leave nothing to do; use at least 1"),
        (lambda: eltwise_add.build(6, 16, herd_x=4), r"4 cores \(herd_x\) cannot share 6 rows .*; use 6"),
        (lambda: eltwise_add.build(None, 48, herd_x=8), "cannot share 3 blocks of 16 elements .*; use 3"),
        (lambda: eltwise_add.build(16, 16, herd_x=16), r"16 cores \(herd_x\) .* in 8 columns; use 8"),
        (lambda: rms_norm.build(8, 100), r"cols=100 is no positive multiple of 16 .*; use 96 or 112"),
        (lambda: rms_norm.build(8, 10752), "cols=10752 does not fit L1, .* use at most 10560"),
        (lambda: rms_norm.build(9, 64, herd_x=8), "8 cores .* cannot share 9 rows .*; use 3"),
        (lambda: gemm.build(60, 64, 64), "m=60 is no positive multiple of 8 .*; use 56 or 64"),
        (lambda: gemm.build(64, 4, 64), "k=4 is no positive multiple of 8 .*; use 8"),
        (lambda: gemm.build(64, 64, -8), "n=-8 is no positive multiple of 8 .*; use 8"),
        (lambda: gemm.build(64, 64, 64, tile_m=12), "tile_m=12 is no positive multiple of 8 .*; use 8 or 16"),
        (lambda: gemm.build(64, 64, 64, tile_m=24), "m=64 is no positive multiple of 24 .*; use 48 or 72"),
        (lambda: gemm.build(64, 64, 64, herd_m=3), "m=64 is no positive multiple of 24 .*; use 48 or 72"),
        (lambda: gemm.build(128, 64, 64, herd_m=16), "herd_m=16, but npu2 has 8; use 1 to 8"),
        (lambda: gemm.build(64, 64, 64, herd_n=8), "herd_n=8, but npu2 has 4; use 1 to 4"),
        (lambda: gemm.build(64, 64, 64, tile_k_l2=48), "k=64 is no positive multiple of 48 .*; use 48 or 96"),
        (
            lambda: gemm.build(64, 64, 64, tile_k_l2=32, tile_k_l1=24),
            "tile_k_l2=32 is no positive multiple of 24",
        ),
        (
            lambda: gemm.build(2056, 8, 8),
            "m=2056 makes 257 blocks of 8, a launch has at most 255 .*; use 2048",
        ),
        (lambda: gemm.build(8, 8, 31936), "n=31936 makes 499 blocks of 64, .* at most 255 .*; use 31944"),
        (
            lambda: gemm.build(4096, 8, 8, tile_m=8, herd_m=1),
            "m=4096 makes 512 blocks of 8, .*; let the tiles be chosen",
        ),
        (
            lambda: gemm.build(512, 512, 512, tile_m=64, tile_n=128),
            "tiles 64x32x128 take 73728 bytes of L1, 63488 are free on a core; use at most 32x32x128",
        ),
        (
            lambda: gemm.build(256, 8192, 512, tile_k_l2=4096),
            "tile_k_l2=4096 takes 12845056 bytes of L2, npu2 has 4194304; use at most 256",
        ),
    ],
)
def test_illegal_shapes_are_refused(build, message: str) -> None:
    with pytest.raises(IllegalShapeError, match=message):
        build()


@pytest.mark.parametrize(
    "shape", [(2048, 2048, 2048), (2048, 2048, 512), (2048, 2048, 8192), (2048, 8192, 2048)]
)
def test_gemm_tiles_of_full_size_shapes(shape: tuple[int, int, int]) -> None:
    tiles = gemm.choose_tiles(*shape)
    assert (tiles.tile_m, tiles.tile_k_l2, tiles.tile_k_l1, tiles.tile_n) == (32, 256, 32, 128)
    assert (tiles.herd_m, tiles.herd_n) == (8, 4)


@pytest.mark.parametrize("rows", [None, 16])
@pytest.mark.parametrize("cols", [6336, 6352, 8192, 10560])
def test_long_norms_fit(rows: int | None, cols: int) -> None:
    """The longest row that goes whole, the next longer one, and the longest of all."""
    check(rms_norm.build(rows, cols).module).require()


@pytest.mark.parametrize("seed", range(4))
def test_gemm_takes_multiples_of_8(seed: int) -> None:
    """Multiples of 8 fit the device by default tiles, or are refused and the nearest that do are named."""
    rng = np.random.default_rng(seed)
    for most in [40, 600, 5000] * 8:
        m, k, n = (8 * int(rng.integers(1, most)) for _ in range(3))
        legal_m, legal_n = gemm.nearest(m, 8, gemm.serves_rows), gemm.nearest(n, 8, gemm.serves_columns)
        if (m, n) != (legal_m, legal_n):
            with pytest.raises(IllegalShapeError, match=f"use ({legal_m}|{legal_n})$"):
                gemm.build(m, k, n)
        check(gemm.build(legal_m, k, legal_n).module).require()


def test_gemm_k_tiles_depend_on_k_alone() -> None:
    for k in (64, 256, 768, 2048, 40):
        chosen = {gemm.choose_tiles(m, k, 256) for m in (64, 128, 512, 8)}
        assert len({(t.tile_k_l1, t.tile_k_l2) for t in chosen}) == 1


@pytest.mark.parametrize("name", ["eltwise_add", "rms_norm", "gemm"])
def test_random_cases_are_legal_and_fit(name: str) -> None:
    spec = registry()[name]
    rng = np.random.default_rng(7)
    for _ in range(15):
        check(spec.build(**spec.random_case(rng)).module).require()


def test_registry_finds_every_file() -> None:
    files = {path.stem for path in Path(gemm.__file__).parent.glob("*.py")} - {"__init__"}
    assert {"eltwise_add", "rms_norm", "gemm"} <= files
    assert set(registry()) == files


def test_tolerance_counts_in_allowed_distances() -> None:
    tolerance = Tolerance(0.1, 1.0, "for the test")
    want = np.array([10.0, 0.0])
    assert tolerance.excess(np.array([12.0, 0.0]), want) == pytest.approx(1.0)
    assert tolerance.excess(np.array([10.0, np.nan]), want) == np.inf
    assert tolerance.excess(want, np.array([np.nan, 0.0])) == np.inf
    assert tolerance.excess(want, np.array([np.inf, 0.0])) == np.inf
    assert tolerance.excess(np.array([np.inf, np.nan]), np.array([np.inf, np.nan])) == 0
    exact = Tolerance(0.0, 0.0, "for the test")
    assert exact.excess(want, want) == 0
    assert exact.excess(want + 1e-9, want) > 1


def test_tolerance_counts_differing_elements() -> None:
    few = Tolerance(1.0, 1.0, "for the test", differing=0.1)
    want = np.ones(100)
    assert few.excess(want + (np.arange(100) < 12) * 0.5, want) == pytest.approx(1.0)
    assert few.excess(want + (np.arange(100) < 13) * 0.5, want) > 1


WRONG = {
    "eltwise_add": lambda x: {**x, "b": x["b"] * 1.01},
    "rms_norm": lambda x: {**x, "x": np.concatenate([x["x"][:, :-1], x["x"][:, :1]], axis=1)},
    "gemm": lambda x: {**x, "b": np.concatenate([x["b"][:-1], np.zeros_like(x["b"][:1])])},
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_slightly_wrong_result_is_noticed(name: str) -> None:
    """One of 256 products left out, one element of a norm swapped, a factor of 1.01: all beyond tolerance."""
    spec = registry()[name]
    arrays = random_arrays(spec, spec.cases[0], np.random.default_rng(0))
    right = spec.reference(spec.cases[0], arrays)
    wrong = spec.reference(spec.cases[0], WRONG[name](arrays))
    assert all(spec.tolerance.excess(wrong[out], right[out]) > 1 for out in right)


def test_a_kernel_is_built_once_and_kept(monkeypatch, tmp_path):
    """Also for the next process: nothing of it is in this one."""
    monkeypatch.setenv("VNPU_CACHE", str(tmp_path))
    kernel = eltwise_add.build(None, 16)
    library(kernel)
    monkeypatch.setattr(toolchain, "build", None)  # would be called
    assert library(kernel).path.parent == tmp_path
