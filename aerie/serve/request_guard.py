"""The guard before every request: authentication, size limits, and a log line."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Collection
from typing import Protocol

from starlette.datastructures import Headers
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aerie.serve.errors import ApiError, error_response, internal_error, is_ollama
from aerie.serve.metrics import Metrics, RequestLog
from aerie.serve.origins import PAGE_PATHS, check_origin
from aerie.serve.pages import STATIC_PREFIX
from aerie.serve.request_body import check_values, replay_body
from aerie.serve.request_outputs import CLIENT_CLOSED_REQUEST
from aerie.serve.service import ServerLimits

JSON = "application/json"
UNSET_TYPES = ("application/x-www-form-urlencoded", "application/octet-stream")
"""The types of a body whose sender named none: curl's default, and that of aiohttp, which LiteLLM has."""
LOG = logging.getLogger("aerie.serve")
PUBLIC_PATHS = (*PAGE_PATHS, "/openapi.json", "/health")
"""Paths that need no API key: pages without data, and the health check."""
UNLOGGED_PATHS = ("/health", "/metrics")
"""Paths that monitoring polls. They are logged at debug level only, as are the files of the chat page."""
ALIASES = {
    "/models": "/v1/models",
    "/v1/health": "/health",
    "/completions": "/completion",
    **{f"/{name}": f"/v1/{name}" for name in ("chat/completions", "chat/completions/input_tokens")},
    **{f"/{name}": f"/v1/{name}" for name in ("responses", "embeddings", "rerank")},
    **dict.fromkeys(("/reranking", "/v1/reranking", "/v2/rerank"), "/v1/rerank"),
}
"""llama.cpp's names of addresses, and Cohere's of one."""
LEMONADE_PREFIX = "/api"
"""Lemonade's prefix before /v1."""
PATHS_ALSO_UNDER_V1 = ("/v1/slots", "/v1/tokenize", "/v1/detokenize")
"""llama.cpp has these without /v1, Lemonade with it."""
PATHS_ALSO_WITHOUT_V1 = ("/responses/", "/conversations")
"""OpenAI's client requests these without /v1 if its base URL has none."""


class GuardedApp(Protocol):
    """What a guard protects: a ModelManager or a ReplicaProxy."""

    @property
    def limits(self) -> ServerLimits: ...

    @property
    def metrics(self) -> Metrics: ...


class Guard:
    """ASGI middleware around the app. paths: the routes, for the labels of the metrics."""

    def __init__(self, app: ASGIApp, service: GuardedApp, paths: Collection[str]) -> None:
        self._app, self._service, self._paths = app, service, frozenset(paths)
        self._patterns = {path.replace(":path}", "}"): compile_path(path)[0] for path in paths if "{" in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _normalized(scope)
        client = (scope.get("client") or ("-",))[0]
        request_log = RequestLog(scope["method"], scope["path"], client)
        scope.setdefault("state", {})["request_log"] = request_log

        is_complete = False

        async def send_and_record(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                request_log.status = message["status"]
            is_complete = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        try:
            await self._answer(scope, receive, send_and_record)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send_and_record)
        except Exception:  # a defect of the server; the app may have answered it already
            if request_log.status and not is_complete:
                raise  # this closes the connection: the response is incomplete
            LOG.exception("a request failed")
            if not is_complete:
                await error_response(internal_error(), scope["path"])(scope, receive, send_and_record)
        finally:
            request_log.status = request_log.status or CLIENT_CLOSED_REQUEST
            self._service.metrics.count(request_log, self._metrics_path(request_log.path))
            LOG.log(_log_level(request_log.path), "%s", request_log)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check(scope["path"], scope["method"], headers)
        body = await self._body(receive, headers)
        await check_values(body)
        await self._app(_typed(scope, headers), replay_body(body, receive), send)

    def _metrics_path(self, path: str) -> str:
        """The route of a path, or `other`."""
        if path in self._paths:
            return path
        return next((each for each, pattern in self._patterns.items() if pattern.match(path)), "other")

    def _check(self, path: str, method: str, headers: Headers) -> None:
        """Raise ApiError if the request is not allowed."""
        limit = self._service.limits.header_bytes
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > limit:
            raise ApiError(431, f"the headers have {size} bytes, and {limit} is the limit; send fewer")
        check_origin(self._service.limits, method, path, headers)
        is_public = path in PUBLIC_PATHS or path.startswith(STATIC_PREFIX)
        if self._service.limits.api_key is not None and not is_public:
            self._check_key(headers)
        _check_content_type(method, path, headers)

    def _check_key(self, headers: Headers) -> None:
        """Raise ApiError 401 if the key is wrong. Every wrong key takes the same time."""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        key = credentials.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(key.encode(), (self._service.limits.api_key or "").encode()):
            reason = "the API key is wrong" if key else "there is no API key"
            raise ApiError(
                401, f"{reason}; send the server's as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )

    async def _body(self, receive: Receive, headers: Headers) -> bytes:
        """Read the whole body. Raises ApiError if it is too large, too slow, or the client disconnects."""
        limit, parts, size = self._service.limits.body_bytes, list[bytes](), 0
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(int(length), limit)
        try:
            async with asyncio.timeout(self._service.limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(CLIENT_CLOSED_REQUEST, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _too_large(size, limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            limit_s = self._service.limits.body_s
            raise ApiError(408, f"the body was not there after {limit_s:g} s; send it again") from None


def _log_level(path: str) -> int:
    is_unlogged = path in UNLOGGED_PATHS or path.startswith(STATIC_PREFIX)
    return logging.DEBUG if is_unlogged else logging.INFO


def _normalized(scope: Scope) -> Scope:
    """The scope with this server's own path. A target may be a whole URL, as clients send it to proxies; its
    host then replaces the header (RFC 9112, 3.2.2)."""
    path, headers = scope["path"], scope["headers"]
    if path.lower().startswith(("http://", "https://")):
        host, _, rest = path.partition("://")[2].partition("/")
        path = f"/{rest}"
        headers = [*((name, value) for name, value in headers if name != b"host"), (b"host", host.encode())]
    return {**scope, "path": _canonical(path), "headers": headers}


def _canonical(path: str) -> str:
    """The name of an address on this server."""
    path = path.removeprefix(LEMONADE_PREFIX) if path.startswith(f"{LEMONADE_PREFIX}/v1/") else path
    path = path.removeprefix("/v1") if path.startswith(PATHS_ALSO_UNDER_V1) else path
    return ALIASES.get(path, f"/v1{path}" if path.startswith(PATHS_ALSO_WITHOUT_V1) else path)


def _check_content_type(method: str, path: str, headers: Headers) -> None:
    """Raise ApiError 415 unless the body is plain JSON in UTF-8. No type means JSON, and so does a client's
    default (_has_unset_type)."""
    kind, _, more = headers.get("content-type", JSON).partition(";")
    is_json = kind.strip().lower() == JSON or _has_unset_type(path, headers)
    if method == "POST" and not is_json:
        raise ApiError(415, f"Content-Type is {kind.strip()[:80]!r}; send {JSON}")
    charset = more.lower().partition("charset=")[2].partition(";")[0].strip().strip('"')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise ApiError(415, f"the body's charset is {charset[:80]!r}; send UTF-8, which JSON is written in")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(415, f"Content-Encoding is {coding[:80]!r}; send the body as it is, without any")


def _has_unset_type(path: str, headers: Headers) -> bool:
    """Whether the type is a client's default at an address of Ollama's API, which looks at no type: that of
    `curl -d`, as its documentation has it, or of bytes. The form of a page has a header that a browser
    adds."""
    from_browser = any(name in headers for name in ("origin", "referer", "sec-fetch-site"))
    return is_ollama(path) and headers.get("content-type", "").lower() in UNSET_TYPES and not from_browser


def _typed(scope: Scope, headers: Headers) -> Scope:
    """The scope whose header says that the body is JSON, as _check_content_type found."""
    if not _has_unset_type(scope["path"], headers):
        return scope
    others = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", JSON.encode())]}


def _too_large(size: int, limit: int) -> ApiError:
    return ApiError(
        413,
        f"the body has {size} bytes or more, and {limit} is the limit; send less, or raise --max-body",
        code="too_large",
    )
