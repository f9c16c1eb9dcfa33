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

from aerie.engine.blocks import FEW_ROWS, ROWS
from aerie.engine.communication import check_alike
from aerie.engine.embeddings import Token, embed, ids_among
from aerie.engine.errors import NoVariantError
from aerie.engine.head import head_rows
from aerie.engine.kv import MaskRule, causal
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.pages import PAGE, PagedSequence, PagePool
from aerie.engine.passes import BatchLayout, ImmediateCalls, Ran, RowsPass, TokenPass
from aerie.engine.planner import Step
from aerie.engine.windows import Window
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
    wanted: int = 1
    by_token: bool = False
    held: int | None = None
    hidden: bool = False
    decode: str = ""
    step: Step | None = None
    repeats: bool = True

    @property
    def first(self) -> int:
        """The position of the first token that is run."""
        return self.sequence.length if self.step is None else self.step.n_past

    @property
    def run(self) -> Sequence[Token]:
        """All tokens that are run."""
        again = self.sequence.token_ids[self.first :] if self.step else ()
        return [*again, *self.tokens] if again else self.tokens


class Executor:
    """Runs steps. One at a time, as its buffers are those of the model's programs.

    `block` is how many positions see each other, from a multiple of it on: 1, or a block of diffusion. A
    piece ends where one does.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, window: Window) -> None:
        self._model, self._pool, self._window = model, pool, window
        self._recorded: dict[tuple[int, int, str], RowsPass] = {}
        self._token_pass: TokenPass | None = None
        self.block = model.config.diffusion.block_size if model.config.diffusion else 1
        self._rows = model.blocks.step_rows

    def is_of(self, model: LoadedModel) -> bool:
        """Whether it runs by this model."""
        return self._model is model

    @property
    def most_rows(self) -> int:
        """Tokens of a step, of all sequences together, at most."""
        return self._rows[-1]

    def width(self, tokens: int) -> int:
        """Rows of the smallest program that takes so many, which are `most_rows` at most."""
        return next(n for n in self._rows if n >= tokens)

    def fits(self, pieces: Sequence[ScheduledTokens]) -> bool:
        """Whether there is a window that these fit in together."""
        if self._model.seq_len:
            return True
        positions = [one.sequence.length + len(one.tokens) for one in pieces if not one.by_token]
        try:
            self._window.context_for(positions)
        except NoVariantError:
            return False
        return True

    def needed_for(self, steps: Sequence[int], positions: int) -> Iterator[str]:
        """The programs of a sequence by itself, whose prompt is read in steps of so many tokens, and that has
        so many positions in all: those of these steps, and of passes with drafts, or of a block behind a
        frozen one, in every context from there on. NoVariantError."""
        block, drafts, window = self.block, self._rows[1], self._window
        behind = min(2 * block, self.most_rows)
        passes = [(1, 1), (drafts, drafts)] if block == 1 else [(block, block), (behind, block)]
        read = [window.context_for([end]) for end in itertools.accumulate(steps)]
        runs = [(tokens, block, context) for tokens, context in zip(steps, read, strict=True)]
        for context in window.contexts(read[-1], max(read[-1], window.context_for([positions]))):
            runs += [(tokens, wanted, context) for tokens, wanted in passes]
        for tokens, wanted, context in runs:
            step = _step(self.width(tokens), context)
            yield from self._needed(step, self._tail(step, wanted))
            yield self._model.blocks.head(wanted, ROWS)

    def execute(self, pieces: Sequence[ScheduledTokens], ran: Ran | None = None) -> list[Row]:
        """Run these tokens, of different sequences, which hold them then, or as many as `held` says; logits
        of the wanted ones, each (vocab_size,), or where it is `hidden` the last layer's output, piece after
        piece. `ran` is told of programs that are not recorded.

        Raises PoolFullError and NoVariantError before anything is changed; an exception later leaves what
        each sequence holds as it was, or as after the step.
        """
        together = [piece for piece in pieces if not piece.by_token]
        rows, found = iter(self._run(together, ran) if together else ()), list[Row]()
        for piece in pieces:
            if not piece.by_token:
                found += itertools.islice(rows, piece.wanted)
                continue
            row = self.decode(piece)[None][: piece.wanted]
            found += row if piece.hidden else head_rows(self._model, row, piece.decode) if len(row) else ()
            piece.sequence.advance(piece.tokens, in_blocks=False)
        return found

    def decode(self, piece: ScheduledTokens) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token by GEMVs, whose keys and values are written
        then; the sequence does not count it yet."""
        sequence, position = piece.sequence, piece.sequence.length
        sequence.reserve(1)
        seen = sequence.index(self._model.mask(position))
        token_pass = self._token_pass
        if not (token_pass and token_pass.serves(self._model, seen)):
            token_pass = self._token_pass = TokenPass(self._model, self._pool, seen)
        place = sequence.pages[position // PAGE] * PAGE + position % PAGE
        return token_pass(ids_among(piece.tokens)[0], position, place, seen)

    def _run(self, pieces: Sequence[ScheduledTokens], ran: Ran | None) -> list[Row]:
        """As execute, for what goes in rows; by the six programs, a prompt after the other."""
        if self._model.seq_len and len(pieces) > 1:
            return [row for piece in pieces for row in self._run([piece], ran)]
        hidden = self.hidden(pieces, ran)
        rows = self._wanted(pieces, hidden)
        for piece in pieces:
            self.keep(piece.sequence, piece.tokens[: piece.held])
        return rows

    def _wanted(self, pieces: Sequence[ScheduledTokens], hidden: BF16Array) -> list[Row]:
        """What is wanted of the wanted rows: logits, by each one's family, or they themselves."""
        families = [ROWS_AS_THEY_ARE if each.hidden else each.decode for each in pieces]
        of_row = np.repeat(families, [piece.wanted for piece in pieces])
        made = {
            family: iter(head_rows(self._model, hidden[of_row == family], family))
            for family in dict.fromkeys(families)
            if family != ROWS_AS_THEY_ARE and (of_row == family).any()
        }
        return [next(made[each]) if each in made else row for row, each in zip(hidden, of_row, strict=True)]

    def keep(self, sequence: PagedSequence, tokens: Sequence[Token]) -> None:
        """Have a sequence hold tokens that stood after those it holds in the last step that it was in."""
        if tokens:
            sequence.advance(tokens)
            self._window.wrote(sequence)

    def hidden(self, pieces: Sequence[ScheduledTokens], ran: Ran | None = None) -> BF16Array:
        """The last layer's output for the wanted rows, whose keys and values are written then; the sequences
        do not count them yet."""
        model, step = self._model, self._step_of(pieces)
        for piece in pieces:
            piece.sequence.reserve(len(piece.tokens))
        if model.seq_len:
            rows = _rows_of(pieces, [0], step.variant, 0, 1, model.mask)
        else:
            ends = {one.sequence: one.sequence.length + len(one.tokens) for one in pieces}
            bases = self._window.place(ends, step.context)
            rows = _rows_of(pieces, bases, step.variant, step.context, self.block, model.mask)
        with model.host_timer("embedding"):
            x = embed(model.embed_table, [token for piece in pieces for token in piece.run])
        tail = self._tail_of(pieces, step)
        model.supply(self._needed(step, tail))
        check_alike(model.group, zlib.crc32(x.tobytes(), zlib.crc32(rows.positions.tobytes())))
        is_recorded = step.variant <= FEW_ROWS and pieces[0].repeats
        is_full = len(x) == step.variant
        return model.each(lambda part: self._pass(part, step, is_recorded, is_full, ran)(x, rows, tail))

    def _step_of(self, pieces: Sequence[ScheduledTokens]) -> Step:
        """By which variant these go."""
        if len(pieces) == 1 and pieces[0].step:
            return pieces[0].step
        if self._model.seq_len:
            (step,) = self._model.blocks.plan(len(pieces[0].tokens), pieces[0].sequence.length)
            return step
        width = self.width(sum(len(piece.tokens) for piece in pieces))
        return _step(
            width, self._window.context_for([one.sequence.length + len(one.tokens) for one in pieces])
        )

    def _tail_of(self, pieces: Sequence[ScheduledTokens], step: Step) -> Step | None:
        wanted = sum(piece.wanted for piece in pieces)
        if pieces[0].step or self._model.seq_len:
            return self._model.blocks.tail(step, range(wanted)) if wanted else None
        return self._tail(step, wanted)

    def _tail(self, step: Step, wanted: int) -> Step | None:
        """By which what is wanted goes through the rest of the last layer, by as few rows as it may take."""
        at_once = step.variant > FEW_ROWS or self._model.blocks.devices > 1
        if not (at_once and 0 < wanted <= FEW_ROWS):
            return None
        return _step(next(n for n in LM_HEAD_ROWS if n >= wanted), step.context)

    def _needed(self, step: Step, tail: Step | None) -> Iterator[str]:
        """The programs of a step."""
        yield from self._model.blocks.names(step)
        if tail:
            yield from self._model.blocks.names(tail)[1:]

    def _pass(
        self, part: LoadedModel, step: Step, is_recorded: bool, is_full: bool, ran: Ran | None
    ) -> RowsPass:
        """For steps of this variant in the window as it is; kept where its calls can be noted."""
        key = step.variant, step.context, self._window.slot
        if is_recorded and (found := self._recorded.get(key)) and found.is_current:
            return found
        recording = part.record() if is_recorded else None
        # With fewer tokens, rows of zeros may be left out, and cost less.
        costs = part.blocks.costs if is_full and part.blocks.devices == 1 else None
        calls = recording or ImmediateCalls(part, ran if part.part == 0 else None, costs)
        made = RowsPass(part, step, self._window, self._pool, calls)
        if recording:
            self._recorded[key] = made
        return made


ROWS_AS_THEY_ARE = "hidden"
"""In the place of a family: no LM head."""


def _rows_of(
    pieces: Sequence[ScheduledTokens],
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
    for piece, base in zip(pieces, bases, strict=True):
        first, end = piece.first, piece.sequence.length + len(piece.tokens)
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
        to_pool.append(piece.sequence.places(first, end - first))
        wanted.append(np.arange(rows.stop - piece.wanted, rows.stop))
        row = rows.stop
    return BatchLayout(positions, seen, *map(np.concatenate, (to_window, to_pool, wanted)))


def _step(rows: int, context: int) -> Step:
    """A step of these sizes, whatever is in it."""
    return Step(rows, context, 0, 0, rows, 0, 0)
