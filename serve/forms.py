"""Answers in the forms of OpenAI's API, made of its client's own types, so that it reads what is sent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from openai.types import Completion, CompletionChoice, CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionTokenLogprob,
)
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs
from openai.types.completion_usage import PromptTokensDetails
from pydantic import BaseModel

from aerie.serve.answer import Ending, Mark, Piece
from aerie.serve.asking import Whole

Reason = Literal["stop", "length"]
LOWEST = -9999.0
"""In place of the logarithm of 0, which JSON has no number for; what OpenAI's API gives."""


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def usage_of(endings: Iterable[Ending], choices: int) -> CompletionUsage:
    """The counts of all answers. Each prompt counts once, however many choices it has."""
    every = list(endings)
    firsts = every[::choices]
    prompt, made = sum(each.prompt for each in firsts), sum(each.made for each in every)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=made,
        total_tokens=prompt + made,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(each.cached for each in firsts)),
    )


class Form(Protocol):
    """How a response is written, whole or as a stream of events."""

    def whole(self, made: Sequence[Whole]) -> BaseModel: ...

    def events(self, piece: Piece) -> Iterator[BaseModel]:
        """What is sent of a piece."""
        ...

    def last(self, endings: Mapping[int, Ending]) -> Iterator[BaseModel]:
        """What is sent when all answers are over."""
        ...


class ChatForm:
    """Of /v1/chat/completions. usage: whether a stream ends with the counts. marks: whether the logarithms of
    tokens are told."""

    def __init__(self, model: str, choices: int, usage: bool, marks: bool) -> None:
        self._of: dict[str, Any] = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        self._choices, self._usage, self._marks = choices, usage, marks
        self._begun: set[int] = set()

    def whole(self, made: Sequence[Whole]) -> ChatCompletion:
        choices = [self._choice(index, each) for index, each in enumerate(made)]
        usage = usage_of((each.ending for each in made if each.ending), self._choices)
        return ChatCompletion(**self._of, object="chat.completion", choices=choices, usage=usage)

    def _choice(self, index: int, made: Whole) -> Choice:
        message = ChatCompletionMessage(role="assistant", content=made.text, refusal=None)
        marks = ChoiceLogprobs(content=_marks(made.marks), refusal=None) if self._marks else None
        return Choice(
            index=index, message=message, finish_reason=_reason(made.ending) or "stop", logprobs=marks
        )

    def events(self, piece: Piece) -> Iterator[ChatCompletionChunk]:
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield self._chunk(piece.index, ChoiceDelta(role="assistant", content=""))
        if piece.text or piece.marks:
            marks = ChunkLogprobs(content=_marks(piece.marks), refusal=None) if self._marks else None
            yield self._chunk(piece.index, ChoiceDelta(content=piece.text), None, marks)
        if piece.ending:
            yield self._chunk(piece.index, ChoiceDelta(), _reason(piece.ending))

    def last(self, endings: Mapping[int, Ending]) -> Iterator[ChatCompletionChunk]:
        if self._usage:
            usage = usage_of(_in_order(endings), self._choices)
            yield ChatCompletionChunk(**self._of, object="chat.completion.chunk", choices=[], usage=usage)

    def _chunk(
        self,
        index: int,
        delta: ChoiceDelta,
        reason: Reason | None = None,
        marks: ChunkLogprobs | None = None,
    ) -> ChatCompletionChunk:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=reason, logprobs=marks)
        made = ChatCompletionChunk(**self._of, object="chat.completion.chunk", choices=[choice])
        if self._usage:
            made.usage = None  # told as null
        return made


class CompletionForm:
    """Of /v1/completions. echoes: what comes before each answer: the prompt, where that was asked for."""

    def __init__(
        self, model: str, choices: int, usage: bool, marks: bool, echoes: Sequence[tuple[str, Sequence[Mark]]]
    ) -> None:
        self._of: dict[str, Any] = {"id": new_id("cmpl"), "created": int(time.time()), "model": model}
        self._choices, self._usage, self._marks = choices, usage, marks
        self._echoes = dict(enumerate(echoes))
        self._lengths: dict[int, int] = {}

    def whole(self, made: Sequence[Whole]) -> Completion:
        choices = [
            self._choice(Piece(index, each.text, tuple(each.marks), each.ending))
            for index, each in enumerate(made)
        ]
        usage = usage_of((each.ending for each in made if each.ending), self._choices)
        return Completion(**self._of, object="text_completion", choices=choices, usage=usage)

    def events(self, piece: Piece) -> Iterator[Completion]:
        if piece.text or piece.marks or piece.ending or piece.index in self._echoes:
            made = Completion(**self._of, object="text_completion", choices=[self._choice(piece)])
            if self._usage:
                made.usage = None  # told as null
            yield made

    def last(self, endings: Mapping[int, Ending]) -> Iterator[Completion]:
        if self._usage:
            usage = usage_of(_in_order(endings), self._choices)
            yield Completion(**self._of, object="text_completion", choices=[], usage=usage)

    def _choice(self, piece: Piece) -> CompletionChoice:
        before, marked = self._echoes.pop(piece.index, ("", ()))
        text, marks = before + piece.text, [*marked, *piece.marks]
        begins = self._lengths.get(piece.index, 0)
        self._lengths[piece.index] = begins + len(text)
        return CompletionChoice(
            index=piece.index,
            text=text,
            finish_reason=cast(Reason, _reason(piece.ending)),  # None in a stream, which the type leaves out
            logprobs=_table(marks, begins) if self._marks else None,
        )


def _reason(ending: Ending | None) -> Reason | None:
    return cast(Reason, ending.reason) if ending else None


def _in_order(endings: Mapping[int, Ending]) -> list[Ending]:
    return [endings[index] for index in sorted(endings)]


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)


def _marks(marks: Iterable[Mark]) -> list[ChatCompletionTokenLogprob]:
    return [
        ChatCompletionTokenLogprob(
            token=mark.text,
            bytes=list(mark.text.encode()),
            logprob=finite(mark.logprob),
            top_logprobs=[
                TopLogprob(token=text, bytes=list(text.encode()), logprob=finite(log))
                for _, text, log in mark.top
            ],
        )
        for mark in marks
    ]


def _table(marks: Sequence[Mark], begins: int) -> Logprobs:
    """As columns, with where each token's text begins in the answer's."""
    offsets, at = [], begins
    for mark in marks:
        offsets.append(at)
        at += len(mark.text)
    return Logprobs(
        tokens=[mark.text for mark in marks],
        token_logprobs=[finite(mark.logprob) for mark in marks],
        top_logprobs=[{text: finite(log) for _, text, log in mark.top} for mark in marks],
        text_offset=offsets,
    )
