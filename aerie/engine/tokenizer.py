"""The checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from aerie.engine.chat_template import ChatTemplate, TemplateArgumentError
from aerie.engine.control_tokens import ControlTokens, encode_text_ids
from aerie.engine.detokenizer import Detokenizer, IncrementalDetokenizer, TokenText
from aerie.engine.errors import CheckpointError, PromptError
from aerie.engine.folder import check_tokenizer_files
from aerie.engine.gguf.model_files import GGUFModel, find_gguf
from aerie.engine.gguf.tokenizer import TEMPLATE, tokenizer_from_metadata
from aerie.engine.thinking import ThinkingStart, ThinkingTags, find_tags, thinking_start, with_history_names
from aerie.engine.token_length_bound import TextTooLongError, max_token_bytes
from aerie.engine.tokenizer_files import DEFAULT, read_tokenizer, template_files
from aerie.engine.tool_calls import Message, ToolCallFormat, Tools, detect_format, prepare_messages

MAX_REASON_LENGTH = 200
"""Characters of what a library says is wrong with a tokenizer; some quote the file."""
PROMPT_END = 16
"""Tokens at the end of a prompt in which a tag of thinking is looked for, whatever it is made of."""
NEEDS_CODE = "trust_remote_code"
"""What transformers says of a tokenizer that is code of its checkpoint."""


Given: TypeAlias = tuple[list[dict[str, Any]], list[dict[str, Any]] | None, Mapping[str, Any]]


class Tokenizer:
    """Text to token ids and back. backend: a tokenizers.Tokenizer, which is changed. template: None where the
    checkpoint has none. `template_arguments` are given to the template of every conversation."""

    def __init__(self, backend: Any, template: ChatTemplate | None = None) -> None:
        # How long a prompt may be, the programs and the model's context say: check_prompt refuses more.
        backend.no_truncation()
        backend.no_padding()
        self._backend, self._template = backend, template
        self._control, self._detokenizer = ControlTokens(backend), Detokenizer(backend)
        self._template_arguments: Mapping[str, Any] = {}

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def has_same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether every id is the same token in both."""
        return bool(self._backend.get_vocab() == other._backend.get_vocab())

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's, in jinja; None where it has none, or several."""
        return self._template.text if self._template else None

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of the tokens that the chat template knows by name, such as bos_token; empty without one."""
        return self._template.special_tokens if self._template else {}

    @property
    def template_arguments(self) -> Mapping[str, Any]:
        return self._template_arguments

    @template_arguments.setter
    def template_arguments(self, given: Mapping[str, Any]) -> None:
        """Raises TemplateArgumentError."""
        self._check_arguments(given)
        self._template_arguments = given

    def _check_arguments(self, given: Mapping[str, Any]) -> None:
        if self._template:
            self._template.check_arguments(given)
        elif given:
            name = next(iter(given))
            raise TemplateArgumentError(
                name, f"{name} is for a chat template, and this checkpoint has none; leave it out"
            )

    @cached_property
    def tool_call_format(self) -> ToolCallFormat:
        """How the model writes calls of tools."""
        return detect_format(self._template.templates if self._template else None)

    @cached_property
    def thinking_tags(self) -> ThinkingTags | None:
        """The tags around the model's thinking; None if it has none."""
        return find_tags(self._templates, self.added_tokens())

    def template_names(self, variable: str) -> bool:
        """Whether the chat template has this variable."""
        return any(variable in template for template in self._templates)

    @property
    def _templates(self) -> Collection[str]:
        return self._template.templates.values() if self._template else ()

    def thinking_start(self, prompt_ids: Sequence[int], continued: str | None = None) -> ThinkingStart | None:
        """How the answer to a prompt of the chat template begins; None if the model does not think.
        continued: the message that the answer continues."""
        if self.thinking_tags is None:
            return None
        end = self._detokenizer.text_of(prompt_ids[-PROMPT_END:])
        return thinking_start(self.thinking_tags, end, continued, self.thinking_shown)

    @cached_property
    def thinking_shown(self) -> frozenset[int]:
        """The tags of thinking that are special tokens, which a text leaves out unless they are shown."""
        tags = self.thinking_tags or ()
        return frozenset(number for number, text in self._detokenizer.special.items() if text in tags)

    def thinking_tokens(self, start: ThinkingStart | None, token_ids: Sequence[int]) -> int:
        """How many tokens of an answer are thinking, tags included."""
        if start is None:
            return 0
        splitter, stream = start.splitter(), self.incremental_detokenizer((), start.shown)
        for token in token_ids:
            splitter.feed(stream.feed(token))
        return splitter.thinking_tokens

    def tag_ids(self, tag: str) -> list[int]:
        """The tokens of a tag: one, if it is declared."""
        declared = self.added_tokens().get(tag)
        return self.encode(tag, special=False) if declared is None else [declared]

    def tokens_beyond(self, text: str, vocab_size: int) -> list[int]:
        """The tokens that begin with this text and go on with more than blanks."""
        return [
            number
            for number, each in enumerate(self._vocabulary_texts[:vocab_size])
            if each.startswith(text) and each[len(text) :].strip()
        ]

    @cached_property
    def _vocabulary_texts(self) -> list[str]:
        """The text of each token by itself; of bytes that are no characters, nothing."""
        count = max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        own = (self._detokenizer.own_bytes(number) for number in range(count))
        return [
            self._detokenizer.text_of([number]) if data is None else data.decode(errors="ignore")
            for number, data in enumerate(own)
        ]

    def added_tokens(self) -> dict[str, int]:
        """The tokens beside the vocabulary that text is cut into, special ones among them, with their ids."""
        declared = self._backend.get_added_tokens_decoder().items()
        return {token.content: number for number, token in declared}

    def as_json(self) -> str:
        """What tokenizer.json has, and what the files beside it add."""
        return str(self._backend.to_str())

    def control_tokens_in(self, text: str) -> list[str]:
        """The control tokens that are spelled out in `text`, each once."""
        return self._control.find(text)

    def encode(
        self, text: str, control_tokens: bool = False, special: bool = True, most: int | None = None
    ) -> list[int]:
        """Ids of text, with the special tokens the tokenizer puts around text (BOS, mostly) if `special`.

        A control token that is spelled out in it is text like all else, unless `control_tokens` is set.
        most: tokens; a text that is more by its bytes alone is refused before it is cut, by a
        TextTooLongError.
        """
        self._check_length(text, most)
        if control_tokens:
            return encode_text_ids(self._backend, text, special)
        return self._control.encode_text(text, special)

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        arguments: Mapping[str, Any] | None = None,
        continues: bool = False,
        most: int | None = None,
    ) -> list[int]:
        """Ids of a conversation in the checkpoint's template, up to where the assistant answers. tools: those
        that the template describes. arguments: further values for the template, which go before
        `template_arguments`. continues: the answer goes on with the last message, which is the assistant's.

        The control tokens are those that the template writes; one that a message, a tool or an argument
        spells out is text. Without a template the messages' texts are continued (`without_template`). Raises
        PromptError for a conversation that the template refuses, TemplateArgumentError, and as
        tool_calls.prepare_messages. most: as `encode`; a message is a token or more.
        """
        if most is not None and self.has_chat_template and len(messages) > most:
            raise PromptError(
                f"there are {len(messages)} messages, and {most} tokens is the limit; send fewer"
            )
        given = self._given(messages, tools, arguments, continues)
        if self._template is None:
            return self.encode(without_template(given[0]), most=most)
        text = self._template.render(*given, continues)
        self._check_length(text, most)
        # The template writes the special tokens itself.
        ids = encode_text_ids(self._backend, text, special=False)
        try:
            spelled = any(self._control.find(text) for text in _texts(given))
            hidden: Given = _changed(given, self._control.mask_text) if spelled else given
        except RecursionError:
            raise PromptError(
                "messages, tools or arguments are nested too deeply; send flatter ones"
            ) from None
        if not spelled and self._control.are_spelled(ids, text):
            return ids
        return self._control.encode_rendered(self._template.render(*hidden, continues))

    def _check_length(self, text: str, most: int | None) -> None:
        """TextTooLongError for more than `most` tokens."""
        if most is None or self._longest_token is None or len(text) <= most:
            return
        if (nbytes := len(text.encode())) > most * self._longest_token:
            raise TextTooLongError(nbytes, self._longest_token, most)

    @cached_property
    def _longest_token(self) -> int | None:
        return max_token_bytes(self._backend)

    def chat_text(
        self,
        messages: Sequence[Message],
        tools: Tools | None = None,
        arguments: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> str:
        """A conversation as its template writes it, up to where the assistant answers. As encode_chat."""
        given = self._given(messages, tools, arguments, continues)
        if self._template is None:
            return without_template(given[0])
        return self._template.render(*given, continues)

    def _given(
        self,
        messages: Sequence[Message],
        tools: Tools | None,
        arguments: Mapping[str, Any] | None,
        continues: bool,
    ) -> Given:
        """What a template is given."""
        self._check_arguments(arguments or {})
        last = messages[-1] if messages else {"role": "nobody"}
        if continues and (last["role"] != "assistant" or last.get("tool_calls")):
            raise PromptError(
                "an answer can go on with a text of the assistant, and the last message is none; end with "
                "one, or leave out continue_final_message"
            )
        named = [with_history_names(message, self._templates) for message in messages]
        return *prepare_messages(named, tools, self.tool_call_format), {
            **self._template_arguments,
            **(arguments or {}),
        }

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out."""
        return self._detokenizer.decode(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> list[TokenText]:
        """What each token adds to that text."""
        return self._detokenizer.token_texts(token_ids)

    def incremental_detokenizer(
        self, before: Sequence[int] = (), shown: Collection[int] = ()
    ) -> IncrementalDetokenizer:
        """For the text of one answer, token by token. before: the tokens that it follows. shown: special
        tokens that are shown as text."""
        return IncrementalDetokenizer(self._detokenizer, before, shown)


def _texts(given: Any) -> Iterator[str]:
    """All texts in what JSON can hold."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(given, Sequence):
        for each in given:
            yield from _texts(each)


def _changed(given: Any, change: Callable[[str], str]) -> Any:
    """The same, with each of its texts changed."""
    if isinstance(given, str):
        return change(given)
    if isinstance(given, Mapping):
        return {_changed(key, change): _changed(value, change) for key, value in given.items()}
    return [_changed(each, change) for each in given] if isinstance(given, Sequence) else given


def without_template(messages: Sequence[Message]) -> str:
    """The text that is continued where a checkpoint has no chat template: what was written and what was
    answered, in turn. An answer goes on where the text before it ended; anything else begins a line."""
    text = ""
    for message in messages:
        begins_line = text and message["role"] != "assistant" and not text.endswith("\n")
        text += "\n" * bool(begins_line) + message["content"]
    return text


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, or of a GGUF file. CheckpointError where it is missing or cannot
    be read."""
    model = find_gguf(folder)
    if model is not None:
        return _of_gguf(model, folder)
    check_tokenizer_files(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise CheckpointError(f"there is no tokenizer.json in {folder}; the checkpoint is incomplete")
    try:
        return Tokenizer(*read_tokenizer(folder))
    except (MemoryError, CheckpointError):
        raise
    except Exception as error:  # transformers and tokenizers raise plain Exception for damaged files
        shown = _shown(error)
        if NEEDS_CODE in str(error):
            shown = "it is code of the checkpoint, of which nothing is executed"
        raise CheckpointError(
            f"cannot load the tokenizer in {folder}: {shown}; {_way_out(folder)}"
        ) from error


def _of_gguf(model: GGUFModel, path: Path) -> Tokenizer:
    """That of a GGUF file's metadata, with the chat template of a folder if `path` is one and has one.
    CheckpointError, with the file."""
    try:
        beside = dict(template_files(path)).get(DEFAULT)
        template = {} if beside is None else {TEMPLATE: beside}
        return Tokenizer(*tokenizer_from_metadata({**model.metadata, **template}))
    except CheckpointError as error:
        raise CheckpointError(f"{model.path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise CheckpointError(
            f"cannot load the tokenizer of {model.path}: {_shown(error)}; fetch it again"
        ) from error


def _shown(error: Exception) -> str:
    """What a library says, on one line that is not too long."""
    reason = " ".join(str(error).split())
    return reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]} ..."


def _way_out(folder: Path) -> str:
    """What helps where the tokenizer cannot be loaded."""
    if (folder / "tokenizer.json").is_file():
        return "fetch it again"
    return "fetch tokenizer.json of the same model from Hugging Face, which is read in its place"


def check_text(text: str, what: str) -> None:
    """PromptError for a flag that was given in bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{what} is not valid UTF-8; give it as UTF-8 text") from None


def note_missing_template(tokenizer: Tokenizer, note: Callable[[str], None]) -> None:
    """Note that the checkpoint has no chat template, if so. Call it wherever messages are encoded."""
    if not tokenizer.has_chat_template:
        note("note: this checkpoint has no chat template; what you write is continued as plain text")
