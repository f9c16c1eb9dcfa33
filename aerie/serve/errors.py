"""What is wrong with a request, in the shape of OpenAI's API: a status, a message, its kind, field and code.

The statuses are those of OpenAI's page on error codes (platform.openai.com/docs/guides/error-codes) where
it has them: 400 a wrong value, 401 no key or a wrong one, 404 no such model or address, 413 too large, 429
too many, 500 an error of ours, 503 not ready.
"""

from __future__ import annotations

import logging
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from aerie.common.errors import UserError
from aerie.engine.chat_template import TemplateArgumentError
from aerie.engine.errors import AnswerError, PromptTooLongError
from aerie.engine.pages import PoolFullError
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
"""By status; all others are invalid_request_error."""

NAMED = re.compile(r"([a-z]+(?:-[a-z]+)*) (?:is|of|names|holds) ")
"""How the engine's messages begin that are about a setting, such as "top-k is -1; it must be 0 or more"."""


class ApiError(HTTPException):
    """param: the field that is wrong. retry_after: in seconds, what a client is told to wait."""

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
        """As OpenAI's API has it."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def anthropic(self) -> dict[str, Any]:
        """As Anthropic's API has it."""
        kind = {429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 413: "request_too_large"}
        return {
            "type": "error",
            "error": {"type": kind.get(self.status_code, self.kind), "message": self.message},
        }


def answer_of(error: ApiError, path: str) -> JSONResponse:
    """The response that tells of it, in the shape of the API that was asked."""
    body = error.anthropic if path.startswith("/v1/messages") else error.body
    return JSONResponse(body, error.status_code, error.headers)


INTERNAL: Final = "the server failed in this request, and goes on; its log says why"


def internal() -> ApiError:
    """What is said of a defect of ours: its own words may name files."""
    return ApiError(500, INTERNAL, code="internal_error")


def of_engine(error: BaseException, place: Callable[[str], str] = str) -> ApiError:
    """What an error of the engine is to a client, who knows a field that the engine names by its `place`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ToolsError):
        at = place(error.place)
        return ApiError(400, str(error).replace(error.place, at), at, "invalid_value")
    if isinstance(error, TemplateArgumentError):
        return ApiError(
            400, f"chat_template_kwargs: {error}", f"chat_template_kwargs.{error.name}", "invalid_value"
        )
    if isinstance(error, PromptTooLongError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, PoolFullError):
        return ApiError(503, str(error), code="no_room", retry_after=1)
    if isinstance(error, UserError) and not isinstance(error, AnswerError):
        named = NAMED.match(str(error))
        return ApiError(400, str(error), named and named[1].replace("-", "_"), "invalid_value")
    return internal()


def blamed(error: UserError) -> ApiError:
    """What is said of an answer that ended alone; a defect is in the log."""
    if isinstance(error, AnswerError):
        LOG.error("an answer failed, alone", exc_info=error)
    return of_engine(error)


def of_http(error: HTTPException, path: str) -> ApiError:
    """What the framework refuses by itself: an address, a method, a body that cannot be read."""
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


def of_validation(errors: Sequence[Any]) -> ApiError:
    """The first thing that is wrong with the fields, by pydantic's list of them."""
    first = _most_telling(errors)
    place = [part for part in first["loc"] if part not in ("body", "query")]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        return ApiError(400, f"the body is no JSON ({reason}); send one object", code="invalid_json")
    param = param_of(place)
    if first["type"] == "extra_forbidden":
        return ApiError(
            400, f"{param} is not a field that is taken here; leave it out", param, "unknown_parameter"
        )
    if first["type"] == "missing":
        what = param or "a body, one object of JSON with Content-Type application/json,"
        return ApiError(400, f"{what} is missing; give it", param, "missing_required_parameter")
    told = first["msg"].removeprefix("Value error, ")
    given = reprlib.repr(first.get("input"))
    return ApiError(400, f"{param or 'the body'} is {given}: {told}", param, "invalid_value")


def _most_telling(errors: Sequence[Any]) -> Any:
    """Of a field that may be of several types, the error that is more than that it is not of one of them."""
    field = [each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]]
    return next((each for each in field if not each["type"].endswith("_type")), errors[0])


def param_of(place: Sequence[str | int]) -> str | None:
    """messages[0].content, of a place in the body. Names of pydantic's own for alternatives are left out."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            name += f".{part}" if name else part
    return name or None
