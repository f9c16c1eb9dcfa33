"""Items, of which a conversation is made in OpenAI's newer API: messages, calls of tools, what these gave.

As fields of requests, as they are told, and as messages for the chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Tag

from aerie.serve.chats import by_type
from aerie.serve.fields import Fields, Text
from aerie.serve.forms import new_id


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


class ResultItem(Named):
    """What a call gave."""

    kind = "fco_"

    type: Literal["function_call_output"]
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


EachItem = Item | CallItem | ResultItem
AnyItem = Annotated[
    Annotated[Item, Tag("a message")]
    | Annotated[CallItem, Tag("a call")]
    | Annotated[ResultItem, Tag("a result")],
    by_type({"function_call": "a call", "function_call_output": "a result"}, "a message"),
]


def messages_of(items: Sequence[EachItem]) -> list[dict[str, Any]]:
    """Calls are of the assistant's message before them."""
    made: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, CallItem):
            made.append(item.as_message)
            continue
        if not made or made[-1]["role"] != "assistant":
            made.append({"role": "assistant", "content": ""})
        made[-1].setdefault("tool_calls", []).append(item.as_call)
    return made
