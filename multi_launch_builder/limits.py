"""Which model shapes and prompt lengths the kernels accept, and the nearest ones they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multi_launch_builder.errors import UnsupportedShapeError
from multi_launch_builder.shapes import ModelShape

LM_HEAD_PARTITIONS = 8
"""Launches of lm_head_gemv: with less than 255 trips each, vocabularies up to 1000000 fit comfortably."""
LM_HEAD_ROWS = 64
"""A partition is whole rounds of eight cores with eight rows each, so that every tile is full."""
SEQ_LEN_STEP = 64
"""Rows of the K and V tile of flash_attn: the same at every length, so that padding changes no bit."""


@dataclass(frozen=True)
class Multiple:
    """A quantity that must be a multiple of `step`, because of `why`."""

    name: str
    value: Callable[[ModelShape], int]
    step: int
    why: str


MULTIPLES = (
    Multiple("emb_dim", lambda s: s.emb_dim, 64, "a GEMV reads its row 64 elements at a time"),
    Multiple("hidden_dim", lambda s: s.hidden_dim, 64, "a GEMV reads its row 64 elements at a time"),
    Multiple("head_dim", lambda s: s.head_dim, 32, "RoPE turns 16 pairs of a head at a time"),
    Multiple("n_heads * head_dim", lambda s: s.q_dim, 64, "a GEMV reads its row 64 elements at a time"),
)


def check_shape(shape: ModelShape) -> None:
    """Raises UnsupportedShapeError, naming the nearest legal value, for a shape no kernel is built for."""
    for name in ("emb_dim", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size"):
        if getattr(shape, name) < 1:
            raise UnsupportedShapeError(
                f"{name}={getattr(shape, name)} is not positive; a model has at least 1"
            )
    if shape.n_heads % shape.n_kv_heads:
        divisors = [count for count in range(1, shape.n_heads + 1) if shape.n_heads % count == 0]
        nearest = min(divisors, key=lambda count: abs(count - shape.n_kv_heads))
        raise UnsupportedShapeError(
            f"n_kv_heads={shape.n_kv_heads} does not divide n_heads={shape.n_heads}, so the query heads "
            f"cannot share them evenly; the nearest legal n_kv_heads is {nearest}"
        )
    for rule in MULTIPLES:
        _check_step(rule.name, rule.value(shape), rule.step, rule.why)
    if not shape.rms_norm_eps > 0:
        raise UnsupportedShapeError(
            f"rms_norm_eps={shape.rms_norm_eps} is not positive, so a row of zeros would divide by zero; "
            "Llama's is 1e-5"
        )


def check_seq_len(seq_len: int) -> None:
    """Raises UnsupportedShapeError, naming the nearest legal length, for a length nothing is built for."""
    _check_step("seq_len", seq_len, SEQ_LEN_STEP, "flash_attn takes K and V in tiles of 64 positions")


def _check_step(name: str, value: int, step: int, why: str) -> None:
    if value < 1 or value % step:
        nearest = max(step, round(value / step) * step)
        raise UnsupportedShapeError(
            f"{name}={value} is not a positive multiple of {step} ({why}); the nearest legal value is "
            f"{nearest}"
        )


def legal_seq_len(shape: ModelShape, tokens: int) -> int:
    """The smallest compiled prompt length, in tokens, that holds `tokens` tokens."""
    check_shape(shape)
    return max(1, -(-tokens // SEQ_LEN_STEP)) * SEQ_LEN_STEP


def padded_vocab_size(shape: ModelShape) -> int:
    """Rows of the LM head with padding: the vocabulary rounded up to whole partitions."""
    unit = LM_HEAD_PARTITIONS * LM_HEAD_ROWS
    return -(-shape.vocab_size // unit) * unit
