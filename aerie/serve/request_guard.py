"""What stands before every request: who may ask, how large a body may be, and a line in the log."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection
from typing import Protocol

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.serve.errors import ApiError, answer_of, internal
from aerie.serve.metrics import Line, Metrics
from aerie.serve.origins import check_origin
from aerie.serve.request_body import check_values, replayed
from aerie.serve.request_outputs import GONE
from aerie.serve.service import Limits

JSON = "application/json"
LOG = logging.getLogger("aerie.serve")
OPEN = ("/", "/npu", "/health")
"""What needs no key: pages without any data, and whether the server is up."""
QUIET = ("/health", "/metrics")
"""What is asked again and again by machines, and stays out of the log."""
ALIASES = {
    "/models": "/v1/models",
    "/v1/health": "/health",
    "/completions": "/completion",
    **{f"/{name}": f"/v1/{name}" for name in ("chat/completions", "chat/completions/input_tokens")},
    **{f"/{name}": f"/v1/{name}" for name in ("responses", "embeddings")},
}
"""Other names of addresses: llama.cpp's."""
PREFIX = "/api"
"""Lemonade's, before /v1."""
ROOTED = ("/v1/slots", "/v1/tokenize", "/v1/detokenize")
"""What llama.cpp has without /v1, and Lemonade with it."""
KEPT = ("/responses/", "/conversations")
"""What OpenAI's client asks for with /v1 in its base URL, and without where that has none."""


class Guarded(Protocol):
    """What is behind a guard: Models, or a Front."""

    @property
    def limits(self) -> Limits: ...

    @property
    def metrics(self) -> Metrics: ...


class Guard:
    """ASGI around the app. paths: the addresses that there are, for the counts: each as its route has it."""

    def __init__(self, app: ASGIApp, service: Guarded, paths: Collection[str]) -> None:
        self._app, self._service, self._paths = app, service, frozenset(paths)
        self._patterns = {path.replace(":path}", "}"): compile_path(path)[0] for path in paths if "{" in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _served(scope)
        client = (scope.get("client") or ("-",))[0]
        line = Line(scope["method"], scope["path"], client)
        scope.setdefault("state", {})["line"] = line

        is_told = False

        async def noting(message: Message) -> None:
            nonlocal is_told
            if message["type"] == "http.response.start":
                line.status = message["status"]
            is_told = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._answer(scope, receive, noting)
        except ApiError as error:
            await answer_of(error, scope["path"])(scope, receive, noting)
        except Exception:  # a defect of ours; the app may have told of it already
            if line.status and not is_told:
                raise  # by which the connection is closed: what was sent has no end
            LOG.exception("a request failed")
            if not is_told:
                await answer_of(internal(), scope["path"])(scope, receive, noting)
        finally:
            line.status = line.status or GONE
            self._service.metrics.count(line, self._counted_as(line.path))
            LOG.log(logging.DEBUG if line.path in QUIET else logging.INFO, "%s", line)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check(scope["path"], scope["method"], headers)
        body = await self._body(receive, headers)
        await check_values(body)
        await self._app(scope, replayed(body, receive), send)

    def _counted_as(self, path: str) -> str:
        """One of the addresses that there are, or `other`."""
        if path in self._paths:
            return path
        return next((each for each, pattern in self._patterns.items() if pattern.match(path)), "other")

    def _check(self, path: str, method: str, headers: Headers) -> None:
        """ApiError for who may not ask."""
        most, size = (
            self._service.limits.header_bytes,
            sum(len(name) + len(value) for name, value in headers.raw),
        )
        if size > most:
            raise ApiError(431, f"the headers have {size} bytes, and {most} is the limit; send fewer")
        check_origin(self._service.limits, method, path, headers)
        if self._service.limits.api_key is not None and path not in OPEN:
            self._check_key(headers)
        _check_form(method, headers)

    def _check_key(self, headers: Headers) -> None:
        """Takes as long for every key that is wrong."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(key.encode(), (self._service.limits.api_key or "").encode()):
            what = "the API key is wrong" if key else "there is no API key"
            raise ApiError(
                401, f"{what}; send the server's as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )

    async def _body(self, receive: Receive, headers: Headers) -> bytes:
        """The whole body. ApiError where it is too large, or does not come."""
        most, parts, size = self._service.limits.body_bytes, list[bytes](), 0
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise _too_large(int(length), most)
        try:
            async with asyncio.timeout(self._service.limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(GONE, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(size, most)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            limit = self._service.limits.body_s
            raise ApiError(408, f"the body was not there after {limit:g} s; send it again") from None


def _served(scope: Scope) -> Scope:
    """As the addresses are named here. A target may be a whole URL, as clients send it to proxies; its host
    is the one that counts then (RFC 9112, 3.2.2)."""
    path, headers = scope["path"], scope["headers"]
    if path.lower().startswith(("http://", "https://")):
        host, _, rest = path.partition("://")[2].partition("/")
        path = f"/{rest}"
        headers = [*((name, value) for name, value in headers if name != b"host"), (b"host", host.encode())]
    return {**scope, "path": _canonical(path), "headers": headers}


def _canonical(path: str) -> str:
    """An address by the name that it has here."""
    path = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/v1/") else path
    path = path.removeprefix("/v1") if path.startswith(ROOTED) else path
    return ALIASES.get(path, f"/v1{path}" if path.startswith(KEPT) else path)


def _check_form(method: str, headers: Headers) -> None:
    """ApiError 415 for a body that is no plain JSON in UTF-8. One without a type is taken for JSON."""
    kind, _, more = headers.get("content-type", JSON).partition(";")
    if method == "POST" and kind.strip().lower() != JSON:
        raise ApiError(415, f"Content-Type is {kind.strip()[:80]!r}; send {JSON}")
    charset = more.lower().partition("charset=")[2].partition(";")[0].strip().strip('"')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise ApiError(415, f"the body's charset is {charset[:80]!r}; send UTF-8, which JSON is written in")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(415, f"Content-Encoding is {coding[:80]!r}; send the body as it is, without any")


def _too_large(size: int, most: int) -> ApiError:
    return ApiError(
        413,
        f"the body has {size} bytes or more, and {most} is the limit; send less, or raise --max-body",
        code="too_large",
    )
