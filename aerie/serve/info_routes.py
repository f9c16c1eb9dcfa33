"""The addresses that show what there is, and how it is: pages for the browser, the server's state, models,
and the virtual NPU at work."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from aerie.engine.model import LoadedModel
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.serve import npu_request, npu_view
from aerie.serve.common_fields import Fields, Text
from aerie.serve.llama_cpp import DEFAULTS
from aerie.serve.model_middleware import Seen, There
from aerie.serve.service import Service, State

NOTHING = (
    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""What the page may fetch and be shown in, beside its own script, by its hash: nothing but answers."""
NO_GUESSES = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def add_views(app: FastAPI) -> None:
    """All of them."""
    _add_page(app, "/", "page.html")
    _add_page(app, "/npu", "npu.html")
    _add_npu(app)
    _add_state(app)
    _add_models(app)
    _add_lemonade(app)


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
    """The programs that the model has compiled, and what they do on the virtual NPU. To have one run is asked
    for by POST: what asks to see compiles nothing."""

    @app.get("/npu/programs")
    async def programs(service: Seen) -> Mapping[str, Any]:
        return npu_view.listed(service.ready().session.model.programs)

    @app.post("/npu/programs/{name}")
    async def run(name: str, service: Seen) -> Mapping[str, Any]:
        return npu_view.told(await service.views.of(service.ready().session.model.programs, name))

    @app.get("/npu/programs/{name}")
    async def program(name: str, service: Seen) -> Mapping[str, Any]:
        return npu_view.told(service.views.made(service.ready().session.model.programs, name))

    @app.get("/npu/trace/{name}")
    async def trace(name: str, service: Seen) -> Response:
        return _file(npu_view.trace(service.views.made(service.ready().session.model.programs, name)))

    @app.get("/npu/request")
    async def last(service: Seen) -> Mapping[str, Any]:
        programs = service.ready().session.model.programs
        return npu_request.told(npu_request.last(service.worker.history.last), service.views, programs)

    @app.post("/npu/request/moved/{name}")
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


def _add_state(app: FastAPI) -> None:
    """What there is, and how it is."""

    @app.get("/health")
    async def health(models: There) -> Mapping[str, Any]:
        models.first.check()
        if models.is_starting:
            raise models.first.is_loading()
        if models.error:  # until the server ends, which it does by itself
            raise models.first.failure()
        every = models.all.values()
        return {
            "status": "ok",
            "model": models.first.name,
            "running": sum(service.running for service in every),
            "waiting": sum(service.waiting for service in every),
            "models": {service.name: service.state.value for service in every},
            "all_models_loaded": [{"model_name": service.name} for service in every if service.opened],
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

    @app.get("/v1/stats")
    async def stats(models: There) -> Mapping[str, Any]:
        return {**models.metrics.last, **models.metrics.totals}

    @app.get("/metrics")
    async def metrics(models: There) -> Response:
        return PlainTextResponse(models.metrics.text(), media_type=CONTENT_TYPE_LATEST)


class ModelRequest(Fields):
    """POST /models/load and /models/unload."""

    model: Text


def _add_models(app: FastAPI) -> None:
    """Which models there are, and having them loaded and unloaded in the words of llama.cpp's server."""

    @app.get("/v1/models")
    async def every(models: There) -> Mapping[str, Any]:
        return {"object": "list", "data": [_model(service) for service in models.all.values()]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str, models: There) -> Mapping[str, Any]:
        return _model(models.named(name))

    @app.post("/models/load")
    async def load(body: ModelRequest, models: There) -> Mapping[str, Any]:
        models.first.check()
        await models.begin_load(models.named(body.model))
        return {"success": True}

    @app.post("/models/unload")
    async def unload(body: ModelRequest, models: There) -> Mapping[str, Any]:
        await models.unload(models.named(body.model))
        return {"success": True}


class NamedRequest(Fields):
    """POST /v1/load, and /v1/unload, where none is named for all."""

    model_name: Text | None = None


def _add_lemonade(app: FastAPI) -> None:
    """The same in Lemonade's words: these wait until it is done."""

    @app.post("/v1/load")
    async def load(body: NamedRequest, models: There) -> Mapping[str, Any]:
        service = models.named(body.model_name)
        models.hold(service)
        try:
            await models.loaded(service)
        finally:
            models.let_go(service)
        return {"status": "success", "message": f"Loaded model: {service.name}"}

    @app.post("/v1/unload")
    async def unload(models: There, body: NamedRequest | None = None) -> Mapping[str, Any]:
        name = body.model_name if body else None
        for service in models.all.values() if name is None else [models.named(name)]:
            if name is not None or service.opened:
                await models.unload(service)
        return {"status": "success", "message": "Model unloaded successfully"}


def _model(service: Service) -> dict[str, Any]:
    told = {"id": service.name, "object": "model", "created": service.began, "owned_by": "aerie"}
    told |= {"downloaded": True}  # Lemonade's word: it is here
    state: dict[str, Any] = {"value": service.state.value}
    if service.state is State.FAILED:
        state |= {"failed": True, "reason": service.reason}
    context = {"max_context_window": service.positions} if service.positions else {}
    context |= _of_checkpoint(service.opened.session.model) if service.opened else {}
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
