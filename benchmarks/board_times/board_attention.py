"""Attention as mlir-air's registry ran it: two heads at once, four tiles of queries, four stages.

A stage has a quarter of the keys. It takes all tiles of queries, keeps its own, and goes over its keys; then
the stages pass their results on, and the first divides. No block of keys is skipped, masked or not. Data stop
in memtiles on their way, which only pass them on, so that a transfer goes from L3 to the cores here. These
programs are timed and not run: the C++ functions are upstream's.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerie.kernel_builder.buffers import Buffer, View
from aerie.kernel_builder.dsl import L1, Channel, Index, Kernel, Role, bf16, i32
from aerie.kernel_builder.spec import KernelModule, require_multiple
from aerie.kernel_builder.values import ArgumentType, ExternalFunction

HEADS_AT_ONCE, TILES, STAGES, TILE = 2, 4, 4, 64
"""Of a point of the launch: heads, tiles of queries, stages; rows of queries, or keys, or of head_dim."""
GROUP = TILES * TILE


@dataclass(frozen=True)
class _Core:
    """What one core has: all buffers but queries, and the functions by name."""

    kernel: Kernel
    functions: dict[str, ExternalFunction]
    qk: Buffer
    values: Buffer
    scores: Buffer
    sums: Buffer
    largest: Buffer
    total: Buffer
    scale: Buffer


def build_board_attention(
    lq: int, lk: int, n_heads: int, n_kv_heads: int, head_dim: int, causal: bool
) -> KernelModule:
    """q and out (n_heads, lq, head_dim), k and v (n_kv_heads, lk, head_dim) bf16. A point computes TILE
    columns of the result. Raises IllegalShapeError."""
    for name, extent, piece in (("lq", lq, GROUP), ("lk", lk, GROUP), ("head_dim", head_dim, TILE)):
        require_multiple("board_attention", name, extent, piece, "the tiles of all cores")
    require_multiple("board_attention", "n_heads", n_heads, HEADS_AT_ONCE, "heads at once")
    kernel, group = Kernel("board_attention"), n_heads // n_kv_heads
    q = kernel.argument("q", (n_heads, lq, head_dim), bf16, Role.INPUT)
    k, v = (kernel.argument(name, (n_kv_heads, lk, head_dim), bf16, Role.INPUT) for name in "kv")
    out = kernel.argument("out", (n_heads, lq, head_dim), bf16, Role.OUTPUT)
    functions = _functions(kernel)
    cascades = [
        kernel.channel(f"cascade_{own}", TILES, STAGES - 1, kind="npu_cascade")
        for own in range(HEADS_AT_ONCE)
    ]
    grid = kernel.launch(lq // GROUP, n_heads // HEADS_AT_ONCE, head_dim // TILE)
    with grid as (point, pair, column), kernel.segment("board_attention_segment"):
        for own, cascade in enumerate(cascades):
            head, here = pair * HEADS_AT_ONCE + own, slice(column * TILE, column * TILE + TILE)
            with kernel.herd(TILES, STAGES, name=f"attention_herd_{own}") as (tile, stage):
                core = _core(kernel, functions)
                queries = _take_queries(core, q, head, point * GROUP)
                for at in kernel.loop(0, lk // STAGES, TILE):
                    first = stage * (lk // STAGES) + at
                    keys = slice(first, first + TILE)
                    _block(core, queries, k[head // group, keys, :], v[head // group, keys, here], causal)
                _merge(core, cascade, tile, stage)
                with kernel.when(stage == 0):
                    functions["rescale"](core.total, core.sums)
                    first = point * GROUP + tile * TILE
                    kernel.dma(out[head, first : first + TILE, here], core.sums)
    return kernel.finish()


def _functions(kernel: Kernel) -> dict[str, ExternalFunction]:
    """Upstream's functions, by what they do."""
    tile, rows = L1((TILE, TILE), bf16), L1((TILE,), bf16)
    kinds: dict[str, tuple[str, list[ArgumentType]]] = {
        "clear": ("zero_fill_g_bf16", [tile]),
        "copy": ("copy_tile", [tile, tile]),
        "scores": ("matmul_transposed_b_bf16", [tile, tile, tile]),
        "mask": ("apply_causal_mask", [tile, i32]),
        "softmax": ("fused_softmax", [tile, rows, rows, rows]),
        "rescale": ("mul_r_gp", [rows, tile]),
        "values": ("matmul_g_b_bf16", [tile, tile, tile]),
        "add": ("add_gp_g", [tile, tile]),
        "rows": ("exp_up_minus_u", [rows, rows, rows]),
    }
    return {name: kernel.external(symbol, "attn_npu2.o", types) for name, (symbol, types) in kinds.items()}


def _core(kernel: Kernel, functions: dict[str, ExternalFunction]) -> _Core:
    tiles = (kernel.alloc(L1, (TILE, TILE), bf16, name) for name in ("qk", "l1_v", "scores", "sums"))
    rows = (kernel.alloc(L1, (TILE,), bf16, name) for name in ("largest", "total", "scale"))
    return _Core(kernel, functions, *tiles, *rows)


def _take_queries(core: _Core, q: Buffer, head: Index, first: Index) -> list[Buffer]:
    """All tiles of queries pass by, in pieces of TILE columns; one is copied."""
    core.functions["clear"](core.sums)
    pieces = q.shape[-1] // TILE
    own = [core.kernel.alloc(L1, (TILE, TILE), bf16, f"l1_q{i}") for i in range(pieces)]
    for tile in range(TILES):
        for i, piece in enumerate(own):
            row = first + tile * TILE
            core.kernel.dma(core.qk, q[head, row : row + TILE, i * TILE : i * TILE + TILE])
            if tile == 0:
                core.functions["copy"](core.qk, piece)
    return own


def _block(core: _Core, queries: list[Buffer], keys: View, values: View, causal: bool) -> None:
    """The queries against one block of keys, whose columns come in pieces."""
    call = core.functions
    call["clear"](core.scores)
    for i, piece in enumerate(queries):
        core.kernel.dma(core.qk, keys[:, i * TILE : i * TILE + TILE])
        call["scores"](piece, core.qk, core.scores)
    core.kernel.dma(core.values, values)
    if causal:
        call["mask"](core.scores, 0)
    call["softmax"](core.scores, core.largest, core.total, core.scale)
    call["rescale"](core.scale, core.sums)
    call["values"](core.scores, core.values, core.sums)
    call["rows"](core.largest, core.scale, core.total)


def _merge(core: _Core, cascade: Channel, tile: Index, stage: Index) -> None:
    """A stage adds what the one above it has, rescaled, to its own, and hands it down."""
    kernel, call = core.kernel, core.functions
    with kernel.when(stage < STAGES - 1):
        kernel.get(cascade[tile, stage], core.scores)
        for other in (core.scale, core.total):
            call["rows"](core.largest, core.scale, other)
        call["rescale"](core.scale, core.scores)
        call["rescale"](core.total, core.sums)
        call["add"](core.scores, core.sums)
        call["rows"](core.largest, core.scale, core.total)
    with kernel.when(stage > 0):
        kernel.put(cascade[tile, stage - 1], core.sums)
