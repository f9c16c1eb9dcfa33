"""A tokenizer for a vocabulary of any size: bytes, then pairs and triples of characters, then special tokens.

Every id has a text of its own, and every text is encoded, in a half to a third as many tokens as it has
characters. Special tokens come last and stand where Llama 3 has them: from 128000 on of 128256.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import chain, islice, product
from typing import Final

from tokenizers import Tokenizer, models, pre_tokenizers

from aerie.llama32_1b.demo.tokenizer import (
    BEGIN_OF_TEXT,
    END_HEADER,
    END_OF_TEXT,
    END_OF_TURN,
    START_HEADER,
    add_special_tokens,
    byte_level,
)

SPECIAL_COUNT: Final = 256
BYTES: Final = 256
MIN_VOCABULARY: Final = BYTES + SPECIAL_COUNT
MAX_VOCABULARY: Final = 600_000

_PLACES: Final = {
    BEGIN_OF_TEXT: 0,
    END_OF_TEXT: 1,
    START_HEADER: 6,
    END_HEADER: 7,
    "<|eom_id|>": 8,
    END_OF_TURN: 9,
}
"""Where Llama 3 has the special tokens that mean something; the others are reserved."""

_PRINTABLE: Final = "Ġ" + string.ascii_letters + string.digits + string.punctuation[:22]
"""What a byte-level vocabulary writes for the space, and characters that stand for themselves."""


def special_tokens() -> list[str]:
    """The SPECIAL_COUNT special tokens, in the order of their ids."""
    names = {place: token for token, place in _PLACES.items()}
    return [names.get(place, f"<|reserved_special_token_{place}|>") for place in range(SPECIAL_COUNT)]


def begin_of_text(vocab_size: int) -> int:
    """The id of BEGIN_OF_TEXT."""
    return vocab_size - SPECIAL_COUNT + _PLACES[BEGIN_OF_TEXT]


def end_ids(vocab_size: int) -> tuple[int, ...]:
    """The ids that end an answer: those of the released instruct checkpoint."""
    return tuple(
        vocab_size - SPECIAL_COUNT + _PLACES[token] for token in (END_OF_TEXT, "<|eom_id|>", END_OF_TURN)
    )


def mask_id(vocab_size: int) -> int:
    """The mask token of a model of block diffusion: the last of the reserved ones."""
    return vocab_size - 1


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer with `vocab_size` tokens, from MIN_VOCABULARY to MAX_VOCABULARY."""
    merges = list(islice(_merges(), vocab_size - MIN_VOCABULARY))
    texts = chain(sorted(pre_tokenizers.ByteLevel.alphabet()), (first + last for first, last in merges))
    vocabulary = {text: token for token, text in enumerate(texts)}
    tokenizer = byte_level(models.BPE(vocabulary, merges))
    add_special_tokens(tokenizer, special_tokens())
    return tokenizer


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs of characters, then each pair with a character more."""
    pairs = list(product(_PRINTABLE, _PRINTABLE))
    return chain(pairs, ((a + b, c) for (a, b), c in product(pairs, _PRINTABLE)))
