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

from aerie.engine.embeddings import Token, ids_only
from aerie.engine.errors import PromptError
from aerie.engine.generate import FinishReason
from aerie.engine.model_family import DiffusionConfig
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.strategy import PassCounts, PassInput, RequestState, Row
from aerie.engine.strategies.unmasking import UnmaskedTokens

Choose: TypeAlias = (
    "Callable[[Sequence[Row], Sequence[int], int, Sequence[int], Sequence[int]], UnmaskedTokens]"
)
"""choosing.Chooser: from logits of the masked positions, which these are, the number of the step in this
block or part, and the ids of prompt and answer, to tokens for some of them."""


class UnmaskedToken(NamedTuple):
    """A token that was chosen: at which position of its sequence, in which pass of its answer, and the
    probability that the model gave it then."""

    position: int
    token: int
    pass_number: int
    confidence: float


class BlockDiffusionStrategy:
    """See Strategy. PromptError where there is no room for a block after the prompt.

    `trajectory` has the tokens of all blocks in the order in which they were chosen.
    """

    def __init__(self, request: RequestState, diffusion: DiffusionConfig, choose: Choose) -> None:
        self._request, self._diffusion, self._choose = request, diffusion, choose
        self.pass_counts, self.trajectory = PassCounts(), list[UnmaskedToken]()
        self._start_block(len(request.tokens) // diffusion.block_size * diffusion.block_size)
        if not self._has_room():
            raise PromptError(
                f"the prompt is {len(request.tokens)} tokens long, the block of {diffusion.block_size} that is "
                f"filled after it ends at position {self._start + diffusion.block_size}, and there are "
                f"{request.positions}; shorten the prompt"
            )

    def _start_block(self, start: int) -> None:
        """The block from this position on is the active one."""
        given = list(self._request.tokens[start:])
        self._start, self._prompt_count = start, len(given)
        self._masked = [*range(len(given), self._diffusion.block_size)]
        self._block: list[Token] = [*given, *[self._diffusion.mask_token_id] * len(self._masked)]
        self._step = 0

    def _has_room(self) -> bool:
        return self._start + self._diffusion.block_size <= self._request.positions

    @property
    def _needs_first_token(self) -> bool:
        """Whether the block's first token comes from the block before it."""
        return self._diffusion.shifted and self._masked[:1] == [0]

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Frozen blocks, and one token that is always run; of shifted logits the last block is."""
        frozen = self._request.tokens[: self._start]
        return frozen if self._needs_first_token else [*frozen, self._diffusion.mask_token_id]

    @property
    def max_cached_positions(self) -> int:
        """Frozen blocks; but for the last, where its last row is still wanted."""
        return self._start - self._diffusion.block_size if self._needs_first_token else self._start

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        frozen, size = self._request.tokens[length : self._start], self._diffusion.block_size
        tried, wanted = ([], 1) if self._needs_first_token else (self._block, size)
        is_answer = len(frozen) <= size
        return PassInput([*frozen, *tried], wanted, len(frozen), size, is_answer)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        done = self.pass_counts
        done.passes += 1
        is_by_itself = self._needs_first_token or not pass_input.kept_count
        done.commits += is_by_itself and done.blocks > done.committed
        done.committed = done.blocks
        if self._needs_first_token:
            self._fill(UnmaskedTokens((0,), (Sampler()(rows[-1]),), (1.0,), (0.0,)))
        else:
            self._fill(self._choose_tokens(rows))
        if not self._masked:
            self._freeze()
        return 0

    def _choose_tokens(self, rows: Sequence[Row]) -> UnmaskedTokens:
        """Tokens for some of the masked positions, of the part that is filled now."""
        part, making = self._part(), self._request
        logits = [rows[position - self._diffusion.shifted] for position in part]
        said = [*making.token_ids, *self._unmasked_ids()]
        return self._choose(logits, part, self._step, making.prompt_ids, said)

    def _part(self) -> list[int]:
        """The masked positions of the first part of the block that has some."""
        size = self._diffusion.sub_block or self._diffusion.block_size
        first = self._masked[0] // size
        return [position for position in self._masked if position // size == first]

    def _unmasked_ids(self) -> list[int]:
        """The tokens that were chosen in this block so far, by position."""
        masked = set(self._masked)
        return ids_only(
            [self._block[at] for at in range(self._prompt_count, len(self._block)) if at not in masked]
        )

    def _fill(self, chosen: UnmaskedTokens) -> None:
        part = self._part()
        for position, token, confidence in zip(*chosen[:3], strict=True):
            self._block[position] = token
            self._masked.remove(position)
            at = self._start + position
            self.trajectory.append(UnmaskedToken(at, token, self.pass_counts.passes, confidence))
        is_done = len(part) == len(chosen.positions)
        self._step = 0 if is_done else self._step + 1

    def _freeze(self) -> None:
        """Say the block's tokens, and begin the next one."""
        self.pass_counts.blocks += 1
        if all(self._request.append_token(token) for token in ids_only(self._block[self._prompt_count :])):
            self._start_block(self._start + self._diffusion.block_size)
            if not self._has_room():
                self._request.finish(FinishReason.CONTEXT)

    def close(self) -> None:
        """Nothing is held."""
