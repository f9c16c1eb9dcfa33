"""Checks composed chunks against transformers with the mask that each mode means.

The reference runs one forward pass with a 4-D mask and its own positions. A chunk's first tokens, if a mode
links them, are in it twice: unlinked, as the rest of their chunk sees them, and linked, as all later tokens
see them.
How far a mode is from one text, in which every token sees all before it, is reported too: it is a property of
the mode, and no failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.composed_prompt import ChunkMode, ComposedPrompt, parse_chunk_mode
from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.bounds import GateFailure, LogitsDistance, compare, judge, session_bounds
from aerie.verify.reference import Reference
from aerie.verify.subject import BROKEN, one_line

MODES = ("prefix", "block", "block+link-8")
LENGTHS = (70, 30, 130, 33)
"""Tokens of the chunks, in a context that holds all of them: shorter and longer than a page, none a multiple.
"""


@dataclass(frozen=True)
class Layout:
    """A sequence whose forward pass, with this mask, has the rows of a composition: the token and position of
    each row, and what it sees, (rows, rows) bool. The last `last_chunk_tokens` rows are the last chunk's.
    """

    token_ids: list[int]
    positions: list[int]
    seen: NDArray[np.bool_]
    asked: int


class _Row(NamedTuple):
    chunk: int
    position: int
    token: int
    alone: bool
    """Whether it sees its own chunk only."""
    shown: bool
    """Whether later chunks see it."""


def layout(chunks: Sequence[Sequence[int]], mode: ChunkMode) -> Layout:
    """The masked sequence of these chunks, each of 1 token or more."""
    rows = [*_rows(chunks, mode)]
    position, chunk = (np.array([getattr(row, name) for row in rows]) for name in ("position", "chunk"))
    alone, shown = (np.array([getattr(row, name) for row in rows]) for name in ("alone", "shown"))
    same = (chunk[:, None] == chunk) & alone
    seen = np.where(alone[:, None], same, shown) & (position <= position[:, None])
    return Layout([row.token for row in rows], position.tolist(), seen, len(chunks[-1]))


def _rows(chunks: Sequence[Sequence[int]], mode: ChunkMode) -> Iterator[_Row]:
    starts = [0, *accumulate(map(len, chunks))]
    for number, (chunk, start) in enumerate(zip(chunks, starts, strict=False)):
        is_blind = mode.isolated and 0 < number < len(chunks) - 1
        linked = len(chunk) if not is_blind else mode.link
        for place, token in enumerate(chunk[:linked]):
            yield _Row(number, start + place, token, alone=False, shown=True)
        for place, token in enumerate(chunk if is_blind else ()):
            yield _Row(number, start + place, token, alone=True, shown=place >= linked)


@dataclass(frozen=True)
class Composed:
    """The result of one mode. distance: of our logits in the last chunk from the reference's. rounding: of
    the reference itself. Also how many chunks were inserted, and how far the mode is from one text, in nats,
    in our engine.
    """

    whose: str
    mode: str
    tokens: int
    laid: int = 0
    distance: LogitsDistance | None = None
    rounding: LogitsDistance | None = None
    from_causal: float = 0.0
    failures: list[GateFailure] = field(default_factory=list)


def try_modes(whose: str, session: Session, reference: Reference) -> Iterator[Composed]:
    """Check every mode with random chunks, in a session of decode path `rows`."""
    rng, most = np.random.default_rng(5), session.model.config.vocab_size
    share = min(1.0, session.model.positions / sum(LENGTHS))
    chunks = [[int(token) for token in rng.integers(3, most, int(count * share))] for count in LENGTHS]
    causal = None
    for name in MODES:
        found = try_mode(whose, session, reference, chunks, parse_chunk_mode(name), causal)
        causal = causal if causal is not None else _logits(session, chunks, parse_chunk_mode(name))[0]
        yield found


def try_mode(
    whose: str,
    session: Session,
    reference: Reference,
    chunks: Sequence[Sequence[int]],
    mode: ChunkMode,
    causal: F32Array | None = None,
) -> Composed:
    """Check one mode. causal: logits of the last chunk in one text. An error of the forward pass is a
    failure, and so is a mode in which no chunk was inserted.
    """
    tokens = sum(map(len, chunks))
    try:
        ours, laid = _logits(session, chunks, mode)
    except BROKEN as error:
        return Composed(
            whose, str(mode), tokens, failures=[GateFailure("chunks", whose, None, one_line(error))]
        )
    wanted = layout(chunks, mode)
    asked = wanted.token_ids, wanted.positions, wanted.seen, wanted.asked
    theirs, exact = (each.masked(*asked) for each in (reference, reference.exact))
    distance, rounding = compare(theirs, ours), compare(theirs, exact)
    failures = [*judge("chunks", f"{whose}, {mode}", distance, rounding, session_bounds(session))]
    if not laid:
        failures.append(GateFailure("chunks", f"{whose}, {mode}", None, "nothing was laid from a chunk"))
    from_causal = compare(causal, ours).mean_kl if causal is not None else 0.0
    return Composed(whose, str(mode), tokens, laid, distance, rounding, from_causal, failures)


def _logits(session: Session, chunks: Sequence[Sequence[int]], mode: ChunkMode) -> tuple[F32Array, int]:
    """The logits after every token of the last chunk, (tokens, vocab_size); and how many chunks were
    inserted.
    """
    registry = session.chunk_registry()
    parts = [registry.chunk(registry.register(chunk)) for chunk in chunks]
    rows = session.scheduler.forward([ComposedPrompt(parts, mode)], [len(chunks[-1])])[0]
    laid = sum(info.uses > 0 for info in registry.chunks())
    return np.array([row.astype(np.float32) for row in rows]), laid
