"""Several requests as flat arrays, as in Jiuge's inferBatch and forwardBatch: the tokens of all requests, one
after the other, their lengths, their positions, and the caller's KV caches."""

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
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.sampler import Sampler

Numbers: TypeAlias = "Sequence[int] | NDArray[Any]"
"""Integers: a list or an array of one dimension."""


class KV:
    """Keys and values of one sequence, in pages of the model's pool; `Model.new_kv` makes one.

    Close it, or use it in a `with` block, to free its pages. Garbage collection frees them too.
    """

    def __init__(self, sequence: PagedSequence, lock: threading.Lock, seed: int | None = None) -> None:
        self.sequence, self._lock = sequence, lock
        self.sampler_state = Sampler(seed=seed).state()
        """State of the random generator of its tokens."""
        self._finalizer = weakref.finalize(self, sequence.pool.release_later, sequence)
        self._finalizer.atexit = False

    @property
    def length(self) -> int:
        """Positions that it holds."""
        return self.sequence.length

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token of each position."""
        return tuple(int(token) for token in self.sequence.token_ids if isinstance(token, Integral))

    @property
    def is_open(self) -> bool:
        """Whether it is not closed yet."""
        return self._finalizer.alive

    def fork(self) -> KV:
        """A copy that shares the pages until one of both writes, with its own copy of the sampler state."""
        self.require_open("it")
        with self._lock:
            other = KV(self.sequence.fork(), self._lock)
        other.sampler_state = self.sampler_state
        return other

    def close(self) -> None:
        """Free the pages. The prefix cache keeps them until they are needed."""
        self._finalizer()

    def require_open(self, name: str) -> None:
        """Raise UserError if it is closed."""
        if not self.is_open:
            raise UserError(f"{name} is a KV that was closed; make another with new_kv")

    def __enter__(self) -> KV:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def split_tokens(tokens: Numbers, lengths: Numbers) -> list[list[int]]:
    """The tokens of each request. Raises UserError if the lengths do not add up."""
    flat, counts = [int(value) for value in tokens], [int(value) for value in lengths]
    if not counts or min(counts) < 1:
        raise UserError(f"the lengths are {counts}; give one of 1 or more for each request")
    if sum(counts) != len(flat):
        raise UserError(
            f"the lengths {counts} add up to {sum(counts)} and {len(flat)} tokens were given; a request has "
            "as many tokens as its length says"
        )
    end_offsets = np.cumsum(counts)
    return [flat[end - count : end] for end, count in zip(end_offsets, counts, strict=True)]


def check_kvs(kvs: Sequence[KV], positions: Numbers, requests: int, pool: PagePool) -> None:
    """Raise UserError unless each request has its own KV, and a position within it."""
    for name, values in (("KVs", kvs), ("positions", positions)):
        if len(values) != requests:
            raise UserError(
                f"{requests} lengths and {len(values)} {name} were given; give one for each request"
            )
    for number, (kv, first) in enumerate(zip(kvs, positions, strict=True)):
        kv.require_open(f"that of request {number}")
        if kv.sequence.pool is not pool:
            raise UserError(f"the KV of request {number} is of another model; make it with this one's new_kv")
        if not 0 <= first <= kv.length:
            raise UserError(
                f"request {number} begins at position {first} and its KV holds {kv.length}; begin there, or "
                "before it, which forgets what comes after"
            )
        if (first_index := kvs.index(kv)) < number:
            raise UserError(
                f"requests {first_index} and {number} have the same KV; give one of them a fork() of it"
            )


def make_samplers(requests: int, settings: Mapping[str, Any]) -> list[Sampler]:
    """One sampler per request. settings: one value for all, or one per request. Raises UserError, with the
    number of the request, if a value is out of range."""
    for name, value in settings.items():
        if not np.isscalar(value) and len(value) != requests:
            raise UserError(
                f"{requests} lengths and {len(value)} of {name} were given; give one for each request"
            )
    all_samplers = []
    for number in range(requests):
        arguments: dict[str, Any] = {
            name: value if np.isscalar(value) else value[number] for name, value in settings.items()
        }
        try:
            all_samplers.append(Sampler(**arguments))
        except UserError as error:
            raise UserError(f"request {number}: {error}") from None
    return all_samplers


def sample_tokens(
    kvs: Sequence[KV], positions: Numbers, all_samplers: Sequence[Sampler], logits: Sequence[Sequence[Any]]
) -> list[int]:
    """Sample a token for each request, from the last of its rows of logits. Raises UserError, with the number
    of the request, if it has no token; the KVs then return to their positions."""
    tokens = []
    for number, (kv, sampler, rows) in enumerate(zip(kvs, all_samplers, logits, strict=True)):
        sampler.restore(kv.sampler_state)
        try:
            tokens.append(sampler(rows[-1]))
        except UserError as error:
            for other, first in zip(kvs, positions, strict=True):
                other.sequence.truncate(first)
            raise UserError(f"request {number}: {error}") from error
    for kv, sampler in zip(kvs, all_samplers, strict=True):
        kv.sampler_state = sampler.state()
    return tokens


def token_logprobs(rows: Sequence[Any], tokens: Sequence[Any]) -> F32Array:
    """Logprob of each token in its row of logits, (rows,) float32."""
    logprobs = [log_softmax(row)[token] for row, token in zip(rows, tokens, strict=True)]
    return np.array(logprobs, np.float32)
