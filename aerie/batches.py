"""Several requests as flat arrays, as Jiuge's inferBatch and forwardBatch take them: the tokens of all, one
request after the other, how many each has, where each begins, and the KV that its caller owns."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from numbers import Integral
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.logits import log_softmax
from aerie.engine.numerics import F32Array
from aerie.engine.pages import PagedSequence, PagePool
from aerie.engine.sampler import Sampler

Numbers: TypeAlias = "Sequence[int] | NDArray[Any]"
"""Whole numbers, a list or an array of one dimension."""


class KV:
    """Keys and values of one sequence, in pages of the model's pool; `Model.new_kv` makes one.

    Whoever made it closes it, or uses it in a `with`: its pages are free then. One that is forgotten gives
    them back too.
    """

    def __init__(self, sequence: PagedSequence, turn: threading.Lock, seed: int | None = None) -> None:
        self.sequence, self._turn = sequence, turn
        self.drawn = Sampler(seed=seed).state()
        """Where the generator of its tokens is."""
        self._finalizer = weakref.finalize(self, sequence.pool.leave, sequence)
        self._finalizer.atexit = False

    @property
    def length(self) -> int:
        """The positions that it holds."""
        return self.sequence.length

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token of each position."""
        return tuple(int(token) for token in self.sequence.token_ids if isinstance(token, Integral))

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return self._finalizer.alive

    def fork(self) -> KV:
        """Another that begins as this one, in the same pages until one of both writes; with draws of its own,
        which begin with the same."""
        self.check_open("it")
        with self._turn:
            other = KV(self.sequence.fork(), self._turn)
        other.drawn = self.drawn
        return other

    def close(self) -> None:
        """Give the pages back. They are found again by what they hold until they are taken."""
        self._finalizer()

    def check_open(self, name: str) -> None:
        """UserError where it was closed."""
        if not self.is_open:
            raise UserError(f"{name} is a KV that was closed; make another with new_kv")

    def __enter__(self) -> KV:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def split(tokens: Numbers, lengths: Numbers) -> list[list[int]]:
    """The tokens of each request. UserError for lengths that do not add up."""
    flat, counts = [int(each) for each in tokens], [int(each) for each in lengths]
    if not counts or min(counts) < 1:
        raise UserError(f"the lengths are {counts}; give one of 1 or more for each request")
    if sum(counts) != len(flat):
        raise UserError(
            f"the lengths {counts} add up to {sum(counts)} and {len(flat)} tokens were given; a request has "
            "as many tokens as its length says"
        )
    ends = np.cumsum(counts)
    return [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]


def check_kvs(kvs: Sequence[KV], positions: Numbers, requests: int, pool: PagePool) -> None:
    """UserError where these are not one KV and a beginning within it for each of so many requests."""
    for name, given in (("KVs", kvs), ("positions", positions)):
        if len(given) != requests:
            raise UserError(
                f"{requests} lengths and {len(given)} {name} were given; give one for each request"
            )
    for number, (kv, first) in enumerate(zip(kvs, positions, strict=True)):
        kv.check_open(f"that of request {number}")
        if kv.sequence.pool is not pool:
            raise UserError(f"the KV of request {number} is of another model; make it with this one's new_kv")
        if not 0 <= first <= kv.length:
            raise UserError(
                f"request {number} begins at position {first} and its KV holds {kv.length}; begin there, or "
                "before it, which forgets what comes after"
            )
        if (same := kvs.index(kv)) < number:
            raise UserError(f"requests {same} and {number} have the same KV; give one of them a fork() of it")


def samplers(requests: int, settings: Mapping[str, Any]) -> list[Sampler]:
    """Those of each request, from settings that are of all or one for each. UserError, with the number of the
    request, for one out of range."""
    for name, given in settings.items():
        if not np.isscalar(given) and len(given) != requests:
            raise UserError(
                f"{requests} lengths and {len(given)} of {name} were given; give one for each request"
            )
    made = []
    for number in range(requests):
        own: dict[str, Any] = {
            name: given if np.isscalar(given) else given[number] for name, given in settings.items()
        }
        try:
            made.append(Sampler(**own))
        except UserError as error:
            raise UserError(f"request {number}: {error}") from None
    return made


def pick(
    kvs: Sequence[KV], positions: Numbers, chosen: Sequence[Sampler], made: Sequence[Sequence[Any]]
) -> list[int]:
    """A token for each request, from the last of its rows of logits. UserError, with the number of the
    request, where one has none; the KVs go back to where their requests began then."""
    tokens = []
    for number, (kv, sampler, rows) in enumerate(zip(kvs, chosen, made, strict=True)):
        sampler.restore(kv.drawn)
        try:
            tokens.append(sampler(rows[-1]))
        except UserError as error:
            for one, first in zip(kvs, positions, strict=True):
                one.sequence.go_back(first)
            raise UserError(f"request {number}: {error}") from error
    for kv, sampler in zip(kvs, chosen, strict=True):
        kv.drawn = sampler.state()
    return tokens


def likelihoods(rows: Sequence[Any], tokens: Sequence[Any]) -> F32Array:
    """log softmax of each row of logits at its token."""
    found = [log_softmax(row)[token] for row, token in zip(rows, tokens, strict=True)]
    return np.array(found, np.float32)
