"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API (docs.anthropic.com/en/api/messages)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from aerie.serve.answer import LENGTH, Ending, Piece
from aerie.serve.asking import Whole
from aerie.serve.errors import ApiError
from aerie.serve.events import event
from aerie.serve.fields import MOST_STOPS, NO_TOOLS, Fields, Settings, StopText, Text, Unbuilt
from aerie.serve.forms import new_id


class Block(Fields):
    """Of a message. cache_control: taken; what was read stays without it."""

    type: Literal["text"]
    text: Text
    cache_control: Any = None
    citations: Any = None


class Turn(Fields):
    role: Literal["user", "assistant"]
    content: Text | list[Block]


def _text(content: Text | list[Block] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(block.text for block in content)


class CountRequest(Fields):
    """What is counted, and what an answer is asked with."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Text | list[Block] | None = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Any = None
    mcp_servers: Any = None
    unbuilt: ClassVar[Unbuilt] = {
        "tools": ([[]], NO_TOOLS),
        "tool_choice": ([{"type": "none"}, {"type": "auto"}], NO_TOOLS),
        "thinking": ([{"type": "disabled"}], "no model here is told to think"),
        "mcp_servers": ([[]], NO_TOOLS),
    }

    @property
    def conversation(self) -> list[dict[str, str]]:
        begins = [{"role": "system", "content": _text(self.system)}] if self.system else []
        return [*begins, *({"role": turn.role, "content": _text(turn.content)} for turn in self.messages)]


class MessagesRequest(CountRequest):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    stream: bool = False
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

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
    reason = "max_tokens" if ending.reason == LENGTH else "end_turn" if by is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": by}


class MessagesForm:
    """prompt: its length in tokens, which a stream tells before anything else."""

    def __init__(self, model: str, prompt: int) -> None:
        self._of = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}
        self._prompt, self._is_begun = prompt, False

    def whole(self, made: Sequence[Whole]) -> dict[str, Any]:
        (one,) = made
        assert one.ending is not None
        content = [{"type": "text", "text": one.text}]
        return {**self._of, "content": content, **_stopped(one.ending), "usage": _usage(one.ending)}

    def events(self, piece: Piece) -> Iterator[bytes]:
        if not self._is_begun:
            self._is_begun = True
            yield from self._begin()
        if piece.text:
            delta = {"type": "text_delta", "text": piece.text}
            yield _event("content_block_delta", index=0, delta=delta)
        if piece.ending:
            yield _event("content_block_stop", index=0)
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
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def last(self, endings: Mapping[int, Ending]) -> Iterator[bytes]:  # noqa: ARG002
        return iter(())

    def failed(self, error: ApiError) -> bytes:
        return event(error.anthropic, "error")


def _event(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, kind)
