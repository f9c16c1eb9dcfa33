"""The static form of a step of block diffusion: a whole model in one program of fixed shapes.

Inputs are those of `forward_export` of DiffuLex Edge, in which masks say what a step's block sees and whether
it is written to the cache (engine/static_form.py makes them). Here they are bf16, with embeddings and rows of
RoPE's table instead of token ids and positions:

    embeddings, rope_rows    (rows, E), (rows, D): block after block of the batch, then padding
    kv_cache, attention_mask, insert_matrix, keep_mask          as `StaticSizes` has them
    logits_0..7, updated_cache                                  (rows, Vp/8) each, and as kv_cache

A layer is the launches of `rms_gemms_rope` and `o_ffn` with `block_attention` and `cache_update` in between,
which select their layer in cache and masks by offset; a last RMSNorm and the LM head follow. Weights are an
argument for each layer, with the layer's number: `wq_0`, `wq_1`. Intermediates are shared by the layers,
except the residual stream.

Reading the tables needs no IR and no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16
from aerie.multi_launch_builder import programs, variants
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.shapes import ModelShape, UnsupportedShapeError

Extents = tuple[int, ...]


@dataclass(frozen=True)
class StaticSizes:
    """The sizes of the inputs of a static form: layers, sequences of a call (batch), tokens of a block,
    positions of the cache (max_len), key/value heads, and elements of each.
    """

    layers: int
    batch: int
    block: int
    max_len: int
    n_kv_heads: int
    head_dim: int

    @property
    def kv_cache(self) -> Extents:
        """The cache's shape: keys at 0 and values at 1 of each layer, heads first."""
        return (self.layers, 2, self.batch, self.n_kv_heads, self.max_len, self.head_dim)

    @property
    def attention_mask(self) -> Extents:
        """The mask's shape: for every row of a block the cache, then the block's own rows."""
        return (self.layers, self.batch, 1, self.block, self.max_len + self.block)

    @property
    def insert_matrix(self) -> Extents:
        """The insert matrix's shape: the row of the block that each position receives."""
        return (self.layers, self.batch, 1, self.max_len, self.block)

    @property
    def keep_mask(self) -> Extents:
        """The keep mask's shape: which positions stay."""
        return (self.layers, self.batch, 1, self.max_len, 1)

    def cache_bytes(self, itemsize: int = 2) -> int:
        """Bytes of a cache with elements of `itemsize` bytes. A step has two, one in and one out."""
        return math.prod(self.kv_cache) * itemsize

    @property
    def rows(self) -> int:
        """Rows of the products: those of all blocks, rounded up to a number that programs exist for.

        Raises UnsupportedShapeError if no program has that many.
        """
        max_rows = variants.LM_HEAD_ROWS[-1]
        if self.batch * self.block > max_rows:
            raise UnsupportedShapeError(
                f"batch={self.batch} blocks of {self.block} tokens are {self.batch * self.block} rows, and "
                f"the LM head has programs of at most {max_rows}",
                f"legal is a batch of at most {max_rows // self.block}" if self.block <= max_rows else "",
            )
        return next(rows for rows in variants.LM_HEAD_ROWS if rows >= self.batch * self.block)


STATIC_STEP_KIND = "static_step"
"""The program's kind and name."""
CACHE, MASK, INSERT, KEEP = "kv_cache", "attention_mask", "insert_matrix", "keep_mask"
UPDATED_CACHE = "updated_cache"


def plan_static_step(shape: ModelShape, sizes: StaticSizes) -> ProgramPlan:
    """The plan of a model's step. Raises UnsupportedShapeError for more rows than any program has. Does not
    check the other sizes (`shape_limits` and the kernels do).
    """
    rows = sizes.rows
    layers = [_Layer(shape, sizes, number) for number in range(sizes.layers)]
    head = programs.plan_lm_head("lm_head", shape, rows)
    norm = LaunchPlan(
        "final_norm",
        "rms_norm",
        {"rows": rows, "cols": shape.emb_dim, **shape.norm_parameters},
        _NORM | {"x": layers[-1].output},
    )
    steps = [step for layer in layers for step in layer.steps()]
    steps += [norm, *(replace(step, wiring={**step.wiring, "a": "normed"}) for step in head.launches)]
    weight = Argument("final_norm", (shape.emb_dim,), bf16, Role.WEIGHT)
    table = {each.name: each for each in _inputs(shape, sizes)}
    for argument in (*(each for layer in layers for each in layer.arguments()), weight, *head.arguments):
        if argument.name != "x":
            table.setdefault(argument.name, argument)
    updated = Argument(UPDATED_CACHE, sizes.kv_cache, bf16, Role.OUTPUT)
    arguments = ArgumentTable([*table.values(), updated])
    return ProgramPlan(
        STATIC_STEP_KIND,
        arguments,
        tuple(steps),
        programs.ATTENTION_OPTIONS,
        STATIC_STEP_KIND,
        rows,
        sizes.max_len,
    )


_NORM = {"weight": "final_norm", "out": "normed"}


def _inputs(shape: ModelShape, sizes: StaticSizes) -> Iterator[Argument]:
    """The inputs of a step, in the order of `forward_export`."""
    shapes = {
        "embeddings": (sizes.rows, shape.emb_dim),
        "rope_rows": (sizes.rows, shape.rope_width),
        CACHE: sizes.kv_cache,
        MASK: sizes.attention_mask,
        INSERT: sizes.insert_matrix,
        KEEP: sizes.keep_mask,
    }
    for name, extents in shapes.items():
        yield Argument(name, extents, bf16, Role.INPUT)


@dataclass(frozen=True)
class _Layer:
    """The launches of layer `number`, and their arguments."""

    shape: ModelShape
    sizes: StaticSizes
    number: int

    @property
    def input(self) -> str:
        """The residual stream before the layer."""
        return "embeddings" if self.number == 0 else f"hidden_{self.number}"

    @property
    def output(self) -> str:
        """The residual stream after the layer."""
        return f"hidden_{self.number + 1}"

    @property
    def _before(self) -> ProgramPlan:
        return programs.plan_before_attention("", self.shape, self.sizes.rows, variants.ROPE_ROWS)

    @property
    def _after(self) -> ProgramPlan:
        return programs.plan_after_attention("", self.shape, self.sizes.rows)

    def steps(self) -> Iterator[LaunchPlan]:
        """The launches in order."""
        own = {**vars(self.sizes)} | {"layer": self.number, "rows": self.sizes.rows}
        update = LaunchPlan("cache_update", "cache_update", own, _UPDATE)
        attend = LaunchPlan("attention", "block_attention", own | {"n_heads": self.shape.n_heads}, _ATTENTION)
        for step in (*self._before.launches, attend, update, *self._after.launches):
            wiring = {of_kernel: self._called(name) for of_kernel, name in step.wiring.items()}
            yield replace(step, label=f"layer_{self.number}_{step.label}", wiring=wiring)

    def arguments(self) -> Iterator[Argument]:
        """The arguments of its launches that are not inputs of the step: weights and intermediates."""
        for argument in (*self._before.arguments, *self._after.arguments):
            if argument.role is Role.WEIGHT:
                yield replace(argument, name=self._called(argument.name))
            elif argument.name not in ("x", "rope_rows"):
                yield replace(argument, name=self._called(argument.name), role=Role.INTERMEDIATE)

    def _called(self, name: str) -> str:
        """The name of an argument of the layer's programs in the whole program."""
        if name in self._weights:
            return f"{name}_{self.number}"
        return {"x": self.input, "x_next": self.output}.get(name, name)

    @property
    def _weights(self) -> set[str]:
        plans = (self._before, self._after)
        return {a.name for plan in plans for a in plan.arguments if a.role is Role.WEIGHT}


_ATTENTION = {"q": "q_roped", "k": "k_roped", "v": "v", CACHE: CACHE, MASK: MASK, "out": "attn_out"}
_UPDATE = {"k": "k_roped", "v": "v"} | {name: name for name in (CACHE, INSERT, KEEP, UPDATED_CACHE)}
