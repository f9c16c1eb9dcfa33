"""POST /v1/responses: OpenAI's newer API. A response is a list of items: a message, and tool calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from openai.types.responses import Response, ResponseUsage
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import Field, field_validator, model_validator

from aerie.engine.call_reader import ToolCallDelta
from aerie.engine.tool_calls import Tools, with_choice
from aerie.serve.chat_fields import ChatInput, add_reasoning_effort
from aerie.serve.common_fields import RequestFields, Text, UnsupportedFields
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import event
from aerie.serve.openai_format import new_id
from aerie.serve.output_processor import LENGTH, FinishInfo, OutputDelta
from aerie.serve.request_outputs import CompletedOutput
from aerie.serve.response_items import (
    AllowedFunctions,
    AnyItem,
    CustomTool,
    MessageItem,
    NamedFunction,
    NamedTool,
    ResponsesTool,
    SupportedTool,
    TaggedItem,
    custom_tool_input,
    echo_settings,
    name_tools,
    output_text_part,
    to_messages,
)
from aerie.serve.sampling_fields import SamplingFields
from aerie.serve.structured_output_fields import ANY_OBJECT, JsonSchema, StructuredOutput, enforcement_of


class TextFormat(JsonSchema):
    """The format of chat completions, with the schema next to the type."""

    type: Literal["text", "json_object", "json_schema"]

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("the type json_schema wants a schema; give it")
        return self


class TextOptions(RequestFields):
    """verbosity: accepted and ignored."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    ignored: ClassVar[frozenset[str]] = frozenset(("verbosity",))


class Reasoning(RequestFields):
    """effort: passed to the chat template; "none" turns thinking off. No summary is made: reasoning items
    have the whole text."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    ignored: ClassVar[frozenset[str]] = frozenset(("summary", "generate_summary", "context"))


class EventOptions(RequestFields):
    include_obfuscation: bool | None = None


class ConversationRef(RequestFields):
    """A conversation by its id, as an object."""

    id: str


class ResponsesRequest(RequestFields):
    """A request for a response. `with_history` puts a stored history (response_store.py) before its items."""

    model: str | None = None
    input: Text | Annotated[list[TaggedItem], Field(min_length=1)]
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
    prompt_cache_options: Any = None
    context_management: Any = None
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
    conversation: str | ConversationRef | None = None
    ignored: ClassVar[frozenset[str]] = frozenset(
        (
            *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "client_metadata"),
            *("prompt_cache_options", "service_tier", "include", "stream_options", "context_management"),
        )
    )
    unsupported: ClassVar[UnsupportedFields] = {
        "truncation": (["disabled"], "nothing is cut from a prompt"),
        "top_logprobs": ([0], "/v1/chat/completions has it"),
        "background": ([False], "responses are made while their client waits"),
    }

    @field_validator("include")
    @classmethod
    def _has_no_logprobs(cls, include: list[str] | None) -> list[str] | None:
        """Everything else that can be included belongs to calls that other servers run, and to reasoning,
        whose text is always there."""
        if include and "message.output_text.logprobs" in include:
            raise ValueError("this API has no logprobs; use /v1/chat/completions, or leave it out")
        return include

    @model_validator(mode="after")
    def _check_one_history(self) -> Self:
        if self.previous_response_id is not None and self.conversation is not None:
            raise ValueError("previous_response_id and conversation exclude each other; give one of them")
        return self

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the request continues, if any."""
        return self.conversation.id if isinstance(self.conversation, ConversationRef) else self.conversation

    @property
    def items(self) -> Sequence[AnyItem]:
        """The items of this request alone."""
        return [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input

    def with_history(self, before: Sequence[AnyItem]) -> Self:
        """The request with these items first."""
        return self.model_copy(update={"input": [*before, *self.items]})

    @property
    def chat(self) -> ChatInput:
        """The conversation. Raises ToolsError."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return ChatInput([*system, *to_messages(self.items)], self._tools, self._template_arguments)

    @property
    def _template_arguments(self) -> Mapping[str, Any] | None:
        return add_reasoning_effort(
            self.chat_template_kwargs, self.reasoning.effort if self.reasoning else None
        )

    @property
    def supported_tools(self) -> list[SupportedTool]:
        """The tools that the model sees."""
        return [tool for tool in self.tools or () if isinstance(tool, SupportedTool)]

    @property
    def named_tools(self) -> list[NamedTool]:
        """The functions and custom tools among the tools, also those of namespaces."""
        return name_tools(self.tools or ())

    @property
    def _tools(self) -> Tools | None:
        tools = tuple(named.to_tool() for named in self.named_tools)
        choice, is_parallel = self.tool_choice, self.parallel_tool_calls is not False
        if isinstance(choice, NamedFunction):
            return with_choice(tools, "required", [choice.model_name], parallel=False)
        if isinstance(choice, AllowedFunctions):
            return with_choice(tools, choice.mode, [tool.model_name for tool in choice.tools], is_parallel)
        return with_choice(tools, choice or "auto", None, is_parallel)

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`: messages are made from items."""
        names = {"messages": "input", "response_format": "text.format"}
        path = re.sub(r"^tools\[(\d+)\]", lambda match: self.named_tools[int(match[1])].path, name)
        return next((field for prefix, field in names.items() if name.startswith(prefix)), path)

    @property
    def structured_output(self) -> StructuredOutput | None:
        """The structured output that the request asks for, if any."""
        text_format = self.text.format if self.text else None
        if text_format is None or text_format.type == "text":
            return None
        schema = ANY_OBJECT if text_format.schema_ is None else text_format.schema_
        return StructuredOutput("text.format", schema, enforcement=enforcement_of(text_format.strict))

    @property
    def sampling_fields(self) -> SamplingFields:
        return SamplingFields(temperature=self.temperature, top_p=self.top_p)


class ResponsesWriter:
    """Writes responses: a reasoning item if the model thought, a message item, unless there are only calls,
    and an item for each call. Events are numbered from 0 and named by their type. keep: called with the
    complete response."""

    def __init__(self, model: str, request: ResponsesRequest, keep: Callable[[Response], None]) -> None:
        self._store = keep
        self._header: dict[str, Any] = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": time.time(),
            "model": model,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            **({"text": request.text.model_dump(by_alias=True, exclude_none=True)} if request.text else {}),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "tool_choice": echo_settings(request.tool_choice) or "auto",
            "tools": [tool.to_json() for tool in request.supported_tools],
            "error": None,
            "previous_response_id": request.previous_response_id,
            **({"conversation": {"id": request.conversation_id}} if request.conversation_id else {}),
            "store": request.store is not False,
        }
        self._number, self._items = -1, list[dict[str, Any]]()
        self._tools = {named.model_name: named for named in request.named_tools}
        self._arguments = ""
        """Arguments so far of the last call of a custom tool."""

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> Response:
        (output,) = outputs
        assert output.finish is not None
        if output.thinking:
            self._items.append(_reasoning(output.thinking))
        if output.text or not output.tool_calls:
            self._items.append(_message(output.text))
        self._items += [
            self._call_item(call.name, call.arguments, custom_tool_input(call.arguments))
            for call in output.tool_calls
        ]
        return self._response(output.finish)

    def _call_item(self, name: str, arguments: str, text: str) -> dict[str, Any]:
        """The item of a call. name: the tool's, as the model calls it. text: the input of a custom tool."""
        named = self._tools[name]
        item = (
            _custom_call(named.tool.name, text)
            if isinstance(named.tool, CustomTool)
            else _call(named.tool.name, arguments)
        )
        return item if named.namespace is None else {**item, "namespace": named.namespace}

    def _response(self, finish: FinishInfo) -> Response:
        state: Literal["completed", "incomplete"] = "incomplete" if finish.reason == LENGTH else "completed"
        details = IncompleteDetails(reason="max_output_tokens") if finish.reason == LENGTH else None
        usage = ResponseUsage(
            input_tokens=finish.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=finish.cached_tokens, cache_write_tokens=0),
            output_tokens=finish.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=finish.thinking_tokens),
            total_tokens=finish.prompt_tokens + finish.completion_tokens,
        )
        self._items[-1]["status"] = state
        fields: dict[str, Any] = {**self._header, "output": list(self._items), "usage": usage}
        response = Response(**fields, status=state, incomplete_details=details)
        self._store(response)
        return response

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        if self._number < 0:
            response = Response(
                **self._header, status="in_progress", incomplete_details=None, output=[], usage=None
            )
            body = response.model_dump(mode="json", exclude_unset=True, by_alias=True)
            yield self._event("created", response=body)
            yield self._event("in_progress", response=body)
        if delta.thinking:
            yield from self._thinking_events(delta.thinking)
        has_answer = any(item["type"] != "reasoning" for item in self._items)
        if delta.text or (delta.finish and not has_answer and not delta.tool_calls):
            yield from self._text_events(delta.text)
        for call in delta.tool_calls:
            yield from self._call_events(call)
        if delta.finish:
            yield from self._close_item("incomplete" if delta.finish.reason == LENGTH else "completed")
            body = self._response(delta.finish).model_dump(mode="json", exclude_unset=True, by_alias=True)
            yield self._event(body["status"], response=body)

    def _thinking_events(self, text: str) -> Iterator[bytes]:
        if not self._items:
            yield from self._open_part(_reasoning(None), _reasoning_part(""))
        self._items[-1]["content"][0]["text"] += text
        yield self._event("reasoning_text.delta", **self._item_position, content_index=0, delta=text)

    def _open_part(self, item: dict[str, Any], part: dict[str, Any]) -> Iterator[bytes]:
        """The events of a new item and its only part, which is empty."""
        yield from self._open_item(item)
        item["content"] = [part]
        yield self._event("content_part.added", **self._item_position, content_index=0, part=dict(part))

    def _text_events(self, text: str) -> Iterator[bytes]:
        if not self._items or self._items[-1]["type"] == "reasoning":
            yield from self._close_item("completed")
            yield from self._open_part(_message(None), output_text_part(""))
        if text:
            self._items[-1]["content"][0]["text"] += text
            yield self._event(
                "output_text.delta", **self._item_position, content_index=0, delta=text, logprobs=[]
            )

    def _call_events(self, delta: ToolCallDelta) -> Iterator[bytes]:
        if delta.name is not None:
            yield from self._close_item("completed")
            self._arguments = ""
            yield from self._open_item(self._call_item(delta.name, "", ""))
        if delta.arguments and "input" in self._items[-1]:
            yield from self._input_events(delta.arguments)
        elif delta.arguments:
            self._items[-1]["arguments"] += delta.arguments
            yield self._event("function_call_arguments.delta", **self._item_position, delta=delta.arguments)

    def _input_events(self, arguments: str) -> Iterator[bytes]:
        """Events of more input of a custom tool."""
        self._arguments += arguments
        item, text = self._items[-1], custom_tool_input(self._arguments)
        delta, item["input"] = text[len(item["input"]) :], text
        if delta:
            yield self._event("custom_tool_call_input.delta", **self._item_position, delta=delta)

    @property
    def _item_position(self) -> dict[str, Any]:
        """Id and index of the last item."""
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _open_item(self, item: dict[str, Any]) -> Iterator[bytes]:
        item["status"] = "in_progress"
        self._items.append(item)
        yield self._event("output_item.added", output_index=len(self._items) - 1, item=item)

    def _close_item(self, state: str) -> Iterator[bytes]:
        """The events that end the last item, if there is one."""
        if not self._items:
            return
        item = self._items[-1]
        item["status"] = state
        if item["type"] in ("message", "reasoning"):
            (part,) = item["content"]
            position = {**self._item_position, "content_index": 0}
            more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._event(f"{part['type']}.done", **position, text=part["text"], **more)
            yield self._event("content_part.done", **position, part=part)
        elif "input" in item:
            yield self._event("custom_tool_call_input.done", **self._item_position, input=item["input"])
        else:
            call = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("function_call_arguments.done", **self._item_position, **call)
        yield self._event("output_item.done", output_index=len(self._items) - 1, item=item)

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def error_event(self, error: ApiError) -> bytes:
        self._number += 1
        details = {"code": error.code, "message": error.message, "param": error.param}
        return event({"type": "error", "sequence_number": self._number, **details}, "error")

    def _event(self, kind: str, **more: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._number, **more}, name)


def _reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def _reasoning(text: str | None) -> dict[str, Any]:
    content = [] if text is None else [_reasoning_part(text)]
    header = {"id": new_id("rs_"), "type": "reasoning", "status": "completed"}
    return {**header, "summary": [], "content": content}


def _message(text: str | None) -> dict[str, Any]:
    content = [] if text is None else [output_text_part(text)]
    header = {"id": new_id("msg_"), "type": "message", "role": "assistant"}
    return {**header, "status": "completed", "content": content}


def _call(name: str, arguments: str) -> dict[str, Any]:
    header = {"id": new_id("fc_"), "type": "function_call", "status": "completed", "call_id": new_id("call_")}
    return {**header, "name": name, "arguments": arguments}


def _custom_call(name: str, text: str) -> dict[str, Any]:
    header = {"id": new_id("ctc_"), "type": "custom_tool_call", "status": "completed"}
    return {**header, "call_id": new_id("call_"), "name": name, "input": text}
