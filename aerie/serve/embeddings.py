"""POST /v1/embeddings: the mean of the last hidden states of a text's tokens, of length 1.

They are what a model that was trained to say the next token has: it was not trained for texts that mean the
same to lie near each other, and a model made for that does it better.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from aerie.engine.numerics import F32Array, bf16, rms_norm, widen
from aerie.engine.session import Session
from aerie.engine.strategies.strategy import Row
from aerie.serve.common_fields import Fields, Text, Tokens, Unbuilt

MOST_INPUTS = 256


class EmbeddingsRequest(Fields):
    """input: a text, token ids, or several of either."""

    model: str | None = None
    input: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_INPUTS)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MOST_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Any = None
    user: str | None = None
    unbuilt: ClassVar[Unbuilt] = {"dimensions": ((), "embeddings are as long as the model's hidden states")}

    @property
    def inputs(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        whole = [one for one in self.input if isinstance(one, int)]
        return [whole] if whole else [one for one in self.input if not isinstance(one, int)]


class Embedding:
    """See Reads. Of a text's tokens, (hidden_size,) float32."""

    hidden = True

    def __init__(self, session: Session) -> None:
        self._model, self._rows = session.model, list[Row]()

    def take(self, rows: Sequence[Row]) -> None:
        self._rows += rows

    def made(self) -> F32Array:
        model, hidden = self._model, np.array(self._rows, bf16)
        normed = widen(rms_norm(hidden, model.final_norm, model.config.rms_norm_eps))
        mean = normed.mean(axis=0, dtype=np.float32)
        made: F32Array = mean / np.linalg.norm(mean)
        return made


def told(vectors: Sequence[F32Array], model: str, tokens: int, encoding: str) -> dict[str, Any]:
    """As OpenAI's API has it: numbers, or the base64 of little-endian float32."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(each, encoding)}
        for index, each in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _encoded(vector: F32Array, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(each) for each in vector]
