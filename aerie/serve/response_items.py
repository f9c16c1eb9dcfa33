"""Items, of which a conversation is made in OpenAI's newer API (messages, calls of tools, what these gave),
and tools: as fields of requests, as they are told, and as what the chat template takes.

A custom tool is one whose input is a text. To the model it is a function with this one argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from aerie.engine.tool_calls import Tool
from aerie.serve.chat_fields import Function
from aerie.serve.common_fields import Content, Fields, Foreign, Said, Text, by_type, text_of
from aerie.serve.openai_format import new_id

KINDS = {
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
        ),
        "a server's call",
    ),
}
SERVER_TOOLS = (
    *("web_search", "file_search", "tool_search", "code_interpreter", "image_generation", "mcp"),
    *("computer", "local_shell", "shell", "apply_patch"),
)
"""How the types begin of tools that OpenAI's servers run, or that its models know by themselves. A model here
is told of what a client gives in full; these are not among the tools of a response."""
INPUT = "input"
"""The argument that a custom tool has as a function."""
INPUT_BEGINS = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
INSIDE = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
"""Of a JSON string, its whole characters."""


class Named(Said):
    """What all items have: an id and a status, where they were told before."""

    id: str | None = None
    status: str | None = None
    kind: ClassVar[str] = "msg_"

    def named(self) -> Self:
        """As it is kept: with an id."""
        return self.model_copy(update={"id": self.id or new_id(self.kind), "status": "completed"})

    @property
    def told(self) -> dict[str, Any]:
        """As it is told of one that is kept."""
        return self.model_dump(exclude_none=True)


def answer_part(text: str) -> dict[str, Any]:
    """A part of the assistant's message, as it is told."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _asked_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


class Item(Named):
    """A message; one that came out of a former response may go in again as it is. phase: which part of an
    answer it is, which no model is told."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    phase: str | None = None

    @property
    def told(self) -> dict[str, Any]:
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        made = answer_part if self.role == "assistant" else _asked_part
        return {**super().told, "content": [made(text) for text in texts]}

    @property
    def as_message(self) -> dict[str, Any]:
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": text_of(self.content),
        }


class CallItem(Named):
    """A call that came out of a former response."""

    kind = "fc_"

    type: Literal["function_call"]
    call_id: str
    name: Text
    arguments: Text
    parsed_arguments: Any = None

    @property
    def as_call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class CustomCallItem(Named):
    """A call of a custom tool."""

    kind = "ctc_"
    type: Literal["custom_tool_call"]
    call_id: str
    name: Text
    input: Text

    @property
    def as_call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.dumps({INPUT: self.input}, ensure_ascii=False)}
        return {"id": self.call_id, "type": "function", "function": function}


class ResultItem(Named):
    """What a call gave."""

    kind = "fco_"
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content

    @property
    def told(self) -> dict[str, Any]:
        parts = (
            self.output if isinstance(self.output, str) else [_asked_part(part.text) for part in self.output]
        )
        return {**super().told, "output": parts}

    @property
    def as_message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": text_of(self.output)}


class ThoughtItem(Named):
    """What was thought before an earlier answer: a model here is told nothing of it."""

    kind = "rs_"
    type: Literal["reasoning"]
    summary: list[dict[str, Any]] = Field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class ServerItem(Named, Foreign):
    """What another server's tool did."""

    kind = "st_"


EachItem = Item | CallItem | CustomCallItem | ResultItem | ThoughtItem | ServerItem
AnyItem = Annotated[
    Annotated[Item, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[CustomCallItem, Tag("a custom call")]
    | Annotated[ResultItem, Tag("a result")]
    | Annotated[ThoughtItem, Tag("a thought")]
    | Annotated[ServerItem, Tag("a server's call")],
    by_type(KINDS, "a message"),
]


def messages_of(items: Sequence[EachItem]) -> list[dict[str, Any]]:
    """Calls are of the assistant's message before them."""
    made: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Item | ResultItem):
            made.append(item.as_message)
            continue
        if not isinstance(item, CallItem | CustomCallItem):
            continue
        if not made or made[-1]["role"] != "assistant":
            made.append({"role": "assistant", "content": ""})
        made[-1].setdefault("tool_calls", []).append(item.as_call)
    return made


class OfFunction(Fields):
    type: Literal["function"]


class FunctionTool(Function, OfFunction):
    """With its type before its other fields, so that another type's is told of first."""

    @property
    def told(self) -> dict[str, Any]:
        """As it is told in the response."""
        return {"parameters": {}, "strict": False, **echoed(self)}


class CustomFormat(Fields):
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
        """That an input is held to."""
        return self.definition if self.syntax == "regex" else None


class CustomTool(Fields):
    """A tool whose input is a text; with a format that is a regular expression, a text of this form. A
    grammar of lark is told to nobody, and no input is held to it."""

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

    @property
    def told(self) -> dict[str, Any]:
        """As it is told in the response."""
        told: dict[str, Any] = echoed(self)
        return told


def _tool_kind(given: Any) -> str:
    kind = given.get("type") if isinstance(given, Mapping) else getattr(given, "type", None)
    if isinstance(kind, str) and kind.startswith(SERVER_TOOLS):
        return "a server's"
    return "a custom tool" if kind == "custom" else "a function"


OwnTool = FunctionTool | CustomTool
ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("a function")]
    | Annotated[CustomTool, Tag("a custom tool")]
    | Annotated[Foreign, Tag("a server's")],
    Discriminator(_tool_kind),
]


class NamedFunction(Fields):
    """One tool, which is to be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedFunctions(Fields):
    """Some of the functions: the model is told of all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedFunction]


def input_of(arguments: str) -> str:
    """The text that a custom tool is given, in arguments of which the end may not be there yet: as much of it
    as is sure."""
    begun = INPUT_BEGINS.match(arguments)
    if not begun:
        return ""
    text = INSIDE.match(arguments, begun.end())
    assert text is not None
    given: str = json.loads(f'"{text[0]}"')
    return given[:-1] if given and "\ud800" <= given[-1] < "\udc00" else given  # half a character


def echoed(given: Any) -> Any:
    """What was asked, as it is told in the response."""
    return given.model_dump(exclude_none=True) if isinstance(given, BaseModel) else given
