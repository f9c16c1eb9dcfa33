"""The one pass of the engine: a step of some tokens of one sequence or of several, through the weights once.

Products do not know which sequence a row belongs to, and attention is told by the mask. So a row has the bits
that it would have alone, whatever stands beside it (windows.py). What does not go in such rows goes by
itself: in the family `guide` a token that is decoded, by GEMVs and attention on the host, which reads the
sequence's pages where they lie; and a prompt by the six programs, which know of no past.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from aerie.engine.communication import check_ranks_agree
from aerie.engine.embeddings import Token, embed, ids_only
from aerie.engine.errors import NoVariantError
from aerie.engine.forward_passes import BatchLayout, ImmediateCalls, OnProgram, RowsPass, TokenPass
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.head import logits_rows
from aerie.engine.kv_cache import MaskRule, causal
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_pool import PAGE_SIZE, PagedSequence, PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.variant_set import MAX_TAIL_ROWS, ROWS
from aerie.multi_launch_builder.variants import LM_HEAD_ROWS

Row: TypeAlias = "BF16Array | F32Array"
"""Logits after one position, (vocab_size,); or the last layer's output there, (hidden_size,) bf16."""


class ScheduledTokens(NamedTuple):
    """The next tokens of a sequence, 1 or more, and of how many of the last ones logits are wanted.

    by_token: it is one token, which GEMVs decode. held: the sequence holds the first so many of them
    afterwards, None for all; it has the rest only where `Executor.keep` says so. hidden: the last layer's
    output is wanted, (hidden_size,) bf16 each, in place of logits. decode: the family whose LM head gives
    them; "" for the model's. step: by which variant the tokens go, where the planner cut them for it; those
    of the sequence that it begins with are computed anew. repeats: whether steps of so many rows come again
    and again, so that their calls are noted.
    """

    sequence: PagedSequence
    tokens: Sequence[Token]
    logits_count: int = 1
    by_gemv: bool = False
    kept_count: int | None = None
    hidden_only: bool = False
    decode_path: str = ""
    call: VariantCall | None = None
    is_recurring: bool = True

    @property
    def first_position(self) -> int:
        """The position of the first token that is run."""
        return self.sequence.length if self.call is None else self.call.n_past

    @property
    def run_tokens(self) -> Sequence[Token]:
        """All tokens that are run."""
        again = self.sequence.token_ids[self.first_position :] if self.call else ()
        return [*again, *self.tokens] if again else self.tokens


class Executor:
    """Runs steps. One at a time, as its buffers are those of the model's programs.

    `block` is how many positions see each other, from a multiple of it on: 1, or a block of diffusion. A
    piece ends where one does.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, cache: GatheredCache) -> None:
        self._model, self._pool, self._cache = model, pool, cache
        self._recorded: dict[tuple[int, int, str], RowsPass] = {}
        self._token_pass: TokenPass | None = None
        self.diffusion_block = model.config.diffusion.block_size if model.config.diffusion else 1
        self._rows = model.variant_set.batch_rows

    def uses_model(self, model: LoadedModel) -> bool:
        """Whether it runs by this model."""
        return self._model is model

    @property
    def max_rows(self) -> int:
        """Tokens of a step, of all sequences together, at most."""
        return self._rows[-1]

    def padded_rows(self, tokens: int) -> int:
        """Rows of the smallest program that takes so many, which are `most_rows` at most."""
        return next(n for n in self._rows if n >= tokens)

    def can_run(self, scheduled: Sequence[ScheduledTokens]) -> bool:
        """Whether there is a window that these fit in together."""
        if self._model.seq_len:
            return True
        positions = [one.sequence.length + len(one.tokens) for one in scheduled if not one.by_gemv]
        try:
            self._cache.context_for(positions)
        except NoVariantError:
            return False
        return True

    def programs_for(self, steps: Sequence[int], positions: int) -> Iterator[str]:
        """The programs of a sequence by itself, whose prompt is read in steps of so many tokens, and that has
        so many positions in all: those of these steps, and of passes with drafts, or of a block behind a
        frozen one, in every context from there on. NoVariantError."""
        block, drafts, window = self.diffusion_block, self._rows[1], self._cache
        behind = min(2 * block, self.max_rows)
        passes = [(1, 1), (drafts, drafts)] if block == 1 else [(block, block), (behind, block)]
        read = [window.context_for([end]) for end in itertools.accumulate(steps)]
        runs = [(tokens, block, context) for tokens, context in zip(steps, read, strict=True)]
        for context in window.contexts_between(read[-1], max(read[-1], window.context_for([positions]))):
            runs += [(tokens, wanted, context) for tokens, wanted in passes]
        for tokens, wanted, context in runs:
            step = _call(self.padded_rows(tokens), context)
            yield from self._programs_of(step, self._tail(step, wanted))
            yield self._model.variant_set.lm_head(wanted, ROWS)

    def execute(self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None = None) -> list[Row]:
        """Run these tokens, of different sequences, which hold them then, or as many as `held` says; logits
        of the wanted ones, each (vocab_size,), or where it is `hidden` the last layer's output, piece after
        piece. `ran` is told of programs that are not recorded.

        Raises PoolFullError and NoVariantError before anything is changed; an exception later leaves what
        each sequence holds as it was, or as after the step.
        """
        together = [piece for piece in scheduled if not piece.by_gemv]
        rows, found = iter(self._run(together, on_program) if together else ()), list[Row]()
        for piece in scheduled:
            if not piece.by_gemv:
                found += itertools.islice(rows, piece.logits_count)
                continue
            row = self.decode_token(piece)[None][: piece.logits_count]
            found += (
                row
                if piece.hidden_only
                else logits_rows(self._model, row, piece.decode_path)
                if len(row)
                else ()
            )
            piece.sequence.advance(piece.tokens, reusable=False)
        return found

    def decode_token(self, scheduled: ScheduledTokens) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token by GEMVs, whose keys and values are written
        then; the sequence does not count it yet."""
        sequence, position = scheduled.sequence, scheduled.sequence.length
        sequence.reserve(1)
        seen = sequence.pool_index(self._model.mask(position))
        token_pass = self._token_pass
        if not (token_pass and token_pass.can_reuse_for(self._model, seen)):
            token_pass = self._token_pass = TokenPass(self._model, self._pool, seen)
        place = sequence.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
        return token_pass(ids_only(scheduled.tokens)[0], position, place, seen)

    def _run(self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None) -> list[Row]:
        """As execute, for what goes in rows; by the six programs, a prompt after the other."""
        if self._model.seq_len and len(scheduled) > 1:
            return [row for piece in scheduled for row in self._run([piece], on_program)]
        hidden = self.hidden_states(scheduled, on_program)
        rows = self._outputs(scheduled, hidden)
        for piece in scheduled:
            self.accept(piece.sequence, piece.tokens[: piece.kept_count])
        return rows

    def _outputs(self, scheduled: Sequence[ScheduledTokens], hidden: BF16Array) -> list[Row]:
        """What is wanted of the wanted rows: logits, by each one's family, or they themselves."""
        families = [NO_LM_HEAD if each.hidden_only else each.decode_path for each in scheduled]
        of_row = np.repeat(families, [piece.logits_count for piece in scheduled])
        made = {
            family: iter(logits_rows(self._model, hidden[of_row == family], family))
            for family in dict.fromkeys(families)
            if family != NO_LM_HEAD and (of_row == family).any()
        }
        return [next(made[each]) if each in made else row for row, each in zip(hidden, of_row, strict=True)]

    def accept(self, sequence: PagedSequence, tokens: Sequence[Token]) -> None:
        """Have a sequence hold tokens that stood after those it holds in the last step that it was in."""
        if tokens:
            sequence.advance(tokens)
            self._cache.mark_gathered(sequence)

    def hidden_states(
        self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None = None
    ) -> BF16Array:
        """The last layer's output for the wanted rows, whose keys and values are written then; the sequences
        do not count them yet."""
        model, step = self._model, self._call_for(scheduled)
        for piece in scheduled:
            piece.sequence.reserve(len(piece.tokens))
        if model.seq_len:
            rows = _batch_layout(scheduled, [0], step.variant, 0, 1, model.mask)
        else:
            ends = {one.sequence: one.sequence.length + len(one.tokens) for one in scheduled}
            bases = self._cache.gather(ends, step.context)
            rows = _batch_layout(
                scheduled, bases, step.variant, step.context, self.diffusion_block, model.mask
            )
        with model.host_timer("embedding"):
            x = embed(model.embed_table, [token for piece in scheduled for token in piece.run_tokens])
        tail = self._tail_for(scheduled, step)
        model.ensure_programs(self._programs_of(step, tail))
        check_ranks_agree(model.group, zlib.crc32(x.tobytes(), zlib.crc32(rows.positions.tobytes())))
        is_recorded = step.variant <= MAX_TAIL_ROWS and scheduled[0].is_recurring
        is_full = len(x) == step.variant
        return model.run_on_all(
            lambda part: self._pass(part, step, is_recorded, is_full, on_program)(x, rows, tail)
        )

    def _call_for(self, scheduled: Sequence[ScheduledTokens]) -> VariantCall:
        """By which variant these go."""
        if len(scheduled) == 1 and scheduled[0].call:
            return scheduled[0].call
        if self._model.seq_len:
            (step,) = self._model.variant_set.plan(len(scheduled[0].tokens), scheduled[0].sequence.length)
            return step
        width = self.padded_rows(sum(len(piece.tokens) for piece in scheduled))
        return _call(
            width, self._cache.context_for([one.sequence.length + len(one.tokens) for one in scheduled])
        )

    def _tail_for(self, scheduled: Sequence[ScheduledTokens], step: VariantCall) -> VariantCall | None:
        wanted = sum(piece.logits_count for piece in scheduled)
        if scheduled[0].call or self._model.seq_len:
            return self._model.variant_set.tail_call(step, range(wanted)) if wanted else None
        return self._tail(step, wanted)

    def _tail(self, step: VariantCall, wanted: int) -> VariantCall | None:
        """By which what is wanted goes through the rest of the last layer, by as few rows as it may take."""
        at_once = step.variant > MAX_TAIL_ROWS or self._model.variant_set.devices > 1
        if not (at_once and 0 < wanted <= MAX_TAIL_ROWS):
            return None
        return _call(next(n for n in LM_HEAD_ROWS if n >= wanted), step.context)

    def _programs_of(self, step: VariantCall, tail: VariantCall | None) -> Iterator[str]:
        """The programs of a step."""
        yield from self._model.variant_set.call_programs(step)
        if tail:
            yield from self._model.variant_set.call_programs(tail)[1:]

    def _pass(
        self,
        part: LoadedModel,
        step: VariantCall,
        is_recorded: bool,
        is_full: bool,
        on_program: OnProgram | None,
    ) -> RowsPass:
        """For steps of this variant in the window as it is; kept where its calls can be noted."""
        key = step.variant, step.context, self._cache.slot
        if is_recorded and (found := self._recorded.get(key)) and found.is_current:
            return found
        recording = part.record() if is_recorded else None
        # With fewer tokens, rows of zeros may be left out, and cost less.
        costs = part.variant_set.costs if is_full and part.variant_set.devices == 1 else None
        calls = recording or ImmediateCalls(part, on_program if part.local_rank == 0 else None, costs)
        made = RowsPass(part, step, self._cache, self._pool, calls)
        if recording:
            self._recorded[key] = made
        return made


NO_LM_HEAD = "hidden"
"""In the place of a family: no LM head."""


def _batch_layout(
    scheduled: Sequence[ScheduledTokens],
    bases: Sequence[int],
    width: int,
    context: int,
    block: int,
    mask: MaskRule,
) -> BatchLayout:
    """Where the rows of these stand, whose sequences begin at these bases of the window.

    block: how many positions from a multiple of it on see each other, beside all before them; or what a
    position sees is `mask`.
    """
    positions, seen = np.zeros(width, np.int64), np.zeros((width, context), bool)
    to_window, to_pool, wanted, row = [], [], [], 0
    for piece, base in zip(scheduled, bases, strict=True):
        first, end = piece.first_position, piece.sequence.length + len(piece.tokens)
        rows = slice(row, row + end - first)
        positions[rows] = np.arange(first, end)
        own = seen[rows, base : base + end]
        if not context:
            pass  # attention of the six programs knows by itself
        elif mask is causal or block > 1:
            own[...] = np.arange(end) // block <= positions[rows, None] // block
        else:
            for each, position in zip(own, range(first, end), strict=True):
                each[mask(position)] = True
        to_window.append(base + positions[rows])
        to_pool.append(piece.sequence.pool_positions(first, end - first))
        wanted.append(np.arange(rows.stop - piece.logits_count, rows.stop))
        row = rows.stop
    return BatchLayout(positions, seen, *map(np.concatenate, (to_window, to_pool, wanted)))


def _call(rows: int, context: int) -> VariantCall:
    """A step of these sizes, whatever is in it."""
    return VariantCall(rows, context, 0, 0, rows, 0, 0)
