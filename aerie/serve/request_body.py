"""From the bytes of a body to the fields of a request, for all addresses.

Parsing is Python and C code that holds the interpreter, so its cost is bounded first: `check_values` counts
the values in the text without parsing it. Large bodies within the limit are parsed in a thread. Values that
could fail later (a number larger than a double, half a surrogate pair, brackets nested a thousand deep) are
refused here.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.serve.common_fields import ignored_fields
from aerie.serve.errors import ApiError, field_path, from_validation_errors
from aerie.serve.request_outputs import run_unless_disconnected

MAX_VALUES: Final = 2**17 + 2**14
"""Values and names of a body: as many token ids as the longest usual context has, and some more."""
MAX_OBJECTS: Final = 2**14
"""Objects among the values: each takes as long to parse as hundreds of numbers."""
MAX_DEPTH: Final = 100
MAX_DIGITS: Final = 100
"""Digits of an integer: any such integer fits a double."""
MAX_ERRORS: Final = 1000
"""Errors of a body above which the first one is not searched for."""
LARGE_BYTES, LARGE_VALUES = 64 * 2**10, 2000
"""A body with more is parsed in a thread, and its texts are encoded in a thread for large bodies."""
VALUE_DELIMITERS = (b",", b":", b"[", b"{")
"""About one for each value or name, and more if strings contain them."""
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
IS_LARGE: contextvars.ContextVar[bool] = contextvars.ContextVar("is_large", default=False)
"""Whether the current request has a large body."""


def _count_values(text: bytes) -> int:
    return sum(map(text.count, VALUE_DELIMITERS))


def _without_strings(body: bytes) -> list[bytes]:
    """The parts of a body outside its strings, about; empty if it has too many strings."""
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return bare.split(b'"')[::2] if bare.count(b'"') <= 4 * MAX_VALUES else []


async def check_values(body: bytes) -> None:
    """Raise ApiError 413 if a body has too many values."""
    if _count_values(body) <= MAX_VALUES and body.count(b"{") <= MAX_OBJECTS:
        return
    parts = await asyncio.to_thread(_without_strings, body)
    values, objects = sum(map(_count_values, parts)), sum(part.count(b"{") for part in parts)
    if not parts or values > MAX_VALUES or objects > MAX_OBJECTS:
        more = f"has {objects} objects among {values} values" if parts else "has very many texts"
        raise ApiError(
            413,
            f"the body {more}, and {MAX_OBJECTS} objects and {MAX_VALUES} values are the limit; send "
            "fewer, or several requests",
            code="too_large",
        )


class _InvalidNumberError(ValueError):
    """A number that is refused."""


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _InvalidNumberError(
            f"a number has {len(digits)} digits, {digits[:20]}..., and {MAX_DIGITS} is the limit"
        )
    return int(digits)


def _parse_float(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise _InvalidNumberError(f"the number {digits[:20]} is larger than a double can be")
    return number


def _reject_constant(name: str) -> NoReturn:
    raise _InvalidNumberError(f"{name} is no number of JSON")


DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=_reject_constant)


def parse_body(body: bytes) -> Any:
    """Parse a body. All its strings can be encoded as UTF-8, and its numbers are finite. Raises ApiError
    400."""
    try:
        text = body.decode("utf-8-sig")
        value = DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _invalid_json(
            f"it is no UTF-8 at byte {error.start}, {body[error.start]:#04x}", "UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise _invalid_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except _InvalidNumberError as error:
        raise _invalid_json(str(error), "a number in its place that can be taken") from None
    except RecursionError:
        raise _too_deep() from None
    _check_structure(value, SURROGATE_ESCAPE.search(text) is not None)
    return value


def _invalid_json(reason: str, advice: str = "one object") -> ApiError:
    return ApiError(
        400, f"the body is no JSON that can be read ({reason}); send {advice}", code="invalid_json"
    )


def _too_deep() -> ApiError:
    return ApiError(
        400,
        f"the body is nested deeper than {MAX_DEPTH} objects and lists; send a flatter one",
        code="too_deep",
    )


def _check_structure(value: Any, may_have_surrogates: bool) -> None:
    """Raise ApiError for lone surrogates, which JSON can write and nothing else accepts, and for deep
    nesting. may_have_surrogates: whether the text has escapes of surrogates."""
    unchecked: list[tuple[tuple[str | int, ...], Any]] = [((), [value])]
    while unchecked:
        path, container = unchecked.pop()
        if len(path) > MAX_DEPTH + 1:
            raise _too_deep()
        for name, inner in container.items() if isinstance(container, Mapping) else enumerate(container):
            if isinstance(inner, dict | list):
                unchecked.append(((*path, name), inner))
            if may_have_surrogates and not (_is_encodable(name) and _is_encodable(inner)):
                param = field_path([*path, name][1:])
                subject = f"{param} holds" if param else "a text of the body holds"
                raise ApiError(
                    400,
                    f"{subject} half a character (a lone surrogate); send valid Unicode",
                    param,
                    "invalid_value",
                )


def _is_encodable(value: Any) -> bool:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def validate_fields(kind: TypeAdapter[Any], body: bytes) -> Any:
    """Parse a body and return the fields of a request. Raises ApiError 400."""
    value = parse_body(body)
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        if (count := error.error_count()) > MAX_ERRORS:
            raise ApiError(
                400,
                f"{count} values of the body are wrong, and {MAX_ERRORS} are looked at; send fields and "
                "values of this address, which docs/how-to/serve.md lists",
                code="invalid_value",
            ) from None
        errors = [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors(include_url=False)]
        raise from_validation_errors(errors) from None
    except RecursionError:
        raise _too_deep() from None


class ParsedRequest(Request):
    """A request whose body is already parsed."""

    async def json(self) -> Any:
        return self.scope["state"]["fields"]


class ParsedBodyRoute(APIRoute):
    """A route that takes its fields from the parsed body."""

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            response: Response = await handler(ParsedRequest(request.scope, request.receive))
            return response

        return handled


def body_model(route: APIRoute) -> TypeAdapter[Any] | None:
    """The type of the bodies of a route; None if it takes none."""
    kind: Any = route.body_field and route.body_field.field_info.annotation
    return None if kind is None else TypeAdapter(kind)


class BodyMiddleware:
    """ASGI middleware after the Guard: parses the bodies of all routes that take one."""

    def __init__(self, app: ASGIApp, routed: FastAPI) -> None:
        self._app = app
        routes = [each for each in routed.routes if isinstance(each, APIRoute)]
        self._models = [(route, kind) for route in routes if (kind := body_model(route))]
        self._thread = ThreadPoolExecutor(1, "reading")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (kind := self._model_for(scope)):
            body = (await receive())["body"]  # complete: the guard has read it
            if body:
                fields, ignored = await self._read(kind, body, receive)
                scope["state"] |= {"fields": fields, "ignored": ignored}
            receive = replay_body(body, receive)
        await self._app(scope, receive, send)

    def _model_for(self, scope: Scope) -> TypeAdapter[Any] | None:
        return next((kind for route, kind in self._models if route.matches(scope)[0] is Match.FULL), None)

    async def _read(self, kind: TypeAdapter[Any], body: bytes, receive: Receive) -> tuple[Any, Sequence[str]]:
        is_large = len(body) > LARGE_BYTES or _count_values(body) > LARGE_VALUES
        IS_LARGE.set(is_large)
        return (
            await run_unless_disconnected(receive, self._validate_in_thread(kind, body))
            if is_large
            else _fields_and_ignored(kind, body)
        )

    async def _validate_in_thread(self, kind: TypeAdapter[Any], body: bytes) -> tuple[Any, Sequence[str]]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, _fields_and_ignored, kind, body)


def _fields_and_ignored(kind: TypeAdapter[Any], body: bytes) -> tuple[Any, Sequence[str]]:
    """The fields of a request, and the paths of those that are ignored. Raises ApiError 400."""
    fields = validate_fields(kind, body)
    return fields, ignored_fields(fields)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns this body first."""
    was_sent = False

    async def receive_again() -> Message:
        nonlocal was_sent
        if was_sent:
            return await receive()
        was_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
