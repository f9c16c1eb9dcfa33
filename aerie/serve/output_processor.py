"""Turn the tokens of one running request into deltas of text, up to a stop string or token."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.call_reader import ToolCallDelta, ToolCallParser, ToolCallSpec
from aerie.engine.detokenizer import IncrementalDetokenizer
from aerie.engine.generate import FinishReason
from aerie.engine.logits import log_softmax
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.poolers import Pooler
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.sampling_filters import F64Array, Ranks
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session
from aerie.engine.stop_strings import StopStrings
from aerie.engine.strategies.decode_config import DEFAULT_DECODE_CONFIG, DecodeConfig
from aerie.engine.thinking import Phase, ThinkingStart
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.errors import ApiError, from_request_error

STOP, LENGTH, CALLS, POOLED, ERROR = "stop", "length", "tool_calls", "read", "error"
REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: STOP,
    FinishReason.LENGTH: LENGTH,
    FinishReason.CONTEXT: LENGTH,
}


class TopLogprob(NamedTuple):
    """One of the likeliest tokens of a position: the text it would add (for a special token its name), its
    bytes, and its logprob."""

    token: int
    text: str
    data: bytes
    logprob: float


class TokenLogprob(NamedTuple):
    """A token: the text it adds, its own bytes (`detokenizer`), its logprob (None for the first token of a
    prompt), and the likeliest tokens of its position."""

    token: int
    text: str
    data: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...]

    def with_rest(self, rest: str) -> TokenLogprob:
        """The last token, with the text that was held back."""
        top = tuple(
            each._replace(text=each.text + rest) if each.token == self.token else each for each in self.top
        )
        return self._replace(text=self.text + rest, top=top)


class FinishInfo(NamedTuple):
    """How an output finished. Counts are in tokens. stop: the stop string or token id that ended it. drafted:
    draft tokens, of which `accepted` were right. thinking_tokens: of completion_tokens."""

    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    stop: str | int | None = None
    error: ApiError | None = None
    drafted: int = 0
    accepted: int = 0
    thinking_tokens: int = 0


class Timings(NamedTuple):
    """Token counts and times of one request. cached_tokens: from the prefix cache. prefill_s: submission to
    first token. decode_s: first to last token so far."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0


NO_TIMINGS = Timings()


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """New parts of the output with this index. thinking: more of it, before the text. tokens: the ids of
    both. tool_calls: deltas of calls, after the text. progress: computed prompt tokens and seconds, if the
    request asked for it. finish: set in the last delta. pooled: the result of a pooler."""

    index: int
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishInfo | None = None
    tokens: tuple[int, ...] = ()
    timings: Timings = NO_TIMINGS
    tool_calls: tuple[ToolCallDelta, ...] = ()
    progress: tuple[tuple[int, float], ...] = ()
    pooled: Any = None
    thinking: str = ""


@dataclass(frozen=True)
class OutputRequest:
    """The parameters of one output.

    prompt: token ids. max_tokens: 0 computes the prompt only. num_logprobs: how many of the likeliest tokens
    are returned for each; None means no logprobs. time_limit_s: from submission. slot: None means any.
    after_sampling: return logprobs after all sampling settings instead of before. tool_calls: the tools that
    may be called. shows_progress: report the progress of prefill. make_pooler: run the prompt for this pooler
    and generate nothing. thinking: how the output begins, if the model thinks. splits_thinking: tell thinking
    and text apart; else all is text, tags included.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    stop_strings: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None
    time_limit_s: float = float("inf")
    index: int = 0
    slot: int | None = None
    decode_config: DecodeConfig = DEFAULT_DECODE_CONFIG
    after_sampling: bool = False
    tool_calls: ToolCallSpec | None = None
    shows_progress: bool = False
    make_pooler: Callable[[Session], Pooler] | None = None
    thinking: ThinkingStart | None = None
    splits_thinking: bool = True

    @property
    def shown(self) -> frozenset[int]:
        """The special tokens that the text must show."""
        calls = self.tool_calls.shown if self.tool_calls else frozenset[int]()
        return calls | (self.thinking.shown if self.thinking else frozenset[int]())


@dataclass(frozen=True)
class LogprobSampler(Sampler):
    """A Sampler that records the logprobs at each token, before its settings or, if `after_sampling`, after
    them."""

    num_logprobs: int = 0
    after_sampling: bool = False
    logprobs: dict[int, tuple[float, list[tuple[int, float]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        token = super().__call__(logits, prompt_ids, token_ids)
        if self.after_sampling:
            self.logprobs[len(token_ids)] = self._after_sampling(
                token, *self.distribution(logits, prompt_ids, token_ids)
            )
        else:
            self.logprobs[len(token_ids)] = top_logprobs(logits, token, self.num_logprobs)
        return token

    def _after_sampling(
        self, token: int, tokens: Ranks, probabilities: F64Array
    ) -> tuple[float, list[tuple[int, float]]]:
        """As top_logprobs, over the tokens that could be sampled."""
        logs = np.log(probabilities)
        (own,) = logs[tokens == token]
        return float(own), [(int(each), float(log)) for each, log in zip(tokens, logs, strict=True)][
            : self.num_logprobs
        ]


def top_logprobs(logits: F32Array | BF16Array, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """The logprob of a token, and ids and logprobs of the `top` likeliest; ties by id. logits:
    (vocab_size,)."""
    logs = log_softmax(np.asarray(logits, np.float32))
    top = min(top, len(logs))
    least = np.partition(logs, -top)[-top] if top else np.inf  # sorting all would take ten times as long
    likely = np.flatnonzero(logs >= least)
    order = likely[np.argsort(-logs[likely], kind="stable")][:top]
    return float(logs[token]), [(int(each), float(logs[each])) for each in order]


class OutputProcessor:
    """Turns the tokens of a request into deltas. It ends the request at a stop string or token, or when its
    time is up."""

    def __init__(
        self,
        ask: OutputRequest,
        request: Request,
        sampler: Sampler,
        tokenizer: Tokenizer,
        eos: Collection[int],
    ) -> None:
        self.request, self._output_request, self._sampler, self._eos = request, ask, sampler, eos
        self._stream = tokenizer.incremental_detokenizer(ask.prompt, ask.shown)
        self._splitter = ask.thinking.splitter() if ask.thinking and ask.splits_thinking else None
        self._thinking = ""
        """Thinking that is in no delta yet."""
        self._held_logprobs = list[TokenLogprob]()
        """Of tokens of which it is not known yet whether they open the thinking."""
        self._calls = ask.tool_calls.reader() if ask.tool_calls else None
        self._stops = StopStrings(ask.stop_strings)
        self._token_count = 0
        self._tokens: list[int] = []
        """Ids of tokens whose text is in no delta yet."""
        self._stopped_by: str | int | None = None
        self._began_s, self._progress_position = time.perf_counter(), -1

    def next_delta(self) -> OutputDelta | None:
        """What is new since the last delta, or None; with `finish` when the output has finished."""
        text, logprobs, self._held_logprobs = "", self._held_logprobs, list[TokenLogprob]()
        while (
            self._output_request.max_tokens
            and self._token_count < len(self.request.token_ids)
            and self._stopped_by is None
        ):
            token = self.request.token_ids[self._token_count]
            self._token_count += 1
            text += self._feed(token, logprobs)
        if self._stopped_by is None and not self.request.is_finished:
            progress = self._new_progress()
            if self._splitter and self._splitter.phase is Phase.BEGINNING:
                logprobs, self._held_logprobs = self._held_logprobs, logprobs
            if not (text or logprobs or progress or self._thinking):
                return None
            delta = self._delta(text, logprobs, None, progress)
            has_news = delta.text or delta.thinking or logprobs or delta.tool_calls or progress
            return delta if has_news else None
        self.request.stop()
        if self._stopped_by is None:
            text += self._flush(logprobs)
        return self._delta(text, logprobs, self._finish(), self._new_progress())

    def abort(self, error: ApiError | None = None) -> OutputDelta:
        """End the output now: with an error, or because its time is up."""
        self.request.stop()
        rest = self._flush([])
        if error is None and not self._token_count:
            error = ApiError(
                503,
                f"no token came within the {self._output_request.time_limit_s:g} s that a request has",
                code="time_limit",
            )
        return self._delta(rest, (), self._finish_info(LENGTH, error))

    def _new_progress(self) -> tuple[tuple[int, float], ...]:
        """Progress of prefill since the last delta. The first entry is the cached prefix."""
        if not self._output_request.shows_progress or self._progress_position == len(self.request.prompt):
            return ()
        position = len(self.request.prompt) if self.request.token_ids else self.request.prefilled_tokens
        if position == 0 or position == self._progress_position:
            return ()
        at_s = time.perf_counter() - self._began_s
        start = () if self._progress_position >= 0 else ((self.request.cached_tokens, 0.0),)
        self._progress_position = position
        return (*start, (position, at_s))

    def _delta(
        self,
        text: str,
        logprobs: Sequence[TokenLogprob],
        finish: FinishInfo | None = None,
        progress: tuple[tuple[int, float], ...] = (),
    ) -> OutputDelta:
        request, tokens, thinking = self.request, tuple(self._tokens), self._thinking
        self._tokens.clear()
        self._thinking = ""
        tool_calls: tuple[ToolCallDelta, ...] = ()
        if self._calls:
            text, tool_calls = self._read(self._calls, text, is_last=finish is not None)
            if self._calls.calls and finish and finish.reason == STOP:
                finish = finish._replace(reason=CALLS)
        timings = Timings(
            len(request.prompt), request.cached_tokens, self._token_count, *request.phase_times_s
        )
        return OutputDelta(
            self._output_request.index,
            text,
            tuple(logprobs),
            finish,
            tokens,
            timings,
            tool_calls,
            progress,
            thinking=thinking,
        )

    def _read(
        self, reader: ToolCallParser, text: str, is_last: bool
    ) -> tuple[str, tuple[ToolCallDelta, ...]]:
        """Split text into plain text and deltas of calls."""
        parts = list(reader.feed(text))
        plain = "".join(part for part in parts if isinstance(part, str)) + (reader.flush() if is_last else "")
        return plain, tuple(part for part in parts if isinstance(part, ToolCallDelta))

    def _feed(self, token: int, logprobs: list[TokenLogprob]) -> str:
        """The text that is certain with this token."""
        if token in self._eos:
            return ""
        if token in self._output_request.stop_ids:
            self._stopped_by = token
            return self._flush(logprobs)
        self._tokens.append(token)
        if isinstance(self._sampler, LogprobSampler):
            logprobs.append(
                token_logprob(self._stream, token, *self._sampler.logprobs.pop(self._token_count - 1))
            )
            added = logprobs[-1].text
        else:
            added = self._stream.feed(token)
        text = self._stops.feed(self._without_thinking(added))
        self._stopped_by = self._stops.found
        return text

    def _without_thinking(self, text: str, is_last: bool = False) -> str:
        """The part of new text that is no thinking. Stop strings and tool calls are those of this part."""
        if self._splitter is None:
            return text
        parts = [self._splitter.feed(text, tokens=0 if is_last else 1)]
        if is_last:
            parts.append(self._splitter.flush())
        self._thinking += "".join(part.thinking for part in parts)
        return "".join(part.text for part in parts)

    def _flush(self, logprobs: list[TokenLogprob]) -> str:
        """The text that was held back, at the end. It belongs to the last token."""
        held = self._stream.flush()
        if held and logprobs:
            logprobs[-1] = logprobs[-1].with_rest(held)
        return self._stops.feed(self._without_thinking(held, is_last=True)) + self._stops.flush()

    def _finish(self) -> FinishInfo:
        if error := self.request.error:
            return self._finish_info(ERROR, from_request_error(error))
        if not self._output_request.max_tokens:
            return self._finish_info(LENGTH)
        reason = self.request.finish_reason
        return self._finish_info(STOP if self._stopped_by is not None or reason is None else REASONS[reason])

    def _finish_info(self, reason: str, error: ApiError | None = None) -> FinishInfo:
        request = self.request
        if error and request.error is None:
            request.fail(UserError(error.message))
        counts = len(request.prompt), self._token_count, request.cached_tokens
        drafts = request.pass_counts.drafted, request.pass_counts.accepted
        thinking = self._splitter.thinking_tokens if self._splitter else 0
        return FinishInfo(ERROR if error else reason, *counts, self._stopped_by, error, *drafts, thinking)


class PoolingOutput:
    """A prompt that runs for a pooler: one delta, when it has finished."""

    def __init__(self, ask: OutputRequest, request: Request, pooler: Pooler) -> None:
        self.request, self._output_request, self._pooler = request, ask, pooler

    @staticmethod
    def submit(ask: OutputRequest, session: Session, scheduler: Scheduler) -> PoolingOutput:
        """Give the prompt to the scheduler. Raises as Scheduler.add_prefill_only."""
        assert ask.make_pooler is not None
        pooler = ask.make_pooler(session)
        return PoolingOutput(
            ask, scheduler.add_prefill_only(ask.prompt, pooler.add_rows, pooler.wanted), pooler
        )

    def next_delta(self) -> OutputDelta | None:
        """The result as the only delta, or None while the prompt runs."""
        if error := self.request.error:
            return self._delta(from_request_error(error))
        return self._delta(pooled=self._pooler.result()) if self.request.is_finished else None

    def abort(self, error: ApiError | None = None) -> OutputDelta:
        """End the prompt now: with an error, or because its time is up."""
        self.request.stop()
        limit_s = self._output_request.time_limit_s
        message = f"the prompt was not read within the {limit_s:g} s that a request has"
        return self._delta(error or ApiError(503, message, code="time_limit"))

    def _delta(self, error: ApiError | None = None, pooled: Any = None) -> OutputDelta:
        finish = FinishInfo(ERROR if error else POOLED, len(self._output_request.prompt), 0, 0, error=error)
        return OutputDelta(self._output_request.index, finish=finish, pooled=pooled)


def token_logprob(
    stream: IncrementalDetokenizer, token: int, logprob: float | None, top: Sequence[tuple[int, float]]
) -> TokenLogprob:
    """The entry of a token, which is fed to the stream."""
    others = [(each, stream.bytes_of_next(each), log) for each, log in top]
    text, data = stream.take(token)
    alternatives = (
        TopLogprob(each, text if each == token and own == data else own.decode(errors="replace"), own, log)
        for each, own, log in others
    )
    return TokenLogprob(token, text, data, logprob, tuple(alternatives))
