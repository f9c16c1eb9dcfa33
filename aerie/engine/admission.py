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
from aerie.engine.blocks import GUIDE
from aerie.engine.embeddings import Token
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import bf16
from aerie.engine.pages import PAGE, PagedSequence, PagePool, PoolFullError, SwappedSequence, page_bytes
from aerie.engine.requests import AnswerState, Request

MAX_RUNNING_REQUESTS = 32
"""Under way at once: rows of the largest program that reads each weight once for few rows."""
MOST_READ = 2
"""Under way at once of what is read and not answered: each sees its own, so more in a step save nothing."""


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


class LastSequence(NamedTuple):
    """The sequence of the last conversation, the answer in it, and whose it is."""

    sequence: PagedSequence
    answer: AnswerState | None
    request: Request | None = None


class Admission:
    """Requests that wait for pages of a pool, and those that have some. `kept` is the sequence of the last
    conversation."""

    def __init__(self, model: LoadedModel, pool: PagePool) -> None:
        self.model, self.pool, self.counts = model, pool, Counts()
        self._waiting: list[Request] = []
        self._running: dict[Request, PagedSequence] = {}
        self._aside: dict[Request, SwappedSequence] = {}
        self.kept: LastSequence | None = None

    @property
    def _keeps(self) -> bool:
        """Whether sequences of conversations are kept."""
        return bool(self.model.blocks.variants) and self.model.config.diffusion is None

    def held(self, request: Request) -> int:
        """See requests.Steps."""
        return self._running[request].seen if request in self._running else 0

    def room(self, request: Request) -> int:
        """See requests.Steps."""
        held = self._running[request].length if request in self._running else 0
        return self.model.positions - held

    def retire(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = True
        self._leave_out()

    def resume(self, request: Request) -> None:
        """See requests.Steps."""
        request.is_retired = False
        self._waiting.append(request)

    def _leave_out(self) -> None:
        """Let go of what is over or was left; what was computed and not picked from, where a step was broken
        off, is left to be computed again."""
        self.pool.take_back()
        for request, sequence in self._running.items():
            if not request.is_over and sequence.seen > (most := request.max_cached_positions()):
                sequence.go_back(max(0, most - sequence.dropped))
        for request in [one for one in (*self._waiting, *self._running) if one.is_over]:
            request.close()
            held = self._running.pop(request, None)
            if held and request.is_conversation and self._keeps:
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
        self.kept = LastSequence(sequence, request.state if is_whole else None, request)

    def settle(self) -> None:
        """Take leave of what is over, without a step."""
        self._leave_out()

    def keep(self, sequence: PagedSequence, answer: AnswerState | None) -> None:
        """Have a sequence in the place of the last conversation's."""
        self._let_go()
        self.kept = LastSequence(sequence, answer)

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
                aside.swap_in(sequence)

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
        if request.is_conversation and is_first and kept:
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
        return of_its_kind < (MOST_READ if request.is_read else MAX_RUNNING_REQUESTS)

    def _lay(self) -> None:
        """Give sequences what is laid next of their chunks."""
        for request, sequence in self._running.items():
            if not (laid := request.lay(sequence)):
                continue
            request.cached_tokens += 0 if request.token_ids else laid
            self.counts = replace(self.counts, laid_tokens=self.counts.laid_tokens + laid)

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

    def _findable(self, request: Request) -> Sequence[Token]:
        """Its tokens that may be looked for, and one after them; in guide these are its prompt, and none
        where the six programs read that whole."""
        if aside := self._aside.get(request):
            return aside.cacheable_tokens
        tokens = [] if self.model.seq_len else request.cacheable_tokens()
        return tokens[: request.to_read + 1] if request.decode == GUIDE else tokens

    def _is_decoding(self, request: Request) -> bool:
        """Whether its next token is decoded by GEMVs: in the family guide, what the model made."""
        if request.decode != GUIDE:
            return False
        return self._running[request].seen >= request.to_read

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
        swaps = self._is_swapped_out(sequence)
        if swaps:
            self._aside[request] = sequence.swap_out()
        sequence.release()
        self._waiting.append(request)
        done = self.counts
        self.counts = replace(done, preemptions=done.preemptions + 1, swaps=done.swaps + swaps)

    def _is_swapped_out(self, sequence: PagedSequence) -> bool:
        """Whether there is room for its pages aside, and to copy them there and back moves fewer bytes than
        to read the layers' weights for the tokens that would be read anew, in passes of 32 rows: those of
        pages that nobody else holds, as the others' are found again."""
        if len(sequence.pages) > self.pool.spare.free:
            return False
        config = self.model.stored
        own = sequence.length - PAGE * sum(map(self.pool.manager.is_shared, sequence.pages))
        weights = bf16.itemsize * config.num_hidden_layers * config.layer_weights
        copied = 4 * len(sequence.pages) * page_bytes(config)  # read and written, twice
        return copied < weights * -(-own // MAX_RUNNING_REQUESTS)
