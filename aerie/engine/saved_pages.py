"""What a pool holds of a beginning, in a file, and from there in a pool again: the file of a sequence
(saved.py), of whole pages.

Pages that somebody holds and that are full are never written to again, so they go into a file while the model
goes on: only to take hold of them and to let go wants the model's thread. What comes from a file is written
into pages that nobody can find yet, and is found when all of it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.embeddings import Token
from aerie.engine.pages import PAGE, Paged, PagePool
from aerie.engine.saved import TOKENS, Arrays, MadeBy, OnDemand, SequenceFile, write_file

BOTH = ("keys", "values")


def held(pool: PagePool, tokens: Sequence[Token]) -> Paged:
    """A sequence with the pages that the pool has of these tokens, from the first on. In the model's thread;
    its `release`, or the pool's `leave` in any thread, lets go of them. UserError where there are none."""
    sequence = Paged(pool)
    if not sequence.begin((*tokens, 0)):  # the last token is none that is looked for
        raise UserError(
            f"of these {len(tokens)} tokens the KV pool holds no page of {PAGE}: whole pages alone are kept, "
            "until others need the room; ask for the answer again, then save"
        )
    return sequence


def write_pages(sequence: Paged, path: Path, made_by: MadeBy) -> None:
    """Write what a sequence of `held` has. In any thread. UserError where that is not possible."""
    places, bits = sequence.places(0, sequence.length), _bits(sequence.pool)

    def made(name: str) -> NDArray[Any]:
        return np.array(sequence.token_ids, np.int64) if name == TOKENS else bits[name][:, places]

    write_file(
        path, OnDemand([TOKENS, *bits], made), made_by, in_blocks=sequence.length, dropped=0, answer={}
    )


class PagesFile:
    """A file of `write_pages`, or of a sequence, of which whole pages count that were made by blocks.
    UserError, as SequenceFile, for another one, a torn one, and one that other things made."""

    def __init__(self, path: Path, made_by: MadeBy) -> None:
        self._file = SequenceFile(path, made_by)
        count = 0 if self._file.dropped else self._file.in_blocks // PAGE * PAGE
        if not count:
            raise UserError(f"{path} has no whole page of {PAGE} tokens; give the prompt again")
        self.token_ids = self._file.token_ids[:count]

    def room(self, pool: PagePool) -> Paged:
        """A sequence with what the pool has of it already, and pages for the rest. In the model's thread.
        PoolFullError where there are too few, and UserError where the file has other arrays than the pool;
        nothing is changed then."""
        self._file.check(_bits(pool))
        sequence = Paged(pool)
        found = sequence.begin((*self.token_ids, 0))
        try:
            sequence.reserve(len(self.token_ids) - found)
        except UserError:
            sequence.release()
            raise
        return sequence

    def fill(self, sequence: Paged) -> None:
        """Write the rest into these pages. In any thread."""
        first = sequence.length
        places = sequence.places(first, len(self.token_ids) - first)
        for name, array in _bits(sequence.pool).items():
            array[:, places] = self._file.arrays[name][:, first : len(self.token_ids)]

    def publish(self, sequence: Paged) -> None:
        """From now on it is found by who begins so. In the model's thread."""
        sequence.advance(self.token_ids[sequence.length :])
        sequence.release()


def _bits(pool: PagePool) -> Arrays:
    """All that a pool has, (kv_heads, positions, head_dim) each, by the names that they have in files: as
    numbers of numpy's own, which are copied without the GIL."""
    return {
        f"{kind}.{layer}": array.view(np.uint16)
        for layer, pair in enumerate(pool.layers)
        for kind, array in zip(BOTH, pair, strict=True)
    }
