"""Tokens of a prompt that are embeddings, not ids: rows that go into the first layer unchanged.

Code that takes a prompt takes a Token, an id or an EmbeddedToken, wherever it takes an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.errors import PromptError
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.tensors import Rows


@dataclass(frozen=True, eq=False)
class EmbeddedToken:
    """A token's embedding, (hidden_size,) bf16. It equals no other token."""

    row: BF16Array


Token: TypeAlias = "int | EmbeddedToken"


def embedded_tokens(embeddings: NDArray[Any], hidden_size: int) -> list[EmbeddedToken]:
    """A token for each row of (tokens, hidden_size), bf16 or float32, which is rounded to bf16.

    Raises PromptError for another shape or dtype, and for values that are not finite in bf16.
    """
    if embeddings.ndim != 2 or embeddings.shape[1] != hidden_size:
        raise PromptError(
            f"a prompt of embeddings is (tokens, {hidden_size}) for this model, and not {embeddings.shape}"
        )
    if embeddings.dtype not in (bf16, np.float32):
        raise PromptError(f"a prompt of embeddings is bfloat16 or float32, not {embeddings.dtype}; cast it")
    with np.errstate(over="ignore"):
        rows = embeddings.astype(bf16)
    if not np.isfinite(rows.astype(np.float32)).all():
        raise PromptError("a prompt of embeddings holds values that are not finite in bfloat16; mend them")
    return [EmbeddedToken(row) for row in rows]


def ids_only(tokens: Sequence[Token]) -> list[int]:
    """The tokens that are ids."""
    return [token for token in tokens if not isinstance(token, EmbeddedToken)]


def embed(table: Rows, tokens: Sequence[Token]) -> BF16Array:
    """The embeddings of tokens, (len(tokens), hidden_size) bf16. Ids select rows of `table`."""
    ids = [0 if isinstance(token, EmbeddedToken) else token for token in tokens]
    rows = table[ids]
    for index, token in enumerate(tokens):
        if isinstance(token, EmbeddedToken):
            rows[index] = token.row
    return rows
