"""A text that is filled in block by block: a block of masks, of which every pass makes some into tokens.

Blocks begin at multiples of their size from position 0. A position sees all of its own block and all before
it (executor.py has the mask), so in a prompt too. What a prompt has beyond its last whole block stands at the
beginning of the first block that is filled, and is never touched.

The block that is ACTIVE is tried in every pass, and its keys and values stay nowhere. When it has no mask
left it is FROZEN: its tokens are said, up to the first that ends the answer, and its keys and values are
written by a pass that sees its tokens as they are. That pass is the first one of the next block: rows of the
frozen block see no later one, so they have the bits that they would have in a pass of their own, as it is
where a step has no rows for both blocks.

Where logits are shifted, as in Fast-dLLM v2, those at a position say the token at the next one. The first
token of a block comes from the last row of the block before it, so that one is committed in a pass of its
own; it is the likeliest one, as that model's authors have it, whatever the settings. Parts of a block
(`sub_block`) are filled one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from aerie.engine.embeddings import Token, ids_among
from aerie.engine.errors import PromptError
from aerie.engine.family import BlockDiffusion as Blocks
from aerie.engine.generate import FinishReason
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.choosing import Chosen
from aerie.engine.strategies.strategy import Passes, PassInput, RequestState, Row

Choose: TypeAlias = "Callable[[Sequence[Row], Sequence[int], int, Sequence[int], Sequence[int]], Chosen]"
"""choosing.Chooser: from logits of the masked positions, which these are, the number of the step in this
block or part, and the ids of prompt and answer, to tokens for some of them."""


class Unmasked(NamedTuple):
    """A token that was chosen: at which position of its sequence, in which pass of its answer, and the
    probability that the model gave it then."""

    position: int
    token: int
    at: int
    confidence: float


class BlockDiffusion:
    """See Strategy. PromptError where there is no room for a block after the prompt.

    `trajectory` has the tokens of all blocks in the order in which they were chosen.
    """

    def __init__(self, making: RequestState, blocks: Blocks, choose: Choose) -> None:
        self._making, self._blocks, self._choose = making, blocks, choose
        self.passes, self.trajectory = Passes(), list[Unmasked]()
        self._begin(len(making.tokens) // blocks.block_size * blocks.block_size)
        if not self._has_room():
            raise PromptError(
                f"the prompt is {len(making.tokens)} tokens long, the block of {blocks.block_size} that is "
                f"filled after it ends at position {self._start + blocks.block_size}, and there are "
                f"{making.positions}; shorten the prompt"
            )

    def _begin(self, start: int) -> None:
        """The block from this position on is the active one."""
        given = list(self._making.tokens[start:])
        self._start, self._given = start, len(given)
        self._masked = [*range(len(given), self._blocks.block_size)]
        self._block: list[Token] = [*given, *[self._blocks.mask_token_id] * len(self._masked)]
        self._step = 0

    def _has_room(self) -> bool:
        return self._start + self._blocks.block_size <= self._making.positions

    @property
    def _wants_first(self) -> bool:
        """Whether the block's first token comes from the block before it."""
        return self._blocks.shifted and self._masked[:1] == [0]

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Frozen blocks, and one token that is always run; of shifted logits the last block is."""
        frozen = self._making.tokens[: self._start]
        return frozen if self._wants_first else [*frozen, self._blocks.mask_token_id]

    @property
    def max_cached_positions(self) -> int:
        """Frozen blocks; but for the last, where its last row is still wanted."""
        return self._start - self._blocks.block_size if self._wants_first else self._start

    def next_input(self, length: int, guesses: int = 0) -> PassInput:  # noqa: ARG002
        frozen, size = self._making.tokens[length : self._start], self._blocks.block_size
        tried, wanted = ([], 1) if self._wants_first else (self._block, size)
        is_answer = len(frozen) <= size
        return PassInput([*frozen, *tried], wanted, len(frozen), size, is_answer)

    def update(self, due: PassInput, rows: Sequence[Row]) -> int:
        done = self.passes
        done.passes += 1
        is_by_itself = self._wants_first or not due.held
        done.commits += is_by_itself and done.blocks > done.committed
        done.committed = done.blocks
        if self._wants_first:
            self._fill(Chosen((0,), (Sampler()(rows[-1]),), (1.0,), (0.0,)))
        else:
            self._fill(self._chosen(rows))
        if not self._masked:
            self._freeze()
        return 0

    def _chosen(self, rows: Sequence[Row]) -> Chosen:
        """Tokens for some of the masked positions, of the part that is filled now."""
        part, making = self._part(), self._making
        logits = [rows[position - self._blocks.shifted] for position in part]
        said = [*making.token_ids, *self._chosen_here()]
        return self._choose(logits, part, self._step, making.prompt_ids, said)

    def _part(self) -> list[int]:
        """The masked positions of the first part of the block that has some."""
        size = self._blocks.sub_block or self._blocks.block_size
        first = self._masked[0] // size
        return [position for position in self._masked if position // size == first]

    def _chosen_here(self) -> list[int]:
        """The tokens that were chosen in this block so far, by position."""
        masked = set(self._masked)
        return ids_among([self._block[at] for at in range(self._given, len(self._block)) if at not in masked])

    def _fill(self, chosen: Chosen) -> None:
        part = self._part()
        for position, token, confidence in zip(*chosen[:3], strict=True):
            self._block[position] = token
            self._masked.remove(position)
            at = self._start + position
            self.trajectory.append(Unmasked(at, token, self.passes.passes, confidence))
        is_done = len(part) == len(chosen.positions)
        self._step = 0 if is_done else self._step + 1

    def _freeze(self) -> None:
        """Say the block's tokens, and begin the next one."""
        self.passes.blocks += 1
        if all(self._making.say(token) for token in ids_among(self._block[self._given :])):
            self._begin(self._start + self._blocks.block_size)
            if not self._has_room():
                self._making.end(FinishReason.CONTEXT)

    def close(self) -> None:
        """Nothing is held."""
