"""What ranks say to each other: the parts of a model that is shared out, each with a device of its own.

There is one thing that ranks do together: each brings an array, and all see all of them, in the order of
ranks. The sum of what they made, the first one's logits, and the check that they do the same are made of it;
so a sum has the same bits whoever came first, and on every rank.

Two makers: threads of one process, which meet in its memory (`in_process`), and processes, on one machine or
several, which send what they have by torch.distributed with gloo (`between_processes`), an extra of the
package. A rank that is waited for longer than `PEER_TIMEOUT_S` ends what the others do, with an error that names
it.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.numerics import BF16Array, bf16, widen
from aerie.runtime import RunError

T = TypeVar("T")
Array = NDArray[Any]

PEER_TIMEOUT_S = 120.0
"""Seconds that a rank waits for another one: four times what a program may run on an NPU
(AERIE_NPU_TIMEOUT). One that ended is noticed at once."""


class PeerError(RunError):
    """Another rank did not come, and is named where that is known: what this one computed goes no further."""


class Communicator(Protocol):
    """A rank's way to the others. One thread uses it; all ranks make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Which one this is, from 0."""

    @property
    def world_size(self) -> int:
        """How many there are."""

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        """What `use` makes of every rank's array, in the order of ranks; all have one shape and dtype.

        The arrays are the others' own, and are not changed until all have been used. Raises PeerError.
        """

    def abort(self) -> None:
        """Go for good, or until all begin anew: those that wait for this rank raise PeerError at once."""


class SingleRank:
    """The only rank."""

    rank, world_size = 0, 1

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        return use([mine])

    def abort(self) -> None:
        """Nobody waits."""


def all_reduce_sum(group: Communicator, residual: BF16Array, partial: BF16Array, out: BF16Array) -> None:
    """out = residual, which counts once, + every rank's partial sum; all (rows, width) bf16, `out` an array
    of its own.

    The sum runs in float32 in the order of ranks and is rounded once.
    """

    def add(partials: Sequence[Array]) -> None:
        total = widen(residual)
        for each in partials:
            total = total + widen(each)
        out[...] = total.astype(bf16)

    group.all_gather(partial, add)


def broadcast_from_first(group: Communicator, array: Array) -> Array:
    """Rank 0's array; those of the others say its shape and dtype alone."""
    return group.all_gather(array, lambda arrays: arrays[0].copy())


def check_ranks_agree(group: Communicator, fingerprint: int) -> None:
    """Raise PeerError unless all ranks are about to compute the same, which `mark` stands for."""

    def compare(marks: Sequence[Array]) -> None:
        other = next((rank for rank, each in enumerate(marks) if each[0] != marks[0][0]), None)
        if other is not None:
            raise PeerError(
                f"rank {other} of {group.world_size} is about to compute other tokens than rank 0: give every "
                "process the same prompts in the same order, the same options, and a seed where tokens are "
                "drawn"
            )

    if group.world_size > 1:
        group.all_gather(np.array([fingerprint], np.int64), compare)


# in one process


class ThreadGroup:
    """Where the threads of a process meet; `member` gives each its Communicator. names: what errors call
    them."""

    def __init__(self, names: Sequence[str], timeout_s: float = PEER_TIMEOUT_S) -> None:
        self.names, self.timeout_s = names, timeout_s
        self.barrier = threading.Barrier(len(names))
        self.arrays: list[Array] = [np.empty(0)] * len(names)
        self.arrivals = [0] * len(names)

    def member(self, rank: int) -> Communicator:
        return _Member(self, rank)

    def reset(self) -> None:
        """Meet anew, after some had left. Nobody may be at it."""
        self.barrier.reset()
        self.arrivals = [0] * len(self.names)


class _Member:
    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self.rank, self.world_size = group, rank, len(group.names)

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        self._group.arrays[self.rank] = mine
        self._wait()
        made = use(self._group.arrays)
        self._wait()
        return made

    def abort(self) -> None:
        self._group.barrier.abort()

    def _wait(self) -> None:
        meeting = self._group
        meeting.arrivals[self.rank] += 1
        try:
            meeting.barrier.wait(meeting.timeout_s)
        except threading.BrokenBarrierError:
            counts = zip(meeting.names, meeting.arrivals, strict=True)
            late = [name for name, came in counts if came < meeting.arrivals[self.rank]]
            raise PeerError(
                f"{meeting.names[self.rank]} waited for {' and '.join(late) or 'others'}, which did not come "
                f"(at most {meeting.timeout_s:g} s)"
            ) from None


def thread_group(names: Sequence[str], timeout_s: float = PEER_TIMEOUT_S) -> ThreadGroup:
    """The meeting of as many threads as there are names."""
    return ThreadGroup(names, timeout_s)


# between processes


class GlooGroup:
    """A rank in a process of its own, by gloo; `between_processes` makes it. group: ProcessGroupGloo."""

    def __init__(self, group: Any, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size = rank, world_size
        self._group, self._timeout_s = group, timeout_s
        self._left: str = ""

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        if self._left:
            raise PeerError(self._left)
        mine = mine.copy()  # in one run, and writable, as torch wants it
        arrays = [mine if rank == self.rank else np.empty_like(mine) for rank in range(self.world_size)]
        begun: list[tuple[int, Any]] = []
        try:
            for call, from_or_to in (("send", lambda _: mine), ("recv", arrays.__getitem__)):
                others = (rank for rank in range(self.world_size) if rank != self.rank)
                begun += [(rank, self._begin(call, rank, from_or_to(rank))) for rank in others]
            for rank, work in reversed(begun):
                self._await(rank, work)
        finally:
            begun.clear()  # an error that is kept would keep the connections
        return use(arrays)

    def abort(self) -> None:
        self._go(f"rank {self.rank} of {self.world_size} has left; start all processes again")

    def _begin(self, call: str, rank: int, array: Array) -> Any:
        """A transfer: `send` or `recv`."""
        torch = importlib.import_module("torch")
        try:
            return getattr(self._group, call)([torch.from_numpy(array.reshape(-1).view(np.uint8))], rank, 0)
        except RuntimeError as error:
            raise self._gone(rank, error) from None

    def _await(self, rank: int, work: Any) -> None:
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise self._gone(rank, error) from None

    def _gone(self, rank: int, error: RuntimeError) -> PeerError:
        self._go(
            f"rank {rank} of {self.world_size} is gone, or did not answer in {self._timeout_s:g} s "
            f"({_reason(error)}); what was under way is lost: start all processes again"
        )
        return PeerError(self._left)

    def _go(self, why: str) -> None:
        """Close the connections, by which the others notice; once."""
        self._left, self._group = self._left or why, None


def between_processes(address: str, rank: int, ranks: int, timeout_s: float = PEER_TIMEOUT_S) -> GlooGroup:
    """This process as one of `ranks` that meet at an address, as "192.0.2.1:29500", where rank 0 listens; it
    waits until all are there.

    Raises UserError for a rank or an address that is none, without torch, and where the others did not come
    in time.
    """
    host, _, port = address.rpartition(":")
    if not 0 <= rank < ranks or ranks < 2:
        raise UserError(
            f"rank {rank} of {ranks} is no place among processes: give 2 or more, and ranks from 0 on"
        )
    if not host or not port.isdecimal():
        raise UserError(
            f"'{address}' is no address where processes meet; give a host and a port, as host:29500"
        )
    try:
        _, distributed = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    except ImportError:
        raise UserError(
            "processes talk by torch.distributed, and torch is not installed: run pip install torch"
        ) from None
    patience = timedelta(seconds=timeout_s)
    try:
        store = distributed.TCPStore(host, int(port), ranks, rank == 0, patience)
        group = distributed.ProcessGroupGloo(distributed.PrefixStore("aerie", store), rank, ranks, patience)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"rank {rank} of {ranks} did not meet the others at {address} in {timeout_s:g} s "
            f"({_reason(error)}); start all of them, with one address"
        ) from None
    return GlooGroup(group, rank, ranks, timeout_s)


def _reason(error: Exception) -> str:
    """What torch says, in one sentence, without the place in its sources."""
    return re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0]).partition(". ")[0].rstrip(".")
