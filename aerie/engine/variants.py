"""Which variants AR-n x CL-m a model gets: the default set, and the text of VARIANTS.

A list of variants is groups with spaces between them. A group is rows, an x, and contexts, each numbers with
commas between them. It stands for every pair of the two; rows that are more than a context are left out.

    1,8,32x512,2048       1, 8 and 32 rows, each with contexts of 512 and of 2048 positions
    8x512 128x2048        two variants
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aerie.common.errors import UserError
from aerie.multi_launch_builder import UnsupportedShapeError, Variant
from aerie.multi_launch_builder.variants import CONTEXTS, WINDOW_CONTEXTS

SMALL_POSITIONS = 1024
"""A model of at most this number of positions gets the small set."""
SMALL_ROWS = (1, 8, 32, 128)
LARGE_ROWS = (1, 8, 32, 128, 512, 2048)
DEFAULT_CONTEXTS = (512, 2048, 8192)
"""Contexts of the default set, as far as the model has positions. Larger ones must be requested."""

_NUMBERS = r"\d+(?:,\d+)*"


def default_variants(positions: int) -> tuple[Variant, ...]:
    """The default variants of a model with this number of positions.

    At most 1024 positions: 1, 8, 32 and 128 rows; more: 512 and 2048 too. The contexts are those of 512, 2048
    and 8192 that are smaller than the model's positions, and the smallest one that holds these, 8192 at most.
    """
    rows = SMALL_ROWS if positions <= SMALL_POSITIONS else LARGE_ROWS
    needed = min(positions, DEFAULT_CONTEXTS[-1])
    largest = next(context for context in CONTEXTS if context >= needed)
    contexts = {*(context for context in DEFAULT_CONTEXTS if context < largest), largest}
    return tuple(sorted(Variant(n, m) for n in rows for m in contexts if n <= m))


def gathered_contexts(contexts: Sequence[int]) -> list[int]:
    """The contexts of the gathered caches of a model whose variants have these contexts, smallest first."""
    largest = max(contexts[-1], DEFAULT_CONTEXTS[-1])
    return [one for one in CONTEXTS if one <= largest]


def window_contexts(contexts: Sequence[int]) -> list[int]:
    """The contexts of the gathered caches of layers with a window, of such a model, smallest first."""
    gathered = gathered_contexts(contexts)
    return sorted({*gathered, *(one for one in WINDOW_CONTEXTS if one < gathered[-1])})


def parse_variants(text: str) -> tuple[Variant, ...]:
    """The variants of `text`, each once, in order of rows.

    Raises UserError, which explains the format, for malformed text, for a group without a legal pair, and for
    rows or contexts without programs.
    """
    groups = text.split()
    if not groups:
        raise UserError(f"VARIANTS is empty; {_how_to_write()}")
    return tuple(sorted({variant for group in groups for variant in _group(group)}))


def _group(group: str) -> list[Variant]:
    match = re.fullmatch(f"({_NUMBERS})[xX]({_NUMBERS})", group)
    if not match:
        raise UserError(f"VARIANTS: '{group}' is not rows, an x and contexts; {_how_to_write()}")
    rows, contexts = ([int(number) for number in numbers.split(",")] for numbers in match.groups())
    try:
        # A number that there are no programs for is refused, also where no pair would be made of it.
        legal = [Variant(n, CONTEXTS[-1]).rows for n in rows], [Variant(1, m).context for m in contexts]
        if of_windows := next((m for m in contexts if m in WINDOW_CONTEXTS), None):
            raise UnsupportedShapeError(
                f"context (CL) {of_windows} has programs for layers with a sliding window alone",
                f"the legal ones are {', '.join(map(str, CONTEXTS))}",
            )
    except UnsupportedShapeError as error:
        raise UserError(f"VARIANTS: '{group}': {error}") from None
    pairs = [Variant(n, m) for n in legal[0] for m in legal[1] if n <= m]
    if not pairs:
        raise UserError(
            f"VARIANTS: '{group}' leaves nothing: {min(rows)} rows do not fit a context of {max(contexts)}; "
            f"name a context of {min(rows)} or more"
        )
    return pairs


def _how_to_write() -> str:
    return (
        "write rows x contexts, such as 1,8,128x512,2048, which are all pairs of the two, or several of "
        "these with spaces between them, such as '8x512 128x2048'"
    )
