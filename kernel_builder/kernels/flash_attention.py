"""out = softmax(q k^T / sqrt(head_dim) + mask) v without the score matrix; causal, grouped KV heads.

The way of tiles through the array is `kernel_builder/attention.py`. Core (x, y) holds tile x of a block of
lqp query rows, and of the K and V tiles of lkp rows each it sees those whose number is y modulo num_stages.

- The launch grid covers heads by blocks of rows, so that all that reads a KV head comes one after the other.
  Query head h reads KV head h // (n_heads / n_kv_heads).
- A tile wholly above the diagonal is received and not computed on. Receiving less would need transfer counts
  that depend on the launch.
- A row's result has the same bits whatever lq and lk are padded to.

A core learns its launch's place through an index operand of the herd, which mlir-air writes to the core as a
run-time parameter. The mask is a rule of positions: causal, or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.attention import (
    MMUL_BLOCK,
    STAGES,
    AttentionCore,
    AttentionKernel,
    AttentionTiles,
    check_columns,
    check_heads,
    check_stages,
    check_streams,
    choose_columns,
    declare_functions,
    kv_rows,
)
from aerie.kernel_builder.buffers import Buffer, View, l1_bytes
from aerie.kernel_builder.dsl import Index, Kernel, Role, bf16, i32
from aerie.kernel_builder.spec import (
    Allowance,
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    divisors,
    largest_divisor,
    require_multiple,
)
from aerie.kernel_builder.values import ArgumentType, ExternalFunction

Q_ROWS = (32, 24, 16, 8)
"""Rows of a core's query tile, best first."""


@dataclass(frozen=True)
class FlashAttentionShape:
    """Everything that fixes one kernel: elements of its arguments, and how they are cut. See build()."""

    lq: int
    lk: int
    n_heads: int
    n_kv_heads: int
    causal: bool
    tiles: AttentionTiles
    scale: float | None = None

    @property
    def lqp(self) -> int:
        """Query rows of one launch point."""
        return self.tiles.q_rows * self.tiles.num_q_tiles

    @property
    def blocks(self) -> int:
        """Blocks of lqp query rows: the first extent of the launch."""
        return self.lq // self.lqp

    def kv_head(self, head: Index) -> Index:
        """The KV head that a query head reads."""
        return head // (self.n_heads // self.n_kv_heads)


def build(
    lq: int,
    lk: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    lqp: int | None = None,
    lkp: int | None = None,
    num_q_tiles: int | None = None,
    num_stages: int = STAGES,
    causal: bool = True,
    scale: float | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """q and out are (lq, n_heads * head_dim) bf16, k and v (lk, n_kv_heads * head_dim) bf16.

    lqp: query rows of a launch, num_q_tiles equal tiles of a multiple of 8 rows; divides lq. lkp: rows of a
    K/V tile, a multiple of 8 that divides lk. num_q_tiles x num_stages cores, at most 8 x 4, in one column or
    in no fewer columns than stages. causal: row i sees keys 0 to i; else all keys. Where there are fewer K/V
    tiles than num_stages, there are as many stages as tiles. scale: what scores are multiplied with; None
    means 1 / sqrt(head_dim). Defaults suit lq and lk that are multiples of 64. Raises IllegalShapeError.
    """
    check_heads("flash_attention", n_heads, n_kv_heads, head_dim)
    check_stages("flash_attention", num_stages, device)
    lkp = _kv_tile(lk, head_dim, lkp)
    stages = min(num_stages, lk // lkp)
    lqp, num_q_tiles = _query_tiles(lq, head_dim, lkp, lqp, num_q_tiles, stages, device)
    check_streams("flash_attention", num_q_tiles, stages, device)
    copies = _kv_copies(lkp, head_dim, device.l1_budget)
    tiles = AttentionTiles(lqp // num_q_tiles, lkp, head_dim, lk // lkp, num_q_tiles, stages, copies)
    shape = FlashAttentionShape(lq, lk, n_heads, n_kv_heads, causal, tiles, scale)
    if shape.blocks > device.repeat_limit:
        raise IllegalShapeError(
            f"flash_attention: lq={lq} makes {shape.blocks} blocks of lqp={lqp} rows, a launch has at most "
            f"{device.repeat_limit} trips; use a larger lqp or an lq of at most {device.repeat_limit * lqp}"
        )
    return _FlashAttention(shape, device).module(shape.blocks, n_heads)


class _FlashAttention(AttentionKernel):
    """One kernel under construction: the layout of its arguments."""

    def __init__(self, shape: FlashAttentionShape, device: DeviceModel) -> None:
        self.shape = s = shape
        k, dim = Kernel("flash_attention", device), shape.tiles.head_dim
        self.q = k.argument("q", (s.lq, s.n_heads * dim), bf16, Role.INPUT)
        self.k_rows = k.argument("k", (s.lk, s.n_kv_heads * dim), bf16, Role.INPUT)
        self.v_rows = k.argument("v", (s.lk, s.n_kv_heads * dim), bf16, Role.INPUT)
        self.out = k.argument("out", (s.lq, s.n_heads * dim), bf16, Role.OUTPUT)
        super().__init__(k, s.tiles, lambda: _functions(k, s))

    def query_tile(self, buffer: Buffer, block: Index, head: Index, tile: int) -> View:
        rows = self.tiles.q_rows
        return _window(buffer, block * self.shape.lqp + tile * rows, rows, head, self.tiles.head_dim)

    def key_tile(self, buffer: View, _: Index, head: Index, first: Index) -> View:
        return _window(buffer, first, self.tiles.lkp, self.shape.kv_head(head), self.tiles.head_dim)

    def core(self, block: Index, tx: Index, ty: Index) -> AttentionCore:
        first_q = block * self.shape.lqp + tx * self.tiles.q_rows
        return _CausalCore(self, first_q, self.shape.causal, tx, ty)


class _CausalCore(AttentionCore):
    """A core that hides keys by their positions."""

    def __init__(
        self, attention: AttentionKernel, first_q: Index, causal: bool, tx: Index, ty: Index
    ) -> None:
        super().__init__(attention, tx, ty)
        self.first_q, self.causal = first_q, causal

    def receive_tiles(self, i: Index) -> None:
        """Compute unless all keys of the tile are hidden."""
        k, tiles = self.k, self.tiles
        first_k = (i * tiles.num_stages + self.ty) * tiles.lkp
        channel = self.attention.kv_l1[self.tx, self.ty]
        k.get(channel, self.keys)
        if not self.causal:
            self.call["scores"](self.q, self.keys, self.work)
            k.get(channel, self.values)
            self._accumulate()
            return
        visible = first_k <= self.first_q + (tiles.q_rows - 1)
        with k.when(visible):
            self.call["scores"](self.q, self.keys, self.work)
            self.call["causal_mask"](self.work, self.first_q, first_k)
        k.get(channel, self.values)
        with k.when(visible):
            self._accumulate()

    def _accumulate(self) -> None:
        self.call["softmax"](self.work, self.weights, self.stats, self.acc)
        self.call["values"](self.weights, self.values, self.acc)


def _window(buffer: View, first_row: Index, rows: int, head: Index, head_dim: int) -> View:
    """Some rows of one head."""
    return buffer[first_row : first_row + rows, head * head_dim : head * head_dim + head_dim]


def _functions(k: Kernel, s: FlashAttentionShape) -> dict[str, ExternalFunction]:
    """The functions of attn_npu2.cc for these tiles."""
    names = ("q", "k", "p", "work", "acc", "stats")
    q, kv, p, work, acc, stats = (s.tiles.held[f"l1_{name}"][0] for name in names)
    masks: dict[str, list[ArgumentType]] = {"causal_mask": [work, i32, i32]} if s.causal else {}
    rest: dict[str, list[ArgumentType]] = {"softmax": [work, p, stats, acc], "values": [p, kv, acc]}
    return declare_functions(k, s.tiles, {"scores": [q, kv, work], **masks, **rest}, scale=s.scale)


def _kv_tile(lk: int, head_dim: int, lkp: int | None) -> int:
    """Rows of a K/V tile, as given or by default."""
    default = kv_rows(head_dim)
    if lkp is None and lk > 0 and lk % default:
        smaller = largest_divisor(lk, default, MMUL_BLOCK) if lk % MMUL_BLOCK == 0 else None
        advice = f", or give lkp={smaller}" if smaller else ""
        raise IllegalShapeError(
            f"flash_attention: lk={lk} is no multiple of the K/V tile of {default} rows; "
            f"pad to {-(-lk // default) * default}{advice}"
        )
    lkp = default if lkp is None else lkp
    require_multiple("flash_attention", "lkp", lkp, MMUL_BLOCK, "a matrix block has 8 rows")
    require_multiple("flash_attention", "lk", lk, lkp, "lkp, the rows of a K/V tile")
    return lkp


def _l1_bytes(q_rows: int, lkp: int, head_dim: int, kv_copies: int = 2) -> int:
    """Bytes of L1 that a core's buffers take, with several stages."""
    return l1_bytes(AttentionTiles(q_rows, lkp, head_dim, STAGES, 1, STAGES, kv_copies).held)


def _kv_copies(lkp: int, head_dim: int, budget: int) -> int:
    """Two copies of K and V, or one where two leave no room for the smallest query tile: tiles of wide heads.

    mlir-air e972f294 makes one in either case, as a C++ function gets the buffers; the second is room for a
    compiler that sees that these functions read them only.
    """
    return 2 if _l1_bytes(MMUL_BLOCK, lkp, head_dim) <= budget else 1


def max_head_dim(device: DeviceModel = NPU2) -> int:
    """The largest head_dim that is supported at every length: the smallest query tile must fit."""
    fits = itertools.takewhile(
        lambda head_dim: _l1_bytes(MMUL_BLOCK, kv_rows(head_dim), head_dim, 1) <= device.l1_budget,
        itertools.count(MMUL_BLOCK, MMUL_BLOCK),
    )
    return max(fits)


def _query_tiles(
    lq: int,
    head_dim: int,
    lkp: int,
    lqp: int | None,
    num_q_tiles: int | None,
    stages: int,
    device: DeviceModel,
) -> tuple[int, int]:
    """lqp and num_q_tiles, as given or chosen: the most cores, then the most rows of a core that fit L1."""
    require_multiple("flash_attention", "lq", lq, MMUL_BLOCK, "a matrix block has 8 rows")
    copies = _kv_copies(lkp, head_dim, device.l1_budget)
    fitting = [rows for rows in Q_ROWS if _l1_bytes(rows, lkp, head_dim, copies) <= device.l1_budget]
    total_rows = lqp if lqp is not None else lq
    if num_q_tiles is None:
        num_q_tiles = choose_columns(max(total_rows // MMUL_BLOCK, 1), stages, device)
    check_columns("flash_attention", num_q_tiles, stages, device)
    if lqp is None:
        require_multiple(
            "flash_attention", "lq", lq, MMUL_BLOCK * num_q_tiles, f"8 rows for {num_q_tiles} cores"
        )
        lqp = num_q_tiles * next((r for r in fitting if lq % (r * num_q_tiles) == 0), MMUL_BLOCK)
    require_multiple(
        "flash_attention", "lqp", lqp, MMUL_BLOCK * num_q_tiles, f"8 rows for {num_q_tiles} cores"
    )
    require_multiple("flash_attention", "lq", lq, lqp, "lqp, the rows of a launch")
    _check_l1(lqp // num_q_tiles, lkp, head_dim, device.l1_budget)
    return lqp, num_q_tiles


def _check_l1(q_rows: int, lkp: int, head_dim: int, budget: int) -> None:
    used = _l1_bytes(q_rows, lkp, head_dim, _kv_copies(lkp, head_dim, budget))
    if used <= budget:
        return
    legal = [
        (rows, keys)
        for keys in range(lkp, 0, -MMUL_BLOCK)
        for rows in range(q_rows, 0, -MMUL_BLOCK)
        if _l1_bytes(rows, keys, head_dim, _kv_copies(keys, head_dim, budget)) <= budget
    ]
    advice = f"{legal[0][0]} query rows and lkp={legal[0][1]} fit" if legal else "use a smaller head_dim"
    raise IllegalShapeError(
        f"flash_attention: {q_rows} query rows and lkp={lkp} at head_dim={head_dim} take {used} bytes of L1, "
        f"a core has {budget}; {advice}"
    )


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Attention in f32 with a plain softmax, rounded once to bf16."""
    heads, kv_heads, dim = (parameters[name] for name in ("n_heads", "n_kv_heads", "head_dim"))
    q, k, v = (arrays[name].astype(np.float32) for name in ("q", "k", "v"))
    lq, lk = len(q), len(k)
    scale = parameters.get("scale")
    scale = dim**-0.5 if scale is None else scale
    hidden = np.arange(lk)[None, :] > np.arange(lq)[:, None]
    if not parameters.get("causal", True):
        hidden[:] = False
    out = np.empty((lq, heads, dim), np.float32)
    for head in range(heads):
        kv = head // (heads // kv_heads)
        keys, values = (x.reshape(lk, kv_heads, dim)[:, kv] for x in (k, v))
        scores = q.reshape(lq, heads, dim)[:, head] @ keys.T * np.float32(scale)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ values / weights.sum(axis=1, keepdims=True)
    return {"out": out.reshape(lq, heads * dim).astype(bf16.numpy)}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Up to 256 positions, 1 or 2 KV heads of 1 to 3 query heads each, small and large tiles."""
    kv_heads = int(rng.integers(1, 3))
    length = 64 * int(rng.integers(1, 5))
    num_q_tiles = int(rng.choice([1, 2, 4, 8]))
    stages = NPU2.rows if num_q_tiles == 1 else min(num_q_tiles, NPU2.rows)
    return {
        "lq": length,
        "lk": length,
        "n_heads": kv_heads * int(rng.integers(1, 4)),
        "n_kv_heads": kv_heads,
        "head_dim": int(rng.choice([32, 64, 128])),
        "lkp": int(rng.choice([16, 32])),
        "num_q_tiles": num_q_tiles,
        "num_stages": int(rng.integers(1, stages + 1)),
        "causal": bool(rng.random() < 0.75),
    }


def schedules(parameters: Parameters) -> Iterator[dict[str, int]]:
    """Query tiles to try. The rows of a K/V tile and the stages change last bits, and stay."""
    lq = parameters["lq"]
    for num_q_tiles in divisors(lq, NPU2.columns):
        for rows in Q_ROWS:
            if lq % (rows * num_q_tiles) == 0:
                yield {"lqp": rows * num_q_tiles, "num_q_tiles": num_q_tiles}


KERNEL = KernelSpec(
    name="flash_attention",
    build=build,
    reference=reference,
    cases=(
        {"lq": 64, "lk": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64},
        {"lq": 256, "lk": 256, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64},
        {"lq": 128, "lk": 128, "n_heads": 2, "n_kv_heads": 2, "head_dim": 64, "causal": False},
        {"lq": 128, "lk": 128, "n_heads": 3, "n_kv_heads": 1, "head_dim": 32, "num_stages": 2},
        {"lq": 128, "lk": 128, "n_heads": 1, "n_kv_heads": 1, "head_dim": 128},
        {"lq": 64, "lk": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64, "scale": 0.3},
        {"lq": 64, "lk": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 256},
    ),
    tolerance=Tolerance(
        2.0**-7,
        5e-3,
        "the weights of the softmax are rounded to bf16 before they meet v (2^-8 each), and so is the result "
        "(2^-8); where terms cancel an absolute error remains, 5e-3 for v of size 1",
    ),
    random_case=random_case,
    sums_may_reorder=True,
    schedules=schedules,
    allowance=Allowance(
        1e-2,
        0.1,
        "the accuracy of the core's exp2 is not published, and it weighs every row of v; mlir-air measured "
        "3.8e-2 to 5.5e-2 for a kernel that keeps its statistics in bf16, where ours has f32",
    ),
)
