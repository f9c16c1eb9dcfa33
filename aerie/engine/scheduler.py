"""Many requests over one model: which tokens of which go into the next pass through the weights.

Every step has a token of each answer that is under way, and as many tokens of prompts as its rows take, in
the order of their turns. A turn is the step in which a request came, PRIORITY_LEVEL_STEPS steps sooner for
each level of priority: so the urgent pass others by, and nobody for ever. Pages are given by `admission`.

What is read and not answered (`read`: embeddings, how likely the tokens of a prompt are) is in the same
steps. It takes turns a level later, MAX_PREFILL_ONLY_REQUESTS at once, and has MAX_PREFILL_ONLY_TOKENS of a step by itself; beside
answers MIN_PREFILL_ONLY_ROWS, and what rows their program leaves. So who comes for an answer waits for one such step, and
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

from aerie.engine.admission import MAX_PREFILL_ONLY_REQUESTS as MAX_PREFILL_ONLY_REQUESTS
from aerie.engine.admission import MAX_RUNNING_REQUESTS as MAX_RUNNING_REQUESTS
from aerie.engine.admission import Admission
from aerie.engine.admission import SchedulerStats as SchedulerStats
from aerie.engine.composed_prompt import ComposedPrompt, prompt_source
from aerie.engine.decode_paths import check_feature
from aerie.engine.embeddings import Token
from aerie.engine.executor import Executor, ScheduledTokens
from aerie.engine.forward import prefill_call_count
from aerie.engine.gathered_cache import GatheredCache, gathered_cache_for
from aerie.engine.generate import Recover, check_generation, never_interrupted, raise_error
from aerie.engine.model import LoadedModel, with_decode_path
from aerie.engine.page_pool import (
    PAGE_SIZE,
    PagedSequence,
    PagePool,
    PoolFullError,
)
from aerie.engine.planner import VariantCall
from aerie.engine.reporter import Bar, defer_interrupt, no_bar
from aerie.engine.requests import (
    AnswerState,
    LogitsRequest,
    Request,
    check_block_boundary,
    check_forward_prompt,
)
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.decode_config import default_strategy_factory
from aerie.engine.strategies.draft_length import allocate_drafts
from aerie.engine.strategies.prefill_only import OnRows, prefill_only_factory
from aerie.engine.strategies.strategy import NO_DRAFTS, PassInput, Row, StrategyFactory
from aerie.engine.variant_set import GUIDE
from aerie.runtime import RunError

Rows: TypeAlias = "list[Row]"
Prompt: TypeAlias = "Sequence[Token] | ComposedPrompt"

PRIORITY_LEVEL_STEPS = 1000
"""Steps by which a request of one level of priority more may have come later and goes first all the same."""
PREFILL_ONLY_PRIORITY = -1
"""The priority of what is read and not answered."""
MAX_STEP_TOKENS = 512
"""Of a step, at most: a longer prompt is read in several, between which answers go on."""

MAX_PREFILL_ONLY_TOKENS = 128
"""Of a step with nothing else in it: who comes meanwhile waits for its end."""
MIN_PREFILL_ONLY_ROWS = 8
"""Of a step with answers in it, at least: those take at most the next larger program for it."""


class _ScheduledRequest(NamedTuple):
    """What is run of a request in a step."""

    request: Request
    pass_input: PassInput
    scheduled: ScheduledTokens


class Scheduler(Admission):
    """Requests that share a model, a pool of pages and a window on it. One thread at a time.

    clock: seconds, of the requests' figures.
    """

    def __init__(
        self,
        model: LoadedModel,
        pool: PagePool,
        gathered_cache: Callable[[LoadedModel], GatheredCache] = gathered_cache_for,
        recover: Recover = raise_error,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(model, pool)
        self.clock, self._arrivals = clock, itertools.count()
        self._gathered_cache, self._recover = gathered_cache, recover
        self.switch_model(model)

    @staticmethod
    def with_own_pool(model: LoadedModel) -> Scheduler:
        """With a pool of its own, of as many pages as two sequences have."""
        return Scheduler(model, model.new_pool(2 * -(-model.positions // PAGE_SIZE)))

    def switch_model(self, model: LoadedModel) -> None:
        """Make what is left by this model: another device's, or the first one. The pool stays."""
        self.model, self._executor = model, Executor(model, self.pool, self._gathered_cache(model))

    def arrival_order(self, priority: int) -> tuple[int, int]:
        """Of a request that comes now; no two have the same."""
        return self.stats.steps - PRIORITY_LEVEL_STEPS * priority, next(self._arrivals)

    def add_request(
        self,
        prompt: Prompt,
        max_tokens: int,
        sampler: Sampler,
        priority: int = 0,
        strategy: StrategyFactory | None = None,
        decode_path: str = "",
        is_conversation: bool = False,
        resumes: AnswerState | None = None,
    ) -> Request:
        """A request that waits for its turn. strategy: how it is made, None for the model's own way. decode:
        in which family, "" for the model's. is_conversation, resumes: see Request. PromptError and UserError
        for what cannot be run at all."""
        begins = prompt_source(prompt)
        check_generation(self.model, begins.tokens, max_tokens, sampler)
        family = self._decode_path_for(decode_path)
        if strategy:
            check_feature(
                "drafts" if self.model.config.diffusion is None else "blocks", self.model.variant_set, family
            )
        maker = strategy or default_strategy_factory(self.model.config, sampler)
        given = begins, max_tokens, sampler, priority, maker, family
        return self._enqueue(Request(self, *given, is_conversation=is_conversation, resumes=resumes))

    def _decode_path_for(self, decode_path: str) -> str:
        """That of a request, whose programs are there then. UserError for one that the model cannot have."""
        model = self.model
        if decode_path in ("", model.variant_set.decode_path):
            return model.variant_set.decode_path
        if model.config.diffusion:
            check_feature("blocks", model.variant_set, decode_path)
        if model.variant_set.devices > 1:
            check_feature("devices", model.variant_set, decode_path)
        return with_decode_path(model, decode_path).variant_set.decode_path

    def add_prefill_only(self, prompt: Prompt, on_rows: OnRows, hidden_only: bool = False) -> Request:
        """A request that reads a prompt and says nothing: `take` is told the rows of its tokens, in order,
        step by step. They are the logits, (vocab_size,), or with `hidden` the last layer's output,
        (hidden_size,) bf16. Raises as submit."""
        begins, maker = (
            prompt_source(prompt),
            prefill_only_factory(on_rows, hidden_only, self._executor.diffusion_block),
        )
        check_generation(self.model, begins.tokens, 1, sampler := Sampler())
        decode = self.model.variant_set.decode_path
        return self._enqueue(
            Request(self, begins, 1, sampler, PREFILL_ONLY_PRIORITY, maker, decode, is_prefill_only=True)
        )

    def _enqueue(self, request: Request) -> Request:
        pages = -(-min(len(request.prompt) + 1, self.model.positions) // PAGE_SIZE)
        if pages > self.pool.manager.page_count:
            raise PoolFullError(pages, self.pool.manager.page_count, self.pool.manager.page_count)
        self._waiting.append(request)
        return request

    def prefill_program_count(self, request: Request) -> int:
        """See requests.Steps."""
        kept = self.last_sequence
        held = kept.sequence.common_prefix(request.prompt) if kept and not request.resumes else 0
        return prefill_call_count(self.model, len(request.prompt) - held, held)

    def ensure_programs(self, prompt_tokens: int, new_tokens: int) -> None:
        """Have the programs that a sequence by itself needs, of so many tokens and so many more, so that none
        is compiled in the middle of it. NoVariantError, and what compiling raises."""
        positions = min(prompt_tokens + new_tokens + self._executor.diffusion_block - 1, self.model.positions)
        self.model.ensure_programs(
            self._executor.programs_for(list(self._prefill_steps(prompt_tokens)), positions)
        )

    def _prefill_steps(self, prompt: int) -> Iterator[int]:
        """In how many tokens each a prompt of so many is read by itself, with the first block after it."""
        block = self._executor.diffusion_block
        left = prompt if block == 1 else (prompt // block + 1) * block
        while left:
            yield (taken := self._whole_blocks(left, self._rows_for(left), others=False))
            left -= taken

    def new_sequence(self) -> PagedSequence:
        """An empty one, in the pool that all share."""
        self.pool.collect_released()
        return PagedSequence(self.pool)

    def forward(
        self,
        prompts: Sequence[Prompt],
        logits_counts: Sequence[int] | None = None,
        sequences: Sequence[tuple[PagedSequence, int]] = (),
        decode_path: str = "",
    ) -> list[Rows]:
        """Logits after so many last tokens of each prompt, 1 unless said, each (vocab_size,), in shared
        passes. What is laid of a composition has none.

        after: for each prompt the sequence that it goes on, which holds it then, and from which position;
        else it begins anew, and nothing is held. Nothing is drawn. decode: the family whose LM head gives
        them, "" for the model's. Raises PromptError for one that cannot be run, before anything is changed,
        and PoolFullError where the pool has no room beside the requests that are under way: sequences hold
        what is before their prompts then; UserError where the programs cannot serve that.
        """
        check_feature("forward", self.model.variant_set)
        self._remove_finished()
        begins = [prompt_source(prompt) for prompt in prompts]
        for number, each in enumerate(begins):
            past = sequences[number][1] if sequences else 0
            check_forward_prompt(
                each, self.model.config, past, f"request {number}: " if len(begins) > 1 else ""
            )
        check_block_boundary([first for _, first in sequences], self._executor.diffusion_block)
        places = sequences or [(PagedSequence(self.pool, each.key), 0) for each in begins]
        every = zip(begins, places, logits_counts or [1] * len(begins), strict=True)
        readings = [LogitsRequest(one, *place, count, is_kept=bool(sequences)) for one, place, count in every]
        try:
            while chosen := self._schedule_logits(readings):
                logits = iter(self._run([piece._replace(decode_path=decode_path) for _, piece in chosen]))
                for reading, piece in chosen:
                    reading.update(piece, logits)
        except BaseException:
            for sequence, first in places:
                sequence.truncate(min(first, sequence.length))
            raise
        return [reading.rows for reading in readings]

    def _schedule_logits(
        self, readings: Sequence[LogitsRequest]
    ) -> list[tuple[LogitsRequest, ScheduledTokens]]:
        """A step of prompts alone, in order, as far as there are rows, pages and room in the window."""
        left = [one.next_input() for one in readings]
        budget, chosen = self._rows_for(sum(map(len, left))), list[tuple[LogitsRequest, ScheduledTokens]]()
        free = self.pool.manager.free_count
        for reading, tokens in zip(readings, left, strict=True):
            piece = reading.schedule(tokens[: self._whole_blocks(len(tokens), budget, bool(chosen))])
            cut, sequence = piece.tokens, piece.sequence
            if not cut or not self._executor.can_run([*(one for _, one in chosen), piece]):
                continue
            needed = sequence.pages_needed(len(cut))
            if needed > free:
                if not chosen:
                    raise PoolFullError(needed, free, self.pool.manager.page_count)
                break
            budget, free = budget - len(cut), free - needed
            chosen.append((reading, piece))
        return chosen

    def _whole_blocks(self, tokens: int, budget: int, others: bool) -> int:
        """How many of so many tokens are run in a budget of rows: whole blocks, where a model has these."""
        block = self._executor.diffusion_block
        return tokens if tokens <= budget else max(budget, 0 if others else block) // block * block

    def step(self) -> None:
        """One pass for all that can be in it. An exception, KeyboardInterrupt too, leaves each request as it
        was before."""
        self._remove_finished()
        self._admit()
        self._insert_chunks()
        chosen = self._schedule()
        if not chosen:
            self._remove_finished()
            return
        pieces = [piece for _, _, piece in chosen]
        logits = iter(self._run(pieces, [request for request, _, _ in chosen]))
        rows = sum(len(piece.tokens) for piece in pieces)
        self.stats = replace(self.stats, steps=self.stats.steps + 1, rows=self.stats.rows + rows)
        with defer_interrupt():
            for request, due, piece in chosen:
                if due.logits_count:
                    stay = request.update(due, [*itertools.islice(logits, due.logits_count)])
                    self._executor.accept(piece.sequence, due.tentative_tokens[:stay])
        if any(request.is_finished for request, _, _ in chosen):
            self._remove_finished()

    def _run(self, pieces: Sequence[ScheduledTokens], requests: Sequence[Request] = ()) -> Sequence[Row]:
        by_itself = requests[0] if len(requests) == 1 and requests[0].is_conversation else None
        ran = by_itself.on_program if by_itself else None
        try:
            return self._executor.execute(pieces, ran)
        except RunError as error:
            where = "in a step of several requests"
            if by_itself:
                where = f"at token {len(by_itself.token_ids) + 1} of the answer"
            self.switch_model(self._recover(error, where))
        return self._executor.execute(pieces, ran)

    def _schedule(self) -> list[_ScheduledRequest]:
        """The pieces of the next step: answers first, then prompts, as far as there are rows, pages and room
        in the window; what is read and not answered has rows of its own."""
        asked = [one for one in self._running if one.is_active]
        if self.model.context_end.drops:
            asked = [one for one in asked if self._can_drop(one)]
        dues = self._inputs(asked)
        if (
            len(asked) == 1
            and asked[0].is_conversation
            and (alone := self._schedule_alone(asked[0], dues[asked[0]]))
        ):
            return [alone]
        order = sorted(asked, key=lambda one: (not self._is_first(one, dues[one]), one.order))
        rows = self._row_shares(dues)
        chosen: list[_ScheduledRequest] = []
        for request in order:
            due = dues[request].truncate(
                max(rows[request.is_prefill_only], 0 if chosen else dues[request].multiple_of)
            )
            if not due.tokens or request not in self._running:
                continue
            if not self._has_pages(request, len(due.tokens), [one for one, _, _ in chosen]):
                continue
            piece = self._scheduled(request, due)
            if self._executor.can_run([*(each.scheduled for each in chosen), piece]):
                chosen.append(_ScheduledRequest(request, due, piece))
                rows[request.is_prefill_only] -= len(due.tokens)
        return chosen

    def _scheduled(
        self, request: Request, pass_input: PassInput, call: VariantCall | None = None
    ) -> ScheduledTokens:
        sequence, by_token = self._running[request], self._is_decoding(request)
        given = (
            sequence,
            pass_input.tokens,
            pass_input.logits_count,
            by_token,
            pass_input.kept_count,
            pass_input.hidden_only,
            request.decode_path,
            call,
        )
        return ScheduledTokens(*given, is_recurring=call is None or pass_input.is_decode)

    def _schedule_alone(self, request: Request, pass_input: PassInput) -> _ScheduledRequest | None:
        """A conversation's next tokens, where nothing else is in the step, as the planner cuts them; None
        where drafts or a block are tried, or where there are no pages for them."""
        if pass_input.tentative_tokens or pass_input.logits_count > 1 or not pass_input.tokens:
            return None
        sequence, step = self._running[request], None
        if not self._is_decoding(request):
            step = self.model.variant_set.plan(
                len(pass_input.tokens), sequence.length, not self.model.context_end.drops
            )[0]
            pass_input = pass_input.truncate(step.n_process - (sequence.length - step.n_past))
        if not self._has_pages(request, len(pass_input.tokens), ()):
            return None
        return _ScheduledRequest(request, pass_input, self._scheduled(request, pass_input, step))

    def _is_first(self, request: Request, pass_input: PassInput) -> bool:
        """Whether it goes before prompts: an answer, and what was passed by for long."""
        return pass_input.is_decode or (request.is_prefill_only and request.order[0] <= self.stats.steps)

    def _row_shares(self, inputs: Mapping[Request, PassInput]) -> dict[bool, int]:
        """How many rows of the next step are for answers and their prompts (False), and how many for what is
        read and not answered (True)."""
        read = sum(len(due.tokens) for one, due in inputs.items() if one.is_prefill_only)
        asked = self._rows_for(sum(len(due.tokens) for due in inputs.values()) - read)
        if not (read and asked):
            return {False: asked, True: min(self._rows_for(read), MAX_PREFILL_ONLY_TOKENS)}
        most, least = (
            self._executor.max_rows,
            min(read, max(MIN_PREFILL_ONLY_ROWS, self._executor.diffusion_block)),
        )
        if least + sum(len(due.tokens) for due in inputs.values() if due.is_decode) > most:
            least *= (
                self.stats.steps % MIN_PREFILL_ONLY_ROWS == 0
            )  # answers that leave no row make way for it at times
        asked = min(asked, most - least)
        return {
            False: asked,
            True: min(read, self._executor.padded_rows(asked + least) - asked) if least else 0,
        }

    def _inputs(self, active: Sequence[Request]) -> dict[Request, PassInput]:
        """What of each can be run, with as many guesses as pay."""
        dues = {one: self._input_for(one) for one in active}
        if not any(due.drafts.max_drafts for due in dues.values()):
            return dues
        answers, each = sum(due.is_decode for due in dues.values()), [due.drafts for due in dues.values()]
        more = [
            (one, count) for one, count in zip(dues, allocate_drafts(answers, each), strict=True) if count
        ]
        return dues | {one: one.next_input(self._running[one].tokens_seen, count) for one, count in more}

    def _input_for(self, request: Request) -> PassInput:
        """What of it can be run, without guesses: one token, where it is decoded in the family guide, and all
        of a prompt, where the six programs read it."""
        sequence = self._running[request]
        due = request.next_input(sequence.tokens_seen)
        if self._is_decoding(request):
            return due.truncate(1)._replace(drafts=NO_DRAFTS)
        if request.decode_path == GUIDE:
            due = due.truncate(request.prefill_length - sequence.tokens_seen)
        if self.model.seq_len:
            return due._replace(multiple_of=len(due.tokens))
        return due.truncate(self.model.positions - sequence.length) if self.model.context_end.drops else due

    def _rows_for(self, tokens: int) -> int:
        """How many rows the next step has, of so many that could run: as the planner cuts a prompt."""
        if self.model.seq_len:
            return tokens
        most = min(tokens, MAX_STEP_TOKENS, self._executor.max_rows)
        return self.model.variant_set.plan(most, 0)[0].n_process if most > MAX_RUNNING_REQUESTS else most


def generate_alone(
    model: LoadedModel,
    prompt: Prompt,
    max_tokens: int,
    sampler: Sampler,
    interrupted: Callable[[], bool] = never_interrupted,
    bar: Bar = no_bar,
) -> Request:
    """An answer by itself, in a pool of its own. Raises as Scheduler.submit."""
    request = Scheduler.with_own_pool(model).add_request(prompt, max_tokens, sampler, is_conversation=True)
    request.interrupted, request.bar = interrupted, bar
    return request
