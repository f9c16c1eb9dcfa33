"""What a sequence begins with: a text, of which all is run, or chunks, of which most is laid into place.

A chunk is a text that was read by itself (chunks.py). Three modes say what the tokens of a composition see:

    prefix          all tokens before them: it is one text, and what is known of it is not computed again
    block           a chunk its own tokens alone; the last chunk, and what comes after it, all of them
    block+link-K    as block, but the first K tokens of each chunk are run anew, and see all before them

In the first mode no bit is other than without chunks. In the others keys and values are those of another
mask: equal to a run of the model with that mask, and not to reading one text. `docs/how-to/chunks.md` says
what is lost. The first chunk has nothing before it, so it is the same in all of them.
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
    """What a sequence begins with."""

    @property
    def tokens(self) -> Sequence[Token]:
        """All of it, 1 or more; the last is always run."""

    @property
    def key(self) -> bytes | None:
        """What keys and values depend on beside these tokens; None where that is nothing."""

    def run_until(self, length: int) -> int | None:
        """After `length` positions: up to where tokens are run; None for all that come."""

    def insert_next(self, sequence: PagedSequence) -> int:
        """Give the sequence what is laid after the positions that it has; how many tokens. PoolFullError
        where there are no pages for them."""


@dataclass(frozen=True)
class PlainPrompt:
    """Tokens that are all run."""

    tokens: Sequence[Token]
    key = None

    def run_until(self, length: int) -> None:
        """See PromptSource."""

    def insert_next(self, sequence: PagedSequence) -> int:  # noqa: ARG002
        """Nothing."""
        return 0


class ChunkMode(NamedTuple):
    """blind: whether a chunk does not see those before it. link: how many of its first tokens do."""

    isolated: bool
    link: int = 0

    def __str__(self) -> str:
        return f"{LINK}{self.link}" if self.link else BLOCK if self.isolated else PREFIX


def parse_chunk_mode(text: str) -> ChunkMode:
    """The mode of this name. UserError for what is none."""
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
    """A chunk that can be laid into a sequence."""

    @property
    def tokens(self) -> Sequence[int]: ...

    def insert(self, sequence: PagedSequence, first: int, end: int) -> None:
        """Give the sequence this chunk, which stands from position `first` on, from the positions that it
        has up to `end`. PoolFullError."""


class ComposedPrompt:
    """Chunks, one after the other. The last of them is run, as are the links of the others."""

    def __init__(self, parts: Sequence[InsertableChunk], mode: ChunkMode) -> None:
        self.tokens = tuple(itertools.chain.from_iterable(part.tokens for part in parts))
        ends = [*itertools.accumulate(len(part.tokens) for part in parts)]
        laid = zip(parts[:-1], [0, *ends], ends, strict=False)
        self._insertions = [
            _Insertion(part, first, min(first + mode.link if first else 0, end), end)
            for part, first, end in (laid if mode.isolated else itertools.islice(laid, 1))
        ]
        self._mode = mode

    @property
    def key(self) -> bytes | None:
        """Of the mode and of where the chunks begin; None where that changes nothing."""
        blind = [
            (laid.insert_from, laid.end)
            for laid in self._insertions
            if laid.first and laid.insert_from < laid.end
        ]
        if not blind:
            return None
        stand = self._mode.link, *((laid.first, laid.end) for laid in self._insertions)
        return hashlib.sha256(repr(stand).encode()).digest()

    def run_until(self, length: int) -> int | None:
        """See PromptSource."""
        return next(
            (
                laid.insert_from
                for laid in self._insertions
                if length < laid.end and laid.insert_from < laid.end
            ),
            None,
        )

    def insert_next(self, sequence: PagedSequence) -> int:
        """See PromptSource."""
        before = sequence.length
        for laid in self._insertions:
            if laid.insert_from <= sequence.length < laid.end:
                laid.chunk.insert(sequence, laid.first, laid.end)
        return sequence.length - before


def prompt_source(prompt: Sequence[Token] | ComposedPrompt) -> PromptSource:
    """What a sequence with this prompt begins with."""
    return prompt if isinstance(prompt, ComposedPrompt) else PlainPrompt(prompt)


class _Insertion(NamedTuple):
    """A chunk from position `first` to `end`, which is laid from `begin` on."""

    chunk: InsertableChunk
    first: int
    insert_from: int
    end: int
