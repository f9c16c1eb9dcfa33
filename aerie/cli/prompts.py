"""What is asked: a prompt from a flag, a file or standard input, and the tokens that it becomes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from aerie.common.errors import UsageError
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.conversation import Conversation
from aerie.engine.errors import PromptError
from aerie.engine.forward import check_prompt
from aerie.engine.tokenizer import Tokenizer, check_text, note_missing_template

STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Asked:
    """A prompt, its ids, and the options for programs that take it."""

    text: str
    ids: list[int]
    options: RuntimeOptions


def ask(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    options: RuntimeOptions,
    note: Callable[[str], None],
) -> Asked:
    """The prompt that the arguments name. Raises PromptError for one that cannot be run."""
    if arguments.raw and arguments.system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out; give one of the two")
    if arguments.raw and arguments.template_arg:
        raise UsageError(
            "--template-arg is for the chat template, which --raw leaves out; give one of the two"
        )
    if arguments.control_tokens and not arguments.raw:
        raise UsageError("--control-tokens is for text without the chat template; give --raw too")
    text = read_prompt(arguments.prompt, arguments.prompt_file)
    ids = _encoded(checkpoint.tokenizer, text, arguments, note)
    options = replace(options, prompt_tokens=len(ids))
    seq_len, end = options.blocks(checkpoint.config).seq_len, options.end(checkpoint.config)
    check_prompt(ids, checkpoint.config, seq_len, endless=end.drops)
    return Asked(text, ids, options)


def _encoded(
    tokenizer: Tokenizer, text: str, arguments: argparse.Namespace, note: Callable[[str], None]
) -> list[int]:
    """Ids of a user's message, or with --raw of bare text."""
    if not arguments.raw:
        note_missing_template(tokenizer, note)
        check_text(arguments.system or "", "the system message")
        tokenizer.template_arguments = dict(arguments.template_arg)
        return tokenizer.encode_chat(Conversation(arguments.system).messages(text))
    if not arguments.control_tokens and (spelled := tokenizer.control_tokens_in(text)):
        note(f"note: {', '.join(spelled)} in the prompt is text; with --control-tokens it is what it names")
    return tokenizer.encode(text, control_tokens=arguments.control_tokens)


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt as given, or read: from standard input for "-". One line break at the end of what is read
    is not part of it. Raises PromptError for what is empty, cannot be read or is no UTF-8.
    """
    if prompt is not None and prompt != STANDARD_INPUT:
        check_text(prompt, "the prompt")
        if not prompt.strip():
            raise PromptError("the prompt is empty; give it some text with --prompt")
        return prompt
    name = file or STANDARD_INPUT
    what = "the prompt on standard input" if name == STANDARD_INPUT else f"the prompt file {name}"
    text = read_text(name, what)
    if not text.strip():
        raise PromptError(f"{what} is empty; give it some text")
    return text


def read_text(name: str, what: str) -> str:
    """A file that a flag names; "-" is standard input. PromptError for what cannot be read or is no UTF-8."""
    return _decoded(_content(name, what), what)


def _content(name: str, what: str) -> bytes:
    try:
        if name != STANDARD_INPUT:
            return Path(os.path.expanduser(name)).read_bytes()
        if sys.stdin.isatty():
            print("the prompt, then Ctrl-D on a line of its own:", file=sys.stderr)
        return sys.stdin.buffer.read()
    except (OSError, AttributeError) as error:  # sys.stdin is None where it was closed
        reason = getattr(error, "strerror", None) or "it is closed"
        raise PromptError(f"{what} cannot be read ({reason}); name a text file") from None


def _decoded(content: bytes, what: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{what} is not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x}); convert it "
            "first, for instance with iconv"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
