"""Which requests have pages: who comes in, who gives way, and what is kept of a conversation.

A request comes in when the pool has pages for its prompt, in the order of turns, and is refused where nobody
is under way who could give any. Where pages run out, conversations that rest give theirs back first, then the
request under way whose turn is last, and waits again: they are put aside where that is cheaper
(`_is_swapped_out`), else what they had is read anew later, as far as nobody took them. Either way no bit
changes and no token is drawn twice, so an answer has the tokens that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import bf16
from aerie.engine.page_pool import (
    PAGE_SIZE,
    PagedSequence,
    PagePool,
    PoolFullError,
    SwappedSequence,
    page_bytes,
)
from aerie.engine.requests import AnswerState, Request
from aerie.engine.variant_set import GUIDE

MAX_RUNNING_REQUESTS = 32
"""Under way at once: rows of the largest program that reads each weight once for few rows."""
MAX_PREFILL_ONLY_REQUESTS = 2
"""Under way at once of what is read and not answered: each sees its own, so more in a step save nothing."""


@dataclass(frozen=True)
class SchedulerStats:
    """What a scheduler has done: steps, rows of all of them, requests that gave their pages back, those of
    them whose pages were put aside, tokens of prompts that were found in the pool, and such that were laid
    from chunks."""

    steps: int = 0
    rows: int = 0
    preemptions: int = 0
    swaps: int = 0
    cached_tokens: int = 0
    inserted_tokens: int = 0


class LastSequence(NamedTuple):
    """The sequence of the last conversation, the answer in it, and whose it is."""

    sequence: PagedSequence
    answer: AnswerState | None
    request: Request | None = None


class Admission:
    """Requests that wait for pages of a pool, and those that have some. `kept` is the sequence of the last
    conversation."""

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

    def cached_positions(self, request: Request) -> int:
        """See requests.Steps."""
        return self._running[request].tokens_seen if request in self._running else 0

    def free_positions(self, request: Request) -> int:
        """See requests.Steps."""
        held = self._running[request].length if request in self._running else 0
        return self.model.positions - held

    def retire(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = True
        self._remove_finished()

    def resume(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = False
        self._waiting.append(request)

    def _remove_finished(self) -> None:
        """Let go of what is over or was left; what was computed and not picked from, where a step was broken
        off, is left to be computed again."""
        self.pool.collect_released()
        for request, sequence in self._running.items():
            if not request.is_finished and sequence.tokens_seen > (most := request.max_cached_positions()):
                sequence.truncate(max(0, most - sequence.dropped_tokens))
        for request in [one for one in (*self._waiting, *self._running) if one.is_finished]:
            request.close()
            held = self._running.pop(request, None)
            if held and request.is_conversation and self._keeps_sequences:
                self._keep_sequence(request, held)
            elif held:
                held.release()
            if aside := self._swapped.pop(request, None):
                aside.release()
        if self._waiting:
            self._waiting = [one for one in self._waiting if not one.is_finished]

    def _keep_sequence(self, request: Request, sequence: PagedSequence) -> None:
        """Its sequence, which holds all but the last token of the answer, or less of the prompt."""
        self._release_last_sequence()
        last = len(request.tokens) - 1
        if sequence.tokens_seen > last:
            sequence.truncate(last - sequence.dropped_tokens)
        is_whole = sequence.tokens_seen == last and (request.token_ids or request.resumes)
        self.last_sequence = LastSequence(sequence, request.state if is_whole else None, request)

    def remove_finished(self) -> None:
        """Take leave of what is over, without a step."""
        self._remove_finished()

    def set_last_sequence(self, sequence: PagedSequence, answer: AnswerState | None) -> None:
        """Have a sequence in the place of the last conversation's."""
        self._release_last_sequence()
        self.last_sequence = LastSequence(sequence, answer)

    def clear_prefix_cache(self) -> None:
        """Let go of the last conversation's sequence, and of all beginnings that would be found."""
        self._release_last_sequence()
        self.pool.manager.evict_all()

    def _release_last_sequence(self) -> None:
        """Of the last conversation's sequence. Its full pages are found until others need them."""
        if self.last_sequence:
            self.last_sequence.sequence.release()
        self.last_sequence = None

    def _admit(self) -> None:
        """Take in those whose pages are free, in the order of their turns: nobody is passed by."""
        if not self._waiting:
            return
        self._waiting.sort(key=lambda one: one.order)
        while request := next((one for one in self._waiting if self._has_slot(one)), None):
            try:
                sequence = self._start_sequence(request)
            except UserError as error:
                request.fail(error)
                self._remove_finished()
                continue
            count = min(len(request.tokens) - sequence.tokens_seen, self.model.positions - sequence.length)
            if (missing := sequence.pages_needed(count)) > self.pool.manager.free_count:
                self._free_idle_conversations(missing)
            if (missing := sequence.pages_needed(count)) > self.pool.manager.free_count:
                sequence.release()
                if any(one.is_active for one in self._running):
                    return
                request.error = PoolFullError(
                    missing, self.pool.manager.free_count, self.pool.manager.page_count
                )
                self._remove_finished()
                continue
            found = sequence.length
            if not request.token_ids:
                request.cached_tokens = found
            self.stats = replace(self.stats, cached_tokens=self.stats.cached_tokens + found)
            self._waiting.remove(request)
            self._running[request] = sequence
            sequence.reserve(count)
            if aside := self._swapped.pop(request, None):
                aside.swap_in(sequence)

    def _start_sequence(self, request: Request) -> PagedSequence:
        """A sequence with what is known of a request's tokens. UserError where the answer that it goes on
        with is no longer kept."""
        kept, is_first = self.last_sequence, not request.token_ids and request not in self._swapped
        if kept and kept.request is request:
            self.last_sequence = None
            return kept.sequence
        if request.resumes and is_first:
            if not kept or kept.answer is not request.resumes:
                raise UserError(
                    "the answer cannot go on: another one was begun since, and its keys and values are no "
                    "longer kept; give the prompt again"
                )
            self.last_sequence = None
            return kept.sequence
        sequence = PagedSequence(self.pool, request.prompt_source.key)
        sequence.match_prefix(self._cacheable_tokens(request))
        if request.is_conversation and is_first and kept:
            held = kept.sequence
            self.last_sequence, common = None, held.common_prefix(request.prompt)
            other, sequence = (sequence, held) if common > sequence.length else (held, sequence)
            if sequence is held:
                sequence.truncate(common)
                sequence.dropped_tokens = 0
            other.release()
        return sequence

    def _free_idle_conversations(self, needed: int) -> None:
        """Free pages of conversations that nobody asks for now, the last one's first."""
        self._release_last_sequence()
        resting = sorted((one for one in self._running if not one.is_active), key=lambda one: one.order)
        while resting and needed > self.pool.manager.free_count:
            self._preempt(resting.pop())

    def _has_slot(self, request: Request) -> bool:
        """Whether it is asked for, and there are fewer of its kind under way than can be at once."""
        if not request.is_active:
            return False
        of_its_kind = sum(
            one.is_active and one.is_prefill_only == request.is_prefill_only for one in self._running
        )
        return of_its_kind < (MAX_PREFILL_ONLY_REQUESTS if request.is_prefill_only else MAX_RUNNING_REQUESTS)

    def _insert_chunks(self) -> None:
        """Give sequences what is laid next of their chunks."""
        for request, sequence in self._running.items():
            if not (laid := request.insert_chunks(sequence)):
                continue
            request.cached_tokens += 0 if request.token_ids else laid
            self.stats = replace(self.stats, inserted_tokens=self.stats.inserted_tokens + laid)

    def _can_drop(self, request: Request) -> bool:
        """Whether a sequence that fills the context could drop what its end says."""
        sequence, model = self._running[request], self.model
        if sequence.length < model.positions:
            return True
        gone = model.context_end.dropped_positions(sequence.length)
        if not self._free_pages(lambda: sequence.pages_needed_to_drop(gone), request, ()):
            return False
        model.drop_positions(sequence)
        return True

    def _cacheable_tokens(self, request: Request) -> Sequence[Token]:
        """Its tokens that may be looked for, and one after them; in guide these are its prompt, and none
        where the six programs read that whole."""
        if aside := self._swapped.get(request):
            return aside.cacheable_tokens
        tokens = [] if self.model.seq_len else request.cacheable_tokens()
        return tokens[: request.prefill_length + 1] if request.decode_path == GUIDE else tokens

    def _is_decoding(self, request: Request) -> bool:
        """Whether its next token is decoded by GEMVs: in the family guide, what the model made."""
        if request.decode_path != GUIDE:
            return False
        return self._running[request].tokens_seen >= request.prefill_length

    def _has_pages(self, request: Request, count: int, scheduled: Sequence[Request]) -> bool:
        """Whether there are pages to write so many tokens; where not, others give way, but for those that
        stay and those whose turn is before this one's."""
        sequence = self._running[request]
        if not self._free_pages(lambda: sequence.pages_needed(count), request, scheduled):
            return False
        sequence.reserve(count)
        return True

    def _free_pages(
        self, pages_needed: Callable[[], int], request: Request, scheduled: Sequence[Request]
    ) -> bool:
        """As _has_pages, for so many pages."""
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
        done = self.stats
        self.stats = replace(done, preemptions=done.preemptions + 1, swaps=done.swaps + swaps)

    def _is_swapped_out(self, sequence: PagedSequence) -> bool:
        """Whether there is room for its pages aside, and to copy them there and back moves fewer bytes than
        to read the layers' weights for the tokens that would be read anew, in passes of 32 rows: those of
        pages that nobody else holds, as the others' are found again."""
        if len(sequence.pages) > self.pool.swap.free_count:
            return False
        config = self.model.kv_config
        own = sequence.length - PAGE_SIZE * sum(map(self.pool.manager.is_shared, sequence.pages))
        weights = bf16.itemsize * config.num_hidden_layers * config.layer_parameters
        copied = 4 * len(sequence.pages) * page_bytes(config)  # read and written, twice
        return copied < weights * -(-own // MAX_RUNNING_REQUESTS)
