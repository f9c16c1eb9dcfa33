"""Checks composed chunks against transformers with the attention mask of each mode.

The reference runs one forward pass with a 4-D mask and explicit positions. If a mode links the first tokens
of a chunk, the sequence has them twice: unlinked, for the rest of their chunk, and linked, for all later
tokens. The check also reports how far a mode is from plain causal attention over the whole text. That
distance is a property of the mode and never a failure.
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
from aerie.verify.subject import FORWARD_ERRORS, one_line

MODES = ("prefix", "block", "block+link-8")
LENGTHS = (70, 30, 130, 33)
"""Tokens of each chunk if the context holds all of them: shorter and longer than a page, none a multiple of
it.
"""


@dataclass(frozen=True)
class MaskedSequence:
    """A sequence whose forward pass with a mask is equivalent to a composition of chunks.

    token_ids, positions: of each row. visible: (rows, rows) bool, which rows each row attends to.
    last_chunk_tokens: how many of the last rows are the last chunk's.
    """

    token_ids: list[int]
    positions: list[int]
    visible: NDArray[np.bool_]
    last_chunk_tokens: int


class _Row(NamedTuple):
    chunk: int
    position: int
    token: int
    alone: bool
    """Whether the row attends to its own chunk only."""
    shown: bool
    """Whether later chunks attend to the row."""


def masked_sequence(chunks: Sequence[Sequence[int]], mode: ChunkMode) -> MaskedSequence:
    """Return the masked sequence of these chunks, each of 1 token or more."""
    rows = [*_rows(chunks, mode)]
    position, chunk = (np.array([getattr(row, name) for row in rows]) for name in ("position", "chunk"))
    alone, shown = (np.array([getattr(row, name) for row in rows]) for name in ("alone", "shown"))
    same = (chunk[:, None] == chunk) & alone
    seen = np.where(alone[:, None], same, shown) & (position <= position[:, None])
    return MaskedSequence([row.token for row in rows], position.tolist(), seen, len(chunks[-1]))


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
class ChunkModeResult:
    """The result of one mode.

    distance: of our logits in the last chunk from the reference's. rounding: of the reference in bf16 from
    itself in float32. laid: how many chunks were inserted. from_causal: mean KL divergence, in nats, of our
    engine's result from its result with plain causal attention.
    """

    whose: str
    mode: str
    tokens: int
    laid: int = 0
    distance: LogitsDistance | None = None
    rounding: LogitsDistance | None = None
    from_causal: float = 0.0
    failures: list[GateFailure] = field(default_factory=list)


def try_modes(model_name: str, session: Session, reference: Reference) -> Iterator[ChunkModeResult]:
    """Check every mode with random chunks, in a session of decode path `rows`."""
    rng, vocab_size = np.random.default_rng(5), session.model.config.vocab_size
    # All within a sliding window, of which the reference's mask knows nothing.
    reach = min(session.model.positions, session.model.config.sliding_window or session.model.positions)
    share = min(1.0, reach / sum(LENGTHS))
    chunks = [[int(token) for token in rng.integers(3, vocab_size, int(count * share))] for count in LENGTHS]
    causal = None
    for name in MODES:
        result = try_mode(model_name, session, reference, chunks, parse_chunk_mode(name), causal)
        causal = causal if causal is not None else _logits(session, chunks, parse_chunk_mode(name))[0]
        yield result


def try_mode(
    model_name: str,
    session: Session,
    reference: Reference,
    chunks: Sequence[Sequence[int]],
    mode: ChunkMode,
    causal: F32Array | None = None,
) -> ChunkModeResult:
    """Check one mode. causal: logits of the last chunk with plain causal attention.

    An error of the forward pass is a failure, and so is a mode in which no chunk was inserted.
    """
    tokens = sum(map(len, chunks))
    try:
        ours, inserted = _logits(session, chunks, mode)
    except FORWARD_ERRORS as error:
        return ChunkModeResult(
            model_name, str(mode), tokens, failures=[GateFailure("chunks", model_name, None, one_line(error))]
        )
    sequence = masked_sequence(chunks, mode)
    inputs = sequence.token_ids, sequence.positions, sequence.visible, sequence.last_chunk_tokens
    theirs, exact = (model.masked(*inputs) for model in (reference, reference.exact))
    distance, rounding = compare(theirs, ours), compare(theirs, exact)
    failures = [*judge("chunks", f"{model_name}, {mode}", distance, rounding, session_bounds(session))]
    if not inserted:
        failures.append(GateFailure("chunks", f"{model_name}, {mode}", None, "no chunk was inserted"))
    from_causal = compare(causal, ours).mean_kl if causal is not None else 0.0
    return ChunkModeResult(model_name, str(mode), tokens, inserted, distance, rounding, from_causal, failures)


def _logits(session: Session, chunks: Sequence[Sequence[int]], mode: ChunkMode) -> tuple[F32Array, int]:
    """Return the logits after every token of the last chunk, (tokens, vocab_size), and the number of inserted
    chunks.
    """
    registry = session.chunk_registry()
    parts = [registry.chunk(registry.register(chunk)) for chunk in chunks]
    rows = session.scheduler.forward([ComposedPrompt(parts, mode)], [len(chunks[-1])])[0]
    inserted = sum(info.uses > 0 for info in registry.chunks())
    return np.array([row.astype(np.float32) for row in rows]), inserted
