"""From logits to a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from llama32_1b.errors import NotFiniteError, UserError
from llama32_1b.numerics import BF16Array, F32Array, bf16, widen

F64Array: TypeAlias = npt.NDArray[np.float64]

INFINITY_BITS, NEGATIVE = 0x7F80, 0x8000
"""Of bf16: the bits of +infinity, and the sign."""


@dataclass(frozen=True)
class Sampler:
    """Greedy at temperature 0; above it, draws from softmax(logits / temperature) after cutting the tail.

    `top_k` keeps the k most likely tokens (0: all), then `top_p` the fewest whose probabilities reach
    p (1: all), in the order and with the rules of transformers' logits processors. The same `seed`
    draws the same tokens. Raises UserError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}; it must be 0 (all tokens) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}; it must be above 0 and at most 1 (all tokens)")
        if self.seed is not None and self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be 0 or more")
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def __call__(self, logits: F32Array | BF16Array) -> int:
        """The next token for logits of shape (vocab_size,), float32 or bf16.

        Equal logits: the lowest id, when greedy. NotFiniteError where one is not finite.
        """
        if logits.dtype == bf16:
            if self.greedy and (token := _most_likely(logits.view(np.uint16))) is not None:
                return token
            logits = widen(logits)
        if not np.isfinite(logits).all():
            raise NotFiniteError
        if self.greedy:
            return int(np.argmax(logits))
        order = np.argsort(-logits, kind="stable")
        likely = order[: self.top_k] if self.top_k else order
        probabilities = _softmax(logits[likely].astype(np.float64) / self.temperature)
        # A token stays while those before it have not yet reached top_p, so the first always stays.
        kept = np.cumsum(probabilities) - probabilities < self.top_p
        return int(self._random.choice(likely[kept], p=_normalised(probabilities[kept])))


def _most_likely(bits: npt.NDArray[np.uint16]) -> int | None:
    """The place of the largest of bf16 values, from their bits; None where these do not tell.

    Without their sign the bits of floats are in the order of their values, and infinities and NaN come last.
    """
    token = int(np.argmax(bits.view(np.int16)))
    is_positive = 0 < bits[token] < INFINITY_BITS
    return token if is_positive and np.max(bits) < NEGATIVE + INFINITY_BITS else None


def _softmax(values: F64Array) -> F64Array:
    return _normalised(np.exp(values - values.max()))


def _normalised(values: F64Array) -> F64Array:
    normalised: F64Array = values / values.sum()
    return normalised
