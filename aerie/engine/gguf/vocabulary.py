"""The vocabulary in the metadata of a GGUF file.

The metadata is untrusted. It is checked here, so that the tokenizer can be built without further checks. Keys
and types are those of gguf-py (gguf/constants.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, NoReturn

from aerie.engine.errors import CheckpointError

PREFIX: Final = "tokenizer.ggml."
MAX_TOKENS: Final = 1 << 19
"""The largest published vocabulary has 262,144."""
MAX_MERGES: Final = 4_000_000
MAX_TOKEN_LENGTH: Final = 1024
"""Characters of a token. Published ones have up to 256, of blanks."""
MAX_TEXT_LENGTH: Final = 8_000_000
"""Characters of all tokens; published ones have 2 million."""

NAMES: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelled so in GGUF
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
"""The name of a token in chat templates, and the key of its id."""


class TokenType(IntEnum):
    """A value of `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def refuse(what: str) -> NoReturn:
    """Raise CheckpointError for damaged metadata. what: the entry, its value and the limit."""
    raise CheckpointError(f"the GGUF file's tokenizer cannot be read: {what}; fetch the file again")


@dataclass(frozen=True)
class Vocabulary:
    """The checked vocabulary. tokens, types: one entry per id. metadata: all keys of the file."""

    tokens: Sequence[str]
    types: Sequence[int]
    metadata: Mapping[str, Any]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token, without unused ones: those only fill up the rows of the weights."""
        unused = TokenType.UNUSED
        return {
            token: number
            for number, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if token and kind != unused
        }

    def of_types(self, *types: TokenType) -> dict[str, int]:
        """Return the id of each token that has one of `types`."""
        return {token: number for token, number in self.ids.items() if self.types[number] in types}

    @cached_property
    def named(self) -> dict[str, int]:
        """The id of each token in NAMES that the file names, by its name in chat templates."""
        given = {name: self.token_id(key) for name, key in NAMES.items()}
        return {name: number for name, number in given.items() if number is not None}

    def token_id(self, key: str) -> int | None:
        """Return the id in `tokenizer.ggml.KEY`; None if the key is missing. Raises CheckpointError if it is
        out of range."""
        number = self.metadata.get(PREFIX + key)
        if number is None:
            return None
        if isinstance(number, bool) or not isinstance(number, int):
            refuse(f"{PREFIX}{key} is {type(number).__name__}, not an id")
        if not 0 <= number < len(self.tokens):
            refuse(f"{PREFIX}{key} is {number}, and there are {len(self.tokens)} tokens")
        return int(number)

    def flag(self, key: str, default: bool) -> bool:
        """Return the bool in `tokenizer.ggml.KEY`; `default` if it is missing. Raises CheckpointError."""
        value = self.metadata.get(PREFIX + key, default)
        if not isinstance(value, bool):
            refuse(f"{PREFIX}{key} is {type(value).__name__}, not true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        """Return the text in `tokenizer.ggml.KEY`; `default` if it is missing. Raises CheckpointError."""
        value = self.metadata.get(PREFIX + key, default)
        if not isinstance(value, str):
            refuse(f"{PREFIX}{key} is {'missing' if value is None else 'not a text'}")
        return value

    def scores(self) -> Sequence[float]:
        """Return SentencePiece's score of each token: the highest is merged first. Raises CheckpointError."""
        scores = _listed(self.metadata, "scores", MAX_TOKENS)
        if len(scores) != len(self.tokens):
            refuse(f"there are {len(self.tokens)} tokens and {len(scores)} scores")
        if not {*map(type, scores)} <= {float, int} or not all(map(math.isfinite, scores)):
            refuse(f"{PREFIX}scores holds what is no number")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """Return the pairs of tokens to merge, the first priority first. Raises CheckpointError."""
        merges = _listed(self.metadata, "merges", MAX_MERGES)
        if not {*map(type, merges)} <= {str}:
            refuse(f"{PREFIX}merges holds what is no text")
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        known = self.ids
        for number, (left, right) in enumerate(pairs):
            if left not in known or right not in known or left + right not in known:
                refuse(
                    f"merge {number} is {merges[number][:MAX_TOKEN_LENGTH]!r}, which are no two tokens that "
                    "make a third"
                )
        return pairs


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary in metadata. Raises CheckpointError if it is missing, damaged or too large."""
    tokens = _listed(metadata, "tokens", MAX_TOKENS)
    _check_texts(tokens)
    types = _listed(metadata, "token_type", MAX_TOKENS) if PREFIX + "token_type" in metadata else None
    if types is None:
        return Vocabulary(tokens, [TokenType.NORMAL] * len(tokens), metadata)
    if len(types) != len(tokens):
        refuse(f"there are {len(tokens)} tokens and {len(types)} types of them")
    if not {*map(type, types)} <= {int} or not {*types} <= {*map(int, TokenType)}:
        refuse(f"{PREFIX}token_type holds what is none of 0 to {max(TokenType)}")
    return Vocabulary(tokens, types, metadata)


def _listed(metadata: Mapping[str, Any], key: str, most: int) -> Sequence[Any]:
    values = metadata.get(PREFIX + key)
    if not isinstance(values, list | tuple) or not values:
        refuse(f"{PREFIX}{key} is missing or no list")
    if len(values) > most:
        refuse(f"{PREFIX}{key} has {len(values)} entries, and {most} is the limit")
    return values


def _check_texts(tokens: Sequence[Any]) -> None:
    """Raise CheckpointError unless the tokens are distinct UTF-8 texts within the limits."""
    if not {*map(type, tokens)} <= {str}:
        number = next(n for n, token in enumerate(tokens) if type(token) is not str)
        refuse(f"token {number} is {type(tokens[number]).__name__}, not a text")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_LENGTH or sum(map(len, tokens)) > MAX_TEXT_LENGTH:
        refuse(
            f"its tokens have {sum(map(len, tokens))} characters, the longest {longest}, and "
            f"{MAX_TEXT_LENGTH} and {MAX_TOKEN_LENGTH} are the limits"
        )
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        refuse(f"token {next(n for n, token in enumerate(tokens) if not _is_utf8(token))} is not UTF-8")
    if len({*tokens}) < len(tokens) - max(0, tokens.count("") - 1):
        first: dict[str, int] = {}
        again = next(n for n, token in enumerate(tokens) if token and first.setdefault(token, n) != n)
        refuse(f"token {again} is {tokens[again]!r}, which token {first[tokens[again]]} is too")


def _is_utf8(token: str) -> bool:
    try:
        return bool(token.encode()) or True
    except UnicodeEncodeError:
        return False
