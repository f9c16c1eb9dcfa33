"""The checkpoint's own tokenizer and chat template, and text that grows token by token."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama32_1b.errors import CheckpointError

# Classes whose whole behaviour is in tokenizer.json. AutoTokenizer would do for these too, but where
# torch is installed it imports torch, which takes seconds.
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a decoder shows for the first bytes of a character

Message = Mapping[str, str]  # "role" (system, user, assistant) and "content"


class Tokenizer:
    """Text to token ids and back. `inner` is a transformers tokenizer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        # transformers would warn of a prompt longer than the tokenizer was made for. What counts is how
        # long the programs and the model's context are, and check_prompt refuses what is longer.
        self._inner.model_max_length = sys.maxsize

    @property
    def has_chat_template(self) -> bool:
        return self._inner.chat_template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the special tokens the tokenizer puts around text (BOS, mostly)."""
        return list(self._inner.encode(text))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation in the checkpoint's template, up to where the assistant answers."""
        text = self._inner.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
        )
        # The template writes the special tokens itself.
        return list(self._inner.encode(text, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out."""
        text: str = self._inner.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def stream(self) -> TextStream:
        """Decodes one answer piece by piece."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text as they come; the pieces together are the text of all tokens.

    A character may be spread over several tokens, and a word may begin with a blank only where
    another precedes it. So each piece is the difference between the text of a few tokens with and
    without the new one, and it is held back while it ends inside a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._context = 0  # first token decoded again, to see how the new ones join on
        self._shown = 0  # tokens whose text has been given out

    def feed(self, token_id: int) -> str:
        """The text that `token_id` adds, or "" while it stays incomplete."""
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
    except MemoryError:
        raise
    except Exception as error:  # transformers and tokenizers raise plain Exception for damaged files
        reason = " ".join(str(error).split())
        raise CheckpointError(f"cannot load the tokenizer in {folder}: {reason}; fetch it again") from error


def _load(folder: Path) -> Any:
    if (folder / "tokenizer.json").is_file() and _class_name(folder) in GENERIC_CLASSES:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(folder)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _class_name(folder: Path) -> str:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return GENERIC_CLASSES[0]
    name: str = json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class", GENERIC_CLASSES[0])
    return name
