"""What ranks say to each other: sums in the order of ranks, whoever comes first; and what comes of one that
does not come."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.engine.communication import (
    Communicator,
    PeerError,
    SingleRank,
    all_reduce_sum,
    between_processes,
    broadcast_from_first,
    check_ranks_agree,
    thread_group,
)
from aerie.engine.numerics import bf16, widen

NAMES = ("device 0", "device 4", "device 7")


def together(
    work: Callable[[Communicator], Any], delays: tuple[float, ...] = (), patience_s: float = 120.0
) -> list[Any]:
    """What each of three ranks makes, or the error that it raises; rank r begins after delays[r] seconds."""
    meeting = thread_group(NAMES, patience_s)
    made: list[Any] = [None] * len(NAMES)

    def run(rank: int, delay: float) -> None:
        time.sleep(delay)
        try:
            made[rank] = work(meeting.member(rank))
        except PeerError as error:
            made[rank] = error

    delays = delays or (0.0,) * len(NAMES)
    threads = [threading.Thread(target=run, args=each) for each in enumerate(delays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def drawn(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(8, 33)).astype(bf16)


def summed(group: Communicator) -> bytes:
    """Two sums, one of the other."""
    x, out = drawn(9), np.empty((8, 33), bf16)
    all_reduce_sum(group, x, drawn(group.rank), out)
    first = out.copy()
    all_reduce_sum(group, first, drawn(group.rank + 3), out)
    return out.tobytes()


def test_a_sum_has_the_same_bits_whoever_comes_first() -> None:
    x = drawn(9)
    for seeds in ((0, 1, 2), (3, 4, 5)):
        total = widen(x)
        for seed in seeds:
            total = total + widen(drawn(seed))
        x = total.astype(bf16)
    for delays in itertools.permutations((0.0, 0.01, 0.02)):
        assert together(summed, delays) == [x.tobytes()] * 3


def test_a_sum_of_one_is_residual_and_product_rounded_once() -> None:
    out = np.empty((8, 33), bf16)
    all_reduce_sum(SingleRank(), drawn(1), drawn(2), out)
    assert out.tobytes() == (widen(drawn(1)) + widen(drawn(2))).astype(bf16).tobytes()


def test_what_the_first_has_comes_to_all() -> None:
    made = together(lambda group: broadcast_from_first(group, drawn(group.rank)).tobytes())
    assert made == [drawn(0).tobytes()] * 3


def test_ranks_that_differ_are_reported() -> None:
    assert together(lambda group: check_ranks_agree(group, 5)) == [None] * 3
    made = together(lambda group: check_ranks_agree(group, 5 + (group.rank == 1)))
    assert ["rank 1 of 3 is about to compute other tokens than rank 0" in str(each) for each in made] == [
        True
    ] * 3


def test_one_that_does_not_come_is_named_in_bounded_time() -> None:
    started = time.perf_counter()
    made = together(lambda group: group.rank == 1 or summed(group), patience_s=0.2)
    assert time.perf_counter() - started < 60
    assert sorted(str(each) for each in made if isinstance(each, PeerError)) == [
        f"{name} waited for device 4, which did not come (at most 0.2 s)" for name in (NAMES[0], NAMES[2])
    ]


def test_one_that_leaves_is_not_waited_for() -> None:
    def work(group: Communicator) -> Any:
        return group.abort() if group.rank == 1 else summed(group)

    started = time.perf_counter()
    made = together(work, delays=(0.0, 0.05, 0.0))
    assert time.perf_counter() - started < 60
    assert [isinstance(each, PeerError) for each in made] == [True, False, True]


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (2, 2), (-1, 2)])
def test_places_that_there_are_not_are_refused(rank: int, ranks: int) -> None:
    with pytest.raises(
        UserError, match=f"rank {rank} of {ranks} is no place among processes: give 2 or more"
    ):
        between_processes("127.0.0.1:1", rank, ranks)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(UserError, match=r"torch is not installed: run pip install torch"):
        between_processes("127.0.0.1:1", 0, 2)


@pytest.mark.parametrize("address", ["nowhere", ":29500", "host:", "host:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=f"'{address}' is no address where processes meet; give a host and"):
        between_processes(address, 0, 2)
