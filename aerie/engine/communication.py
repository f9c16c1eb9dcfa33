"""Communication between ranks: the parts of a model that several devices share, one device each.

Ranks do one thing together: each gives an array, and all get all arrays, in the order of ranks. The sum of
partial results, the first rank's logits, and the check that all compute the same are built on it. So a sum
has the same bits in any order of arrival, and on every rank.

Two implementations: threads of one process (`thread_group`), and processes, on one machine or several, by
torch.distributed with gloo (`between_processes`), an extra of the package. If a rank waits longer than
`PEER_TIMEOUT_S`, the work of all ranks ends, with an error that names the missing rank.
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
"""Seconds that a rank waits for another: four times the limit of a program on an NPU (AERIE_NPU_TIMEOUT). A
rank that ended is noticed at once."""


class PeerError(RunError):
    """Another rank did not arrive. The error names it if it is known."""


class Communicator(Protocol):
    """Connects a rank with the others. One thread uses it. All ranks make the same calls in the same
    order."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        """The result of `use` on the arrays of all ranks, in the order of ranks; all have one shape and
        dtype.

        The arrays are the other ranks' own, and do not change until all ranks have used them. Raises
        PeerError.
        """

    def abort(self) -> None:
        """Leave the group. Ranks that wait for this one raise PeerError at once."""


class SingleRank:
    """The only rank."""

    rank, world_size = 0, 1

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        return use([mine])

    def abort(self) -> None:
        """Does nothing: no rank waits."""


def all_reduce_sum(
    group: Communicator, residual: BF16Array | None, partial: BF16Array, out: BF16Array, scale: float = 1.0
) -> None:
    """out = residual, counted once, + every rank's partial sum times `scale`; all (rows, width) bf16. `out`
    is an array of its own. residual: None for the sum of the parts alone.

    The sum is computed in float32 in the order of ranks, and rounded once.
    """

    def add(partials: Sequence[Array]) -> None:
        total = np.zeros(out.shape, np.float32) if residual is None else widen(residual)
        for each in partials:
            total = total + (widen(each) if scale == 1 else widen(each) * np.float32(scale))
        out[...] = total.astype(bf16)

    group.all_gather(partial, add)


def all_gather_columns(group: Communicator, part: Array, firsts: Sequence[int], out: Array) -> None:
    """out = the columns that every rank has, (rows, width). firsts: the first column of each rank's part in
    `out`; ranks that have the same columns have the same numbers in them."""

    def place(parts: Sequence[Array]) -> None:
        for first, each in zip(firsts, parts, strict=True):
            out[:, first : first + each.shape[1]] = each

    group.all_gather(part, place)


def broadcast_from_first(group: Communicator, array: Array) -> Array:
    """Rank 0's array. The arrays of the others give its shape and dtype only."""
    return group.all_gather(array, lambda arrays: arrays[0].copy())


def check_ranks_agree(group: Communicator, fingerprint: int) -> None:
    """Raises PeerError unless `fingerprint`, of what a rank is about to compute, is equal on all ranks."""

    def compare(fingerprints: Sequence[Array]) -> None:
        other = next((rank for rank, each in enumerate(fingerprints) if each[0] != fingerprints[0][0]), None)
        if other is not None:
            raise PeerError(
                f"rank {other} of {group.world_size} is about to compute other tokens than rank 0: give "
                "every process the same prompts in the same order, the same options, and a seed if they are "
                "drawn"
            )

    if group.world_size > 1:
        group.all_gather(np.array([fingerprint], np.int64), compare)


# in one process


class ThreadGroup:
    """A group of threads of one process; `member` gives each its Communicator. names: of the ranks, for
    errors."""

    def __init__(self, names: Sequence[str], timeout_s: float = PEER_TIMEOUT_S) -> None:
        self.names, self.timeout_s = names, timeout_s
        self.barrier = threading.Barrier(len(names))
        self.arrays: list[Array] = [np.empty(0)] * len(names)
        self.arrivals = [0] * len(names)

    def member(self, rank: int) -> Communicator:
        return _Member(self, rank)

    def reset(self) -> None:
        """Start again after a rank has left. No rank may be in a call."""
        self.barrier.reset()
        self.arrivals = [0] * len(self.names)


class _Member:
    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self.rank, self.world_size = group, rank, len(group.names)

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        self._group.arrays[self.rank] = mine
        self._wait()
        result = use(self._group.arrays)
        self._wait()
        return result

    def abort(self) -> None:
        self._group.barrier.abort()

    def _wait(self) -> None:
        meeting = self._group
        meeting.arrivals[self.rank] += 1
        try:
            meeting.barrier.wait(meeting.timeout_s)
        except threading.BrokenBarrierError:
            counts = zip(meeting.names, meeting.arrivals, strict=True)
            late = [name for name, arrivals in counts if arrivals < meeting.arrivals[self.rank]]
            raise PeerError(
                f"{meeting.names[self.rank]} waited for {' and '.join(late) or 'others'}, which did not come "
                f"(at most {meeting.timeout_s:g} s)"
            ) from None


def thread_group(names: Sequence[str], timeout_s: float = PEER_TIMEOUT_S) -> ThreadGroup:
    """A group with one thread for each name."""
    return ThreadGroup(names, timeout_s)


# between processes


class GlooGroup:
    """A rank in its own process, by gloo; made by `between_processes`. group: ProcessGroupGloo."""

    def __init__(self, group: Any, rank: int, world_size: int, timeout_s: float) -> None:
        self.rank, self.world_size = rank, world_size
        self._group, self._timeout_s = group, timeout_s
        self._left: str = ""

    def all_gather(self, mine: Array, use: Callable[[Sequence[Array]], T]) -> T:
        if self._left:
            raise PeerError(self._left)
        mine = mine.copy()  # in one run, and writable, as torch wants it
        arrays = [mine if rank == self.rank else np.empty_like(mine) for rank in range(self.world_size)]
        transfers: list[tuple[int, Any]] = []
        try:
            for call, from_or_to in (("send", lambda _: mine), ("recv", arrays.__getitem__)):
                others = (rank for rank in range(self.world_size) if rank != self.rank)
                transfers += [(rank, self._begin(call, rank, from_or_to(rank))) for rank in others]
            for rank, work in reversed(transfers):
                self._await(rank, work)
        finally:
            transfers.clear()  # an error that is kept would keep the connections
        return use(arrays)

    def abort(self) -> None:
        self._close(f"rank {self.rank} of {self.world_size} has left; start all processes again")

    def _begin(self, call: str, rank: int, array: Array) -> Any:
        """Start a transfer: `send` or `recv`."""
        torch = importlib.import_module("torch")
        try:
            return getattr(self._group, call)([torch.from_numpy(array.reshape(-1).view(np.uint8))], rank, 0)
        except RuntimeError as error:
            raise self._peer_error(rank, error) from None

    def _await(self, rank: int, work: Any) -> None:
        try:
            work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise self._peer_error(rank, error) from None

    def _peer_error(self, rank: int, error: RuntimeError) -> PeerError:
        self._close(
            f"rank {rank} of {self.world_size} is gone, or did not answer in {self._timeout_s:g} s "
            f"({_reason(error)}); what was under way is lost: start all processes again"
        )
        return PeerError(self._left)

    def _close(self, reason: str) -> None:
        """Close the connections, so that the other ranks notice."""
        self._left, self._group = self._left or reason, None


def between_processes(address: str, rank: int, ranks: int, timeout_s: float = PEER_TIMEOUT_S) -> GlooGroup:
    """Connect this process with the others, as one of `ranks`, at an address such as "192.0.2.1:29500", where
    rank 0 listens. Waits until all are connected.

    Raises UserError for a bad rank or address, without torch, and if the others do not connect in time.
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
    timeout = timedelta(seconds=timeout_s)
    try:
        store = distributed.TCPStore(host, int(port), ranks, rank == 0, timeout)
        group = distributed.ProcessGroupGloo(distributed.PrefixStore("aerie", store), rank, ranks, timeout)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"rank {rank} of {ranks} did not meet the others at {address} in {timeout_s:g} s "
            f"({_reason(error)}); start all of them, with one address"
        ) from None
    return GlooGroup(group, rank, ranks, timeout_s)


def _reason(error: Exception) -> str:
    """torch's message, its first sentence, without the position in torch's sources."""
    return re.sub(r"^\[[^]]*\] ", "", str(error).splitlines()[0]).partition(". ")[0].rstrip(".")
