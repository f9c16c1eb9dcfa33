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

Nothing runs by itself: whoever asks for a token takes a step for all. A conversation's answer is a request
like any other, which rests while nobody asks for its next token, and gives way to others then; alone in a
step, its prompt is cut as the planner has it. Its sequence is kept afterwards, for the prompt that begins so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from aerie.common.errors import UserError
from aerie.engine.blocks import GUIDE
from aerie.engine.composing import Composition, beginning_of
from aerie.engine.decoding import check
from aerie.engine.embeddings import Token
from aerie.engine.executor import Executor, Piece
from aerie.engine.forward import prefill_steps
from aerie.engine.generate import Recover, check_asked, give_up, never
from aerie.engine.model import LoadedModel, decoding_in
from aerie.engine.numerics import bf16
from aerie.engine.pages import (
    PAGE,
    Aside,
    PagedSequence,
    PagePool,
    PoolFullError,
    page_bytes,
)
from aerie.engine.planner import Step
from aerie.engine.progress import undisturbed
from aerie.engine.requests import AnswerState, Reading, Request, check_blocks, check_reading
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.adapting import shared_out
from aerie.engine.strategies.manner import default_maker
from aerie.engine.strategies.reading import Take, read_by
from aerie.engine.strategies.strategy import NO_GUESSES, Due, Maker, Row
from aerie.engine.windows import Window, window_of
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


class Kept(NamedTuple):
    """The sequence of the last conversation, the answer in it, and whose it is."""

    sequence: PagedSequence
    answer: AnswerState | None
    request: Request | None = None


class Scheduler:
    """Requests that share a model, a pool of pages and a window on it. One thread at a time.

    `kept` is the sequence of the last conversation. clock: seconds, of the requests' figures.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: PagePool,
        window: Callable[[LoadedModel], Window] = window_of,
        recover: Recover = give_up,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.counts, self.clock = Counts(), clock
        self._arrivals = itertools.count()
        self.pool, self._window, self._recover = pool, window, recover
        self.go_on_with(model)
        self._waiting: list[Request] = []
        self._running: dict[Request, PagedSequence] = {}
        self._aside: dict[Request, Aside] = {}
        self.kept: Kept | None = None

    @staticmethod
    def of(model: LoadedModel) -> Scheduler:
        """With a pool of its own, of as many pages as two sequences have."""
        return Scheduler(model, model.new_pool(2 * -(-model.positions // PAGE)))

    def go_on_with(self, model: LoadedModel) -> None:
        """Make what is left by this model: another device's, or the first one. The pool stays."""
        self.model, self._executor = model, Executor(model, self.pool, self._window(model))
        self._keeps = bool(model.blocks.variants) and model.config.diffusion is None

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
        decode: str = "",
        is_kept: bool = False,
        resumes: AnswerState | None = None,
    ) -> Request:
        """A request that waits for its turn. strategy: how it is made, None for the model's own way. decode:
        in which family, "" for the model's. is_kept, resumes: see Request. PromptError and UserError for
        what cannot be run at all."""
        begins = beginning_of(prompt)
        check_asked(self.model, begins.tokens, max_tokens, sampler)
        family = self._family(decode)
        if strategy:
            check("drafts" if self.model.config.diffusion is None else "blocks", self.model.blocks, family)
        maker = strategy or default_maker(self.model.config, sampler)
        given = begins, max_tokens, sampler, priority, maker, family
        return self._added(Request(self, *given, is_kept=is_kept, resumes=resumes))

    def _family(self, decode: str) -> str:
        """That of a request, whose programs are there then. UserError for one that the model cannot have."""
        model = self.model
        if decode in ("", model.blocks.decode):
            return model.blocks.decode
        if model.config.diffusion:
            check("blocks", model.blocks, decode)
        if model.blocks.devices > 1:
            check("devices", model.blocks, decode)
        return decoding_in(model, decode).blocks.decode

    def read(self, prompt: Prompt, take: Take, hidden: bool = False) -> Request:
        """A request that reads a prompt and says nothing: `take` is told the rows of its tokens, in order,
        step by step. They are the logits, (vocab_size,), or with `hidden` the last layer's output,
        (hidden_size,) bf16. Raises as submit."""
        begins, maker = beginning_of(prompt), read_by(take, hidden, self._executor.block)
        check_asked(self.model, begins.tokens, 1, sampler := Sampler())
        decode = self.model.blocks.decode
        return self._added(Request(self, begins, 1, sampler, BEHIND, maker, decode, is_read=True))

    def _added(self, request: Request) -> Request:
        pages = -(-min(len(request.prompt) + 1, self.model.positions) // PAGE)
        if pages > self.pool.manager.pages:
            raise PoolFullError(pages, self.pool.manager.pages, self.pool.manager.pages)
        self._waiting.append(request)
        return request

    def held(self, request: Request) -> int:
        """See requests.Steps."""
        return self._running[request].seen if request in self._running else 0

    def room(self, request: Request) -> int:
        """See requests.Steps."""
        held = self._running[request].length if request in self._running else 0
        return self.model.positions - held

    def programs_of(self, request: Request) -> int:
        """See requests.Steps."""
        kept = self.kept
        held = kept.sequence.in_common(request.prompt) if kept and not request.resumes else 0
        return prefill_steps(self.model, len(request.prompt) - held, held)

    def retire(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = True
        self._leave_out()

    def resume(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = False
        self._waiting.append(request)

    def make_room(self, prompt: int, more: int) -> None:
        """Have the programs that a sequence by itself needs, of so many tokens and so many more, so that none
        is compiled in the middle of it. NoVariantError, and what compiling raises."""
        positions = min(prompt + more + self._executor.block - 1, self.model.positions)
        self.model.supply(self._executor.needed_for(list(self._steps_of(prompt)), positions))

    def _steps_of(self, prompt: int) -> Iterator[int]:
        """In how many tokens each a prompt of so many is read by itself, with the first block after it."""
        block = self._executor.block
        left = prompt if block == 1 else (prompt // block + 1) * block
        while left:
            yield (taken := self._whole(left, self._rows_for(left), others=False))
            left -= taken

    def new_sequence(self) -> PagedSequence:
        """An empty one, in the pool that all share."""
        self.pool.take_back()
        return PagedSequence(self.pool)

    def forward(
        self,
        prompts: Sequence[Prompt],
        wanted: Sequence[int] | None = None,
        after: Sequence[tuple[PagedSequence, int]] = (),
        decode: str = "",
    ) -> list[Rows]:
        """Logits after so many last tokens of each prompt, 1 unless said, each (vocab_size,), in shared
        passes. What is laid of a composition has none.

        after: for each prompt the sequence that it goes on, which holds it then, and from which position;
        else it begins anew, and nothing is held. Nothing is drawn. decode: the family whose LM head gives
        them, "" for the model's. Raises PromptError for one that cannot be run, before anything is changed,
        and PoolFullError where the pool has no room beside the requests that are under way: sequences hold
        what is before their prompts then; UserError where the programs cannot serve that.
        """
        check("forward", self.model.blocks)
        self._leave_out()
        begins = [beginning_of(prompt) for prompt in prompts]
        for number, each in enumerate(begins):
            past = after[number][1] if after else 0
            check_reading(each, self.model.config, past, f"request {number}: " if len(begins) > 1 else "")
        check_blocks([first for _, first in after], self._executor.block)
        places = after or [(PagedSequence(self.pool, each.key), 0) for each in begins]
        every = zip(begins, places, wanted or [1] * len(begins), strict=True)
        readings = [Reading(one, *place, count, is_kept=bool(after)) for one, place, count in every]
        try:
            while chosen := self._next_of(readings):
                logits = iter(self._run([piece._replace(decode=decode) for _, piece in chosen]))
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
            if not cut or not self._executor.fits([*(one for _, one in chosen), piece]):
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
        block = self._executor.block
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
        logits = iter(self._run(pieces, [request for request, _, _ in chosen]))
        rows = sum(len(piece.tokens) for piece in pieces)
        self.counts = replace(self.counts, steps=self.counts.steps + 1, rows=self.counts.rows + rows)
        with undisturbed():
            for request, due, piece in chosen:
                if due.wanted:
                    stay = request.took(due, [*itertools.islice(logits, due.wanted)])
                    self._executor.keep(piece.sequence, due.tried[:stay])
        if any(request.is_over for request, _, _ in chosen):
            self._leave_out()

    def _run(self, pieces: Sequence[Piece], requests: Sequence[Request] = ()) -> Sequence[Row]:
        by_itself = requests[0] if len(requests) == 1 and requests[0].is_kept else None
        ran = by_itself.ran if by_itself else None
        try:
            return self._executor.execute(pieces, ran)
        except RunError as error:
            where = "in a step of several requests"
            if by_itself:
                where = f"at token {len(by_itself.token_ids) + 1} of the answer"
            self.go_on_with(self._recover(error, where))
        return self._executor.execute(pieces, ran)

    def _leave_out(self) -> None:
        """Let go of what is over or was left; what was computed and not picked from, where a step was broken
        off, is left to be computed again."""
        self.pool.take_back()
        for request, sequence in self._running.items():
            if not request.is_over and sequence.seen > (most := request.most_held()):
                sequence.go_back(max(0, most - sequence.dropped))
        for request in [one for one in (*self._waiting, *self._running) if one.is_over]:
            request.close()
            held = self._running.pop(request, None)
            if held and request.is_kept and self._keeps:
                self._keep(request, held)
            elif held:
                held.release()
            if aside := self._aside.pop(request, None):
                aside.release()
        if self._waiting:
            self._waiting = [one for one in self._waiting if not one.is_over]

    def _keep(self, request: Request, sequence: PagedSequence) -> None:
        """Its sequence, which holds all but the last token of the answer, or less of the prompt."""
        self._let_go()
        last = len(request.tokens) - 1
        if sequence.seen > last:
            sequence.go_back(last - sequence.dropped)
        is_whole = sequence.seen == last and (request.token_ids or request.resumes)
        self.kept = Kept(sequence, request.state if is_whole else None, request)

    def keep(self, sequence: PagedSequence, answer: AnswerState | None) -> None:
        """Have a sequence in the place of the last conversation's."""
        self._let_go()
        self.kept = Kept(sequence, answer)

    def forget(self) -> None:
        """Let go of the last conversation's sequence, and of all beginnings that would be found."""
        self._let_go()
        self.pool.manager.forget_all()

    def _let_go(self) -> None:
        """Of the last conversation's sequence. Its full pages are found until others need them."""
        if self.kept:
            self.kept.sequence.release()
        self.kept = None

    def _admit(self) -> None:
        """Take in those whose pages are free, in the order of their turns: nobody is passed by."""
        if not self._waiting:
            return
        self._waiting.sort(key=lambda one: one.turn)
        while request := next((one for one in self._waiting if self._has_place(one)), None):
            try:
                sequence = self._begun(request)
            except UserError as error:
                request.fail(error)
                self._leave_out()
                continue
            count = min(len(request.tokens) - sequence.seen, self.model.positions - sequence.length)
            if (missing := sequence.missing(count)) > self.pool.manager.free:
                self._have_resting_give_way(missing)
            if (missing := sequence.missing(count)) > self.pool.manager.free:
                sequence.release()
                if any(one.is_asked for one in self._running):
                    return
                request.error = PoolFullError(missing, self.pool.manager.free, self.pool.manager.pages)
                self._leave_out()
                continue
            found = sequence.length
            if not request.token_ids:
                request.cached_tokens = found
            self.counts = replace(self.counts, cached_tokens=self.counts.cached_tokens + found)
            self._waiting.remove(request)
            self._running[request] = sequence
            sequence.reserve(count)
            if aside := self._aside.pop(request, None):
                aside.put_back(sequence)

    def _begun(self, request: Request) -> PagedSequence:
        """A sequence with what is known of a request's tokens. UserError where the answer that it goes on
        with is no longer kept."""
        kept, is_first = self.kept, not request.token_ids and request not in self._aside
        if kept and kept.request is request:
            self.kept = None
            return kept.sequence
        if request.resumes and is_first:
            if not kept or kept.answer is not request.resumes:
                raise UserError(
                    "the answer cannot go on: another one was begun since, and its keys and values are no "
                    "longer kept; give the prompt again"
                )
            self.kept = None
            return kept.sequence
        sequence = PagedSequence(self.pool, request.begins.key)
        sequence.begin(self._findable(request))
        if request.is_kept and is_first and kept:
            held = kept.sequence
            self.kept, common = None, held.in_common(request.prompt)
            other, sequence = (sequence, held) if common > sequence.length else (held, sequence)
            if sequence is held:
                sequence.go_back(common)
                sequence.dropped = 0
            other.release()
        return sequence

    def _have_resting_give_way(self, needed: int) -> None:
        """Free pages of conversations that nobody asks for now, the last one's first."""
        self._let_go()
        resting = sorted((one for one in self._running if not one.is_asked), key=lambda one: one.turn)
        while resting and needed > self.pool.manager.free:
            self._preempt(resting.pop())

    def _has_place(self, request: Request) -> bool:
        """Whether it is asked for, and there are fewer of its kind under way than can be at once."""
        if not request.is_asked:
            return False
        of_its_kind = sum(one.is_asked and one.is_read == request.is_read for one in self._running)
        return of_its_kind < (MOST_READ if request.is_read else MOST_ANSWERS)

    def _lay(self) -> None:
        """Give sequences what is laid next of their chunks."""
        for request, sequence in self._running.items():
            if not (laid := request.lay(sequence)):
                continue
            request.cached_tokens += 0 if request.token_ids else laid
            self.counts = replace(self.counts, laid_tokens=self.counts.laid_tokens + laid)

    def _choose(self) -> list[_Chosen]:
        """The pieces of the next step: answers first, then prompts, as far as there are rows, pages and room
        in the window; what is read and not answered has rows of its own."""
        asked = [one for one in self._running if one.is_asked]
        if self.model.end.drops:
            asked = [one for one in asked if self._makes_room(one)]
        dues = self._dues(asked)
        if len(asked) == 1 and asked[0].is_kept and (alone := self._by_itself(asked[0], dues[asked[0]])):
            return [alone]
        order = sorted(asked, key=lambda one: (not self._is_first(one, dues[one]), one.turn))
        rows = self._shares(dues)
        chosen: list[_Chosen] = []
        for request in order:
            due = dues[request].cut(max(rows[request.is_read], 0 if chosen else dues[request].whole))
            if not due.tokens or request not in self._running:
                continue
            if not self._has_pages(request, len(due.tokens), [one for one, _, _ in chosen]):
                continue
            piece = self._piece(request, due)
            if self._executor.fits([*(each.piece for each in chosen), piece]):
                chosen.append(_Chosen(request, due, piece))
                rows[request.is_read] -= len(due.tokens)
        return chosen

    def _piece(self, request: Request, due: Due, step: Step | None = None) -> Piece:
        sequence, by_token = self._running[request], self._is_decoding(request)
        given = sequence, due.tokens, due.wanted, by_token, due.held, due.hidden, request.decode, step
        return Piece(*given, repeats=step is None or due.is_answer)

    def _makes_room(self, request: Request) -> bool:
        """Whether a sequence that fills the context could drop what its end says."""
        sequence, model = self._running[request], self.model
        if sequence.length < model.positions:
            return True
        gone = model.end.gone(sequence.length)
        if not self._frees(lambda: sequence.missing_to_drop(gone), request, ()):
            return False
        model.make_room(sequence)
        return True

    def _by_itself(self, request: Request, due: Due) -> _Chosen | None:
        """A conversation's next tokens, where nothing else is in the step, as the planner cuts them; None
        where drafts or a block are tried, or where there are no pages for them."""
        if due.tried or due.wanted > 1 or not due.tokens:
            return None
        sequence, step = self._running[request], None
        if not self._is_decoding(request):
            step = self.model.blocks.plan(len(due.tokens), sequence.length, not self.model.end.drops)[0]
            due = due.cut(step.n_process - (sequence.length - step.n_past))
        if not self._has_pages(request, len(due.tokens), ()):
            return None
        return _Chosen(request, due, self._piece(request, due, step))

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
        most, least = self._executor.most_rows, min(read, max(READ_ROWS, self._executor.block))
        if least + sum(len(due.tokens) for due in dues.values() if due.is_answer) > most:
            least *= self.counts.steps % READ_ROWS == 0  # answers that leave no row make way for it at times
        asked = min(asked, most - least)
        return {False: asked, True: min(read, self._executor.width(asked + least) - asked) if least else 0}

    def _dues(self, asked: Sequence[Request]) -> dict[Request, Due]:
        """What of each can be run, with as many guesses as pay."""
        dues = {one: self._due(one) for one in asked}
        if not any(due.guesses.most for due in dues.values()):
            return dues
        answers, each = sum(due.is_answer for due in dues.values()), [due.guesses for due in dues.values()]
        more = [(one, count) for one, count in zip(dues, shared_out(answers, each), strict=True) if count]
        return dues | {one: one.due(self._running[one].seen, count) for one, count in more}

    def _due(self, request: Request) -> Due:
        """What of it can be run, without guesses: one token, where it is decoded in the family guide, and all
        of a prompt, where the six programs read it."""
        sequence = self._running[request]
        due = request.due(sequence.seen)
        if self._is_decoding(request):
            return due.cut(1)._replace(guesses=NO_GUESSES)
        if request.decode == GUIDE:
            due = due.cut(request.to_read - sequence.seen)
        if self.model.seq_len:
            return due._replace(whole=len(due.tokens))
        return due.cut(self.model.positions - sequence.length) if self.model.end.drops else due

    def _findable(self, request: Request) -> Sequence[Token]:
        """Its tokens that may be looked for, and one after them; in guide these are its prompt, and none
        where the six programs read that whole."""
        if aside := self._aside.get(request):
            return aside.findable
        tokens = [] if self.model.seq_len else request.findable()
        return tokens[: request.to_read + 1] if request.decode == GUIDE else tokens

    def _is_decoding(self, request: Request) -> bool:
        """Whether its next token is decoded by GEMVs: in the family guide, what the model made."""
        if request.decode != GUIDE:
            return False
        return self._running[request].seen >= request.to_read

    def _rows_for(self, tokens: int) -> int:
        """How many rows the next step has, of so many that could run: as the planner cuts a prompt."""
        if self.model.seq_len:
            return tokens
        most = min(tokens, STEP_TOKENS, self._executor.most_rows)
        return self.model.blocks.plan(most, 0)[0].n_process if most > MOST_ANSWERS else most

    def _has_pages(self, request: Request, count: int, stay: Sequence[Request]) -> bool:
        """Whether there are pages to write so many tokens; where not, others give way, but for those that
        stay and those whose turn is before this one's."""
        sequence = self._running[request]
        if not self._frees(lambda: sequence.missing(count), request, stay):
            return False
        sequence.reserve(count)
        return True

    def _frees(self, missing: Callable[[], int], request: Request, stay: Sequence[Request]) -> bool:
        """As _has_pages, for so many pages."""
        if missing() > self.pool.manager.free:
            self._have_resting_give_way(missing())
        while (needed := missing()) > self.pool.manager.free:
            others = [one for one in self._running if one is not request and one not in stay]
            victim = max(others, key=lambda one: one.turn, default=None)
            if victim is None or victim.turn < request.turn:
                if len(self._running) == 1:
                    request.error = PoolFullError(needed, self.pool.manager.free, self.pool.manager.pages)
                return False
            self._preempt(victim)
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

    def _is_put_aside(self, sequence: PagedSequence) -> bool:
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


def answer_alone(
    model: LoadedModel,
    prompt: Prompt,
    max_tokens: int,
    sampler: Sampler,
    interrupted: Callable[[], bool] = never,
) -> Request:
    """An answer by itself, in a pool of its own. Raises as Scheduler.submit."""
    request = Scheduler.of(model).submit(prompt, max_tokens, sampler, is_kept=True)
    request.interrupted = interrupted
    return request
