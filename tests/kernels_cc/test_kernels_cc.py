"""The C++ kernels, function by function, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
Array = np.ndarray[Any, Any]
Q, KV, D = 32, 64, 64
EMPTY_MAX = np.float32(-1e30)


@pytest.fixture(scope="module")
def mv(build_cc: Any, kernels_folder: Path) -> Any:
    renamed = {
        "DIM_M_OUTPUT": 2,
        "matvec_vectorized_bf16_bf16": "dg_matvec_vectorized_bf16_bf16",
        "linalg_fill_bf16": "dg_linalg_fill_bf16",
    }
    return build_cc(kernels_folder / "mv.cc"), build_cc(kernels_folder / "mv.cc", renamed)


@pytest.fixture(scope="module")
def attn(build_cc: Any, kernels_folder: Path) -> Any:
    return build_cc(kernels_folder / "attn_npu2.cc")


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def f32(array: Array) -> Array:
    return array.astype(np.float32)


def test_gemv_writes_its_rows_only(mv: Any) -> None:
    plain, _ = mv
    w, x, y = normal(4, 768), normal(768, seed=1), np.full(16, 7, BF16)
    plain.matvec_vectorized_bf16_bf16(4, 768, 8, w, x, y)
    np.testing.assert_allclose(f32(y[8:12]), f32(w) @ f32(x), rtol=2**-8)
    assert (y[:8] == 7).all()
    assert (y[12:] == 7).all()


def test_gemv_builds_twice_with_other_symbols(mv: Any) -> None:
    plain, renamed = mv
    w, x = normal(2, 256), normal(256, seed=1)
    one, two = np.ones(16, BF16), np.ones(16, BF16)
    plain.matvec_vectorized_bf16_bf16(2, 256, 0, w, x, one)
    renamed.dg_matvec_vectorized_bf16_bf16(2, 256, 0, w, x, two)
    np.testing.assert_array_equal(one, two)
    plain.linalg_fill_bf16(one)
    renamed.dg_linalg_fill_bf16(two)
    assert list(np.flatnonzero(one == 0)) == list(range(8))
    assert list(np.flatnonzero(two == 0)) == list(range(2))
    with pytest.raises(AttributeError):
        _ = renamed.matvec_vectorized_bf16_bf16


@pytest.mark.parametrize("cuts", [(768,), (64, 704), (256, 256, 256), (64,) * 12])
def test_gemv_in_pieces_has_the_bits_of_whole_rows(
    mv: Any, build_cc: Any, kernels_folder: Path, cuts: tuple[int, ...]
) -> None:
    pieces = build_cc(kernels_folder / "mv_pieces.cc")
    w, x, sums = normal(768), normal(768, seed=1), np.full(64, np.nan, np.float32)
    whole, out = np.full(4, 7, BF16), np.full(4, 7, BF16)
    mv[0].matvec_vectorized_bf16_bf16(1, 768, 2, w, x, whole)
    first = 0
    for piece in cuts:
        pieces.matvec_piece_bf16_f32(piece, first, w[first : first + piece].copy(), x, sums)
        first += piece
    pieces.matvec_row_f32_bf16(2, sums, out)
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize("count", [1, 6])
def test_blocks_are_turned_in_place(build_cc: Any, kernels_folder: Path, count: int) -> None:
    """Every block, no more than that, and bit for bit, NaN included."""
    turn = build_cc(
        kernels_folder / "transpose_blocks.cc", {"TRANSPOSED_BLOCKS": count}
    ).transpose_blocks_bf16
    before = np.random.default_rng(0).integers(0, 1 << 16, (count + 1, 8, 8)).astype(np.uint16)
    after = before.copy()
    turn(after)
    np.testing.assert_array_equal(after[:count], before[:count].swapaxes(1, 2))
    np.testing.assert_array_equal(after[count], before[count])


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_rope_turns_halves_of_a_head(build_cc: Any, kernels_folder: Path, head_dim: int) -> None:
    rope = build_cc(kernels_folder / "rope_halfsplit.cc").rope
    half = head_dim // 2
    angle = np.random.default_rng(2).uniform(-3, 3, half)
    lut = np.r_[np.cos(angle), np.sin(angle)].astype(BF16)
    x, out = normal(3, head_dim), np.zeros((3, head_dim), BF16)
    rope(x, lut, out, 3, head_dim)
    cos, sin, first, second = f32(lut[:half]), f32(lut[half:]), f32(x[:, :half]), f32(x[:, half:])
    expected = np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=1)
    np.testing.assert_allclose(f32(out), expected, rtol=2**-8, atol=1e-6)
    interleaved = np.stack([x[:, ::2] * cos - x[:, 1::2] * sin, x[:, ::2] * sin + x[:, 1::2] * cos], -1)
    assert np.abs(f32(out) - interleaved.reshape(3, head_dim).astype(np.float32)).max() > 0.5


@pytest.fixture(scope="module")
def bf16_gates() -> Array:
    """Every finite bf16 of magnitude up to 80, and a few less: whole vectors."""
    bits = np.arange(65536, dtype=np.uint16).view(BF16)
    gate = bits[np.abs(np.nan_to_num(f32(bits), nan=1e9)) <= 80][: 33000 // 16 * 16]
    return np.sort(f32(gate)).astype(BF16)[: gate.size // 16 * 16]


@pytest.fixture(scope="module")
def silu_of_all_bf16(build_cc: Any, kernels_folder: Path, bf16_gates: Array) -> tuple[Array, Array]:
    """Gates, and the kernel's silu of them (up = 1)."""
    gate, out = bf16_gates, np.zeros(bf16_gates.size, BF16)
    build_cc(kernels_folder / "silu_and_mul.cc").silu_and_mul_bf16(gate, np.ones_like(gate), out, gate.size)
    return gate, out


def test_silu_is_accurate_for_every_gate(silu_of_all_bf16: tuple[Array, Array]) -> None:
    gate, out = silu_of_all_bf16
    g = gate.astype(np.float64)
    exact = g / (1 + np.exp(-g))
    seen = np.abs(exact) > 1e-35
    error = np.abs(out.astype(np.float64) - exact)[seen] / np.abs(exact[seen])
    assert error.max() < 2.0**-7
    assert np.mean(out[seen] != exact[seen].astype(BF16)) < 0.02


def test_silu_of_negative_gates_keeps_its_sign_and_size(silu_of_all_bf16: tuple[Array, Array]) -> None:
    """A sigmoid made of a bf16 tanh is 0 or far off below -5 or so."""
    gate, out = silu_of_all_bf16
    negative = (f32(gate) < -1) & (f32(gate) > -60)
    assert (f32(out[negative]) < 0).all()


def test_silu_rounds_before_it_multiplies(build_cc: Any, kernels_folder: Path) -> None:
    gate, up, out = normal(1024), normal(1024, seed=1), np.zeros(1024, BF16)
    build_cc(kernels_folder / "silu_and_mul.cc").silu_and_mul_bf16(gate, up, out, 1024)
    silu = (f32(gate) / (1 + np.exp(-f32(gate)))).astype(BF16)
    expected = (f32(silu) * f32(up)).astype(BF16)
    assert np.mean(out != expected) < 0.15
    np.testing.assert_allclose(f32(out), f32(expected), rtol=2**-6)


def test_gelu_is_accurate_for_every_gate(build_cc: Any, kernels_folder: Path, bf16_gates: Array) -> None:
    gate, out = bf16_gates, np.zeros(bf16_gates.size, BF16)
    source = build_cc(kernels_folder / "silu_and_mul.cc", {"GELU": 1})
    source.silu_and_mul_bf16(gate, np.ones_like(gate), out, gate.size)
    g = gate.astype(np.float64)
    exact = g / (1 + np.exp(-np.sqrt(8 / np.pi) * (g + 0.044715 * g**3)))
    seen = np.abs(exact) > 1e-35
    error = np.abs(out.astype(np.float64) - exact)[seen] / np.abs(exact[seen])
    assert error.max() < 2.0**-7
    assert np.mean(out[seen] != exact[seen].astype(BF16)) < 0.02
    assert np.abs(f32(out)[~seen]).max() < 2e-35


def panels(tile: Array) -> Array:
    rows, cols = tile.shape
    return np.ascontiguousarray(tile.reshape(rows, cols // 8, 8).transpose(1, 0, 2)).ravel()


def from_panels(flat: Array, rows: int) -> Array:
    return flat.reshape(-1, rows, 8).transpose(1, 0, 2).reshape(rows, -1)


class Tile:
    """One tile of Q rows going through K and V tiles by the functions of the kernel."""

    def __init__(self, attn: Any, q: Array, first_q: int = 0) -> None:
        self.attn, self.q, self.first_q, self.rows = attn, q, first_q, len(q)
        self.acc, self.stats = np.ones(q.size, np.float32), np.ones(4 * self.rows, np.float32)
        attn.attn_init(self.acc, self.stats)

    def see(self, k: Array, v: Array, first_k: int | None = None) -> Tile:
        scores, p = np.zeros(self.rows * len(k), np.float32), np.zeros(self.rows * len(k), BF16)
        self.attn.attn_scores(panels(self.q), panels(k), scores)
        if first_k is not None:
            self.attn.attn_causal_mask(scores, self.first_q, first_k)
        self.attn.attn_softmax(scores, p, self.stats, self.acc)
        self.attn.attn_values(p, panels(v), self.acc)
        return self

    def merge(self, other: Tile) -> Tile:
        self.attn.attn_merge(other.acc.copy(), other.stats, self.acc, self.stats)
        return self

    def state(self) -> bytes:
        return self.acc.tobytes() + self.stats[: 2 * self.rows].tobytes()

    def result(self) -> Array:
        out = np.zeros(self.q.size, BF16)
        self.attn.attn_store(self.acc, self.stats, out)
        return f32(from_panels(out, self.rows))


def attention(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float64)


def test_scores_are_q_times_k_transposed(attn: Any) -> None:
    q, k, scores = normal(Q, D), normal(KV, D, seed=1), np.zeros(Q * KV, np.float32)
    attn.attn_scores(panels(q), panels(k), scores)
    np.testing.assert_allclose(from_panels(scores, Q), f32(q) @ f32(k).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("first_q", "first_k"), [(0, 0), (64, 0), (0, 32), (32, 0), (40, 37), (0, 64)])
def test_causal_mask_hides_the_future_only(attn: Any, first_q: int, first_k: int) -> None:
    scores = f32(normal(Q, KV))
    flat = panels(scores)
    attn.attn_causal_mask(flat, first_q, first_k)
    seen = first_k + np.arange(KV)[None, :] <= first_q + np.arange(Q)[:, None]
    np.testing.assert_array_equal(from_panels(flat, Q), np.where(seen, scores, np.float32(-3e38)))


@pytest.mark.parametrize("scale", [0.1, 1.0, 6.0])
def test_online_softmax_over_tiles(attn: Any, scale: float) -> None:
    """Three tiles, with maxima that rise and fall, against softmax over all of them at once."""
    q = (f32(normal(Q, D)) * scale).astype(BF16)
    k, v = normal(3 * KV, D, seed=1), normal(3 * KV, D, seed=2)
    tile = Tile(attn, q)
    for first in (0, KV, 2 * KV):
        tile.see(k[first : first + KV], v[first : first + KV])
    np.testing.assert_allclose(tile.result(), attention(q, k, v), atol=0.02)


def test_merging_an_empty_partial_changes_no_bit(attn: Any) -> None:
    q, k, v = normal(Q, D), normal(KV, D, seed=1), normal(KV, D, seed=2)
    full = Tile(attn, q).see(k, v)
    before = full.state()
    assert full.merge(Tile(attn, q)).state() == before
    assert Tile(attn, q).merge(full).state() == before
    empty = Tile(attn, q)
    assert empty.merge(Tile(attn, q)).state() == Tile(attn, q).state()
    assert (empty.stats[:Q] == EMPTY_MAX).all()
    assert (empty.result() == 0).all()


def test_a_wholly_hidden_tile_changes_no_bit(attn: Any) -> None:
    q, k, v = normal(Q, D), normal(KV, D, seed=1), normal(KV, D, seed=2)
    tile = Tile(attn, q, first_q=KV).see(k, v)
    before = tile.state()
    assert tile.see(k, v, first_k=1000).state() == before
    assert Tile(attn, q).see(k, v, first_k=1000).state() == Tile(attn, q).state()


def test_merged_partials_are_the_whole(attn: Any) -> None:
    q, k, v = normal(Q, D), normal(2 * KV, D, seed=1), normal(2 * KV, D, seed=2)
    first, second = Tile(attn, q, KV).see(k[:KV], v[:KV], 0), Tile(attn, q, KV).see(k[KV:], v[KV:], KV)
    mask = np.arange(2 * KV)[None, :] <= KV + np.arange(Q)[:, None]
    np.testing.assert_allclose(first.merge(second).result(), attention(q, k, v, mask), atol=0.02)


@pytest.mark.parametrize(("rows", "keys", "dim"), [(8, 8, 8), (8, 16, 32), (24, 32, 128), (16, 40, 96)])
def test_other_tile_sizes(build_cc: Any, kernels_folder: Path, rows: int, keys: int, dim: int) -> None:
    """Two causal tiles, merged; every access aligned."""
    defines = {"ATTN_Q_ROWS": rows, "ATTN_KV_ROWS": keys, "ATTN_HEAD_DIM": dim}
    attn = build_cc(kernels_folder / "attn_npu2.cc", defines)
    q, k, v = normal(rows, dim), normal(2 * keys, dim, seed=1), normal(2 * keys, dim, seed=2)
    first, second = Tile(attn, q, keys).see(k[:keys], v[:keys], 0), Tile(attn, q, keys)
    second.see(k[keys:], v[keys:], keys)
    mask = np.arange(2 * keys)[None, :] <= keys + np.arange(rows)[:, None]
    np.testing.assert_allclose(first.merge(second).result(), attention(q, k, v, mask), atol=0.02)


@pytest.mark.parametrize(
    ("macro", "value", "text"),
    [
        ("ATTN_Q_ROWS", 12, "ATTN_Q_ROWS must be a multiple of 8, the rows of a matrix block"),
        ("ATTN_KV_ROWS", 20, "ATTN_KV_ROWS must be a multiple of 8, the columns of a matrix block"),
        ("ATTN_HEAD_DIM", 60, "ATTN_HEAD_DIM must be a multiple of 8, the columns of a matrix block"),
    ],
)
def test_illegal_tiles_are_refused(
    compile_cc: Callable[..., Any], kernels_folder: Path, tmp_path: Path, macro: str, value: int, text: str
) -> None:
    done = compile_cc(
        kernels_folder / "attn_npu2.cc", tmp_path / "none", "-fsyntax-only", f"-D{macro}={value}"
    )
    assert text in done.stderr
