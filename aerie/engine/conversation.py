"""A conversation: its messages, and its JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.engine.tool_calls import Message

Turn = tuple[str, str]
"""The user's message, and the answer."""
ROLES = ("user", "assistant")
"""The roles of a turn."""


@dataclass(frozen=True)
class Conversation:
    """The system message, if there is one, and the turns after it. Immutable: a turn is always complete."""

    system: str | None = None
    turns: tuple[Turn, ...] = ()

    def messages(self, *questions: str) -> list[Message]:
        """All messages for a chat template, then `questions`, the user's next ones."""
        first = [] if self.system is None else [_message("system", self.system)]
        turns = [_message(role, text) for turn in self.turns for role, text in zip(ROLES, turn, strict=True)]
        return [*first, *turns, *(_message("user", text) for text in questions)]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def save(conversation: Conversation, path: Path) -> None:
    """Write {"messages": [{"role", "content"}, ...]} atomically. Raises UserError if that is not possible."""
    text = json.dumps({"messages": conversation.messages()}, ensure_ascii=False, indent=1) + "\n"
    try:
        write_atomic(path, lambda file: file.write(text.encode()), mode=0o600)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file") from None


def load(path: Path) -> Conversation:
    """Read what `save` wrote, or a bare list of messages. Raises UserError, which says what is wrong, for
    anything else."""
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); name a file that /save wrote") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is not JSON; name a file that /save wrote") from None
    messages = content.get("messages") if isinstance(content, dict) else content
    try:
        return _conversation(messages)
    except ValueError as error:
        raise UserError(f"{path} is no conversation: {error}; name a file that /save wrote") from None


def _conversation(messages: Any) -> Conversation:
    """Raises ValueError unless it is a list of an optional system message and complete turns."""
    if not isinstance(messages, list):
        raise ValueError('there is no list "messages"')
    contents = [_content(message, number) for number, message in enumerate(messages, start=1)]
    system = contents.pop(0)[1] if contents and contents[0][0] == "system" else None
    for index, (role, _) in enumerate(contents):
        if role != ROLES[index % 2]:
            raise ValueError(
                f"message {index + 1 + (system is not None)} is from {role!r}; user and assistant take "
                "turns, after one system message at most"
            )
    if len(contents) % 2:
        raise ValueError("the last message has no answer")
    texts = [text for _, text in contents]
    return Conversation(system, tuple(zip(texts[::2], texts[1::2], strict=True)))


def _content(message: Any, number: int) -> tuple[object, str]:
    """Role and text."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise ValueError(f'message {number} has no "role" and "content"')
    content = message["content"]
    if not isinstance(content, str):
        raise ValueError(f"the content of message {number} is no text")
    try:
        content.encode()  # JSON can write halves of characters, which no tokenizer takes
    except UnicodeEncodeError:
        raise ValueError(f"the content of message {number} is no text") from None
    return message["role"], content
