"""A lower bound for the number of tokens of a text, from its bytes: a text that cannot fit a context is
refused without tokenizing it.

A tokenizer that keeps all of a text, as byte-level ones do, has a longest token; a text of n bytes has at
least n / longest tokens. This holds if no earlier step drops text or makes it much shorter. The known steps
are listed here; with any other step there is no bound.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aerie.engine.errors import PromptTooLongError

SHRINKS: Final[Mapping[str, int]] = {
    "ByteLevel": 1,
    "Prepend": 1,
    "NFC": 9,
    "NFD": 9,
    "NFKC": 12,
    "NFKD": 12,
}
"""Normalizers, and the factor by which they can shorten a text. Unicode's forms: a character of 3 bytes
(Kelvin sign) or 4 (mathematical letters) may become one of 1, and one of 2 or 3 may stand for three times
that."""
KEEPING: Final = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
"""Pre-tokenizers that keep all of a text."""
CUTTING: Final = ("Split", "Punctuation")
"""Pre-tokenizers that keep all of a text unless they are set to Removed."""


class TextTooLongError(PromptTooLongError):
    """A text with more tokens than `limit`, from its bytes. `length`: minimum number of tokens."""

    def __init__(self, nbytes: int, longest: int, limit: int) -> None:
        self.length, self.limit, self.enough = -(-nbytes // longest), limit, None
        super(PromptTooLongError, self).__init__(
            f"the text has {nbytes} bytes, and a token stands for {longest} at most: it is {self.length} "
            f"tokens or more, and {limit} is the limit; shorten it"
        )


def max_token_bytes(backend: Any) -> int | None:
    """Maximum UTF-8 bytes that a token of a tokenizers.Tokenizer stands for; None if unknown."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    shrinks = _shrinks(_state(backend.normalizer))
    added = backend.get_added_tokens_decoder().values()
    takes_blanks = any(token.lstrip or token.rstrip for token in added)
    if shrinks is None or takes_blanks or not _keeps(_state(backend.pre_tokenizer)):
        return None
    if not _knows_every_byte(backend, vocabulary):
        return None
    return shrinks * max(len(token.encode("utf-8", "replace")) for token in vocabulary)


def _state(part: Any) -> Mapping[str, Any] | None:
    """A step of a tokenizer as in tokenizer.json."""
    state: Mapping[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return state


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """The factor by which a normalizer can shorten a text; None if unknown."""
    if normalizer is None:
        return 1
    if normalizer["type"] == "Sequence":
        product = 1
        for each in normalizer["normalizers"]:
            if (factor := _shrinks(each)) is None:
                return None
            product *= factor
        return product
    if normalizer["type"] == "Replace":
        old = normalizer["pattern"].get("String")
        return 1 if old and len(normalizer["content"].encode()) >= len(old.encode()) else None
    return SHRINKS.get(normalizer["type"])


def _keeps(cutter: Mapping[str, Any] | None) -> bool:
    """Whether a pre-tokenizer keeps all of a text."""
    if cutter is None or cutter["type"] in KEEPING:
        return True
    if cutter["type"] == "Sequence":
        return all(map(_keeps, cutter["pretokenizers"]))
    return cutter["type"] in CUTTING and cutter["behavior"] != "Removed"


def _knows_every_byte(backend: Any, vocabulary: Mapping[str, int]) -> bool:
    """Whether each byte has a token, so that nothing is dropped or merged as unknown."""
    from tokenizers import pre_tokenizers

    if type(backend.model).__name__ not in ("BPE", "Unigram"):
        return False
    steps = json.dumps([_state(backend.normalizer), _state(backend.pre_tokenizer)])
    if '"ByteLevel"' in steps:
        return set(pre_tokenizers.ByteLevel.alphabet()) <= vocabulary.keys()
    falls_back = bool(getattr(backend.model, "byte_fallback", False))
    return falls_back and {f"<0x{byte:02X}>" for byte in range(256)} <= vocabulary.keys()
