"""Logits as a program gives them, and as float32: any dtype, quantised or not, in one array or several.

The argument table of an LM head describes its outputs: `logits`, or `logits_0`, `logits_1`, ..., which are
parts of the vocabulary, in order; their dtype; and scale and offset if they are quantised. A quantised
element q stands for (q + offset) * scale, as in the seed's getDequantLogits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.numerics import BF16Array, F32Array
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16, f16, f32, u8, u16
from aerie.multi_launch_builder.variants import LOGITS

FLOATS, QUANTISED = (bf16, f16, f32), (u8, u16)


class LogitsError(UserError):
    """The outputs of a program are not logits that can be read."""


def dequantise_logits(
    arguments: ArgumentTable,
    outputs: Mapping[str, NDArray[Any]],
    vocab_size: int,
    n_process: int = 1,
    count: int = 1,
) -> F32Array:
    """The logits of the last `count` of `n_process` tokens, (count, vocab_size) float32.

    outputs: of an LM head with these arguments, by name, each (rows, part of the vocabulary), or flat for one
    row. The first `n_process` rows are tokens; other rows, and columns beyond the vocabulary, are padding.
    Raises LogitsError for tables without logits or of an unsupported dtype, and ArgumentError for arrays of
    another dtype than their table's.
    """
    parts = []
    for argument in logits_arguments(arguments):
        rows = outputs[argument.name].reshape(-1, argument.shape[-1])[n_process - count : n_process]
        parts.append(argument.dequantise(rows))
    numbers: F32Array = np.concatenate(parts, axis=1)[:, :vocab_size]
    return numbers


def log_softmax(row: NDArray[Any]) -> NDArray[np.float64]:
    """Natural logarithms of the softmax of logits, (vocab_size,), in float64."""
    wide: NDArray[np.float64] = np.asarray(row, np.float64) - np.float64(row.max())
    logprobs: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return logprobs


def last_row(
    arguments: ArgumentTable, outputs: Mapping[str, NDArray[Any]], vocab_size: int
) -> BF16Array | F32Array:
    """The logits of a program of one row, (vocab_size,): bf16 unchanged, others as `dequantise_logits`. A
    Sampler takes both."""
    parts = logits_arguments(arguments)
    if any(each.dtype != bf16 for each in parts):
        numbers: F32Array = dequantise_logits(arguments, outputs, vocab_size)[0]
        return numbers
    bits = np.concatenate([outputs[each.name].view(np.uint16) for each in parts])
    row: BF16Array = bits[:vocab_size].view(bf16.numpy)
    return row


@lru_cache(maxsize=64)
def logits_arguments(arguments: ArgumentTable) -> tuple[Argument, ...]:
    """The outputs that are logits, in the order of the vocabulary. Raises LogitsError if there are none."""
    outputs = [each for each in arguments if each.role is Role.OUTPUT and LOGITS.fullmatch(each.name)]
    if not outputs:
        raise LogitsError(
            f"none of the outputs among {', '.join(arguments.names)} is called logits, or logits_0 and so "
            "on; take the program of an LM head"
        )
    for each in outputs:
        _check_type(each)
    return tuple(sorted(outputs, key=lambda each: int(each.name.partition("_")[2] or 0)))


def _check_type(argument: Argument) -> None:
    if argument.dtype in QUANTISED and argument.scale is None:
        raise LogitsError(
            f"argument {argument} is quantised, and its table has no scale, so nothing says what its "
            "elements stand for; declare it with scale and offset"
        )
    if argument.dtype not in (*FLOATS, *QUANTISED):
        legal = ", ".join(str(each) for each in (*QUANTISED, *FLOATS))
        raise LogitsError(f"argument {argument} has a type that logits are not read from; there are: {legal}")
