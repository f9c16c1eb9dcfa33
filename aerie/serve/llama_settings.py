"""Settings of sampling that llama.cpp and Ollama name alike."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from aerie.serve.common_fields import RequestFields, StopText
from aerie.serve.sampling_fields import MAX_STOPS


class LlamaSettings(RequestFields):
    """Defaults are llama.cpp's. seed: below 0 means one that is drawn. repeat_last_n: only -1 with penalties,
    which look at the whole text."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] = Field(default_factory=list)
    repeat_last_n: int | None = None

    @model_validator(mode="after")
    def _check_penalties(self) -> Self:
        has_penalties = self.repeat_penalty != 1 or self.presence_penalty or self.frequency_penalty
        if self.repeat_last_n not in (None, -1) and has_penalties:
            raise ValueError(
                f"repeat_last_n is {self.repeat_last_n}, and penalties look at the whole text here; give -1, "
                "or leave it out"
            )
        return self

    def openai_settings(self) -> dict[str, Any]:
        """These settings by the names of SamplingFields."""
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": self.seed if self.seed >= 0 else None,
            "stop": self.stop or None,
        }
