"""How few tokens a text can be, by its bytes alone: what cannot fit a context need not be cut to know it.

A tokenizer that loses nothing of a text, as those of bytes, has a longest token; a text of n bytes is n /
longest tokens or more. That holds where no step before drops text or makes it much shorter, and the steps are
known here by name; of others nothing is said.
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
"""Normalisers, and to what part they can make a text at most. Of Unicode's forms: a character of 3 bytes (K
of Kelvin) or 4 (mathematical letters) may become one of 1, and one of 2 or 3 stand for three times that."""
KEEPING: Final = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
"""What cuts a text into words and keeps all of it."""
CUTTING: Final = ("Split", "Punctuation")
"""So do these, unless they say Removed."""


class TextTooLongError(PromptTooLongError):
    """A text that is more tokens than `limit`, by its bytes. `length`: tokens, at least."""

    def __init__(self, nbytes: int, longest: int, limit: int) -> None:
        self.length, self.limit, self.enough = -(-nbytes // longest), limit, None
        super(PromptTooLongError, self).__init__(
            f"the text has {nbytes} bytes, and a token stands for {longest} at most: it is {self.length} "
            f"tokens or more, and {limit} is the limit; shorten it"
        )


def max_token_bytes(backend: Any) -> int | None:
    """Bytes of UTF-8 that a token of a tokenizers.Tokenizer stands for at most; None where that is not
    known."""
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
    """A step of a tokenizer as tokenizer.json has it."""
    state: Mapping[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return state


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """To what part a normaliser can make a text; None where that is not known."""
    if normalizer is None:
        return 1
    if normalizer["type"] == "Sequence":
        product = 1
        for each in normalizer["normalizers"]:
            if (one := _shrinks(each)) is None:
                return None
            product *= one
        return product
    if normalizer["type"] == "Replace":
        old = normalizer["pattern"].get("String")
        return 1 if old and len(normalizer["content"].encode()) >= len(old.encode()) else None
    return SHRINKS.get(normalizer["type"])


def _keeps(cutter: Mapping[str, Any] | None) -> bool:
    """Whether what cuts a text into words keeps all of it."""
    if cutter is None or cutter["type"] in KEEPING:
        return True
    if cutter["type"] == "Sequence":
        return all(map(_keeps, cutter["pretokenizers"]))
    return cutter["type"] in CUTTING and cutter["behavior"] != "Removed"


def _knows_every_byte(backend: Any, vocabulary: Mapping[str, int]) -> bool:
    """Whether there is a token for each, so that nothing is left out or taken together as unknown."""
    from tokenizers import pre_tokenizers

    if type(backend.model).__name__ not in ("BPE", "Unigram"):
        return False
    steps = json.dumps([_state(backend.normalizer), _state(backend.pre_tokenizer)])
    if '"ByteLevel"' in steps:
        return set(pre_tokenizers.ByteLevel.alphabet()) <= vocabulary.keys()
    falls_back = bool(getattr(backend.model, "byte_fallback", False))
    return falls_back and {f"<0x{byte:02X}>" for byte in range(256)} <= vocabulary.keys()
