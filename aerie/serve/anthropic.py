"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API (docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from aerie.engine.call_reader import CallPiece, ToolCall
from aerie.engine.tool_calls import Tool, Tools, chosen
from aerie.serve.chat_fields import Chat, nth_told, with_effort
from aerie.serve.common_fields import (
    MOST_STOPS,
    Fields,
    Foreign,
    Form,
    Said,
    Settings,
    StopText,
    Text,
    Unbuilt,
    by_type,
)
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import event
from aerie.serve.openai_format import new_id
from aerie.serve.output_processor import CALLS, LENGTH, Ending, Piece
from aerie.serve.request_outputs import Whole


class TextBlock(Said):
    """Of a message. cache_control: taken; what was read stays without it."""

    type: Literal["text"]
    text: Text
    cache_control: Any = None
    citations: Any = None


class ThoughtBlock(Said):
    """What the assistant thought before an earlier answer: told to templates, which mostly leave it out.
    data: of redacted_thinking, which nobody here can read."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: Text = ""
    signature: str | None = None
    data: str | None = None
    cache_control: Any = None


class UseBlock(Said):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: Text
    input: dict[str, Any]
    caller: Any = None
    cache_control: Any = None

    @property
    def as_call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ResultBlock(Said):
    """What a call gave. is_error: taken; the content says it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: Any = None

    @property
    def as_message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": _text(self.content)}


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[UseBlock, Tag("a call")]
    | Annotated[ResultBlock, Tag("a result")]
    | Annotated[ThoughtBlock, Tag("a thought")]
    | Annotated[Foreign, Tag("a server's")],
    by_type(
        {
            "tool_use": "a call",
            "tool_result": "a result",
            "thinking": "a thought",
            "redacted_thinking": "a thought",
            "server_tool_use": "a server's",
            "web_search_tool_result": "a server's",
            "web_fetch_tool_result": "a server's",
            "code_execution_tool_result": "a server's",
            "bash_code_execution_tool_result": "a server's",
            "text_editor_code_execution_tool_result": "a server's",
            "tool_search_tool_result": "a server's",
            "mcp_tool_use": "a server's",
            "mcp_tool_result": "a server's",
        },
        "a text",
    ),
]


class Turn(Said):
    """What was said. A system message stands where it was sent."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[AnyBlock]

    @property
    def as_messages(self) -> list[dict[str, Any]]:
        """Results come before what the user says."""
        blocks = [] if isinstance(self.content, str) else self.content
        results = [block.as_message for block in blocks if isinstance(block, ResultBlock)]
        calls = [block.as_call for block in blocks if isinstance(block, UseBlock)]
        texts = [block for block in blocks if isinstance(block, TextBlock)]
        thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThoughtBlock))
        said = _text(self.content if isinstance(self.content, str) else texts)
        if results and not texts:
            return results
        message: dict[str, Any] = {"role": self.role, "content": said}
        if thoughts:
            message["reasoning_content"] = thoughts
        return [*results, {**message, **({"tool_calls": calls} if calls else {})}]


def _text(content: Text | list[TextBlock] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(block.text for block in content)


class MessagesTool(Fields):
    """strict: a schema is refused of which something cannot be held; else that is told in a note. What says
    when a tool is told of, or who may call it, changes nothing: the model is told of all."""

    name: Text
    input_schema: dict[str, Any]
    description: Text | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Any = None
    defer_loading: Any = None
    allowed_callers: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.input_schema, bool(self.strict))


SERVER_TOOL = re.compile(r"[a-z_]+_\d{8}|mcp_toolset")
"""The types of tools that Anthropic's servers run, or that its models know without a schema, such as
web_search_20250305. A model here is told of what a client gives in full."""


def _tool_kind(given: Any) -> str:
    kind = given.get("type") if isinstance(given, Mapping) else getattr(given, "type", None)
    return "a server's" if isinstance(kind, str) and SERVER_TOOL.fullmatch(kind) else "a tool"


AnyTool = Annotated[
    Annotated[MessagesTool, Tag("a tool")] | Annotated[Foreign, Tag("a server's")],
    Discriminator(_tool_kind),
]


class Thinking(Fields):
    """Whether to think. A budget and a display change nothing."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """effort: how much to think, which is told to the chat template."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class Choice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if (self.name is None) == (self.type == "tool"):
            raise ValueError("name goes with the type tool, which has it; give both, or neither")
        return self


class CountRequest(Fields):
    """What is counted, and what an answer is asked with. Where the last message is the assistant's, the
    answer goes on with it. thinking and output_config.effort are told to the chat template;
    context_management and cache_control are taken and change no prompt, of which nothing is cut."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Text | list[TextBlock] | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Choice | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None
    cache_control: Any = None
    mcp_servers: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        "mcp_servers": ([[]], "servers of tools are not asked; give their tools"),
    }

    @property
    def chat(self) -> Chat:
        """Raises ToolsError."""
        begins = [{"role": "system", "content": _text(self.system)}] if self.system else []
        return Chat(
            [*begins, *(each for turn in self.messages for each in turn.as_messages)],
            self._tools,
            self._template_arguments,
            continues=self.messages[-1].role == "assistant",
        )

    @property
    def _template_arguments(self) -> Mapping[str, Any] | None:
        """thinking: by the name that the templates of Qwen and others have for it, where it is on or off."""
        effort = self.output_config.effort if self.output_config else None
        thinks = {"enabled": True, "disabled": False}.get(self.thinking.type) if self.thinking else None
        switched = {} if thinks is None else {"enable_thinking": thinks}
        return with_effort({**switched, **(self.chat_template_kwargs or {})}, effort)

    @property
    def _tools(self) -> Tools | None:
        each = tuple(tool.tool for tool in self.tools or () if isinstance(tool, MessagesTool))
        choice = self.tool_choice or Choice(type="auto")
        names = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
        named = None if choice.name is None else [choice.name]
        return chosen(each, names[choice.type], named, named is None and not choice.disable_parallel_tool_use)

    @property
    def form(self) -> Form | None:
        config = self.output_config
        return Form("output_config", config.format.schema_) if config and config.format else None

    def place(self, name: str) -> str:
        """Where a field is here that the engine knows by this name."""
        if name.startswith("messages"):
            return "messages"
        return nth_told(name, self.tools or (), MessagesTool).replace(".parameters", ".input_schema")


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    container: Any = None
    unbuilt: ClassVar[Unbuilt] = {**CountRequest.unbuilt, "container": ((), "nothing runs code here")}

    @property
    def settings(self) -> Settings:
        given = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        return Settings(**given, stop=self.stop_sequences)


def _usage(ending: Ending) -> dict[str, int]:
    """As Anthropic counts: what was found in the cache stands beside input_tokens, and not in it."""
    return {
        "input_tokens": ending.prompt - ending.cached,
        "cache_read_input_tokens": ending.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": ending.made,
    }


def _stopped(ending: Ending) -> dict[str, str | None]:
    by = ending.stop if isinstance(ending.stop, str) else None
    reasons = {LENGTH: "max_tokens", CALLS: "tool_use"}
    reason = reasons.get(ending.reason, "end_turn" if by is None else "stop_sequence")
    return {"stop_reason": reason, "stop_sequence": by}


class MessagesForm:
    """Its blocks are a text, where there is one, or nothing else, and calls. prompt: its length in tokens,
    which a stream tells before anything else."""

    def __init__(self, model: str, prompt: int) -> None:
        self._of = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._prompt, self._is_begun, self._blocks = prompt, False, 0

    def whole(self, made: Sequence[Whole]) -> dict[str, Any]:
        (one,) = made
        assert one.ending is not None
        content = [{"type": "text", "text": one.text}] if one.text or not one.calls else []
        content += filter(None, map(_used, one.calls))
        return {**self._of, "content": content, **_stopped(one.ending), "usage": _usage(one.ending)}

    def events(self, piece: Piece) -> Iterator[bytes]:
        if not self._is_begun:
            self._is_begun = True
            yield from self._begin()
        if piece.text or (piece.ending and not self._blocks and not piece.calls):
            yield from self._said(piece.text)
        for call in piece.calls:
            yield from self._called(call)
        if piece.ending:
            yield _event("content_block_stop", index=self._blocks - 1)
            yield _event("message_delta", delta=_stopped(piece.ending), usage=_usage(piece.ending))
            yield _event("message_stop")

    def _begin(self) -> Iterator[bytes]:
        usage = _usage(Ending("", self._prompt, 0, 0))
        begun: dict[str, Any] = {
            **self._of,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=begun)

    def _opened(self, block: Mapping[str, Any]) -> Iterator[bytes]:
        if self._blocks:
            yield _event("content_block_stop", index=self._blocks - 1)
        yield _event("content_block_start", index=self._blocks, content_block=block)
        self._blocks += 1

    def _said(self, text: str) -> Iterator[bytes]:
        if not self._blocks:
            yield from self._opened({"type": "text", "text": ""})
        if text:
            yield self._delta({"type": "text_delta", "text": text})

    def _called(self, piece: CallPiece) -> Iterator[bytes]:
        if piece.name is not None:
            begun: dict[str, Any] = {"id": new_id("toolu_"), "name": piece.name, "input": {}}
            yield from self._opened({"type": "tool_use", **begun})
        if piece.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": piece.arguments})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def failed(self, error: ApiError) -> bytes:
        return event(error.anthropic, "error")


def _event(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, kind)


def _used(call: ToolCall) -> dict[str, Any] | None:
    """A call as a block; None for one that was cut, which has no input."""
    try:
        read = json.loads(call.arguments)
    except ValueError:
        return None
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": read}
