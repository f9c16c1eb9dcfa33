"""Bodies: from bytes to the fields of a request, at this one place for all addresses.

Reading is plain Python and C that keeps the interpreter to itself, so it is bounded before it begins: by the
values that the text has (`check_values`), which are counted without reading it. What is large within that is
read in a thread of its own. What could fail later wherever it is used (a number that no double holds, half a
character, brackets a thousand deep) is refused here.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.serve.errors import ApiError, of_validation, param_of
from aerie.serve.request_outputs import unless_gone

MOST_VALUES: Final = 2**17 + 2**14
"""Values and names of a body: as many token ids as the longest usual context has, and room for the rest."""
MOST_OBJECTS: Final = 2**14
"""Of these: each takes as long to read as hundreds of numbers."""
MOST_DEPTH: Final = 100
MOST_DIGITS: Final = 100
"""Of a whole number: any such number is one that a double holds."""
MOST_ERRORS: Final = 1000
"""Errors of a body that are looked through for the one that is told."""
LARGE_BYTES, LARGE_VALUES = 64 * 2**10, 2000
"""A body with more is read in a thread, and its texts are cut into tokens in one of their own."""
MARKS = (b",", b":", b"[", b"{")
"""One for each value or name, about, and more where texts have them."""
HALF = re.compile(r"\\u[dD][89a-fA-F]")
IS_LARGE: contextvars.ContextVar[bool] = contextvars.ContextVar("is_large", default=False)
"""Whether the request under way has a large body."""


def _marks(text: bytes) -> int:
    return sum(map(text.count, MARKS))


def _outside(body: bytes) -> list[bytes]:
    """A body without its texts, about; empty where these are more than MOST_VALUES."""
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return bare.split(b'"')[::2] if bare.count(b'"') <= 4 * MOST_VALUES else []


async def check_values(body: bytes) -> None:
    """ApiError 413 for a body of too many values."""
    if _marks(body) <= MOST_VALUES and body.count(b"{") <= MOST_OBJECTS:
        return
    parts = await asyncio.to_thread(_outside, body)
    values, objects = sum(map(_marks, parts)), sum(part.count(b"{") for part in parts)
    if not parts or values > MOST_VALUES or objects > MOST_OBJECTS:
        more = f"has {objects} objects among {values} values" if parts else "has very many texts"
        raise ApiError(
            413,
            f"the body {more}, and {MOST_OBJECTS} objects and {MOST_VALUES} values are the limit; send "
            "fewer, or several requests",
            code="too_large",
        )


class _NoNumberError(ValueError):
    """A number that cannot be taken."""


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _NoNumberError(
            f"a number has {len(digits)} digits, {digits[:20]}..., and {MOST_DIGITS} is the limit"
        )
    return int(digits)


def _real(digits: str) -> float:
    if not math.isfinite(made := float(digits)):
        raise _NoNumberError(f"the number {digits[:20]} is larger than a double can be")
    return made


def _none_such(name: str) -> NoReturn:
    raise _NoNumberError(f"{name} is no number of JSON")


DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_real, parse_constant=_none_such)


def parsed(body: bytes) -> Any:
    """What a body holds: all its texts can be written as UTF-8, and its numbers are finite. ApiError 400."""
    try:
        text = body.decode("utf-8-sig")
        made = DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _no_json(f"it is no UTF-8 at byte {error.start}, {body[error.start]:#04x}", "UTF-8") from None
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    except _NoNumberError as error:
        raise _no_json(str(error), "a number in its place that can be taken") from None
    except RecursionError:
        raise _too_deep() from None
    _check(made, HALF.search(text) is not None)
    return made


def _no_json(reason: str, wanted: str = "one object") -> ApiError:
    return ApiError(
        400, f"the body is no JSON that can be read ({reason}); send {wanted}", code="invalid_json"
    )


def _too_deep() -> ApiError:
    return ApiError(
        400,
        f"the body is nested deeper than {MOST_DEPTH} objects and lists; send a flatter one",
        code="too_deep",
    )


def _check(made: Any, may_halve: bool) -> None:
    """ApiError for halves of characters, which JSON can write and nothing else takes, and for what is nested
    too deeply. may_halve: whether there may be some."""
    left: list[tuple[tuple[str | int, ...], Any]] = [((), [made])]
    while left:
        place, each = left.pop()
        if len(place) > MOST_DEPTH + 1:
            raise _too_deep()
        for name, inner in each.items() if isinstance(each, Mapping) else enumerate(each):
            if isinstance(inner, dict | list):
                left.append(((*place, name), inner))
            if may_halve and not (_can_be_written(name) and _can_be_written(inner)):
                param = param_of([*place, name][1:])
                told = f"{param} holds" if param else "a text of the body holds"
                raise ApiError(
                    400,
                    f"{told} half a character (a lone surrogate); send valid Unicode",
                    param,
                    "invalid_value",
                )


def _can_be_written(given: Any) -> bool:
    if isinstance(given, str) and not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError:
            return False
    return True


def validated(kind: TypeAdapter[Any], body: bytes) -> Any:
    """The fields of a request of this kind. ApiError 400."""
    given = parsed(body)
    try:
        return kind.validate_python(given)
    except ValidationError as error:
        if (count := error.error_count()) > MOST_ERRORS:
            raise ApiError(
                400,
                f"{count} values of the body are wrong, and {MOST_ERRORS} are looked at; send fields and "
                "values of this address, which docs/serve.md lists",
                code="invalid_value",
            ) from None
        told = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise of_validation(told) from None
    except RecursionError:
        raise _too_deep() from None


class ReadRequest(Request):
    """A request whose body was read."""

    async def json(self) -> Any:
        return self.scope["state"]["read"]


class ReadingRoute(APIRoute):
    """An address that takes what was read of a body for its fields."""

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handled(request: Request) -> Response:
            response: Response = await handler(ReadRequest(request.scope, request.receive))
            return response

        return handled


def body_kind(route: APIRoute) -> TypeAdapter[Any] | None:
    """What the bodies of an address hold; None where it takes none."""
    kind: Any = route.body_field and route.body_field.field_info.annotation
    return None if kind is None else TypeAdapter(kind)


class Reading:
    """ASGI between a Guard and what answers: it reads the bodies of all addresses that take one."""

    def __init__(self, app: ASGIApp, addressed: FastAPI) -> None:
        self._app = app
        routes = [each for each in addressed.routes if isinstance(each, APIRoute)]
        self._kinds = [(route, kind) for route in routes if (kind := body_kind(route))]
        self._thread = ThreadPoolExecutor(1, "reading")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (kind := self._kind(scope)):
            body = (await receive())["body"]  # whole: the guard has read it
            if body:
                scope["state"]["read"] = await self._read(kind, body, receive)
            receive = replayed(body, receive)
        await self._app(scope, receive, send)

    def _kind(self, scope: Scope) -> TypeAdapter[Any] | None:
        return next((kind for route, kind in self._kinds if route.matches(scope)[0] is Match.FULL), None)

    async def _read(self, kind: TypeAdapter[Any], body: bytes, receive: Receive) -> Any:
        is_large = len(body) > LARGE_BYTES or _marks(body) > LARGE_VALUES
        IS_LARGE.set(is_large)
        return await unless_gone(receive, self._beside(kind, body)) if is_large else validated(kind, body)

    async def _beside(self, kind: TypeAdapter[Any], body: bytes) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, validated, kind, body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body first."""
    is_given = False

    async def given() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return given
