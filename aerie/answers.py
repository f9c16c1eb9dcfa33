"""Answers of a model: a stream of pieces, and what it comes to."""

from __future__ import annotations

import logging
import reprlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

from aerie.common.errors import UserError
from aerie.engine.call_grammar import call_grammar
from aerie.engine.call_reader import Calls, ToolCall, calls_of
from aerie.engine.generate import FinishReason
from aerie.engine.grammar import Grammar, Schema
from aerie.engine.kpis import Event, EventKind, Kpis
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler, Sampling
from aerie.engine.session import Session
from aerie.engine.stopping import StopStrings
from aerie.engine.strategies.decode_config import DecodeConfig, DecodeSettings
from aerie.engine.strategies.drafting import Drafting
from aerie.engine.strategies.drafting_model import check_drafter, drafting_by
from aerie.engine.tool_calls import Tools, read_tools

LOG = logging.getLogger("aerie")


class IsAsked(Protocol):
    """An aerie.Model."""

    asked: Asked


class Options(Sampling, DecodeSettings, total=False):
    """What an answer may be asked for with, beside its prompt and how long it may be; see Model.stream."""

    draft: str | IsAsked | None
    stop: str | int | Iterable[str | int]
    raw: bool
    json_schema: Schema
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    num_beams: int
    use_block_cache: bool


OnEvent: TypeAlias = "Callable[[Event], object]"
"""Told what happens to an answer, while nothing is computed; False stops it."""


@dataclass(frozen=True)
class Usage:
    """Counts of tokens, by the names of OpenAI's API."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt: what was known, from the answer before or in the pool, and not computed again."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Result:
    """What a model answered, and how fast. `str()` of it is its text.

    token_ids: what it generated, a token that ended it included. prompt_token_ids: what it was given,
    none where these were embeddings. kpis: of this answer alone.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    kpis: Kpis
    error: str = ""
    """Of one of several requests: why it ended, where `finish_reason` is ERROR."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the functions that it was told of with `tools`; they are no part of the text."""

    def __str__(self) -> str:
        return self.text


NOTHING = Result("", (), (), FinishReason.ERROR, Usage(0, 0), Kpis())
"""Of a request that could not be begun."""


@dataclass(frozen=True)
class Asked:
    """A model that is asked: its session, for as long as it is open, its turn, which one answer has at a
    time, and the figures of all answers."""

    session: Callable[[], Session]
    turn: threading.Lock
    kpis: Kpis


class Stream(Iterator[str]):
    """The text of an answer, piece by piece as it is made. Nothing is computed before the first is asked for.

    `text` is what has come so far. `close()`, or leaving a `with`, ends the answer where it is; `pause()`
    has it rest until `resume()`.
    """

    def __init__(
        self,
        model: Asked,
        request: Request,
        stop: Sequence[str | int],
        on_event: OnEvent | None = None,
        calls: Calls | None = None,
    ) -> None:
        self._model = model
        self._request = request
        self._on_event = on_event
        self._ended: FinishReason | None = None
        self._is_begun = self._is_over = False
        self._told_tokens = 0
        self._goes_on = threading.Event()
        self._goes_on.set()
        ids = frozenset(one for one in stop if isinstance(one, int))
        self._stop = StopStrings([one for one in stop if isinstance(one, str)])
        self._pieces = model.session().pieces(request, ids, calls.shown if calls else ())
        self._calls = calls.reader() if calls else None
        weakref.finalize(self, request.stop).atexit = False
        text = self._stop.cut(self._pieces)
        self._text = self._calls.cut(text) if self._calls else text
        self.text = ""

    def __next__(self) -> str:
        if not self._is_begun:
            self._is_begun = True
            self._tell(EventKind.BEGIN)
        try:
            while not (piece := self._next_piece()):
                if not self.token_ids:
                    self._tell(EventKind.CONTINUE)
        except StopIteration:
            self._request.stop()  # where a stop string ended it, it would go on beside others
            self._finish()
            raise
        except BaseException:
            self._ended = FinishReason.INTERRUPTED
            self._request.stop()
            self._finish()
            raise
        self.text += piece
        self._tell(EventKind.CONTINUE, piece)
        return piece

    def _next_piece(self) -> str:
        """The text that the next step gives, which may be none. Waits where the answer rests."""
        self._goes_on.wait()
        with self._model.turn:
            self._model.session()
            if not self._request.has_new:
                self._request.advance()
            return next(self._text)

    def pause(self) -> None:
        """Have the answer rest after the step under way, a part of the prompt or a token, until `resume`.

        May come from any thread, or from `on_event`. Whoever asks for a piece waits; other answers of the
        model go on. What comes afterwards has the same bits.
        """
        self._goes_on.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._goes_on.set()

    def close(self) -> None:
        """End the answer. What has come of it stays; the model answers the next prompt as if nothing was.

        Another thread that waits for a piece is told at once that there is none, on the virtual NPU in the
        middle of a program.
        """
        if self.finish_reason is None:
            self._ended = FinishReason.INTERRUPTED
        self._request.stop()
        self.resume()
        with self._model.turn:
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
        """The tokens so far."""
        return tuple(self._request.token_ids)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, of which the last may not be whole."""
        return self._calls.calls if self._calls else ()

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        by_text = None if self._stop.found is None else FinishReason.STOP
        return self._ended or by_text or self._request.finish_reason

    @property
    def usage(self) -> Usage:
        """Counts so far."""
        made = self._request
        return Usage(len(made.prompt), len(made.token_ids), made.cached_tokens)

    @property
    def kpis(self) -> Kpis:
        """Figures of this answer, so far."""
        return self._fed(Kpis())

    def result(self) -> Result:
        """What has come, after making what is left of it."""
        for _ in self:
            pass
        reason = self.finish_reason or FinishReason.INTERRUPTED
        prompt = self._request.prompt_ids
        told = self.text, self.token_ids, prompt, reason, self.usage, self.kpis
        return Result(*told, tool_calls=self.tool_calls)

    def _finish(self) -> None:
        """Once, when nothing more comes; told to who was told of the beginning."""
        with self._model.turn:
            is_first, self._is_over = not self._is_over, True
            if is_first:
                self._fed(self._model.kpis)
        if is_first and self._is_begun:
            is_cut = self.finish_reason is FinishReason.INTERRUPTED
            self._tell(EventKind.ABORT if is_cut else EventKind.END)

    def _tell(self, kind: EventKind, text: str = "") -> None:
        """Tell of what happened; an answer that is under way is stopped where the listener says False."""
        made = self.token_ids[self._told_tokens :]
        self._told_tokens += len(made)
        if self._on_event is None:
            return
        try:
            goes_on = self._on_event(Event(kind, text, made)) is not False
        except BaseException:
            self._request.stop()  # where a listener fails, its answer does not go on beside others
            raise
        if not goes_on and not self._is_over:
            self.close()

    def _fed(self, kpis: Kpis) -> Kpis:
        figures = self._request.figures
        if figures.new_tokens:
            kpis.prompted(figures.prompt_tokens, figures.ttft_s, figures.first_tokens)
        if figures.tokens_per_s:
            after = figures.new_tokens - figures.first_tokens
            kpis.generated(after, after / figures.tokens_per_s, self._request.passes)
        return kpis


def results_of(streams: Sequence[Stream | UserError]) -> list[Result]:
    """What streams come to that are made side by side; of those that cannot be made, the error."""
    errors = {id(one): one for one in streams if isinstance(one, UserError)}

    def is_left(stream: Stream) -> bool:
        try:
            return next(stream, None) is not None
        except UserError as error:
            errors[id(stream)] = error
            return False

    left = every = [one for one in streams if isinstance(one, Stream)]
    try:
        while left:
            left = [one for one in left if is_left(one)]
    finally:
        for one in every:  # of an interrupted batch nothing goes on in the next one
            one.close()
    return [_told(one, errors.get(id(one))) for one in streams]


def _told(stream: Stream | UserError, error: UserError | None) -> Result:
    if error is None and isinstance(stream, Stream):
        return stream.result()
    made = stream.result() if isinstance(stream, Stream) else NOTHING
    return replace(made, finish_reason=FinishReason.ERROR, error=str(error))


NOT_BUILT: Mapping[str, tuple[object, str]] = {
    "num_beams": (1, "beam search is not built; tokens are the likeliest, or drawn (temperature)"),
    "pipeline_parallel_size": (1, "pipeline parallelism is not built; every device has all layers"),
    "use_block_cache": (
        False,
        "every pass sees a block as it is now; keys and values of its parts that are older are not kept",
    ),
}
"""What may be asked for by these names as this, and else is refused, and why."""


def check_built(name: str, given: object) -> None:
    """UserError for what is not built."""
    allowed, why = NOT_BUILT[name]
    if given != allowed:
        raise UserError(f"{name} is {given!r}: {why}; leave it out")


def stops_of(stop: str | int | Iterable[str | int]) -> list[str | int]:
    """Texts and token ids, these also of numpy's types. UserError for anything else, and an empty text."""
    given: list[object] = list(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else [stop]
    if "" in given:
        raise UserError("stop holds an empty text, at which every answer would end; leave it out")
    if wrong := [one for one in given if not isinstance(one, str | Integral)]:
        raise UserError(f"stop takes texts and token ids, and not {reprlib.repr(wrong[0])}; leave it out")
    return [one if isinstance(one, str) else int(one) for one in given if isinstance(one, str | Integral)]


class Asking(NamedTuple):
    """Options that were read. stops: texts and token ids. raw: whether a prompt is taken as it is. calls: of
    tools, where the model is told of some. template_arguments: further values for the chat template."""

    sampler: Sampler
    decode_config: DecodeConfig
    stops: list[str | int]
    raw: bool
    calls: Calls | None
    template_arguments: Mapping[str, Any]

    @property
    def tools(self) -> Tools | None:
        """What the model is told of."""
        return self.calls.tools if self.calls else None


def _drafting(draft: Any, session: Session) -> str | Drafting | None:
    """Where guesses come from. UserError for a model that cannot guess for this one."""
    if draft is None or isinstance(draft, str):
        return draft
    asked = getattr(draft, "asked", None)
    if not isinstance(asked, Asked):
        raise UserError(f"draft is {reprlib.repr(draft)}; give 'lookup', a model that drafts, or None")
    other = asked.session()
    if other is session:
        raise UserError("draft is the model itself, whose guesses cost what its answers do; name a smaller")
    ours, theirs = ((each.model.config, each.tokenizer) for each in (session, other))
    check_drafter(ours, theirs, "model")
    return drafting_by(lambda: other.model, asked.turn, session.model.config)


def _form(options: Mapping[str, Any], session: Session, calls: Calls | None) -> Grammar | None:
    """The form of the answer, where one is asked for."""
    schema = options.get("json_schema")
    if calls:
        made = call_grammar(session.grammars, calls.tools, calls.form, schema)
        if made.notes:
            LOG.warning("calls are not held to: %s", "; ".join(made.notes))
        return made
    return None if schema is None else session.grammars.json(schema)


def _calls(options: Mapping[str, Any], session: Session) -> Calls | None:
    """Those that the answer may have."""
    choice, parallel = options.get("tool_choice", "auto"), options.get("parallel_tool_calls", True)
    tools = read_tools(options.get("tools") or (), choice, parallel)
    if tools and options.get("raw"):
        raise UserError(
            "tools are told of by the chat template, which raw leaves out; leave out one of the two"
        )
    return calls_of(tools, session.tokenizer) if tools else None


def _template_arguments(options: Mapping[str, Any]) -> Mapping[str, Any]:
    given = options.get("chat_template_kwargs") or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UserError(
            f"chat_template_kwargs is {reprlib.repr(given)}; give a dict of what the chat template asks for"
        )
    if given and options.get("raw"):
        raise UserError(
            "chat_template_kwargs are for the chat template, which raw leaves out; leave out one of the two"
        )
    return given


def asking(options: Mapping[str, Any], session: Session) -> Asking:
    """What these options ask of a model. UserError for one that there is not, or that cannot be taken."""
    known = Options.__annotations__
    if unknown := next((name for name in options if name not in known), None):
        raise UserError(f"there is no option {unknown!r}; there are {', '.join(known)}")
    for name in NOT_BUILT.keys() & options.keys():
        check_built(name, options[name])
    decode_config = {name: options[name] for name in DecodeSettings.__annotations__ if name in options}
    decode_config["draft"] = _drafting(options.get("draft"), session)
    sampling = {name: options[name] for name in Sampling.__annotations__ if name in options}
    calls = _calls(options, session)
    try:
        sampler = Sampler(**sampling, grammar=_form(options, session, calls))
    except TypeError as error:
        raise UserError(
            f"a setting cannot be taken ({error}); see Model.stream for what each may be"
        ) from None
    stops, raw = stops_of(options.get("stop", ())), options.get("raw", False)
    return Asking(sampler, DecodeConfig(**decode_config), stops, raw, calls, _template_arguments(options))
