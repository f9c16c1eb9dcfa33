"""Many requests over one model: which tokens of which go into the next pass through the weights.

Every step has a token of each answer that is under way, and as many tokens of prompts as its rows take, in
the order of their turns. A turn is the step in which a request came, PATIENCE steps sooner for each level of
priority: so the urgent pass others by, and nobody for ever. A request comes in when the pool has pages for
its prompt, and is refused where nobody is under way who could give any. Where pages run out, the request
under way whose turn is last gives its pages back and waits again: they are put aside where that is cheaper
(`_is_put_aside`), else what they had is read anew later, as far as nobody took them. Either way no bit
changes and no token is drawn twice, so an answer has the tokens that it would have alone.

What is read and not answered (`read`: embeddings, how likely the tokens of a prompt are) is in the same
steps. It takes turns a level later, MOST_READ at once, and has READ_TOKENS of a step by itself; beside
answers READ_ROWS, and what rows their program leaves. So who comes for an answer waits for one such step, and
neither stands still for the other.

Nothing runs by itself: whoever asks for a token takes a step for all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from aerie.engine.blocks import GUIDE
from aerie.engine.composing import Composition, beginning_of
from aerie.engine.embeddings import Token
from aerie.engine.generate import Recover, check_asked, give_up
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import bf16
from aerie.engine.pages import PAGE, Aside, Paged, PagePool, PoolFullError, page_bytes
from aerie.engine.progress import undisturbed
from aerie.engine.ragged import Piece, Ragged
from aerie.engine.requests import Reading, Request, check_blocks, check_reading
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.adapting import shared_out
from aerie.engine.strategies.manner import default_maker
from aerie.engine.strategies.reading import Take, read_by
from aerie.engine.strategies.strategy import NO_GUESSES, Due, Maker, Row
from aerie.engine.windows import Window
from aerie.runtime import RunError

Rows: TypeAlias = "list[Row]"
Prompt: TypeAlias = "Sequence[Token] | Composition"

MOST_ANSWERS = 32
"""Under way at once: rows of the largest program that reads each weight once for few rows."""
PATIENCE = 1000
"""Steps by which a request of one level of priority more may have come later and goes first all the same."""
BEHIND = -1
"""The priority of what is read and not answered."""
STEP_TOKENS = 512
"""Of a step, at most: a longer prompt is read in several, between which answers go on."""

MOST_READ = 2
"""Under way at once of what is read and not answered: each sees its own, so more in a step save nothing."""
READ_TOKENS = 128
"""Of a step with nothing else in it: who comes meanwhile waits for its end."""
READ_ROWS = 8
"""Of a step with answers in it, at least: those take at most the next larger program for it."""


@dataclass(frozen=True)
class Counts:
    """What a scheduler has done: steps, rows of all of them, requests that gave their pages back, those of
    them whose pages were put aside, tokens of prompts that were found in the pool, and such that were laid
    from chunks."""

    steps: int = 0
    rows: int = 0
    preemptions: int = 0
    swaps: int = 0
    cached_tokens: int = 0
    laid_tokens: int = 0


class _Chosen(NamedTuple):
    """What is run of a request in a step."""

    request: Request
    due: Due
    piece: Piece


class Scheduler:
    """Requests that share a model, a pool of pages and a window on it. One thread at a time.

    clock: seconds, of the requests' figures.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: PagePool,
        window: Callable[[LoadedModel], Window],
        recover: Recover = give_up,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counts, self.clock = Counts(), clock
        self._arrivals = itertools.count()
        self.pool, self._window, self._recover = pool, window, recover
        self.go_on_with(model)
        self._waiting: list[Request] = []
        self._running: dict[Request, Paged] = {}
        self._aside: dict[Request, Aside] = {}

    def go_on_with(self, model: LoadedModel) -> None:
        """Make what is left by this model: another device's, or the first one. The pool stays."""
        self.model, self._ragged = model, Ragged(model, self.pool, self._window(model))
        self._by_token = model.blocks.decode == GUIDE

    def turn_of(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""
        return self.counts.steps - PATIENCE * priority, next(self._arrivals)

    def submit(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampler: Sampler,
        priority: int = 0,
        strategy: Maker | None = None,
    ) -> Request:
        """A request that waits for its turn; strategy: how it is made, None for the model's own way.
        PromptError and UserError for what cannot be run at all."""
        begins = beginning_of(prompt)
        check_asked(self.model, begins.tokens, max_tokens, sampler)
        maker = strategy or default_maker(self.model.config, sampler)
        return self._added(Request(self, begins, max_tokens, sampler, priority, maker))

    def read(self, prompt: Prompt, take: Take, hidden: bool = False) -> Request:
        """A request that reads a prompt and says nothing: `take` is told the rows of its tokens, in order,
        step by step. They are the logits, (vocab_size,), or with `hidden` the last layer's output,
        (hidden_size,) bf16. Raises as submit."""
        begins, maker = beginning_of(prompt), read_by(take, hidden, self._ragged.block)
        check_asked(self.model, begins.tokens, 1, sampler := Sampler())
        return self._added(Request(self, begins, 1, sampler, BEHIND, maker, is_read=True))

    def _added(self, request: Request) -> Request:
        pages = -(-(len(request.prompt) + 1) // PAGE)
        if pages > self.pool.manager.pages:
            raise PoolFullError(pages, self.pool.manager.pages, self.pool.manager.pages)
        self._waiting.append(request)
        return request

    def held(self, request: Request) -> int:
        """How many positions a request has in the pool."""
        return self._running[request].length if request in self._running else 0

    def make_room(self, prompt: int, more: int) -> None:
        """Have the programs that a sequence by itself needs, of so many tokens and so many more, so that none
        is compiled in the middle of it. NoVariantError, and what compiling raises."""
        positions = min(prompt + more + self._ragged.block - 1, self.model.positions)
        self.model.supply(self._ragged.needed_for(list(self._steps_of(prompt)), positions))

    def _steps_of(self, prompt: int) -> Iterator[int]:
        """In how many tokens each a prompt of so many is read by itself, with the first block after it."""
        block = self._ragged.block
        left = prompt if block == 1 else (prompt // block + 1) * block
        while left:
            yield (taken := self._whole(left, self._rows_for(left), others=False))
            left -= taken

    def new_sequence(self) -> Paged:
        """An empty one, in the pool that all share."""
        self.pool.take_back()
        return Paged(self.pool)

    def forward(
        self,
        prompts: Sequence[Prompt],
        wanted: Sequence[int] | None = None,
        after: Sequence[tuple[Paged, int]] = (),
    ) -> list[Rows]:
        """Logits after so many last tokens of each prompt, 1 unless said, each (vocab_size,), in shared
        passes. What is laid of a composition has none.

        after: for each prompt the sequence that it goes on, which holds it then, and from which position;
        else it begins anew, and nothing is held. Nothing is drawn. Raises PromptError for one that cannot be
        run, before anything is changed, and PoolFullError where the pool has no room beside the requests
        that are under way: sequences hold what is before their prompts then.
        """
        self._leave_out()
        begins = [beginning_of(prompt) for prompt in prompts]
        for number, each in enumerate(begins):
            past = after[number][1] if after else 0
            check_reading(each, self.model.config, past, f"request {number}: " if len(begins) > 1 else "")
        check_blocks([first for _, first in after], self._ragged.block)
        places = after or [(Paged(self.pool, each.key), 0) for each in begins]
        every = zip(begins, places, wanted or [1] * len(begins), strict=True)
        readings = [Reading(one, *place, count, is_kept=bool(after)) for one, place, count in every]
        try:
            while chosen := self._next_of(readings):
                logits = iter(self._run([piece for _, piece in chosen]))
                for reading, piece in chosen:
                    reading.took(piece, logits)
        except BaseException:
            for sequence, first in places:
                sequence.go_back(min(first, sequence.length))
            raise
        return [reading.rows for reading in readings]

    def _next_of(self, readings: Sequence[Reading]) -> list[tuple[Reading, Piece]]:
        """A step of prompts alone, in order, as far as there are rows, pages and room in the window."""
        left = [one.due() for one in readings]
        budget, chosen = self._rows_for(sum(map(len, left))), list[tuple[Reading, Piece]]()
        free = self.pool.manager.free
        for reading, tokens in zip(readings, left, strict=True):
            piece = reading.piece(tokens[: self._whole(len(tokens), budget, bool(chosen))])
            cut, sequence = piece.tokens, piece.sequence
            if not cut or not self._ragged.fits([*(one for _, one in chosen), piece]):
                continue
            needed = sequence.missing(len(cut))
            if needed > free:
                if not chosen:
                    raise PoolFullError(needed, free, self.pool.manager.pages)
                break
            budget, free = budget - len(cut), free - needed
            chosen.append((reading, piece))
        return chosen

    def _whole(self, tokens: int, budget: int, others: bool) -> int:
        """How many of so many tokens are run in a budget of rows: whole blocks, where a model has these."""
        block = self._ragged.block
        return tokens if tokens <= budget else max(budget, 0 if others else block) // block * block

    def step(self) -> None:
        """One pass for all that can be in it. An exception, KeyboardInterrupt too, leaves each request as it
        was before."""
        self._leave_out()
        self._admit()
        self._lay()
        chosen = self._choose()
        if not chosen:
            self._leave_out()
            return
        pieces = [piece for _, _, piece in chosen]
        logits = iter(self._run(pieces))
        rows = sum(len(piece.tokens) for piece in pieces)
        self.counts = replace(self.counts, steps=self.counts.steps + 1, rows=self.counts.rows + rows)
        with undisturbed():
            for request, due, piece in chosen:
                if due.wanted:
                    stay = request.took(due, [*itertools.islice(logits, due.wanted)])
                    self._ragged.keep(piece.sequence, due.tried[:stay])
        self._leave_out()

    def _run(self, pieces: Sequence[Piece]) -> Sequence[Row]:
        try:
            return self._ragged.step(pieces)
        except RunError as error:
            self.go_on_with(self._recover(error, "in a step of several requests"))
        return self._ragged.step(pieces)

    def _leave_out(self) -> None:
        """Let go of what is over or was left; what was computed and not picked from, where a step was broken
        off, is left to be computed again."""
        self.pool.take_back()
        for request, sequence in self._running.items():
            if not request.is_over and sequence.length > (most := request.most_held()):
                sequence.go_back(most)
        for request in [one for one in (*self._waiting, *self._running) if one.is_over]:
            request.close()
            for held in (self._running.pop(request, None), self._aside.pop(request, None)):
                if held:
                    held.release()
        self._waiting = [one for one in self._waiting if not one.is_over]

    def _admit(self) -> None:
        """Take in those whose pages are free, in the order of their turns: nobody is passed by."""
        self._waiting.sort(key=lambda one: one.turn)
        while request := next((one for one in self._waiting if self._has_place(one)), None):
            sequence = Paged(self.pool, request.begins.key)
            found = sequence.begin(self._findable(request))
            if (missing := sequence.missing(len(request.tokens) - found)) > self.pool.manager.free:
                sequence.release()
                if self._running:
                    return
                request.error = PoolFullError(missing, self.pool.manager.free, self.pool.manager.pages)
                self._leave_out()
                continue
            if not request.token_ids:
                request.cached_tokens = found
            self.counts = replace(self.counts, cached_tokens=self.counts.cached_tokens + found)
            self._waiting.remove(request)
            self._running[request] = sequence
            sequence.reserve(len(request.tokens) - found)
            if aside := self._aside.pop(request, None):
                aside.put_back(sequence)

    def _has_place(self, request: Request) -> bool:
        """Whether there are fewer of its kind under way than can be at once."""
        of_its_kind = sum(one.is_read == request.is_read for one in self._running)
        return of_its_kind < (MOST_READ if request.is_read else MOST_ANSWERS)

    def _lay(self) -> None:
        """Give sequences what is laid next of their chunks."""
        for request, sequence in self._running.items():
            laid = request.lay(sequence)
            request.cached_tokens += 0 if request.token_ids else laid
            self.counts = replace(self.counts, laid_tokens=self.counts.laid_tokens + laid)

    def _choose(self) -> list[_Chosen]:
        """The pieces of the next step: answers first, then prompts, as far as there are rows, pages and room
        in the window; what is read and not answered has rows of its own."""
        dues = self._dues()
        order = sorted(self._running, key=lambda one: (not self._is_first(one, dues[one]), one.turn))
        rows = self._shares(dues)
        chosen: list[_Chosen] = []
        for request in order:
            due = dues[request].cut(max(rows[request.is_read], 0 if chosen else dues[request].whole))
            if not due.tokens or request not in self._running:
                continue
            if not self._has_pages(request, len(due.tokens), [one for one, _, _ in chosen]):
                continue
            sequence = self._running[request]
            piece = Piece(sequence, due.tokens, due.wanted, self._is_decoding(request), due.held, due.hidden)
            if self._ragged.fits([*(each.piece for each in chosen), piece]):
                chosen.append(_Chosen(request, due, piece))
                rows[request.is_read] -= len(due.tokens)
        return chosen

    def _is_first(self, request: Request, due: Due) -> bool:
        """Whether it goes before prompts: an answer, and what was passed by for long."""
        return due.is_answer or (request.is_read and request.turn[0] <= self.counts.steps)

    def _shares(self, dues: Mapping[Request, Due]) -> dict[bool, int]:
        """How many rows of the next step are for answers and their prompts (False), and how many for what is
        read and not answered (True)."""
        read = sum(len(due.tokens) for one, due in dues.items() if one.is_read)
        asked = self._rows_for(sum(len(due.tokens) for due in dues.values()) - read)
        if not (read and asked):
            return {False: asked, True: min(self._rows_for(read), READ_TOKENS)}
        most, least = self._ragged.most_rows, min(read, max(READ_ROWS, self._ragged.block))
        if least + sum(len(due.tokens) for due in dues.values() if due.is_answer) > most:
            least *= self.counts.steps % READ_ROWS == 0  # answers that leave no row make way for it at times
        asked = min(asked, most - least)
        return {False: asked, True: min(read, self._ragged.width(asked + least) - asked) if least else 0}

    def _dues(self) -> dict[Request, Due]:
        """What of each can be run, with as many guesses as pay."""
        dues = {one: self._due(one) for one in self._running}
        answers, each = sum(due.is_answer for due in dues.values()), [due.guesses for due in dues.values()]
        asked = [(one, count) for one, count in zip(dues, shared_out(answers, each), strict=True) if count]
        return dues | {one: one.due(self._running[one].length, count) for one, count in asked}

    def _due(self, request: Request) -> Due:
        """What of it can be run, without guesses; one token, where it is decoded in the family guide."""
        due = request.due(self._running[request].length)
        return due.cut(1)._replace(guesses=NO_GUESSES) if self._is_decoding(request) else due

    def _findable(self, request: Request) -> Sequence[Token]:
        """Its tokens that may be looked for, and one after them; in guide these are its prompt."""
        tokens = request.findable()
        return tokens[: len(request.prompt) + 1] if self._by_token else tokens

    def _is_decoding(self, request: Request) -> bool:
        """Whether its next token is decoded in the family guide: it was made by the model."""
        return self._by_token and self._running[request].length >= len(request.prompt)

    def _rows_for(self, tokens: int) -> int:
        """How many rows the next step has, of so many that could run: as the planner cuts a prompt."""
        most = min(tokens, STEP_TOKENS, self._ragged.most_rows)
        return self.model.blocks.plan(most, 0)[0].n_process if most > MOST_ANSWERS else most

    def _has_pages(self, request: Request, count: int, stay: Sequence[Request]) -> bool:
        """Whether there are pages to write so many tokens; where not, others give way, but for those that
        stay and those whose turn is before this one's."""
        sequence = self._running[request]
        while (missing := sequence.missing(count)) > self.pool.manager.free:
            others = [one for one in self._running if one is not request and one not in stay]
            victim = max(others, key=lambda one: one.turn, default=None)
            if victim is None or victim.turn < request.turn:
                if len(self._running) == 1:
                    request.error = PoolFullError(missing, self.pool.manager.free, self.pool.manager.pages)
                return False
            self._preempt(victim)
        sequence.reserve(count)
        return True

    def _preempt(self, request: Request) -> None:
        sequence = self._running.pop(request)
        swaps = self._is_put_aside(sequence)
        if swaps:
            self._aside[request] = sequence.put_aside()
        sequence.release()
        self._waiting.append(request)
        done = self.counts
        self.counts = replace(done, preemptions=done.preemptions + 1, swaps=done.swaps + swaps)

    def _is_put_aside(self, sequence: Paged) -> bool:
        """Whether there is room for its pages aside, and to copy them there and back moves fewer bytes than
        to read the layers' weights for the tokens that would be read anew, in passes of 32 rows: those of
        pages that nobody else holds, as the others' are found again."""
        if len(sequence.pages) > self.pool.spare.free:
            return False
        config = self.model.stored
        own = sequence.length - PAGE * sum(map(self.pool.manager.is_shared, sequence.pages))
        weights = bf16.itemsize * config.num_hidden_layers * config.layer_weights
        copied = 4 * len(sequence.pages) * page_bytes(config)  # read and written, twice
        return copied < weights * -(-own // MOST_ANSWERS)
