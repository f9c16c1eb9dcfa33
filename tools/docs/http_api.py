"""The page of the server's HTTP addresses, from its application and the models of its requests."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from md_text import code, page, section, table
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from aerie.serve import app as serving
from aerie.serve.api_docs import ADDRESSES as DOES
from aerie.serve.ollama_fields import OllamaOptions

MEANS = {
    "model": "the model's name; left out: the first",
    "messages": "the conversation: role (system, developer, user, assistant, tool) and content",
    "prompt": "a text, token ids, or several of either",
    "input": "texts or token ids; of a response: a text or messages",
    "temperature": "0 takes the likeliest token",
    "top_p": "draw from the fewest tokens whose probabilities reach it",
    "top_k": "draw from so many of the likeliest tokens; -1: all",
    "min_p": "draw from tokens at least so many times as likely as the likeliest",
    "presence_penalty": "taken from the logit of a token that the answer has",
    "frequency_penalty": "the same, for each time",
    "repetition_penalty": "makes tokens of prompt and answer less likely",
    "logit_bias": "added to the logits of tokens, by id",
    "seed": "makes drawing repeatable; -1: none",
    "stop": "texts at which an answer ends",
    "stop_token_ids": "token ids at which an answer ends",
    "ignore_eos": "do not end at an end token",
    "max_tokens": "at most so many tokens; -1: as many as the context has",
    "max_completion_tokens": "the same",
    "max_output_tokens": "the same",
    "n_predict": "the same",
    "n": "answers to one prompt",
    "stream": "server-sent events; with Ollama's API lines of JSON, which is its default",
    "stream_options": "`include_usage`: counts at the end of a stream",
    "response_format": "text, any JSON object, or a JSON schema",
    "json_schema": "a JSON schema for the answer",
    "grammar": "a grammar for the answer, GBNF or lark",
    "regex": "a regular expression that the whole answer matches",
    "tools": "functions that may be called",
    "tool_choice": "whether to call, and which",
    "parallel_tool_calls": "false: one call at most",
    "chat_template_kwargs": "further values for the chat template",
    "logprobs": "logprobs of the tokens",
    "top_logprobs": "and of so many of the likeliest",
    "prompt_logprobs": "logprobs of the prompt's tokens, beside so many of the likeliest",
    "echo": "the prompt comes before the answer",
    "draft": "lookup or none, in place of the server's --draft",
    "prediction": "a text that the answer is expected to be much like",
    "continue_final_message": "the answer goes on with the last message",
    "rule": "unmasking rule of block diffusion",
    "steps": "denoising steps of a block",
    "threshold": "of low_confidence_dynamic",
    "entropy": "of entropy_bounded",
    "id_slot": "the slot of the first answer; -1: the server chooses",
    "timings_per_token": "times in each event",
    "return_progress": "a stream begins with how much of the prompt is computed",
    "instructions": "a system message",
    "previous_response_id": "go on from a kept response",
    "conversation": "go on in a kept conversation",
    "store": "false: do not keep the response",
    "encoding_format": "float or base64",
    "dimensions": "elements of a vector, the first ones; left out: all",
    "prompt_name": "the prompt of the checkpoint that is put before each text",
    "instruction": "what texts are compared for, or what counts as an answer to a query",
    "truncate": "false: refuse a text that is too long; else it is cut at its end",
    "query": "what the documents are to answer",
    "documents": "texts, or objects with `text`",
    "top_n": "how many documents are returned, the best; left out: all",
    "return_documents": "true: the texts of the documents are returned too",
    "max_tokens_per_doc": "a longer document is cut after so many tokens",
    "options": "the settings of the answer, below",
    "format": "json, or a JSON schema for the answer",
    "think": "for the chat template: whether to reason, or how much",
    "raw": "true: the prompt as it stands, control tokens included",
    "system": "a system message",
    "num_predict": "at most so many tokens; 0 or less: as many as the context has",
    "repeat_penalty": "as repetition_penalty",
}
"""What fields mean that clients set; the others are taken, and change no answer, or speak for themselves."""


def addresses() -> Iterator[tuple[str, str, Any]]:
    """(methods, path, endpoint) of each address."""
    for route in serving._app_with_routes().routes:
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


NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "object",
    list: "list",
    type(None): "null",
}
"""What a client's author calls a type of Python's."""


def type_of(annotation: Any) -> str:
    """A type as a client's author reads it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(json.dumps(each) for each in arguments)
    if origin is typing.Annotated:
        return type_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        names = [type_of(each) for each in arguments if each is not type(None)]
        return " or ".join(dict.fromkeys(names))
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        return "object"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return f"list of {type_of(arguments[0])}"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "object"
    return NAMES.get(annotation, "any")


def field_rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    """(name, type, default, meaning) of the fields that ask for something; the others stand apart."""
    unsupported = getattr(model, "unsupported", {})
    for name, info in model.model_fields.items():
        if name not in unsupported:
            yield code(_name(name, info)), type_of(info.annotation), _default(info), _meaning(model, name)


def _meaning(model: type[BaseModel], name: str) -> str:
    is_ignored = name in getattr(model, "ignored", ())
    return "taken, and changes no answer" if is_ignored else MEANS.get(name, "")


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
    unsupported = getattr(model, "unsupported", {})
    if not unsupported:
        return ""
    rows = [
        (code(name), ", ".join(code(json.dumps(each)) for each in values) or "none", why)
        for name, (values, why) in unsupported.items()
    ]
    return "These are refused unless their value asks for nothing:\n\n" + table(
        ("field", "taken values", "why"), rows
    )


STATUSES: Mapping[str, str] = {
    "400": "no JSON; a field that is wrong, unknown or missing; a prompt that does not fit "
    "(`context_length_exceeded`); `model_too_large`",
    "401": "no API key, or a wrong one",
    "403": "a page of another site; another name for this machine than its own",
    "404, 405, 415": "no such address or model; another method; another content type",
    "408, 413, 431": "a request that is too slow or too large",
    "409": "a model is to be unloaded and has requests under way",
    "429": "more answers than may wait",
    "500": "a defect, or a device that failed",
    "501, 507": "slots without `--slot-save-path`; no room for a file",
    "503": "the model is loading, has no room, or failed; the server stops; no token came in time",
}
"""When a request ends with an error, by HTTP's status."""


def http_page() -> str:
    found = list(addresses())
    methods: dict[str, list[str]] = {}
    for method, path, _ in found:
        methods.setdefault(path, []).append(method)
    rows = [(", ".join(each), code(path), does(path)) for path, each in methods.items()]
    models = dict.fromkeys(model for _, _, endpoint in found for model in bodies(endpoint))
    options = section("`options` of `/api/chat` and `/api/generate`", *_tables(OllamaOptions))
    sections = []
    for model in models:
        users = [path for _, path, endpoint in found if model in bodies(endpoint)]
        sections.append(section(f"Body of {', '.join(code(path) for path in users)}", *_tables(model)))
    return page(
        "HTTP",
        "The addresses of `aerie serve`. [Serve a model](../how-to/serve.md) says how to use them. "
        "A field that is not listed is refused by its name. A field that is null is absent. The header "
        "`X-Aerie-Note` of a response names the fields that its request set and that change no answer. "
        "A server shows this page at `/docs`, and for programs at `/openapi.json`.",
        section("Addresses", table(("method", "address", "what it does"), rows)),
        section("Statuses", table(("status", "when"), STATUSES.items())),
        *sections,
        options,
    )


def _tables(model: type[BaseModel]) -> tuple[str, str]:
    """The fields of a model, and those that are refused."""
    return table(("field", "type", "default", "meaning"), field_rows(model)), refused(model)


def does(path: str) -> str:
    """What is done at an address; "" for one that is not in the table."""
    return DOES.get(path, "")
