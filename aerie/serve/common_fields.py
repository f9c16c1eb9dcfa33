"""The fields of requests, by the names of OpenAI's API, and some of vLLM's and llama.cpp's.

An unknown field is refused, as OpenAI does: a client would think that an ignored setting works. Fields that
change no output (`user`, `metadata`, ...) are accepted. A field that is not supported is refused unless its
value disables it. A null field is absent, at any depth, known or not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from aerie.engine.sampler import MAX_BIAS, SamplingSettings
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.strategies.decode_config import DecodeSettings

EXCLUDING_BIAS = MAX_BIAS
"""Its negative excludes a token: false in logit_bias, and ignore_eos."""
SEED_LIMIT = 2**64
MAX_STOP_LENGTH = 1000
"""Characters of a stop string: each delta is searched for all of them."""
MAX_STOPS, MAX_TOP_LOGPROBS, MAX_SCORED_TOKENS = 16, 20, 1024
"""Strings and ids of `stop`; tokens of top_logprobs; tokens of a prompt with logprobs, whose logits are in
memory together."""


def _text(text: str) -> str:
    """Refuse lone surrogates, which JSON can write and no tokenizer accepts."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate); send valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_text)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH), AfterValidator(_text)]


def is_id(text: str) -> bool:
    """Whether the text is a token id in digits."""
    return text.isascii() and text.isdecimal() and len(text) < 12


UnsupportedFields = Mapping[str, tuple[Sequence[Any], str]]
"""Unsupported fields, each with the values that disable it, and the reason."""


class RequestFields(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    unsupported: ClassVar[UnsupportedFields] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {name: value for name, value in data.items() if not cls._is_empty(name, value)}

    @classmethod
    def _is_empty(cls, name: str, value: Any) -> bool:  # noqa: ARG003
        return value is None

    @field_validator("*", mode="before")
    @classmethod
    def _check_supported(cls, value: Any, field: ValidationInfo) -> Any:
        values, reason = cls.unsupported.get(field.field_name or "", ((), ""))
        if reason and value is not None and value not in values:
            raise ValueError(f"{reason}; leave it out")
        return value


class ClientMessagePart(RequestFields):
    """A message or a part of one, which may come from an earlier answer of this or another server.

    Clients send it back with all fields of their own types: an unknown field that is empty is ignored.
    """

    @classmethod
    def _is_empty(cls, name: str, value: Any) -> bool:
        return value is None or (name not in cls.model_fields and value in ("", [], {}))


class OtherServerItem(ClientMessagePart):
    """Something of another server: a tool that it runs, a call of it, or the result. All fields are accepted,
    and the model sees none of it."""

    model_config = ConfigDict(extra="allow")
    type: Text


class TextPart(ClientMessagePart):
    """A text of a message; other kinds, such as images, are refused. The other fields change no prompt."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Any = None
    logprobs: Any = None
    cache_control: Any = None
    parsed: Any = None


class RefusalPart(ClientMessagePart):
    """A refusal of an earlier answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


def tagged_union(names: Mapping[str, str], other: str) -> Discriminator:
    """Select a type by the object's `type`. names: tag by type; pydantic puts tags into error locations, and
    field_path leaves out those with a blank. other: the tag of all other types, whose errors are reported."""

    def tag(value: Any) -> str:
        kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
        return names.get(kind, other) if isinstance(kind, str) else other

    return Discriminator(tag)


AnyPart = Annotated[
    Annotated[TextPart, Tag("a text")] | Annotated[RefusalPart, Tag("a refusal")],
    tagged_union({"refusal": "a refusal"}, "a text"),
]
Content = Text | list[AnyPart]


def content_text(content: Content | list[TextPart] | None) -> str:
    """The parts of a message, joined."""
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class StructuredOutput(NamedTuple):
    """The required format of an output: a JSON schema, a grammar in GBNF, or a regular expression. param: the
    field that asks for it. enforcement: of a schema (grammar_process.GrammarSource)."""

    param: str
    schema: Mapping[str, Any] | None = None
    gbnf: str | None = None
    regex: str | None = None
    enforcement: str = "meaning"


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def enforcement_of(strict: bool | None) -> str:
    """What of a schema is enforced: "all", or "known" for what can be."""
    return "all" if strict else "known"


class JsonSchema(RequestFields):
    """name and description are ignored. strict: refuse a schema that cannot be enforced in full."""

    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class ResponseFormat(RequestFields):
    """response_format of chats. llama.cpp's clients put `schema` beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self._schema is None:
            raise ValueError("the type json_schema wants json_schema: {name, schema}; give it")
        return self

    @property
    def _schema(self) -> dict[str, Any] | None:
        return self.schema_ if self.json_schema is None else self.json_schema.schema_

    @property
    def structured_output(self) -> StructuredOutput | None:
        if self.type == "text":
            return None
        schema = ANY_OBJECT if self._schema is None else self._schema
        strict = self.json_schema is not None and self.json_schema.strict
        return StructuredOutput("response_format", schema, enforcement=enforcement_of(strict))


class StructuredOutputFields(RequestFields):
    """Fields that ask for structured output: OpenAI's, two of llama.cpp's, and a regular expression."""

    response_format: ResponseFormat | None = None
    json_schema: dict[str, Any] | None = None
    grammar: Text | None = None
    regex: Text | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        fields = (self.response_format, self.json_schema, self.grammar, self.regex)
        if sum(field is not None for field in fields) > 1:
            raise ValueError("give one of response_format, json_schema, grammar and regex")
        return self

    @property
    def structured_output(self) -> StructuredOutput | None:
        """The structured output that the request asks for, if any."""
        if self.regex is not None:
            return StructuredOutput("regex", regex=self.regex)
        if self.grammar is not None:
            return StructuredOutput("grammar", gbnf=self.grammar)
        if self.json_schema is not None:
            return StructuredOutput("json_schema", self.json_schema)
        return self.response_format.structured_output if self.response_format else None


class StreamOptions(RequestFields):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class IgnoredFields(RequestFields):
    """Fields that change no output, accepted so that clients that send them are served."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: bool | None = None
    client_metadata: dict[str, Any] | None = None
    request_id: str | None = None


def _check_max_tokens(value: int) -> int:
    if value < -1 or value == 0:
        raise ValueError("give 1 or more, or -1 for as many as the context has room for")
    return value


MaxTokens = Annotated[int, AfterValidator(_check_max_tokens)] | None
"""Maximum output tokens; -1 or None means up to the end of the context."""


def max_tokens_or_none(max_tokens: int | None) -> int | None:
    """Convert -1 to None, which means no limit."""
    return None if max_tokens == -1 else max_tokens


VLLM_UNSUPPORTED: UnsupportedFields = {
    "min_tokens": ([0], "answers end where the model ends them; take ignore_eos, or logit_bias"),
    "skip_special_tokens": ([True], "special tokens are not shown"),
    "spaces_between_special_tokens": ([True], "special tokens are not shown"),
    "include_stop_str_in_output": ([False], "answers end before a stop string"),
    "detokenize": ([True], "answers are text"),
    "bad_words": ([[]], "take logit_bias, with -100 for each token"),
    "allowed_token_ids": ([[]], "take grammar or regex"),
    "truncate_prompt_tokens": ([-1], "nothing is cut from a prompt"),
    "use_beam_search": ([False], "beam search is not built"),
    "length_penalty": ([1], "beam search is not built"),
    "early_stopping": ([False], "beam search is not built"),
    "priority": ([0], "requests are served in turn"),
    "return_tokens_as_token_ids": ([False], "tokens are sent as texts"),
    "return_token_ids": ([False], "tokens are sent as texts; take /completion with return_tokens"),
}
"""Unsupported fields of vLLM, each with the values that disable it."""


class SamplingFields(IgnoredFields):
    """Fields for sampling and stopping. The engine's Sampler checks ranges. As in vLLM and llama.cpp, -1
    means unset for top_k and seed, and no limit for max_tokens."""

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
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool = False
    max_tokens: MaxTokens = None
    n: Annotated[int, Field(ge=1, le=MAX_RUNNING_REQUESTS)] | None = None
    draft: Literal["lookup", "none"] | None = None
    rule: str | None = None
    steps: int | None = None
    threshold: float | None = None
    entropy: float | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=MAX_RUNNING_REQUESTS)] | None = None
    timings_per_token: bool = False
    min_tokens: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    detokenize: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    truncate_prompt_tokens: Any = None
    use_beam_search: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    priority: Any = None
    return_tokens_as_token_ids: Any = None
    return_token_ids: Any = None
    unsupported: ClassVar[UnsupportedFields] = VLLM_UNSUPPORTED

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream=true; leave it out, or set stream")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs cannot be streamed; remove stream")
        invalid = [name for name in self.logit_bias or () if not is_id(name)]
        if invalid:
            raise ValueError(f"logit_bias names {invalid[0][:80]!r}; name a token by its id, a whole number")
        return self

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def slot(self) -> int | None:
        """The slot of the first output; None, or -1 in llama.cpp, means any."""
        return None if self.id_slot in (None, -1) else self.id_slot

    @property
    def decode_settings(self) -> DecodeSettings:
        """Settings of block diffusion."""
        return {"rule": self.rule, "steps": self.steps, "threshold": self.threshold, "entropy": self.entropy}

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens are returned for each token; None means no logprobs."""
        return None

    @property
    def shows_progress(self) -> bool:
        """Whether a stream reports the progress of prefill."""
        return False

    @property
    def logprobs_after_sampling(self) -> bool:
        """Whether logprobs are those after all sampling settings."""
        return False

    def sampling(self, choice: int, eos: Collection[int]) -> SamplingSettings:
        """The arguments of a Sampler. eos: ids that end an output. The default temperature is 1, as in
        OpenAI's API. Choice n gets the seed plus n. A negative seed, which OpenAI accepts, is taken modulo
        2**64."""
        sampling: SamplingSettings = {"temperature": 1.0}
        names = ("temperature", "top_p", "top_k", "min_p")
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        fields = {name: getattr(self, name) for name in (*names, *penalties)}
        sampling.update({name: value for name, value in fields.items() if value is not None})  # type: ignore[typeddict-item]
        if sampling.get("top_k") == -1:
            sampling["top_k"] = 0
        if self.seed is not None and self.seed != -1:
            sampling["seed"] = (self.seed if self.seed >= 0 else self.seed % SEED_LIMIT) + choice
        biases = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        if self.ignore_eos:
            biases |= dict.fromkeys(eos, -EXCLUDING_BIAS)
        if biases:
            sampling["logit_bias"] = biases
        return sampling


Tokens = Annotated[list[int], Field(min_length=1)]
DEFAULT_COMPLETION_TOKENS = 16
"""Default of max_tokens in /v1/completions; OpenAI's."""


def prompt_list(prompt: str | Sequence[int] | Sequence[str] | Sequence[list[int]]) -> list[str | list[int]]:
    """Return one or more prompts as a list, each a text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [item for item in prompt if isinstance(item, int)]
    return [token_ids] if token_ids else [item for item in prompt if not isinstance(item, int)]


class CompletionRequest(SamplingFields, StructuredOutputFields):
    """POST /v1/completions. prompt: a text, token ids, or several of either. max_tokens: 0 generates nothing,
    to get the logprobs of the prompt."""

    prompt: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Tokens], Field(min_length=1)]
    )
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: int | None = None
    suffix: Any = None
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    add_special_tokens: Any = None
    unsupported: ClassVar[UnsupportedFields] = {
        **VLLM_UNSUPPORTED,
        "suffix": ([""], "no model here fills in a gap before a suffix"),
        "add_special_tokens": ([True], "send token ids, which are used unchanged"),
    }

    @model_validator(mode="after")
    def _check_answer_count(self) -> Self:
        if self.best_of not in (None, self.choices):
            raise ValueError(
                f"best_of is {self.best_of} and n {self.choices}; answers are not ranked: leave it out"
            )
        if len(self.prompts) * self.choices > MAX_RUNNING_REQUESTS:
            raise ValueError(
                f"{len(self.prompts)} prompts with n {self.choices} are more than {MAX_RUNNING_REQUESTS} "
                "answers; "
                "send several requests"
            )
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, each a text or token ids."""
        return prompt_list(self.prompt)

    @property
    def max_new_tokens(self) -> int | None:
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else max_tokens_or_none(self.max_tokens)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class DetokenizeRequest(RequestFields):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
