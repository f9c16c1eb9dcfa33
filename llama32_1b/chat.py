"""The chat REPL: a conversation that is prefilled afresh, whole, for every answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TextIO

from aerie.llama32_1b.errors import PromptTooLongError, UserError
from aerie.llama32_1b.generate import FinishReason, Generation, Sampler
from aerie.llama32_1b.progress import stop_on_interrupt
from aerie.llama32_1b.tokenizer import Message, Tokenizer

PROMPT = ">>> "
HELP = """\
Type a message and press Enter.
/reset   forget the conversation
/stats   figures of the last answer and of the conversation
/help    this text
/exit    leave (Ctrl-D does too)
Ctrl-C stops an answer and keeps the conversation."""


ROOM = "/reset starts afresh"
"""What to do where a conversation is too long."""


class ChatSession(Protocol):
    """What a chat needs of llama32_1b.session.Session."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def make_room(self, prompt_ids: Sequence[int]) -> None: ...

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool],
    ) -> Generation: ...

    def text(self, generation: Generation) -> Iterator[str]: ...


def require_chat_template(tokenizer: Tokenizer) -> None:
    """UserError where the checkpoint has no chat template."""
    if not tokenizer.has_chat_template:
        raise UserError("this checkpoint has no chat template, which chat needs; use `run` instead")


def typed_line() -> str:
    """A line typed at a terminal, with editing and history; EOFError for Ctrl-D. Ctrl-C drops the line."""
    with suppress(ImportError):
        import readline  # noqa: F401 (input() edits with it once it is loaded)
    try:
        return input(PROMPT)
    except KeyboardInterrupt:
        print("\nCtrl-D or /exit leaves.", file=sys.stderr)
        return ""
    except EOFError:
        print(file=sys.stderr)  # what follows starts on a line of its own
        raise


def piped_line() -> str:
    """A line of standard input, without a prompt; EOFError at its end."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


class Chat:
    """One conversation. Answers go to `out`, everything else through `note`."""

    def __init__(
        self,
        session: ChatSession,
        sampler: Sampler,
        max_new_tokens: int,
        *,
        note: Callable[[str], None],
        out: TextIO,
        read: Callable[[], str],
    ) -> None:
        self._session = session
        self._sampler = sampler
        self._max_new_tokens = max_new_tokens
        self._note = note
        self._out = out
        self._read = read
        self._messages: list[Message] = []
        self._last: Generation | None = None
        self._commands = {"/reset": self._reset, "/stats": self._stats, "/help": self._help}

    def run(self) -> None:
        """Read and answer until /exit or the end of input."""
        self._note("Type a message; /help lists the commands.")
        while True:
            try:
                line = self._read().strip()
            except EOFError:
                return
            if line == "/exit":
                return
            self._handle(line)

    def _handle(self, line: str) -> None:
        if line.startswith("/"):
            self._commands.get(line, lambda: self._unknown(line))()
        elif line:
            self._answer(line)

    def _answer(self, text: str) -> None:
        """One turn. A turn that fails leaves the conversation as it was."""
        messages: list[Message] = [*self._messages, {"role": "user", "content": text}]
        try:
            prompt_ids = self._session.tokenizer.encode_chat(messages)
            self._session.make_room(prompt_ids)
            with stop_on_interrupt() as interrupted:
                generation = self._session.generate(
                    prompt_ids, self._max_new_tokens, self._sampler, interrupted
                )
                answer = self._stream(generation)
        except PromptTooLongError as error:
            self._note(self._too_long(error))
        except UserError as error:
            self._note(str(error))
        except KeyboardInterrupt:
            self._note("\nStopped; this turn is forgotten.")
        else:
            self._messages = [*messages, {"role": "assistant", "content": answer}]
            self._last = generation
            if generation.finish_reason is FinishReason.CONTEXT:
                self._note(f"[{generation.ending}; {ROOM}]")
            elif generation.finish_reason is not FinishReason.STOP:
                self._note(f"[{generation.ending}]")

    def _too_long(self, error: PromptTooLongError) -> str:
        if not self._messages:
            return str(error)
        said = f"With this message the conversation is {error.length} tokens long, and "
        if error.enough is None:
            return f"{said}the model has {error.limit} positions: {ROOM}."
        return (
            f"{said}--seq-len (SEQ_LEN) has programs compiled for at most {error.limit}: {ROOM}; a chat "
            "without --seq-len goes on until the model's positions are used up."
        )

    def _stream(self, generation: Generation) -> str:
        pieces = []
        for piece in self._session.text(generation):
            pieces.append(piece)
            self._out.write(piece)
            self._out.flush()
        self._out.write("\n")
        self._out.flush()
        return "".join(pieces)

    def _reset(self) -> None:
        self._messages = []
        self._last = None
        self._note("The conversation is forgotten.")

    def _stats(self) -> None:
        if self._last is None:
            self._note("No answer yet.")
            return
        turns = len(self._messages) // 2
        tokens = len(self._last.prompt_ids) + len(self._last.token_ids)
        self._note(f"{self._last.figures}\nconversation: {turns} turns, {tokens} tokens")

    def _help(self) -> None:
        self._note(HELP)

    def _unknown(self, line: str) -> None:
        known = ", ".join([*self._commands, "/exit"])
        self._note(f"There is no command {line.split()[0]}; there are {known}.")
