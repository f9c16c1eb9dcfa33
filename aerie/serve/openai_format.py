"""Answers in the forms of OpenAI's API, made of its client's own types, so that it reads what is sent."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionTokenLogprob,
)
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import (
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_message_function_tool_call import Function
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails
from pydantic import BaseModel

from aerie.engine.call_reader import CallPiece, ToolCall
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import DONE, Saying, event
from aerie.serve.output_processor import NOTHING, Ending, Mark, Piece, Spent
from aerie.serve.request_outputs import Whole

Reason = Literal["stop", "length", "tool_calls"]
LOWEST = -9999.0
"""In place of the logarithm of 0, which JSON has no number for; what OpenAI's API gives."""


def new_id(kind: str) -> str:
    """As OpenAI has them: after the kind and its sign, a random part."""
    return f"{kind}{secrets.token_hex(12)}"


def usage_of(endings: Iterable[Ending], choices: int) -> CompletionUsage:
    """The counts of all answers. Each prompt counts once, however many choices it has."""
    every = list(endings)
    firsts = every[::choices]
    prompt, made = sum(each.prompt for each in firsts), sum(each.made for each in every)
    drafted, accepted = sum(each.drafted for each in every), sum(each.accepted for each in every)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=made,
        total_tokens=prompt + made,
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
        ),
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(each.cached for each in firsts)),
    )


def timings(spent: Spent) -> dict[str, Any]:
    """As llama.cpp tells them: tokens that were read, found and made, milliseconds, and what a token took; of
    those made, a token after the first, which the prompt's pass gives."""
    read, more = max(0, spent.prompt - spent.cached), max(0, spent.made - 1)
    return {
        "cache_n": spent.cached,
        **_rates("prompt", read, read, spent.prompt_s),
        **_rates("predicted", spent.made, more, spent.made_s),
    }


def _rates(kind: str, tokens: int, timed: int, spent_s: float) -> dict[str, Any]:
    return {
        f"{kind}_n": tokens,
        f"{kind}_ms": 1e3 * spent_s,
        f"{kind}_per_token_ms": 1e3 * spent_s / timed if timed else 0.0,
        f"{kind}_per_second": timed / spent_s if spent_s else 0.0,
    }


def progress(spent: Spent, read: tuple[int, float]) -> dict[str, Any]:
    """As llama.cpp tells it: tokens of a prompt, found in the pool and read with these, and milliseconds
    since it was begun."""
    processed, read_s = read
    told = {"total": spent.prompt, "cache": spent.cached, "processed": processed, "time_ms": 1e3 * read_s}
    return {"prompt_progress": told}


class OpenAIForm(ABC):
    """What both forms have in common."""

    def __init__(self) -> None:
        self._sayings: dict[int, Saying] = {}

    def _said(self, index: int, text: str) -> bytes:
        """The event of a text and nothing else, of this choice."""
        if index not in self._sayings:
            self._sayings[index] = Saying(partial(self._with_text, index))
        return self._sayings[index](text)

    @abstractmethod
    def _with_text(self, index: int, text: str) -> BaseModel:
        """What `_said` tells."""

    def failed(self, error: ApiError) -> bytes:
        return event(error.body)


class ChatForm(OpenAIForm):
    """Of /v1/chat/completions. usage: whether a stream ends with the counts. marks: whether the logarithms of
    tokens are told. prompt_marks: those of the prompt, where they are. timed: whether each event has timings,
    which otherwise the whole has, and the end of a stream."""

    def __init__(
        self,
        model: str,
        choices: int,
        usage: bool,
        marks: bool,
        prompt_marks: Sequence[Sequence[Mark]] = (),
        timed: bool = False,
    ) -> None:
        super().__init__()
        self._timed, self._spent = timed, NOTHING
        self._of: dict[str, Any] = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model}
        self._choices, self._usage, self._marks = choices, usage, marks
        self._begun: set[int] = set()
        self._of_prompt = {"prompt_logprobs": prompt_logprobs(prompt_marks[0])} if prompt_marks else {}

    def whole(self, made: Sequence[Whole]) -> ChatCompletion:
        choices = [self._choice(index, each) for index, each in enumerate(made)]
        usage = usage_of((each.ending for each in made if each.ending), self._choices)
        told = {**self._of, **self._of_prompt, "timings": timings(made[0].spent)}
        return ChatCompletion(**told, object="chat.completion", choices=choices, usage=usage)

    def _choice(self, index: int, made: Whole) -> Choice:
        message = ChatCompletionMessage(role="assistant", content=made.text, refusal=None)
        if made.calls:
            message.content, message.tool_calls = made.text or None, [_call(call) for call in made.calls]
        marks = ChoiceLogprobs(content=_marks(made.marks), refusal=None) if self._marks else None
        return Choice(
            index=index, message=message, finish_reason=_reason(made.ending) or "stop", logprobs=marks
        )

    def events(self, piece: Piece) -> Iterator[bytes]:
        for read in piece.read:
            of = {**self._of, "object": "chat.completion.chunk", **progress(piece.spent, read)}
            yield event(ChatCompletionChunk(**of, choices=[]))
        if piece.read and not (piece.text or piece.marks or piece.calls or piece.ending):
            return
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            begun = None if piece.calls and not piece.text else ""
            yield event(self._chunk(piece.index, ChoiceDelta(role="assistant", content=begun)))
        if piece.text and not (self._marks or self._timed or piece.calls):
            yield self._said(piece.index, piece.text)
        elif piece.text or piece.marks:
            marks = ChunkLogprobs(content=_marks(piece.marks), refusal=None) if self._marks else None
            spent = piece.spent if self._timed else None
            said = ChoiceDelta(content=None if piece.calls and not piece.text else piece.text)
            yield event(self._chunk(piece.index, said, None, marks, spent))
        for call in piece.calls:
            yield event(self._chunk(piece.index, ChoiceDelta(tool_calls=[_part(call)])))
        if piece.ending:
            self._spent = piece.spent
            yield event(self._chunk(piece.index, ChoiceDelta(), _reason(piece.ending), None, piece.spent))

    def _with_text(self, index: int, text: str) -> ChatCompletionChunk:
        return self._chunk(index, ChoiceDelta(content=text))

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:
        if self._usage:
            usage = usage_of(_in_order(endings), self._choices)
            of = {**self._of, "object": "chat.completion.chunk", "timings": timings(self._spent)}
            yield event(ChatCompletionChunk(**of, choices=[], usage=usage))
        yield DONE

    def _chunk(
        self,
        index: int,
        delta: ChoiceDelta,
        reason: Reason | None = None,
        marks: ChunkLogprobs | None = None,
        spent: Spent | None = None,
    ) -> ChatCompletionChunk:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=reason, logprobs=marks)
        timed: dict[str, Any] = {"timings": timings(spent)} if spent else {}
        made = ChatCompletionChunk(**self._of, **timed, object="chat.completion.chunk", choices=[choice])
        if self._usage:
            made.usage = None  # told as null
        return made


def _call(made: ToolCall) -> ChatCompletionMessageFunctionToolCall:
    return ChatCompletionMessageFunctionToolCall(
        id=new_id("call_"), type="function", function=Function(name=made.name, arguments=made.arguments)
    )


def _part(piece: CallPiece) -> ChoiceDeltaToolCall:
    """The first of a call has its id and name."""
    if piece.name is None:
        more = ChoiceDeltaToolCallFunction(arguments=piece.arguments)
        return ChoiceDeltaToolCall(index=piece.number, function=more)
    function = ChoiceDeltaToolCallFunction(name=piece.name, arguments=piece.arguments)
    return ChoiceDeltaToolCall(index=piece.number, id=new_id("call_"), type="function", function=function)


Echo = tuple[str, Sequence[Mark]]
"""A prompt's text, and its tokens where their logarithms are told."""


class CompletionForm(OpenAIForm):
    """Of /v1/completions. echoes: of each prompt, where it comes before its answers. prompt_marks: of
    each, where they are told apart."""

    def __init__(
        self,
        model: str,
        choices: int,
        usage: bool,
        marks: bool,
        echoes: Sequence[Echo] = (),
        prompt_marks: Sequence[Sequence[Mark]] = (),
    ) -> None:
        super().__init__()
        self._of: dict[str, Any] = {"id": new_id("cmpl-"), "created": int(time.time()), "model": model}
        self._choices, self._usage, self._marks = choices, usage, marks
        self._echoes = {index: echoes[index // choices] for index in range(len(echoes) * choices)}
        self._prompt_marks = prompt_marks
        self._lengths: dict[int, int] = {}

    def whole(self, made: Sequence[Whole]) -> Completion:
        choices = [
            self._choice(Piece(index, each.text, tuple(each.marks), each.ending))
            for index, each in enumerate(made)
        ]
        usage = usage_of((each.ending for each in made if each.ending), self._choices)
        return Completion(**self._of, object="text_completion", choices=choices, usage=usage)

    def events(self, piece: Piece) -> Iterator[bytes]:
        begins = piece.index in self._echoes
        if piece.text and not (self._marks or self._prompt_marks or piece.ending or begins):
            yield self._said(piece.index, piece.text)
        elif piece.text or piece.marks or piece.ending or begins:
            yield event(self._told(piece))

    def _with_text(self, index: int, text: str) -> Completion:
        return self._told(Piece(index, text))

    def _told(self, piece: Piece) -> Completion:
        made = Completion(**self._of, object="text_completion", choices=[self._choice(piece)])
        if self._usage:
            made.usage = None  # told as null
        return made

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:
        if self._usage:
            usage = usage_of(_in_order(endings), self._choices)
            yield event(Completion(**self._of, object="text_completion", choices=[], usage=usage))
        yield DONE

    def _choice(self, piece: Piece) -> CompletionChoice:
        before, marked = self._echoes.pop(piece.index, ("", ()))
        text, marks = before + piece.text, [*marked, *piece.marks]
        begins = self._lengths.get(piece.index, 0)
        self._lengths[piece.index] = begins + len(text)
        return CompletionChoice.model_construct(  # unchecked: in a stream its reason is None
            index=piece.index,
            text=text,
            finish_reason=_reason(piece.ending),
            logprobs=_table(marks, begins) if self._marks else None,
            **self._told_of_prompt(piece.index),
        )

    def _told_of_prompt(self, index: int) -> dict[str, Any]:
        if not self._prompt_marks:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._prompt_marks[index // self._choices])}


def _reason(ending: Ending | None) -> Reason | None:
    return cast(Reason, ending.reason) if ending else None


def _in_order(endings: Mapping[int, Ending]) -> list[Ending]:
    return [endings[index] for index in sorted(endings)]


def finite(logprob: float | None) -> float:
    return LOWEST if logprob is None else max(logprob, LOWEST)


def prompt_logprobs(marks: Sequence[Mark]) -> list[dict[str, Any] | None]:
    """As vLLM tells them: for each token the likeliest and itself, by id; None for the first."""
    return [None if mark.logprob is None else _by_id(mark) for mark in marks]


def _by_id(mark: Mark) -> dict[str, Any]:
    ranked = {each.token: rank for rank, each in enumerate(mark.top, start=1)}
    every = [(mark.token, mark.text, mark.logprob), *((one.token, one.text, one.logprob) for one in mark.top)]
    return {
        str(token): {"logprob": finite(log), "rank": ranked.get(token), "decoded_token": text}
        for token, text, log in every
    }


def _marks(marks: Iterable[Mark]) -> list[ChatCompletionTokenLogprob]:
    return [
        ChatCompletionTokenLogprob(
            token=mark.text,
            bytes=list(mark.data),
            logprob=finite(mark.logprob),
            top_logprobs=[
                TopLogprob(token=each.text, bytes=list(each.data), logprob=finite(each.logprob))
                for each in mark.top
            ],
        )
        for mark in marks
    ]


def _known(mark: Mark) -> float | None:
    """None for a prompt's first token, as OpenAI's API gives it."""
    return None if mark.logprob is None else finite(mark.logprob)


def _by_text(mark: Mark) -> dict[str, float]:
    """The likeliest tokens by their texts. The one that was drawn has its text in the column of tokens; of
    others with the same text, and of those that are part of a character, the bytes are told, as OpenAI's API
    does, or the id, as vLLM does."""
    told: dict[str, float] = {}
    for each in mark.top:
        in_bytes = "bytes:" + "".join(f"\\x{byte:02x}" for byte in each.data)
        is_part = "\N{REPLACEMENT CHARACTER}" in each.text
        names = [in_bytes if is_part else each.text, in_bytes] if each.data else []
        free = (name for name in (*names, f"token_id:{each.token}") if name not in {*told, mark.text})
        told[mark.text if each.token == mark.token else next(free)] = finite(each.logprob)
    return told


def _table(marks: Sequence[Mark], begins: int) -> Logprobs:
    """As columns, with where each token's text begins in the answer's."""
    offsets, at = [], begins
    for mark in marks:
        offsets.append(at)
        at += len(mark.text)
    return Logprobs.model_construct(  # unchecked: the first of a prompt has none
        tokens=[mark.text for mark in marks],
        token_logprobs=[_known(mark) for mark in marks],
        top_logprobs=[_by_text(mark) for mark in marks],
        text_offset=offsets,
    )
