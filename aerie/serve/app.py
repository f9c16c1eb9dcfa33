"""The routes of the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Lifespan

from aerie.engine.detokenizer import TokenText
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.anthropic import CountTokensRequest, MessagesRequest, MessagesWriter
from aerie.serve.api_docs import add_docs_routes
from aerie.serve.chat_fields import ChatRequest, TemplateRequest, TokenizeRequest
from aerie.serve.completion_fields import CompletionRequest, DetokenizeRequest
from aerie.serve.embeddings import add_embeddings_route
from aerie.serve.errors import (
    ApiError,
    error_response,
    from_http_error,
    from_validation_errors,
    internal_error,
)
from aerie.serve.event_stream import make_response
from aerie.serve.info_routes import add_info_routes
from aerie.serve.llama_cpp import LlamaCppRequest, complete
from aerie.serve.model_middleware import LoadedService, ModelMiddleware, NamedService
from aerie.serve.models import ModelManager
from aerie.serve.ollama import add_ollama_routes
from aerie.serve.openai_format import ChatWriter, CompletionWriter, EchoedPrompt
from aerie.serve.pages import add_pages
from aerie.serve.preprocess import check_ids, encode_chat, max_countable_tokens, output_requests
from aerie.serve.prompt_scoring import encode_prompts, score_prompts
from aerie.serve.request_body import BodyMiddleware, ParsedBodyRoute
from aerie.serve.request_guard import Guard, GuardedApp
from aerie.serve.rerank import add_rerank_route
from aerie.serve.response_store import ResponseStore, StoreDependency, add_store_routes
from aerie.serve.responses import ResponsesRequest, ResponsesWriter
from aerie.serve.service import ModelService
from aerie.serve.slot_files import SlotRequest

NO_FASTAPI_PAGES = {"docs_url": None, "redoc_url": None, "openapi_url": None}
"""FastAPI's own pages fetch scripts from other sites."""
HTTP_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
"""The methods of all routes."""


def make_app(models: ModelManager) -> ASGIApp:
    """The server as an ASGI app. Its startup starts loading models, its shutdown closes them."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.start()
        yield
        await models.end()

    app = _app_with_routes(lifespan)
    app.state.models = models
    app.state.store = ResponseStore(models.limits.max_stored, models.limits.max_stored_bytes)
    return with_guards(BodyMiddleware(ModelMiddleware(app, models, app.router), app), models, app)


def with_guards(app: ASGIApp, service: GuardedApp, routed: FastAPI | None = None) -> ASGIApp:
    """Wrap an app with the guard and, if pages of other sites are allowed, with CORS. routed: the app that
    has the routes; None means the routes of every server."""
    paths = [route.path for route in (routed or _app_with_routes()).routes if isinstance(route, Route)]
    guard: ASGIApp = Guard(app, service, paths)
    if origins := service.limits.origins:
        return CORSMiddleware(guard, origins, allow_methods=HTTP_METHODS, allow_headers=["*"])
    return guard


def _app_with_routes(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The app with all routes; they find the models in the app's state."""
    app = FastAPI(title="Aerie", lifespan=lifespan, strict_content_type=False, **NO_FASTAPI_PAGES)  # type: ignore[arg-type]
    app.router.route_class = ParsedBodyRoute
    _add_errors(app)
    add_pages(app)
    add_info_routes(app)
    add_docs_routes(app)
    _add_texts(app)
    _add_answers(app)
    _add_other_apis(app)
    add_store_routes(app)
    _add_native(app)
    add_ollama_routes(app)
    add_embeddings_route(app)
    add_rerank_route(app)
    _add_slots(app)
    return app


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        path = request.url.path
        if isinstance(error, RequestValidationError):
            return error_response(from_validation_errors(error.errors()), path)
        return error_response(
            from_http_error(error, path) if isinstance(error, HTTPException) else internal_error(), path
        )

    for kind in (RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _add_texts(app: FastAPI) -> None:
    """Add the routes that convert between text and tokens."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, service: LoadedService) -> Response:
        opened = service.require_loaded()
        most, positions = max_countable_tokens(opened), opened.session.model.positions
        result = await service.run_with_tokenizer(partial(_tokenized, body, most, positions), body.field_path)
        return Response(result, media_type="application/json")

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, service: LoadedService) -> Mapping[str, Any]:
        check_ids(service.require_loaded(), body.tokens, "tokens")
        text = await service.run_with_tokenizer(lambda tokenizer: tokenizer.decode(body.tokens))
        return {"content": text, "prompt": text}

    @app.post("/apply-template")
    async def apply_template(body: TemplateRequest, service: LoadedService) -> Mapping[str, Any]:
        service.require_loaded()
        return {"prompt": await _template_text(service, body)}


async def _template_text(service: ModelService, body: TemplateRequest | ChatRequest) -> str:
    """A conversation as the chat template writes it. Raises ApiError."""
    return await service.run_with_tokenizer(
        lambda tokenizer: tokenizer.chat_text(*body.chat), body.field_path
    )


def _tokenized(body: TokenizeRequest, most: int, positions: int, tokenizer: Tokenizer) -> bytes:
    """The body of the response. positions: the context of the model."""
    ids = _encode_body(body, most, tokenizer)
    tokens = json.dumps(ids)
    if body.with_pieces:  # one by one: encoding all at once would block the other threads
        entries = (
            {"id": each, "piece": _piece(piece), "bytes": list(piece.data)}
            for each, piece in zip(ids, tokenizer.pieces(ids), strict=True)
        )
        tokens = f"[{','.join(map(json.dumps, entries))}]"
    return f'{{"tokens":{tokens},"count":{len(ids)},"max_model_len":{positions}}}'.encode()


def _piece(piece: TokenText) -> str | list[int]:
    """A token's text in llama.cpp's format: bytes where they are only a part of a character."""
    try:
        piece.data.decode()
    except UnicodeDecodeError:
        return list(piece.data)
    return piece.text


def _encode_body(body: TokenizeRequest, most: int, tokenizer: Tokenizer) -> list[int]:
    if body.messages is not None:
        return tokenizer.encode_chat(*body.chat, most=most)
    special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    text = (body.content if body.prompt is None else body.prompt) or ""
    return tokenizer.encode(text, special=special, most=most)


async def _count(body: ChatRequest | CountTokensRequest, service: ModelService) -> Mapping[str, Any]:
    """Count the tokens of a conversation."""
    most = max_countable_tokens(service.require_loaded())
    return {
        "input_tokens": len(
            await service.run_with_tokenizer(partial(encode_chat, body, most), body.field_path)
        )
    }


def _add_answers(app: FastAPI) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, service: LoadedService) -> Response:
        opened = service.require_loaded()
        encoded = await service.encode_chat(opened, body)
        expected = await _encode_prediction(service, body.prediction_text, opened.session.model.positions)
        settings = body.max_new_tokens, body.thinking_settings
        requests = service.chat_requests(body, encoded, *settings, expected)
        prompt_logprobs = await score_prompts(service, request, [encoded.ids], body.prompt_logprobs)
        outputs = service.submit(requests, request.state.request_log)
        shared = service.name, body.choices, body.wants_usage, body.num_logprobs is not None
        text = await _template_text(service, body) if body.verbose else None
        writer = ChatWriter(*shared, prompt_logprobs, body.timings_per_token, body.shows_thinking, text)
        return await make_response(request, outputs, writer, body.stream, service.limits.send_s)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request, service: LoadedService) -> Response:
        opened = service.require_loaded()
        prompts = await encode_prompts(service, body.prompts, "prompt")
        grammar = await service.grammar(opened, body.structured_output)
        requests = output_requests(
            opened, body, prompts, body.max_new_tokens, service.limits.time_limit_s, grammar
        )
        echoes = await _echoes(service, request, body, prompts) if body.echo else []
        prompt_logprobs = await score_prompts(service, request, prompts, body.prompt_logprobs)
        outputs = service.submit(requests, request.state.request_log)
        shared = service.name, body.choices, body.wants_usage, body.num_logprobs is not None
        writer = CompletionWriter(*shared, echoes, prompt_logprobs)
        return await make_response(request, outputs, writer, body.stream, service.limits.send_s)


async def _encode_prediction(service: ModelService, text: str, most: int) -> Sequence[int]:
    """The token ids of a predicted output."""
    return await service.run_with_tokenizer(partial(_encode_continuation, text, most)) if text else ()


def _encode_continuation(text: str, most: int, tokenizer: Tokenizer) -> list[int]:
    """The token ids of a text that follows other text."""
    return tokenizer.encode(text, special=False, most=most)


async def _echoes(
    service: ModelService, request: Request, body: CompletionRequest, prompts: Sequence[Sequence[int]]
) -> list[EchoedPrompt]:
    """The texts of the prompts, with logprobs of their tokens if the outputs have them."""
    texts = [await service.run_with_tokenizer(partial(_decode_complete, prompt)) for prompt in prompts]
    logprobs = await score_prompts(service, request, prompts, body.num_logprobs) or [[] for _ in prompts]
    return list(zip(texts, logprobs, strict=True))


def _decode_complete(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Decode tokens, without an incomplete character at the end, which the output completes."""
    return "".join(map(tokenizer.incremental_detokenizer().feed, ids))


def _add_other_apis(app: FastAPI) -> None:
    """Add OpenAI's /v1/responses and Anthropic's /v1/messages."""

    @app.post("/v1/responses")
    async def responses(
        body: ResponsesRequest, request: Request, service: LoadedService, store: StoreDependency
    ) -> Response:
        opened, history = service.require_loaded(), store.history_before(body)
        encoded = await service.encode_chat(opened, body.with_history(history.items))
        requests = service.chat_requests(body.sampling_fields, encoded, body.max_output_tokens)
        outputs = service.submit(requests, request.state.request_log)
        writer = ResponsesWriter(service.name, body, partial(store.store_response, body, history))
        return await make_response(request, outputs, writer, body.stream, service.limits.send_s)

    @app.post("/v1/responses/input_tokens")
    async def input_tokens(
        body: ResponsesRequest, service: LoadedService, store: StoreDependency
    ) -> Mapping[str, Any]:
        with_history = body.with_history(store.history_before(body).items)
        ids, *_ = await service.encode_chat(service.require_loaded(), with_history)
        return {"object": "response.input_tokens", "input_tokens": len(ids)}

    @app.post("/v1/messages")
    async def messages(body: MessagesRequest, request: Request, service: LoadedService) -> Response:
        opened = service.require_loaded()
        encoded = await service.encode_chat(opened, body)
        settings = body.max_tokens, body.thinking_settings
        requests = service.chat_requests(body.sampling_fields, encoded, *settings)
        outputs = service.submit(requests, request.state.request_log)
        writer = MessagesWriter(service.name, len(encoded.ids), body.shows_thinking)
        return await make_response(request, outputs, writer, body.stream, service.limits.send_s)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountTokensRequest, service: LoadedService) -> Mapping[str, Any]:
        return await _count(body, service)


def _add_slots(app: FastAPI) -> None:
    """Add the routes of slots."""

    @app.get("/slots")
    async def slots(service: NamedService, fail_on_no_slot: str = "") -> Sequence[Mapping[str, Any]]:
        opened = service.require_loaded()
        slots_json = service.worker.slots.to_json(opened.session.model.positions)
        if fail_on_no_slot == "1" and all(slot["is_processing"] for slot in slots_json):
            raise ApiError(
                503, f"all {len(slots_json)} slots are in use; try again", code="no_slot", retry_after=1
            )
        return slots_json

    @app.post("/slots/{slot}")
    async def act(
        slot: str, service: LoadedService, body: SlotRequest | None = None, action: str = ""
    ) -> Mapping[str, Any]:
        fields = body or SlotRequest()
        service.require_loaded()
        return await service.slot_files.run_action(service.worker, slot, action, fields.filename)


def _add_native(app: FastAPI) -> None:
    """Add llama.cpp's own routes."""

    @app.post("/completion")
    async def completion(body: LlamaCppRequest, request: Request, service: LoadedService) -> Response:
        return await complete(service, body, request)

    @app.post("/v1/chat/completions/input_tokens")
    async def input_tokens(body: ChatRequest, service: LoadedService) -> Mapping[str, Any]:
        return await _count(body, service)
