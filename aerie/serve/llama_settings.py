"""Settings of sampling that llama.cpp and Ollama name alike."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from aerie.serve.common_fields import RequestFields, StopText
from aerie.serve.sampling_fields import MAX_STOPS


class LlamaSettings(RequestFields):
    """Defaults are llama.cpp's. seed: below 0 means one that is drawn."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = -1
    stop: StopText | Annotated[list[StopText], Field(max_length=MAX_STOPS)] = Field(default_factory=list)

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
