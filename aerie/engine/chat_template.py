"""A checkpoint's chat template: turns a conversation into the text that the model was trained on.

A template is code from the checkpoint, and its input comes from a request. It is rendered in a child process,
within limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.common.sandbox import BoundedError, BoundedProcess, Limits, RaisedError
from aerie.engine.errors import PromptError
from aerie.engine.tool_calls import Message

MAX_TEMPLATE_LENGTH = 1_000_000
"""Maximum characters of a template. Published ones have up to 30,000."""

MAX_CONCURRENT_RENDERS = 4
"""Maximum conversations that are rendered at the same time: a slow one delays no other."""

RENDERING = BoundedProcess(
    "aerie.engine.template_renderer", Limits(cpu_s=2.0, wait_s=30.0), MAX_CONCURRENT_RENDERS
)

RESERVED_NAMES = ("messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now")
"""Names in a template that are set by other arguments, or are functions."""


CONTINUATION_MARK = "\ufdd0\ufdd1 "
"""Marks the end of an answer that is to be continued. Unicode reserves these two characters for internal use.
"""


class TemplateArgumentError(PromptError):
    """An argument that cannot be passed to a chat template. `name`: its name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class ChatTemplate:
    """templates: jinja sources by name; a single one is `default`. special_tokens: values that they know by
    name, such as bos_token."""

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]

    def warm(self) -> None:
        """Start a child process, while other things are loaded."""
        RENDERING.warm()

    @property
    def text(self) -> str | None:
        """The template; None if there are several."""
        (first, *others) = self.templates.values()
        return None if others else first

    def select(self, with_tools: bool) -> str:
        """The template to render: as in transformers `tool_use` if there are tools, else `default`. Raises
        PromptError if there is neither."""
        names = ["tool_use", "default"] if with_tools else ["default"]
        template = next((self.templates[name] for name in names if name in self.templates), None)
        if template is None:
            others = ", ".join(sorted(self.templates))
            raise PromptError(
                f"the checkpoint has several chat templates ({others}), and none is named default, which is "
                "for conversations without tools; name one of them so in its tokenizer_config.json"
            )
        if len(template) > MAX_TEMPLATE_LENGTH:
            raise PromptError(
                f"the checkpoint's chat template is {len(template)} characters long, and "
                f"{MAX_TEMPLATE_LENGTH} is the limit; fetch its file again"
            )
        return template

    def check_arguments(self, arguments: Iterable[str]) -> None:
        """Raises TemplateArgumentError for a name that the template gets another value for."""
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
        """The text, up to where the assistant's answer starts; with `continues`, to the end of the last
        message, which the answer continues. arguments: further values, by their names in the template. Raises
        PromptError if the template gives no text."""
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
    """The text before CONTINUATION_MARK. If the template trims messages, the blank before it is trimmed
    too."""
    before, mark, after = text.rpartition(CONTINUATION_MARK.rstrip())
    if not mark:
        raise PromptError(
            "the checkpoint's chat template does not write the last message as it stands, so that no answer "
            "can go on with it; end with a message of the user"
        )
    return before if after.startswith(CONTINUATION_MARK[-1]) else before.rstrip()


def _way_out(error: BoundedError) -> str:
    if isinstance(error, RaisedError) and error.kind == "TemplateError":
        return "change its messages, or leave out the system message if there is one"
    return "change its messages, or mend the template in the checkpoint's folder"
