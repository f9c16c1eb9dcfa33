"""The page of the server's HTTP addresses, from its application and the models of its requests."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterator
from typing import Any

from markdown import code, page, section, table
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from aerie.serve import app as serving

DOES = {
    "/": "The chat page.",
    "/npu": "The page of the virtual NPU.",
    "/health": "Is the first model loaded? 200, or 503 while it is loading or stopping.",
    "/metrics": "Counts and times for Prometheus.",
    "/props": "The model's name, backend, context and chat template.",
    "/slots": "The slots: which are in use.",
    "/slots/{slot}": "`?action=save`, `restore` or `erase`: what the KV pool has of a slot.",
    "/v1/models": "The models and their status.",
    "/v1/models/{name}": "One model.",
    "/v1/chat/completions": "An answer to messages, whole or as a stream.",
    "/v1/chat/completions/input_tokens": "How many tokens such a request has.",
    "/v1/completions": "What follows a text or token ids.",
    "/v1/embeddings": "Embeddings of texts: the mean of the last hidden states, of length 1.",
    "/v1/responses": "OpenAI's newer API.",
    "/v1/responses/input_tokens": "How many tokens such a request has.",
    "/v1/messages": "Anthropic's API.",
    "/v1/messages/count_tokens": "How many tokens such a request has.",
    "/completion": "llama.cpp's API.",
    "/tokenize": "Token ids of a text or of messages.",
    "/detokenize": "The text of token ids.",
    "/apply-template": "The text that the chat template makes of messages.",
    "/models/load": "Begins to load a model.",
    "/models/unload": "Unloads a model.",
    "/v1/load": "As `/models/load`, in Lemonade's words; waits until it is done.",
    "/v1/unload": "As `/models/unload`, in Lemonade's words.",
    "/v1/stats": "Tokens and times of the last request, in Lemonade's words.",
}
"""What is done at the addresses that clients call by name."""


def addresses() -> Iterator[tuple[str, str, Any]]:
    """(methods, path, endpoint) of each address."""
    for route in serving._addressed().routes:
        path, endpoint = getattr(route, "path", ""), getattr(route, "endpoint", None)
        methods = sorted(set(getattr(route, "methods", None) or ()) - {"HEAD"})
        if path and endpoint and methods:
            yield ", ".join(methods), path, endpoint


def bodies(endpoint: Any) -> list[type[BaseModel]]:
    """The models of the request bodies that an endpoint takes."""
    try:
        hints = typing.get_type_hints(endpoint, include_extras=False)
    except NameError:
        return []
    return [each for each in hints.values() if inspect.isclass(each) and issubclass(each, BaseModel)]


def type_of(annotation: Any) -> str:
    """A type as a client's author reads it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is typing.Literal:
        return " or ".join(json.dumps(each) for each in arguments)
    if origin is typing.Annotated:
        return type_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        names = [type_of(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if origin in (list, tuple) or (inspect.isclass(origin) and issubclass(origin, typing.Sequence)):  # type: ignore[arg-type]
        return f"list of {type_of(arguments[0])}" if arguments else "list"
    if origin is dict or (inspect.isclass(origin) and issubclass(origin, typing.Mapping)):  # type: ignore[arg-type]
        return "object"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "object"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "object", list: "list"}
    return names.get(annotation, "any")


def field_rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    """(name, type, default) of the fields that ask for something; those that are refused stand apart."""
    unbuilt = getattr(model, "unbuilt", {})
    for name, info in model.model_fields.items():
        if name not in unbuilt:
            yield code(_name(name, info)), type_of(info.annotation), _default(info)


def _name(name: str, info: FieldInfo) -> str:
    alias = info.validation_alias or info.alias
    choices = getattr(alias, "choices", None)
    return " / ".join(map(str, choices)) if choices else str(alias or name)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    default = info.default if info.default is not PydanticUndefined else None
    if default is None or default == () or isinstance(default, BaseModel):
        return ""
    return code(json.dumps(default, default=str))


def refused(model: type[BaseModel]) -> str:
    """Fields that are taken only with the values that ask for nothing."""
    unbuilt = getattr(model, "unbuilt", {})
    if not unbuilt:
        return ""
    rows = [
        (code(name), ", ".join(code(json.dumps(each)) for each in values) or "none", why)
        for name, (values, why) in unbuilt.items()
    ]
    return "These are refused unless their value asks for nothing:\n\n" + table(
        ("field", "taken values", "why"), rows
    )


def http_page() -> str:
    found = list(addresses())
    rows = [(methods, code(path), _does(path, endpoint)) for methods, path, endpoint in found]
    models = dict.fromkeys(model for _, _, endpoint in found for model in bodies(endpoint))
    sections = []
    for model in models:
        users = [path for _, path, endpoint in found if model in bodies(endpoint)]
        shown = table(("field", "type", "default"), field_rows(model))
        sections.append(section(f"Body of {', '.join(code(path) for path in users)}", shown, refused(model)))
    return page(
        "HTTP",
        "The addresses of `aerie serve`. [Serve a model](../how-to/serve.md) says how to use them. "
        "A field that is not listed is refused by its name. A field that is null is absent.",
        section("Addresses", table(("method", "address", "what it does"), rows)),
        *sections,
    )


def _does(path: str, endpoint: Any) -> str:
    return DOES.get(path) or " ".join((inspect.getdoc(endpoint) or "").split())
