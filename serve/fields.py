"""The fields of requests, with the names that OpenAI's API has for them, and some of vLLM's and llama.cpp's.

A field that is not here is refused, as OpenAI's API does it: a setting that is passed over in silence is
taken to work. What changes no answer (`user`, `metadata`, ...) is taken; what is not built is refused by its
name unless it asks for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from aerie.engine.sampler import Sampling
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.strategies.manner import Manners

MOST_STOPS, MOST_TOP, MOST_MARKED = 16, 20, 1024
"""Strings and ids of `stop`; tokens of top_logprobs; tokens of a prompt whose logits are told: they are all
in memory at once."""


def _text(text: str) -> str:
    """Refuses halves of characters, which JSON can write and no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate); send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_text)]
StopText = Annotated[str, Field(min_length=1), AfterValidator(_text)]


Unbuilt = Mapping[str, tuple[Sequence[Any], str]]
"""Fields that are not built, each with the values that ask for nothing, and why not."""


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    unbuilt: ClassVar[Unbuilt] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _is_built(cls, given: Any, field: ValidationInfo) -> Any:
        values, why = cls.unbuilt.get(field.field_name or "", ((), ""))
        if why and given is not None and given not in values:
            raise ValueError(f"{why}; leave it out")
        return given


class TextPart(Fields):
    """A part of a message; other kinds, such as images, are not taken."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


Content = Text | list[TextPart]


def text_of(content: Text | list[TextPart] | None) -> str:
    """Of a message: its parts, one after the other."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Form(NamedTuple):
    """A form that an answer is asked for: JSON of a schema, or text of a grammar in llama.cpp's GBNF, or of a
    regular expression. param: the field that asks for it. hold: what of a schema answers are held to
    (form_process.Wanted)."""

    param: str
    schema: Mapping[str, Any] | None = None
    gbnf: str | None = None
    regex: str | None = None
    hold: str = "meaning"


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def hold_of(strict: bool | None) -> str:
    """What of a schema a client wants answers held to: all, or what can be."""
    return "all" if strict else "known"


class JsonSchema(Fields):
    """name and description change nothing. strict: a schema is refused of which something cannot be held."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(Fields):
    """Of chats: `json_schema` has the schema. llama.cpp's clients give `schema` beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self._given is None:
            raise ValueError("the type json_schema wants json_schema: {name, schema}; give it")
        return self

    @property
    def _given(self) -> dict[str, Any] | None:
        return self.schema_ if self.json_schema is None else self.json_schema.schema_

    @property
    def form(self) -> Form | None:
        if self.type == "text":
            return None
        given = ANY_OBJECT if self._given is None else self._given
        strict = self.json_schema is not None and self.json_schema.strict
        return Form("response_format", given, hold=hold_of(strict))


class Formed(Fields):
    """Which form an answer has: OpenAI's field, two of llama.cpp's, and a regular expression."""

    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: Text | None = None
    regex: Text | None = None

    @model_validator(mode="after")
    def _is_one_form(self) -> Self:
        given = (self.response_format, self.json_schema, self.grammar, self.regex)
        if sum(each is not None for each in given) > 1:
            raise ValueError("give one of response_format, json_schema, grammar and regex")
        return self

    @property
    def form(self) -> Form | None:
        """That of the answer."""
        if self.regex is not None:
            return Form("regex", regex=self.regex)
        if self.grammar is not None:
            return Form("grammar", gbnf=self.grammar)
        if self.json_schema is not None:
            return Form("json_schema", self.json_schema)
        return self.response_format.form if self.response_format else None


class StreamOptions(Fields):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class Harmless(Fields):
    """What changes no answer here, and is taken so that clients that send it are served."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: bool | None = None


class Settings(Harmless):
    """How tokens are drawn and where answers end. Ranges are the engine's Sampler's."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = Field(
        default=None, validation_alias=AliasChoices("repetition_penalty", "repeat_penalty")
    )
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOPS)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    draft: Literal["lookup", "none"] | None = None
    rule: str | None = None
    steps: int | None = None
    threshold: float | None = None
    entropy: float | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=MOST_ANSWERS)] | None = None
    timings_per_token: bool = False

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream=true; leave it out, or set stream")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is not told in a stream; leave stream out")
        wrong = [each for each in self.logit_bias or () if not each.isdecimal()]
        if wrong:
            raise ValueError(f"logit_bias names {wrong[0]!r}; name a token by its id, a whole number")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def slot(self) -> int | None:
        """In which the first answer is made; None, for which llama.cpp has -1, in any."""
        return None if self.id_slot in (None, -1) else self.id_slot

    @property
    def manners(self) -> Manners:
        """How an answer of block diffusion is made."""
        return {"rule": self.rule, "steps": self.steps, "threshold": self.threshold, "entropy": self.entropy}

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens are told of each; None: nothing of that."""
        return None

    @property
    def shows_progress(self) -> bool:
        """Whether a stream tells how much of the prompt is read."""
        return False

    @property
    def as_drawn(self) -> bool:
        """Whether they are told with all settings, in place of what the logits give them."""
        return False

    def sampling(self, choice: int) -> Sampling:
        """A Sampler's settings. The temperature is 1 where none is given, as in OpenAI's API; a seed is
        that of the first choice, and the next ones have the next ones."""
        made: Sampling = {"temperature": 1.0}
        names = ("temperature", "top_p", "top_k", "min_p")
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        given = {name: getattr(self, name) for name in (*names, *penalties)}
        made.update({name: each for name, each in given.items() if each is not None})  # type: ignore[typeddict-item]
        if self.seed is not None:
            made["seed"] = self.seed + choice if self.seed >= 0 else self.seed
        if self.logit_bias:
            made["logit_bias"] = {int(token): bias for token, bias in self.logit_bias.items()}
        return made


Tokens = Annotated[list[int], Field(min_length=1)]
COMPLETION_TOKENS = 16
"""At most, where a completion does not say: OpenAI's default."""


class CompletionRequest(Settings, Formed):
    """POST /v1/completions. prompt: a text, token ids, or several of either."""

    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Tokens], Field(min_length=1)]
    )
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    best_of: int | None = None
    suffix: Any = None
    unbuilt: ClassVar[Unbuilt] = {"suffix": ([""], "no model here is told what follows")}

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.best_of not in (None, self.choices):
            raise ValueError(
                f"best_of is {self.best_of} and n {self.choices}; answers are not ranked: leave it out"
            )
        if len(self.prompts) * self.choices > MOST_ANSWERS:
            raise ValueError(
                f"{len(self.prompts)} prompts with n {self.choices} are more than {MOST_ANSWERS} answers; "
                "send several requests"
            )
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        whole = [one for one in self.prompt if isinstance(one, int)]
        return [whole] if whole else [one for one in self.prompt if not isinstance(one, int)]

    @property
    def most(self) -> int | None:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def top(self) -> int | None:
        return self.logprobs


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
