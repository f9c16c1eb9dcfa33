"""POST /completion: llama.cpp's own API, by which many programs talk to a local model.

Facts: tools/server/README.md of llama.cpp (ggml-org/llama.cpp), "POST /completion". Fields that set nothing
are taken, so that clients that send all of their settings are served; what is not built is refused unless its
value asks for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, overload

from fastapi import Request
from pydantic import Field, model_validator
from starlette.responses import Response

from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.tokenizer import Tokenizer
from aerie.serve import preprocess
from aerie.serve.common_fields import (
    MOST_STOPS,
    MOST_TOP,
    STRONGEST,
    Fields,
    Form,
    Settings,
    StopText,
    Text,
    Unbuilt,
    is_id,
    room_of,
)
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import answered, event
from aerie.serve.openai_format import finite, progress, timings
from aerie.serve.output_processor import LENGTH, Ending, Mark, Piece
from aerie.serve.request_outputs import Whole
from aerie.serve.service import Service

Bias: TypeAlias = "int | float | str | bool"
Pair = Annotated[list[Bias], Field(min_length=2, max_length=2)]
Id = Annotated[int, Field(ge=0)]


class PromptString(Fields):
    """A text in an object, beside which media could stand."""

    prompt_string: Text
    multimodal_data: list[str] | None = None
    unbuilt: ClassVar[Unbuilt] = {"multimodal_data": ([[]], "prompts are text")}


Part = Annotated[list[Text | Id], Field(min_length=1)]
Prompt = Text | PromptString | Annotated[list[Text | Id | PromptString | Part], Field(min_length=1)]


class NativeSettings(Settings):
    """Those of OpenAI's API, and of how many of the likeliest tokens it is told, and whether as drawn."""

    n_probs: int = 0
    post_sampling_probs: bool = False
    return_progress: bool = False

    @property
    def top(self) -> int | None:
        return self.n_probs or None

    @property
    def shows_progress(self) -> bool:
        return self.return_progress

    @property
    def as_drawn(self) -> bool:
        return self.post_sampling_probs


class NativeRequest(Fields):
    """See the module. Defaults are llama.cpp's. prompt: a text, or token ids, or both in turn, in one list;
    or a list of such. n_predict: -1 is as many as the context has, 0 reads the prompt and makes nothing.
    logit_bias: biases by ids or texts, or pairs of an id or a text and a bias."""

    prompt: Prompt
    model: str | None = None
    stream: bool = False
    n_predict: Annotated[int, Field(ge=-1)] = -1
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    logit_bias: dict[str, Bias] | list[Annotated[list[Bias], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    grammar: str = ""
    json_schema: dict[str, Any] | None = None
    n_probs: Annotated[int, Field(ge=0, le=MOST_TOP)] = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: list[str] = Field(default_factory=list)
    cache_prompt: bool | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=MOST_ANSWERS)] | None = None
    n_keep: int | None = None
    repeat_last_n: int | None = None
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
    n_indent: Any = None
    t_max_predict_ms: Any = None
    lora: Any = None
    backend_sampling: bool | None = None
    unbuilt: ClassVar[Unbuilt] = {
        "dynatemp_range": ([0], "temperatures that change are not built"),
        "typical_p": ([1], "typical sampling is not built"),
        "dry_multiplier": ([0], "the DRY penalty is not built"),
        "xtc_probability": ([0], "XTC is not built"),
        "mirostat": ([0], "Mirostat is not built"),
        "n_indent": ([0], "answers are not held to an indentation"),
        "t_max_predict_ms": ([0], "the server's --time-limit holds for all requests"),
        "lora": ([[]], "adapters are not built"),
    }

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.grammar and self.json_schema is not None:
            raise ValueError("grammar and json_schema are two forms; give one of them")
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
        if (wrong := next((bias for _, bias in pairs if isinstance(bias, str)), None)) is not None:
            raise ValueError(f"logit_bias has {wrong!r}; give a number, or false to leave a token out")
        if self.repeat_last_n not in (None, -1) and self._penalises:
            raise ValueError(
                f"repeat_last_n is {self.repeat_last_n}, and penalties look at the whole text here; give -1"
            )
        if (asked := len(self.prompts) * self.n_cmpl) > MOST_ANSWERS:
            raise ValueError(
                f"{asked} answers are asked for, and {MOST_ANSWERS} is the limit; send several requests"
            )
        return self

    @property
    def _penalises(self) -> bool:
        return self.repeat_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def prompts(self) -> list[str | list[str | int]]:
        """One or more, each a text, or texts and token ids in turn."""
        if not isinstance(self.prompt, list):
            return [_plain(self.prompt)]
        flat = [_plain(each) for each in self.prompt if not isinstance(each, list)]
        if any(isinstance(each, int) for each in flat) and len(flat) == len(self.prompt):
            return [flat]
        every = [each if isinstance(each, list) else _plain(each) for each in self.prompt]
        return [[each] if isinstance(each, int) else each for each in every]

    @property
    def is_several(self) -> bool:
        """Whether the response is a list."""
        return self.n_cmpl > 1 or len(self.prompts) > 1

    @property
    def most(self) -> int | None:
        """Tokens that are made at most; 0: the prompt is only read."""
        return room_of(self.n_predict if self.max_tokens is None else self.max_tokens)

    @property
    def biases(self) -> list[tuple[int | str, float]]:
        """By an id or a text; False leaves a token out."""
        given = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias
        return [(_named(name), -STRONGEST if bias is False else float(bias)) for name, bias in given]

    @property
    def form(self) -> Form | None:
        if self.grammar:
            return Form("grammar", gbnf=self.grammar)
        return None if self.json_schema is None else Form("json_schema", self.json_schema)

    def settings(self, biases: Mapping[int, float]) -> NativeSettings:
        return NativeSettings(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed if self.seed >= 0 else None,
            stop=self.stop or None,
            logit_bias={str(token): bias for token, bias in biases.items()},
            n=self.n_cmpl,
            id_slot=self.id_slot,
            ignore_eos=self.ignore_eos,
            n_probs=self.n_probs,
            post_sampling_probs=self.post_sampling_probs,
            return_progress=self.stream and self.return_progress,
        )

    @property
    def told(self) -> dict[str, Any]:
        """The settings, as a response repeats them."""
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
        }


@overload
def _plain(part: str | PromptString) -> str: ...
@overload
def _plain(part: int) -> int: ...
@overload
def _plain(part: str | int | PromptString) -> str | int: ...
def _plain(part: str | int | PromptString) -> str | int:
    return part.prompt_string if isinstance(part, PromptString) else part


DEFAULTS = NativeRequest(prompt="-").told
"""What /props tells of the settings of a request that gives none."""


class NativeForm:
    """Of /completion. prompts: the texts of the prompts, as the model reads them."""

    def __init__(self, model: str, asked: NativeRequest, prompts: Sequence[str]) -> None:
        self._model, self._asked, self._prompts = model, asked, prompts
        self._new_lines: set[int] = set()

    def whole(self, made: Sequence[Whole]) -> Any:
        told = []
        for index, one in enumerate(made):
            assert one.ending is not None
            piece = Piece(index, one.text, tuple(one.marks), one.ending, tuple(one.tokens), one.spent)
            end = {**self._piece(piece), **self._end(piece, one.ending)}
            if not self._asked.return_tokens:
                end["tokens"] = []
            told.append(self._picked(end))
        return told if self._asked.is_several else told[0]

    def events(self, piece: Piece) -> Iterator[bytes]:
        begun = {"index": piece.index, "content": "", "tokens": [], "stop": False}
        for read in piece.read:
            yield event({**begun, **progress(piece.spent, read)})
        if piece.ending is None:
            if piece.text or piece.marks:
                yield event({**self._piece(piece), "stop": False})
            return
        if piece.text or piece.marks:
            yield event({**self._piece(piece), "stop": False})
        told = self._end(Piece(piece.index, spent=piece.spent), piece.ending)
        yield event(self._picked({"index": piece.index, "content": "", "tokens": [], **told}))

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def failed(self, error: ApiError) -> bytes:
        return event(error.body)

    def _piece(self, piece: Piece) -> dict[str, Any]:
        """What has come, in a stream or as a whole."""
        asked, spent = self._asked, piece.spent
        if "\n" in piece.text:
            self._new_lines.add(piece.index)
        told: dict[str, Any] = {
            "index": piece.index,
            "content": piece.text,
            "tokens": [*piece.tokens],
            "tokens_predicted": spent.made,
            "tokens_evaluated": spent.prompt,
        }
        if asked.n_probs:
            told["completion_probabilities"] = [
                _mark(each, asked.post_sampling_probs) for each in piece.marks
            ]
        return {**told, "timings": timings(spent)} if asked.timings_per_token else told

    def _end(self, piece: Piece, ending: Ending) -> dict[str, Any]:
        asked, spent = self._asked, piece.spent
        return {
            "stop": True,
            "id_slot": -1 if asked.id_slot is None else asked.id_slot,
            "model": self._model,
            "tokens_predicted": spent.made,
            "tokens_evaluated": spent.prompt,
            "tokens_cached": spent.cached,
            "generation_settings": asked.told,
            "prompt": self._prompts[piece.index // asked.n_cmpl],
            "has_new_line": piece.index in self._new_lines,
            "truncated": False,
            "stop_type": _stop_type(ending),
            "stopping_word": ending.stop if isinstance(ending.stop, str) else "",
            "timings": timings(spent),
        }

    def _picked(self, told: dict[str, Any]) -> dict[str, Any]:
        """The fields that were asked for, a nested one by its path; all where none were."""
        if not (wanted := self._asked.response_fields):
            return told
        picked = {}
        for name in wanted:
            value: Any = told
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                picked[name] = value
        return picked


def _stop_type(ending: Ending) -> Literal["limit", "word", "eos"]:
    if ending.reason == LENGTH:
        return "limit"
    return "eos" if ending.stop is None else "word"


def _mark(mark: Mark, as_drawn: bool) -> dict[str, Any]:
    """A token, and the likeliest in its place: by logarithms, or as drawn, by probabilities."""

    def one(token: int, text: str, data: bytes, log: float | None) -> dict[str, Any]:
        told = {"id": token, "token": text, "bytes": list(data)}
        return {**told, "prob": math.exp(log or 0.0)} if as_drawn else {**told, "logprob": finite(log)}

    name = "top_probs" if as_drawn else "top_logprobs"
    own = one(mark.token, mark.text, mark.data, mark.logprob)
    return {**own, name: [one(*each) for each in mark.top]}


def encoded(prompt: str | list[str | int], most: int, tokenizer: Tokenizer) -> list[int]:
    """Control tokens that are spelled out are such here: who asks has filled in the template. What stands
    before every text, BOS mostly, is there once, and not before ids. most: as of Tokenizer.encode."""
    begins = tokenizer.encode("")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, control_tokens=True, most=most)
        return ids[len(begins) :] if begins and ids[: 2 * len(begins)] == begins * 2 else ids
    ids = []
    for part in prompt:
        if isinstance(part, int):
            ids.append(part)
        else:
            made = encoded(part, most, tokenizer)
            ids += made[len(begins) :] if ids and made[: len(begins)] == begins else made
    return ids


def _named(name: Bias) -> int | str:
    """An id, or a text; a text of digits is an id, as keys of JSON are texts."""
    if isinstance(name, str):
        return int(name) if is_id(name) else name
    return int(name)


def biases(asked: NativeRequest, most: int, tokenizer: Tokenizer) -> dict[int, float]:
    """By token id. A text stands for each of its tokens."""
    return {
        token: bias
        for name, bias in asked.biases
        for token in ([name] if isinstance(name, int) else tokenizer.encode(name, special=False, most=most))
    }


async def completed(service: Service, asked: NativeRequest, request: Request) -> Response:
    """The response. Raises ApiError."""
    opened = service.ready()
    for prompt in asked.prompts:
        preprocess.check_ids(opened, (each for each in prompt if isinstance(each, int)), "prompt")
    most = opened.session.model.positions
    prompts = [await service.encoded(partial(encoded, prompt, most)) for prompt in asked.prompts]
    texts = [await service.encoded(partial(_decoded, ids)) for ids in prompts]
    given = await service.encoded(partial(biases, asked, most))
    grammar = await service.grammar(opened, asked.form)
    limit_s = service.limits.time_limit_s
    asks = preprocess.asked(opened, asked.settings(given), prompts, asked.most, limit_s, grammar)
    asking = service.asking(asks, request.state.line)
    form = NativeForm(service.name, asked, texts)
    return await answered(request, asking, form, asked.stream, service.limits.send_s)


def _decoded(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids)
