"""Answers of a model: a stream of text, and its result."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

from aerie.common.errors import UserError
from aerie.engine.call_reader import ToolCall, ToolCallSpec
from aerie.engine.generate import FinishReason
from aerie.engine.kpis import Event, EventKind, Kpis
from aerie.engine.requests import Request
from aerie.engine.session import Session
from aerie.engine.stop_strings import StopStrings
from aerie.engine.thinking import AnswerPart, ThinkingStart

OnEvent: TypeAlias = "Callable[[Event], object]"
"""Called with each event of an answer, between engine steps. It stops the answer by returning False."""


@dataclass(frozen=True)
class Usage:
    """Token counts, by the names of OpenAI's API."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens from the prefix cache, which were not computed again."""
    reasoning_tokens: int = 0
    """Of completion_tokens: those of the thinking, its tags included."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Result:
    """A complete answer and its figures. `str()` of it is its text.

    token_ids: generated ids, the end token included. prompt_token_ids: empty if the prompt was embeddings.
    kpis: of this answer alone.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    kpis: Kpis
    error: str = ""
    """In a batch: the error of this request, if `finish_reason` is ERROR."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls of functions in `tools`; they are not part of the text."""
    thinking: str = ""
    """What the model thought before its answer; it is not part of the text."""

    def __str__(self) -> str:
        return self.text


NO_RESULT = Result("", (), (), FinishReason.ERROR, Usage(0, 0), Kpis())
"""The result of a request that could not start."""


@dataclass(frozen=True)
class SessionState:
    """The session of an open model, its lock, which one answer at a time holds, and the figures of all
    answers."""

    session: Callable[[], Session]
    lock: threading.Lock
    kpis: Kpis


class Stream(Iterator[str]):
    """The text of an answer, piece by piece as it is generated. Nothing is computed before the first piece is
    requested.

    `text` is the text so far, and `thinking` what the model thought before it; `parts()` gives both as they
    come. `close()`, or leaving a `with` block, ends the answer; `pause()` stops it until `resume()`.
    """

    def __init__(
        self,
        model: SessionState,
        request: Request,
        stop: Sequence[str | int],
        on_event: OnEvent | None = None,
        calls: ToolCallSpec | None = None,
        thinking: ThinkingStart | None = None,
    ) -> None:
        self._model = model
        self._request = request
        self._on_event = on_event
        self._ended: FinishReason | None = None
        self._has_started = self._is_over = False
        self._notified_tokens = 0
        self._may_continue = threading.Event()
        self._may_continue.set()
        ids = frozenset(one for one in stop if isinstance(one, int))
        self._stop = StopStrings([one for one in stop if isinstance(one, str)])
        shown = {*(calls.shown if calls else ()), *(thinking.shown if thinking else ())}
        self._pieces = model.session().pieces(request, ids, shown)
        self._thinking_start = thinking
        self._calls = calls.reader() if calls else None
        weakref.finalize(self, request.stop).atexit = False
        self._new_thinking: list[str] = []
        """Thinking that was in no part yet."""
        texts = _without_thinking(self._pieces, thinking, self._new_thinking)
        text = self._stop.truncate(texts)
        self._text = self._calls.truncate(text) if self._calls else text
        self.text = self.thinking = ""

    def __next__(self) -> str:
        while not (part := self._next_part()).text:
            pass
        return part.text

    def parts(self) -> Iterator[AnswerPart]:
        """The thinking and the text of the answer as they come: of each part, `thinking` or `text` may be
        empty. It goes on where the stream is."""
        with suppress(StopIteration):
            while True:
                yield self._next_part()

    def _next_part(self) -> AnswerPart:
        """The next part that is not empty. Waits while the answer is paused. Raises StopIteration at the
        end."""
        if not self._has_started:
            self._has_started = True
            self._notify(EventKind.BEGIN)
        piece = ""
        try:
            while not (piece or self._new_thinking):
                self._may_continue.wait()
                with self._model.lock:
                    self._model.session()
                    if not self._request.has_new_tokens:
                        self._request.advance()
                    piece = next(self._text)
                if not self.token_ids:
                    self._notify(EventKind.CONTINUE)
        except StopIteration:
            self._request.stop()  # where a stop string ended it, it would go on beside others
            self._finish()
            raise
        except BaseException:
            self._ended = FinishReason.INTERRUPTED
            self._request.stop()
            self._finish()
            raise
        part = AnswerPart("".join(self._new_thinking), piece)
        self._new_thinking.clear()
        self.thinking += part.thinking
        self.text += part.text
        self._notify(EventKind.CONTINUE, *reversed(part))
        return part

    def pause(self) -> None:
        """Pause the answer after the current step (a part of the prompt, or a token), until `resume`.

        Any thread may call this, and `on_event`. A caller that requests a piece waits; other answers of the
        model continue. The remaining tokens have the same bits.
        """
        self._may_continue.clear()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._may_continue.set()

    def close(self) -> None:
        """End the answer. Its text so far stays.

        A thread that waits for a piece returns at once, on the virtual NPU in the middle of a program.
        """
        if self.finish_reason is None:
            self._ended = FinishReason.INTERRUPTED
        self._request.stop()
        self.resume()
        with self._model.lock:
            self._pieces.close()
        self._text = iter(())
        self._finish()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The generated ids so far."""
        return tuple(self._request.token_ids)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls so far. The last one may be incomplete."""
        return self._calls.calls if self._calls else ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer finished; None if it has not."""
        by_text = None if self._stop.found is None else FinishReason.STOP
        return self._ended or by_text or self._request.finish_reason

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        request, tokenizer = self._request, self._model.session().tokenizer
        thinking = tokenizer.thinking_tokens(self._thinking_start, request.token_ids)
        return Usage(len(request.prompt), len(request.token_ids), request.cached_tokens, thinking)

    @property
    def kpis(self) -> Kpis:
        """Figures of this answer so far."""
        return self._add_figures(Kpis())

    def result(self) -> Result:
        """Generate the rest, and return the whole result."""
        for _ in self:
            pass
        reason = self.finish_reason or FinishReason.INTERRUPTED
        prompt = self._request.prompt_ids
        fields = self.text, self.token_ids, prompt, reason, self.usage, self.kpis
        return Result(*fields, tool_calls=self.tool_calls, thinking=self.thinking)

    def _finish(self) -> None:
        """Record the figures, and send the final event once."""
        with self._model.lock:
            is_first, self._is_over = not self._is_over, True
            if is_first:
                self._add_figures(self._model.kpis)
        if is_first and self._has_started:
            is_cut = self.finish_reason is FinishReason.INTERRUPTED
            self._notify(EventKind.ABORT if is_cut else EventKind.END)

    def _notify(self, kind: EventKind, text: str = "", thinking: str = "") -> None:
        """Call on_event. Ends a running answer if it returns False."""
        token_ids = self.token_ids[self._notified_tokens :]
        self._notified_tokens += len(token_ids)
        if self._on_event is None:
            return
        try:
            continues = self._on_event(Event(kind, text, token_ids, thinking)) is not False
        except BaseException:
            self._request.stop()  # where a listener fails, its answer does not go on beside others
            raise
        if not continues and not self._is_over:
            self.close()

    def _add_figures(self, kpis: Kpis) -> Kpis:
        figures = self._request.figures
        if figures.new_tokens:
            kpis.record_prompt(figures.prompt_tokens, figures.ttft_s, figures.first_tokens)
        if figures.tokens_per_s:
            after = figures.new_tokens - figures.first_tokens
            kpis.record_generated(after, after / figures.tokens_per_s, self._request.pass_counts)
        return kpis


def _without_thinking(
    pieces: Iterable[str], start: ThinkingStart | None, thinking: list[str]
) -> Iterator[str]:
    """The pieces, each without what is thinking, which is appended to `thinking`."""
    if start is None:
        yield from pieces
        return
    for part in start.splitter().split(pieces):
        if part.thinking:
            thinking.append(part.thinking)
        yield part.text


def collect_results(streams: Sequence[Stream | UserError]) -> list[Result]:
    """The results of streams that share engine steps. A stream that fails gets its error in its result."""
    errors = {id(stream): stream for stream in streams if isinstance(stream, UserError)}

    def is_left(stream: Stream) -> bool:
        try:
            return next(stream.parts(), None) is not None
        except UserError as error:
            errors[id(stream)] = error
            return False

    running = all_streams = [stream for stream in streams if isinstance(stream, Stream)]
    try:
        while running:
            running = [stream for stream in running if is_left(stream)]
    finally:
        for stream in all_streams:  # of an interrupted batch nothing goes on in the next one
            stream.close()
    return [_result_of(stream, errors.get(id(stream))) for stream in streams]


def _result_of(stream: Stream | UserError, error: UserError | None) -> Result:
    if error is None and isinstance(stream, Stream):
        return stream.result()
    partial = stream.result() if isinstance(stream, Stream) else NO_RESULT
    return replace(partial, finish_reason=FinishReason.ERROR, error=str(error))
