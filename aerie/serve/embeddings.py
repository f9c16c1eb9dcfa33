"""POST /v1/embeddings: the mean of the last hidden states of a text's tokens, scaled to length 1.

The hidden states are those of a model trained to predict the next token. A model that was trained for
embeddings separates meanings better.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from aerie.engine.head import final_norm
from aerie.engine.numerics import F32Array, bf16, widen
from aerie.engine.session import Session
from aerie.engine.strategies.strategy import Row
from aerie.serve.common_fields import RequestFields, Text, Tokens, UnsupportedFields, prompt_list

MAX_INPUTS = 256


class EmbeddingsRequest(RequestFields):
    """input: a text, token ids, or several of either."""

    model: str | None = None
    input: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Any = None
    user: str | None = None
    unsupported: ClassVar[UnsupportedFields] = {
        "dimensions": ((), "embeddings are as long as the model's hidden states")
    }

    @property
    def inputs(self) -> list[str | list[int]]:
        """One or more inputs, each a text or token ids."""
        return prompt_list(self.input)


class MeanPooler:
    """Mean of the normed hidden states of a text's tokens, (hidden_size,) float32, of length 1. A Pooler."""

    hidden = True

    def __init__(self, session: Session) -> None:
        self._model, self._rows = session.model, list[Row]()

    def add_rows(self, rows: Sequence[Row]) -> None:
        self._rows += rows

    def result(self) -> F32Array:
        model, hidden = self._model, np.array(self._rows, bf16)
        normed = widen(final_norm(model, hidden))
        mean = normed.mean(axis=0, dtype=np.float32)
        embedding: F32Array = mean / np.linalg.norm(mean)
        return embedding


def to_response(vectors: Sequence[F32Array], model: str, tokens: int, encoding: str) -> dict[str, Any]:
    """The response in OpenAI's format. encoding: "float" for numbers, "base64" for little-endian float32."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _encoded(vector: F32Array, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]
