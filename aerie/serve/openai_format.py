"""Responses in OpenAI's format, made of its client's own types, so that the client parses what is sent."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from aerie.engine.call_reader import ToolCall, ToolCallDelta
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import DONE, EventTemplate, event
from aerie.serve.output_processor import NO_TIMINGS, FinishInfo, OutputDelta, Timings, TokenLogprob
from aerie.serve.request_outputs import CompletedOutput
from aerie.version import VERSION

FinishReasonName = Literal["stop", "length", "tool_calls"]
SYSTEM_FINGERPRINT = f"build-{VERSION}"
"""The configuration of the server: here its version. llama.cpp's clients expect a `b` first."""
ZERO_LOGPROB = -9999.0
"""Stands for the logarithm of 0, which JSON cannot write; as in OpenAI's API."""


def new_id(kind: str) -> str:
    """A random id with this prefix."""
    return f"{kind}{secrets.token_hex(12)}"


def count_usage(finished: Iterable[FinishInfo], choices: int) -> CompletionUsage:
    """Sum the counts of all outputs. A prompt counts once, however many choices it has."""
    outputs = list(finished)
    firsts = outputs[::choices]
    prompt = sum(output.prompt_tokens for output in firsts)
    completion = sum(output.completion_tokens for output in outputs)
    drafted, accepted = sum(output.drafted for output in outputs), sum(output.accepted for output in outputs)
    return CompletionUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        completion_tokens_details=CompletionTokensDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=drafted - accepted,
            reasoning_tokens=sum(output.thinking_tokens for output in outputs),
        ),
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(output.cached_tokens for output in firsts)
        ),
    )


def timings(spent: Timings) -> dict[str, Any]:
    """Timings in llama.cpp's format: computed, cached and generated tokens, and milliseconds. The time per
    generated token excludes the first one, which prefill gives."""
    read, more = max(0, spent.prompt_tokens - spent.cached_tokens), max(0, spent.completion_tokens - 1)
    return {
        "cache_n": spent.cached_tokens,
        **_rates("prompt", read, read, spent.prefill_s),
        **_rates("predicted", spent.completion_tokens, more, spent.decode_s),
    }


def _rates(kind: str, tokens: int, timed: int, spent_s: float) -> dict[str, Any]:
    return {
        f"{kind}_n": tokens,
        f"{kind}_ms": 1e3 * spent_s,
        f"{kind}_per_token_ms": 1e3 * spent_s / timed if timed else 0.0,
        f"{kind}_per_second": timed / spent_s if spent_s else 0.0,
    }


def progress(spent: Timings, position: tuple[int, float]) -> dict[str, Any]:
    """Progress of prefill in llama.cpp's format: prompt tokens, cached ones, processed ones, and milliseconds
    since its start."""
    processed, read_s = position
    counts = {
        "total": spent.prompt_tokens,
        "cache": spent.cached_tokens,
        "processed": processed,
        "time_ms": 1e3 * read_s,
    }
    return {"prompt_progress": counts}


class OpenAIWriter(ABC):
    """The common part of ChatWriter and CompletionWriter."""

    def __init__(self) -> None:
        self._templates: dict[object, EventTemplate] = {}

    def _text_event(self, index: int, text: str) -> bytes:
        """The event of a text alone, for the choice `index`."""
        return self._event_like(index, partial(self._with_text, index), text)

    def _event_like(self, key: object, make: Callable[[str], BaseModel], text: str) -> bytes:
        """The event that `make` returns for a text. Events with the same key differ in the text only."""
        if key not in self._templates:
            self._templates[key] = EventTemplate(make)
        return self._templates[key](text)

    @abstractmethod
    def _with_text(self, index: int, text: str) -> BaseModel:
        """The body of an event that `make` returned, with this text."""

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body)


class ChatWriter(OpenAIWriter):
    """Writes /v1/chat/completions. with_usage: a stream ends with the counts. with_logprobs: include
    logprobs, those of thinking too. scored_prompts: logprobs of the prompt. timed: put timings into each
    event, not only into the last one. with_thinking: include the thinking. prompt_text: of the prompt, if the
    response has it."""

    def __init__(
        self,
        model: str,
        choices: int,
        with_usage: bool,
        with_logprobs: bool,
        scored_prompts: Sequence[Sequence[TokenLogprob]] = (),
        timed: bool = False,
        with_thinking: bool = True,
        prompt_text: str | None = None,
    ) -> None:
        super().__init__()
        self._with_thinking = with_thinking
        self._timed, self._timings = timed, NO_TIMINGS
        self._header: dict[str, Any] = {
            "id": new_id("chatcmpl-"),
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._choices, self._with_usage, self._with_logprobs = choices, with_usage, with_logprobs
        self._started: set[int] = set()
        self._prompt_fields: dict[str, Any] = (
            {"prompt_logprobs": prompt_logprobs(scored_prompts[0])} if scored_prompts else {}
        )
        if prompt_text is not None:
            self._prompt_fields["__verbose"] = {"prompt": prompt_text}

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> ChatCompletion:
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        usage = count_usage((output.finish for output in outputs if output.finish), self._choices)
        header = {**self._header, **self._prompt_fields, "timings": timings(outputs[0].timings)}
        return ChatCompletion(**header, object="chat.completion", choices=choices, usage=usage)

    def _choice(self, index: int, output: CompletedOutput) -> Choice:
        thinking = _thinking_fields(output.thinking) if self._with_thinking else {}
        message = ChatCompletionMessage(role="assistant", content=output.text, refusal=None, **thinking)
        if output.tool_calls:
            message.content = output.text or None
            message.tool_calls = [_tool_call(call) for call in output.tool_calls]
        logprobs = (
            ChoiceLogprobs(content=_logprob_entries(output.logprobs), refusal=None)
            if self._with_logprobs
            else None
        )
        return Choice(
            index=index, message=message, finish_reason=_reason(output.finish) or "stop", logprobs=logprobs
        )

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        for position in delta.progress:
            header = {**self._header, "object": "chat.completion.chunk", **progress(delta.timings, position)}
            yield event(ChatCompletionChunk(**header, choices=[]))
        has_text = delta.text or delta.thinking
        if delta.progress and not (has_text or delta.logprobs or delta.tool_calls or delta.finish):
            return
        if delta.index not in self._started:
            self._started.add(delta.index)
            content = None if delta.tool_calls and not delta.text else ""
            yield event(self._chunk(delta.index, ChoiceDelta(role="assistant", content=content)))
        thinking = delta.thinking if self._with_thinking else ""
        is_plain = not (self._with_logprobs or self._timed or delta.tool_calls)
        if thinking and is_plain:
            make = partial(self._with_thinking_text, delta.index)
            yield self._event_like((delta.index, "thinking"), make, thinking)
        if delta.text and is_plain:
            yield self._text_event(delta.index, delta.text)
        elif not is_plain and (delta.text or thinking or delta.logprobs):
            logprobs = (
                ChunkLogprobs(content=_logprob_entries(delta.logprobs), refusal=None)
                if self._with_logprobs
                else None
            )
            timing = delta.timings if self._timed else None
            has_no_text = not delta.text and (delta.tool_calls or thinking)
            text_delta = ChoiceDelta(
                content=None if has_no_text else delta.text, **_thinking_fields(thinking)
            )
            yield event(self._chunk(delta.index, text_delta, None, logprobs, timing))
        for call in delta.tool_calls:
            yield event(self._chunk(delta.index, ChoiceDelta(tool_calls=[_tool_call_delta(call)])))
        if delta.finish:
            self._timings = delta.timings
            yield event(self._chunk(delta.index, ChoiceDelta(), _reason(delta.finish), None, delta.timings))

    def _with_text(self, index: int, text: str) -> ChatCompletionChunk:
        return self._chunk(index, ChoiceDelta(content=text))

    def _with_thinking_text(self, index: int, text: str) -> ChatCompletionChunk:
        return self._chunk(index, ChoiceDelta(**_thinking_fields(text)))

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:
        if self._with_usage:
            usage = count_usage(_in_order(finished), self._choices)
            header = {**self._header, "object": "chat.completion.chunk", "timings": timings(self._timings)}
            yield event(ChatCompletionChunk(**header, choices=[], usage=usage))
        yield DONE

    def _chunk(
        self,
        index: int,
        delta: ChoiceDelta,
        reason: FinishReasonName | None = None,
        logprobs: ChunkLogprobs | None = None,
        timing: Timings | None = None,
    ) -> ChatCompletionChunk:
        choice = ChunkChoice(index=index, delta=delta, finish_reason=reason, logprobs=logprobs)
        extra: dict[str, Any] = {"timings": timings(timing)} if timing else {}
        chunk = ChatCompletionChunk(**self._header, **extra, object="chat.completion.chunk", choices=[choice])
        if self._with_usage:
            chunk.usage = None  # written as null
        return chunk


def _thinking_fields(text: str) -> dict[str, Any]:
    """Thinking by both names that clients read: llama.cpp's, and OpenRouter's, which is vLLM's newer one."""
    return {"reasoning_content": text, "reasoning": text} if text else {}


def _tool_call(call: ToolCall) -> ChatCompletionMessageFunctionToolCall:
    return ChatCompletionMessageFunctionToolCall(
        id=new_id("call_"), type="function", function=Function(name=call.name, arguments=call.arguments)
    )


def _tool_call_delta(delta: ToolCallDelta) -> ChoiceDeltaToolCall:
    """A delta of a call. The first one has its id and name."""
    if delta.name is None:
        function_ = ChoiceDeltaToolCallFunction(arguments=delta.arguments)
        return ChoiceDeltaToolCall(index=delta.number, function=function_)
    function = ChoiceDeltaToolCallFunction(name=delta.name, arguments=delta.arguments)
    return ChoiceDeltaToolCall(index=delta.number, id=new_id("call_"), type="function", function=function)


EchoedPrompt = tuple[str, Sequence[TokenLogprob]]
"""A prompt's text, and the logprobs of its tokens if the outputs have them."""


class CompletionWriter(OpenAIWriter):
    """Writes /v1/completions. echoes: of each prompt, put before its outputs. scored_prompts: logprobs of
    each prompt, returned separately."""

    def __init__(
        self,
        model: str,
        choices: int,
        with_usage: bool,
        with_logprobs: bool,
        echoes: Sequence[EchoedPrompt] = (),
        scored_prompts: Sequence[Sequence[TokenLogprob]] = (),
    ) -> None:
        super().__init__()
        self._header: dict[str, Any] = {
            "id": new_id("cmpl-"),
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._choices, self._with_usage, self._with_logprobs = choices, with_usage, with_logprobs
        self._echoes = {index: echoes[index // choices] for index in range(len(echoes) * choices)}
        self._prompt_logprobs = scored_prompts
        self._lengths: dict[int, int] = {}

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> Completion:
        choices = [
            self._choice(OutputDelta(index, output.text, tuple(output.logprobs), output.finish))
            for index, output in enumerate(outputs)
        ]
        usage = count_usage((output.finish for output in outputs if output.finish), self._choices)
        return Completion(**self._header, object="text_completion", choices=choices, usage=usage)

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        is_first = delta.index in self._echoes
        if delta.text and not (self._with_logprobs or self._prompt_logprobs or delta.finish or is_first):
            yield self._text_event(delta.index, delta.text)
        elif delta.text or delta.logprobs or delta.finish or is_first:
            yield event(self._completion(delta))

    def _with_text(self, index: int, text: str) -> Completion:
        return self._completion(OutputDelta(index, text))

    def _completion(self, delta: OutputDelta) -> Completion:
        completion = Completion(**self._header, object="text_completion", choices=[self._choice(delta)])
        if self._with_usage:
            completion.usage = None  # written as null
        return completion

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:
        if self._with_usage:
            usage = count_usage(_in_order(finished), self._choices)
            yield event(Completion(**self._header, object="text_completion", choices=[], usage=usage))
        yield DONE

    def _choice(self, delta: OutputDelta) -> CompletionChoice:
        echo, echo_logprobs = self._echoes.pop(delta.index, ("", ()))
        text, logprobs = echo + delta.text, [*echo_logprobs, *delta.logprobs]
        offset = self._lengths.get(delta.index, 0)
        self._lengths[delta.index] = offset + len(text)
        return CompletionChoice.model_construct(  # unchecked: in a stream its reason is None
            index=delta.index,
            text=text,
            finish_reason=_reason(delta.finish),
            logprobs=_logprob_table(logprobs, offset) if self._with_logprobs else None,
            **self._prompt_fields(delta.index),
        )

    def _prompt_fields(self, index: int) -> dict[str, Any]:
        if not self._prompt_logprobs:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._prompt_logprobs[index // self._choices])}


def _reason(finish: FinishInfo | None) -> FinishReasonName | None:
    return cast(FinishReasonName, finish.reason) if finish else None


def _in_order(finished: Mapping[int, FinishInfo]) -> list[FinishInfo]:
    return [finished[index] for index in sorted(finished)]


def finite_logprob(logprob: float | None) -> float:
    return ZERO_LOGPROB if logprob is None else max(logprob, ZERO_LOGPROB)


def prompt_logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's format: for each token its logprob and the likeliest ones, by id; None for the first."""
    return [None if logprob.logprob is None else _by_id(logprob) for logprob in logprobs]


def _by_id(logprob: TokenLogprob) -> dict[str, Any]:
    ranked = {other.token: rank for rank, other in enumerate(logprob.top, start=1)}
    tokens = [
        (logprob.token, logprob.text, logprob.logprob),
        *((other.token, other.text, other.logprob) for other in logprob.top),
    ]
    return {
        str(token): {"logprob": finite_logprob(log), "rank": ranked.get(token), "decoded_token": text}
        for token, text, log in tokens
    }


def _logprob_entries(logprobs: Iterable[TokenLogprob]) -> list[ChatCompletionTokenLogprob]:
    return [
        ChatCompletionTokenLogprob(
            token=logprob.text,
            bytes=list(logprob.data),
            logprob=finite_logprob(logprob.logprob),
            top_logprobs=[
                TopLogprob(token=each.text, bytes=list(each.data), logprob=finite_logprob(each.logprob))
                for each in logprob.top
            ],
        )
        for logprob in logprobs
    ]


def _logprob_or_none(logprob: TokenLogprob) -> float | None:
    """None for the first token of a prompt, as in OpenAI's API."""
    return None if logprob.logprob is None else finite_logprob(logprob.logprob)


def _by_text(logprob: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens by their texts. If two have the same text, or one is part of a character, its key
    is its bytes, as in OpenAI's API, or its id, as in vLLM."""
    by_text: dict[str, float] = {}
    for other in logprob.top:
        in_bytes = "bytes:" + "".join(f"\\x{byte:02x}" for byte in other.data)
        is_part = "\N{REPLACEMENT CHARACTER}" in other.text
        names = [in_bytes if is_part else other.text, in_bytes] if other.data else []
        free = (name for name in (*names, f"token_id:{other.token}") if name not in {*by_text, logprob.text})
        by_text[logprob.text if other.token == logprob.token else next(free)] = finite_logprob(other.logprob)
    return by_text


def _logprob_table(logprobs: Sequence[TokenLogprob], start: int) -> Logprobs:
    """Logprobs as columns, with the offset of each token's text in the output."""
    offsets, at = [], start
    for logprob in logprobs:
        offsets.append(at)
        at += len(logprob.text)
    return Logprobs.model_construct(  # unchecked: the first of a prompt has none
        tokens=[logprob.text for logprob in logprobs],
        token_logprobs=[_logprob_or_none(logprob) for logprob in logprobs],
        top_logprobs=[_by_text(logprob) for logprob in logprobs],
        text_offset=offsets,
    )
