"""out = softmax(q [cache, k]^T / sqrt(head_dim) + mask) [cache, v] of a block of rows: the static form.

The way of tiles through the array is `kernel_builder/attention.py`. A block's rows see a cache of fixed size
and each other; a mask of bf16, which is added to the scores, says what of both. Cache, mask and rows are
those of the static form of a model (docs/reference/static-form.md), all of whose layers are in one buffer
each: a kernel is built for its layer, and picks it by offset.

- Keys and values of a tile come from the cache, which lies heads first: kv_cache[layer, 0 and 1, sequence].
- The block's own keys and values come last, to the first stage. They take the place of the first rows of a
  tile of the cache; what is left of that beyond them is hidden.
- The mask goes by the channel of the queries, for as many K/V tiles at a time as there are stages, and at the
  end for the block's own keys.
- Every tile is computed on. What a mask of -10000 hides has a weight of zero beside anything that is seen,
  and must be finite.
- A query tile has `heads` query heads of one KV head at each of its positions, as in `cached_attention.py`.
  Rows of q beyond batch * block are not read, and those of out not written.

K and V are held once (`--omit-ping-pong-transform=all`), which leaves L1 to the rows of several heads, and is
what lets the block's own keys find the rest of a tile in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
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
    check_heads,
    choose_columns,
    declare_functions,
    kv_rows,
)
from aerie.kernel_builder.buffers import Buffer, BufferType, CoreBuffers, View, l1_bytes
from aerie.kernel_builder.dsl import L1, L2, Index, Kernel, Role, bf16, i32
from aerie.kernel_builder.kernels import flash_attention
from aerie.kernel_builder.spec import Array, KernelModule, KernelSpec, Parameters, require_multiple
from aerie.kernel_builder.values import ArgumentType, ExternalFunction

MAX_Q_ROWS = 56
"""Most query rows of a core, of all heads together."""


@dataclass(frozen=True)
class BlockAttentionShape:
    """Everything that fixes one kernel: elements of its arguments, and how they are cut. See build()."""

    layer: int
    layers: int
    batch: int
    block: int
    max_len: int
    n_heads: int
    n_kv_heads: int
    rows: int
    heads: int
    tiles: AttentionTiles

    @property
    def positions(self) -> int:
        """Positions of a query tile."""
        return self.tiles.q_rows // self.heads

    @property
    def tiles_per_stage(self) -> int:
        """K/V tiles of each stage."""
        return self.tiles.kv_tiles // self.tiles.num_stages

    @property
    def mask(self) -> BufferType:
        """The mask of a query tile in a core, for one K/V tile of each stage."""
        return L1((self.tiles.num_stages * self.positions * self.tiles.lkp,), bf16)

    @property
    def held(self) -> CoreBuffers:
        """The buffers of a core in L1."""
        return {**self.tiles.held, "l1_mask": (self.mask, 1)}

    def kv_head(self, group: Index) -> Index:
        """The KV head that a group of `heads` query heads reads."""
        return group // (self.n_heads // self.n_kv_heads // self.heads)


def build(
    layer: int,
    layers: int,
    batch: int,
    block: int,
    max_len: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    rows: int | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """All bf16. q, out (rows, n_heads * head_dim), k, v (rows, n_kv_heads * head_dim): those of sequence b
    from row b * block on; rows is at least batch * block, and that by default. kv_cache
    (layers, 2, batch, n_kv_heads, max_len, head_dim), attention_mask (layers, batch, 1, block, max_len +
    block), of which `layer` is read.

    block is even, and block * n_heads / n_kv_heads a multiple of 8. max_len is a multiple of the K/V tile (64
    rows, 32 where head_dim is above 64), and of four of these where there are more. Raises IllegalShapeError.
    """
    rows = batch * block if rows is None else rows
    check_layer(KERNEL.name, layer, layers, batch, block, rows, device)
    check_heads(KERNEL.name, n_heads, n_kv_heads, head_dim)
    lkp = kv_rows(head_dim)
    stages = _stages(max_len, lkp, device)
    heads, positions = _query_tile(block, n_heads // n_kv_heads, head_dim, stages, device)
    tiles = AttentionTiles(
        heads * positions, lkp, head_dim, max_len // lkp, block // positions, stages, kv_copies=1
    )
    shape = BlockAttentionShape(layer, layers, batch, block, max_len, n_heads, n_kv_heads, rows, heads, tiles)
    return _BlockAttention(shape, device).module(batch, n_heads // heads)


class _BlockAttention(AttentionKernel):
    """One kernel under construction: the layout of its arguments, the path of the mask and of the block's own
    keys.
    """

    def __init__(self, shape: BlockAttentionShape, device: DeviceModel) -> None:
        self.shape = s = shape
        k, dim = Kernel(KERNEL.name, device), shape.tiles.head_dim
        query, key = (s.rows, s.n_heads * dim), (s.rows, s.n_kv_heads * dim)
        cache = (s.layers, 2, s.batch, s.n_kv_heads, s.max_len, dim)
        mask = (s.layers, s.batch, 1, s.block, s.max_len + s.block)
        self.q = k.argument("q", query, bf16, Role.INPUT)
        self.own = [k.argument(name, key, bf16, Role.INPUT) for name in "kv"]
        kv_cache = k.argument("kv_cache", cache, bf16, Role.INPUT)
        self.mask = k.argument("attention_mask", mask, bf16, Role.INPUT)[s.layer]
        self.out = k.argument("out", query, bf16, Role.OUTPUT)
        self.k_rows, self.v_rows = kv_cache[s.layer, 0], kv_cache[s.layer, 1]
        super().__init__(k, s.tiles, lambda: _functions(k, s))

    def query_tile(self, buffer: Buffer, block: Index, head: Index, tile: int) -> View:
        first, width = self._first_row(block, tile), self.shape.heads * self.tiles.head_dim
        return buffer[first : first + self.shape.positions, head * width : head * width + width]

    def key_tile(self, buffer: View, block: Index, head: Index, first: Index) -> View:
        return buffer[block, self.shape.kv_head(head), first : first + self.tiles.lkp, :]

    def _first_row(self, block: Index, tile: int) -> Index:
        return block * self.shape.block + tile * self.shape.positions

    def feed_queries(self, block: Index, head: Index, tile: int) -> None:
        """Send the queries of a tile, then the mask of its rows: for one K/V tile of each stage at a time,
        and its own.
        """
        super().feed_queries(block, head, tile)
        s, first = self.shape, tile * self.shape.positions
        of_rows = self.mask[block, 0, first : first + s.positions]
        width = s.tiles.num_stages * s.tiles.lkp
        for i in self.k.loop(0, s.tiles_per_stage):
            self.k.put(self.q_in[tile], of_rows[:, i * width : i * width + width])
        self.k.put(self.q_in[tile], of_rows[:, s.max_len : s.max_len + s.block])

    def relay_queries(self, tile: int) -> None:
        """Relay the mask for one K/V tile of each stage in the order stage, row, key."""
        super().relay_queries(tile)
        k, s, stages = self.k, self.shape, self.tiles.num_stages
        l2_mask = k.alloc(L2, (s.positions, stages * s.tiles.lkp), bf16, "l2_mask")
        for _ in k.loop(0, s.tiles_per_stage):
            k.get(self.q_in[tile], l2_mask)
            by_stage = l2_mask.reshape(s.positions, stages, s.tiles.lkp).permute(1, 0, 2)
            k.put(self.q_l1[tile, 0], by_stage)
        l2_own = k.alloc(L2, (s.positions, s.block), bf16, "l2_own_mask")
        k.get(self.q_in[tile], l2_own)
        k.put(self.q_l1[tile, 0], l2_own)

    def feed(self, block: Index, head: Index) -> None:
        """Send the cache, and then the block's own keys and values, for the first stage."""
        super().feed(block, head)
        s, dim = self.shape, self.tiles.head_dim
        first, column = block * s.block, s.kv_head(head) * dim
        for source, into in zip(self.own, (self.k_in[0], self.v_in[0]), strict=True):
            self.k.put(into, source[first : first + s.block, column : column + dim])

    def relay(self) -> None:
        """Relay the same through L2."""
        super().relay()
        for source in (self.k_in[0], self.v_in[0]):
            l2_own = self.k.alloc(L2, (self.shape.block, self.tiles.head_dim), bf16, "l2_own")
            self.relay_tile(source, l2_own, self.kv_l1[0, 0])

    def core(self, _: Index, tx: Index, ty: Index) -> AttentionCore:
        return _AddingCore(self, self.shape, tx, ty)


class _AddingCore(AttentionCore):
    """A core that adds a mask to its scores, and receives the block's own keys at the end."""

    def __init__(self, attention: AttentionKernel, shape: BlockAttentionShape, tx: Index, ty: Index) -> None:
        self.shape = shape
        super().__init__(attention, tx, ty)
        self.mask = self.l1["l1_mask"]

    def held(self) -> CoreBuffers:
        return self.shape.held

    def receive_tiles(self, _: Index) -> None:
        k, channel = self.k, self.attention.kv_l1[self.tx, self.ty]
        k.get(self.attention.q_l1[self.tx, self.ty], self.mask)
        k.get(channel, self.keys)
        self.call["added_scores"](self.q, self.keys, self.mask, self.ty, self.work)
        k.get(channel, self.values)
        self._accumulate()

    def receive_all(self) -> None:
        """Receive the cache, then the block's own rows: the mask goes to all stages, keys and values to the
        first.
        """
        super().receive_all()
        k, s, channel = self.k, self.shape, self.attention.kv_l1[self.tx, self.ty]
        rows = self.mask[: s.positions * s.tiles.lkp].reshape(s.positions, s.tiles.lkp)
        k.get(self.attention.q_l1[self.tx, self.ty], rows[:, : s.block])
        with k.when(self.ty == 0):
            k.get(channel, self._own_rows(self.keys))
            self.call["own_scores"](self.q, self.keys, self.mask, self.work)
            k.get(channel, self._own_rows(self.values))
            self._accumulate()

    def _own_rows(self, tile: Buffer) -> View:
        """The first rows of a tile, which is stored in panels."""
        panels = tile.reshape(self.tiles.head_dim // MMUL_BLOCK, self.tiles.lkp, MMUL_BLOCK)
        return panels[:, : self.shape.block, :]

    def _accumulate(self) -> None:
        self.call["softmax"](self.work, self.weights, self.stats, self.acc)
        self.call["values"](self.weights, self.values, self.acc)


def _functions(k: Kernel, s: BlockAttentionShape) -> dict[str, ExternalFunction]:
    """The functions of attn_npu2.cc for these tiles."""
    names = ("q", "k", "p", "work", "acc", "stats")
    q, kv, p, work, acc, stats = (s.tiles.held[f"l1_{name}"][0] for name in names)
    steps: dict[str, list[ArgumentType]] = {
        "added_scores": [q, kv, s.mask, i32, work],
        "own_scores": [q, kv, s.mask, work],
        "softmax": [work, p, stats, acc],
        "values": [p, kv, acc],
    }
    return declare_functions(k, s.tiles, steps, s.heads, {"ATTN_OWN": s.block})


def check_layer(
    name: str, layer: int, layers: int, batch: int, block: int, rows: int, device: DeviceModel
) -> None:
    """Raise IllegalShapeError for a layer, sequences or rows that no kernel of the static form supports."""
    require_multiple(name, "layers", layers, 1, "there must be a layer")
    require_multiple(name, "batch", batch, 1, "there must be a sequence")
    require_multiple(name, "block", block, 2, "a DMA moves words of 4 bytes")
    if not 0 <= layer < layers:
        raise IllegalShapeError(
            f"{name}: there is no layer={layer} of layers={layers}; use 0 to {layers - 1}"
        )
    if rows < batch * block:
        raise IllegalShapeError(
            f"{name}: rows={rows} do not hold {block} rows of {batch} sequences; use {batch * block} or more"
        )
    if batch > device.repeat_limit:
        raise IllegalShapeError(
            f"{name}: batch={batch} sequences are as many trips of a launch, which has at most "
            f"{device.repeat_limit}; use {device.repeat_limit}"
        )


def _stages(max_len: int, lkp: int, device: DeviceModel) -> int:
    """Rows of cores that share the keys of the cache; each has the same number of tiles."""
    require_multiple(KERNEL.name, "max_len", max_len, lkp, "the rows of a K/V tile")
    if max_len // lkp <= STAGES:
        return max_len // lkp
    require_multiple(KERNEL.name, "max_len", max_len, STAGES * lkp, "a K/V tile for each row of cores")
    max_positions = device.repeat_limit * STAGES * lkp
    if max_len > max_positions:
        raise IllegalShapeError(
            f"{KERNEL.name}: max_len={max_len} makes {max_len // lkp // STAGES} tiles of {lkp} keys for each "
            f"of {STAGES} rows of cores, and a descriptor repeats at most {device.repeat_limit} times; use a "
            f"max_len of at most {max_positions}"
        )
    return STAGES


def _query_tile(block: int, group: int, head_dim: int, stages: int, device: DeviceModel) -> tuple[int, int]:
    """Heads and positions of a query tile: the most heads that fit L1, then the most tiles, a column of cores
    each, for which there are streams besides those of K and V. group: query heads of a KV head.
    """
    if block > kv_rows(head_dim):
        raise IllegalShapeError(
            f"{KERNEL.name}: block={block} rows have more keys of their own than the {kv_rows(head_dim)} of "
            f"a K/V tile at head_dim={head_dim}; use a block of at most {kv_rows(head_dim)}"
        )
    divisors = itertools.product(*([d for d in range(1, x + 1) if x % d == 0] for x in (group, block)))
    fitting = [
        (heads, positions)
        for heads, positions in divisors
        if heads * positions % MMUL_BLOCK == 0
        and heads * positions <= MAX_Q_ROWS
        and block // positions <= device.launch_mm2s - 2 * stages
        and block // positions == choose_columns(block // positions, stages, device)
        and _l1_bytes(heads, positions, head_dim, stages) <= device.l1_budget
    ]
    if fitting:
        return max(fitting, key=lambda tile: (tile[0], -tile[1]))
    raise IllegalShapeError(
        f"{KERNEL.name}: block={block} rows of {group} query heads for a KV head at head_dim={head_dim} make "
        f"no tile of a multiple of {MMUL_BLOCK} rows that fits the {device.l1_budget} bytes of a core; use a "
        f"block that is a multiple of {MMUL_BLOCK}"
    )


def _l1_bytes(heads: int, positions: int, head_dim: int, stages: int) -> int:
    """Bytes of L1 that a core's buffers take."""
    lkp = kv_rows(head_dim)
    tiles = AttentionTiles(heads * positions, lkp, head_dim, stages, 1, stages, kv_copies=1)
    return l1_bytes(
        BlockAttentionShape(0, 1, 1, positions, stages * lkp, heads, 1, positions, heads, tiles).held
    )


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Attention in f32 with a plain softmax of scores and mask, rounded once to bf16."""
    names = ("layer", "batch", "block", "n_heads", "n_kv_heads", "head_dim")
    layer, batch, block, heads, kv_heads, dim = (parameters[name] for name in names)
    q, mask = arrays["q"].astype(np.float32), arrays["attention_mask"][layer].astype(np.float32)
    own = np.stack([arrays[name].astype(np.float32) for name in "kv"])[:, : batch * block]
    own = own.reshape(2, batch, block, kv_heads, dim).swapaxes(2, 3)
    keys, values = np.concatenate([arrays["kv_cache"][layer].astype(np.float32), own], axis=-2)
    q = q[: batch * block].reshape(batch, block, kv_heads, -1, dim).transpose(0, 2, 3, 1, 4)
    scores = q @ keys[:, :, None].swapaxes(-1, -2) / np.float32(np.sqrt(dim)) + mask[:, None]
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = weights / weights.sum(axis=-1, keepdims=True) @ values[:, :, None]
    out = out.transpose(0, 3, 1, 2, 4).reshape(batch * block, heads * dim)
    return {"out": out.astype(bf16.numpy)}


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Each sequence sees its block and some of its cache; hidden positions have large numbers."""
    names = ("layers", "batch", "block", "max_len", "n_heads", "n_kv_heads", "head_dim")
    layers, batch, block, max_len, heads, kv_heads, dim = (parameters[name] for name in names)
    q, k, v = (rng.standard_normal((batch * block, width * dim)) for width in (heads, kv_heads, kv_heads))
    cache = rng.standard_normal((layers, 2, batch, kv_heads, max_len, dim))
    seen = rng.random((layers, batch, 1, block, max_len + block)) < rng.choice([0.3, 1.0])
    past = int(rng.integers(0, max_len + 1))
    seen[..., past:max_len], cache[..., past:, :] = False, 100
    seen[..., max_len:] |= np.eye(block, dtype=bool)
    mask = np.where(seen, 0.0, -10000.0)
    arrays = {"q": q, "k": k, "v": v, "kv_cache": cache, "attention_mask": mask}
    return {name: array.astype(bf16.numpy) for name, array in arrays.items()}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Blocks of 4 to 32 rows, up to 512 positions, 1 or 2 KV heads of 2 or 4 query heads each."""
    kv_heads, layers, dim = int(rng.integers(1, 3)), int(rng.integers(1, 4)), int(rng.choice([32, 64, 128]))
    return {
        "layer": int(rng.integers(0, layers)),
        "layers": layers,
        "batch": int(rng.integers(1, 3)),
        "block": int(rng.choice([4, 8, 16, 32])),
        "max_len": int(rng.choice([64, 128, 256, 512])),
        "n_heads": kv_heads * int(rng.choice([2, 4])),
        "n_kv_heads": kv_heads,
        "head_dim": dim,
    }


ONE = {"layer": 0, "layers": 1, "batch": 1}
KERNEL = KernelSpec(
    name="block_attention",
    build=build,
    reference=reference,
    cases=(
        {**ONE, "block": 32, "max_len": 64, "n_heads": 4, "n_kv_heads": 1, "head_dim": 64},
        {**ONE, "block": 4, "max_len": 256, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64},
        {**ONE, "block": 32, "max_len": 128, "n_heads": 2, "n_kv_heads": 1, "head_dim": 128},
        {
            **{"layer": 1, "layers": 3, "batch": 2},
            **{"block": 4, "max_len": 64, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64},
        },
    ),
    tolerance=flash_attention.KERNEL.tolerance,
    random_case=random_case,
    random_inputs=random_inputs,
    rows="",
    sums_may_reorder=True,
    allowance=flash_attention.KERNEL.allowance,
)
