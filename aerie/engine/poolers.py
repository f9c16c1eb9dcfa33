"""Poolers: from the last hidden states of a text's tokens to its vector, or to a document's score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from aerie.engine.errors import NotFiniteError
from aerie.engine.head import final_norm
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.pooling import DEFAULT_POOLING, LAST
from aerie.engine.strategies.prefill_only import WantedRows
from aerie.engine.strategies.strategy import Row

MIN_LENGTH = 1e-12
"""What a vector is at least divided by, so that one of zeros stays one (torch's `normalize`)."""


class Pooler(Protocol):
    """Computes the result of a prompt that is not answered from rows of its tokens. wanted: which rows."""

    wanted: WantedRows

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add the rows of the next tokens."""

    def result(self) -> Any:
        """The result after all rows."""


class MeanPooler:
    """Mean of the hidden states of a text's tokens after the final RMSNorm, (hidden_size,) float32."""

    wanted = WantedRows.HIDDEN

    def __init__(self, model: LoadedModel) -> None:
        self._model, self._rows = model, list[Row]()

    def add_rows(self, rows: Sequence[Row]) -> None:
        self._rows += rows

    def result(self) -> F32Array:
        normed = _normed(self._model, self._rows)
        mean: F32Array = normed.mean(axis=0, dtype=np.float32)
        return mean


class LastPooler:
    """The hidden state of a text's last token after the final RMSNorm, (hidden_size,) float32."""

    wanted = WantedRows.LAST_HIDDEN

    def __init__(self, model: LoadedModel) -> None:
        self._model, self._rows = model, list[Row]()

    def add_rows(self, rows: Sequence[Row]) -> None:
        self._rows = [*rows[-1:]]

    def result(self) -> F32Array:
        (row,) = _normed(self._model, self._rows)
        return np.asarray(row, np.float32)


class VectorPooler:
    """The vector of a text, (dimensions,) float32, as the model's PoolingConfig says it. A Pooler.

    dimensions: how many of the first elements stay; None means all. is_normalised: whether the vector then
    has length 1; None means as the model says.
    """

    def __init__(
        self, model: LoadedModel, dimensions: int | None = None, is_normalised: bool | None = None
    ) -> None:
        config = model.config.roles.pooling or DEFAULT_POOLING
        self._pooler = LastPooler(model) if config.pooling == LAST else MeanPooler(model)
        self.wanted, self.add_rows = self._pooler.wanted, self._pooler.add_rows
        self._dimensions = dimensions
        self._is_normalised = config.is_normalised if is_normalised is None else is_normalised

    def result(self) -> F32Array:
        """Raises NotFiniteError."""
        vector = self._pooler.result()[: self._dimensions]
        if not np.isfinite(vector).all():
            raise NotFiniteError
        length = max(np.linalg.norm(vector), np.float32(MIN_LENGTH)) if self._is_normalised else 1
        scaled: F32Array = vector / length
        return scaled


class ScorePooler:
    """How well a document answers a query, from 0 to 1. A Pooler over the prompt that has both.

    The logits of yes and no are sums in float64 over the rows of the head that the two have, on the host: of
    the LM head no other row is needed.
    """

    wanted = WantedRows.LAST_HIDDEN

    def __init__(self, model: LoadedModel) -> None:
        assert model.score_rows is not None
        self._pooler, self._head = LastPooler(model), widen(model.score_rows)
        self.add_rows = self._pooler.add_rows

    @property
    def logits(self) -> F32Array:
        """The logits of yes and, where the head has it, of no: (1,) or (2,) float32."""
        products = self._head.astype(np.float64) * self._pooler.result()
        return np.asarray(products.sum(axis=-1), np.float32)

    def result(self) -> float:
        """Raises NotFiniteError."""
        yes, no = [*self.logits, np.float32(0)][:2]
        if not (np.isfinite(yes) and np.isfinite(no)):
            raise NotFiniteError
        return float(1 / (1 + np.exp(np.float64(no) - np.float64(yes))))


def _normed(model: LoadedModel, rows: Sequence[Row]) -> F32Array:
    hidden: BF16Array = np.array(rows, bf16)
    return widen(final_norm(model, hidden))
