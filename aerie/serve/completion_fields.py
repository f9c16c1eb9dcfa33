"""The fields of requests about bare text: /v1/completions and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.serve.common_fields import RequestFields, Text, Tokens, UnsupportedFields, prompt_list
from aerie.serve.sampling_fields import MAX_TOP_LOGPROBS, VLLM_UNSUPPORTED, SamplingFields, max_tokens_or_none
from aerie.serve.structured_output_fields import StructuredOutputFields

DEFAULT_COMPLETION_TOKENS = 16
"""Default of max_tokens in /v1/completions; OpenAI's."""


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
