"""POST /v1/responses: OpenAI's newer API, in which a response is a list of items: a message, and calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from openai.types.responses import Response, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import Field, field_validator, model_validator

from aerie.engine.call_reader import CallPiece
from aerie.engine.tool_calls import Tools, chosen
from aerie.serve.chat_fields import Chat, nth_told, with_effort
from aerie.serve.common_fields import ANY_OBJECT, Fields, Form, JsonSchema, Settings, Text, Unbuilt, hold_of
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import event
from aerie.serve.openai_format import new_id
from aerie.serve.output_processor import LENGTH, Ending, Piece
from aerie.serve.request_outputs import Whole
from aerie.serve.response_items import (
    AllowedFunctions,
    AnyItem,
    CustomTool,
    EachItem,
    Item,
    NamedFunction,
    OwnTool,
    ResponsesTool,
    answer_part,
    echoed,
    input_of,
    messages_of,
)


class TextFormat(JsonSchema):
    """As in chats, with the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("the type json_schema wants a schema; give it")
        return self


class TextOptions(Fields):
    """verbosity: told to no model."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Fields):
    """How much to think, which is told to the chat template. Nothing is summarised."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class EventOptions(Fields):
    include_obfuscation: bool | None = None


class Conversed(Fields):
    """A conversation by its id, as an object."""

    id: str


class ResponsesRequest(Fields):
    """See the module. Where it goes on from what is kept (response_store.py), `after` puts that before its items."""

    model: str | None = None
    input: Text | Annotated[list[AnyItem], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    stream_options: EventOptions | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    truncation: Any = None
    text: TextOptions | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    background: Any = None
    top_logprobs: Any = None
    previous_response_id: str | None = None
    conversation: str | Conversed | None = None
    unbuilt: ClassVar[Unbuilt] = {
        "truncation": (["disabled"], "nothing is cut from a prompt"),
        "top_logprobs": ([0], "/v1/chat/completions has it"),
        "background": ([False], "responses are made while their client waits"),
    }

    @field_validator("include")
    @classmethod
    def _has_no_logprobs(cls, given: list[str] | None) -> list[str] | None:
        """All else that can be included is of calls and thoughts, of which there are none."""
        if given and "message.output_text.logprobs" in given:
            raise ValueError("logprobs are not told here; take /v1/chat/completions, or leave it out")
        return given

    @model_validator(mode="after")
    def _goes_on_from_one(self) -> Self:
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError(
                "previous_response_id and conversation both say what came before; give one of them"
            )
        return self

    @property
    def conversation_id(self) -> str | None:
        """The conversation that it goes on with, if any."""
        return self.conversation.id if isinstance(self.conversation, Conversed) else self.conversation

    @property
    def items(self) -> Sequence[EachItem]:
        """Its own."""
        return [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    def after(self, before: Sequence[EachItem]) -> Self:
        """The same with these items first."""
        return self.model_copy(update={"input": [*before, *self.items]})

    @property
    def chat(self) -> Chat:
        """Raises ToolsError."""
        begins = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return Chat([*begins, *messages_of(self.items)], self._tools, self._template_arguments)

    @property
    def _template_arguments(self) -> Mapping[str, Any] | None:
        return with_effort(self.chat_template_kwargs, self.reasoning.effort if self.reasoning else None)

    @property
    def own_tools(self) -> list[OwnTool]:
        """Those that a model is told of."""
        return [tool for tool in self.tools or () if isinstance(tool, OwnTool)]

    @property
    def _tools(self) -> Tools | None:
        each = tuple(tool.tool for tool in self.own_tools)
        choice, is_parallel = self.tool_choice, self.parallel_tool_calls is not False
        if isinstance(choice, NamedFunction):
            return chosen(each, "required", [choice.name], parallel=False)
        if isinstance(choice, AllowedFunctions):
            return chosen(each, choice.mode, [tool.name for tool in choice.tools], is_parallel)
        return chosen(each, choice or "auto", None, is_parallel)

    def place(self, name: str) -> str:
        """Where a field is here that the engine knows by this name: messages are made of items."""
        names = {"messages": "input", "response_format": "text.format"}
        at = nth_told(name, self.tools or (), OwnTool)
        return next((to for of, to in names.items() if name.startswith(of)), at)

    @property
    def form(self) -> Form | None:
        """That of the answer."""
        asked = self.text.format if self.text else None
        if asked is None or asked.type == "text":
            return None
        given = ANY_OBJECT if asked.schema_ is None else asked.schema_
        return Form("text.format", given, hold=hold_of(asked.strict))

    @property
    def settings(self) -> Settings:
        return Settings(temperature=self.temperature, top_p=self.top_p)


class ResponsesForm:
    """Its items are a message, where there is text, or nothing else, and calls. Events count from 0, each
    with its type as its name. keep: told of the response once it is complete."""

    def __init__(self, model: str, asked: ResponsesRequest, keep: Callable[[Response], None]) -> None:
        self._keep = keep
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
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "tool_choice": echoed(asked.tool_choice) or "auto",
            "tools": [tool.told for tool in asked.own_tools],
            "error": None,
            "previous_response_id": asked.previous_response_id,
            **({"conversation": {"id": asked.conversation_id}} if asked.conversation_id else {}),
            "store": asked.store is not False,
        }
        self._number, self._items = -1, list[dict[str, Any]]()
        self._custom = {tool.name for tool in asked.own_tools if isinstance(tool, CustomTool)}
        self._arguments = ""
        """Of the last call of a custom tool."""

    def whole(self, made: Sequence[Whole]) -> Response:
        (one,) = made
        assert one.ending is not None
        if one.text or not one.calls:
            self._items.append(_message(one.text))
        self._items += [
            _custom_call(call.name, input_of(call.arguments))
            if call.name in self._custom
            else _call(call.name, call.arguments)
            for call in one.calls
        ]
        return self._response(one.ending)

    def _response(self, ending: Ending) -> Response:
        state: Literal["completed", "incomplete"] = "incomplete" if ending.reason == LENGTH else "completed"
        details = IncompleteDetails(reason="max_output_tokens") if ending.reason == LENGTH else None
        usage = ResponseUsage(
            input_tokens=ending.prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=ending.cached, cache_write_tokens=0),
            output_tokens=ending.made,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=ending.prompt + ending.made,
        )
        self._items[-1]["status"] = state
        told: dict[str, Any] = {**self._of, "output": list(self._items), "usage": usage}
        made = Response(**told, status=state, incomplete_details=details)
        self._keep(made)
        return made

    def events(self, piece: Piece) -> Iterator[bytes]:
        if self._number < 0:
            begun = Response(**self._of, status="in_progress", incomplete_details=None, output=[], usage=None)
            told = begun.model_dump(mode="json", exclude_unset=True, by_alias=True)
            yield self._event("created", response=told)
            yield self._event("in_progress", response=told)
        if piece.text or (piece.ending and not self._items and not piece.calls):
            yield from self._said(piece.text)
        for call in piece.calls:
            yield from self._called(call)
        if piece.ending:
            yield from self._closed("incomplete" if piece.ending.reason == LENGTH else "completed")
            made = self._response(piece.ending).model_dump(mode="json", exclude_unset=True, by_alias=True)
            yield self._event(made["status"], response=made)

    def _said(self, text: str) -> Iterator[bytes]:
        if not self._items:
            yield from self._opened(_message(None))
            self._items[-1]["content"] = [answer_part("")]
            yield self._event("content_part.added", **self._place, content_index=0, part=answer_part(""))
        if text:
            self._items[-1]["content"][0]["text"] += text
            yield self._event("output_text.delta", **self._place, content_index=0, delta=text, logprobs=[])

    def _called(self, piece: CallPiece) -> Iterator[bytes]:
        if piece.name is not None:
            yield from self._closed("completed")
            self._arguments = ""
            begun = _custom_call if piece.name in self._custom else _call
            yield from self._opened(begun(piece.name, ""))
        if piece.arguments and "input" in self._items[-1]:
            yield from self._put_in(piece.arguments)
        elif piece.arguments:
            self._items[-1]["arguments"] += piece.arguments
            yield self._event("function_call_arguments.delta", **self._place, delta=piece.arguments)

    def _put_in(self, arguments: str) -> Iterator[bytes]:
        """More of the input of a custom tool."""
        self._arguments += arguments
        item, given = self._items[-1], input_of(self._arguments)
        delta, item["input"] = given[len(item["input"]) :], given
        if delta:
            yield self._event("custom_tool_call_input.delta", **self._place, delta=delta)

    @property
    def _place(self) -> dict[str, Any]:
        """Where the last item is."""
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _opened(self, item: dict[str, Any]) -> Iterator[bytes]:
        item["status"] = "in_progress"
        self._items.append(item)
        yield self._event("output_item.added", output_index=len(self._items) - 1, item=item)

    def _closed(self, state: str) -> Iterator[bytes]:
        """The last item, where there is one."""
        if not self._items:
            return
        item = self._items[-1]
        item["status"] = state
        if item["type"] == "message":
            (part,) = item["content"]
            at = {**self._place, "content_index": 0}
            yield self._event("output_text.done", **at, text=part["text"], logprobs=[])
            yield self._event("content_part.done", **at, part=part)
        elif "input" in item:
            yield self._event("custom_tool_call_input.done", **self._place, input=item["input"])
        else:
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("function_call_arguments.done", **self._place, **told)
        yield self._event("output_item.done", output_index=len(self._items) - 1, item=item)

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


def _message(text: str | None) -> dict[str, Any]:
    content = [] if text is None else [answer_part(text)]
    of = {"id": new_id("msg_"), "type": "message", "role": "assistant"}
    return {**of, "status": "completed", "content": content}


def _call(name: str, arguments: str) -> dict[str, Any]:
    of = {"id": new_id("fc_"), "type": "function_call", "status": "completed", "call_id": new_id("call_")}
    return {**of, "name": name, "arguments": arguments}


def _custom_call(name: str, given: str) -> dict[str, Any]:
    of = {"id": new_id("ctc_"), "type": "custom_tool_call", "status": "completed"}
    return {**of, "call_id": new_id("call_"), "name": name, "input": given}
