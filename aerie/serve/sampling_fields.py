"""The fields for sampling and stopping, by the names of OpenAI's API, vLLM and llama.cpp."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, AliasChoices, Field, model_validator

from aerie.engine.sampler import MAX_BIAS, SamplingSettings
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.strategies.decode_config import DecodeSettings
from aerie.serve.common_fields import RequestFields, StopText, UnsupportedFields

EXCLUDING_BIAS = MAX_BIAS
"""Its negative excludes a token: false in logit_bias, and ignore_eos."""

SEED_LIMIT = 2**64

MAX_STOPS = 16
"""Strings and ids of `stop`."""

MAX_TOP_LOGPROBS = 20
"""Tokens of top_logprobs."""


def is_id(text: str) -> bool:
    """Whether the text is a token id in digits."""
    return text.isascii() and text.isdecimal() and len(text) < 12


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
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
            *("prompt_cache_retention", "cache_prompt", "client_metadata", "request_id"),
        )
    )


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
