"""The addresses of the server, and what each does."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from aerie.engine.errors import UserError
from aerie.engine.model import LoadedModel
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.tokenizer import Tokenizer
from aerie.serve import npu, npu_request
from aerie.serve.chats import ChatRequest, TemplateRequest, TokenizeRequest
from aerie.serve.embeddings import EmbeddingsRequest, embedding, told
from aerie.serve.errors import ApiError, answer_of, internal, of_engine, of_http, of_validation
from aerie.serve.events import answered
from aerie.serve.fields import CompletionRequest, DetokenizeRequest, Fields, Text
from aerie.serve.forms import ChatForm, CompletionForm, Echo
from aerie.serve.guards import Guard, Guarded
from aerie.serve.loading import Loading
from aerie.serve.messages import CountRequest, MessagesForm, MessagesRequest
from aerie.serve.models import Models
from aerie.serve.native import DEFAULTS, NativeRequest, completed
from aerie.serve.responses import ResponsesForm, ResponsesRequest
from aerie.serve.service import Service, State
from aerie.serve.slot_files import SlotRequest

NO_PAGES = {"docs_url": None, "redoc_url": None, "openapi_url": None}
"""FastAPI's pages of its own fetch scripts from elsewhere."""
NOTHING = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What the page may fetch and be shown in, beside its own script, by its hash: nothing but answers."""
NO_GUESSES = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def _held(request: Request) -> Service:
    service: Service = request.state.service
    return service


def _seen(request: Request, model: str | None = None) -> Service:
    models: Models = request.app.state.models
    return models.named(model)


Held = Annotated[Service, Depends(_held)]
"""The model that is asked: loaded, until the response is complete."""
Seen = Annotated[Service, Depends(_seen)]
"""The model that ?model= names, else the first, as it is."""


def make_app(models: Models) -> ASGIApp:
    """The server, as ASGI. Models are loaded from its startup on, and closed at its shutdown."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.begin()
        yield
        await models.end()

    app = FastAPI(title="Aerie", lifespan=lifespan, **NO_PAGES)  # type: ignore[arg-type]
    _add_errors(app)
    _add_page(app, "/", "page.html")
    _add_page(app, "/npu", "npu.html")
    app.state.models = models
    _add_npu(app)
    _add_state(app, models)
    _add_models(app, models)
    _add_texts(app)
    _add_answers(app)
    _add_other_apis(app)
    _add_native(app)
    _add_embeddings(app)
    _add_slots(app)
    return guarded(Loading(app, models, app.router), models, _paths(app))


def guarded(app: ASGIApp, service: Guarded, paths: Collection[str]) -> ASGIApp:
    """With who may ask, and from which sites. paths: the addresses that there are, for the counts."""
    guard: ASGIApp = Guard(app, service, paths)
    if origins := service.limits.origins:
        headers = ["Authorization", "Content-Type", "X-Api-Key"]
        return CORSMiddleware(guard, origins, allow_methods=["GET", "POST"], allow_headers=headers)
    return guard


def _paths(app: FastAPI) -> set[str]:
    return {path for route in app.routes if (path := getattr(route, "path", None))}


def _add_errors(app: FastAPI) -> None:
    async def refused(request: Request, error: Exception) -> JSONResponse:
        path = request.url.path
        if isinstance(error, RequestValidationError):
            return answer_of(of_validation(error.errors()), path)
        return answer_of(of_http(error, path) if isinstance(error, HTTPException) else internal(), path)

    for kind in (RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _add_page(app: FastAPI, path: str, file: str) -> None:
    """A page for the browser: one file, which asks for nothing but what is served here."""
    page = (Path(__file__).parent / file).read_text(encoding="utf-8")
    script = page[page.index("<script>") + len("<script>") : page.index("</script>")]
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    headers = {"Content-Security-Policy": f"{NOTHING}; script-src 'sha256-{known}'", **NO_GUESSES}

    @app.get(path)
    async def shown() -> Response:
        return HTMLResponse(page, headers=headers)


def _add_npu(app: FastAPI) -> None:
    """The programs that the model has compiled, and what they do on the virtual NPU."""

    @app.get("/npu/programs")
    async def programs(service: Seen) -> Mapping[str, Any]:
        return npu.listed(service.ready().session.model.programs)

    @app.get("/npu/programs/{name}")
    async def program(name: str, service: Seen) -> Mapping[str, Any]:
        return npu.told(await service.views.of(service.ready().session.model.programs, name))

    @app.get("/npu/trace/{name}")
    async def trace(name: str, service: Seen) -> Response:
        return _file(npu.trace(await service.views.of(service.ready().session.model.programs, name)))

    @app.get("/npu/request")
    async def last(service: Seen) -> Mapping[str, Any]:
        programs = service.ready().session.model.programs
        return npu_request.told(npu_request.last(service.worker.history.last), service.views, programs)

    @app.get("/npu/request/moved/{name}")
    async def moved(name: str, service: Seen) -> Mapping[str, Any]:
        programs = service.ready().session.model.programs
        ended = npu_request.last(service.worker.history.last)
        return await npu_request.moved(ended, service.views, programs, name)

    @app.get("/npu/request/trace")
    async def traced(service: Seen) -> Response:
        service.ready()
        return _file(npu_request.trace(npu_request.last(service.worker.history.last)))


def _file(trace: Mapping[str, Any]) -> Response:
    return JSONResponse(trace, headers={"Content-Disposition": 'attachment; filename="trace.json"'})


def _add_state(app: FastAPI, models: Models) -> None:
    """What there is, and how it is."""

    @app.get("/health")
    async def health() -> Mapping[str, Any]:
        models.first.check()
        if models.is_starting:
            raise models.first.is_loading()
        every = models.all.values()
        return {
            "status": "ok",
            "model": models.first.name,
            "running": sum(service.running for service in every),
            "waiting": sum(service.waiting for service in every),
            "models": {service.name: service.state.value for service in every},
        }

    @app.get("/props")
    async def props(service: Seen) -> Mapping[str, Any]:
        opened = service.ready()
        return {
            "model_alias": service.name,
            "backend": opened.session.backend,
            "total_slots": MOST_ANSWERS,
            "default_generation_settings": {"n_ctx": opened.session.model.positions, "params": DEFAULTS},
            "model_path": service.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": opened.tokenizer.chat_template,
            "build_info": "aerie",
        }

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(models.metrics.text(), media_type=CONTENT_TYPE_LATEST)


class ModelRequest(Fields):
    """POST /models/load and /models/unload."""

    model: Text


def _add_models(app: FastAPI, models: Models) -> None:
    """Which models there are, and having them loaded and unloaded in the words of llama.cpp's server."""

    @app.get("/v1/models")
    async def every() -> Mapping[str, Any]:
        return {"object": "list", "data": [_model(service) for service in models.all.values()]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str) -> Mapping[str, Any]:
        return _model(models.named(name))

    @app.post("/models/load")
    async def load(body: ModelRequest) -> Mapping[str, Any]:
        models.first.check()
        await models.begin_load(models.named(body.model))
        return {"success": True}

    @app.post("/models/unload")
    async def unload(body: ModelRequest) -> Mapping[str, Any]:
        await models.unload(models.named(body.model))
        return {"success": True}


def _model(service: Service) -> dict[str, Any]:
    told = {"id": service.name, "object": "model", "created": service.began, "owned_by": "aerie"}
    state: dict[str, Any] = {"value": service.state.value}
    if service.state is State.FAILED:
        state |= {"failed": True, "reason": service.reason}
    context = _of_checkpoint(service.opened.session.model) if service.opened else {}
    return {**told, "aliases": [*service.aliases], "status": state, **context}


def _of_checkpoint(model: LoadedModel) -> dict[str, Any]:
    """What vLLM tells of a model, and what llama.cpp does."""
    config = model.config
    meta = {
        "n_vocab": config.vocab_size,
        "n_ctx_train": config.max_position_embeddings,
        "n_embd": config.hidden_size,
    }
    return {"max_model_len": model.positions, "meta": {**meta, "n_ctx": model.positions}}


def _add_texts(app: FastAPI) -> None:
    """Between text and tokens."""

    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest, service: Held) -> Mapping[str, Any]:
        opened = service.ready()
        ids = await service.encoded(partial(_tokenized, body), body.place)
        tokens: list[Any] = list(ids)
        if body.with_pieces:
            tokens = [{"id": each, "piece": opened.tokenizer.decode([each])} for each in ids]
        return {"tokens": tokens, "count": len(ids), "max_model_len": opened.session.model.positions}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, service: Held) -> Mapping[str, Any]:
        size = service.ready().session.model.config.vocab_size
        if wrong := [each for each in body.tokens if each >= size]:
            raise ApiError(
                400, f"tokens has {wrong[0]}; the vocabulary has 0 to {size - 1}", "tokens", "invalid_value"
            )
        text = await service.encoded(lambda tokenizer: tokenizer.decode(body.tokens))
        return {"content": text, "prompt": text}

    @app.post("/apply-template")
    async def apply_template(body: TemplateRequest, service: Held) -> Mapping[str, Any]:
        service.ready()
        made = await service.encoded(lambda tokenizer: tokenizer.chat_text(*body.chat), body.place)
        return {"prompt": made}


def _tokenized(body: TokenizeRequest, tokenizer: Tokenizer) -> list[int]:
    if body.messages is not None:
        return tokenizer.encode_chat(*body.chat)
    special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    return tokenizer.encode((body.content if body.prompt is None else body.prompt) or "", special=special)


def _add_answers(app: FastAPI) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        ids, grammar, calls = await service.conversed(opened, body)
        expected = await service.encoded(partial(_continued, body.predicted))
        asks = service.asks(opened, body, [ids], body.most, grammar, expected, calls)
        marks = await service.prompt_marks([ids], body.prompt_logprobs)
        asking = service.asking(asks, request.state.line)
        shown = service.name, body.choices, body.wants_usage, body.top is not None
        form = ChatForm(*shown, marks, body.timings_per_token)
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        prompts = [
            prompt if isinstance(prompt, list) else await service.encoded(partial(_encode, prompt))
            for prompt in body.prompts
        ]
        grammar = await service.grammar(opened, body.form)
        asks = service.asks(opened, body, prompts, body.most, grammar)
        echoes = await _echoes(service, body, prompts) if body.echo else []
        marks = await service.prompt_marks(prompts, body.prompt_logprobs)
        asking = service.asking(asks, request.state.line)
        shown = service.name, body.choices, body.wants_usage, body.top is not None
        form = CompletionForm(*shown, echoes, marks)
        return await answered(request, asking, form, body.stream, service.limits.send_s)


def _continued(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text that follows others."""
    return tokenizer.encode(text, special=False) if text else []


def _encode(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text)


async def _echoes(service: Service, body: CompletionRequest, prompts: Sequence[Sequence[int]]) -> list[Echo]:
    """The texts of the prompts, and how likely their tokens are where that is told of answers."""
    texts = [
        await service.encoded(partial(_decode, given)) if isinstance(given, list) else given
        for given in body.prompts
    ]
    marks = await service.prompt_marks(prompts, body.top) or [[] for _ in prompts]
    return list(zip(texts, marks, strict=True))


def _decode(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids)


def _add_other_apis(app: FastAPI) -> None:
    """A newer one of OpenAI's, and Anthropic's."""

    @app.post("/v1/responses")
    async def responses(body: ResponsesRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        ids, grammar, calls = await service.conversed(opened, body)
        asks = service.asks(opened, body.settings, [ids], body.max_output_tokens, grammar, calls=calls)
        asking = service.asking(asks, request.state.line)
        form = ResponsesForm(service.name, body)
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/messages")
    async def messages(body: MessagesRequest, request: Request, service: Held) -> Response:
        opened = service.ready()
        ids, grammar, calls = await service.conversed(opened, body)
        asks = service.asks(opened, body.settings, [ids], body.max_tokens, grammar, calls=calls)
        asking = service.asking(asks, request.state.line)
        form = MessagesForm(service.name, len(ids))
        return await answered(request, asking, form, body.stream, service.limits.send_s)

    @app.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountRequest, service: Held) -> Mapping[str, Any]:
        service.ready()
        ids = await service.encoded(lambda tokenizer: tokenizer.encode_chat(*body.chat), body.place)
        return {"input_tokens": len(ids)}


def _add_slots(app: FastAPI) -> None:
    """What the pool has of the last answers, by numbers."""

    @app.get("/slots")
    async def slots(service: Seen, fail_on_no_slot: str = "") -> Sequence[Mapping[str, Any]]:
        there = service.worker.slots.told(service.ready().session.model.positions)
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
        service.ready()
        ids = await service.encoded(lambda tokenizer: tokenizer.encode_chat(*body.chat), body.place)
        return {"input_tokens": len(ids)}


def _add_embeddings(app: FastAPI) -> None:
    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, request: Request, service: Held) -> Mapping[str, Any]:
        service.ready()
        prompts = [
            given if isinstance(given, list) else await service.encoded(partial(_encode, given))
            for given in body.inputs
        ]
        try:
            made = [await service.worker.call(partial(embedding, prompt)) for prompt in prompts]
        except UserError as error:
            raise of_engine(error) from error
        line, tokens = request.state.line, sum(map(len, prompts))
        line.model, line.prompt = service.name, tokens
        line.endings.append("embedded")
        return told(made, service.name, tokens, body.encoding_format)
