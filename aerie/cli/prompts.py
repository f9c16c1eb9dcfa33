"""Read a prompt from a flag, a file or standard input, and tokenize it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.cli.package_models import PACKAGE_MODELS
from aerie.common.errors import UsageError
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.conversation import Conversation
from aerie.engine.errors import PromptError
from aerie.engine.forward import check_prompt
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.tokenizer import Tokenizer, check_text, note_missing_template

STANDARD_INPUT = "-"
ENABLE_THINKING = "enable_thinking"
"""The variable of chat templates that turns thinking on and off."""


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt, its ids, and the options for programs that fit it."""

    text: str
    ids: list[int]
    options: RuntimeOptions


def tokenize_prompt(
    checkpoint: Checkpoint,
    arguments: argparse.Namespace,
    options: RuntimeOptions,
    note: Callable[[str], None],
) -> TokenizedPrompt:
    """Read and tokenize the prompt of the arguments. Raises PromptError if it cannot run, UsageError if flags
    contradict."""
    if arguments.raw and arguments.system is not None:
        raise UsageError("--system needs the chat template, which --raw leaves out; give one of the two")
    if arguments.raw and arguments.template_arg:
        raise UsageError(
            "--template-arg is for the chat template, which --raw leaves out, and so are --think and "
            "--no-think; give one of the two"
        )
    if arguments.control_tokens and not arguments.raw:
        raise UsageError("--control-tokens is for text without the chat template; give --raw too")
    text = read_prompt(given_text(arguments), arguments.prompt_file)
    ids = _encode(checkpoint.tokenizer, text, arguments, note)
    options = replace(options, prompt_tokens=len(ids))
    seq_len = options.variant_set(checkpoint.config).seq_len
    end = options.context_end_policy(checkpoint.config)
    check_prompt(ids, checkpoint.config, seq_len, past_context_allowed=end.drops)
    return TokenizedPrompt(text, ids, options)


def _encode(
    tokenizer: Tokenizer, text: str, arguments: argparse.Namespace, note: Callable[[str], None]
) -> list[int]:
    """Ids of a user's message or, with --raw, of plain text."""
    if not arguments.raw:
        note_missing_template(tokenizer, note)
        check_text(arguments.system or "", "the system message")
        tokenizer.template_arguments = dict(arguments.template_arg)
        note_fixed_thinking(tokenizer, tokenizer.template_arguments, note)
        return tokenizer.encode_chat(Conversation(arguments.system).messages(text))
    if not arguments.control_tokens and (spelled := tokenizer.control_tokens_in(text)):
        note(f"note: {', '.join(spelled)} in the prompt is text; with --control-tokens it is what it names")
    return tokenizer.encode(text, control_tokens=arguments.control_tokens)


def note_fixed_thinking(
    tokenizer: Tokenizer, template_arguments: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    """Note it if thinking is turned on or off, and the chat template has no such switch."""
    if ENABLE_THINKING in template_arguments and not tokenizer.template_names(ENABLE_THINKING):
        note(
            f"note: this model's chat template has no {ENABLE_THINKING}, so that its thinking cannot be "
            "turned on or off"
        )


def given_text(arguments: argparse.Namespace) -> str | None:
    """The prompt on the command line, whether it is named or not; "-" if it is piped; None if it is in a
    file. Raises UsageError if there is none, or more than one."""
    named, words = arguments.prompt, arguments.text
    is_named = named is not None or arguments.prompt_file is not None
    if words and is_named:
        raise UsageError(
            f"the prompt is given twice, as {' '.join(words)!r} and with --prompt or --prompt-file; give one"
        )
    if len(words) > 1 and words[0] in (*BUILT_IN_MODELS, *PACKAGE_MODELS):
        raise UsageError(
            f"{words[0]!r} stands where the prompt does; a model is named with -m: -m {words[0]} "
            f"{' '.join(words[1:])!r}"
        )
    if words:
        return " ".join(words)
    if not is_named and sys.stdin is not None and sys.stdin.isatty():
        raise UsageError(
            "there is no prompt: write it after the command, name a file with --prompt-file, or pipe it to "
            "the command; `aerie chat` talks with the model"
        )
    return named if is_named else STANDARD_INPUT


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The prompt itself, or the content of a file; "-" is standard input. One line break at the end of a file
    is dropped. Raises PromptError if it is empty, unreadable or not UTF-8."""
    if prompt is not None and prompt != STANDARD_INPUT:
        check_text(prompt, "the prompt")
        if not prompt.strip():
            raise PromptError("the prompt is empty; give it some text with --prompt")
        return prompt
    name = file or STANDARD_INPUT
    description = "the prompt on standard input" if name == STANDARD_INPUT else f"the prompt file {name}"
    text = read_text(name, description)
    if not text.strip():
        raise PromptError(f"{description} is empty; give it some text")
    return text


def read_text(name: str, description: str) -> str:
    """Read the file of a flag; "-" is standard input. Raises PromptError if it is unreadable or not UTF-8."""
    return _decode(_read_bytes(name, description), description)


def _read_bytes(name: str, description: str) -> bytes:
    try:
        if name != STANDARD_INPUT:
            return Path(os.path.expanduser(name)).read_bytes()
        if sys.stdin.isatty():
            print("the prompt, then Ctrl-D on a line of its own:", file=sys.stderr)
        return sys.stdin.buffer.read()
    except (OSError, AttributeError) as error:  # sys.stdin is None where it was closed
        reason = getattr(error, "strerror", None) or "it is closed"
        raise PromptError(f"{description} cannot be read ({reason}); name a text file") from None


def _decode(content: bytes, description: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{description} is not UTF-8 text (byte {error.start} is 0x{content[error.start]:02x}); convert "
            "it first, for instance with iconv"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
