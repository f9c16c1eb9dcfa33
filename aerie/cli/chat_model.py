"""What a chat says of its model: /model, and what can be done where the context ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aerie.engine.config import ModelConfig
from aerie.engine.variant_set import VariantSet
from aerie.multi_launch_builder.variants import CONTEXTS

MAKE_ROOM: Final = "/undo takes back the last turn, /reset starts afresh"
"""What makes room in a conversation that is too long."""


@dataclass(frozen=True)
class ChatModel:
    """The model of a chat, by the name that the user gave."""

    name: str
    config: ModelConfig
    variants: VariantSet
    backend: str

    def __str__(self) -> str:
        config, positions = self.config, self.variants.positions(self.config.context)
        return "\n".join(
            [
                f"model     {self.name}",
                f"family    {config.family.model_type}, {config.num_hidden_layers} layers of "
                f"{config.hidden_size}, {config.vocab_size} tokens in the vocabulary",
                f"context   {positions} of the model's {config.context} positions",
                f"backend   {self.backend}",
                "Another model: leave with /bye, then `aerie chat -m NAME`; /save keeps the conversation.",
            ]
        )

    @property
    def advice(self) -> str:
        """What can be done where the context ends."""
        ways = [MAKE_ROOM, *self._longer_contexts()]
        if self.config.diffusion is None:
            ways.append(
                f"with /save FILE, then {_again(self.name, '--context-end shift')}, the oldest is dropped"
            )
        return "; ".join(ways)

    def _longer_contexts(self) -> Sequence[str]:
        """How the model's further positions are had, if variants leave some of them out."""
        limit = self.config.context
        largest = self.variants.largest_context or limit
        longer = next((each for each in sorted(CONTEXTS) if each > largest), None)
        if largest >= limit or longer is None:
            return ()
        rows = ",".join(map(str, sorted({one.rows for one in self.variants.variants})))
        contexts = ",".join(map(str, [*self.variants.contexts, longer]))
        again = _again(self.name, f"--variants {rows}x{contexts}")
        return (f"with /save FILE, then {again}, it goes on to position {min(longer, limit)}",)


def _again(name: str, flags: str) -> str:
    return f"`aerie chat -m {name} {flags}` and /load FILE"
