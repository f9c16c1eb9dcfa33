"""The chat REPL: a conversation that is prefilled from its start for every answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

from aerie.cli.answer_printer import print_answer
from aerie.cli.chat_model import MAKE_ROOM, ChatModel
from aerie.cli.chat_settings import SETTINGS, ChatSettings, change
from aerie.cli.line_input import InputEntry, ReadLine, file_completions, next_entry
from aerie.common.cli_parser import did_you_mean
from aerie.common.errors import UserError
from aerie.engine.conversation import Conversation, Turn, load, save
from aerie.engine.errors import PromptTooLongError
from aerie.engine.generate import FinishReason
from aerie.engine.reporter import stop_on_interrupt
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.thinking import AnswerPart
from aerie.engine.tokenizer import Tokenizer
from aerie.engine.tool_calls import Message


class ChatSession(Protocol):
    """What a chat needs of engine.session.Session."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def ensure_programs(self, prompt_ids: Sequence[int]) -> None: ...

    def generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        sampler: Sampler,
        interrupted: Callable[[], bool],
    ) -> Request: ...

    def text(self, generation: Request) -> Iterator[str]: ...


class ChatCommand(NamedTuple):
    """A command of the chat. argument_name: "" if it takes none."""

    argument_name: str
    summary: str
    run: Callable[[Chat, str], None]


class Chat:
    """One conversation. Answers go to `out`, everything else to `note`."""

    def __init__(
        self,
        session: ChatSession,
        sampler: Sampler,
        max_new_tokens: int,
        *,
        note: Callable[[str], None],
        out: TextIO,
        read: ReadLine,
        system: str | None = None,
        model: ChatModel | None = None,
        think: bool | None = None,
    ) -> None:
        self._session = session
        self._settings = ChatSettings(sampler, max_new_tokens, think)
        self._model = model
        self._note = note
        self._out = out
        self._read = read
        self._conversation = Conversation(system)
        self._unanswered: tuple[str, tuple[Turn, ...]] | None = None
        """The last message, where its answer failed, and the turns before it."""
        self._last: Request | None = None
        self._file: Path | None = None
        """Where this conversation is saved already."""
        self._has_exited = False

    def run(self) -> None:
        """Read and answer until /exit or the end of input."""
        self._note("Type a message; /help lists the commands.")
        while not self._has_exited:
            try:
                entry = next_entry(self._read)
            except EOFError:
                return
            try:
                self._handle(entry)
            except KeyboardInterrupt:  # in the moment before or after an answer, or in a command
                self._note("\nStopped.")

    def _handle(self, entry: InputEntry) -> None:
        if entry.text.startswith("/") and not entry.quoted:
            self._command(entry.text)
        elif entry.text:
            self._answer(entry.text, self._conversation.turns)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        command = COMMANDS.get(ALIASES.get(name.lower(), name.lower()))
        if command is None:
            hint = did_you_mean(name.lower(), (*COMMANDS, *ALIASES)) or f"; there are {', '.join(COMMANDS)}."
            self._note(
                f"There is no command {name}{hint} A message that begins with a slash goes between "
                '""" and """.'
            )
        elif rest.strip() and not command.argument_name:
            self._note(f"{name.lower()} takes nothing after it; nothing was done.")
        else:
            try:
                command.run(self, rest.strip())
            except UserError as error:
                self._note(str(error))

    def _answer(self, text: str, turns: tuple[Turn, ...]) -> None:
        """Add a turn after `turns`. A turn that fails leaves the conversation unchanged."""
        self._unanswered = text, turns
        conversation = replace(self._conversation, turns=turns)
        try:
            prompt_ids = self._encode(conversation.messages(text))
            self._session.ensure_programs(prompt_ids)
            with stop_on_interrupt() as interrupted:
                generation = self._session.generate(
                    prompt_ids, self._settings.max_new_tokens, self._settings.sampler, interrupted
                )
                start = self._session.tokenizer.thinking_start(prompt_ids)
                answer = print_answer(self._session.text(generation), self._out, start)
        except PromptTooLongError as error:
            self._note(self._too_long(error))
        except UserError as error:
            self._note(str(error))
        except KeyboardInterrupt:
            self._note("\nStopped; this turn is forgotten.")
        else:
            self._conversation = replace(conversation, turns=(*turns, (text, answer.text)))
            self._unanswered, self._last = None, generation
            self._note_finish(generation)
            self._note_thinking(answer)

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self._session.tokenizer.encode_chat(messages, arguments=self._settings.template_arguments)

    def _note_finish(self, generation: Request) -> None:
        if generation.finish_reason is FinishReason.CONTEXT:
            self._note(f"[{generation.finish_text}; {self._advice}]")
        elif generation.finish_reason is not FinishReason.STOP:
            self._note(f"[{generation.finish_text}]")

    def _note_thinking(self, answer: AnswerPart) -> None:
        if answer.thinking and not answer.text:
            self._note(
                "[all of it was thinking; /set n-tokens allows more, /set think off may answer at once]"
            )

    def _too_long(self, error: PromptTooLongError) -> str:
        if not self._conversation.turns:
            return str(error)
        start = f"With this message the conversation is {error.length} tokens long, and "
        if error.enough is None:
            return f"{start}the model has {error.limit} positions: {self._advice}."
        return (
            f"{start}--seq-len (SEQ_LEN) has programs compiled for at most {error.limit}: {MAKE_ROOM}; a "
            "chat without --seq-len goes on until the model's positions are used up."
        )

    @property
    def _advice(self) -> str:
        return self._model.advice if self._model else MAKE_ROOM

    def _replace_conversation(self, conversation: Conversation) -> None:
        """Switch to another conversation, without figures."""
        self._conversation, self._last, self._unanswered = conversation, None, None

    def reset(self, _: str) -> None:
        self._replace_conversation(Conversation(self._conversation.system))
        self._file = None
        note_on_system = "" if self._conversation.system is None else "; the system message stays"
        self._note(f"The conversation is forgotten{note_on_system}.")

    def undo(self, _: str) -> None:
        turns = self._conversation.turns
        if not turns:
            self._note("There is no turn to take back.")
            return
        self._replace_conversation(replace(self._conversation, turns=turns[:-1]))
        self._note(f"Taken back: {_shortened(turns[-1][0])!r} and its answer; {_turns(len(turns) - 1)} left.")

    def retry(self, _: str) -> None:
        """Answer the last message again. The old answer stays until the new one is complete."""
        turns = self._conversation.turns
        if self._unanswered is not None:
            self._answer(*self._unanswered)
        elif turns:
            if self._settings.sampler.greedy:
                self._note("note: at --temperature 0 (TEMPERATURE) the same message has the same answer")
            self._answer(turns[-1][0], turns[:-1])
        else:
            self._note("There is no message to answer again.")

    def system(self, text: str) -> None:
        if not text:
            system = self._conversation.system
            self._note("There is no system message." if system is None else f"The system message: {system}")
            return
        conversation = replace(self._conversation, system=None if text == '""' else text)
        self._encode(conversation.messages("Hello"))  # a template may refuse it
        self._conversation = conversation
        self._note("The system message is " + ("removed." if conversation.system is None else "set."))

    def save(self, name: str) -> None:
        path = _path(name, "/save")
        conversation, is_ours = self._conversation, path == self._file
        if not conversation.turns:
            raise UserError("There is nothing to save yet.")
        if path.exists() and not is_ours:
            raise UserError(f"{path} exists and is not overwritten; name another file, or remove it first")
        save(conversation, path)
        self._file = path
        replaced = ", in place of what was there" if is_ours else ""
        self._note(f"{_turns(len(conversation.turns))} saved to {path}{replaced}.")

    def load(self, name: str) -> None:
        path = _path(name, "/load")
        conversation, dropped_turns = load(path), len(self._conversation.turns)
        self._encode(conversation.messages("Hello"))
        self._replace_conversation(conversation)
        self._file = path
        forgotten = f"; {_turns(dropped_turns)} before it forgotten" if dropped_turns else ""
        self._note(f"{_turns(len(conversation.turns))} loaded from {path}{forgotten}.")

    def stats(self, _: str) -> None:
        turns = len(self._conversation.turns)
        if self._last is None:
            self._note(f"conversation: {_turns(turns)}, no answer since" if turns else "No answer yet.")
            return
        tokens = len(self._last.prompt_ids) + len(self._last.token_ids)
        self._note(f"{self._last.figures}\nconversation: {turns} turns, {tokens} tokens")

    def set(self, words: str) -> None:
        name, _, value = words.partition(" ")
        if not name:
            self._note(str(self._settings))
        elif name == "system":
            self.system(value.strip())
        elif not value.strip():
            raise UserError(f"/set {name} needs a value: /set {name} VALUE; /set alone shows all settings")
        else:
            self._settings = change(self._settings, name, value.strip())
            self._note(f"{name} is {value.strip()} from the next answer on.")

    def show(self, _: str) -> None:
        if self._model:
            self._note(str(self._model))
        self.system("")
        self._note(f"{self._settings}\nconversation: {_turns(len(self._conversation.turns))}")

    def model(self, name: str) -> None:
        if name:
            raise UserError(
                f"A chat stays with its model: /save FILE, /bye, `aerie chat -m {name}`, then /load FILE."
            )
        self._note(str(self._model) if self._model else "Nothing is known of the model.")

    def help(self, _: str) -> None:
        self._note(HELP)

    def exit(self, _: str) -> None:
        self._has_exited = True


COMMANDS = {
    "/reset": ChatCommand("", "forget the conversation, but not the system message", Chat.reset),
    "/undo": ChatCommand("", "take back the last message and its answer", Chat.undo),
    "/retry": ChatCommand("", "answer the last message again", Chat.retry),
    "/system": ChatCommand("TEXT", 'set the system message; alone shows it, "" removes it', Chat.system),
    "/save": ChatCommand("FILE", "write the conversation to a file, as JSON", Chat.save),
    "/load": ChatCommand("FILE", "go on with a conversation from a file", Chat.load),
    "/set": ChatCommand("NAME VALUE", "change a setting, as temperature 0.7; alone shows all", Chat.set),
    "/show": ChatCommand("", "the model, the system message and the settings", Chat.show),
    "/model": ChatCommand("NAME", "what the model is, or how to talk with another", Chat.model),
    "/stats": ChatCommand("", "figures of the last answer and of the conversation", Chat.stats),
    "/help": ChatCommand("", "this text", Chat.help),
    "/exit": ChatCommand("", "leave (Ctrl-D does too)", Chat.exit),
}

ALIASES = {"/bye": "/exit", "/quit": "/exit", "/clear": "/reset", "/?": "/help"}
"""The names that other programs give to commands."""

FILE_COMMANDS = ("/save", "/load")


def completions(line: str) -> list[str]:
    """What may stand in place of the last word of a line that is being typed, by Tab."""
    *before, word = line.split(" ")
    if not before:
        return [name for name in (*COMMANDS, *ALIASES) if word and name.startswith(word)]
    if before == ["/set"]:
        return [name for name in (*SETTINGS, "system") if name.startswith(word)]
    return file_completions(word) if before[0] in FILE_COMMANDS and len(before) == 1 else []


HELP = "\n".join(
    [
        "Type a message and press Enter.",
        'Several lines: a backslash at the end of each but the last, or """ before and after them all.',
        "What is pasted at once is one message.",
        *(f"{f'{name} {command.argument_name}':<16}{command.summary}" for name, command in COMMANDS.items()),
        f"Other names: {', '.join(f'{other} is {name}' for other, name in ALIASES.items())}. Tab completes.",
        "Ctrl-C stops an answer and keeps the conversation.",
    ]
)


def _turns(count: int) -> str:
    return f"{count} turn{'' if count == 1 else 's'}"


def _shortened(text: str, max_length: int = 50) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[:max_length]}..."


def _path(name: str, command: str) -> Path:
    if not name:
        raise UserError(f"{command} needs the name of a file: {command} FILE")
    if "\0" in name:
        raise UserError(f"{name!r} is no name of a file")
    return Path(os.path.expanduser(name))
