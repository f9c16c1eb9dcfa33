"""The source of a sequence's first tokens: a plain prompt, which is computed, or chunks, most of which are
inserted.

A chunk is a text that was computed alone (chunks.py). A mode says what the tokens of a composed prompt attend
to:

    prefix          all tokens before them: it is one text, and its cached start is not computed again
    block           a chunk only itself; the last chunk, and the tokens after it, everything before
    block+link-K    as block, but the first K tokens of each chunk are computed again and attend to all before

In the mode prefix every bit is as without chunks. In the other modes keys and values are those of another
mask: they equal a run of the model with that mask, not a run of one text. `docs/how-to/chunks.md` has the
loss of accuracy. The first chunk has nothing before it, so it is the same in all modes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token
from aerie.engine.page_pool import PagedSequence

PREFIX, BLOCK, LINK = "prefix", "block", "block+link-"


class PromptSource(Protocol):
    """The source of a sequence's first tokens."""

    @property
    def tokens(self) -> Sequence[Token]:
        """All tokens, one or more. The last one is always computed."""

    @property
    def key(self) -> bytes | None:
        """What keys and values depend on beside these tokens; None means nothing."""

    def run_until(self, length: int) -> int | None:
        """After `length` positions: the position up to which tokens are computed; None means all."""

    def insert_next(self, sequence: PagedSequence) -> int:
        """Insert the chunk that follows the sequence's positions, if there is one. Returns the number of
        tokens. Raises PoolFullError."""


@dataclass(frozen=True)
class PlainPrompt:
    """A prompt whose tokens are all computed."""

    tokens: Sequence[Token]
    key = None

    def run_until(self, length: int) -> None:
        """Returns None: all tokens are computed."""

    def insert_next(self, sequence: PagedSequence) -> int:  # noqa: ARG002
        """Returns 0: nothing is inserted."""
        return 0


class ChunkMode(NamedTuple):
    """isolated: whether a chunk does not attend to those before it. link: number of its first tokens that
    do."""

    isolated: bool
    link: int = 0

    def __str__(self) -> str:
        return f"{LINK}{self.link}" if self.link else BLOCK if self.isolated else PREFIX


def parse_chunk_mode(text: str) -> ChunkMode:
    """The mode with this name. Raises UserError if there is none."""
    if text in (PREFIX, BLOCK):
        return ChunkMode(text == BLOCK)
    number = text.removeprefix(LINK)
    if number == text or not number.isdecimal() or int(number) < 1:
        raise UserError(
            f"mode is {text!r}; give {PREFIX!r} (one text), {BLOCK!r} (chunks do not see each other), or "
            f"{LINK + 'K'!r} (but their first K tokens, 1 or more, see all before them)"
        )
    return ChunkMode(True, int(number))


class InsertableChunk(Protocol):
    """A chunk that can be inserted into a sequence."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def insert(self, sequence: PagedSequence, first: int, end: int) -> None:
        """Insert the chunk, which starts at position `first`, from the sequence's length up to position
        `end`. Raises PoolFullError."""


class ComposedPrompt:
    """Chunks, one after the other. The last one is computed, and so are the links of the others."""

    def __init__(self, parts: Sequence[InsertableChunk], mode: ChunkMode) -> None:
        self.tokens = tuple(itertools.chain.from_iterable(part.tokens for part in parts))
        ends = [*itertools.accumulate(len(part.tokens) for part in parts)]
        inserted = zip(parts[:-1], [0, *ends], ends, strict=False)
        self._insertions = [
            _Insertion(part, first, min(first + mode.link if first else 0, end), end)
            for part, first, end in (inserted if mode.isolated else itertools.islice(inserted, 1))
        ]
        self._mode = mode

    @property
    def key(self) -> bytes | None:
        """Hash of the mode and the chunks' positions; None if every bit is as in one text."""
        isolated = [
            (insertion.insert_from, insertion.end)
            for insertion in self._insertions
            if insertion.first and insertion.insert_from < insertion.end
        ]
        if not isolated:
            return None
        layout = self._mode.link, *((insertion.first, insertion.end) for insertion in self._insertions)
        return hashlib.sha256(repr(layout).encode()).digest()

    def run_until(self, length: int) -> int | None:
        return next(
            (
                insertion.insert_from
                for insertion in self._insertions
                if length < insertion.end and insertion.insert_from < insertion.end
            ),
            None,
        )

    def insert_next(self, sequence: PagedSequence) -> int:
        before = sequence.length
        for insertion in self._insertions:
            if insertion.insert_from <= sequence.length < insertion.end:
                insertion.chunk.insert(sequence, insertion.first, insertion.end)
        return sequence.length - before


def prompt_source(prompt: Sequence[Token] | ComposedPrompt) -> PromptSource:
    """The source of a sequence with this prompt."""
    return prompt if isinstance(prompt, ComposedPrompt) else PlainPrompt(prompt)


class _Insertion(NamedTuple):
    """A chunk at positions `first` to `end`, which is inserted from `insert_from` on."""

    chunk: InsertableChunk
    first: int
    insert_from: int
    end: int
