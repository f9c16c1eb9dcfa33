"""Ollama's API (docs/api.md of ollama/ollama), for clients that speak only that.

Requests take the path of all other APIs: the same limits, queue, errors and answers. Models are those that
the server was started with; nothing is fetched, made or deleted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from fastapi import FastAPI, Request
from starlette.responses import Response

from aerie.serve.embeddings import VectorSettings, embed_texts
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import NDJSON, json_line, json_response, make_response, notes_header
from aerie.serve.llama_cpp import encode_prompt
from aerie.serve.model_middleware import AllModels, LoadedService
from aerie.serve.models import ModelManager
from aerie.serve.ollama_fields import (
    AnswerFields,
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaPullRequest,
    OllamaShowRequest,
)
from aerie.serve.ollama_format import (
    API_VERSION,
    OllamaWriter,
    durations,
    is_loaded,
    listed_model,
    loaded_body,
    loaded_model,
    shown_model,
)
from aerie.serve.preprocess import EncodedChat
from aerie.serve.request_outputs import RequestOutputs
from aerie.serve.service import ModelService
from aerie.version import VERSION

NAME_THEM: Final = "aerie pull fetches models, and aerie serve --model NAME=MODEL serves one"
NOT_HERE: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/api/create"): f"models are not made here; {NAME_THEM}",
    ("POST", "/api/push"): "models are not published here",
    ("POST", "/api/copy"): "models are not copied here; aerie serve --alias OTHER=NAME gives one more name",
    ("DELETE", "/api/delete"): "models are not deleted here; POST /v1/unload frees the memory of one, and "
    "aerie rm removes the files that aerie pull fetched",
}
"""What is refused, and what does it."""


def add_ollama_routes(app: FastAPI) -> None:
    """Add all routes of this module."""
    _add_answers(app)
    _add_embeddings(app)
    _add_models(app)
    for (method, path), reason in NOT_HERE.items():
        _add_refusal(app, method, path, reason)


def _add_answers(app: FastAPI) -> None:
    @app.post("/api/chat")
    async def chat(body: OllamaChatRequest, request: Request, models: AllModels) -> Response:
        if body.is_empty:
            return await _load_or_unload(models, body, is_chat=True)
        service: ModelService = request.state.service
        encoded = await service.encode_chat(service.require_loaded(), body)
        return await _answer(service, body, request, encoded)

    @app.post("/api/generate")
    async def generate(body: OllamaGenerateRequest, request: Request, models: AllModels) -> Response:
        if body.is_empty:
            return await _load_or_unload(models, body, is_chat=False)
        service: ModelService = request.state.service
        opened = service.require_loaded()
        if not body.raw:
            return await _answer(service, body, request, await service.encode_chat(opened, body))
        grammar = await service.grammar(opened, body.structured_output)
        work = partial(encode_prompt, body.prompt, opened.session.model.positions)
        encoded = EncodedChat(await service.run_with_tokenizer(work), grammar)
        return await _answer(service, body, request, encoded)


async def _load_or_unload(models: ModelManager, body: AnswerFields, is_chat: bool) -> Response:
    """Answer a request without a prompt: its model is loaded by now, or it is to be unloaded."""
    if body.needs_no_model:
        service = models.find(body.model)
        if is_loaded(service):
            await models.unload(service)
    return json_response(loaded_body(body.model, is_chat, "unload" if body.needs_no_model else "load"))


async def _answer(
    service: ModelService, body: AnswerFields, request: Request, encoded: EncodedChat
) -> Response:
    outputs = _submit(service, body, request, encoded)
    writer = OllamaWriter(body.model, isinstance(body, OllamaChatRequest), request.state.request_log)
    return await make_response(request, outputs, writer, body.stream, service.limits.send_s)


def _submit(
    service: ModelService, body: AnswerFields, request: Request, encoded: EncodedChat
) -> RequestOutputs:
    requests = service.chat_requests(body.sampling_fields, encoded, body.max_new_tokens)
    return service.submit(requests, request.state.request_log)


def _add_embeddings(app: FastAPI) -> None:
    @app.post("/api/embed")
    async def embed(body: OllamaEmbedRequest, request: Request, service: LoadedService) -> Response:
        vectors = await _embedded(service, request, body.inputs, body.settings, "input")
        log = request.state.request_log
        counts = {**durations(log), "prompt_eval_count": log.prompt_tokens}
        result = {"model": body.model, "embeddings": vectors, **counts}
        return json_response(result, notes_header((), request.state.ignored))

    @app.post("/api/embeddings")
    async def embeddings(body: OllamaEmbeddingsRequest, request: Request, service: LoadedService) -> Response:
        texts = [body.prompt] if body.prompt else []
        vectors = await _embedded(service, request, texts, VectorSettings(is_cut=True), "prompt")
        result = {"embedding": vectors[0] if vectors else []}
        return json_response(result, notes_header((), request.state.ignored))


async def _embedded(
    service: ModelService, request: Request, texts: list[str], settings: VectorSettings, param: str
) -> list[list[float]]:
    """The embedding of each text."""
    if not texts:
        return []
    vectors = await embed_texts(service, request, texts, settings, param)
    return [[float(value) for value in vector] for vector in vectors]


def _add_models(app: FastAPI) -> None:
    """Add the descriptions of models, and what a client asks before it sends a request."""

    @app.get("/api/version")
    @app.head("/api/version", include_in_schema=False)
    async def version() -> Mapping[str, Any]:
        return {"version": API_VERSION, "aerie": VERSION}

    @app.get("/api/tags")
    @app.head("/api/tags", include_in_schema=False)
    async def tags(models: AllModels) -> Mapping[str, Any]:
        return {"models": [listed_model(service) for service in models.all.values()]}

    @app.get("/api/ps")
    async def loaded(models: AllModels) -> Mapping[str, Any]:
        now_s = asyncio.get_running_loop().time()
        loaded = filter(is_loaded, models.all.values())
        return {"models": [loaded_model(service, models.idle_s, now_s) for service in loaded]}

    @app.post("/api/show")
    async def show(body: OllamaShowRequest, models: AllModels) -> Mapping[str, Any]:
        return shown_model(models.find(body.model))

    @app.post("/api/pull")
    async def pull(body: OllamaPullRequest, models: AllModels) -> Response:
        try:
            models.find(body.model)
        except ApiError as error:
            raise ApiError(501, f"{error.message}; nothing is fetched here: {NAME_THEM}") from None
        done = {"status": "success"}
        return Response(json_line(done), media_type=NDJSON.media_type) if body.stream else json_response(done)


def _add_refusal(app: FastAPI, method: str, path: str, reason: str) -> None:
    @app.api_route(path, methods=[method], operation_id=path)
    async def refused() -> None:
        raise ApiError(501, reason)
