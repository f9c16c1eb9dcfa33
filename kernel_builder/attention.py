"""What the attention kernels have in common: a tile of query rows in each column of cores, keys and values in
turns for each row of them, and the online softmax of `attn_npu2.cc` in between.

    L3 --q_in_x----> L2 --q_l1[x, 0]----> all stages of tile x
    L3 --k_in_y----> L2 --kv_l1[0, y]---> all tiles of stage y      K tile, V tile, K tile, V tile, ...
    L3 --v_in_y----> L2 --/
    core (x, y) ----partial[x, y - 1]---> core (x, y - 1)           cascade
    core (x, 0) ----out_l2[x]-----------> L2 --out_l3_x--> L3

Core (x, y) holds query tile x, and of the K and V tiles it sees those whose number is y modulo the stages:
the stages of one tile share the work over the keys. Each keeps a running maximum, a running sum and an f32
accumulator per row; at the end the partial results go down the stages over the cascade, each core merging
what it gets into its own, and stage 0 normalises and stores.

- A memtile rearranges each tile into panels of 8 columns, the order in which the core's 8x8x8 block product
  reads it; the core's DMA undoes it on the way out.
- K and V share one channel into the cores, so that q has the other of a core's two. They meet in the memtile,
  which has a buffer for each and sends them in turn. From L3 each has a channel of its own: mlir-air makes a
  loop that feeds one channel one descriptor, and writes out a loop that feeds one channel twice, transfer by
  transfer, for every head and block (docs/dev/lowering.md).
- What passes between L3 and L2 names the column of the shim by which it goes, two channels inwards and one
  outwards for each of the eight. Left to itself mlir-air keeps all that feeds one memtile together, and a
  shim tile feeds two channels.
- A V tile arrives while the scores are computed. The K tile after it waits until both buffers are free, which
  mlir-air makes them at the end of a step.
- Which tile a row sees where depends on the rows of a K/V tile and the stages alone. So a row's result has
  the same bits whatever stands beside it: tiles that it does not see change no bit of it, and a stage that
  would have no tile is left out, which changes none either.
- A cascade carries whole buffers: mlir-air's lowering of it (AIRToAIEPass, TileCascadeChannelIfUsingScfFor)
  passes over sizes, so both ends must be of one type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from aerie.device.npu2 import DeviceModel
from aerie.kernel_builder.arguments import IllegalShapeError
from aerie.kernel_builder.buffers import Buffer, CoreBuffers, View
from aerie.kernel_builder.dsl import L1, L2, ChannelRef, Index, Kernel, bf16, f32
from aerie.kernel_builder.spec import KernelModule, largest_divisor, require_multiple
from aerie.kernel_builder.values import ArgumentType, ExternalFunction, OptLevel

MMUL_BLOCK = 8
"""Rows and columns of a block of the core's matrix product, and columns of a panel."""
STAGES = 4
"""Rows of cores by default: the array's. A fixed number, as results depend on it in their last bits."""
OPTIMIZE = OptLevel(
    "O2",
    "what upstream builds its attn_npu2.cc with (mlir-air programming_examples/flash_attention/"
    "kernel_fusion_based/Makefile); seven functions in one object make it the one to watch in 16 KiB",
)


def kv_rows(head_dim: int) -> int:
    """Rows of a K/V tile. They depend on head_dim only, so that padding lk moves no tile."""
    return 64 if head_dim <= 64 else 32


@dataclass(frozen=True)
class AttentionTiles:
    """How attention is divided: rows and columns of cores, and the rows of a tile in each.

    q_rows: query rows of one core. lkp: rows of a K/V tile, of which there are kv_tiles. num_q_tiles x
    num_stages cores. kv_copies: copies of K and V in a core: 2 if the compiler may double-buffer what a loop
    receives.
    """

    q_rows: int
    lkp: int
    head_dim: int
    kv_tiles: int
    num_q_tiles: int
    num_stages: int
    kv_copies: int = 2

    def kv_tiles_of_stage(self, stage: int) -> int:
        """The number of K/V tiles of a stage, at least one."""
        return -(-(self.kv_tiles - stage) // self.num_stages)

    @property
    def held(self) -> CoreBuffers:
        """The buffers of a core. The next stage's accumulator arrives in the buffer of scores, unless that
        has fewer columns.
        """
        rows = self.q_rows
        tile, stats = L1((rows * self.head_dim,), f32), L1((4 * rows,), f32)
        kv = L1((self.lkp * self.head_dim,), bf16)
        buffers = {
            "l1_q": (L1((rows * self.head_dim,), bf16), 1),
            "l1_k": (kv, self.kv_copies),
            "l1_v": (kv, self.kv_copies),
            "l1_p": (L1((rows * self.lkp,), bf16), 1),
            "l1_work": (L1((rows * max(self.lkp, self.head_dim),), f32), 1),
            "l1_acc": (tile, 1),
            "l1_stats": (stats, 1),
        }
        if self.num_stages > 1:
            buffers["l1_other_stats"] = (stats, 1)
            buffers |= {"l1_other_acc": (tile, 1)} if self.lkp > self.head_dim else {}
        return buffers


class AttentionKernel(ABC):
    """One attention kernel under construction: channels, the launch's transfers, the relay through L2.

    A subclass defines how its arguments are laid out in L3, and what a core does with a K and a V tile.
    """

    q: Buffer
    k_rows: View
    v_rows: View
    out: Buffer

    def __init__(
        self, kernel: Kernel, tiles: AttentionTiles, functions: Callable[[], Mapping[str, ExternalFunction]]
    ) -> None:
        self.k, self.tiles = kernel, tiles
        rows, stages = tiles.num_q_tiles, tiles.num_stages
        columns = [column % kernel.device.columns for column in range(rows + 2 * stages)]
        self.q_in = self._shim_channels("q_in", columns[:rows])
        self.k_in = self._shim_channels("k_in", columns[rows : rows + stages])
        self.v_in = self._shim_channels("v_in", columns[rows + stages :])
        self.q_l1 = kernel.channel("q_l1", rows, 1, broadcast=(rows, stages))
        self.kv_l1 = kernel.channel("kv_l1", 1, stages, broadcast=(rows, stages))
        self.partial = kernel.channel("partial", rows, stages - 1, kind="npu_cascade") if stages > 1 else None
        self.out_l2 = kernel.channel("out_l2", rows)
        self.out_l3 = self._shim_channels("out_l3", columns[:rows])
        self.call = functions()

    def _shim_channels(self, name: str, columns: Iterable[int]) -> list[ChannelRef]:
        """Channels name_0, name_1, ..., one per column: all members of one bundle would share a column."""
        return [self.k.channel(f"{name}_{i}", 1, shim_column=column)[0] for i, column in enumerate(columns)]

    @abstractmethod
    def query_tile(self, buffer: Buffer, block: Index, head: Index, tile: int) -> View:
        """The rows of query tile `tile` at a launch's point, in L3: of `q`, and in the same way of `out`."""

    @abstractmethod
    def key_tile(self, buffer: View, block: Index, head: Index, first: Index) -> View:
        """A K/V tile from row `first` on, in L3: of `k_rows`, and in the same way of `v_rows`."""

    @abstractmethod
    def core(self, block: Index, tx: Index, ty: Index) -> AttentionCore:
        """What core (tx, ty) computes for a block of queries."""

    def module(self, blocks: int, heads: int) -> KernelModule:
        """The whole kernel: a launch of heads x blocks points."""
        k, tiles = self.k, self.tiles
        with k.launch(heads, blocks) as (head, block):
            self.feed(block, head)
            with k.segment("attention_segment"):
                self.relay()
                with k.herd(tiles.num_q_tiles, tiles.num_stages, name="attention_herd") as (tx, ty):
                    self.core(block, tx, ty).run()
        return k.finish()

    def feed(self, block: Index, head: Index) -> None:
        """In the launch: send queries and K/V tiles from L3, receive results. Every channel has
        its own loop.
        """
        k, tiles = self.k, self.tiles
        for tile in range(tiles.num_q_tiles):
            self.feed_queries(block, head, tile)
            k.get(self.out_l3[tile], self.query_tile(self.out, block, head, tile))
        for stage in range(tiles.num_stages):
            for source, into in ((self.k_rows, self.k_in[stage]), (self.v_rows, self.v_in[stage])):
                for i in k.loop(0, tiles.kv_tiles_of_stage(stage)):
                    first = (i * tiles.num_stages + stage) * tiles.lkp
                    k.put(into, self.key_tile(source, block, head, first))

    def relay(self) -> None:
        """In the segment: tiles pass through L2, where they are cut into panels; results pass back."""
        k, tiles = self.k, self.tiles
        for tile in range(tiles.num_q_tiles):
            self.relay_queries(tile)
        for stage in range(tiles.num_stages):
            l2_k, l2_v = (k.alloc(L2, (tiles.lkp, tiles.head_dim), bf16, f"l2_{name}") for name in "kv")
            for _ in k.loop(0, tiles.kv_tiles_of_stage(stage)):
                self.relay_tile(self.k_in[stage], l2_k, self.kv_l1[0, stage])
                self.relay_tile(self.v_in[stage], l2_v, self.kv_l1[0, stage])
        for tile in range(tiles.num_q_tiles):
            l2_out = k.alloc(L2, (tiles.q_rows, tiles.head_dim), bf16, "l2_out")
            k.get(self.out_l2[tile], l2_out)
            k.put(self.out_l3[tile], l2_out)

    def feed_queries(self, block: Index, head: Index, tile: int) -> None:
        """In the launch: send what the cores of a query tile need besides keys and values."""
        self.k.put(self.q_in[tile], self.query_tile(self.q, block, head, tile))

    def relay_queries(self, tile: int) -> None:
        """In the segment: relay the same through L2."""
        l2_q = self.k.alloc(L2, (self.tiles.q_rows, self.tiles.head_dim), bf16, "l2_q")
        self.relay_tile(self.q_in[tile], l2_q, self.q_l1[tile, 0])

    def relay_tile(self, source: ChannelRef, tile: Buffer, channel: ChannelRef) -> None:
        """Receive a row-major tile, and send it as panels: in the order panel, row, column of the panel."""
        rows, columns = tile.type.shape
        self.k.get(source, tile)
        self.k.put(channel, tile.reshape(rows, columns // MMUL_BLOCK, MMUL_BLOCK).permute(1, 0, 2))


class AttentionCore(ABC):
    """What one core does: its query tile with the K/V tiles of its stage, then the merge."""

    def __init__(self, attention: AttentionKernel, tx: Index, ty: Index) -> None:
        self.attention, self.tx, self.ty = attention, tx, ty
        self.k, self.tiles, self.call = attention.k, attention.tiles, attention.call
        self.l1 = l1 = self.k.alloc_each(self.held())
        self.q, self.keys, self.values, self.weights = (l1[f"l1_{name}"] for name in "qkvp")
        self.work, self.acc, self.stats = (l1[f"l1_{name}"] for name in ("work", "acc", "stats"))
        # What the next stage sends comes where the scores were, unless there is too little room.
        self.incoming, self.other = l1.get("l1_other_acc", self.work), l1.get("l1_other_stats", self.stats)

    def held(self) -> CoreBuffers:
        """The buffers of the core; one of each is allocated."""
        return self.tiles.held

    @abstractmethod
    def receive_tiles(self, i: Index) -> None:
        """Receive the i-th K tile of this stage and its V tile, and compute with them."""

    def run(self) -> None:
        self.k.get(self.attention.q_l1[self.tx, self.ty], self.q)
        self.call["init"](self.acc, self.stats)
        self.receive_all()
        self._merge()

    def receive_all(self) -> None:
        """Receive everything that this stage gets, tile by tile."""
        tiles = self.tiles
        for i in self.k.loop(0, (tiles.kv_tiles + tiles.num_stages - 1 - self.ty) // tiles.num_stages):
            self.receive_tiles(i)

    def _merge(self) -> None:
        """Merge partial results down the stages; stage 0 stores. The query buffer takes the result."""
        k, tiles, partial = self.k, self.tiles, self.attention.partial
        if partial is not None:
            with k.when(self.ty <= tiles.num_stages - 2):
                k.get(partial[self.tx, self.ty], self.incoming)
                k.get(partial[self.tx, self.ty], self.other)
                self.call["merge"](self.incoming, self.other, self.acc, self.stats)
            with k.when(self.ty >= 1):
                k.put(partial[self.tx, self.ty - 1], self.acc)
                k.put(partial[self.tx, self.ty - 1], self.stats)
        with k.when(self.ty == 0):
            self.call["store"](self.acc, self.stats, self.q)
            panels = self.q.reshape(tiles.head_dim // MMUL_BLOCK, tiles.q_rows, MMUL_BLOCK)
            k.put(self.attention.out_l2[self.tx], panels.permute(1, 0, 2))


def declare_functions(
    k: Kernel,
    tiles: AttentionTiles,
    own: Mapping[str, list[ArgumentType]],
    heads: int | None = None,
    macros: Mapping[str, int] | None = None,
    scale: float | None = None,
) -> dict[str, ExternalFunction]:
    """Declare the functions of attn_npu2.cc for these tiles, under their own symbols: those of every
    attention, and the kernel's `own` with their types. heads: query heads in a tile, if a mask says which
    keys are visible.
    macros: further macros of the build, which are part of the symbols too. scale: what scores are multiplied
    with; None means 1 / sqrt(head_dim).
    """
    q, acc, stats = (tiles.held[f"l1_{name}"][0] for name in ("q", "acc", "stats"))
    types: dict[str, list[ArgumentType]] = {
        "init": [acc, stats],
        **own,
        "merge": [acc, stats, acc, stats],
        "store": [acc, stats, q],
    }
    name = f"{tiles.q_rows}x{tiles.lkp}x{tiles.head_dim}" + (f"_{heads}_heads" if heads else "")
    name += "".join(
        f"_{macro.removeprefix('ATTN_').lower()}_{value}" for macro, value in (macros or {}).items()
    )
    scaled = {} if scale is None else {"ATTN_SCALE_BITS": int(np.float32(scale).view(np.uint32))}
    name += "".join(f"_scale_{bits:x}" for bits in scaled.values())
    macros = {**({"ATTN_HEADS": heads} if heads else {}), **(macros or {}), **scaled}
    sizes = {"ATTN_Q_ROWS": tiles.q_rows, "ATTN_KV_ROWS": tiles.lkp, "ATTN_HEAD_DIM": tiles.head_dim}
    defines = {**sizes, **macros, **{f"attn_{each}": f"attn_{each}_{name}" for each in types}}

    def declared(function_name: str) -> ExternalFunction:
        return k.external(
            f"attn_{function_name}_{name}",
            f"attn_{name}.o",
            types[function_name],
            "attn_npu2.cc",
            defines,
            OPTIMIZE,
        )

    return {each: declared(each) for each in types if each != "merge" or tiles.num_stages > 1}


def check_heads(kernel: str, n_heads: int, n_kv_heads: int, head_dim: int) -> None:
    """Raise IllegalShapeError for heads that no attention kernel supports."""
    require_multiple(kernel, "n_kv_heads", n_kv_heads, 1, "there must be a head")
    require_multiple(kernel, "n_heads", n_heads, n_kv_heads, "every KV head serves as many query heads")
    require_multiple(kernel, "head_dim", head_dim, MMUL_BLOCK, "a panel has 8 columns")


def check_stages(kernel: str, num_stages: int, device: DeviceModel) -> None:
    """Raise IllegalShapeError for more stages than the array has rows."""
    if not 1 <= num_stages <= device.rows:
        raise IllegalShapeError(
            f"{kernel}: num_stages={num_stages} rows of cores, the array has {device.rows}; "
            f"use 1 to {device.rows}"
        )


def choose_columns(tiles: int, stages: int, device: DeviceModel) -> int:
    """Columns of cores for this many query tiles: the largest number that divides them, but 1 rather than
    fewer columns than stages.

    In a herd of several columns and more rows, mlir-air e972f294 gives the cores of the last rows the data of
    the next column: it uses the number of columns as the bound of the rows too (AIRMiscPasses.cpp).
    """
    columns = largest_divisor(tiles, device.columns)
    return columns if columns >= stages else 1


def check_columns(kernel: str, num_q_tiles: int, stages: int, device: DeviceModel) -> None:
    """Raise IllegalShapeError for columns that the array lacks, or that choose_columns avoids."""
    if not 1 <= num_q_tiles <= device.columns:
        raise IllegalShapeError(
            f"{kernel}: num_q_tiles={num_q_tiles} columns of cores, the array has {device.columns}; "
            f"use 1 to {device.columns}"
        )
    if 1 < num_q_tiles < stages:
        raise IllegalShapeError(
            f"{kernel}: num_q_tiles={num_q_tiles} columns of cores and {stages} stages: mlir-air gives cores "
            f"from row {num_q_tiles} on the query tile of another; use num_q_tiles=1, or at least {stages}, "
            f"or num_stages={num_q_tiles}"
        )


def check_streams(kernel: str, num_q_tiles: int, stages: int, device: DeviceModel) -> None:
    """Check the streams from L3: a query tile needs one, a stage two (K and V)."""
    taken, max_streams = num_q_tiles + 2 * stages, device.launch_mm2s
    if taken > max_streams:
        raise IllegalShapeError(
            f"{kernel}: {num_q_tiles} query tiles and K and V of {stages} stages take {taken} shim "
            f"channels from L3, the device has {max_streams}; use "
            f"num_stages={max(1, (max_streams - num_q_tiles) // 2)}"
        )
