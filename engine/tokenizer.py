"""The checkpoint's own tokenizer and chat template, and text that grows token by token."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from aerie.engine.control_tokens import ControlTokens
from aerie.engine.errors import CheckpointError, PromptError, own_command
from aerie.engine.tool_calls import CallForm, Message, Tools, form_of, told

if TYPE_CHECKING:
    from jinja2 import Template

# Classes whose whole behaviour is in tokenizer.json. AutoTokenizer would do for these too, but where
# torch is installed it imports torch, which takes seconds.
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

NAMED_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""What a chat template knows by name."""
NOT_PLAIN = ("fast_tokenizer_files", "split_special_tokens", "extra_special_tokens")
"""Settings by which transformers makes something else of tokenizer.json."""
LEGACY = ("special_tokens_map.json", "added_tokens.json")
"""Files with more tokens, which count where tokenizer_config.json lists none."""
GENERATION_BLOCK = re.compile(r"\{%[-+]?\s*generation\b")
"""A block of chat templates that transformers has added to jinja2."""

CONVERTERS = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
"""Packages without which transformers cannot read tokenizer.model, and a module of each."""

TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
"""A line of tiktoken's files: a token in base64, and its rank."""

LONGEST_REASON = 200
"""Characters of what a library says is wrong with a tokenizer; some quote the file."""

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a decoder shows for the first bytes of a character


class Tokenizer:
    """Text to token ids and back. `inner` is a transformers tokenizer, or a PlainTokenizer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        # transformers would warn of a prompt longer than the tokenizer was made for. What counts is how
        # long the programs and the model's context are, and check_prompt refuses what is longer.
        self._inner.model_max_length = sys.maxsize

    @property
    def has_chat_template(self) -> bool:
        return self._inner.chat_template is not None

    def is_like(self, other: Tokenizer) -> bool:
        """Whether every id is the same token in both."""
        return bool(self._vocabulary() == other._vocabulary())

    def _vocabulary(self) -> Any:
        """Ids by their tokens."""
        return getattr(self._inner, "backend_tokenizer", self._inner).get_vocab()

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's, in jinja; None where it has none, or several."""
        template = self._inner.chat_template
        return template if isinstance(template, str) else None

    @cached_property
    def call_form(self) -> CallForm:
        """How the model writes calls of tools."""
        return form_of(self._inner.chat_template)

    def added_tokens(self) -> dict[str, int]:
        """The tokens beside the vocabulary that text is cut into, special ones among them, with their ids."""
        declared = self._backend("say which tokens mark a call").get_added_tokens_decoder().items()
        return {token.content: number for number, token in declared}

    def as_json(self) -> str:
        """What tokenizer.json has. CheckpointError where the checkpoint has none."""
        return str(self._backend("say which tokens an answer of some form may have").to_str())

    @cached_property
    def _control(self) -> ControlTokens:
        return ControlTokens(self._backend("take control tokens for text"))

    def _backend(self, wanted: str) -> Any:
        """The tokenizer as the library tokenizers has it. CheckpointError where it is of another."""
        if backend := getattr(self._inner, "backend_tokenizer", None):
            return backend
        raise CheckpointError(
            f"the tokenizer, a {type(self._inner).__name__}, cannot {wanted}; the checkpoint needs a "
            "tokenizer.json"
        )

    def control_tokens_in(self, text: str) -> list[str]:
        """The control tokens that are spelled out in `text`, each once."""
        return self._control.find(text)

    def encode(self, text: str, control_tokens: bool = False, special: bool = True) -> list[int]:
        """Ids of text, with the special tokens the tokenizer puts around text (BOS, mostly) if `special`.

        A control token that is spelled out in it is text like all else, unless `control_tokens` is set.
        """
        if control_tokens:
            return list(self._inner.encode(text))
        return self._control.encode_text(text, special)

    def encode_chat(self, messages: Sequence[Message], tools: Tools | None = None) -> list[int]:
        """Ids of a conversation in the checkpoint's template, up to where the assistant answers, who is told
        of tools.

        The control tokens are those that the template writes; one that a message or a tool spells out is
        text. Without a template the messages' texts are continued (`without_template`). Raises PromptError
        for a conversation that the template refuses, and as tool_calls.told.
        """
        given = told(messages, tools, self.call_form)
        if not self.has_chat_template:
            return self.encode(without_template(given[0]))
        text = self._render(*given)
        # The template writes the special tokens itself.
        ids = list(self._inner.encode(text, add_special_tokens=False))
        spelled = any(self._control.find(said) for said in _texts(given))
        if not spelled and self._control.are_spelled(ids, text):
            return ids
        return self._control.encode_rendered(self._render(*_changed(given, self._control.hide)))

    def chat_text(self, messages: Sequence[Message], tools: Tools | None = None) -> str:
        """A conversation as its template writes it, up to where the assistant answers. Raises as
        encode_chat."""
        given = told(messages, tools, self.call_form)
        return self._render(*given) if self.has_chat_template else without_template(given[0])

    def _render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._inner.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise PromptError(
                f"the checkpoint's chat template refuses this conversation ({error}); change its messages, "
                "or leave out the system message if there is one"
            ) from None
        return text

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out."""
        text: str = self._inner.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def stream(self, shown: Collection[int] = ()) -> TextStream:
        """Decodes one answer piece by piece. shown: special tokens that are told as they are spelled."""
        return TextStream(self, {each: self._inner.decode([each], **AS_SPELLED) for each in shown})


AS_SPELLED = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}


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


class TextStream:
    """Turns tokens into text as they come; the pieces together are the text of all tokens.

    A character may be spread over several tokens, and a word may begin with a blank only where
    another precedes it. So each piece is the difference between the text of a few tokens with and
    without the new one, and it is held back while it ends inside a character.
    """

    def __init__(self, tokenizer: Tokenizer, spelled: Mapping[int, str]) -> None:
        self._tokenizer, self._spelled = tokenizer, spelled
        self._token_ids: list[int] = []
        self._context = 0  # first token decoded again, to see how the new ones join on
        self._shown = 0  # tokens whose text has been given out

    def feed(self, token_id: int) -> str:
        """The text that `token_id` adds, or "" while it stays incomplete."""
        if token_id in self._spelled:
            return self.flush() + self._spelled[token_id]
        self._token_ids.append(token_id)
        piece = self._pending()
        if piece.endswith(INCOMPLETE):
            return ""
        if piece:
            self._context, self._shown = self._shown, len(self._token_ids)
        return piece

    def flush(self) -> str:
        """What was held back, at the end; an unfinished character becomes U+FFFD."""
        piece = self._pending()
        self._context = self._shown = len(self._token_ids)
        return piece

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._token_ids[self._context : self._shown])
        return self._tokenizer.decode(self._token_ids[self._context :])[len(before) :]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder. CheckpointError where it is missing or cannot be read."""
    # Without torch, transformers prints that models are not available. Nothing here wants one.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise CheckpointError(f"there is no tokenizer.json in {folder}; the checkpoint is incomplete")
    try:
        return Tokenizer(_load(folder))
    except (MemoryError, CheckpointError):
        raise
    except Exception as error:  # transformers and tokenizers raise plain Exception for damaged files
        reason = " ".join(str(error).split())
        shown = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} ..."
        raise CheckpointError(
            f"cannot load the tokenizer in {folder}: {shown}; {_way_out(folder)}"
        ) from error


def _way_out(folder: Path) -> str:
    """What helps where the tokenizer cannot be loaded."""
    if (folder / "tokenizer.json").is_file():
        return "fetch it again"
    return "fetch tokenizer.json of the same model from Hugging Face, which is read in its place"


def _load(folder: Path) -> Any:
    """What transformers would give; itself only where it does more than the two libraries below it."""
    config = _json(folder / "tokenizer_config.json")
    is_generic = config.get("tokenizer_class", GENERIC_CLASSES[0]) in GENERIC_CLASSES
    if is_generic and (folder / "tokenizer.json").is_file():
        if plain := _plain(folder, config):
            return plain
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        _check_convertible(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _check_convertible(folder: Path) -> None:
    """CheckpointError where there is only a tokenizer.model, and transformers cannot read it as it should.

    Meta's own, of tiktoken, lacks the special tokens and the pattern that text is split by.
    """
    with (folder / "tokenizer.model").open("rb") as file:
        is_tiktoken = TIKTOKEN_LINE.fullmatch(file.readline(LONGEST_REASON))
    only = f"{folder} has tokenizer.model and no tokenizer.json, which is what is read"
    fetch = "fetch tokenizer.json of the same model from Hugging Face"
    if is_tiktoken:
        raise CheckpointError(f"{only}: {fetch}")
    missing = [name for name, module in CONVERTERS.items() if not _is_installed(module)]
    if missing:
        pip = own_command("pip", "pip") if _is_installed("pip") else "uv pip"
        raise CheckpointError(
            f"{only}: {fetch}, or have tokenizer.model converted at each start, which takes "
            f"`{pip} install {' '.join(missing)}`"
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would lie in
        return False


def _json(path: Path) -> dict[str, Any]:
    """An object; empty where there is no file."""
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


class PlainTokenizer:
    """What `Tokenizer` needs of a transformers tokenizer, with the libraries tokenizers and jinja2 alone.

    transformers with all that it imports takes a second or more. special_tokens: what a chat template knows
    by name, such as bos_token. The results are those of transformers (tokenization_utils_tokenizers.py and
    utils/chat_template_utils.py).
    """

    model_max_length = sys.maxsize

    def __init__(self, inner: Any, chat_template: str | None, special_tokens: Mapping[str, str]) -> None:
        self._inner = inner
        self._inner.no_truncation()
        self.chat_template = chat_template
        self._special_tokens = special_tokens

    @property
    def backend_tokenizer(self) -> Any:
        return self._inner

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(
        self, token_ids: Sequence[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str:
        assert not clean_up_tokenization_spaces
        text: str = self._inner.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        tokenize: bool,
        add_generation_prompt: bool,
    ) -> str:
        assert not tokenize
        assert self.chat_template is not None
        return _compiled(self.chat_template).render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special_tokens,
        )


@functools.cache
def _compiled(template: str) -> Template:
    """A chat template in the sandbox, and with the functions, that transformers gives it."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Unlike jinja2's own, it keeps < and & as they are."""
        options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    def strftime_now(wanted: str) -> str:
        return datetime.datetime.now().strftime(wanted)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment.from_string(template)


def _plain(folder: Path, config: Mapping[str, Any]) -> PlainTokenizer | None:
    """The tokenizer of a folder, where transformers would add nothing to tokenizer.json; else None."""
    from tokenizers import Tokenizer as Inner

    inner = Inner.from_file(str(folder / "tokenizer.json"))
    template = config.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    named = {
        key: _content(config[key]) for key in config if key.endswith("_token") and not _is_flag(config[key])
    }
    is_plain = (
        not any(config.get(key) for key in NOT_PLAIN)
        and set(named) <= set(NAMED_TOKENS)
        and (template is None or (isinstance(template, str) and not GENERATION_BLOCK.search(template)))
        and not (folder / "additional_chat_templates").is_dir()
        and ("added_tokens_decoder" in config or not any((folder / name).exists() for name in LEGACY))
        and inner.padding is None
        and _are_special(inner, [*named.values(), *_declared_special(config)])
        and _json(folder / "config.json").get("model_type", "llama") == "llama"
    )
    return PlainTokenizer(inner, template, named) if is_plain else None


def _is_flag(value: Any) -> bool:
    """Whether a setting is no token: add_bos_token is true or false, and an absent token is null."""
    return value is None or isinstance(value, bool)


def _content(token: Any) -> str:
    """The text of a token, which tokenizer_config.json may give with its properties; "" for anything else."""
    if isinstance(token, Mapping) and token.get("__type") == "AddedToken":
        token = token["content"]
    return token if isinstance(token, str) else ""


def _declared_special(config: Mapping[str, Any]) -> list[str]:
    declared = config.get("added_tokens_decoder", {}).values()
    return [
        *(token["content"] for token in declared if token.get("special")),
        *map(_content, config.get("additional_special_tokens") or ()),
    ]


def _are_special(inner: Any, tokens: Sequence[str]) -> bool:
    """Whether tokenizer.json has them all as special tokens, so that transformers need not add them."""
    special = {token.content for token in inner.get_added_tokens_decoder().values() if token.special}
    return special.issuperset(tokens)


def check_text(text: str, what: str) -> None:
    """PromptError for a flag that was given in bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PromptError(f"{what} is not valid UTF-8; give it as UTF-8 text") from None


def note_missing_template(tokenizer: Tokenizer, note: Callable[[str], None]) -> None:
    """What is said, wherever messages are encoded, of a checkpoint that has no chat template for them."""
    if not tokenizer.has_chat_template:
        note("note: this checkpoint has no chat template; what you write is continued as plain text")
