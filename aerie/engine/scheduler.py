"""The scheduler: which tokens of which requests go into the next engine step.

An engine step takes one token of each running request in decode, and as many prompt tokens as its rows hold,
in the order of the requests. The order of a request is the number of the step in which it arrived, minus
PRIORITY_LEVEL_STEPS for each level of priority: urgent requests pass others, but no request waits for ever.
`admission` assigns pages.

Prefill-only requests (`add_prefill_only`: embeddings, log-likelihoods) share these steps. They come one level
of priority later, at most MAX_PREFILL_ONLY_REQUESTS at a time. A step without other requests takes up to
MAX_PREFILL_ONLY_TOKENS of them. Beside other requests they get MIN_PREFILL_ONLY_ROWS rows, and the rows that
the program leaves unused. So a new request waits for one such step, and neither kind stops the other.

The scheduler has no thread: the caller that asks for a token runs a step for all. The answer of a
conversation is a request like any other. It is idle while no caller asks for its next token, and gives its
pages to others if needed. If it is alone in a step, the planner splits its prompt. Its sequence is kept
afterwards, for a prompt that starts with the same tokens.
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
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.page_pool import PagedSequence, PagePool
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
from aerie.engine.strategies.prefill_only import OnRows, WantedRows, prefill_only_factory
from aerie.engine.strategies.strategy import NO_DRAFTS, PassInput, Row, StrategyFactory
from aerie.engine.variant_set import GUIDE
from aerie.runtime import RunError

Rows: TypeAlias = "list[Row]"
Prompt: TypeAlias = "Sequence[Token] | ComposedPrompt"

PRIORITY_LEVEL_STEPS = 1000
"""A request with one more level of priority goes before requests that arrived up to this number of steps
earlier."""
PREFILL_ONLY_PRIORITY = -1
"""The priority of prefill-only requests."""
MAX_STEP_TOKENS = 512
"""Maximum tokens of a step. A longer prompt takes several steps, in which other requests continue."""

MAX_PREFILL_ONLY_TOKENS = 128
"""Maximum tokens of a step of prefill-only requests. A new request waits for its end."""
MIN_PREFILL_ONLY_ROWS = 8
"""Minimum rows for prefill-only requests in a step with other requests. These take at most the next larger
program for it."""


class _ScheduledRequest(NamedTuple):
    """A request in a step, the input that its strategy gave, and the tokens that run."""

    request: Request
    pass_input: PassInput
    scheduled: ScheduledTokens


class Scheduler(Admission):
    """Requests that share a model, a page pool and a gathered cache. One thread at a time.

    clock: returns seconds, for the requests' times. recover: called if a device fails; returns the model to
    continue with, or raises.
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
        self.clock, self._arrivals, self._pages_seen = clock, itertools.count(), 0
        self._gathered_cache, self._recover = gathered_cache, recover
        self.switch_model(model)

    @staticmethod
    def with_own_pool(model: LoadedModel) -> Scheduler:
        """A scheduler with its own pool, large enough for two sequences."""
        return Scheduler(model, model.new_pool(2 * -(-model.positions // PAGE_SIZE)))

    def switch_model(self, model: LoadedModel) -> None:
        """Continue all requests with this model, of another device or of the first one. The pool stays."""
        self.model, self._executor = model, Executor(model, self.pool, self._gathered_cache(model))

    def arrival_order(self, priority: int) -> tuple[int, int]:
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
        """Add a request, which waits for admission.

        strategy: None means the model's default. decode_path: "guide" or "rows"; "" means the model's.
        is_conversation, resumes: see Request. Raises PromptError for a prompt that cannot run, and UserError
        for other settings that are not possible.
        """
        source = prompt_source(prompt)
        self.model.config.roles.check_answers()
        check_generation(self.model, source.tokens, max_tokens, sampler)
        path = self._decode_path_for(decode_path)
        if strategy:
            check_feature(
                "drafts" if self.model.config.diffusion is None else "blocks", self.model.variant_set, path
            )
        factory = strategy or default_strategy_factory(self.model.config, sampler)
        arguments = source, max_tokens, sampler, priority, factory, path
        return self._enqueue(Request(self, *arguments, is_conversation=is_conversation, resumes=resumes))

    def _decode_path_for(self, decode_path: str) -> str:
        """The decode path of a request; its programs are compiled. Raises UserError if the model cannot have
        it."""
        model = self.model
        if decode_path in ("", model.variant_set.decode_path):
            return model.variant_set.decode_path
        if model.config.diffusion:
            check_feature("blocks", model.variant_set, decode_path)
        if model.variant_set.devices > 1:
            check_feature("devices", model.variant_set, decode_path)
        return with_decode_path(model, decode_path).variant_set.decode_path

    def add_prefill_only(
        self, prompt: Prompt, on_rows: OnRows, wanted: WantedRows = WantedRows.LOGITS
    ) -> Request:
        """Add a request that computes a prompt and generates nothing. `on_rows` is called with the wanted
        rows of its tokens, in order, step by step. Raises as add_request."""
        if wanted is WantedRows.LOGITS:
            self.model.config.roles.check_answers()
        source = prompt_source(prompt)
        factory = prefill_only_factory(on_rows, wanted, self._executor.diffusion_block)
        check_generation(self.model, source.tokens, 1, sampler := Sampler())
        decode = self.model.variant_set.decode_path
        return self._enqueue(
            Request(self, source, 1, sampler, PREFILL_ONLY_PRIORITY, factory, decode, is_prefill_only=True)
        )

    def _enqueue(self, request: Request) -> Request:
        positions = min(len(request.prompt) + 1, self.model.positions)
        pages = -(-self.pool.positions_at_once(positions, self._largest_step) // PAGE_SIZE)
        if pages > self.pool.manager.page_count:
            raise PoolFullError(pages, self.pool.manager.page_count, self.pool.manager.page_count)
        self._waiting.append(request)
        return request

    def prefill_program_count(self, request: Request) -> int:
        last = self.last_sequence
        cached = last.sequence.common_prefix(request.prompt) if last and not request.resumes else 0
        return prefill_call_count(self.model, len(request.prompt) - cached, cached)

    def ensure_programs(self, prompt_tokens: int, new_tokens: int) -> None:
        """Compile the programs for one sequence alone, of `prompt_tokens` and `new_tokens`, so that none is
        compiled during the answer. Raises NoVariantError, and what compiling raises."""
        positions = min(prompt_tokens + new_tokens + self._executor.diffusion_block - 1, self.model.positions)
        self.model.ensure_programs(
            self._executor.programs_for(list(self._prefill_steps(prompt_tokens)), positions)
        )

    def _prefill_steps(self, prompt: int) -> Iterator[int]:
        """Tokens of each step of a prompt that is alone, with its first diffusion block."""
        block = self._executor.diffusion_block
        remaining = prompt if block == 1 else (prompt // block + 1) * block
        while remaining:
            yield (count := self._whole_blocks(remaining, self._rows_for(remaining), others=False))
            remaining -= count

    def new_sequence(self) -> PagedSequence:
        """An empty sequence in the shared pool."""
        self.pool.collect_released()
        return PagedSequence(self.pool)

    def forward(
        self,
        prompts: Sequence[Prompt],
        logits_counts: Sequence[int] | None = None,
        sequences: Sequence[tuple[PagedSequence, int]] = (),
        decode_path: str = "",
    ) -> list[Rows]:
        """Logits of the last tokens of each prompt, in shared forward passes. Nothing is sampled.

        logits_counts: number of last tokens for each prompt; None means 1. The result has a row (vocab_size,)
        for each. Inserted chunks have no logits. sequences: the sequence that each prompt continues, and from
        which position; it then holds the prompt. Without it nothing is held. decode_path: whose LM head gives
        the logits; "" means the model's.

        Raises PromptError for a prompt that cannot run, before anything changes; PoolFullError if the pool
        has no space beside the running requests, where each sequence holds what is before its prompt;
        UserError if the programs do not support it.
        """
        check_feature("forward", self.model.variant_set)
        self.model.config.roles.check_answers()
        self._remove_finished()
        sources = [prompt_source(prompt) for prompt in prompts]
        for number, source in enumerate(sources):
            past = sequences[number][1] if sequences else 0
            check_forward_prompt(
                source, self.model.config, past, f"request {number}: " if len(sources) > 1 else ""
            )
        check_block_boundary([first for _, first in sequences], self._executor.diffusion_block)
        starts = sequences or [(PagedSequence(self.pool, source.key), 0) for source in sources]
        arguments = zip(sources, starts, logits_counts or [1] * len(sources), strict=True)
        requests = [
            LogitsRequest(one, *place, count, is_kept=bool(sequences)) for one, place, count in arguments
        ]
        try:
            while chosen := self._schedule_logits(requests):
                logits = iter(self._run([piece._replace(decode_path=decode_path) for _, piece in chosen]))
                for request, piece in chosen:
                    request.update(piece, logits)
        except BaseException:
            for sequence, first in starts:
                sequence.truncate(min(first, sequence.length))
            raise
        return [request.rows for request in requests]

    def _schedule_logits(
        self, readings: Sequence[LogitsRequest]
    ) -> list[tuple[LogitsRequest, ScheduledTokens]]:
        """The next step of logits requests, in order, as far as rows, pages and the gathered cache allow."""
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
        """How many of these tokens fit into `budget` rows: whole diffusion blocks, if the model has them."""
        block = self._executor.diffusion_block
        return tokens if tokens <= budget else max(budget, 0 if others else block) // block * block

    def step(self) -> None:
        """Run one engine step for all requests. After an exception, KeyboardInterrupt too, each request is as
        before the step."""
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
            for request, pass_input, piece in chosen:
                if pass_input.logits_count:
                    own_logits = [*itertools.islice(logits, pass_input.logits_count)]
                    accepted = request.update(pass_input, own_logits)
                    self._executor.accept(piece.sequence, pass_input.tentative_tokens[:accepted])
                piece.sequence.release_behind_window()
        self._compile_ahead(chosen)
        if any(request.is_finished for request, _, _ in chosen):
            self._remove_finished()

    def _compile_ahead(self, chosen: Sequence[_ScheduledRequest]) -> None:
        """Have the programs compiled that these sequences need next: at the end of a conversation's answer,
        and each time that they have filled a page, where they come near the end of their context."""
        lengths = [piece.sequence.length for _, _, piece in chosen if not piece.by_gemv]
        if (pages := sum(lengths) // PAGE_SIZE) != self._pages_seen:
            self._pages_seen = pages
            self.model.compile_ahead(self._executor.programs_for_next_context(lengths))
        for request, _, piece in chosen:
            if request.is_finished and request.is_conversation and self._keeps_sequences:
                self.model.compile_ahead(self.model.variant_set.programs_for_next_turn(piece.sequence.length))

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
        """The requests and tokens of the next step: decode first, then prompts, as far as rows, pages and the
        gathered cache allow. Prefill-only requests have rows of their own."""
        active = [one for one in self._running if one.is_active]
        if self.model.context_end.drops:
            active = [one for one in active if self._can_drop(one)]
        inputs = self._inputs(active)
        if (
            len(active) == 1
            and active[0].is_conversation
            and (scheduled_alone := self._schedule_alone(active[0], inputs[active[0]]))
        ):
            return [scheduled_alone]
        order = sorted(active, key=lambda one: (not self._is_first(one, inputs[one]), one.order))
        rows = self._row_shares(inputs)
        chosen: list[_ScheduledRequest] = []
        for request in order:
            pass_input = inputs[request].truncate(
                max(rows[request.is_prefill_only], 0 if chosen else inputs[request].multiple_of)
            )
            if not pass_input.tokens or request not in self._running:
                continue
            if not self._has_pages(request, len(pass_input.tokens), [one for one, _, _ in chosen]):
                continue
            piece = self._scheduled(request, pass_input)
            if self._executor.can_run([*(each.scheduled for each in chosen), piece]):
                chosen.append(_ScheduledRequest(request, pass_input, piece))
                rows[request.is_prefill_only] -= len(pass_input.tokens)
        return chosen

    def _scheduled(
        self, request: Request, pass_input: PassInput, call: VariantCall | None = None
    ) -> ScheduledTokens:
        sequence, by_token = self._running[request], self._is_decoding(request)
        arguments = (
            sequence,
            pass_input.tokens,
            pass_input.logits_count,
            by_token,
            pass_input.kept_count,
            pass_input.hidden_only,
            request.decode_path,
            call,
        )
        return ScheduledTokens(*arguments, is_recurring=call is None or pass_input.is_decode)

    def _schedule_alone(self, request: Request, pass_input: PassInput) -> _ScheduledRequest | None:
        """The next tokens of a conversation that is alone, as the planner splits them. None if it has
        tentative tokens, or if there are no pages."""
        if pass_input.tentative_tokens or pass_input.logits_count > 1 or not pass_input.tokens:
            return None
        sequence, step = self._running[request], None
        if not self._is_decoding(request):
            can_recompute = not (self.model.context_end.drops or sequence.first_held)
            step = self.model.variant_set.plan(len(pass_input.tokens), sequence.length, can_recompute)[0]
            pass_input = pass_input.truncate(step.n_process - (sequence.length - step.n_past))
        if not self._has_pages(request, len(pass_input.tokens), ()):
            return None
        return _ScheduledRequest(request, pass_input, self._scheduled(request, pass_input, step))

    def _is_first(self, request: Request, pass_input: PassInput) -> bool:
        """Whether the request goes before prompts: it is in decode, or it is prefill-only and has waited
        long."""
        return pass_input.is_decode or (request.is_prefill_only and request.order[0] <= self.stats.steps)

    def _row_shares(self, inputs: Mapping[Request, PassInput]) -> dict[bool, int]:
        """Rows of the next step for prefill-only requests (True) and for all others (False)."""
        prefill_only = sum(len(each.tokens) for request, each in inputs.items() if request.is_prefill_only)
        others = self._rows_for(sum(len(each.tokens) for each in inputs.values()) - prefill_only)
        if not (prefill_only and others):
            return {False: others, True: min(self._rows_for(prefill_only), MAX_PREFILL_ONLY_TOKENS)}
        max_rows = self._executor.max_rows
        min_rows = min(prefill_only, max(MIN_PREFILL_ONLY_ROWS, self._executor.diffusion_block))
        decode_rows = sum(len(each.tokens) for each in inputs.values() if each.is_decode)
        if min_rows + decode_rows > max_rows and self.stats.steps % MIN_PREFILL_ONLY_ROWS:
            return {False: min(others, max_rows), True: 0}  # answers leave no row, and make way at times only
        others = min(others, max_rows - min_rows)
        return {
            False: others,
            True: min(prefill_only, self._executor.padded_rows(others + min_rows) - others),
        }

    def _inputs(self, active: Sequence[Request]) -> dict[Request, PassInput]:
        """The input of each request, with as many drafts as pay off."""
        inputs = {one: self._input_for(one) for one in active}
        estimates = [each.drafts for each in inputs.values()]
        if not any(each.max_drafts for each in estimates):
            return inputs
        decoding = sum(each.is_decode for each in inputs.values())
        with_drafts = [
            (one, count)
            for one, count in zip(inputs, allocate_drafts(decoding, estimates), strict=True)
            if count
        ]
        return inputs | {
            one: one.next_input(self._running[one].tokens_seen, count) for one, count in with_drafts
        }

    def _input_for(self, request: Request) -> PassInput:
        """The input of a request without drafts: one token if GEMVs decode it, and a whole prompt for the six
        programs."""
        sequence = self._running[request]
        pass_input = request.next_input(sequence.tokens_seen)
        if self._is_decoding(request):
            return pass_input.truncate(1)._replace(drafts=NO_DRAFTS)
        if request.decode_path == GUIDE:
            pass_input = pass_input.truncate(request.prefill_length - sequence.tokens_seen)
        if self.model.seq_len:
            return pass_input._replace(multiple_of=len(pass_input.tokens))
        return (
            pass_input.truncate(self.model.positions - sequence.length)
            if self.model.context_end.drops
            else pass_input
        )

    def _rows_for(self, tokens: int) -> int:
        """Number of rows of the next step, if `tokens` tokens could run: as the planner splits a prompt."""
        if self.model.seq_len:
            return tokens
        max_tokens = min(tokens, MAX_STEP_TOKENS, self._executor.max_rows)
        return (
            self.model.variant_set.plan(max_tokens, 0)[0].n_process
            if max_tokens > MAX_RUNNING_REQUESTS
            else max_tokens
        )


def generate_alone(
    model: LoadedModel,
    prompt: Prompt,
    max_tokens: int,
    sampler: Sampler,
    interrupted: Callable[[], bool] = never_interrupted,
    bar: Bar = no_bar,
) -> Request:
    """An answer alone, with its own page pool. Raises as Scheduler.add_request."""
    request = Scheduler.with_own_pool(model).add_request(prompt, max_tokens, sampler, is_conversation=True)
    request.interrupted, request.bar = interrupted, bar
    return request
