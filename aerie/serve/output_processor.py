"""One answer while it is made: from tokens to pieces of text, up to where a stop ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from aerie.common.errors import UserError
from aerie.engine.call_reader import CallPiece, CallReader, Calls
from aerie.engine.detokenizer import TextStream
from aerie.engine.drawing import F64Array, Ranks
from aerie.engine.generate import FinishReason
from aerie.engine.logits import log_softmax
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session
from aerie.engine.stopping import StopStrings
from aerie.engine.strategies.manner import PLAIN, Manner
from aerie.engine.strategies.strategy import Row
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.errors import ApiError, blamed

STOP, LENGTH, CALLS, READ, ERROR = "stop", "length", "tool_calls", "read", "error"
ENDINGS: Mapping[FinishReason, str] = {
    FinishReason.STOP: STOP,
    FinishReason.LENGTH: LENGTH,
    FinishReason.CONTEXT: LENGTH,
}


class Reads(Protocol):
    """What is made of a prompt that is read and not answered: of the logits of its tokens, or, where it is
    `hidden`, of their last hidden states."""

    hidden: bool

    def take(self, rows: Sequence[Row]) -> None:
        """Of the next tokens."""

    def made(self) -> Any:
        """When all were taken."""


class Likely(NamedTuple):
    """One of the likeliest tokens in a place: what it would have added there, or, of a special token, which
    adds nothing, its name; its bytes; and the natural logarithm of what the logits gave it."""

    token: int
    text: str
    data: bytes
    logprob: float


class Mark(NamedTuple):
    """A token, what it adds to the text and its own bytes (`detokenizer`), the natural logarithm of what the
    logits gave it (None: it is a prompt's first, and there were none), and the likeliest ones there."""

    token: int
    text: str
    data: bytes
    logprob: float | None
    top: tuple[Likely, ...]

    def ended(self, rest: str) -> Mark:
        """With what was held back, where it is the last."""
        top = tuple(
            each._replace(text=each.text + rest) if each.token == self.token else each for each in self.top
        )
        return self._replace(text=self.text + rest, top=top)


class Ending(NamedTuple):
    """How an answer ended. Counts are in tokens; `stop` is the string or the id of `stop` that ended it;
    drafted: those that were guessed, of which `accepted` were right."""

    reason: str
    prompt: int
    made: int
    cached: int
    stop: str | int | None = None
    error: ApiError | None = None
    drafted: int = 0
    accepted: int = 0


class Spent(NamedTuple):
    """Counts in tokens, of a prompt, of these found in the pool, and of an answer so far; seconds from when
    the scheduler was given it to its first token, and from there to its last so far."""

    prompt: int = 0
    cached: int = 0
    made: int = 0
    prompt_s: float = 0.0
    made_s: float = 0.0


NOTHING = Spent()


@dataclass(frozen=True, slots=True)
class Piece:
    """What has come of choice `index`: text, how likely its tokens were where that was asked for, how it
    ended, once it has, the tokens that its text is of, what it took so far, and calls of tools after the
    text; before them, where that was asked for, how many tokens of the prompt were read when, in seconds.
    made: of a prompt that was read, what Ask.reads made."""

    index: int
    text: str = ""
    marks: tuple[Mark, ...] = ()
    ending: Ending | None = None
    tokens: tuple[int, ...] = ()
    spent: Spent = NOTHING
    calls: tuple[CallPiece, ...] = ()
    read: tuple[tuple[int, float], ...] = ()
    made: Any = None


@dataclass(frozen=True)
class Ask:
    """What an answer is asked with. prompt: token ids. max_tokens: at most so many more; 0: the prompt is
    read, and nothing is told of what would follow. marks: how many of the likeliest tokens are told of each;
    None: none, nor its own. time_limit_s: from its coming. slot: in which it is answered; None: in any.
    manner: how it is made. as_drawn: whether they are told as they were drawn, with all settings, in place of
    what the logits give them. calls: those of tools that may be in it. shows_progress: whether it is told how
    much of the prompt is read. reads: what is made of the prompt, which is read then, and not answered."""

    prompt: Sequence[int]
    max_tokens: int
    sampler: Sampler
    stop_strings: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    marks: int | None = None
    time_limit_s: float = float("inf")
    index: int = 0
    slot: int | None = None
    manner: Manner = PLAIN
    as_drawn: bool = False
    calls: Calls | None = None
    shows_progress: bool = False
    reads: Callable[[Session], Reads] | None = None


@dataclass(frozen=True)
class Recorder(Sampler):
    """A Sampler that notes what logits give each token that it draws, before any of its settings, or, where
    `as_drawn`, after all of them."""

    top: int = 0
    as_drawn: bool = False
    noted: dict[int, tuple[float, list[tuple[int, float]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(
        self, logits: F32Array | BF16Array, prompt_ids: Sequence[int] = (), token_ids: Sequence[int] = ()
    ) -> int:
        token = super().__call__(logits, prompt_ids, token_ids)
        if self.as_drawn:
            self.noted[len(token_ids)] = self._drawn(token, *self.distribution(logits, prompt_ids, token_ids))
        else:
            self.noted[len(token_ids)] = likeliest(logits, token, self.top)
        return token

    def _drawn(
        self, token: int, tokens: Ranks, probabilities: F64Array
    ) -> tuple[float, list[tuple[int, float]]]:
        """As `likeliest`, of what could be drawn."""
        logs = np.log(probabilities)
        (own,) = logs[tokens == token]
        return float(own), [(int(each), float(log)) for each, log in zip(tokens, logs, strict=True)][
            : self.top
        ]


def likeliest(logits: F32Array | BF16Array, token: int, top: int) -> tuple[float, list[tuple[int, float]]]:
    """The logarithm of what logits, (vocab_size,), give a token, and those of the `top` likeliest; equal ones
    by their ids."""
    logs = log_softmax(np.asarray(logits, np.float32))
    top = min(top, len(logs))
    least = np.partition(logs, -top)[-top] if top else np.inf  # sorting all would take ten times as long
    likely = np.flatnonzero(logs >= least)
    order = likely[np.argsort(-logs[likely], kind="stable")][:top]
    return float(logs[token]), [(int(each), float(logs[each])) for each in order]


class Answer:
    """Turns the tokens of a request into pieces. It ends the request where a stop is found, or time is up."""

    def __init__(
        self, ask: Ask, request: Request, sampler: Sampler, tokenizer: Tokenizer, eos: Collection[int]
    ) -> None:
        self.request, self._ask, self._sampler, self._eos = request, ask, sampler, eos
        self._stream = tokenizer.stream(ask.prompt, ask.calls.shown if ask.calls else ())
        self._calls = ask.calls.reader() if ask.calls else None
        self._stops = StopStrings(ask.stop_strings)
        self._told = 0
        self._tokens: list[int] = []
        """Those whose text was not told yet."""
        self._stopped_by: str | int | None = None
        self._began_s, self._read_to = time.perf_counter(), -1

    def piece(self) -> Piece | None:
        """What has come since the last, if anything has; with its ending where it is over."""
        text, marks = "", list[Mark]()
        while self._ask.max_tokens and self._told < len(self.request.token_ids) and self._stopped_by is None:
            token = self.request.token_ids[self._told]
            self._told += 1
            text += self._fed(token, marks)
        if self._stopped_by is None and not self.request.is_over:
            read = self._read_meanwhile()
            made = self._piece(text, marks, None, read) if text or marks or read else None
            return made if made and (made.text or marks or made.calls or read) else None
        self.request.stop()
        if self._stopped_by is None:
            text += self._rest(marks)
        return self._piece(text, marks, self._ending(), self._read_meanwhile())

    def cut(self, error: ApiError | None = None) -> Piece:
        """End it where it is: with this error, or because its time is up."""
        self.request.stop()
        rest = self._rest([])
        if error is None and not self._told:
            error = ApiError(
                503,
                f"no token came within the {self._ask.time_limit_s:g} s that a request has",
                code="time_limit",
            )
        return self._piece(rest, (), self._ended(LENGTH, error))

    def _read_meanwhile(self) -> tuple[tuple[int, float], ...]:
        """Of the prompt; before the first, what was found in the pool."""
        if not self._ask.shows_progress or self._read_to == len(self.request.prompt):
            return ()
        to = len(self.request.prompt) if self.request.token_ids else self.request.read
        if to == 0 or to == self._read_to:
            return ()
        at_s = time.perf_counter() - self._began_s
        begun = () if self._read_to >= 0 else ((self.request.cached_tokens, 0.0),)
        self._read_to = to
        return (*begun, (to, at_s))

    def _piece(
        self,
        text: str,
        marks: Sequence[Mark],
        ending: Ending | None = None,
        read: tuple[tuple[int, float], ...] = (),
    ) -> Piece:
        made, tokens = self.request, tuple(self._tokens)
        self._tokens.clear()
        calls: tuple[CallPiece, ...] = ()
        if self._calls:
            text, calls = self._read(self._calls, text, is_last=ending is not None)
            if self._calls.calls and ending and ending.reason == STOP:
                ending = ending._replace(reason=CALLS)
        spent = Spent(len(made.prompt), made.cached_tokens, self._told, *made.times_s)
        return Piece(self._ask.index, text, tuple(marks), ending, tokens, spent, calls, read)

    def _read(self, reader: CallReader, text: str, is_last: bool) -> tuple[str, tuple[CallPiece, ...]]:
        """What is text of it, and what is calls."""
        parts = list(reader.feed(text))
        said = "".join(part for part in parts if isinstance(part, str)) + (reader.flush() if is_last else "")
        return said, tuple(part for part in parts if isinstance(part, CallPiece))

    def _fed(self, token: int, marks: list[Mark]) -> str:
        """The text that is sure with this token."""
        if token in self._eos:
            return ""
        if token in self._ask.stop_ids:
            self._stopped_by = token
            return self._rest(marks)
        self._tokens.append(token)
        if isinstance(self._sampler, Recorder):
            marks.append(mark_of(self._stream, token, *self._sampler.noted.pop(self._told - 1)))
            added = marks[-1].text
        else:
            added = self._stream.feed(token)
        text = self._stops.feed(added)
        self._stopped_by = self._stops.found
        return text

    def _rest(self, marks: list[Mark]) -> str:
        """What was held back, where no more comes; it is the last token's."""
        held = self._stream.flush()
        if held and marks:
            marks[-1] = marks[-1].ended(held)
        return self._stops.feed(held) + self._stops.flush()

    def _ending(self) -> Ending:
        if error := self.request.error:
            return self._ended(ERROR, blamed(error))
        if not self._ask.max_tokens:
            return self._ended(LENGTH)
        reason = self.request.finish_reason
        return self._ended(STOP if self._stopped_by is not None or reason is None else ENDINGS[reason])

    def _ended(self, reason: str, error: ApiError | None = None) -> Ending:
        made = self.request
        if error and made.error is None:
            made.fail(UserError(error.message))
        counts = len(made.prompt), self._told, made.cached_tokens
        guesses = made.passes.drafted, made.passes.accepted
        return Ending(ERROR if error else reason, *counts, self._stopped_by, error, *guesses)


class ReadPrompt:
    """A prompt that is read, beside answers: one piece, when it is over."""

    def __init__(self, ask: Ask, request: Request, reads: Reads) -> None:
        self.request, self._ask, self._reads = request, ask, reads

    @staticmethod
    def of(ask: Ask, session: Session, scheduler: Scheduler) -> ReadPrompt:
        """Given to the scheduler. Raises as Scheduler.read."""
        assert ask.reads is not None
        reads = ask.reads(session)
        return ReadPrompt(ask, scheduler.read(ask.prompt, reads.take, reads.hidden), reads)

    def piece(self) -> Piece | None:
        """What was made, once it is."""
        if error := self.request.error:
            return self._ended(blamed(error))
        return self._ended(made=self._reads.made()) if self.request.is_over else None

    def cut(self, error: ApiError | None = None) -> Piece:
        """End it where it is: with this error, or because its time is up."""
        self.request.stop()
        limit_s = self._ask.time_limit_s
        late = f"the prompt was not read within the {limit_s:g} s that a request has"
        return self._ended(error or ApiError(503, late, code="time_limit"))

    def _ended(self, error: ApiError | None = None, made: Any = None) -> Piece:
        ending = Ending(ERROR if error else READ, len(self._ask.prompt), 0, 0, error=error)
        return Piece(self._ask.index, ending=ending, made=made)


def mark_of(stream: TextStream, token: int, logprob: float | None, top: Sequence[tuple[int, float]]) -> Mark:
    """Of a token that the stream takes with it."""
    others = [(each, stream.bytes_if(each), log) for each, log in top]
    text, data = stream.take(token)
    likeliest = (
        Likely(each, text if each == token and own == data else own.decode(errors="replace"), own, log)
        for each, own, log in others
    )
    return Mark(token, text, data, logprob, tuple(likeliest))
