"""A step of several sequences at once: rows of each, in one pass through the weights.

Products do not know which sequence a row belongs to, and attention is told by the mask. So a row has the bits
that it would have alone, whatever stands beside it (windows.py), in the family `rows`. In the family `guide`
a token that is decoded goes its own way, by GEMVs and attention on the host, which reads the sequence's pages
where they lie: it has the bits that it has in a cache of its own.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import NewRows
from aerie.engine.blocks import FEW_ROWS
from aerie.engine.communication import check_alike
from aerie.engine.embeddings import Token, embed, ids_among
from aerie.engine.errors import NoVariantError
from aerie.engine.forward import head_rows
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16
from aerie.engine.pages import Paged, PagePool
from aerie.engine.passes import AtOnce, BlockCalls, TokenPass
from aerie.engine.planner import Step
from aerie.engine.windows import Window
from aerie.kernel_builder.arguments import bit_words
from aerie.multi_launch_builder.variants import LM_HEAD_ROWS
from aerie.runtime import HostWork, Recording


class Piece(NamedTuple):
    """The next tokens of a sequence, 1 or more, and of how many of the last ones logits are wanted.
    `decoded`: it is one token, which is decoded in the family guide. held: the sequence holds the first so
    many of them afterwards, None for all; it has the rest only where `Ragged.keep` says so. hidden: the last
    layer's output is wanted, (hidden_size,) bf16 each, in place of logits."""

    sequence: Paged
    tokens: Sequence[Token]
    wanted: int = 1
    decoded: bool = False
    held: int | None = None
    hidden: bool = False


class Ragged:
    """Runs steps of several sequences. One at a time, as its buffers are those of the model's programs.

    `block` is how many positions see each other, from a multiple of it on: 1, or a block of diffusion. A
    piece ends where one does.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, window: Window) -> None:
        self._model, self._pool, self._window = model, pool, window
        self._recorded: dict[tuple[int, int, str], _Pass] = {}
        self._token_pass: TokenPass | None = None
        self.block = model.config.diffusion.block_size if model.config.diffusion else 1
        self._rows = model.blocks.step_rows

    @property
    def most_rows(self) -> int:
        """Tokens of a step, of all sequences together, at most."""
        return self._rows[-1]

    def width(self, tokens: int) -> int:
        """Rows of the smallest program that takes so many, which are `most_rows` at most."""
        return next(n for n in self._rows if n >= tokens)

    def fits(self, pieces: Sequence[Piece]) -> bool:
        """Whether there is a window that these fit in together."""
        positions = [one.sequence.length + len(one.tokens) for one in pieces if not one.decoded]
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
            yield from self._needed(self.width(tokens), wanted, context)
            yield self._model.blocks.head(wanted)

    def step(self, pieces: Sequence[Piece]) -> list[BF16Array | F32Array]:
        """Run these tokens, of different sequences, which hold them then, or as many as `Piece.held` says;
        logits of the wanted ones, each (vocab_size,), or the rows of `Piece.hidden`, piece after piece.

        Raises PoolFullError and NoVariantError before anything is changed; an exception later leaves what
        each sequence holds as it was, or as after the step.
        """
        together = [piece for piece in pieces if not piece.decoded]
        rows = iter(self._step(together) if together else ())
        found = [self._decode(one) if one.decoded else itertools.islice(rows, one.wanted) for one in pieces]
        return [*itertools.chain.from_iterable(found)]

    def _decode(self, piece: Piece) -> list[BF16Array | F32Array]:
        """One token in the family guide."""
        sequence, position = piece.sequence, piece.sequence.length
        sequence.reserve(1)
        seen = sequence.places(0, position + 1)
        if not (self._token_pass and self._token_pass.serves(self._model, seen)):
            self._token_pass = TokenPass(self._model, self._pool.layers, seen)
        row = self._token_pass(ids_among(piece.tokens)[0], position, seen, place=int(seen[-1]))
        logits = head_rows(self._model, row[None])[: piece.wanted]
        sequence.advance(piece.tokens, by_blocks=False)
        return logits

    def _step(self, pieces: Sequence[Piece]) -> list[BF16Array | F32Array]:
        """As step, for what goes through blocks."""
        total = sum(len(piece.tokens) for piece in pieces)
        width = self.width(total)
        for piece in pieces:
            piece.sequence.reserve(len(piece.tokens))
        ends = {one.sequence: one.sequence.length + len(one.tokens) for one in pieces}
        bases = self._window.place(ends)
        hidden = self._hidden(pieces, bases, width)
        rows = self._wanted(pieces, hidden)
        for piece in pieces:
            self.keep(piece.sequence, piece.tokens[: piece.held])
        return rows

    def _wanted(self, pieces: Sequence[Piece], hidden: BF16Array) -> list[BF16Array | F32Array]:
        """What is wanted of the wanted rows: logits, or they themselves."""
        as_is = np.repeat([piece.hidden for piece in pieces], [piece.wanted for piece in pieces])
        through_head = hidden[~as_is]
        logits = iter(head_rows(self._model, through_head) if len(through_head) else [])
        return [row if stays else next(logits) for row, stays in zip(hidden, as_is, strict=True)]

    def keep(self, sequence: Paged, tokens: Sequence[Token]) -> None:
        """Have a sequence hold tokens that stood after those it holds in the last step that it was in."""
        if tokens:
            sequence.advance(tokens)
            self._window.wrote(sequence)

    def _hidden(self, pieces: Sequence[Piece], bases: Sequence[int], width: int) -> BF16Array:
        """The last layer's output for the wanted rows."""
        model, stand = self._model, _Stand.of(pieces, bases, width, self._window.context, self.block)
        with model.host_timer("embedding"):
            x = np.zeros((width, model.config.hidden_size), bf16)
            tokens = [token for piece in pieces for token in piece.tokens]
            x[: len(tokens)] = embed(model.embed_table, tokens)
        model.supply(self._needed(width, len(stand.wanted), self._window.context))
        check_alike(model.group, zlib.crc32(x.tobytes(), zlib.crc32(stand.positions.tobytes())))
        return model.each(lambda part: self._pass(part, width)(x, stand))

    def _needed(self, width: int, wanted: int, context: int) -> Iterator[str]:
        """The programs of a step of so many rows, and of what is wanted of it, by as few as it may take."""
        names = self._model.blocks.names
        yield from names(_block(width, context))
        at_once = width > FEW_ROWS or self._model.blocks.devices > 1
        if at_once and 0 < wanted <= FEW_ROWS:
            yield from names(_block(_few(wanted), context))[1:]

    def _pass(self, part: LoadedModel, width: int) -> _Pass:
        """For steps of so many rows in the window as it is; kept where its calls can be noted."""
        key = width, self._window.context, self._window.slot
        found = self._recorded.get(key)
        if found and found.is_current:
            return found
        recording = part.record() if width <= FEW_ROWS else None
        made = _Pass(part, width, self._window, self._pool, recording)
        if recording:
            self._recorded[key] = made
        return made


class _Stand(NamedTuple):
    """Where the rows of a step stand.

    positions: in their sequences, (rows,), 0 for padding. seen: what each sees of the window, (rows, context)
    bool. to_window, to_pool: where keys and values go, of each row that is no padding. wanted: the rows whose
    results are.
    """

    positions: NDArray[np.int64]
    seen: NDArray[np.bool_]
    to_window: NDArray[np.int64]
    to_pool: NDArray[np.int64]
    wanted: NDArray[np.int64]

    @staticmethod
    def of(pieces: Sequence[Piece], bases: Sequence[int], width: int, context: int, block: int = 1) -> _Stand:
        """block: how many positions from a multiple of it on see each other, beside all before them."""
        positions, seen = np.zeros(width, np.int64), np.zeros((width, context), bool)
        to_window, to_pool, wanted, row = [], [], [], 0
        for piece, base in zip(pieces, bases, strict=True):
            first, count = piece.sequence.length, len(piece.tokens)
            rows = slice(row, row + count)
            positions[rows] = np.arange(first, first + count)
            within = np.arange(first + count)
            seen[rows, base : base + first + count] = within // block <= positions[rows, None] // block
            to_window.append(base + positions[rows])
            to_pool.append(piece.sequence.places(first, count))
            wanted.append(np.arange(row + count - piece.wanted, row + count))
            row += count
        return _Stand(positions, seen, *map(np.concatenate, (to_window, to_pool, wanted)))

    def some(self, rows: NDArray[np.int64], width: int) -> _Stand:
        """Of these rows alone, filled up."""
        positions, seen = np.zeros(width, np.int64), np.zeros((width, self.seen.shape[1]), bool)
        positions[: len(rows)], seen[: len(rows)] = self.positions[rows], self.seen[rows]
        return _Stand(positions, seen, self.to_window[:0], self.to_pool[:0], np.arange(len(rows)))


class _Pass:
    """The way of so many rows through all layers in a window: noted once and repeated, or taken at once."""

    def __init__(
        self, model: LoadedModel, width: int, window: Window, pool: PagePool, recording: Recording | None
    ) -> None:
        self._model, self._window, self._recording = model, window, recording
        self._new = NewRows(window.layers), NewRows(pool.layers)
        step = _block(width, window.context)
        self._calls = recording or AtOnce(model)
        self._rows = BlockCalls(model, step, window, self._calls)
        self._x = np.zeros((width, model.config.hidden_size), bf16)
        if recording:
            self._out = self._layers(self._x)

    @property
    def is_current(self) -> bool:
        """Whether the buffers that its calls were noted for are there still."""
        return self._recording is not None and self._recording.is_current

    def __call__(self, x: BF16Array, stand: _Stand) -> BF16Array:
        """The last layer's output for the wanted rows; x: embeddings, (rows, hidden_size)."""
        for new, to in zip(self._new, (stand.to_window, stand.to_pool), strict=True):
            new.move_apart(to)
        self._rows.stand(stand.positions, bit_words(stand.seen))
        if self._recording is None:
            return self._at_once(x, stand)
        self._x[...] = x
        self._recording()
        return self._out[stand.wanted]

    def _layers(self, x: BF16Array) -> BF16Array:
        for layer in range(self._model.config.num_hidden_layers):
            x = self._rows.attend(layer, x, self._rows.project(layer, x, self._keep))
        return x

    def _keep(self, layer: int, *new: BF16Array) -> list[HostWork]:
        return [*itertools.chain.from_iterable(each.works(layer, *new) for each in self._new)]

    def _at_once(self, x: BF16Array, stand: _Stand) -> BF16Array:
        """Of many rows, with the rest of the last layer for the wanted rows alone."""
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last):
            x = self._rows.attend(layer, x, self._rows.project(layer, x, self._keep))
        projected = self._rows.project(last, x, self._keep, on_device=())
        if len(stand.wanted) > FEW_ROWS:
            return self._rows.attend(last, x, projected)[stand.wanted]
        return self._end(last, x, projected["q_roped"], stand) if len(stand.wanted) else x[:0].copy()

    def _end(self, last: int, x: BF16Array, queries: BF16Array, stand: _Stand) -> BF16Array:
        """What the last layer makes of the few rows that are wanted, by the programs of so few."""
        width = _few(len(stand.wanted))
        step = _block(width, self._window.context)
        rows, few = BlockCalls(self._model, step, self._window, self._calls), stand.some(stand.wanted, width)
        rows.stand(few.positions, bit_words(few.seen))
        x, queries = (rows.padded(each[stand.wanted]) for each in (x, queries))
        return rows.attend(last, x, {"q_roped": queries})[: len(stand.wanted)].copy()


def _few(rows: int) -> int:
    """Rows of the smallest program that takes so few."""
    return next(n for n in LM_HEAD_ROWS if n >= rows)


def _block(rows: int, context: int) -> Step:
    """A step of these sizes, whatever is in it."""
    return Step(rows, context, 0, 0, rows, 0, 0)
