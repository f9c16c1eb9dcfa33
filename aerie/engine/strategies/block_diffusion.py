"""Block diffusion: the answer is filled block by block. Every forward pass turns some masks of a block into
tokens.

Blocks start at multiples of their size from position 0. A position attends to all of its own block and all
before it (executor.py has the mask), also in a prompt. Prompt tokens after its last whole block are the start
of the first block that is filled, and do not change.

The ACTIVE block is computed in every pass, and its keys and values are not kept. A block without masks is
FROZEN: its tokens are appended to the answer, up to the first that ends it, and a pass with its final tokens
writes its keys and values. That pass is the first one of the next block: rows of the frozen block do not
attend to the next block, so they have the bits of a separate pass. If an engine step has no rows for both
blocks, it is a separate pass.

Where logits are shifted, as in Fast-dLLM v2, those at a position predict the token at the next one. The first
token of a block comes from the last row of the block before it, so that block is committed in a separate
pass. It is the most likely token for any settings, as in the authors' code. Parts of a block (`sub_block`)
are filled one after the other.
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
"""unmasking.Unmasker: from logits of the masked positions, these positions, the number of the pass in this
block or part, and the ids of prompt and answer, to tokens for some of the positions."""


class UnmaskedToken(NamedTuple):
    """A token that was chosen: its position in the sequence, the number of the pass, and the probability that
    the model gave it there."""

    position: int
    token: int
    pass_number: int
    confidence: float


class BlockDiffusionStrategy:
    """Fills an answer block by block. Raises PromptError if there is no space for a block after the prompt.

    trajectory: the tokens of all blocks in the order in which they were chosen.
    """

    def __init__(self, request: RequestState, diffusion: DiffusionConfig, choose: Choose) -> None:
        self._request, self._diffusion, self._choose = request, diffusion, choose
        self.pass_counts, self.trajectory = PassCounts(), list[UnmaskedToken]()
        self._start_block(len(request.tokens) // diffusion.block_size * diffusion.block_size)
        if not self._has_room():
            raise PromptError(
                f"the prompt is {len(request.tokens)} tokens long, the block of {diffusion.block_size} that "
                f"is filled after it ends at position {self._start + diffusion.block_size}, and there are "
                f"{request.positions}; shorten the prompt"
            )

    def _start_block(self, start: int) -> None:
        """Make the block at this position the active one."""
        prompt_tokens = list(self._request.tokens[start:])
        self._start, self._prompt_count = start, len(prompt_tokens)
        self._masked = [*range(len(prompt_tokens), self._diffusion.block_size)]
        self._block: list[Token] = [*prompt_tokens, *[self._diffusion.mask_token_id] * len(self._masked)]
        self._step = 0

    def _has_room(self) -> bool:
        return self._start + self._diffusion.block_size <= self._request.positions

    @property
    def _needs_first_token(self) -> bool:
        """Whether the block's first token comes from the block before it."""
        return self._diffusion.shifted and self._masked[:1] == [0]

    @property
    def cacheable_tokens(self) -> Sequence[Token]:
        """Frozen blocks, and one token that is always computed; with shifted logits that is in the last
        block."""
        frozen = self._request.tokens[: self._start]
        return frozen if self._needs_first_token else [*frozen, self._diffusion.mask_token_id]

    @property
    def max_cached_positions(self) -> int:
        """Frozen blocks, without the last one while its last row is still needed."""
        return self._start - self._diffusion.block_size if self._needs_first_token else self._start

    def next_input(self, length: int, draft_count: int = 0) -> PassInput:  # noqa: ARG002
        frozen, size = self._request.tokens[length : self._start], self._diffusion.block_size
        active, logits_count = ([], 1) if self._needs_first_token else (self._block, size)
        is_answer = len(frozen) <= size
        return PassInput([*frozen, *active], logits_count, len(frozen), size, is_answer)

    def update(self, pass_input: PassInput, rows: Sequence[Row]) -> int:
        counts = self.pass_counts
        counts.passes += 1
        is_separate = self._needs_first_token or not pass_input.kept_count
        counts.commits += is_separate and counts.blocks > counts.committed
        counts.committed = counts.blocks
        if self._needs_first_token:
            self._fill(UnmaskedTokens((0,), (Sampler()(rows[-1]),), (1.0,), (0.0,)))
        else:
            self._fill(self._choose_tokens(rows))
        if not self._masked:
            self._freeze()
        return 0

    def _choose_tokens(self, rows: Sequence[Row]) -> UnmaskedTokens:
        """Tokens for some of the masked positions of the current part."""
        part, making = self._part(), self._request
        logits = [rows[position - self._diffusion.shifted] for position in part]
        output_ids = [*making.token_ids, *self._unmasked_ids()]
        return self._choose(logits, part, self._step, making.prompt_ids, output_ids)

    def _part(self) -> list[int]:
        """The masked positions of the first part that has some."""
        size = self._diffusion.sub_block or self._diffusion.block_size
        first = self._masked[0] // size
        return [position for position in self._masked if position // size == first]

    def _unmasked_ids(self) -> list[int]:
        """The tokens chosen in this block so far, by position."""
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
        """Append the block's tokens to the answer, and start the next block."""
        self.pass_counts.blocks += 1
        if all(self._request.append_token(token) for token in ids_only(self._block[self._prompt_count :])):
            self._start_block(self._start + self._diffusion.block_size)
            if not self._has_room():
                self._request.finish(FinishReason.CONTEXT)

    def close(self) -> None:
        """Does nothing: this strategy holds no resources."""
