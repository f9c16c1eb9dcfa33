"""Answers of a model: a stream of text, and its result."""

from __future__ import annotations

import logging
import reprlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from numbers import Integral
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

from aerie.argument_types import plain_number
from aerie.common.errors import UserError
from aerie.engine.call_grammar import tool_call_grammar
from aerie.engine.call_reader import ToolCall, ToolCallSpec, tool_call_spec
from aerie.engine.embeddings import EmbeddedToken, Token, ids_only
from aerie.engine.generate import FinishReason
from aerie.engine.grammar import Grammar, Schema
from aerie.engine.kpis import Event, EventKind, Kpis
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler, SamplingSettings
from aerie.engine.session import Session
from aerie.engine.stop_strings import StopStrings
from aerie.engine.strategies.decode_config import DecodeConfig, DecodeSettings
from aerie.engine.strategies.draft_model import check_drafter, draft_model_source
from aerie.engine.strategies.drafters import DraftSource
from aerie.engine.thinking import AnswerPart, ThinkingStart
from aerie.engine.thinking_plan import plan_thinking
from aerie.engine.tool_calls import Tools, read_tools

LOG = logging.getLogger("aerie")


class HasModelSession(Protocol):
    """An aerie.Model."""

    session_state: SessionState


class GenerateOptions(SamplingSettings, DecodeSettings, total=False):
    """Options of an answer besides its prompt and length; see Model.stream."""

    draft: str | HasModelSession | None
    stop: str | int | Iterable[str | int]
    raw: bool
    json_schema: Schema
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    thinking_budget: int | None
    num_beams: int
    use_block_cache: bool


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


UNSUPPORTED_OPTIONS: Mapping[str, tuple[object, str]] = {
    "num_beams": (1, "beam search is not built; tokens are the likeliest, or drawn (temperature)"),
    "pipeline_parallel_size": (1, "pipeline parallelism is not built; every device has all layers"),
    "use_block_cache": (
        False,
        "every pass sees a block as it is now; keys and values of its parts that are older are not kept",
    ),
}
"""Options with one supported value each, and the reason."""


def check_supported_option(name: str, value: object) -> None:
    """Raise UserError if the value of an option is not supported."""
    allowed, reason = UNSUPPORTED_OPTIONS[name]
    if value != allowed:
        raise UserError(f"{name} is {value!r}: {reason}; leave it out")


def parse_stops(stop: str | int | Iterable[str | int]) -> list[str | int]:
    """Texts and token ids, also of numpy's types. Raises UserError for anything else, and for an empty
    text."""
    stops: list[object] = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if "" in stops:
        raise UserError("stop holds an empty text, at which every answer would end; leave it out")
    if wrong := [item for item in stops if not isinstance(item, str | Integral)]:
        raise UserError(f"stop takes texts and token ids, and not {reprlib.repr(wrong[0])}; leave it out")
    return [
        item if isinstance(item, str) else int(item) for item in stops if isinstance(item, str | Integral)
    ]


class ParsedOptions(NamedTuple):
    """Parsed options. stops: texts and token ids. raw: skip the chat template. tool_calls: the tools that the
    model sees. template_arguments: further arguments for the chat template. thinking_budget: in tokens."""

    sampler: Sampler
    decode_config: DecodeConfig
    stops: list[str | int]
    raw: bool
    tool_calls: ToolCallSpec | None
    template_arguments: Mapping[str, Any]
    thinking_budget: int | None = None

    def thinking_start(self, session: Session, tokens: Sequence[Token]) -> ThinkingStart | None:
        """How the answer to this prompt begins, if the model thinks."""
        if self.raw or any(isinstance(token, EmbeddedToken) for token in tokens):
            return None
        return session.tokenizer.thinking_start([int(token) for token in ids_only(tokens)])

    def thinking_sampler(self, session: Session, start: ThinkingStart | None) -> Sampler:
        """The sampler, with the plan of the thinking."""
        grammar = self.sampler.grammar
        plan = plan_thinking(start, session.grammar_compiler, self.thinking_budget, grammar)
        return replace(self.sampler, thinking=plan) if plan else self.sampler

    @property
    def tools(self) -> Tools | None:
        """The tools that the model sees."""
        return self.tool_calls.tools if self.tool_calls else None


def _draft_source(draft: Any, session: Session) -> str | DraftSource | None:
    """The source of draft tokens. Raises UserError if the draft model does not fit."""
    if draft is None or isinstance(draft, str):
        return draft
    state = getattr(draft, "session_state", None)
    if not isinstance(state, SessionState):
        raise UserError(f"draft is {reprlib.repr(draft)}; give 'lookup', a model that drafts, or None")
    other = state.session()
    if other is session:
        raise UserError("draft is the model itself, whose drafts cost what its answers do; name a smaller")
    own, others = ((each.model.config, each.tokenizer) for each in (session, other))
    check_drafter(own, others, "model")
    return draft_model_source(lambda: other.model, state.lock, session.model.config)


def _grammar(options: Mapping[str, Any], session: Session, tool_calls: ToolCallSpec | None) -> Grammar | None:
    """The grammar of the output, if any."""
    schema = options.get("json_schema")
    if tool_calls:
        grammar = tool_call_grammar(session.grammar_compiler, tool_calls.tools, tool_calls.format, schema)
        if grammar.notes:
            LOG.warning("calls are not held to: %s", "; ".join(grammar.notes))
        return grammar
    return None if schema is None else session.grammar_compiler.json(schema)


def _tool_calls(options: Mapping[str, Any], session: Session) -> ToolCallSpec | None:
    """The tools that may be called."""
    choice, parallel = options.get("tool_choice", "auto"), options.get("parallel_tool_calls", True)
    tools = read_tools(options.get("tools") or (), choice, parallel)
    if tools and options.get("raw"):
        raise UserError(
            "the chat template lists the tools, and raw skips the template; leave out one of the two"
        )
    return tool_call_spec(tools, session.tokenizer) if tools else None


def _template_arguments(options: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = options.get("chat_template_kwargs") or {}
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise UserError(
            f"chat_template_kwargs is {reprlib.repr(arguments)}; give a dict of what the chat "
            "template asks for"
        )
    if arguments and options.get("raw"):
        raise UserError(
            "chat_template_kwargs are for the chat template, which raw leaves out; leave out one of the two"
        )
    return arguments


def _budget(options: Mapping[str, Any]) -> int | None:
    """The thinking budget. Raises UserError if it is negative, or there is no chat template."""
    budget: int | None = options.get("thinking_budget")
    if budget is not None and budget < 0:
        raise UserError(
            f"thinking_budget is {budget}; give a number of tokens, 0 or more, or None for no limit"
        )
    if budget is not None and options.get("raw"):
        raise UserError(
            "thinking_budget is for answers in the chat template, which raw leaves out; leave out one of the "
            "two"
        )
    return budget


def parse_options(options: Mapping[str, Any], session: Session) -> ParsedOptions:
    """Parse the options of a request. Raises UserError if an option is unknown or out of range."""
    option_names = GenerateOptions.__annotations__
    if unknown := next((name for name in options if name not in option_names), None):
        names = ["max_tokens", *option_names]  # the first is an argument of its own
        close = "".join(f" (did you mean {name}?)" for name in get_close_matches(unknown, names, 1))
        raise UserError(f"there is no option {unknown!r}{close}; there are {', '.join(names)}")
    for name in UNSUPPORTED_OPTIONS.keys() & options.keys():
        check_supported_option(name, options[name])
    decode_config = {name: options[name] for name in DecodeSettings.__annotations__ if name in options}
    decode_config["draft"] = _draft_source(options.get("draft"), session)
    sampling = {
        name: plain_number(options[name]) for name in SamplingSettings.__annotations__ if name in options
    }
    tool_calls = _tool_calls(options, session)
    try:
        sampler = Sampler(**sampling, grammar=_grammar(options, session, tool_calls))
    except TypeError as error:
        raise UserError(
            f"a setting cannot be taken ({error}); see Model.stream for what each may be"
        ) from None
    stops, raw, budget = parse_stops(options.get("stop", ())), options.get("raw", False), _budget(options)
    template_arguments = _template_arguments(options)
    return ParsedOptions(
        sampler, DecodeConfig(**decode_config), stops, raw, tool_calls, template_arguments, budget
    )
