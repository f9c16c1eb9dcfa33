"""The fields of requests, with the names that OpenAI's API has for them, and some of vLLM's and llama.cpp's.

A field that is not here is refused, as OpenAI's API does it: a setting that is passed over in silence is
taken to work. What changes no answer (`user`, `metadata`, ...) is taken; what is not built is refused by its
name unless it asks for nothing. A field that is null is absent, at any depth, whether it is known or not.
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

from aerie.engine.sampler import MOST_BIAS, Sampling
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.strategies.manner import Manners

STRONGEST = MOST_BIAS
"""A bias that leaves a token out, below 0: false in logit_bias, and ignore_eos."""
SEEDS = 2**64
LONGEST_STOP = 1000
"""Characters of a stop string: all of them are looked for in each piece of an answer."""
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
StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP), AfterValidator(_text)]


def is_id(text: str) -> bool:
    """Whether it is a token id in digits."""
    return text.isascii() and text.isdecimal() and len(text) < 12


Unbuilt = Mapping[str, tuple[Sequence[Any], str]]
"""Fields that are not built, each with the values that ask for nothing, and why not."""


class Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())
    unbuilt: ClassVar[Unbuilt] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if not cls._says_nothing(name, value)}

    @classmethod
    def _says_nothing(cls, name: str, value: Any) -> bool:  # noqa: ARG003
        return value is None

    @field_validator("*", mode="before")
    @classmethod
    def _is_built(cls, given: Any, field: ValidationInfo) -> Any:
        values, why = cls.unbuilt.get(field.field_name or "", ((), ""))
        if why and given is not None and given not in values:
            raise ValueError(f"{why}; leave it out")
        return given


class Said(Fields):
    """What may come from an earlier answer, of ours or of another server: a message, or a part of one.

    A client sends it back as it was told, with all fields of its own types: one that is not known here and
    is empty says nothing.
    """

    @classmethod
    def _says_nothing(cls, name: str, value: Any) -> bool:
        return value is None or (name not in cls.model_fields and value in ("", [], {}))


class Foreign(Said):
    """What belongs to another server: a tool that it runs, a call of such a tool, what came of it. It is
    taken with all that it has, and no model here is told of it."""

    model_config = ConfigDict(extra="allow")
    type: Text


class TextPart(Said):
    """A part of a message; other kinds, such as images, are not taken. What stands beside the text changes
    no prompt: what was read stays in the cache without cache_control."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Any = None
    logprobs: Any = None
    cache_control: Any = None
    parsed: Any = None


class RefusalPart(Said):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        return self.refusal


def by_type(names: Mapping[str, str], other: str) -> Discriminator:
    """Which of several an object is, by its `type`. names: the tags of the types, which pydantic puts into
    places of errors, where what is no word is left out; other: that of all else, whose errors are told."""

    def tag(given: Any) -> str:
        kind = given.get("type") if isinstance(given, Mapping) else getattr(given, "type", None)
        return names.get(kind, other) if isinstance(kind, str) else other

    return Discriminator(tag)


AnyPart = Annotated[
    Annotated[TextPart, Tag("a text")] | Annotated[RefusalPart, Tag("a refusal")],
    by_type({"refusal": "a refusal"}, "a text"),
]
Content = Text | list[AnyPart]


def text_of(content: Content | list[TextPart] | None) -> str:
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
    client_metadata: dict[str, Any] | None = None
    request_id: str | None = None


def _most(given: int) -> int:
    if given < -1 or given == 0:
        raise ValueError("give 1 or more, or -1 for as many as the context has room for")
    return given


Most = Annotated[int, AfterValidator(_most)] | None
"""Tokens of an answer at most; -1, as None: as many as the context has room for."""


def room_of(most: int | None) -> int | None:
    """Tokens at most; None: as many as there is room for."""
    return None if most == -1 else most


OF_VLLM: Unbuilt = {
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
    "return_tokens_as_token_ids": ([False], "tokens are told as texts"),
    "return_token_ids": ([False], "tokens are told as texts; take /completion with return_tokens"),
}
"""Fields of vLLM's, each with the values that ask for nothing."""


class Settings(Harmless):
    """How tokens are drawn and where answers end. Ranges are the engine's Sampler's; -1 is no setting for
    top_k and seed, and no limit for max_tokens, as in vLLM and llama.cpp."""

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
    ignore_eos: bool = False
    max_tokens: Most = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    draft: Literal["lookup", "none"] | None = None
    rule: str | None = None
    steps: int | None = None
    threshold: float | None = None
    entropy: float | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP)] | None = None
    id_slot: Annotated[int, Field(ge=-1, lt=MOST_ANSWERS)] | None = None
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
    unbuilt: ClassVar[Unbuilt] = OF_VLLM

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for stream=true; leave it out, or set stream")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is not told in a stream; leave stream out")
        wrong = [each for each in self.logit_bias or () if not is_id(each)]
        if wrong:
            raise ValueError(f"logit_bias names {wrong[0][:80]!r}; name a token by its id, a whole number")
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

    def sampling(self, choice: int, eos: Collection[int]) -> Sampling:
        """A Sampler's settings. eos: the tokens that end an answer. The temperature is 1 where none is given,
        as in OpenAI's API; a seed is that of the first choice, and the next ones have the next ones. One
        below 0, which OpenAI's API takes, is read as 64 bits without a sign."""
        made: Sampling = {"temperature": 1.0}
        names = ("temperature", "top_p", "top_k", "min_p")
        penalties = ("presence_penalty", "frequency_penalty", "repetition_penalty")
        given = {name: getattr(self, name) for name in (*names, *penalties)}
        made.update({name: each for name, each in given.items() if each is not None})  # type: ignore[typeddict-item]
        if made.get("top_k") == -1:
            made["top_k"] = 0
        if self.seed is not None and self.seed != -1:
            made["seed"] = (self.seed if self.seed >= 0 else self.seed % SEEDS) + choice
        biases = {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        if self.ignore_eos:
            biases |= dict.fromkeys(eos, -STRONGEST)
        if biases:
            made["logit_bias"] = biases
        return made


Tokens = Annotated[list[int], Field(min_length=1)]
COMPLETION_TOKENS = 16
"""At most, where a completion does not say: OpenAI's default."""


class CompletionRequest(Settings, Formed):
    """POST /v1/completions. prompt: a text, token ids, or several of either. max_tokens: 0 makes nothing, for
    who wants to know how likely the prompt is."""

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
    max_tokens: Annotated[int, Field(ge=-1)] | None = None
    add_special_tokens: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        **OF_VLLM,
        "suffix": ([""], "no model here is told what follows"),
        "add_special_tokens": ([True], "give token ids, which stand as they are"),
    }

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
        return COMPLETION_TOKENS if self.max_tokens is None else room_of(self.max_tokens)

    @property
    def top(self) -> int | None:
        return self.logprobs


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
