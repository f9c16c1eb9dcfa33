"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API (docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from aerie.engine.call_reader import ToolCall, ToolCallDelta
from aerie.engine.tool_calls import Tool, Tools, with_choice
from aerie.serve.chat_fields import ChatInput, ThinkingSettings, add_reasoning_effort, tool_field_path
from aerie.serve.common_fields import (
    ClientMessagePart,
    OtherServerItem,
    RequestFields,
    StopText,
    Text,
    UnsupportedFields,
    check_text_part,
    tagged_union,
)
from aerie.serve.errors import ApiError
from aerie.serve.event_stream import event
from aerie.serve.openai_format import new_id
from aerie.serve.output_processor import CALLS, LENGTH, FinishInfo, OutputDelta
from aerie.serve.request_outputs import CompletedOutput
from aerie.serve.sampling_fields import MAX_STOPS, SamplingFields
from aerie.serve.structured_output_fields import StructuredOutput

IGNORED: Final = frozenset(("cache_control",))
"""Fields of every part of a request that are ignored: hints for a prefix cache, which needs none here."""


class TextBlock(ClientMessagePart):
    """A text of a message; other kinds, such as images, are refused."""

    type: Literal["text"]
    text: Text
    cache_control: Any = None
    citations: Any = None
    ignored: ClassVar[frozenset[str]] = IGNORED

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, kind: Any) -> Any:
        if kind == "compaction":
            raise ValueError("the summary is another server's; send the messages, or a summary as a text")
        return check_text_part(kind)


class ToolReferenceBlock(ClientMessagePart):
    """A tool that the client's search found. The model sees it among the tools of the request."""

    type: Literal["tool_reference"]
    tool_name: Text
    cache_control: Any = None

    @property
    def text(self) -> str:
        return f"The tool {self.tool_name} can be called."


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("a text")] | Annotated[ToolReferenceBlock, Tag("a reference")],
    tagged_union({"tool_reference": "a reference"}, "a text"),
]


class ThinkingBlock(ClientMessagePart):
    """Thinking of an earlier answer, passed to the template, which mostly drops it. signature: ignored.
    data: of redacted_thinking, which cannot be read."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: Text = ""
    signature: str | None = None
    data: str | None = None
    cache_control: Any = None
    ignored: ClassVar[frozenset[str]] = IGNORED


class ToolUseBlock(ClientMessagePart):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: Text
    input: dict[str, Any]
    caller: Any = None
    toolset_name: str | None = None
    cache_control: Any = None
    ignored: ClassVar[frozenset[str]] = IGNORED | {"toolset_name"}

    def to_tool_call(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": json.dumps(self.input, ensure_ascii=False)}
        return {"id": self.id, "type": "function", "function": function}


class ToolResultBlock(ClientMessagePart):
    """The output of a tool call. is_error: ignored, as the content says it."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Text | list[ResultBlock] | None = None
    is_error: bool | None = None
    toolset_name: str | None = None
    cache_control: Any = None
    ignored: ClassVar[frozenset[str]] = IGNORED | {"is_error", "toolset_name"}

    def to_message(self) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": self.tool_use_id, "content": _text(self.content)}


AnyBlock = Annotated[
    Annotated[TextBlock, Tag("a text")]
    | Annotated[ToolUseBlock, Tag("a call")]
    | Annotated[ToolResultBlock, Tag("a result")]
    | Annotated[ThinkingBlock, Tag("a thought")]
    | Annotated[OtherServerItem, Tag("a server's")],
    tagged_union(
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


class MessageFields(ClientMessagePart):
    """A message. A system message stays at its position."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[AnyBlock]

    def to_messages(self) -> list[dict[str, Any]]:
        """Messages for the chat template. Tool results come before the text of the user."""
        blocks = [] if isinstance(self.content, str) else self.content
        results = [block.to_message() for block in blocks if isinstance(block, ToolResultBlock)]
        calls = [block.to_tool_call() for block in blocks if isinstance(block, ToolUseBlock)]
        texts = [block for block in blocks if isinstance(block, TextBlock)]
        reasoning = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
        text = _text(self.content if isinstance(self.content, str) else texts)
        if results and not texts:
            return results
        message: dict[str, Any] = {"role": self.role, "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        return [*results, {**message, **({"tool_calls": calls} if calls else {})}]


def _text(content: Text | Sequence[TextBlock | ToolReferenceBlock] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(block.text for block in content)


class MessagesTool(RequestFields):
    """strict: refuse a schema that cannot be enforced in full; else a response header notes what is not
    enforced. Fields about when a tool is shown and who may call it are ignored: the model sees all tools."""

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
    ignored: ClassVar[frozenset[str]] = frozenset(
        ("cache_control", "defer_loading", "allowed_callers", "eager_input_streaming", "input_examples")
    )

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description or "", self.input_schema, bool(self.strict))


SERVER_TOOL = re.compile(r"[a-z_]+_\d{8}|mcp_toolset")
"""Types of tools that Anthropic's servers run or its models know without a schema, such as
web_search_20250305. The model is only given tools that a client describes in full."""


def _tool_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "a server's" if isinstance(kind, str) and SERVER_TOOL.fullmatch(kind) else "a tool"


AnyTool = Annotated[
    Annotated[MessagesTool, Tag("a tool")] | Annotated[OtherServerItem, Tag("a server's")],
    Discriminator(_tool_kind),
]


class Thinking(RequestFields):
    """Whether the model should think. With adaptive and between_tools it is left to the chat template.
    budget_tokens: after so many tokens of thinking the answer begins. display: with "omitted" the text of
    thinking blocks is left out."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: str | None = None
    block_binding: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(("block_binding",))


class OutputFormat(RequestFields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestFields):
    """effort: passed to the chat template as reasoning_effort."""

    effort: str | None = None
    format: OutputFormat | None = None
    task_budget: Any = None
    ignored: ClassVar[frozenset[str]] = frozenset(("task_budget",))


class ToolChoiceFields(RequestFields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if (self.name is None) == (self.type == "tool"):
            raise ValueError("name goes with the type tool, which has it; give both, or neither")
        return self


class CountTokensRequest(RequestFields):
    """A conversation. If the last message is the assistant's, the output continues it. thinking and
    output_config.effort are passed to the chat template. Fields about caches, truncation, other models and
    accounts are ignored (`ignored`): no prompt is truncated here."""

    model: str | None = None
    messages: Annotated[list[MessageFields], Field(min_length=1)]
    system: Text | list[TextBlock] | None = None
    tools: list[AnyTool] | None = None
    tool_choice: ToolChoiceFields | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None
    cache_control: Any = None
    compaction: Any = None
    diagnostics: Any = None
    betas: Any = None
    billing_policy: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    mcp_servers: Any = None
    ignored: ClassVar[frozenset[str]] = IGNORED | {
        *("context_management", "compaction", "diagnostics", "betas", "billing_policy", "fallbacks"),
        *("fallback_credit_token", "user_profile_id", "workspace_id"),
    }
    unsupported: ClassVar[UnsupportedFields] = {
        "mcp_servers": ([[]], "Aerie does not connect to tool servers; send their tools in the field tools"),
    }

    @property
    def chat(self) -> ChatInput:
        """The conversation. Raises ToolsError."""
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        return ChatInput(
            [*system, *(message for fields in self.messages for message in fields.to_messages())],
            self._tools,
            self._template_arguments,
            continues=self.messages[-1].role == "assistant",
        )

    @property
    def _template_arguments(self) -> Mapping[str, Any] | None:
        """thinking becomes enable_thinking, the name in the templates of Qwen and others."""
        effort = self.output_config.effort if self.output_config else None
        thinks = {"enabled": True, "disabled": False}.get(self.thinking.type) if self.thinking else None
        switched = {} if thinks is None else {"enable_thinking": thinks}
        return add_reasoning_effort({**switched, **(self.chat_template_kwargs or {})}, effort)

    @property
    def _tools(self) -> Tools | None:
        tools = tuple(tool.tool for tool in self.tools or () if isinstance(tool, MessagesTool))
        choice = self.tool_choice or ToolChoiceFields(type="auto")
        names = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
        tool_names = None if choice.name is None else [choice.name]
        return with_choice(
            tools, names[choice.type], tool_names, tool_names is None and not choice.disable_parallel_tool_use
        )

    @property
    def structured_output(self) -> StructuredOutput | None:
        config = self.output_config
        return StructuredOutput("output_config", config.format.schema_) if config and config.format else None

    def field_path(self, name: str) -> str:
        """The path in this API of a field that the engine names `name`."""
        if name.startswith("messages"):
            return "messages"
        return tool_field_path(name, self.tools or (), MessagesTool).replace(".parameters", ".input_schema")


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MAX_STOPS)] | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    container: Any = None
    thread: Any = None
    ignored: ClassVar[frozenset[str]] = CountTokensRequest.ignored | {
        *("metadata", "service_tier", "inference_geo", "speed"),
    }
    unsupported: ClassVar[UnsupportedFields] = {
        **CountTokensRequest.unsupported,
        "container": ((), "nothing runs code here"),
        "compaction": ((), "conversations are not shortened here; ask for a summary in a message"),
        "thread": ((), "messages are not stored here; send the whole conversation"),
    }

    @property
    def thinking_settings(self) -> ThinkingSettings:
        return ThinkingSettings(self.thinking.budget_tokens if self.thinking else None)

    @property
    def shows_thinking(self) -> bool:
        """Whether thinking blocks have their text."""
        return self.thinking is None or self.thinking.display != "omitted"

    @property
    def sampling_fields(self) -> SamplingFields:
        fields = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        return SamplingFields(**fields, stop=self.stop_sequences)


def _usage(finish: FinishInfo) -> dict[str, int]:
    """Token counts in Anthropic's format: input_tokens does not include the cached ones."""
    return {
        "input_tokens": finish.prompt_tokens - finish.cached_tokens,
        "cache_read_input_tokens": finish.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": finish.completion_tokens,
    }


def _stop_fields(finish: FinishInfo) -> dict[str, str | None]:
    stop = finish.stop if isinstance(finish.stop, str) else None
    reasons = {LENGTH: "max_tokens", CALLS: "tool_use"}
    reason = reasons.get(finish.reason, "end_turn" if stop is None else "stop_sequence")
    return {"stop_reason": reason, "stop_sequence": stop}


def signature(thinking: str) -> str:
    """The signature of a thinking block, by which clients know it as complete: a hash of its text. Blocks
    that are sent back are taken with any signature."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


class MessagesWriter:
    """Writes messages: a thinking block if the model thought, a text block, unless there are only calls, and
    a block for each call. prompt: its length in tokens, which the first event of a stream contains.
    shows_thinking: whether thinking blocks have their text."""

    def __init__(self, model: str, prompt: int, shows_thinking: bool = True) -> None:
        self._header = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens, self._has_started, self._blocks = prompt, False, 0
        self._shows_thinking, self._thinking, self._has_text = shows_thinking, "", False
        self._has_calls = False

    def write_whole(self, outputs: Sequence[CompletedOutput]) -> dict[str, Any]:
        (output,) = outputs
        assert output.finish is not None
        content = [self._thinking_block(output.thinking)] if output.thinking else []
        if output.text or not output.tool_calls:
            content.append({"type": "text", "text": output.text})
        content += filter(None, map(_tool_use_block, output.tool_calls))
        return {
            **self._header,
            "content": content,
            **_stop_fields(output.finish),
            "usage": _usage(output.finish),
        }

    def delta_events(self, delta: OutputDelta) -> Iterator[bytes]:
        if not self._has_started:
            self._has_started = True
            yield from self._start_events()
        if delta.thinking:
            yield from self._thinking_events(delta.thinking)
        is_empty = delta.finish and not (self._has_text or self._has_calls or delta.tool_calls)
        if delta.text or is_empty:
            yield from self._text_events(delta.text)
        for call in delta.tool_calls:
            yield from self._call_events(call)
        if delta.finish:
            yield _event("content_block_stop", index=self._blocks - 1)
            yield _event("message_delta", delta=_stop_fields(delta.finish), usage=_usage(delta.finish))
            yield _event("message_stop")

    def _start_events(self) -> Iterator[bytes]:
        usage = _usage(FinishInfo("", self._prompt_tokens, 0, 0))
        message: dict[str, Any] = {
            **self._header,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message=message)

    def _thinking_block(self, thinking: str) -> dict[str, Any]:
        shown = thinking if self._shows_thinking else ""
        return {"type": "thinking", "thinking": shown, "signature": signature(thinking)}

    def _thinking_events(self, thinking: str) -> Iterator[bytes]:
        if not self._blocks:
            yield from self._open_block({"type": "thinking", "thinking": "", "signature": ""})
        self._thinking += thinking
        if self._shows_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": thinking})

    def _open_block(self, block: Mapping[str, Any]) -> Iterator[bytes]:
        if self._thinking:
            yield self._delta({"type": "signature_delta", "signature": signature(self._thinking)})
            self._thinking = ""
        if self._blocks:
            yield _event("content_block_stop", index=self._blocks - 1)
        yield _event("content_block_start", index=self._blocks, content_block=block)
        self._blocks += 1

    def _text_events(self, text: str) -> Iterator[bytes]:
        if not self._has_text:
            self._has_text = True
            yield from self._open_block({"type": "text", "text": ""})
        if text:
            yield self._delta({"type": "text_delta", "text": text})

    def _call_events(self, delta: ToolCallDelta) -> Iterator[bytes]:
        if delta.name is not None:
            block: dict[str, Any] = {"id": new_id("toolu_"), "name": delta.name, "input": {}}
            self._has_calls = True
            yield from self._open_block({"type": "tool_use", **block})
        if delta.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": delta.arguments})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def final_events(self, finished: Mapping[int, FinishInfo]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def error_event(self, error: ApiError) -> bytes:
        return event(error.anthropic_body, "error")


def _event(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, kind)


def _tool_use_block(call: ToolCall) -> dict[str, Any] | None:
    """A call as a block; None if its arguments are truncated."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return None
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": arguments}
