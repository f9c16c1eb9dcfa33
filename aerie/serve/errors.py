"""Errors of requests in OpenAI's format: a status, a message, its type, field and code.

The statuses follow OpenAI's page on error codes (platform.openai.com/docs/guides/error-codes): 400 a wrong
value, 401 no key or a wrong one, 404 no such model or address, 413 too large, 429 too many, 500 a defect of
the server, 503 not ready.
"""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from aerie.common.errors import UserError
from aerie.engine.chat_template import TemplateArgumentError
from aerie.engine.errors import PromptTooLongError, RequestError
from aerie.engine.page_manager import PoolFullError
from aerie.engine.tool_calls import ToolsError

LOG = logging.getLogger("aerie.serve")
KINDS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""Error types by status; all others are invalid_request_error."""

SETTING_IN_MESSAGE = re.compile(r"([a-z]+(?:-[a-z]+)*) (?:is|of|names|holds) ")
"""The setting at the start of an engine message, as in "top-k is -1; it must be 0 or more"."""


class ApiError(HTTPException):
    """An error response. param: the wrong field. retry_after: seconds until the client should try again."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        headers = None if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, message, headers)
        self.message, self.param, self.code = message, param, code

    @property
    def kind(self) -> str:
        return KINDS.get(self.status_code, "invalid_request_error")

    @property
    def body(self) -> dict[str, Any]:
        """The body in OpenAI's format."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The body in Anthropic's format."""
        kind = {429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 413: "request_too_large"}
        return {
            "type": "error",
            "error": {"type": kind.get(self.status_code, self.kind), "message": self.message},
        }

    @property
    def ollama_body(self) -> dict[str, Any]:
        """The body in Ollama's format."""
        return {"error": self.message}


def is_ollama(path: str) -> bool:
    """Whether the address is one of Ollama's API."""
    return path.startswith("/api/")


def error_response(error: ApiError, path: str) -> JSONResponse:
    """The response for an error, in the format of the API at `path`."""
    if is_ollama(path):
        return JSONResponse(error.ollama_body, error.status_code, error.headers)
    body = error.anthropic_body if path.startswith("/v1/messages") else error.body
    return JSONResponse(body, error.status_code, error.headers)


INTERNAL_MESSAGE: Final = "the server failed in this request and continues to run; its log has the reason"


def internal_error() -> ApiError:
    """The error for a defect of the server. The text of the exception could name files, so it is left out."""
    return ApiError(500, INTERNAL_MESSAGE, code="internal_error")


def from_engine_error(error: BaseException, to_field_path: Callable[[str], str] = str) -> ApiError:
    """Convert an error of the engine. to_field_path: gives the path of a field that the engine names."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ToolsError):
        path = to_field_path(error.place)
        return ApiError(400, str(error).replace(error.place, path), path, "invalid_value")
    if isinstance(error, TemplateArgumentError):
        return ApiError(
            400, f"chat_template_kwargs: {error}", f"chat_template_kwargs.{error.name}", "invalid_value"
        )
    if isinstance(error, PromptTooLongError):
        # LangChain, LiteLLM and Claude Code shorten a conversation where they find these words.
        return ApiError(400, f"the prompt is too long: {error}", code="context_length_exceeded")
    if isinstance(error, PoolFullError):
        return ApiError(503, str(error), code="no_room", retry_after=1)
    if isinstance(error, UserError) and not isinstance(error, RequestError):
        setting = SETTING_IN_MESSAGE.match(str(error))
        return ApiError(400, str(error), setting and setting[1].replace("-", "_"), "invalid_value")
    return internal_error()


@contextmanager
def errors_of(param: str) -> Iterator[None]:
    """Within this, an error of the engine becomes one of a field."""
    try:
        yield
    except UserError as error:
        raise ApiError(400, str(error), param, "invalid_value") from error


def from_request_error(error: UserError) -> ApiError:
    """Convert the error of one failed output, and log it if it is a defect."""
    if isinstance(error, RequestError):
        LOG.error("an answer failed, alone", exc_info=error)
    return from_engine_error(error)


def from_http_error(error: HTTPException, path: str) -> ApiError:
    """Convert an error of the framework: an unknown address, a wrong method, an unreadable body."""
    if isinstance(error, ApiError):
        return error
    if error.status_code == 404:
        return ApiError(
            404, f"there is no {path[:80]!r}; docs/how-to/serve.md lists what there is", code="no_such_url"
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return ApiError(405, f"this method is not allowed at {path[:80]!r}; take {allowed}")
    return ApiError(error.status_code, str(error.detail))


def from_validation_errors(errors: Sequence[Any]) -> ApiError:
    """Convert pydantic's list of errors: the first wrong field."""
    first = _most_specific(errors)
    in_request = first["loc"][:1] in (("body",), ("query",))
    location = first["loc"][1:] if in_request else first["loc"]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        return ApiError(400, f"the body is no JSON ({reason}); send one object", code="invalid_json")
    param = field_path(location)
    if first["type"] == "extra_forbidden":
        return ApiError(
            400, f"{param} is not a field that is taken here; leave it out", param, "unknown_parameter"
        )
    if first["type"] == "missing":
        subject = param or "a body, one object of JSON with Content-Type application/json,"
        return ApiError(400, f"{subject} is missing; give it", param, "missing_required_parameter")
    reason = first["msg"].removeprefix("Value error, ")
    value = reprlib.repr(first.get("input"))
    return ApiError(400, f"{param or 'the body'} is {value}: {reason}", param, "invalid_value")


def _most_specific(errors: Sequence[Any]) -> Any:
    """Choose one error of a field with several allowed types: rather not "not of this type"."""
    same_field = [error for error in errors if error["loc"][:2] == errors[0]["loc"][:2]]
    return next((error for error in same_field if not error["type"].endswith("_type")), errors[0])


def field_path(location: Sequence[str | int]) -> str | None:
    """The path of a field as messages[0].content, from pydantic's location. Names of union alternatives
    (types, and classes, which begin with a capital letter) are left out."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part[0].islower() and part not in ("str", "int", "float", "bool"):
            name += f".{part}" if name else part
    return name or None
