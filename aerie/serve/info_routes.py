"""Routes that show the state of the server: health, models, and the virtual NPU."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from aerie.engine.model import LoadedModel
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.serve import npu_request, npu_view
from aerie.serve.common_fields import RequestFields, Text
from aerie.serve.llama_cpp import DEFAULTS
from aerie.serve.model_middleware import AllModels, NamedService
from aerie.serve.models import ModelManager
from aerie.serve.service import ModelService, ModelState


def add_info_routes(app: FastAPI) -> None:
    """Add all routes of this module."""
    _add_npu(app)
    _add_state(app)
    _add_models(app)
    _add_lemonade(app)


def _add_npu(app: FastAPI) -> None:
    """Add the routes of the compiled programs and their runs on the virtual NPU. Only a POST compiles and
    runs."""

    @app.get("/npu/programs")
    async def programs(service: NamedService) -> Mapping[str, Any]:
        return npu_view.programs_to_json(service.require_loaded().session.model.programs)

    @app.post("/npu/programs/{name}")
    async def run(name: str, service: NamedService) -> Mapping[str, Any]:
        return npu_view.view_to_json(
            await service.views.get_or_make(service.require_loaded().session.model.programs, name)
        )

    @app.get("/npu/programs/{name}")
    async def program(name: str, service: NamedService) -> Mapping[str, Any]:
        return npu_view.view_to_json(service.views.get(service.require_loaded().session.model.programs, name))

    @app.get("/npu/trace/{name}")
    async def trace(name: str, service: NamedService) -> Response:
        return _file(
            npu_view.perfetto_trace(service.views.get(service.require_loaded().session.model.programs, name))
        )

    @app.get("/npu/request")
    async def last(service: NamedService) -> Mapping[str, Any]:
        programs = service.require_loaded().session.model.programs
        return npu_request.request_to_json(
            npu_request.last_request(service.worker.history.last), service.views, programs
        )

    @app.post("/npu/request/moved/{name}")
    async def moved(name: str, service: NamedService) -> Mapping[str, Any]:
        programs = service.require_loaded().session.model.programs
        ended = npu_request.last_request(service.worker.history.last)
        return await npu_request.traffic_to_json(ended, service.views, programs, name)

    @app.get("/npu/request/trace")
    async def traced(service: NamedService) -> Response:
        service.require_loaded()
        return _file(npu_request.perfetto_trace(npu_request.last_request(service.worker.history.last)))


def _file(trace: Mapping[str, Any]) -> Response:
    return JSONResponse(trace, headers={"Content-Disposition": 'attachment; filename="trace.json"'})


def _add_state(app: FastAPI) -> None:
    """Add health, properties and metrics."""

    @app.get("/health")
    async def health(models: AllModels) -> Any:
        models.default_model.check()
        if models.is_starting:
            error = models.default_model.loading_error()
            return JSONResponse({**error.body, **_model_states(models)}, error.status_code, error.headers)
        if models.error:  # until the server ends, which it does by itself
            raise models.default_model.load_error()
        every = models.all.values()
        return {
            "status": "ok",
            "model": models.default_model.name,
            "running": sum(service.running for service in every),
            "waiting": sum(service.waiting for service in every),
            **_model_states(models),
            "all_models_loaded": [{"model_name": service.name} for service in every if service.opened],
        }

    @app.get("/props")
    async def props(service: NamedService) -> Mapping[str, Any]:
        opened = service.require_loaded()
        return {
            "model_alias": service.name,
            "backend": opened.session.backend,
            "total_slots": MAX_RUNNING_REQUESTS,
            "default_generation_settings": {"n_ctx": opened.session.model.positions, "params": DEFAULTS},
            "model_path": service.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": opened.tokenizer.chat_template,
            "build_info": "aerie",
        }

    @app.get("/v1/stats")
    async def stats(models: AllModels) -> Mapping[str, Any]:
        return {**models.metrics.last, **models.metrics.totals}

    @app.get("/metrics")
    async def metrics(models: AllModels) -> Response:
        return PlainTextResponse(models.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _model_states(models: ModelManager) -> dict[str, Any]:
    """The state of each model. progress: of those that compile or load weights now, left out if there are
    none."""
    states = {service.name: service.state.value for service in models.all.values()}
    progress = {service.name: each._asdict() for service in models.all.values() if (each := service.progress)}
    return {"models": states} | ({"progress": progress} if progress else {})


class ModelRequest(RequestFields):
    """Body of POST /models/load and /models/unload."""

    model: Text


def _add_models(app: FastAPI) -> None:
    """Add the list of models, and loading and unloading in llama.cpp's format."""

    @app.get("/v1/models")
    async def every(models: AllModels) -> Mapping[str, Any]:
        data = [_model(service) for service in models.all.values()]
        anthropic = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return {"object": "list", "data": data, **anthropic}

    @app.get("/v1/models/{name:path}")
    async def one(name: str, models: AllModels) -> Mapping[str, Any]:
        return _model(models.find(name))

    @app.post("/models/load")
    async def load(body: ModelRequest, models: AllModels) -> Mapping[str, Any]:
        models.default_model.check()
        await models.start_load(models.find(body.model))
        return {"success": True}

    @app.post("/models/unload")
    async def unload(body: ModelRequest, models: AllModels) -> Mapping[str, Any]:
        await models.unload(models.find(body.model))
        return {"success": True}


class NamedRequest(RequestFields):
    """Body of POST /v1/load and /v1/unload. None unloads all models."""

    model_name: Text | None = None


def _add_lemonade(app: FastAPI) -> None:
    """Add loading and unloading in Lemonade's format; these wait until the model is loaded or unloaded."""

    @app.post("/v1/load")
    async def load(body: NamedRequest, models: AllModels) -> Mapping[str, Any]:
        service = models.find(body.model_name)
        models.acquire(service)
        try:
            await models.wait_loaded(service)
        finally:
            models.release(service)
        return {"status": "success", "message": f"Loaded model: {service.name}"}

    @app.post("/v1/unload")
    async def unload(models: AllModels, body: NamedRequest | None = None) -> Mapping[str, Any]:
        name = body.model_name if body else None
        for service in models.all.values() if name is None else [models.find(name)]:
            if name is not None or service.opened:
                await models.unload(service)
        return {"status": "success", "message": "Model unloaded successfully"}


def _model(service: ModelService) -> dict[str, Any]:
    body = {"id": service.name, "object": "model", "created": service.began, "owned_by": "aerie"}
    body |= {"downloaded": True}  # Lemonade's word: it is here
    created_at = datetime.fromtimestamp(service.began, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body |= {"type": "model", "display_name": service.name, "created_at": created_at}  # Anthropic's
    state: dict[str, Any] = {"value": service.state.value}
    if service.state is ModelState.FAILED:
        state |= {"failed": True, "reason": service.reason}
    context = {"max_context_window": service.positions} if service.positions else {}
    context |= _checkpoint_fields(service.opened.session.model) if service.opened else {}
    return {**body, "aliases": [*service.aliases], "status": state, **context}


def _checkpoint_fields(model: LoadedModel) -> dict[str, Any]:
    """The fields of vLLM and llama.cpp that describe a model."""
    config = model.config
    meta = {
        "n_vocab": config.vocab_size,
        "n_ctx_train": config.max_position_embeddings,
        "n_embd": config.hidden_size,
    }
    return {"max_model_len": model.positions, "meta": {**meta, "n_ctx": model.positions}}
