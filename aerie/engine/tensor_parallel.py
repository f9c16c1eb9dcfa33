"""Tensor parallelism: a model split over devices, by heads and by the width of the FFN.

A device, or rank, has every layer's projections of its query heads and of the key/value heads that these
attend to, the columns of the output projection that read its heads, and its part of gate, up and down. Of a
short convolution it has as many columns as its heads are wide; of linear attention value heads, and the key
heads that these read.

The two products that read parts, after attention and after the FFN, give partial sums, which all ranks add
(`communication.all_reduce_sum`); the residual counts once, and a norm after them takes the whole sum. Norms
of all heads together take the queries and keys of all ranks (`communication.all_gather_columns`). Embeddings
and norms are complete on every rank; only rank 0 has the LM head. So a part is a model as well: of the same
hidden size, with fewer heads.

If there are more devices than key/value heads, each has one of them, and several have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.layer_states import DeltaHeads
from aerie.engine.tensors import Tensor
from aerie.engine.weights import StackedRows, Weights
from aerie.kernel_builder.weight_blocks import GROUP
from aerie.multi_launch_builder import UnsupportedShapeError, program_store
from aerie.multi_launch_builder.weight_kinds import WeightKinds

SliceTensor = Callable[[Tensor, int, int], Tensor]
"""Returns this number of rows or columns of a tensor, from the first one on."""


def part_config(config: ModelConfig, ranks: int) -> ModelConfig:
    """The config of one of `ranks` equal parts.

    Raises UserError, with the numbers that are possible, if the model does not divide evenly, or if the
    kernels do not accept the parts.
    """
    problem = _problem(config, ranks)
    if problem:
        possible = [n for n in range(1, config.num_attention_heads + 1) if not _problem(config, n)]
        raise UserError(
            f"{ranks} devices cannot share this model ({config.num_attention_heads} query heads, "
            f"{config.num_key_value_heads} key/value heads, FFN width {config.intermediate_size}): "
            f"{problem}; what works: {', '.join(map(str, possible))}"
        )
    return _cut(config, ranks)


def _cut(config: ModelConfig, ranks: int) -> ModelConfig:
    heads = config.num_attention_heads, config.num_key_value_heads
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // ranks,
        num_key_value_heads=max(1, config.num_key_value_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
        weight_kinds=_part_kinds(config, ranks),
        all_heads=heads if config.family.qk_norm_spans_heads or config.layers_with_conv else (0, 0),
        delta=config.delta and _cut_delta(config.delta, ranks),
    )


def _cut_delta(heads: DeltaHeads, ranks: int) -> DeltaHeads:
    return heads._replace(keys=max(1, heads.keys // ranks), values=heads.values // ranks)


def _part_kinds(config: ModelConfig, ranks: int) -> WeightKinds:
    """The kinds of a part's weights: bf16 where a cut between columns is within a group that shares a
    scale."""
    width = {"wo": config.num_attention_heads * config.head_dim, "w_down": config.intermediate_size}
    cut = {name for name, columns in width.items() if columns // ranks % GROUP}
    layers = config.weight_kinds.layers
    kept = tuple(tuple((name, kind) for name, kind in layer if name not in cut) for layer in layers)
    return WeightKinds(kept if any(kept) else (), config.weight_kinds.head)


def _problem(config: ModelConfig, ranks: int) -> str:
    """Why this number of devices cannot share the model; "" if they can."""
    kv_heads = config.num_key_value_heads
    if config.num_attention_heads % ranks:
        return f"{config.num_attention_heads} query heads do not divide by {ranks}"
    if kv_heads % ranks and ranks % kv_heads:
        return f"{kv_heads} key/value heads do not divide by {ranks}, nor {ranks} by them"
    if config.delta and config.delta.values % ranks:
        return f"{config.delta.values} value heads of linear attention do not divide by {ranks}"
    if config.delta and config.delta.keys % ranks and ranks % config.delta.keys:
        return (
            f"{config.delta.keys} key heads of linear attention do not divide by {ranks}, nor {ranks} by them"
        )
    if config.intermediate_size % ranks:
        return f"an FFN width of {config.intermediate_size} does not divide by {ranks}"
    try:
        program_store.check_shape(_cut(config, ranks).shape)
    except UnsupportedShapeError as error:
        return f"of a part, {error.problem}"
    return ""


@dataclass(frozen=True)
class RankWeights:
    """The tensors of rank `rank` of `ranks`. config: of the whole model."""

    whole: Weights
    config: ModelConfig
    rank: int
    ranks: int

    def layer(self, layer: int) -> dict[str, Tensor]:
        """The rank's tensors of a layer, by the names of the programs' arguments. Tensors that are not split
        are complete."""
        return {name: self._part(name, tensor) for name, tensor in self.whole.layer(layer).items()}

    @property
    def lm_head(self) -> Tensor:
        return self.whole.lm_head

    def _part(self, name: str, tensor: Any) -> Any:
        if self.config.delta and name in DELTA_CUT:
            return DELTA_CUT[name](self, tensor, self.config.delta)
        if name not in CUT:
            return tensor
        cut, size = CUT[name]
        first, count = size(self)
        return cut(tensor, first, count)

    def queries(self) -> tuple[int, int]:
        """First element and count of this rank's query heads."""
        count = self.config.num_attention_heads // self.ranks * self.config.head_dim
        return self.rank * count, count

    def keys(self) -> tuple[int, int]:
        """First element and count of this rank's key/value heads. Ranks may share heads."""
        heads = max(1, self.config.num_key_value_heads // self.ranks)
        kv_heads = self.config.num_key_value_heads
        return self.rank * kv_heads // self.ranks * self.config.head_dim, heads * self.config.head_dim

    def ffn(self) -> tuple[int, int]:
        """First element and count of this rank's part of the FFN width."""
        count = self.config.intermediate_size // self.ranks
        return self.rank * count, count

    def mixed(self, tensor: Tensor, heads: DeltaHeads) -> StackedRows:
        """This rank's rows of linear attention's queries, keys and values, which follow each other."""
        part = _cut_delta(heads, self.ranks)
        own, whole = part.keys * part.key_dim, heads.keys * heads.key_dim
        first = self.rank * heads.keys // self.ranks * heads.key_dim
        rows = (
            tensor.part(first, own),
            tensor.part(whole + first, own),
            self.values(tensor, heads, part.value_dim, 2 * whole),
        )
        return StackedRows(rows, part.mixed_width, tensor.kind)

    def values(self, tensor: Tensor, heads: DeltaHeads, size: int, start: int = 0) -> Tensor:
        """This rank's rows of something that has `size` rows for each value head of linear attention, from
        row `start` on."""
        count = heads.values // self.ranks * size
        return tensor.part(start + self.rank * count, count)

    def delta_gates(self, products: StackedRows, heads: DeltaHeads) -> StackedRows:
        """This rank's rows of the products that decays and rates are made of."""
        parts = tuple(self.values(each, heads, 1) for each in products.tensors)
        return StackedRows(parts, _cut(self.config, self.ranks).shape.delta_gates_width)


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    return tensor.part(first, count)


def _columns(tensor: Tensor, first: int, count: int) -> Tensor:
    return tensor.columns(first, count)


CUT: dict[str, tuple[SliceTensor, Callable[[RankWeights], tuple[int, int]]]] = {
    "wq": (_rows, RankWeights.queries),
    "bq": (_rows, RankWeights.queries),
    "wk": (_rows, RankWeights.keys),
    "bk": (_rows, RankWeights.keys),
    "wg": (_rows, RankWeights.queries),
    "wv": (_rows, RankWeights.keys),
    "bv": (_rows, RankWeights.keys),
    "wo": (_columns, RankWeights.queries),
    "w_gate": (_rows, RankWeights.ffn),
    "w_up": (_rows, RankWeights.ffn),
    "w_down": (_columns, RankWeights.ffn),
    "w_conv_b": (_rows, RankWeights.queries),
    "w_conv_c": (_rows, RankWeights.queries),
    "w_conv_x": (_rows, RankWeights.queries),
    "w_conv": (_columns, RankWeights.queries),
}
"""How the weights of a layer are split, by the names of the programs' arguments. Others are complete on every
rank."""
DELTA_CUT: dict[str, Callable[[RankWeights, Any, DeltaHeads], Any]] = {
    "w_qkv": RankWeights.mixed,
    "w_z": lambda weights, tensor, heads: weights.values(tensor, heads, heads.value_dim),
    "w_ab": RankWeights.delta_gates,
    "w_conv": lambda weights, taps, heads: taps._replace(tensor=weights.mixed(taps.tensor, heads)),
}
"""The same of a layer with linear attention. The columns of its output projection are those of the queries of
other layers."""
