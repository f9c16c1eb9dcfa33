"""How a model is shared out over devices (tensor parallelism): by heads, and by the width of the FFN.

A device, or rank, has every layer's projections of its query heads and of the key/value heads that these
attend to, the columns of the output projection that read its heads, and its part of gate, up and down. What
it makes of the two products that read parts, after attention and after the FFN, is a part of a sum, which all
add up (`communication.add_up`); the residual counts once. Embeddings, norms and the LM head are whole; the
head is rank 0's alone. So a part is a model as well: of the same hidden size, with fewer heads.

Where there are more devices than key/value heads, each has one of them, and several have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.tensors import Tensor
from aerie.engine.weights import Weights
from aerie.multi_launch_builder import UnsupportedShapeError, program_store

Cut = Callable[[Tensor, int, int], Tensor]
"""Of a tensor, so many rows or columns from the first one on."""


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The facts of the part that each of so many devices has; they are alike.

    UserError, with the counts and those that work, for devices that cannot share the model evenly, and for
    parts that the kernels do not accept.
    """
    problem = _problem(config, ranks)
    if problem:
        works = [n for n in range(1, config.num_attention_heads + 1) if not _problem(config, n)]
        raise UserError(
            f"{ranks} devices cannot share this model ({config.num_attention_heads} query heads, "
            f"{config.num_key_value_heads} key/value heads, FFN width {config.intermediate_size}): "
            f"{problem}; what works: {', '.join(map(str, works))}"
        )
    return _cut(config, ranks)


def _cut(config: ModelConfig, ranks: int) -> ModelConfig:
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // ranks,
        num_key_value_heads=max(1, config.num_key_value_heads // ranks),
        intermediate_size=config.intermediate_size // ranks,
    )


def _problem(config: ModelConfig, ranks: int) -> str:
    """Why so many devices cannot share the model; empty where they can."""
    kv_heads = config.num_key_value_heads
    if config.num_attention_heads % ranks:
        return f"{config.num_attention_heads} query heads do not divide by {ranks}"
    if kv_heads % ranks and ranks % kv_heads:
        return f"{kv_heads} key/value heads do not divide by {ranks}, nor {ranks} by them"
    if config.intermediate_size % ranks:
        return f"an FFN width of {config.intermediate_size} does not divide by {ranks}"
    try:
        program_store.check_shape(_cut(config, ranks).shape)
    except UnsupportedShapeError as error:
        return f"of a part, {error.problem}"
    return ""


@dataclass(frozen=True)
class WeightsOfRank:
    """A checkpoint's tensors as rank `rank` of `ranks` has them; config: of the whole model."""

    whole: Weights
    config: ModelConfig
    rank: int
    ranks: int

    def layer(self, layer: int) -> dict[str, Tensor]:
        """The parts of block `layer`, by the names of the programs' arguments; what is not cut, whole."""
        return {name: self._part(name, tensor) for name, tensor in self.whole.layer(layer).items()}

    @property
    def lm_head(self) -> Tensor:
        return self.whole.lm_head

    def _part(self, name: str, tensor: Tensor) -> Tensor:
        if name not in CUT:
            return tensor
        cut, size = CUT[name]
        first, count = size(self)
        return cut(tensor, first, count)

    def queries(self) -> tuple[int, int]:
        """The first element of its query heads, and how many they have."""
        count = self.config.num_attention_heads // self.ranks * self.config.head_dim
        return self.rank * count, count

    def keys(self) -> tuple[int, int]:
        """As `queries`, of its key/value heads, which other ranks may have too."""
        heads, kv_heads = (
            max(1, self.config.num_key_value_heads // self.ranks),
            self.config.num_key_value_heads,
        )
        return self.rank * kv_heads // self.ranks * self.config.head_dim, heads * self.config.head_dim

    def ffn(self) -> tuple[int, int]:
        """As `queries`, of its part of the FFN."""
        count = self.config.intermediate_size // self.ranks
        return self.rank * count, count


def _rows(tensor: Tensor, first: int, count: int) -> Tensor:
    return tensor.part(first, count)


def _columns(tensor: Tensor, first: int, count: int) -> Tensor:
    return tensor.columns(first, count)


CUT: dict[str, tuple[Cut, Callable[[WeightsOfRank], tuple[int, int]]]] = {
    "wq": (_rows, WeightsOfRank.queries),
    "bq": (_rows, WeightsOfRank.queries),
    "wk": (_rows, WeightsOfRank.keys),
    "bk": (_rows, WeightsOfRank.keys),
    "wv": (_rows, WeightsOfRank.keys),
    "bv": (_rows, WeightsOfRank.keys),
    "wo": (_columns, WeightsOfRank.queries),
    "w_gate": (_rows, WeightsOfRank.ffn),
    "w_up": (_rows, WeightsOfRank.ffn),
    "w_down": (_columns, WeightsOfRank.ffn),
}
"""How the weights of a layer are cut, by the names of the programs' arguments. Others are whole."""
