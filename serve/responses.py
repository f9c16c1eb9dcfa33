"""POST /v1/responses: OpenAI's newer API, in which a response is a list of items; here of one message."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import Field, model_validator

from aerie.serve.answer import LENGTH, Ending, Piece
from aerie.serve.asking import Whole
from aerie.serve.errors import ApiError
from aerie.serve.events import event
from aerie.serve.fields import ANY_OBJECT, NO_TOOLS, Fields, Form, JsonSchema, Settings, Text, Unbuilt
from aerie.serve.forms import new_id


class Part(Fields):
    """Of a message; what stands beside the text in a former response's is passed over."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Any = None
    logprobs: Any = None


class Item(Fields):
    """A message; one that came out of a former response may go in again as it is."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]
    id: str | None = None
    status: str | None = None

    @property
    def as_message(self) -> dict[str, str]:
        role = "system" if self.role == "developer" else self.role
        parts = self.content
        return {
            "role": role,
            "content": parts if isinstance(parts, str) else "".join(part.text for part in parts),
        }


class TextFormat(JsonSchema):
    """As in chats, with the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("the type json_schema wants a schema; give it")
        return self


class TextOptions(Fields):
    format: TextFormat | None = None


class EventOptions(Fields):
    include_obfuscation: bool | None = None


class ResponsesRequest(Fields):
    """See the module. Nothing is stored: a conversation is the items that come with each request."""

    model: str | None = None
    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    stream_options: EventOptions | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    truncation: Any = None
    text: TextOptions | None = None
    tools: Any = None
    tool_choice: Any = None
    reasoning: Any = None
    include: Any = None
    background: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        "truncation": (["disabled"], "nothing is cut from a prompt"),
        "tools": ([[]], NO_TOOLS),
        "tool_choice": (["none", "auto"], NO_TOOLS),
        "reasoning": ([{}, {"effort": "none"}], "no model here is told how much to reason"),
        "include": ([[]], "there is nothing to include"),
        "background": ([False], "responses are made while their client waits"),
        "previous_response_id": ((), "responses are not kept; send the whole conversation as input"),
        "conversation": ((), "conversations are not kept; send the whole one as input"),
    }

    @property
    def messages(self) -> list[dict[str, str]]:
        said = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else []
        items = [] if isinstance(self.input, str) else [item.as_message for item in self.input]
        begins = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return [*begins, *said, *items]

    @property
    def form(self) -> Form | None:
        """That of the answer."""
        asked = self.text.format if self.text else None
        if asked is None or asked.type == "text":
            return None
        return Form("text.format", ANY_OBJECT if asked.schema_ is None else asked.schema_)

    @property
    def settings(self) -> Settings:
        return Settings(temperature=self.temperature, top_p=self.top_p)


class ResponsesForm:
    """Its one message has one part, a text. Events count from 0, each with its type as its name."""

    def __init__(self, model: str, asked: ResponsesRequest) -> None:
        self._of: dict[str, Any] = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": time.time(),
            "model": model,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            **({"text": asked.text.model_dump(by_alias=True, exclude_none=True)} if asked.text else {}),
            "parallel_tool_calls": bool(asked.parallel_tool_calls),
            "tool_choice": "auto",
            "tools": [],
            "error": None,
        }
        self._item, self._text, self._number = new_id("msg_"), "", -1

    def whole(self, made: Sequence[Whole]) -> Response:
        (one,) = made
        assert one.ending is not None
        return self._response(one.text, one.ending)

    def _response(self, text: str, ending: Ending) -> Response:
        state: Literal["completed", "incomplete"] = "incomplete" if ending.reason == LENGTH else "completed"
        details = IncompleteDetails(reason="max_output_tokens") if ending.reason == LENGTH else None
        message = self._message(text, state)
        usage = ResponseUsage(
            input_tokens=ending.prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=ending.cached, cache_write_tokens=0),
            output_tokens=ending.made,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=ending.prompt + ending.made,
        )
        return Response(**self._of, status=state, incomplete_details=details, output=[message], usage=usage)

    def _message(
        self, text: str, state: Literal["in_progress", "completed", "incomplete"]
    ) -> ResponseOutputMessage:
        parts = [] if state == "in_progress" else [ResponseOutputText(**_part(text))]
        return ResponseOutputMessage(
            id=self._item, type="message", role="assistant", status=state, content=list(parts)
        )

    def events(self, piece: Piece) -> Iterator[bytes]:
        if self._number < 0:
            yield from self._begin()
        self._text += piece.text
        if piece.text:
            yield self._event("output_text.delta", **self._place, delta=piece.text, logprobs=[])
        if piece.ending:
            yield from self._end(piece.ending)

    @property
    def _place(self) -> dict[str, Any]:
        """Where the text is."""
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _begin(self) -> Iterator[bytes]:
        begun = Response(**self._of, status="in_progress", incomplete_details=None, output=[], usage=None)
        told = begun.model_dump(mode="json", exclude_unset=True)
        yield self._event("created", response=told)
        yield self._event("in_progress", response=told)
        item = self._message("", "in_progress").model_dump(mode="json", exclude_unset=True)
        yield self._event("output_item.added", output_index=0, item=item)
        yield self._event("content_part.added", **self._place, part=_part(""))

    def _end(self, ending: Ending) -> Iterator[bytes]:
        made = self._response(self._text, ending).model_dump(mode="json", exclude_unset=True)
        yield self._event("output_text.done", **self._place, text=self._text, logprobs=[])
        yield self._event("content_part.done", **self._place, part=_part(self._text))
        yield self._event("output_item.done", output_index=0, item=made["output"][0])
        yield self._event(made["status"], response=made)

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def failed(self, error: ApiError) -> bytes:
        self._number += 1
        told = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", "sequence_number": self._number, **told}, "error")

    def _event(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._number, **more}, name)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
