"""Items, of which a conversation is made in OpenAI's newer API (messages, calls of tools, what these gave),
and tools: as fields of requests, as they are told, and as what the chat template takes.

A custom tool is one whose input is a text. To the model it is a function with this one argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Tag, model_validator

from aerie.engine.tool_calls import Tool
from aerie.serve.chats import Function, by_type
from aerie.serve.fields import Fields, Text
from aerie.serve.forms import new_id

KINDS = {
    "function_call": "a call",
    "custom_tool_call": "a custom call",
    "function_call_output": "a result",
    "custom_tool_call_output": "a result",
}
INPUT = "input"
"""The argument that a custom tool has as a function."""
INPUT_BEGINS = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
INSIDE = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
"""Of a JSON string, its whole characters."""


class Named(Fields):
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
        return self.model_dump()


class Part(Fields):
    """Of a message; what stands beside the text in a former response's is passed over."""

    type: Literal["input_text", "output_text", "text"]
    text: Text
    annotations: Any = None
    logprobs: Any = None


def answer_part(text: str) -> dict[str, Any]:
    """A part of the assistant's message, as it is told."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _asked_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _text_of(content: Text | list[Part]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Item(Named):
    """A message; one that came out of a former response may go in again as it is."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]

    @property
    def told(self) -> dict[str, Any]:
        texts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        made = answer_part if self.role == "assistant" else _asked_part
        return {**super().told, "content": [made(text) for text in texts]}

    @property
    def as_message(self) -> dict[str, Any]:
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": _text_of(self.content),
        }


class CallItem(Named):
    """A call that came out of a former response."""

    kind = "fc_"

    type: Literal["function_call"]
    call_id: str
    name: Text
    arguments: Text

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
    output: Text | list[Part]

    @property
    def told(self) -> dict[str, Any]:
        parts = (
            self.output if isinstance(self.output, str) else [_asked_part(part.text) for part in self.output]
        )
        return {**super().told, "output": parts}

    @property
    def as_message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.call_id, "content": _text_of(self.output)}


EachItem = Item | CallItem | CustomCallItem | ResultItem
AnyItem = Annotated[
    Annotated[Item, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[CustomCallItem, Tag("a custom call")]
    | Annotated[ResultItem, Tag("a result")],
    by_type(KINDS, "a message"),
]


def messages_of(items: Sequence[EachItem]) -> list[dict[str, Any]]:
    """Calls are of the assistant's message before them."""
    made: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Item | ResultItem):
            made.append(item.as_message)
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
        if self.syntax == "lark":
            raise ValueError(
                "inputs of custom tools are held to regular expressions alone; give syntax regex, or leave "
                "format out"
            )
        return self


class CustomTool(Fields):
    """A tool whose input is a text, or, with a format, a text of this form."""

    type: Literal["custom"]
    name: Text
    description: Text | None = None
    format: CustomFormat | None = None

    @property
    def tool(self) -> Tool:
        text = {"type": "string"}
        if self.format and self.format.definition is not None:
            text["pattern"] = f"^(?:{self.format.definition})$"
        parameters = {"properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
        return Tool(self.name, self.description or "", parameters, is_strict=True)

    @property
    def told(self) -> dict[str, Any]:
        """As it is told in the response."""
        told: dict[str, Any] = echoed(self)
        return told


ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("a function")] | Annotated[CustomTool, Tag("a custom tool")],
    by_type({"custom": "a custom tool"}, "a function"),
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
