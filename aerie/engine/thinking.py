"""Thinking: what a model writes before its answer, between two tags, such as <think> and </think>.

Which tags a model has is read from its chat template, or from the tokens that its tokenizer declares, never
from its name. A template may open the thinking itself (DeepSeek-R1), close it at once (Qwen3 with
enable_thinking false), or leave it to the model (Qwen3, SmolLM3). Only what an answer begins with is
thinking: a tag in the middle of an answer is text.

As in llama.cpp and Ollama, blanks around the thinking and before the answer after it belong to neither.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from aerie.engine.error_scope import isolate_request_errors


class ThinkingTags(NamedTuple):
    """What opens and what closes a model's thinking, as text."""

    start: str
    end: str


KNOWN_TAGS: Final = (
    ThinkingTags("<think>", "</think>"),
    ThinkingTags("[THINK]", "[/THINK]"),
    ThinkingTags("<seed:think>", "</seed:think>"),
    ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Of Qwen3, DeepSeek-R1, SmolLM3 and most others; of Magistral; of Seed-OSS; of Command A."""

HISTORY_NAMES: Final = ("reasoning_content", "reasoning", "thinking")
"""By which names clients send an earlier answer's thinking, and templates read it."""


def find_tags(templates: Iterable[str], tokens: Collection[str]) -> ThinkingTags | None:
    """The tags of a model with these chat templates and declared tokens; None if it has none. A template that
    only removes old thinking names the closing tag alone, one that only opens it the other."""
    texts = [*templates]
    for tags in KNOWN_TAGS:
        if any(tag in text for text in texts for tag in tags) or (texts and {*tags} <= {*tokens}):
            return tags
    return None


def with_history_names(message: Mapping[str, Any], templates: Iterable[str]) -> dict[str, Any]:
    """A message whose thinking has the names that the templates read; `reasoning_content` if they read
    none."""
    if message.get("role") != "assistant":
        return dict(message)
    thinking = next((message[name] for name in HISTORY_NAMES if message.get(name)), None)
    others = {key: value for key, value in message.items() if key not in HISTORY_NAMES}
    if thinking is None:
        return others
    texts = [*templates]
    read = [name for name in HISTORY_NAMES if any(_reads(text, name) for text in texts)]
    return {**others, **dict.fromkeys(read or HISTORY_NAMES[:1], thinking)}


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\.{name}\b|\[['\"]{name}['\"]\]", template) is not None


class AnswerPart(NamedTuple):
    """A piece of an answer: more of its thinking, and more of its text. Either may be empty."""

    thinking: str = ""
    text: str = ""


class Phase(enum.Enum):
    """Where an answer is."""

    BEGINNING = "beginning"  # it may open its thinking, or repeat the tag that its prompt ended with
    THINKING = "thinking"
    BLANKS = "blanks"  # between the thinking and the answer
    ANSWER = "answer"


@dataclass(frozen=True)
class ThinkingStart:
    """How an answer begins. is_open: its prompt opened the thinking. is_closed: its prompt closed it, so that
    none is expected. shown: special tokens that a detokenizer must show for the tags to be found."""

    tags: ThinkingTags
    is_open: bool = False
    is_closed: bool = False
    shown: frozenset[int] = field(default=frozenset())

    def splitter(self) -> ThinkingSplitter:
        """For one answer."""
        return ThinkingSplitter(self.tags, self.is_open)


def thinking_start(
    tags: ThinkingTags, prompt_end: str, continued: str | None, shown: frozenset[int]
) -> ThinkingStart:
    """How the answer to a prompt begins. prompt_end: the last characters of the prompt, special tokens
    included. continued: the message that the answer continues, if any. shown: as in ThinkingStart."""
    if continued is not None and continued.strip():
        is_open = continued.rfind(tags.start) > continued.rfind(tags.end)
        return ThinkingStart(tags, is_open, not is_open, shown)
    end = prompt_end.rstrip()
    return ThinkingStart(tags, end.endswith(tags.start), end.endswith(tags.end), shown)


class ThinkingSplitter:
    """Splits an answer that comes in pieces. phase: where it is after the last piece. thinking_tokens: those
    so far that are thinking, tags included. rest: the text that came with the closing tag in one piece."""

    def __init__(self, tags: ThinkingTags, is_open: bool = False) -> None:
        self._tags, self._is_open, self._has_begun = tags, is_open, is_open
        self.phase, self.thinking_tokens, self.rest = Phase.BEGINNING, 0, ""
        self._pending, self._tokens, self._has_thought = "", 0, False

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next belongs to the thinking, as far as is known."""
        return self._has_begun and self.phase in (Phase.BEGINNING, Phase.THINKING)

    @property
    def undecided(self) -> str:
        """What may be the start of a tag; "" if nothing is."""
        if self.phase is Phase.BEGINNING:
            return self._pending.lstrip()
        length = _prefix_length(self._pending, self._tags.end) if self.phase is Phase.THINKING else 0
        return self._pending[len(self._pending) - length :]

    def feed(self, piece: str, tokens: int = 1) -> AnswerPart:
        """Add the text of so many tokens. Returns what is certain now."""
        self._pending += piece
        self._tokens += tokens
        if self.phase is Phase.BEGINNING:
            self._begin()
        if self._has_begun and self.phase in (Phase.BEGINNING, Phase.THINKING):
            self.thinking_tokens = self._tokens
        thinking = self._take_thinking() if self.phase is Phase.THINKING else ""
        if self.phase is Phase.BLANKS:
            self._pending = self._pending.lstrip()
            if self._pending:
                self.phase = Phase.ANSWER
        if self.phase is not Phase.ANSWER:
            return AnswerPart(thinking)
        text, self._pending = self._pending, ""
        return AnswerPart(thinking, text)

    def flush(self) -> AnswerPart:
        """What was held back, at the end of the answer. Thinking that was never closed stays thinking."""
        rest, self._pending = self._pending, ""
        if self.is_thinking:
            return AnswerPart(rest.rstrip() if self._has_thought else rest.strip())
        return AnswerPart("", "" if self.phase is Phase.BLANKS else rest)

    def split(self, pieces: Iterable[str]) -> Iterator[AnswerPart]:
        """A part for each of the pieces, and one for what was held back."""
        for piece in pieces:
            with isolate_request_errors():
                part = self.feed(piece)
            yield part
        yield self.flush()

    def _begin(self) -> None:
        """Leave the beginning if it is certain whether it opens the thinking."""
        start, tag = self._pending.lstrip(), self._tags.start
        if start.startswith(tag):
            self._pending, self.phase, self._has_begun = start[len(tag) :], Phase.THINKING, True
        elif not tag.startswith(start):
            self.phase = Phase.THINKING if self._is_open else Phase.ANSWER

    def _take_thinking(self) -> str:
        """The thinking that is certain, without the blanks around it."""
        at = self._pending.find(self._tags.end)
        if at >= 0:
            thinking, self.phase = self._pending[:at].rstrip(), Phase.BLANKS
            self._pending = self.rest = self._pending[at + len(self._tags.end) :]
        else:
            sure = len(self._pending) - _prefix_length(self._pending, self._tags.end)
            thinking = self._pending[:sure].rstrip()
            self._pending = self._pending[len(thinking) :]
        thinking = thinking if self._has_thought else thinking.lstrip()
        self._has_thought |= bool(thinking)
        return thinking


def _prefix_length(text: str, tag: str) -> int:
    """Number of characters at the end of `text` that are an incomplete start of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
