"""The addresses of the server, and what each does."""

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

from aerie.engine.tokenizer import Tokenizer
from aerie.serve.anthropic import CountRequest, MessagesForm, MessagesRequest
from aerie.serve.chat_fields import ChatRequest, TemplateRequest, TokenizeRequest
from aerie.serve.common_fields import CompletionRequest, DetokenizeRequest
from aerie.serve.embeddings import Embedding, EmbeddingsRequest, told
from aerie.serve.errors import ApiError, answer_of, internal, of_http, of_validation
from aerie.serve.event_stream import answered
from aerie.serve.info_routes import add_views
from aerie.serve.llama_cpp import NativeRequest, completed
from aerie.serve.model_middleware import Held, Loading, Seen
from aerie.serve.models import Models
from aerie.serve.openai_format import ChatForm, CompletionForm, Echo
from aerie.serve.preprocess import asked, check_ids, encoded, most_counted
from aerie.serve.prompt_scoring import marked, read
from aerie.serve.request_body import Reading, ReadingRoute
from aerie.serve.request_guard import Guard, Guarded
from aerie.serve.response_store import Keeping, Kept, add_kept
from aerie.serve.responses import ResponsesForm, ResponsesRequest
from aerie.serve.service import Service
from aerie.serve.slot_files import SlotRequest

NO_PAGES = {"docs_url": None, "redoc_url": None, "openapi_url": None}
"""FastAPI's pages of its own fetch scripts from elsewhere."""
METHODS = ("GET", "POST", "DELETE", "OPTIONS")
"""Those of all addresses."""


def make_app(models: Models) -> ASGIApp:
    """The server, as ASGI. Models are loaded from its startup on, and closed at its shutdown."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.begin()
        yield
        await models.end()

    app = _addressed(lifespan)
    app.state.models, app.state.kept = models, Kept(models.limits.kept, models.limits.kept_bytes)
    return guarded(Reading(Loading(app, models, app.router), app), models, app)


def guarded(app: ASGIApp, service: Guarded, addressed: FastAPI | None = None) -> ASGIApp:
    """With who may ask, and from which sites. addressed: what has the addresses; None: they are those of
    every server."""
    paths = [route.path for route in (addressed or _addressed()).routes if isinstance(route, Route)]
    guard: ASGIApp = Guard(app, service, paths)
    if origins := service.limits.origins:
        return CORSMiddleware(guard, origins, allow_methods=METHODS, allow_headers=["*"])
    return guard


def _addressed(lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """All addresses; they find the models in the app's state."""
    app = FastAPI(title="Aerie", lifespan=lifespan, strict_content_type=False, **NO_PAGES)  # type: ignore[arg-type]
    app.router.route_class = ReadingRoute
    _add_errors(app)
    add_views(app)
    _add_texts(app)
    _add_answers(app)
    _add_other_apis(app)
    add_kept(app)
    _add_native(app)
    _add_embeddings(app)
    _add_slots(app)
    return app


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        path = request.url.path
        if isinstance(error, RequestValidationError):
            return answer_of(of_validation(error.errors()), path)
        return answer_of(of_http(error, path) if isinstance(error, HTTPException) else internal(), path)

    for kind in (RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _add_texts(app: FastAPI) -> None:
    """Between text and tokens."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, service: Held) -> Response:
        opened = service.ready()
        most, positions = most_counted(opened), opened.session.model.positions
        made = await service.encoded(partial(_tokenized, body, most, positions), body.place)
        return Response(made, media_type="application/json")

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, service: Held) -> Mapping[str, Any]:
        check_ids(service.ready(), body.tokens, "tokens")
        text = await service.encoded(lambda tokenizer: tokenizer.decode(body.tokens))
        return {"content": text, "prompt": text}

    @app.post("/apply-template")
    async def apply_template(body: TemplateRequest, service: Held) -> Mapping[str, Any]:
        service.ready()
        made = await service.encoded(lambda tokenizer: tokenizer.chat_text(*body.chat), body.place)
        return {"prompt": made}


def _tokenized(body: TokenizeRequest, most: int, positions: int, tokenizer: Tokenizer) -> bytes:
    """The response. positions: the model's."""
    ids = _ids_of(body, most, tokenizer)
    tokens = json.dumps(ids)
    if body.with_pieces:  # one by one: all at once would hold the other threads
        told = (
            {"id": each, "piece": piece.text, "bytes": list(piece.data)}
            for each, piece in zip(ids, tokenizer.pieces(ids), strict=True)
        )
        tokens = f"[{','.join(map(json.dumps, told))}]"
    return f'{{"tokens":{tokens},"count":{len(ids)},"max_model_len":{positions}}}'.encode()


def _ids_of(body: TokenizeRequest, most: int, tokenizer: Tokenizer) -> list[int]:
    if body.messages is not None:
        return tokenizer.encode_chat(*body.chat, most=most)
    special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    text = (body.content if body.prompt is None else body.prompt) or ""
    return tokenizer.encode(text, special=special, most=most)


async def _count(body: ChatRequest | CountRequest, service: Service) -> Mapping[str, Any]:
    """The tokens of a conversation."""
    most = most_counted(service.ready())
    return {"input_tokens": len(await service.encoded(partial(encoded, body, most), body.place))}


def _add_answers(app: FastAPI) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        ids, grammar, calls = await service.conversed(opened, body)
        expected = await _expected(service, body.predicted, opened.session.model.positions)
        asks = asked(opened, body, [ids], body.most, service.limits.time_limit_s, grammar, expected, calls)
        marks = await marked(service, request, [ids], body.prompt_logprobs)
        asking = service.asking(asks, request.state.line)
        shown = service.name, body.choices, body.wants_usage, body.top is not None
        form = ChatForm(*shown, marks, body.timings_per_token)
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        prompts = await _ids(service, body.prompts, "prompt")
        grammar = await service.grammar(opened, body.form)
        asks = asked(opened, body, prompts, body.most, service.limits.time_limit_s, grammar)
        echoes = await _echoes(service, request, body, prompts) if body.echo else []
        marks = await marked(service, request, prompts, body.prompt_logprobs)
        asking = service.asking(asks, request.state.line)
        shown = service.name, body.choices, body.wants_usage, body.top is not None
        form = CompletionForm(*shown, echoes, marks)
        return await answered(request, asking, form, body.stream, service.limits.send_s)


async def _expected(service: Service, text: str, most: int) -> Sequence[int]:
    """The tokens that an answer is expected to be much like."""
    return await service.encoded(partial(_continued, text, most)) if text else ()


def _continued(text: str, most: int, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text that follows others."""
    return tokenizer.encode(text, special=False, most=most)


async def _ids(service: Service, given: Sequence[str | list[int]], param: str) -> list[list[int]]:
    """Of texts and of lists of ids, which the client has from wherever. Raises ApiError."""
    opened = service.ready()
    for each in given:
        if isinstance(each, list):
            check_ids(opened, each, param)
    most = opened.session.model.positions
    return [
        each if isinstance(each, list) else await service.encoded(partial(_encode, each, most))
        for each in given
    ]


def _encode(text: str, most: int, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, most=most)


async def _echoes(
    service: Service, request: Request, body: CompletionRequest, prompts: Sequence[Sequence[int]]
) -> list[Echo]:
    """The texts of the prompts, and how likely their tokens are where that is told of answers."""
    texts = [await service.encoded(partial(_begun, prompt)) for prompt in prompts]
    marks = await marked(service, request, prompts, body.top) or [[] for _ in prompts]
    return list(zip(texts, marks, strict=True))


def _begun(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text of tokens, without the beginning of a character, which an answer goes on with."""
    return "".join(map(tokenizer.stream().feed, ids))


def _add_other_apis(app: FastAPI) -> None:
    """A newer one of OpenAI's, and Anthropic's."""

    @app.post("/v1/responses")
    async def responses(body: ResponsesRequest, request: Request, service: Held, kept: Keeping) -> Response:
        opened, before = service.ready(), kept.before(body)
        ids, grammar, calls = await service.conversed(opened, body.after(before.items))
        asks = asked(
            opened,
            body.settings,
            [ids],
            body.max_output_tokens,
            service.limits.time_limit_s,
            grammar,
            calls=calls,
        )
        asking = service.asking(asks, request.state.line)
        form = ResponsesForm(service.name, body, partial(kept.keep, body, before))
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/responses/input_tokens")
    async def input_tokens(body: ResponsesRequest, service: Held, kept: Keeping) -> Mapping[str, Any]:
        asked = body.after(kept.before(body).items)
        ids, *_ = await service.conversed(service.ready(), asked)
        return {"object": "response.input_tokens", "input_tokens": len(ids)}

    @app.post("/v1/messages")
    async def messages(body: MessagesRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        ids, grammar, calls = await service.conversed(opened, body)
        asks = asked(
            opened, body.settings, [ids], body.max_tokens, service.limits.time_limit_s, grammar, calls=calls
        )
        asking = service.asking(asks, request.state.line)
        form = MessagesForm(service.name, len(ids))
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, service: Held) -> Mapping[str, Any]:
        return await _count(body, service)


def _add_slots(app: FastAPI) -> None:
    """What the pool has of the last answers, by numbers."""

    @app.get("/slots")
    async def slots(service: Seen, fail_on_no_slot: str = "") -> Sequence[Mapping[str, Any]]:
        opened = service.ready()
        there = service.worker.slots.told(opened.session.model.positions)
        if fail_on_no_slot == "1" and all(slot["is_processing"] for slot in there):
            raise ApiError(
                503, f"all {len(there)} slots are in use; ask again", code="no_slot", retry_after=1
            )
        return there

    @app.post("/slots/{slot}")
    async def act(
        slot: str, service: Held, body: SlotRequest | None = None, action: str = ""
    ) -> Mapping[str, Any]:
        given = body or SlotRequest()
        service.ready()
        return await service.slot_files.act(service.worker, slot, action, given.filename)


def _add_native(app: FastAPI) -> None:
    """llama.cpp's own."""

    @app.post("/completion")
    async def completion(body: NativeRequest, request: Request, service: Held) -> Response:
        return await completed(service, body, request)

    @app.post("/v1/chat/completions/input_tokens")
    async def input_tokens(body: ChatRequest, service: Held) -> Mapping[str, Any]:
        return await _count(body, service)


def _add_embeddings(app: FastAPI) -> None:
    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, request: Request, service: Held) -> Mapping[str, Any]:
        prompts = await _ids(service, body.inputs, "input")
        made = await read(service, request, prompts, [Embedding] * len(prompts))
        tokens = sum(map(len, prompts))
        request.state.line.prompt = tokens
        return told(made, service.name, tokens, body.encoding_format)
