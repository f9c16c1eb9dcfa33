"""updated_cache = kv_cache * keep_mask + insert_matrix @ [k, v] of one layer, bf16: the static form's cache.

    launch (batch, parts)        a sequence, and a part of its positions
      segment   L2: keep mask and insert matrix of the part, the rows of a head, on their way to all cores
        herd cores x 1           each core a run of the part, through `cache_update.cc`, head after head

The buffers are those of the static form of a model (docs/reference/static-form.md): all layers are in
one, and a kernel is built for its layer, which alone it reads and writes. The cache goes from L3 to the cores
and back, to each its run. What changes is small, comes to all cores by one channel, and each takes from it
what is of its run.

A position that nothing is inserted to keeps its bits up to the sign of zero, and an inserted row has the bits
of the block: the other products are zeros, as long as all that is multiplied is finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aerie.device.npu2 import NPU2, DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import CoreBuffers, View, l1_bytes
from aerie.kernel_builder.dsl import L1, L2, ChannelRef, Index, Kernel, Role, bf16, i32
from aerie.kernel_builder.kernels.block_attention import check_layer
from aerie.kernel_builder.spec import (
    Array,
    KernelModule,
    KernelSpec,
    Parameters,
    Tolerance,
    require_multiple,
)
from aerie.kernel_builder.values import ArgumentType, ExternalFunction

LANES = 16
"""Elements of a head that cache_update.cc processes at a time."""
RUN_LENGTH = 32
"""Most positions of a core's run: 32 of 128 elements are 8 KiB, which a core has four times."""


@dataclass(frozen=True)
class CacheUpdateShape:
    """Everything that fixes one kernel. See build()."""

    layer: int
    layers: int
    batch: int
    block: int
    max_len: int
    n_kv_heads: int
    head_dim: int
    rows: int
    cores: int
    run: int

    @property
    def positions_per_point(self) -> int:
        """Positions of a point of the launch: a run for each core."""
        return self.cores * self.run

    @property
    def points_per_sequence(self) -> int:
        """Launch points of a sequence."""
        return self.max_len // self.positions_per_point

    @property
    def held(self) -> CoreBuffers:
        """The buffers of a core in L1; 2 copies if the compiler may double-buffer what a loop receives."""
        tile = (L1((self.run, self.head_dim), bf16), 2)
        return {
            "l1_cache": tile,
            "l1_keep": (L1((self.positions_per_point,), bf16), 1),
            "l1_insert": (L1((self.positions_per_point, self.block), bf16), 1),
            "l1_rows": (L1((self.block, self.head_dim), bf16), 2),
            "l1_out": tile,
        }


def build(
    layer: int,
    layers: int,
    batch: int,
    block: int,
    max_len: int,
    n_kv_heads: int,
    head_dim: int,
    rows: int | None = None,
    *,
    device: DeviceModel = NPU2,
) -> KernelModule:
    """All bf16. k, v (rows, n_kv_heads * head_dim), those of sequence b from row b * block on; kv_cache and
    updated_cache (layers, 2, batch, n_kv_heads, max_len, head_dim), insert_matrix (layers, batch, 1, max_len,
    block), keep_mask (layers, batch, 1, max_len, 1), all at `layer`.

    block is even, head_dim a multiple of 16, max_len of 16; rows is at least batch * block, and that by
    default. Raises IllegalShapeError.
    """
    name = KERNEL.name
    require_multiple(name, "head_dim", head_dim, LANES, "a core takes 16 elements at a time")
    require_multiple(name, "n_kv_heads", n_kv_heads, 1, "there must be a head")
    require_multiple(name, "max_len", max_len, 2 * device.columns, "two positions for each core")
    rows = batch * block if rows is None else rows
    check_layer(name, layer, layers, batch, block, rows, device)
    longest = CacheUpdateShape(
        layer, layers, batch, block, max_len, n_kv_heads, head_dim, rows, device.columns, 2
    )
    shape = next((s for s in _runs(longest) if l1_bytes(s.held) <= device.l1_budget), None)
    if shape is None:
        raise IllegalShapeError(
            f"{name}: block={block} rows of head_dim={head_dim} and the insert matrix of two positions for "
            f"each core take more than the {device.l1_budget} bytes of its L1; use a smaller block"
        )
    if shape.points_per_sequence > device.repeat_limit:
        raise IllegalShapeError(
            f"{name}: max_len={max_len} makes {shape.points_per_sequence} trips of "
            f"{shape.positions_per_point} positions, and a launch "
            f"has at most {device.repeat_limit}; use a max_len of at most "
            f"{device.repeat_limit * shape.positions_per_point}"
        )
    return _module(shape, device)


def _runs(s: CacheUpdateShape) -> list[CacheUpdateShape]:
    """The same kernel with shorter and shorter runs."""
    share = s.max_len // s.cores
    return [replace(s, run=run) for run in range(min(share, RUN_LENGTH) // 2 * 2, 0, -2) if share % run == 0]


def _module(s: CacheUpdateShape, device: DeviceModel) -> KernelModule:
    k = Kernel(KERNEL.name, device)
    fresh = [k.argument(name, (s.rows, s.n_kv_heads * s.head_dim), bf16, Role.INPUT) for name in "kv"]
    cache_shape = (s.layers, 2, s.batch, s.n_kv_heads, s.max_len, s.head_dim)
    cache = k.argument("kv_cache", cache_shape, bf16, Role.INPUT)
    insert = k.argument("insert_matrix", (s.layers, s.batch, 1, s.max_len, s.block), bf16, Role.INPUT)
    keep = k.argument("keep_mask", (s.layers, s.batch, 1, s.max_len, 1), bf16, Role.INPUT)
    out = k.argument("updated_cache", cache_shape, bf16, Role.OUTPUT)
    changes_in = k.channel("changes_in", 1, shim_column=0)[0]
    changes = k.channel("changes", 1, 1, broadcast=(s.cores, 1))
    cache_in, cache_out = (k.channel(name, s.cores) for name in ("cache_in", "cache_out"))
    with k.launch(s.batch, s.points_per_sequence) as (sequence, part):
        here = slice(part * s.positions_per_point, part * s.positions_per_point + s.positions_per_point)
        k.put(changes_in, keep[s.layer, sequence, 0, here, 0])
        k.put(changes_in, insert[s.layer, sequence, 0, here])
        for rows in fresh:
            for head in k.loop(0, s.n_kv_heads):
                k.put(changes_in, _block_rows(s, rows, sequence, head))
        for core in range(s.cores):
            first = part * s.positions_per_point + core * s.run
            for kind in k.loop(0, 2):
                for head in k.loop(0, s.n_kv_heads):
                    k.put(cache_in[core], cache[s.layer, kind, sequence, head, first : first + s.run])
            for kind in k.loop(0, 2):
                for head in k.loop(0, s.n_kv_heads):
                    k.get(cache_out[core], out[s.layer, kind, sequence, head, first : first + s.run])
        with k.segment("cache_update_segment"):
            _relay(k, s, changes_in, changes[0, 0])
            with k.herd(s.cores, 1, name="cache_update_herd") as (tx, ty):
                _core(k, s, tx, changes[tx, ty], cache_in[tx], cache_out[tx])
    return k.finish()


def _block_rows(s: CacheUpdateShape, rows: View, sequence: Index, head: Index) -> View:
    """A head's rows of a sequence's block."""
    first, column = sequence * s.block, head * s.head_dim
    return rows[first : first + s.block, column : column + s.head_dim]


def _relay(k: Kernel, s: CacheUpdateShape, changes_in: ChannelRef, changes: ChannelRef) -> None:
    """Relay the new rows through L2 to all cores."""
    for shape, times in (
        ((s.positions_per_point,), 1),
        ((s.positions_per_point, s.block), 1),
        ((s.block, s.head_dim), 2 * s.n_kv_heads),
    ):
        buffer = k.alloc(L2, shape, bf16, "l2_change")
        for _ in k.loop(0, times):
            k.get(changes_in, buffer)
            k.put(changes, buffer)


def _core(
    k: Kernel,
    s: CacheUpdateShape,
    core: Index,
    changes: ChannelRef,
    cache_in: ChannelRef,
    cache_out: ChannelRef,
) -> None:
    """Process a run of positions: keys, then values, head after head."""
    l1, update = k.alloc_each(s.held), _external(k, s)
    k.get(changes, l1["l1_keep"])
    k.get(changes, l1["l1_insert"])
    for _ in k.loop(0, 2 * s.n_kv_heads):
        k.get(changes, l1["l1_rows"])
        k.get(cache_in, l1["l1_cache"])
        update(*(l1[name] for name in s.held), core, s.run)
        k.put(cache_out, l1["l1_out"])


def _external(k: Kernel, s: CacheUpdateShape) -> ExternalFunction:
    symbol = f"cache_update_{s.block}x{s.head_dim}"
    types: list[ArgumentType] = [type_ for type_, _ in s.held.values()]
    defines = {"cache_update_bf16": symbol, "CACHE_BLOCK": s.block, "CACHE_HEAD_DIM": s.head_dim}
    return k.external(symbol, f"{symbol}.o", [*types, i32, i32], "cache_update.cc", defines)


def reference(parameters: Parameters, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Products and sums in f32, rounded once to bf16; NaN, the initial content of a run, in all
    other layers.
    """
    names = ("layer", "batch", "block", "n_kv_heads", "head_dim")
    layer, batch, block, heads, dim = (parameters[name] for name in names)
    fresh = np.stack([arrays[name].astype(np.float32) for name in "kv"])[:, : batch * block]
    fresh = fresh.reshape(2, batch, block, heads, dim).swapaxes(2, 3)
    cache, keep, insert = (
        arrays[name][layer].astype(np.float32) for name in ("kv_cache", "keep_mask", "insert_matrix")
    )
    out = np.full(arrays["kv_cache"].shape, np.nan, bf16.numpy)
    out[layer] = (cache * keep + insert @ fresh).astype(bf16.numpy)
    return {"updated_cache": out}


def random_inputs(parameters: Parameters, rng: np.random.Generator) -> dict[str, Array]:
    """Each sequence writes its block somewhere, or leaves its cache unchanged."""
    names = ("layers", "batch", "block", "max_len", "n_kv_heads", "head_dim")
    layers, batch, block, max_len, heads, dim = (parameters[name] for name in names)
    insert = np.zeros((layers, batch, 1, max_len, block))
    for of_sequence in insert.reshape(-1, max_len, block):
        if rng.random() < 0.75:
            of_sequence[rng.permutation(max_len)[:block], np.arange(block)] = 1
    k, v = (rng.standard_normal((batch * block, heads * dim)) for _ in range(2))
    cache = rng.standard_normal((layers, 2, batch, heads, max_len, dim))
    keep = 1 - insert.sum(axis=-1, keepdims=True)
    arrays = {"k": k, "v": v, "kv_cache": cache, "insert_matrix": insert, "keep_mask": keep}
    return {name: array.astype(bf16.numpy) for name, array in arrays.items()}


def random_case(rng: np.random.Generator) -> dict[str, Any]:
    """Blocks of 2 to 32 rows, up to 512 positions, up to 3 heads."""
    layers = int(rng.integers(1, 4))
    return {
        "layer": int(rng.integers(0, layers)),
        "layers": layers,
        "batch": int(rng.integers(1, 4)),
        "block": int(rng.choice([2, 4, 6, 16, 32])),
        "max_len": 16 * int(rng.integers(1, 33)),
        "n_kv_heads": int(rng.integers(1, 4)),
        "head_dim": 16 * int(rng.integers(1, 9)),
    }


ONE = {"layer": 0, "layers": 1, "batch": 1}
KERNEL = KernelSpec(
    name="cache_update",
    build=build,
    reference=reference,
    cases=(
        {**ONE, "block": 4, "max_len": 256, "n_kv_heads": 2, "head_dim": 64},
        {**ONE, "block": 32, "max_len": 128, "n_kv_heads": 1, "head_dim": 128},
        {
            **{"layer": 1, "layers": 3, "batch": 3},
            **{"block": 2, "max_len": 64, "n_kv_heads": 3, "head_dim": 16},
        },
    ),
    tolerance=Tolerance(
        0.0, 0.0, "of the products of an element one is not zero, so nothing is rounded: bit-identical"
    ),
    random_case=random_case,
    random_inputs=random_inputs,
    rows="",
)
