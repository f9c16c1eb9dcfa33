"""Chunks that are composed, against transformers with the mask that each mode means.

The reference runs one forward pass with a 4-D mask and positions of its own. A chunk's first tokens, where a
mode links them, stand in it twice: by themselves, as the rest of their chunk sees them, and linked, as all
that comes later sees them. How far a mode is from one text, in which all see all before them, is told beside:
it is what the mode means, and no failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aerie.engine.composing import Composition, Mode, mode_of
from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.reference import Reference
from aerie.verify.rules import Distance, Failure, bounds_of, compare, judge
from aerie.verify.subject import BROKEN, one_line

MODES = ("prefix", "block", "block+link-8")
LENGTHS = (70, 30, 130, 33)
"""Tokens of the chunks, in a context that takes them all: shorter and longer than a page, none a multiple."""


@dataclass(frozen=True)
class Layout:
    """A sequence of which a forward pass with this mask has the rows of a composition: of each row its token,
    its position, and what it sees, (rows, rows) bool. The last `asked` are the last chunk's."""

    token_ids: list[int]
    positions: list[int]
    seen: NDArray[np.bool_]
    asked: int


class _Row(NamedTuple):
    chunk: int
    position: int
    token: int
    alone: bool
    """Whether it sees its own chunk alone."""
    shown: bool
    """Whether later chunks see it."""


def layout(chunks: Sequence[Sequence[int]], mode: Mode) -> Layout:
    """Of these chunks, each 1 token or more."""
    rows = [*_rows(chunks, mode)]
    position, chunk = (np.array([getattr(row, name) for row in rows]) for name in ("position", "chunk"))
    alone, shown = (np.array([getattr(row, name) for row in rows]) for name in ("alone", "shown"))
    same = (chunk[:, None] == chunk) & alone
    seen = np.where(alone[:, None], same, shown) & (position <= position[:, None])
    return Layout([row.token for row in rows], position.tolist(), seen, len(chunks[-1]))


def _rows(chunks: Sequence[Sequence[int]], mode: Mode) -> Iterator[_Row]:
    starts = [0, *accumulate(map(len, chunks))]
    for number, (chunk, start) in enumerate(zip(chunks, starts, strict=False)):
        is_blind = mode.blind and 0 < number < len(chunks) - 1
        linked = len(chunk) if not is_blind else mode.link
        for place, token in enumerate(chunk[:linked]):
            yield _Row(number, start + place, token, alone=False, shown=True)
        for place, token in enumerate(chunk if is_blind else ()):
            yield _Row(number, start + place, token, alone=True, shown=place >= linked)


@dataclass(frozen=True)
class Composed:
    """What a mode gave: `distance` of our logits in the last chunk from the reference's, `rounding` of the
    reference itself; how many chunks were laid; and how far the mode is from one text, in nats, by us."""

    whose: str
    mode: str
    tokens: int
    laid: int = 0
    distance: Distance | None = None
    rounding: Distance | None = None
    from_causal: float = 0.0
    failures: list[Failure] = field(default_factory=list)


def try_modes(whose: str, session: Session, reference: Reference) -> Iterator[Composed]:
    """Every mode with random chunks, in a session of the family `rows`."""
    rng, most = np.random.default_rng(5), session.model.config.vocab_size
    share = min(1.0, session.model.positions / sum(LENGTHS))
    chunks = [[int(token) for token in rng.integers(3, most, int(count * share))] for count in LENGTHS]
    causal = None
    for name in MODES:
        found = try_mode(whose, session, reference, chunks, mode_of(name), causal)
        causal = causal if causal is not None else _logits(session, chunks, mode_of(name))[0]
        yield found


def try_mode(
    whose: str,
    session: Session,
    reference: Reference,
    chunks: Sequence[Sequence[int]],
    mode: Mode,
    causal: F32Array | None = None,
) -> Composed:
    """One mode. causal: logits of the last chunk in one text. What breaks the forward pass is a failure, and
    so is a mode in which nothing was laid."""
    tokens = sum(map(len, chunks))
    try:
        ours, laid = _logits(session, chunks, mode)
    except BROKEN as error:
        return Composed(whose, str(mode), tokens, failures=[Failure("chunks", whose, None, one_line(error))])
    wanted = layout(chunks, mode)
    asked = wanted.token_ids, wanted.positions, wanted.seen, wanted.asked
    theirs, exact = (each.masked(*asked) for each in (reference, reference.exact))
    distance, rounding = compare(theirs, ours), compare(theirs, exact)
    failures = [*judge("chunks", f"{whose}, {mode}", distance, rounding, bounds_of(session))]
    if not laid:
        failures.append(Failure("chunks", f"{whose}, {mode}", None, "nothing was laid from a chunk"))
    from_causal = compare(causal, ours).mean_kl if causal is not None else 0.0
    return Composed(whose, str(mode), tokens, laid, distance, rounding, from_causal, failures)


def _logits(session: Session, chunks: Sequence[Sequence[int]], mode: Mode) -> tuple[F32Array, int]:
    """After every token of the last chunk, (tokens, vocab_size); and how many chunks were laid."""
    registry = session.chunk_registry()
    parts = [registry.chunk(registry.register(chunk)) for chunk in chunks]
    rows = session.scheduler.forward([Composition(parts, mode)], [len(chunks[-1])])[0]
    laid = sum(info.uses > 0 for info in registry.chunks())
    return np.array([row.astype(np.float32) for row in rows]), laid
