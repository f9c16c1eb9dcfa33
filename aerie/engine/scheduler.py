"""Many requests over one model: which tokens of which go into the next pass through the weights.

Every step has a token of each answer that is under way, and as many tokens of prompts as its rows take, in
the order of their turns. A turn is the step in which a request came, PRIORITY_LEVEL_STEPS steps sooner for
each level of priority: so the urgent pass others by, and nobody for ever. Pages are given by `admission`.

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
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from aerie.engine.admission import MAX_RUNNING_REQUESTS as MAX_RUNNING_REQUESTS
from aerie.engine.admission import MOST_READ as MOST_READ
from aerie.engine.admission import Admission
from aerie.engine.admission import Counts as Counts
from aerie.engine.blocks import GUIDE
from aerie.engine.composing import Composition, beginning_of
from aerie.engine.decoding import check
from aerie.engine.embeddings import Token
from aerie.engine.executor import Executor, ScheduledTokens
from aerie.engine.forward import prefill_steps
from aerie.engine.generate import Recover, check_asked, give_up, never
from aerie.engine.model import LoadedModel, decoding_in
from aerie.engine.pages import (
    PAGE,
    PagedSequence,
    PagePool,
    PoolFullError,
)
from aerie.engine.planner import Step
from aerie.engine.progress import Bar, no_bar, undisturbed
from aerie.engine.requests import AnswerState, Reading, Request, check_blocks, check_reading
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.adapting import shared_out
from aerie.engine.strategies.decode_config import default_strategy_factory
from aerie.engine.strategies.reading import Take, read_by
from aerie.engine.strategies.strategy import NO_DRAFTS, PassInput, Row, StrategyFactory
from aerie.engine.windows import Window, window_of
from aerie.runtime import RunError

Rows: TypeAlias = "list[Row]"
Prompt: TypeAlias = "Sequence[Token] | Composition"

PRIORITY_LEVEL_STEPS = 1000
"""Steps by which a request of one level of priority more may have come later and goes first all the same."""
BEHIND = -1
"""The priority of what is read and not answered."""
MAX_STEP_TOKENS = 512
"""Of a step, at most: a longer prompt is read in several, between which answers go on."""

READ_TOKENS = 128
"""Of a step with nothing else in it: who comes meanwhile waits for its end."""
READ_ROWS = 8
"""Of a step with answers in it, at least: those take at most the next larger program for it."""


class _Chosen(NamedTuple):
    """What is run of a request in a step."""

    request: Request
    due: PassInput
    piece: ScheduledTokens


class Scheduler(Admission):
    """Requests that share a model, a pool of pages and a window on it. One thread at a time.

    clock: seconds, of the requests' figures.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: PagePool,
        window: Callable[[LoadedModel], Window] = window_of,
        recover: Recover = give_up,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(model, pool)
        self.clock, self._arrivals = clock, itertools.count()
        self._window, self._recover = window, recover
        self.go_on_with(model)

    @staticmethod
    def of(model: LoadedModel) -> Scheduler:
        """With a pool of its own, of as many pages as two sequences have."""
        return Scheduler(model, model.new_pool(2 * -(-model.positions // PAGE)))

    def go_on_with(self, model: LoadedModel) -> None:
        """Make what is left by this model: another device's, or the first one. The pool stays."""
        self.model, self._executor = model, Executor(model, self.pool, self._window(model))

    def turn_of(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""
        return self.counts.steps - PRIORITY_LEVEL_STEPS * priority, next(self._arrivals)

    def submit(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampler: Sampler,
        priority: int = 0,
        strategy: StrategyFactory | None = None,
        decode: str = "",
        is_conversation: bool = False,
        resumes: AnswerState | None = None,
    ) -> Request:
        """A request that waits for its turn. strategy: how it is made, None for the model's own way. decode:
        in which family, "" for the model's. is_conversation, resumes: see Request. PromptError and UserError
        for what cannot be run at all."""
        begins = beginning_of(prompt)
        check_asked(self.model, begins.tokens, max_tokens, sampler)
        family = self._family(decode)
        if strategy:
            check("drafts" if self.model.config.diffusion is None else "blocks", self.model.blocks, family)
        maker = strategy or default_strategy_factory(self.model.config, sampler)
        given = begins, max_tokens, sampler, priority, maker, family
        return self._added(Request(self, *given, is_conversation=is_conversation, resumes=resumes))

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

    def programs_of(self, request: Request) -> int:
        """See requests.Steps."""
        kept = self.kept
        held = kept.sequence.in_common(request.prompt) if kept and not request.resumes else 0
        return prefill_steps(self.model, len(request.prompt) - held, held)

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
                    reading.update(piece, logits)
        except BaseException:
            for sequence, first in places:
                sequence.go_back(min(first, sequence.length))
            raise
        return [reading.rows for reading in readings]

    def _next_of(self, readings: Sequence[Reading]) -> list[tuple[Reading, ScheduledTokens]]:
        """A step of prompts alone, in order, as far as there are rows, pages and room in the window."""
        left = [one.next_input() for one in readings]
        budget, chosen = self._rows_for(sum(map(len, left))), list[tuple[Reading, ScheduledTokens]]()
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
                    stay = request.update(due, [*itertools.islice(logits, due.wanted)])
                    self._executor.keep(piece.sequence, due.tried[:stay])
        if any(request.is_over for request, _, _ in chosen):
            self._leave_out()

    def _run(self, pieces: Sequence[ScheduledTokens], requests: Sequence[Request] = ()) -> Sequence[Row]:
        by_itself = requests[0] if len(requests) == 1 and requests[0].is_conversation else None
        ran = by_itself.ran if by_itself else None
        try:
            return self._executor.execute(pieces, ran)
        except RunError as error:
            where = "in a step of several requests"
            if by_itself:
                where = f"at token {len(by_itself.token_ids) + 1} of the answer"
            self.go_on_with(self._recover(error, where))
        return self._executor.execute(pieces, ran)

    def _choose(self) -> list[_Chosen]:
        """The pieces of the next step: answers first, then prompts, as far as there are rows, pages and room
        in the window; what is read and not answered has rows of its own."""
        asked = [one for one in self._running if one.is_asked]
        if self.model.end.drops:
            asked = [one for one in asked if self._makes_room(one)]
        dues = self._dues(asked)
        if (
            len(asked) == 1
            and asked[0].is_conversation
            and (alone := self._by_itself(asked[0], dues[asked[0]]))
        ):
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

    def _piece(self, request: Request, due: PassInput, step: Step | None = None) -> ScheduledTokens:
        sequence, by_token = self._running[request], self._is_decoding(request)
        given = sequence, due.tokens, due.wanted, by_token, due.held, due.hidden, request.decode, step
        return ScheduledTokens(*given, repeats=step is None or due.is_answer)

    def _by_itself(self, request: Request, due: PassInput) -> _Chosen | None:
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

    def _is_first(self, request: Request, due: PassInput) -> bool:
        """Whether it goes before prompts: an answer, and what was passed by for long."""
        return due.is_answer or (request.is_read and request.turn[0] <= self.counts.steps)

    def _shares(self, dues: Mapping[Request, PassInput]) -> dict[bool, int]:
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

    def _dues(self, asked: Sequence[Request]) -> dict[Request, PassInput]:
        """What of each can be run, with as many guesses as pay."""
        dues = {one: self._due(one) for one in asked}
        if not any(due.guesses.most for due in dues.values()):
            return dues
        answers, each = sum(due.is_answer for due in dues.values()), [due.guesses for due in dues.values()]
        more = [(one, count) for one, count in zip(dues, shared_out(answers, each), strict=True) if count]
        return dues | {one: one.next_input(self._running[one].seen, count) for one, count in more}

    def _due(self, request: Request) -> PassInput:
        """What of it can be run, without guesses: one token, where it is decoded in the family guide, and all
        of a prompt, where the six programs read it."""
        sequence = self._running[request]
        due = request.next_input(sequence.seen)
        if self._is_decoding(request):
            return due.cut(1)._replace(guesses=NO_DRAFTS)
        if request.decode == GUIDE:
            due = due.cut(request.to_read - sequence.seen)
        if self.model.seq_len:
            return due._replace(whole=len(due.tokens))
        return due.cut(self.model.positions - sequence.length) if self.model.end.drops else due

    def _rows_for(self, tokens: int) -> int:
        """How many rows the next step has, of so many that could run: as the planner cuts a prompt."""
        if self.model.seq_len:
            return tokens
        most = min(tokens, MAX_STEP_TOKENS, self._executor.most_rows)
        return self.model.blocks.plan(most, 0)[0].n_process if most > MAX_RUNNING_REQUESTS else most


def answer_alone(
    model: LoadedModel,
    prompt: Prompt,
    max_tokens: int,
    sampler: Sampler,
    interrupted: Callable[[], bool] = never,
    bar: Bar = no_bar,
) -> Request:
    """An answer by itself, in a pool of its own. Raises as Scheduler.submit."""
    request = Scheduler.of(model).submit(prompt, max_tokens, sampler, is_conversation=True)
    request.interrupted, request.bar = interrupted, bar
    return request
