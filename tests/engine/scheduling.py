"""What tests of the scheduler share: a model with what each request gives alone, and schedules to play.

A schedule says when requests come and when they are stopped. No bit of an answer depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aerie.cli.arguments import default_cache_dir
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import (
    Scheduler,
    generate_alone,
)
from aerie.engine.session import Session
from aerie.runtime import select_backend

NEW = 5
SEEDS = {0: None, 1: 7, 2: 8}
"""Of requests, by their number modulo 3: greedy, or drawn with a seed."""


class Listening(Sampler):
    """A Sampler that keeps the bits of the logits that it was given."""

    def __call__(self, logits: Any, prompt_ids: Any = (), token_ids: Any = ()) -> int:
        self.__dict__.setdefault("heard", []).append(np.asarray(logits).tobytes())
        return super().__call__(logits, prompt_ids, token_ids)

    @property
    def bits(self) -> list[bytes]:
        heard: list[bytes] = self.__dict__["heard"]
        return heard


def sampler(number: int) -> Listening:
    seed = SEEDS[number % 3]
    return Listening(temperature=0.0 if seed is None else 1.2, seed=seed)


def drawn_prompts(vocabulary: int) -> list[list[int]]:
    """Of one token to several pages; some begin alike, two are the same."""
    rng = np.random.default_rng(3)
    prompts = [[int(t) for t in rng.integers(3, vocabulary, n)] for n in (1, 9, 63, 64, 65, 130, 200, 40)]
    prompts += [prompts[6][:150] + prompts[1], prompts[6][:128] + prompts[2], prompts[5]]
    prompts[7] = prompts[5][:64] + prompts[6][64:128] + prompts[7]  # a page of another prompt, after others
    return prompts


class Family:
    """A session of a model, prompts, and what each request gives alone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.prompts = drawn_prompts(min(1500, session.model.config.vocab_size))
        self.alone = [self._alone(number) for number in range(len(self.prompts))]

    def _alone(self, number: int) -> tuple[list[int], list[bytes]]:
        listening = sampler(number)
        tokens = list(generate_alone(self.session.model, self.prompts[number], NEW, listening))
        return tokens, listening.bits

    def scheduler(self, pages: int, spare: int = 0) -> Scheduler:
        return scheduler_of(self.session, pages, spare)


def session_of(checkpoint: Any, decode: str = "rows") -> Session:
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode=decode
    )
    return prepare_runtime(checkpoint, options, Reporter())


@dataclass(frozen=True)
class Arrival:
    """A request of a schedule: the step at which it comes, what adds it, whether it is stopped at a step."""

    step: int
    add: Callable[[], Request]
    is_stopped: Callable[[Request, int], bool] = lambda request, step: False


def run(scheduler: Scheduler, arrivals: Sequence[Arrival]) -> list[Request]:
    """Steps until all that comes has ended; the requests, in the order of `arrivals`.

    After each step the pool's counts agree, and at the end all of its pages are free.
    """
    requests = list[Request]()
    for step in range(3000):
        while len(requests) < len(arrivals) and arrivals[len(requests)].step <= step:
            requests.append(arrivals[len(requests)].add())
        for request, arrival in zip(requests, arrivals, strict=False):
            if arrival.is_stopped(request, step):
                request.stop()
        if len(requests) == len(arrivals) and all(one.is_finished for one in requests):
            break
        scheduler.step()
        scheduler.pool.manager.check_invariants()
    else:
        raise AssertionError("it does not come to an end")
    scheduler.step()  # which gives back what a request that was stopped had
    for pages in (scheduler.pool.manager, scheduler.pool.swap):
        assert pages.free_count == pages.page_count
    return requests


def finish(scheduler: Scheduler, requests: Sequence[Request]) -> None:
    """The same of requests that are there; none of them fails."""
    run(scheduler, [Arrival(0, partial(_itself, each)) for each in requests])
    assert [each.error for each in requests] == [None] * len(requests)


def _itself(request: Request) -> Request:
    return request


def scheduler_of(session: Session, pages: int = 24, spare: int = 0) -> Scheduler:
    """A scheduler of its own, with so many pages, and so many in the swap space."""
    model = session.model
    return Scheduler(model, PagePool(model.config, pages, b"this model", spare), gathered_cache_for)
