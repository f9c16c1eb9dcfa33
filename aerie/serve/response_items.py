"""Items and tools of /v1/responses: as request fields, as response JSON, and as messages for the chat
template.

Items are messages, tool calls and tool outputs. A custom tool has a text as its input. For the model it is a
function with one argument, INPUT.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, Discriminator, Field, Tag, field_validator, model_validator

from aerie.engine.tool_calls import Tool
from aerie.serve.chat_fields import Function
from aerie.serve.common_fields import (
    ClientMessagePart,
    Content,
    OtherServerItem,
    RequestFields,
    Text,
    content_text,
    tagged_union,
)
from aerie.serve.openai_format import new_id

ITEM_TAGS = {
    "function_call": "a call",
    "custom_tool_call": "a custom call",
    "function_call_output": "a result",
    "custom_tool_call_output": "a result",
    "reasoning": "a thought",
    **dict.fromkeys(
        (
            "web_search_call",
            "file_search_call",
            "code_interpreter_call",
            "image_generation_call",
            "mcp_list_tools",
            "mcp_call",
            "mcp_approval_request",
            "mcp_approval_response",
            "tool_search_call",
            "tool_search_output",
            "local_shell_call",
            "local_shell_call_output",
            "shell_call",
            "shell_call_output",
            "apply_patch_call",
            "apply_patch_call_output",
            "computer_call",
            "computer_call_output",
        ),
        "a server's call",
    ),
}
SERVER_TOOLS = (
    *("web_search", "file_search", "tool_search", "code_interpreter", "image_generation", "mcp"),
    *("computer", "local_shell", "shell", "apply_patch"),
)
"""Prefixes of the types of tools that OpenAI's servers run. The model is only given tools that a client
describes in full; these are left out of the response."""
INPUT = "input"
"""The argument of a custom tool as a function."""
INPUT_START = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
STRING_CHARACTERS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
"""The complete characters of a JSON string."""


class ItemBase(ClientMessagePart):
    """Fields of all items. id, status: set if the server sent the item before."""

    id: str | None = None
    status: str | None = None
    internal_chat_message_metadata_passthrough: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(("internal_chat_message_metadata_passthrough",))
    id_prefix: ClassVar[str] = "msg_"

    def with_id(self) -> Self:
        """The completed item with an id, as it is stored."""
        return self.model_copy(update={"id": self.id or new_id(self.id_prefix), "status": "completed"})

    def to_json(self) -> dict[str, Any]:
        """The item as the API returns it."""
        return self.model_dump(exclude_none=True)


def output_text_part(text: str) -> dict[str, Any]:
    """A part of an assistant message, as JSON."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _input_text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


class MessageItem(ItemBase):
    """A message. An output item of an earlier response may be sent back unchanged. phase: accepted and
    ignored."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    phase: str | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _can_be_read(cls, kind: Any) -> Any:
        if isinstance(kind, str) and "compaction" in kind:
            raise ValueError("conversations are not shortened here; send the items, or a summary as a text")
        return kind

    def to_json(self) -> dict[str, Any]:
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        part_of = output_text_part if self.role == "assistant" else _input_text_part
        return {**super().to_json(), "content": [part_of(text) for text in texts]}

    def to_message(self) -> dict[str, Any]:
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": content_text(self.content),
        }


class CallItem(ItemBase):
    """A function call of an earlier response."""

    id_prefix = "fc_"

    type: Literal["function_call"]
    call_id: str
    name: Text
    arguments: Text
    namespace: Text | None = None
    parsed_arguments: Any = None

    def to_tool_call(self) -> dict[str, Any]:
        name = model_name(self.name, self.namespace)
        function = {"name": name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class CustomCallItem(ItemBase):
    """A call of a custom tool."""

    id_prefix = "ctc_"
    type: Literal["custom_tool_call"]
    call_id: str
    name: Text
    input: Text
    namespace: Text | None = None

    def to_tool_call(self) -> dict[str, Any]:
        name = model_name(self.name, self.namespace)
        function = {"name": name, "arguments": json.dumps({INPUT: self.input}, ensure_ascii=False)}
        return {"id": self.call_id, "type": "function", "function": function}


class ToolOutputItem(ItemBase):
    """The output of a tool call. name: ignored, as the call has it."""

    id_prefix = "fco_"
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        parts = (
            self.output
            if isinstance(self.output, str)
            else [_input_text_part(part.text) for part in self.output]
        )
        return {**super().to_json(), "output": parts}

    def to_message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": content_text(self.output)}


class ReasoningItem(ItemBase):
    """Thinking of an earlier response, passed to the template with the message or call after it. Templates
    mostly drop it."""

    id_prefix = "rs_"
    type: Literal["reasoning"]
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None

    @property
    def text(self) -> str:
        """The thinking; "" if the item does not have it in clear."""
        parts = self.content or ()
        return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "reasoning_text")


class OtherServerToolItem(ItemBase, OtherServerItem):
    """A call of a tool that another server ran."""

    id_prefix = "st_"


AnyItem = MessageItem | CallItem | CustomCallItem | ToolOutputItem | ReasoningItem | OtherServerToolItem
TaggedItem = Annotated[
    Annotated[MessageItem, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[CustomCallItem, Tag("a custom call")]
    | Annotated[ToolOutputItem, Tag("a result")]
    | Annotated[ReasoningItem, Tag("a thought")]
    | Annotated[OtherServerToolItem, Tag("a server's call")],
    tagged_union(ITEM_TAGS, "a message"),
]


def to_messages(items: Sequence[AnyItem]) -> list[dict[str, Any]]:
    """Messages for the chat template. Calls are added to the assistant message before them, and thinking to
    the one after it."""
    messages: list[dict[str, Any]] = []
    thinking = ""
    for item in items:
        if isinstance(item, ReasoningItem):
            thinking += item.text
        elif isinstance(item, MessageItem | ToolOutputItem):
            messages.append(_with_thinking(item.to_message(), thinking))
            thinking = ""
        elif isinstance(item, CallItem | CustomCallItem):
            if thinking or not messages or messages[-1]["role"] != "assistant":
                messages.append(_with_thinking({"role": "assistant", "content": ""}, thinking))
                thinking = ""
            messages[-1].setdefault("tool_calls", []).append(item.to_tool_call())
    return messages


def _with_thinking(message: dict[str, Any], thinking: str) -> dict[str, Any]:
    if thinking and message["role"] == "assistant":
        return {**message, "reasoning_content": thinking}
    return message


class FunctionType(RequestFields):
    type: Literal["function"]


class FunctionTool(Function, FunctionType):
    """A function. `type` is its first field, so that a wrong type is the first error. defer_loading: ignored,
    as the model sees all tools."""

    defer_loading: bool | None = None
    ignored: ClassVar[frozenset[str]] = frozenset(("defer_loading",))

    def to_json(self) -> dict[str, Any]:
        """The tool as the response repeats it."""
        return {"parameters": {}, "strict": False, **echo_settings(self)}


class CustomFormat(RequestFields):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: Text | None = None

    @model_validator(mode="after")
    def _is_regex(self) -> Self:
        if self.type == "text":
            return self
        if self.syntax is None or self.definition is None:
            raise ValueError("the type grammar wants syntax and definition; give both")
        return self

    @property
    def regex(self) -> str | None:
        """The regular expression that the input must match, if any."""
        return self.definition if self.syntax == "regex" else None


class CustomTool(RequestFields):
    """A tool with a text as its input. A regular expression as its format is enforced; a Lark grammar is
    not."""

    type: Literal["custom"]
    name: Text
    description: Text | None = None
    format: CustomFormat | None = None

    @property
    def tool(self) -> Tool:
        text = {"type": "string"}
        if self.format and self.format.regex is not None:
            text["pattern"] = f"^(?:{self.format.regex})$"
        parameters = {"properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        return Tool(self.name, self.description or "", parameters, is_strict=True)

    def to_json(self) -> dict[str, Any]:
        """The tool as the response repeats it."""
        body: dict[str, Any] = echo_settings(self)
        return body


def _tool_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if isinstance(kind, str) and kind.startswith(SERVER_TOOLS):
        return "a server's"
    return {"custom": "a custom tool", "namespace": "a namespace"}.get(str(kind), "a function")


class NamespaceTool(RequestFields):
    """Tools that belong together, such as those of one tool server. For the model each is a tool of its own,
    with the namespace in its name (model_name)."""

    type: Literal["namespace"]
    name: Text
    description: Text | None = None
    tools: list[
        Annotated[
            Annotated[FunctionTool, Tag("a function")] | Annotated[CustomTool, Tag("a custom tool")],
            tagged_union({"custom": "a custom tool"}, "a function"),
        ]
    ]

    def to_json(self) -> dict[str, Any]:
        """The tools as the response repeats them."""
        return {**echo_settings(self), "tools": [tool.to_json() for tool in self.tools]}


def model_name(name: str, namespace: str | None) -> str:
    """The name by which the model calls a tool."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


class NamedTool(NamedTuple):
    """A function or a custom tool, the namespace that it is in, if any, and the path of its field."""

    tool: FunctionTool | CustomTool
    namespace: str | None
    path: str

    @property
    def model_name(self) -> str:
        return model_name(self.tool.name, self.namespace)

    def to_tool(self) -> Tool:
        return replace(self.tool.tool, name=self.model_name)


def name_tools(tools: Sequence[object]) -> list[NamedTool]:
    """The functions and custom tools among the tools of a request, in their order."""
    named: list[NamedTool] = []
    for number, tool in enumerate(tools):
        if isinstance(tool, FunctionTool | CustomTool):
            named.append(NamedTool(tool, None, f"tools[{number}]"))
        elif isinstance(tool, NamespaceTool):
            inner = enumerate(tool.tools)
            named += [NamedTool(each, tool.name, f"tools[{number}].tools[{index}]") for index, each in inner]
    return named


SupportedTool = FunctionTool | CustomTool | NamespaceTool
ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("a function")]
    | Annotated[CustomTool, Tag("a custom tool")]
    | Annotated[NamespaceTool, Tag("a namespace")]
    | Annotated[OtherServerItem, Tag("a server's")],
    Discriminator(_tool_kind),
]


class NamedFunction(RequestFields):
    """The tool that must be called."""

    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def model_name(self) -> str:
        return model_name(self.name, self.namespace)


class AllowedFunctions(RequestFields):
    """The tools that may be called. The model sees all tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


def custom_tool_input(arguments: str) -> str:
    """The input of a custom tool in its arguments, which may be incomplete: as much of it as is certain."""
    start = INPUT_START.match(arguments)
    if not start:
        return ""
    text = STRING_CHARACTERS.match(arguments, start.end())
    assert text is not None
    value: str = json.loads(f'"{text[0]}"')
    return value[:-1] if value and "\ud800" <= value[-1] < "\udc00" else value  # half a surrogate pair


def echo_settings(value: Any) -> Any:
    """A setting of the request as the response repeats it."""
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value
