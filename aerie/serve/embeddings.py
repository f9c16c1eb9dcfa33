"""POST /v1/embeddings: the vectors of texts, as an embedding model's checkpoint says they are made.

Of another model a vector is the mean of the last hidden states of a text's tokens, scaled to length 1.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import FastAPI, Request
from pydantic import Field

from aerie.engine.embedding_prompt import embedding_prompt
from aerie.engine.numerics import F32Array
from aerie.engine.poolers import VectorPooler
from aerie.engine.pooling import DEFAULT_POOLING, check_dimensions, text_before
from aerie.engine.session import Session
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.common_fields import RequestFields, Text, Tokens, prompt_list
from aerie.serve.errors import errors_of
from aerie.serve.model_middleware import LoadedService
from aerie.serve.preprocess import check_ids
from aerie.serve.prompt_scoring import pool_prompts
from aerie.serve.service import ModelService

MAX_INPUTS = 256


class EmbeddingsRequest(RequestFields):
    """input: a text, token ids, or several of either. prompt_name, instruction: as in Model.embed."""

    model: str | None = None
    input: (
        Text
        | Tokens
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt_name: Text | None = None
    instruction: Text | None = None
    user: str | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """One or more inputs, each a text or token ids."""
        return prompt_list(self.input)


class VectorSettings(NamedTuple):
    """How vectors are made, whatever the API. is_cut: cut a text that is too long; else it is refused."""

    dimensions: int | None = None
    prompt_name: str | None = None
    instruction: str | None = None
    is_cut: bool = False


def add_embeddings_route(app: FastAPI) -> None:
    """Add /v1/embeddings."""

    @app.post("/v1/embeddings")
    async def embeddings(
        body: EmbeddingsRequest, request: Request, service: LoadedService
    ) -> Mapping[str, Any]:
        settings = VectorSettings(body.dimensions, body.prompt_name, body.instruction)
        vectors = await embed_texts(service, request, body.inputs, settings)
        tokens = request.state.request_log.prompt_tokens
        return to_response(vectors, service.name, tokens, body.encoding_format)


async def embed_texts(
    service: ModelService,
    request: Request,
    inputs: Sequence[str | list[int]],
    settings: VectorSettings,
    param: str = "input",
) -> list[F32Array]:
    """The vector of each input. Raises ApiError for what cannot be embedded, and as pool_prompts."""
    opened = service.require_loaded()
    model = opened.session.model
    config = model.config.roles.pooling or DEFAULT_POOLING
    with errors_of("dimensions"):
        check_dimensions(settings.dimensions, model.config.hidden_size)
    with errors_of("prompt_name"):
        before = text_before(config, settings.prompt_name, settings.instruction)
    most, prompts = min(model.max_prompt_tokens, config.max_tokens or model.max_prompt_tokens), []
    for text in inputs:
        if isinstance(text, str):
            encode = partial(_encode, text=text, before=before, most=most, is_cut=settings.is_cut)
            prompts.append(await service.run_with_tokenizer(encode, lambda _: param))
        else:
            check_ids(opened, text, param)
            prompts.append(text)

    def pooler(session: Session) -> VectorPooler:
        return VectorPooler(session.model, settings.dimensions)

    return await pool_prompts(service, request, prompts, [pooler] * len(prompts))


def _encode(tokenizer: Tokenizer, text: str, before: str, most: int, is_cut: bool) -> list[int]:
    return embedding_prompt(tokenizer, text, before, most, is_cut)


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
