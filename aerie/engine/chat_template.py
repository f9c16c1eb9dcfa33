"""A checkpoint's chat template: a conversation as the text that its model was trained on.

A template is code that came with the checkpoint, and what it is given came with a request. It is rendered in
a child process, within limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.common.sandbox import BoundedError, BoundedProcess, Limits, RaisedError
from aerie.engine.errors import PromptError
from aerie.engine.tool_calls import Message

MAX_TEMPLATE_LENGTH = 1_000_000
"""Characters of a template. Published ones have up to 30,000."""

MAX_CONCURRENT_RENDERS = 4
"""Conversations that are rendered side by side: one that takes all of its time holds no other."""

RENDERING = BoundedProcess(
    "aerie.engine.template_renderer", Limits(cpu_s=2.0, wait_s=30.0), MAX_CONCURRENT_RENDERS
)

RESERVED_NAMES = ("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now")
"""Names in a template that are told by what else is asked, or stand for a function."""


CONTINUATION_MARK = "\ufdd0\ufdd1 "
"""Where an answer goes on that was begun; Unicode gives the two to programs, for use within."""


class TemplateArgumentError(PromptError):
    """An argument for a chat template that cannot be given. `name` is its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class ChatTemplate:
    """templates: in jinja, by their names; one that has no other is `default`. special_tokens: what they know
    by name, such as bos_token."""

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]

    def warm(self) -> None:
        """Have a child process start, beside what else is to be loaded."""
        RENDERING.warm()

    @property
    def text(self) -> str | None:
        """The template; None where there are several."""
        (first, *others) = self.templates.values()
        return None if others else first

    def select(self, with_tools: bool) -> str:
        """The template that is rendered: as in transformers, `tool_use` where there are tools, else
        `default`. PromptError where there is neither."""
        names = ["tool_use", "default"] if with_tools else ["default"]
        found = next((self.templates[name] for name in names if name in self.templates), None)
        if found is None:
            there = ", ".join(sorted(self.templates))
            raise PromptError(
                f"the checkpoint has several chat templates ({there}), and none is named default, which is "
                "for conversations without tools; name one of them so in its tokenizer_config.json"
            )
        if len(found) > MAX_TEMPLATE_LENGTH:
            raise PromptError(
                f"the checkpoint's chat template is {len(found)} characters long, and {MAX_TEMPLATE_LENGTH} is the "
                "limit; fetch its file again"
            )
        return found

    def check_arguments(self, arguments: Iterable[str]) -> None:
        """TemplateArgumentError for one that would take the place of what the template is given anyway."""
        for name in arguments:
            if (
                name in RESERVED_NAMES
                or name in self.special_tokens
                or name.endswith(("_token", "_token_id"))
            ):
                raise TemplateArgumentError(
                    name,
                    f"{name} cannot be given to the chat template, which has a value of this name anyway; "
                    "leave it out",
                )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any],
        continues: bool = False,
    ) -> str:
        """The text, up to where the assistant answers; with `continues`, to the end of what it has said in
        the last message. arguments: further values, by the names that the template has for them. PromptError
        where it makes no text of this."""
        if continues:
            *before, last = messages
            messages = [*before, {**last, "content": last["content"] + CONTINUATION_MARK}]
        values = {
            "documents": None,
            **self.special_tokens,
            **arguments,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": not continues,
        }
        try:
            text = str(RENDERING.call("render", self.select(tools is not None), values))
        except BoundedError as error:
            raise PromptError(
                f"the checkpoint's chat template refuses this conversation ({error}); {_way_out(error)}"
            ) from None

        return _up_to_mark(text) if continues else text


def _up_to_mark(text: str) -> str:
    """What stands before CONTINUATION_MARK. A template that trims messages takes its blank, and is not given those before
    it either."""
    before, found, after = text.rpartition(CONTINUATION_MARK.rstrip())
    if not found:
        raise PromptError(
            "the checkpoint's chat template does not write the last message as it stands, so that no answer "
            "can go on with it; end with a message of the user"
        )
    return before if after.startswith(CONTINUATION_MARK[-1]) else before.rstrip()


def _way_out(error: BoundedError) -> str:
    if isinstance(error, RaisedError) and error.kind == "TemplateError":
        return "change its messages, or leave out the system message if there is one"
    return "change its messages, or mend the template in the checkpoint's folder"
