"""Admission: which requests have pages, which are preempted, and which sequence is kept for the next prompt.

A request is admitted in the order of its arrival and priority when the pool has pages for its prompt. It is
refused if no running request could free enough. When pages run out, idle conversations are preempted first,
then the running request that is last in order. A preempted request waits. Its pages are swapped out if that
is cheaper (`_is_swapped_out`); else its tokens are computed again later, except those still in the prefix
cache. Preemption changes no bit and samples no token twice, so a request has the same tokens as if it were
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import bf16
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.page_pool import PagedSequence, PagePool, SwappedSequence, page_bytes
from aerie.engine.requests import AnswerState, Request
from aerie.engine.variant_set import GUIDE

MAX_RUNNING_REQUESTS = 32
"""Maximum number of running requests: rows of the largest program that reads each weight once for few
rows."""
MAX_PREFILL_ONLY_REQUESTS = 2
"""Maximum number of running prefill-only requests. More in a step save nothing, as each attends to its own
positions."""


@dataclass(frozen=True)
class SchedulerStats:
    """Totals of a scheduler: engine steps, rows, preemptions, swaps among them, prompt tokens found in the
    prefix cache, and tokens inserted from chunks."""

    steps: int = 0
    rows: int = 0
    preemptions: int = 0
    swaps: int = 0
    cached_tokens: int = 0
    inserted_tokens: int = 0


class LastSequence(NamedTuple):
    """The sequence of the last conversation, its answer, and its request."""

    sequence: PagedSequence
    answer: AnswerState | None
    request: Request | None = None


class Admission:
    """Requests that wait for pages of a pool, and requests that have pages.

    last_sequence: the sequence of the last conversation, kept for the next prompt.
    """

    def __init__(self, model: LoadedModel, pool: PagePool) -> None:
        self.model, self.pool, self.stats = model, pool, SchedulerStats()
        self._waiting: list[Request] = []
        self._running: dict[Request, PagedSequence] = {}
        self._swapped: dict[Request, SwappedSequence] = {}
        self.last_sequence: LastSequence | None = None

    @property
    def _keeps_sequences(self) -> bool:
        """Whether sequences of conversations are kept."""
        return bool(self.model.variant_set.variants) and self.model.config.diffusion is None

    @property
    def _largest_step(self) -> int:
        """Maximum tokens of a sequence in an engine step."""
        return max((one.rows for one in self.model.variant_set.variants), default=self.model.positions)

    def cached_positions(self, request: Request) -> int:
        return self._running[request].tokens_seen if request in self._running else 0

    def free_positions(self, request: Request) -> int:
        length = self._running[request].length if request in self._running else 0
        return self.model.positions - length

    def retire(self, request: Request) -> None:
        request.is_retired = True
        self._remove_finished()

    def resume(self, request: Request) -> None:
        request.is_retired = False
        self._waiting.append(request)

    def _remove_finished(self) -> None:
        """Remove finished requests, and release sequences that were passed to `release_later`. Positions that
        were computed before a failed step, and not sampled from, are dropped."""
        self.pool.collect_released()
        for request, sequence in self._running.items():
            if not request.is_finished and sequence.tokens_seen > (
                max_positions := request.max_cached_positions()
            ):
                sequence.truncate(max(0, max_positions - sequence.dropped_tokens))
        for request in [other for other in (*self._waiting, *self._running) if other.is_finished]:
            request.close()
            ended = self._running.pop(request, None)
            if ended and request.is_conversation and self._keeps_sequences:
                self._keep_sequence(request, ended)
            elif ended:
                ended.release()
            if swapped := self._swapped.pop(request, None):
                swapped.release()
        if self._waiting:
            self._waiting = [other for other in self._waiting if not other.is_finished]

    def _keep_sequence(self, request: Request, sequence: PagedSequence) -> None:
        """Keep the sequence of a finished conversation. It holds all tokens but the last of the answer, or
        less of the prompt."""
        self._release_last_sequence()
        last = len(request.tokens) - 1
        if sequence.tokens_seen > last:
            sequence.truncate(last - sequence.dropped_tokens)
        is_complete = sequence.tokens_seen == last and (request.token_ids or request.resumes)
        self.last_sequence = LastSequence(sequence, request.state if is_complete else None, request)

    def remove_finished(self) -> None:
        """Remove finished requests without an engine step."""
        self._remove_finished()

    def set_last_sequence(self, sequence: PagedSequence, answer: AnswerState | None) -> None:
        """Keep this sequence in place of the last conversation's."""
        self._release_last_sequence()
        self.last_sequence = LastSequence(sequence, answer)

    def clear_prefix_cache(self) -> None:
        """Release the last conversation's sequence, and forget all cached pages."""
        self._release_last_sequence()
        self.pool.manager.evict_all()

    def _release_last_sequence(self) -> None:
        """Release the last conversation's sequence. Its full pages stay in the prefix cache until they are
        allocated again."""
        if self.last_sequence:
            self.last_sequence.sequence.release()
        self.last_sequence = None

    def _admit(self) -> None:
        """Admit waiting requests whose pages are free, strictly in order."""
        if not self._waiting:
            return
        self._waiting.sort(key=lambda other: other.order)
        while request := next((other for other in self._waiting if self._has_slot(other)), None):
            try:
                sequence = self._start_sequence(request)
            except UserError as error:
                request.fail(error)
                self._remove_finished()
                continue
            count = min(len(request.tokens) - sequence.tokens_seen, self.model.positions - sequence.length)
            count = self.pool.positions_at_once(count, self._largest_step)
            if swapped := self._swapped.get(request):
                count = max(count, len(swapped.token_ids) - sequence.length)
            if (needed := sequence.pages_needed(count)) > self.pool.manager.free_count:
                self._free_idle_conversations(needed)
            if (needed := sequence.pages_needed(count)) > self.pool.manager.free_count:
                sequence.release()
                if any(other.is_active for other in self._running):
                    return
                request.error = PoolFullError(
                    needed, self.pool.manager.free_count, self.pool.manager.page_count
                )
                self._remove_finished()
                continue
            cached = sequence.length
            if not request.token_ids:
                request.cached_tokens = cached
            self.stats = replace(self.stats, cached_tokens=self.stats.cached_tokens + cached)
            self._waiting.remove(request)
            self._running[request] = sequence
            sequence.reserve(count)
            if swapped:
                del self._swapped[request]
                swapped.swap_in(sequence)

    def _start_sequence(self, request: Request) -> PagedSequence:
        """A sequence for a request, with the pages that are cached for its tokens. Raises UserError if it
        continues an answer that is no longer kept."""
        last, is_first = self.last_sequence, not request.token_ids and request not in self._swapped
        if last and last.request is request:
            self.last_sequence = None
            return last.sequence
        if request.resumes and is_first:
            if not last or last.answer is not request.resumes:
                raise UserError(
                    "cannot continue the last answer: a newer request replaced its KV cache; send the "
                    "prompt again"
                )
            self.last_sequence = None
            return last.sequence
        sequence = PagedSequence(self.pool, request.prompt_source.key)
        if swapped := self._swapped.get(request):
            swapped.start(sequence)
        else:
            sequence.match_prefix(self._cacheable_tokens(request))
        if request.is_conversation and is_first and last:
            last_sequence = last.sequence
            self.last_sequence, common = None, last_sequence.common_prefix(request.prompt)
            unused, sequence = (
                (sequence, last_sequence) if common > sequence.length else (last_sequence, sequence)
            )
            if sequence is last_sequence:
                sequence.truncate(common)
                sequence.dropped_tokens = 0
            unused.release()
        return sequence

    def _free_idle_conversations(self, needed: int) -> None:
        """Free pages of conversations that no caller waits for, the last one's first."""
        self._release_last_sequence()
        idle = sorted((one for one in self._running if not one.is_active), key=lambda one: one.order)
        while idle and needed > self.pool.manager.free_count:
            self._preempt(idle.pop())

    def _has_slot(self, request: Request) -> bool:
        """Whether a caller waits for the request, and fewer than the maximum of its kind are running."""
        if not request.is_active:
            return False
        running = sum(
            one.is_active and one.is_prefill_only == request.is_prefill_only for one in self._running
        )
        return running < (MAX_PREFILL_ONLY_REQUESTS if request.is_prefill_only else MAX_RUNNING_REQUESTS)

    def _insert_chunks(self) -> None:
        """Insert the next chunks into sequences."""
        for request, sequence in self._running.items():
            if not (inserted := request.insert_chunks(sequence)):
                continue
            request.cached_tokens += 0 if request.token_ids else inserted
            self.stats = replace(self.stats, inserted_tokens=self.stats.inserted_tokens + inserted)

    def _can_drop(self, request: Request) -> bool:
        """Whether a full sequence has pages for dropping positions. Drops them if so."""
        sequence, model = self._running[request], self.model
        if sequence.length < model.positions:
            return True
        positions = model.context_end.dropped_positions(sequence.length)
        if not self._free_pages(lambda: sequence.pages_needed_to_drop(positions), request, ()):
            return False
        model.drop_positions(sequence)
        return True

    def _cacheable_tokens(self, request: Request) -> Sequence[Token]:
        """The request's tokens to look up in the prefix cache, and one token after them. In `guide` only its
        prompt; none for the six programs."""
        tokens = [] if self.model.seq_len else request.cacheable_tokens()
        return tokens[: request.prefill_length + 1] if request.decode_path == GUIDE else tokens

    def _is_decoding(self, request: Request) -> bool:
        """Whether GEMVs decode its next token."""
        if request.decode_path != GUIDE:
            return False
        return self._running[request].tokens_seen >= request.prefill_length

    def _has_pages(self, request: Request, count: int, scheduled: Sequence[Request]) -> bool:
        """Whether there are pages to write `count` tokens. Preempts other requests if not, except the
        scheduled ones and those before this one in order."""
        sequence = self._running[request]
        if not self._free_pages(lambda: sequence.pages_needed(count), request, scheduled):
            return False
        sequence.reserve(count)
        return True

    def _free_pages(
        self, pages_needed: Callable[[], int], request: Request, scheduled: Sequence[Request]
    ) -> bool:
        """Free as many pages as `pages_needed` returns, as `_has_pages`."""
        if pages_needed() > self.pool.manager.free_count:
            self._free_idle_conversations(pages_needed())
        while (needed := pages_needed()) > self.pool.manager.free_count:
            others = [one for one in self._running if one is not request and one not in scheduled]
            victim = max(others, key=lambda one: one.order, default=None)
            if victim is None or victim.order < request.order:
                if len(self._running) == 1:
                    request.error = PoolFullError(
                        needed, self.pool.manager.free_count, self.pool.manager.page_count
                    )
                return False
            self._preempt(victim)
        return True

    def _preempt(self, request: Request) -> None:
        sequence = self._running.pop(request)
        swaps = self._is_swapped_out(sequence)
        if swaps:
            self._swapped[request] = sequence.swap_out()
        sequence.release()
        self._waiting.append(request)
        stats = self.stats
        self.stats = replace(stats, preemptions=stats.preemptions + 1, swaps=stats.swaps + swaps)

    def _is_swapped_out(self, sequence: PagedSequence) -> bool:
        """Whether to swap the sequence out: the swap space has room, and copying its pages there and back
        moves fewer bytes than reading the layers' weights to compute its tokens again, MAX_RUNNING_REQUESTS
        rows a pass. Shared pages do not count, since they stay in the cache."""
        pages = sequence.held_pages
        if len(pages) > self.pool.swap.free_count:
            return False
        config = self.model.kv_config
        own = sequence.length - PAGE_SIZE * sum(map(self.pool.manager.is_shared, pages))
        weights = bf16.itemsize * config.layers_parameters
        copied = 4 * len(pages) * page_bytes(config)  # read and written, twice
        return copied < weights * -(-own // MAX_RUNNING_REQUESTS)
