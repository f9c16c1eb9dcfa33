"""GET /docs and /openapi.json: all addresses and fields, as a page and for programs.

Both are made from the routes and the models of their bodies. The page has no script, and fetches nothing.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.responses import Response

ADDRESSES: Final[Mapping[str, str]] = {
    "/": "The chat page.",
    "/page/{name}": "Its scripts and its style.",
    "/docs": "A page with all addresses and fields, which fetches nothing from elsewhere.",
    "/openapi.json": "The same for programs, in the form of OpenAPI.",
    "/npu": "The page of the virtual NPU.",
    "/npu/programs": "The programs that are compiled, and the tiles of the device.",
    "/npu/programs/{name}": "POST runs a program and counts what moved; GET gives the last result.",
    "/npu/trace/{name}": "The trace of that run, for Perfetto.",
    "/npu/request": "The last request: its forward passes, and which programs ran in each.",
    "/npu/request/moved/{name}": "What tiles and channels moved in all runs of one of its programs.",
    "/npu/request/trace": "Its forward passes as a trace, for Perfetto.",
    "/health": "200 when the first model is loaded; 503 while it is loading, with its progress, and while "
    "the server stops.",
    "/metrics": "Counts and times for Prometheus.",
    "/props": "The model's name, backend, context and chat template.",
    "/slots": "The slots: which are in use, by how many tokens.",
    "/slots/{slot}": "`?action=save`, `restore` or `erase`: what the KV pool has of a slot.",
    "/tokenize": "Token ids of a text or of messages.",
    "/detokenize": "The text of token ids.",
    "/apply-template": "The text that the chat template makes of messages.",
    "/completion": "llama.cpp's API: continues a prompt as it stands, control tokens included.",
    "/models/load": "Begins to load a model.",
    "/models/unload": "Unloads a model; 409 while requests are under way.",
    "/v1/load": "As `/models/load`, with Lemonade's fields; waits until it is done.",
    "/v1/unload": "As `/models/unload`, with Lemonade's fields.",
    "/v1/stats": "Tokens and times of the last request, with Lemonade's fields.",
    "/v1/models": "The models and their status.",
    "/v1/models/{name:path}": "One model.",
    "/v1/chat/completions": "An answer to messages, whole or as a stream.",
    "/v1/chat/completions/input_tokens": "How many tokens such a request has.",
    "/v1/completions": "What follows a text or token ids.",
    "/v1/embeddings": "The vector of each text, as an embedding model's checkpoint says it. Of another model "
    "it is the mean of the last hidden states, of length 1.",
    "/v1/responses": "OpenAI's newer API, whole or as events.",
    "/v1/responses/input_tokens": "How many tokens such a request has.",
    "/v1/responses/{name}": "A response that is kept; DELETE forgets it.",
    "/v1/responses/{name}/input_items": "All items that came before its own.",
    "/v1/responses/{name}/cancel": "Refused: responses in the background are not built.",
    "/v1/conversations": "Makes a conversation.",
    "/v1/conversations/{name}": "A conversation: read, change, delete.",
    "/v1/conversations/{name}/items": "Its items: list, add.",
    "/v1/conversations/{name}/items/{item}": "One item: read, delete.",
    "/v1/messages": "Anthropic's API, whole or as events.",
    "/v1/messages/count_tokens": "How many tokens such a request has.",
    "/v1/rerank": "The documents by how well they answer a query; for a reranker (Qwen3-Reranker).",
    "/api/chat": "Ollama's API: an answer to messages, as lines of JSON or whole.",
    "/api/generate": "The same to a prompt, or with `raw` what follows it. Without a prompt it loads the "
    "model; with `keep_alive` 0 besides, it unloads it.",
    "/api/embed": "Ollama's API: the embeddings of texts.",
    "/api/embeddings": "The same in its older form, of one text.",
    "/api/tags": "Ollama's list of models.",
    "/api/ps": "Ollama's list of loaded models.",
    "/api/show": "What Ollama's clients ask of one model.",
    "/api/version": "The version of Ollama's API, and of Aerie.",
    "/api/pull": "`success` if the model is served here; else refused.",
    "/api/push": "Refused: models are not published here.",
    "/api/create": "Refused: models are named when the server is started.",
    "/api/copy": "Refused: `--alias` gives a model one more name.",
    "/api/delete": "Refused: `POST /v1/unload` frees the memory of a model.",
}
"""What is done at each address."""


DOCS_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
CODE: Final = re.compile("`([^`]*)`")
STYLE: Final = (
    ":root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; "
    "max-width: 60rem; padding: 0 1rem } code { font: 0.9em ui-monospace, monospace } "
    "td { padding: 0.1rem 1rem 0.1rem 0; vertical-align: top } summary { cursor: pointer; padding: 0.3rem 0 }"
)


def add_docs_routes(app: FastAPI) -> None:
    """Add /docs and /openapi.json."""

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return JSONResponse(await asyncio.to_thread(openapi_of, app))

    @app.get("/docs")
    async def docs() -> Response:
        page = await asyncio.to_thread(lambda: docs_page(openapi_of(app)))
        return HTMLResponse(page, headers=DOCS_HEADERS)


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The description in the form of OpenAPI. It is made once."""
    if app.openapi_schema is None:
        schema = app.openapi()
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                operation["summary"] = ADDRESSES[_route_path(path)]
    return app.openapi()


def _route_path(path: str) -> str:
    """The path as its route has it: OpenAPI leaves out that a parameter may hold slashes."""
    return path if path in ADDRESSES else path.replace("}", ":path}")


def docs_page(schema: Mapping[str, Any]) -> str:
    """The page: each address with its methods and what it does, and the fields of its body."""
    parts = "\n".join(_address(path, methods, schema) for path, methods in schema["paths"].items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Aerie: HTTP</title>'
        f"<style>{STYLE}</style><h1>HTTP addresses</h1>"
        "<p>A field that is not listed is refused by its name. A field that is null is absent. "
        'For programs: <a href="/openapi.json">/openapi.json</a>. <a href="/">The chat</a>.</p>'
        f"{parts}</html>"
    )


def _address(path: str, methods: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    names = ", ".join(name.upper() for name in methods)
    summary = CODE.sub(r"<code>\1</code>", html.escape(next(iter(methods.values()))["summary"]))
    head = f"<code>{names} {html.escape(path)}</code> {summary}"
    rows = "".join(
        f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(kind)}<td>{note}"
        for operation in methods.values()
        for name, kind, note in _fields(operation, schema)
    )
    return f"<details><summary>{head}</summary><table>{rows}</table></details>" if rows else f"<p>{head}</p>"


def _fields(operation: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, type, note) of the fields of a body."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _resolved(content.get("schema", {}), schema)
    required = body.get("required", ())
    for name, field in body.get("properties", {}).items():
        yield name, _type_name(field, schema), "required" if name in required else ""


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference names, also as one of several types."""
    for choice in (part, *part.get("anyOf", ())):
        if reference := choice.get("$ref"):
            named: Mapping[str, Any] = schema["components"]["schemas"][reference.rpartition("/")[2]]
            return named
    return part


def _type_name(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The type of a field in words."""
    if choices := field.get("anyOf") or field.get("oneOf"):
        names = [_type_name(choice, schema) for choice in choices if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(names))
    if "enum" in field or "const" in field:
        return " or ".join(repr(value) for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type_name(field.get('items', {}), schema)}"
    return str(_resolved(field, schema).get("type", "any"))
