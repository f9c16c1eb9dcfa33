"""POST /completion: llama.cpp's own API, which many programs use for local models.

Source: tools/server/README.md of llama.cpp (ggml-org/llama.cpp), "POST /completion". Fields that change
nothing are accepted, so that clients that send all their settings are served. A field that is not supported
is refused unless its value disables it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, overload

from fastapi import Request
from pydantic import Field, model_validator
from starlette.responses import Response

from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.tokenizer import Tokenizer
from aerie.serve import preprocess
from aerie.serve.common_fields import RequestFields, Text, UnsupportedFields
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import event, make_response
from aerie.serve.llama_settings import LlamaSettings
from aerie.serve.openai_format import finite_logprob, progress, timings
from aerie.serve.output_processor import LENGTH, FinishInfo, OutputDelta, TokenLogprob
from aerie.serve.request_outputs import CompletedOutput
from aerie.serve.sampling_fields import (
    EXCLUDING_BIAS,
    MAX_TOP_LOGPROBS,
    SamplingFields,
    is_id,
    max_tokens_or_none,
)
from aerie.serve.service import ModelService
from aerie.serve.structured_output_fields import StructuredOutput

Bias: TypeAlias = "int | float | str | bool"
BiasPair = Annotated[list[Bias], Field(min_length=2, max_length=2)]
TokenId = Annotated[int, Field(ge=0)]


class PromptString(RequestFields):
    """A text as an object, which in llama.cpp may also have media."""

    prompt_string: Text
    multimodal_data: list[str] | None = None
    unsupported: ClassVar[UnsupportedFields] = {"multimodal_data": ([[]], "prompts are text")}


PromptPart = Annotated[list[Text | TokenId], Field(min_length=1)]
Prompt = (
    Text | PromptString | Annotated[list[Text | TokenId | PromptString | PromptPart], Field(min_length=1)]
)


class LlamaCppSampling(SamplingFields):
    """The sampling fields of OpenAI's API, with llama.cpp's fields for logprobs."""

    n_probs: int = 0
    post_sampling_probs: bool = False
    return_progress: bool = False

    @property
    def num_logprobs(self) -> int | None:
        return self.n_probs or None

    @property
    def shows_progress(self) -> bool:
        return self.return_progress

    @property
    def logprobs_after_sampling(self) -> bool:
        return self.post_sampling_probs


class LlamaCppRequest(LlamaSettings):
    """Body of POST /completion. Defaults are llama.cpp's. prompt: a text, token ids, or a list of both; or a
    list of such. n_predict: -1 means up to the end of the context, 0 computes the prompt only. logit_bias:
    biases by id or text, or pairs."""

    prompt: Prompt
    model: str | None = None
    stream: bool = False
    n_predict: Annotated[int, Field(ge=-1)] = -1
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_RUNNING_REQUESTS)] = 1
    logit_bias: dict[str, Bias] | list[BiasPair] = Field(default_factory=list)
    ignore_eos: bool = False
    grammar: str = ""
    json_schema: dict[str, Any] | None = None
    n_probs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: list[str] = Field(default_factory=list)
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=MAX_RUNNING_REQUESTS)] | None = None
    n_keep: int | None = None
    min_keep: int | None = None
    samplers: list[str] | str | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    dynatemp_exponent: float | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: Any = None
    typical_p: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    mirostat: Any = None
    adaptive_target: Any = None
    adaptive_decay: float | None = None
    n_indent: Any = None
    t_max_predict_ms: Any = None
    lora: Any = None
    backend_sampling: bool | None = None
    unsupported: ClassVar[UnsupportedFields] = {
        "dynatemp_range": ([0], "temperatures that change are not built"),
        "typical_p": ([1], "typical sampling is not built"),
        "dry_multiplier": ([0], "the DRY penalty is not built"),
        "xtc_probability": ([0], "XTC is not built"),
        "mirostat": ([0], "Mirostat is not built"),
        "adaptive_target": ([-1], "the sampler adaptive-p is not built"),
        "n_indent": ([0], "answers are not held to an indentation"),
        "t_max_predict_ms": ([0], "the server's --time-limit holds for all requests"),
        "lora": ([[]], "adapters are not built"),
    }

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.grammar and self.json_schema is not None:
            raise ValueError("grammar and json_schema are two forms; give one of them")
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
        if (invalid := next((bias for _, bias in pairs if isinstance(bias, str)), None)) is not None:
            raise ValueError(f"logit_bias has {invalid!r}; give a number, or false to leave a token out")
        if (count := len(self.prompts) * self.n_cmpl) > MAX_RUNNING_REQUESTS:
            raise ValueError(
                f"{count} answers were requested, and {MAX_RUNNING_REQUESTS} is the limit; send several "
                "requests"
            )
        return self

    @property
    def prompts(self) -> list[str | list[str | int]]:
        """One or more prompts, each a text, or texts and token ids."""
        if not isinstance(self.prompt, list):
            return [_plain(self.prompt)]
        parts = [_plain(part) for part in self.prompt if not isinstance(part, list)]
        if any(isinstance(part, int) for part in parts) and len(parts) == len(self.prompt):
            return [parts]
        prompts = [part if isinstance(part, list) else _plain(part) for part in self.prompt]
        return [[part] if isinstance(part, int) else part for part in prompts]

    @property
    def is_several(self) -> bool:
        """Whether the response is a list."""
        return self.n_cmpl > 1 or len(self.prompts) > 1

    @property
    def max_new_tokens(self) -> int | None:
        """Maximum output tokens; 0 computes the prompt only, None means no limit."""
        return max_tokens_or_none(self.n_predict if self.max_tokens is None else self.max_tokens)

    @property
    def biases(self) -> list[tuple[int | str, float]]:
        """Biases by id or text; false excludes a token."""
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
        return [
            (_token_or_text(name), -EXCLUDING_BIAS if bias is False else float(bias)) for name, bias in pairs
        ]

    @property
    def structured_output(self) -> StructuredOutput | None:
        if self.grammar:
            return StructuredOutput("grammar", gbnf=self.grammar)
        return None if self.json_schema is None else StructuredOutput("json_schema", self.json_schema)

    def sampling_fields(self, biases: Mapping[int, float]) -> LlamaCppSampling:
        """The settings as the fields of the other APIs. biases: by token id."""
        return LlamaCppSampling(
            **self.openai_settings(),
            logit_bias={str(token): bias for token, bias in biases.items()},
            n=self.n_cmpl,
            id_slot=self.id_slot,
            ignore_eos=self.ignore_eos,
            n_probs=self.n_probs,
            post_sampling_probs=self.post_sampling_probs,
            return_progress=self.stream and self.return_progress,
        )

    def settings_json(self) -> dict[str, Any]:
        """The settings as a response repeats them."""
        shown = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty")
        more = (
            "frequency_penalty",
            "seed",
            "ignore_eos",
            "stream",
            "n_probs",
            "grammar",
            "post_sampling_probs",
        )
        limit = self.n_predict if self.max_tokens is None else self.max_tokens
        return {
            "n_predict": limit,
            "max_tokens": limit,
            **{name: getattr(self, name) for name in (*shown, *more)},
            "stop": [self.stop] if isinstance(self.stop, str) else self.stop,
            "logit_bias": self.logit_bias,
            "timings_per_token": self.timings_per_token,
            **SAMPLERS_OFF,
        }


SAMPLERS_OFF: Mapping[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}
"""What responses say of llama.cpp's samplers that are not built: they are off."""


@overload
def _plain(part: str | PromptString) -> str: ...
@overload
def _plain(part: int) -> int: ...
@overload
def _plain(part: str | int | PromptString) -> str | int: ...
def _plain(part: str | int | PromptString) -> str | int:
    return part.prompt_string if isinstance(part, PromptString) else part


DEFAULTS = LlamaCppRequest(prompt="-").settings_json()
"""Default settings, for /props."""


class LlamaCppWriter:
    """Writes /completion. prompts: their texts, as the model sees them."""

    def __init__(self, model: str, request: LlamaCppRequest, prompts: Sequence[str]) -> None:
        self._model, self._request, self._prompts = model, request, prompts
        self._new_lines: set[int] = set()

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> Any:
        bodies = []
        for index, output in enumerate(outputs):
            assert output.finish is not None
            delta = OutputDelta(
                index,
                output.text,
                tuple(output.logprobs),
                output.finish,
                tuple(output.tokens),
                output.timings,
            )
            body = {**self._delta_body(delta), **self._final_body(delta, output.finish)}
            if not self._request.return_tokens:
                body["tokens"] = []
            bodies.append(self._select_fields(body))
        return bodies if self._request.is_several else bodies[0]

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        start = {"index": delta.index, "content": "", "tokens": [], "stop": False}
        for progress_at in delta.progress:
            yield event({**start, **progress(delta.timings, progress_at)})
        if delta.finish is None:
            if delta.text or delta.logprobs:
                yield event({**self._delta_body(delta), "stop": False})
            return
        if delta.text or delta.logprobs:
            yield event({**self._delta_body(delta), "stop": False})
        body = self._final_body(OutputDelta(delta.index, timings=delta.timings), delta.finish)
        yield event(self._select_fields({"index": delta.index, "content": "", "tokens": [], **body}))

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def error_event(self, error: ApiError) -> bytes:
        return event(error.body)

    def _delta_body(self, delta: OutputDelta) -> dict[str, Any]:
        """The body of a delta, or of a complete output."""
        request, timing = self._request, delta.timings
        if "\n" in delta.text:
            self._new_lines.add(delta.index)
        body: dict[str, Any] = {
            "index": delta.index,
            "content": delta.text,
            "tokens": [*delta.tokens],
            "tokens_predicted": timing.completion_tokens,
            "tokens_evaluated": timing.prompt_tokens,
        }
        if request.n_probs:
            body["completion_probabilities"] = [
                _logprob_body(each, request.post_sampling_probs) for each in delta.logprobs
            ]
        return {**body, "timings": timings(timing)} if request.timings_per_token else body

    def _final_body(self, delta: OutputDelta, finish: FinishInfo) -> dict[str, Any]:
        request, timing = self._request, delta.timings
        return {
            "stop": True,
            "id_slot": -1 if request.id_slot is None else request.id_slot,
            "model": self._model,
            "tokens_predicted": timing.completion_tokens,
            "tokens_evaluated": timing.prompt_tokens,
            "tokens_cached": timing.cached_tokens,
            "generation_settings": request.settings_json(),
            "prompt": self._prompts[delta.index // request.n_cmpl],
            "has_new_line": delta.index in self._new_lines,
            "truncated": False,
            "stop_type": _stop_type(finish),
            "stopping_word": finish.stop if isinstance(finish.stop, str) else "",
            "timings": timings(timing),
        }

    def _select_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """The requested fields, nested ones by path; all fields if none were requested."""
        if not (requested := self._request.response_fields):
            return body
        picked = {}
        for name in requested:
            value: Any = body
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                picked[name] = value
        return picked


def _stop_type(finish: FinishInfo) -> Literal["limit", "word", "eos"]:
    if finish.reason == LENGTH:
        return "limit"
    return "eos" if finish.stop is None else "word"


def _logprob_body(logprob: TokenLogprob, after_sampling: bool) -> dict[str, Any]:
    """A token and the likeliest ones of its position: logprobs, or probabilities after sampling."""

    def entry(token: int, text: str, data: bytes, log: float | None) -> dict[str, Any]:
        body = {"id": token, "token": text, "bytes": list(data)}
        return (
            {**body, "prob": math.exp(log or 0.0)}
            if after_sampling
            else {**body, "logprob": finite_logprob(log)}
        )

    name = "top_probs" if after_sampling else "top_logprobs"
    token_body = entry(logprob.token, logprob.text, logprob.data, logprob.logprob)
    return {**token_body, name: [entry(*each) for each in logprob.top]}


def encode_prompt(prompt: str | list[str | int], most: int, tokenizer: Tokenizer) -> list[int]:
    """Encode a prompt. Control tokens in its text become such tokens, as the client has filled in the
    template. A prefix of every text, mostly BOS, is added once, and not before ids. max_tokens: as in
    Tokenizer.encode."""
    start = tokenizer.encode("")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, control_tokens=True, most=most)
        return ids[len(start) :] if start and ids[: 2 * len(start)] == start * 2 else ids
    ids = []
    for part in prompt:
        if isinstance(part, int):
            ids.append(part)
        else:
            encoded_part = encode_prompt(part, most, tokenizer)
            ids += encoded_part[len(start) :] if ids and encoded_part[: len(start)] == start else encoded_part
    return ids


def _token_or_text(name: Bias) -> int | str:
    """A token id or a text. A text of digits is an id, as JSON keys are texts."""
    if isinstance(name, str):
        return int(name) if is_id(name) else name
    return int(name)


def parse_biases(request: LlamaCppRequest, most: int, tokenizer: Tokenizer) -> dict[int, float]:
    """Biases by token id. A text stands for each of its tokens."""
    return {
        token: bias
        for name, bias in request.biases
        for token in ([name] if isinstance(name, int) else tokenizer.encode(name, special=False, most=most))
    }


async def complete(service: ModelService, body: LlamaCppRequest, request: Request) -> Response:
    """Answer POST /completion. Raises ApiError."""
    opened = service.require_loaded()
    for prompt in body.prompts:
        preprocess.check_ids(opened, (each for each in prompt if isinstance(each, int)), "prompt")
    max_tokens = opened.session.model.positions
    prompts = [
        await service.run_with_tokenizer(partial(encode_prompt, prompt, max_tokens))
        for prompt in body.prompts
    ]
    texts = [await service.run_with_tokenizer(partial(_decoded, ids)) for ids in prompts]
    biases_by_id = await service.run_with_tokenizer(partial(parse_biases, body, max_tokens))
    grammar = await service.grammar(opened, body.structured_output)
    limit_s = service.limits.time_limit_s
    requests = preprocess.output_requests(
        opened, body.sampling_fields(biases_by_id), prompts, body.max_new_tokens, limit_s, grammar
    )
    outputs = service.submit(requests, request.state.request_log)
    writer = LlamaCppWriter(service.name, body, texts)
    return await make_response(request, outputs, writer, body.stream, service.limits.send_s)


def _decoded(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids)
