"""out = softmax(q k^T / sqrt(head_dim)) v of new rows against a cache; a mask says which keys a row sees.

The way of tiles through the array is `kernel_builder/attention.py`. A program of this kernel has n rows of
queries and a cache of m positions, and everything else varies from call to call: where the rows stand, what
is in the cache, and, by the mask, what each row sees. So one program serves a prompt in chunks, a single
token, a block of drafts or of diffusion, a window with sinks, or a tree.

- The cache lies heads first, (n_kv_heads, m, head_dim): a K/V tile is one run of memory, and new positions
  are written where they belong; nothing is laid out anew.
- The mask is a bit for each row and position, 1 where it is seen, in words of 32, position 0 lowest
  (`pack_bits`). A core gets the words of its rows for as many K/V tiles at a time as there are stages, by the
  channel of its queries.
- On a K/V tile of which no row of the query tile sees anything, nothing is computed. In a tile that is seen
  in part, values that nobody sees are taken for zeros: whatever a position holds that is not seen, be it NaN,
  it changes no bit of a result. A row that sees nothing at all gives zeros.
- A query tile has `heads` query heads of one KV head at each of its positions, so that keys and values are
  read once for all of them. Row p * heads + h of it is head h at position p.
- A row's result depends on its own query and on what it sees: not on n, on m, or on the rows beside it. Where
  both apply it has the bits of `flash_attention`.

K and V are held once (`--omit-ping-pong-transform=all`), which leaves L1 to the rows of several heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError, pack_bits
from aerie.kernel_builder.attention import (
    MMUL_BLOCK,
    STAGES,
    AttentionCore,
    AttentionKernel,
    AttentionTiles,
    check_heads,
    check_stages,
    check_streams,
    choose_columns,
    declare_functions,
    kv_rows,
)
from aerie.kernel_builder.buffers import Buffer, BufferType, CoreBuffers, View, l1_bytes
from aerie.kernel_builder.dsl import L1, L2, Index, Kernel, Role, bf16, i32
from aerie.kernel_builder.kernels import flash_attention
from aerie.kernel_builder.spec import (
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    divisors,
    require_multiple,
)
from aerie.kernel_builder.values import ArgumentType, ExternalFunction

WORD = 32
"""Positions of a word of the mask."""
MAX_Q_ROWS = 56
"""Most query rows of a core, of all heads together."""
FEW_TILES = 4
"""Query tiles that few rows are divided into if their heads allow it, one column of cores each. On the
virtual NPU four tiles of two positions, one of which is requested, take 0.5 to 0.85 of the time of one of
eight:
nothing is computed for a tile that sees nothing.
"""


@dataclass(frozen=True)
class CachedAttentionShape:
    """Everything that fixes one kernel: elements of its arguments, and how they are cut. See build()."""

    n: int
    m: int
    n_heads: int
    n_kv_heads: int
    heads: int
    tiles: AttentionTiles
    scale: float | None = None

    @property
    def positions(self) -> int:
        """Positions of a query tile."""
        return self.tiles.q_rows // self.heads

    @property
    def tiles_per_stage(self) -> int:
        """K/V tiles of each stage."""
        return self.tiles.kv_tiles // self.tiles.num_stages

    @property
    def words_per_row(self) -> int:
        """Words of a row of the mask for one K/V tile."""
        return self.tiles.lkp // WORD

    @property
    def mask(self) -> BufferType:
        """The mask of a query tile in a core, for one K/V tile of each stage."""
        return L1((self.tiles.num_stages * self.positions * self.words_per_row,), i32)

    @property
    def held(self) -> CoreBuffers:
        """The buffers of a core in L1."""
        return {**self.tiles.held, "l1_mask": (self.mask, 1)}

    def kv_head(self, group: Index) -> Index:
        """The KV head that a group of `heads` query heads reads."""
        return group // (self.n_heads // self.n_kv_heads // self.heads)


def build(
    n: int,
    m: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    heads: int | None = None,
    positions: int | None = None,
    num_stages: int = STAGES,
    scale: float | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """q, out (n, n_heads * head_dim) and k, v (n_kv_heads, m, head_dim) bf16, mask (n, m / 32) i32.

    heads: query heads of one KV head in a query tile; divides n_heads / n_kv_heads. positions: rows of n in a
    query tile; divides n, and heads * positions is a multiple of 8. num_stages: rows of cores that share the
    keys. m is a multiple of the K/V tile (64 rows, 32 where head_dim is above 64), and of one for each stage
    where there are more; 255 of these at most. scale: what scores are multiplied with; None means
    1 / sqrt(head_dim). Raises IllegalShapeError.
    """
    check_heads(KERNEL.name, n_heads, n_kv_heads, head_dim)
    check_stages(KERNEL.name, num_stages, device)
    lkp = kv_rows(head_dim)
    stages = _stages(m, lkp, num_stages)
    heads, positions = _query_tile(n, n_heads // n_kv_heads, head_dim, stages, (heads, positions), device)
    num_q_tiles = choose_columns(n // positions, stages, device)
    check_streams(KERNEL.name, num_q_tiles, stages, device)
    tiles = AttentionTiles(heads * positions, lkp, head_dim, m // lkp, num_q_tiles, stages, kv_copies=1)
    blocks = n // (positions * num_q_tiles)
    if blocks > device.repeat_limit:
        max_positions = device.repeat_limit * positions * device.columns
        raise IllegalShapeError(
            f"cached_attention: n={n} makes {blocks} blocks of {positions * num_q_tiles} rows, a launch has "
            f"at most {device.repeat_limit} trips; use an n of at most {max_positions}"
        )
    shape = CachedAttentionShape(n, m, n_heads, n_kv_heads, heads, tiles, scale)
    if shape.tiles_per_stage > device.repeat_limit:
        raise IllegalShapeError(
            f"cached_attention: m={m} makes {shape.tiles_per_stage} tiles of {lkp} keys for each of "
            f"{stages} rows of cores, and a descriptor repeats at most {device.repeat_limit} times; use an "
            f"m of at most {device.repeat_limit * stages * lkp}"
        )
    return _CachedAttention(shape, device).module(blocks, n_heads // heads)


class _CachedAttention(AttentionKernel):
    """One kernel under construction: the layout of its arguments, and the path of the mask."""

    def __init__(self, shape: CachedAttentionShape, device: DeviceModel) -> None:
        self.shape = s = shape
        k, dim = Kernel(KERNEL.name, device), shape.tiles.head_dim
        self.q = k.argument("q", (s.n, s.n_heads * dim), bf16, Role.INPUT)
        self.k_rows = k.argument("k", (s.n_kv_heads, s.m, dim), bf16, Role.INPUT)
        self.v_rows = k.argument("v", (s.n_kv_heads, s.m, dim), bf16, Role.INPUT)
        self.mask = k.argument("mask", (s.n, s.m // WORD), i32, Role.INPUT)
        self.out = k.argument("out", (s.n, s.n_heads * dim), bf16, Role.OUTPUT)
        super().__init__(k, s.tiles, lambda: _functions(k, s))

    def query_tile(self, buffer: Buffer, block: Index, head: Index, tile: int) -> View:
        first, width = self._first_row(block, tile), self.shape.heads * self.tiles.head_dim
        return buffer[first : first + self.shape.positions, head * width : head * width + width]

    def key_tile(self, buffer: View, _: Index, head: Index, first: Index) -> View:
        return buffer[self.shape.kv_head(head), first : first + self.tiles.lkp, :]

    def _first_row(self, block: Index, tile: int) -> Index:
        return (block * self.tiles.num_q_tiles + tile) * self.shape.positions

    def feed_queries(self, block: Index, head: Index, tile: int) -> None:
        """Send the queries of a tile, and then all mask words of its rows."""
        super().feed_queries(block, head, tile)
        first = self._first_row(block, tile)
        self.k.put(self.q_in[tile], self.mask[first : first + self.shape.positions, :])

    def relay_queries(self, tile: int) -> None:
        """Relay the words in the order stage, row, word, for one K/V tile of each stage at a time."""
        super().relay_queries(tile)
        k, s = self.k, self.shape
        round_words = self.tiles.num_stages * s.words_per_row
        l2_mask = k.alloc(L2, (s.positions, s.m // WORD), i32, "l2_mask")
        k.get(self.q_in[tile], l2_mask)
        for i in k.loop(0, s.tiles_per_stage):
            words = l2_mask[:, i * round_words : i * round_words + round_words]
            by_stage = words.reshape(s.positions, self.tiles.num_stages, s.words_per_row).permute(1, 0, 2)
            k.put(self.q_l1[tile, 0], by_stage)

    def core(self, _: Index, tx: Index, ty: Index) -> AttentionCore:
        return _MaskedCore(self, self.shape, tx, ty)


class _MaskedCore(AttentionCore):
    """A core whose mask says what its rows see."""

    def __init__(self, attention: AttentionKernel, shape: CachedAttentionShape, tx: Index, ty: Index) -> None:
        self.shape = shape
        super().__init__(attention, tx, ty)
        self.mask = self.l1["l1_mask"]

    def held(self) -> CoreBuffers:
        return self.shape.held

    def receive_tiles(self, _: Index) -> None:
        k, channel = self.k, self.attention.kv_l1[self.tx, self.ty]
        k.get(self.attention.q_l1[self.tx, self.ty], self.mask)
        k.get(channel, self.keys)
        self.call["seen_scores"](self.q, self.keys, self.mask, self.ty, self.work)
        k.get(channel, self.values)
        self.call["seen_values"](
            self.work, self.mask, self.ty, self.weights, self.values, self.stats, self.acc
        )


def _functions(k: Kernel, s: CachedAttentionShape) -> dict[str, ExternalFunction]:
    """The functions of attn_npu2.cc for these tiles."""
    names = ("q", "k", "p", "work", "acc", "stats")
    q, kv, p, work, acc, stats = (s.tiles.held[f"l1_{name}"][0] for name in names)
    steps: dict[str, list[ArgumentType]] = {
        "seen_scores": [q, kv, s.mask, i32, work],
        "seen_values": [work, s.mask, i32, p, kv, stats, acc],
    }
    return declare_functions(k, s.tiles, steps, s.heads, scale=s.scale)


def _stages(m: int, lkp: int, max_stages: int) -> int:
    """Rows of cores that share the keys; each has the same number of tiles."""
    require_multiple(KERNEL.name, "m", m, lkp, "the rows of a K/V tile")
    if m // lkp > max_stages:
        require_multiple(KERNEL.name, "m", m, max_stages * lkp, "a K/V tile for each row of cores")
    return min(max_stages, m // lkp)


def _query_tile(
    n: int,
    group: int,
    head_dim: int,
    stages: int,
    requested: tuple[int | None, int | None],
    device: DeviceModel,
) -> tuple[int, int]:
    """Heads and positions of a query tile, as given or chosen: the most heads, then FEW_TILES columns of
    cores or as many as there are, then the most rows, that fit L1. group: query heads of a KV head.
    """

    def best(tile: tuple[int, int]) -> tuple[int, int, int]:
        heads, positions = tile
        return heads, min(choose_columns(n // positions, stages, device), FEW_TILES), positions

    require_multiple(KERNEL.name, "n", n, 1, "there must be a row")
    divisors = itertools.product(*([d for d in range(1, x + 1) if x % d == 0] for x in (group, n)))
    fitting = [
        (heads, positions)
        for heads, positions in divisors
        if heads * positions % MMUL_BLOCK == 0
        and heads * positions <= MAX_Q_ROWS
        and _l1_bytes(heads, positions, head_dim, stages) <= device.l1_budget
    ]
    legal = [each for each in fitting if all(a in (None, b) for a, b in zip(requested, each, strict=True))]
    if legal:
        return max(legal, key=best)
    requested_text = " ".join(
        f"{a}={b}" for a, b in zip(("heads", "positions"), requested, strict=True) if b is not None
    )
    if fitting and requested_text:
        heads, positions = max(fitting, key=best)
        advice = f"use heads={heads} positions={positions}"
    else:
        advice = (
            f"use an n that is a multiple of {MMUL_BLOCK}, and a head_dim of at most {max_head_dim(device)}"
        )
    raise IllegalShapeError(
        f"cached_attention: n={n} rows of {group} query heads for a KV head at "
        f"head_dim={head_dim}{f' with {requested_text}' if requested_text else ''} make no tile of a "
        f"multiple of {MMUL_BLOCK} rows that fits the {device.l1_budget} bytes of a core; {advice}"
    )


def _l1_bytes(heads: int, positions: int, head_dim: int, stages: int) -> int:
    """Bytes of L1 that a core's buffers take."""
    lkp = kv_rows(head_dim)
    tiles = AttentionTiles(heads * positions, lkp, head_dim, stages, 1, stages, kv_copies=1)
    return l1_bytes(CachedAttentionShape(positions, stages * lkp, heads, 1, heads, tiles).held)


def max_head_dim(device: DeviceModel = NPU2) -> int:
    """The largest supported head_dim: 8 rows of one head must fit."""
    fits = itertools.takewhile(
        lambda head_dim: _l1_bytes(1, MMUL_BLOCK, head_dim, STAGES) <= device.l1_budget,
        itertools.count(MMUL_BLOCK, MMUL_BLOCK),
    )
    return max(fits)


def unpack_mask(mask: Array) -> Array:
    """The booleans of a mask: the inverse of `pack_bits`."""
    return np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little").astype(bool)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Attention in f32 with a plain softmax over the visible keys, rounded once to bf16."""
    heads, kv_heads, dim = (parameters[name] for name in ("n_heads", "n_kv_heads", "head_dim"))
    seen, scale = unpack_mask(arrays["mask"]), parameters.get("scale")
    scale = dim**-0.5 if scale is None else scale
    q, k, v = (arrays[name].astype(np.float32) for name in ("q", "k", "v"))
    out = np.zeros((len(q), heads, dim), np.float32)
    for head, row in itertools.product(range(heads), np.flatnonzero(seen.any(axis=1))):
        keys, values = (x[head // (heads // kv_heads), seen[row]] for x in (k, v))
        scores = keys @ q[row, head * dim : (head + 1) * dim] * np.float32(scale)
        weights = np.exp(scores - scores.max())
        out[row, head] = weights @ values / weights.sum()
    return {"out": out.reshape(len(q), heads * dim).astype(bf16.numpy)}


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Rows that continue a cache. Each sees itself, some earlier positions, and nothing stale.

    Positions after the last row have numbers that would show in any result.
    """
    n, m, kv_heads, dim = (parameters[name] for name in ("n", "m", "n_kv_heads", "head_dim"))
    past = int(rng.integers(0, m - n + 1)) if m > n else 0
    q = rng.standard_normal((n, parameters["n_heads"] * dim)).astype(bf16.numpy)
    k, v = (rng.standard_normal((kv_heads, m, dim)).astype(bf16.numpy) for _ in range(2))
    k[:, past + n :], v[:, past + n :] = 3e4, 3e4
    here = past + np.arange(n)[:, None]
    seen = np.arange(m)[None, :] <= here
    seen &= (rng.random((n, m)) < rng.choice([0.3, 1.0])) | (np.arange(m)[None, :] == here)
    return {"q": q, "k": k, "v": v, "mask": pack_bits(seen)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """8 to 64 rows, up to 512 positions, 1 or 2 KV heads of 1 to 7 query heads each."""
    kv_heads = int(rng.integers(1, 3))
    return {
        "n": MMUL_BLOCK * int(rng.integers(1, 9)),
        "m": int(rng.choice([64, 128, 256, 512])),
        "n_heads": kv_heads * int(rng.integers(1, 8)),
        "n_kv_heads": kv_heads,
        "head_dim": int(rng.choice([32, 64, 128])),
    }


def schedules(parameters: Parameters) -> Iterator[dict[str, int]]:
    """Query tiles to try: heads by positions. The stages change last bits, and stay."""
    group = parameters["n_heads"] // parameters["n_kv_heads"]
    for heads, positions in itertools.product(divisors(group, group), divisors(parameters["n"], MAX_Q_ROWS)):
        if heads * positions % MMUL_BLOCK == 0 and heads * positions <= MAX_Q_ROWS:
            yield {"heads": heads, "positions": positions}


KERNEL = KernelSpec(
    name="cached_attention",
    build=build,
    reference=reference,
    cases=(
        {"n": 64, "m": 64, "n_heads": 4, "n_kv_heads": 1, "head_dim": 64},
        {"n": 8, "m": 512, "n_heads": 4, "n_kv_heads": 1, "head_dim": 64},
        {"n": 8, "m": 128, "n_heads": 3, "n_kv_heads": 1, "head_dim": 128},
        {"n": 16, "m": 256, "n_heads": 7, "n_kv_heads": 1, "head_dim": 64},
        {"n": 2, "m": 64, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64},
        {"n": 8, "m": 64, "n_heads": 4, "n_kv_heads": 1, "head_dim": 64, "scale": 0.3},
        {"n": 8, "m": 128, "n_heads": 4, "n_kv_heads": 1, "head_dim": 256},
    ),
    tolerance=flash_attention.KERNEL.tolerance,
    random_case=random_case,
    random_inputs=random_inputs,
    rows="",
    sums_may_reorder=True,
    allowance=flash_attention.KERNEL.allowance,
    schedules=schedules,
)
