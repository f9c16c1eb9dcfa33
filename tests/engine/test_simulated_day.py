"""A day of requests through the scheduler, by a simulated clock: Poisson, long tails, bursts, aborts.

Every answer is held to the one that its request gives alone, by another way through the engine: one sequence
in a KV cache of its own (generate.py). The model has two layers and random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.generate import FinishReason
from aerie.engine.model import LoadedModel
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS, Scheduler, generate_alone
from aerie.runtime import select_backend
from aerie.verify.random_model import random_checkpoint, random_model_config

DAY_S = 86_400.0
KINDS = 60
"""Requests that differ; each comes many times."""
PAGES, ASIDE = 18, 3


class Kind(NamedTuple):
    """A prompt, how many tokens are asked for, and what it gives alone."""

    prompt: list[int]
    tokens: int
    seed: int | None
    alone: list[int]

    @property
    def sampler(self) -> Sampler:
        return Sampler(temperature=0.0 if self.seed is None else 1.3, seed=self.seed)


class Coming(NamedTuple):
    """A request of a day: when, which, how urgent, and after how long its caller gives up."""

    at_s: float
    kind: int
    priority: int
    patience_s: float


class Clock:
    """Seconds of a simulated day."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    config = random_model_config(open_checkpoint(DEMO_FOLDER).config)
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode="rows"
    )
    with random_checkpoint(config, Reporter()) as checkpoint:
        yield prepare_runtime(checkpoint, options, Reporter()).model


@pytest.fixture(scope="module")
def kinds(model: LoadedModel) -> list[Kind]:
    """Prompts and answers with long tails; half begin as others do."""
    rng = np.random.default_rng(1)
    systems = [[int(t) for t in rng.integers(3, 1400, n)] for n in (64, 118, 55)]
    made = []
    for number in range(KINDS):
        length = int(min(150, 1 + rng.lognormal(1.4, 1.0)))
        prompt = [int(t) for t in rng.integers(3, 1400, length)]
        prompt = systems[number % 6] + prompt if number % 6 < 3 else prompt
        tokens, seed = int(min(90, 1 + rng.lognormal(1.2, 1.3))), None if number % 2 else number
        kind = Kind(prompt, tokens, seed, [])
        made.append(kind._replace(alone=list(generate_alone(model, prompt, tokens, kind.sampler))))
    return made


def a_day(requests: int, draw: int) -> list[Coming]:
    """A rate that rises and falls, a tenth in bursts at one moment, one in fifteen given up."""
    rng = np.random.default_rng(draw)
    by_day = rng.uniform(0, 1, 8 * requests)
    kept = by_day[rng.uniform(0, 1, len(by_day)) < np.sin(np.pi * by_day) ** 2][: requests * 9 // 10]
    bursts = np.repeat(rng.uniform(0.2, 0.8, 8), -(-(requests - len(kept)) // 8))[: requests - len(kept)]
    times = np.sort(np.concatenate([kept, bursts])) * DAY_S
    patience = np.where(rng.uniform(0, 1, requests) < 1 / 15, rng.exponential(300, requests), np.inf)
    return [
        Coming(float(at), int(rng.integers(KINDS)), int(rng.integers(3)), float(wait))
        for at, wait in zip(times, patience, strict=True)
    ]


def live(scheduler: Scheduler, clock: Clock, day: list[Coming], kinds: list[Kind]) -> list[Request]:
    """All of a day: a step takes 10 s and half a second for each row, so that requests meet each other."""
    left, made, seen = list(reversed(day)), list[Request](), set[Request]()
    ends: dict[Request, float] = {}
    while left or not all(one.is_finished for one in ends):
        while left and left[-1].at_s <= clock.now_s:
            coming = left.pop()
            kind = kinds[coming.kind]
            request = scheduler.add_request(kind.prompt, kind.tokens, kind.sampler, coming.priority)
            made.append(request)
            ends[request] = coming.at_s + coming.patience_s
        for request in [one for one, end in ends.items() if end < clock.now_s]:
            request.stop()
        ends = {one: end for one, end in ends.items() if not one.is_finished}
        if not ends and left:
            clock.now_s = max(clock.now_s, left[-1].at_s)
            continue
        rows = scheduler.stats.rows
        scheduler.step()
        clock.now_s += 10 + 0.5 * (scheduler.stats.rows - rows)
        scheduler.pool.manager.check_invariants()
        assert len(scheduler._running) <= MAX_RUNNING_REQUESTS
        check_turns(scheduler, seen)
    return made


def check_turns(scheduler: Scheduler, seen: set[Request]) -> None:
    """Nobody who waits to come in for the first time was passed by."""
    came = [one.order for one in scheduler._running if one not in seen]
    waiting = [one.order for one in scheduler._waiting if one not in seen]
    assert not came or not waiting or max(came) < min(waiting)
    seen.update(scheduler._running)


def check(scheduler: Scheduler, made: list[Request], day: list[Coming], kinds: list[Kind]) -> None:
    """Every answer is the one alone, nothing is leaked, things happened, and turns held."""
    for request, coming in zip(made, day, strict=True):
        alone = kinds[coming.kind].alone
        is_cut = request.finish_reason is FinishReason.INTERRUPTED
        assert request.error is None
        assert request.token_ids == (alone[: len(request.token_ids)] if is_cut else alone)
        assert not is_cut or coming.patience_s < np.inf
    pool, counts = scheduler.pool, scheduler.stats
    assert (pool.manager.free_count, pool.swap.free_count) == (PAGES, ASIDE)
    assert counts.rows / counts.steps > 4
    assert 0 < counts.swaps < counts.preemptions
    assert counts.cached_tokens > 0
    assert any(one.finish_reason is FinishReason.INTERRUPTED for one in made)
    waits = [
        [one.figures.ttft_s for one in made if one.priority == priority and one.token_ids]
        for priority in range(3)
    ]
    late, some, soon = (float(np.mean(each)) for each in waits)
    assert late > some > soon
    assert max(map(max, waits)) < DAY_S / 4, "somebody starved"


def test_a_day_of_two_thousand_requests(model: LoadedModel, kinds: list[Kind]) -> None:
    clock, day = Clock(), a_day(2000, 5)
    pool = PagePool(model.config, PAGES, b"", swap_pages=ASIDE)
    scheduler = Scheduler(model, pool, gathered_cache_for, clock=clock)
    made = live(scheduler, clock, day, kinds)
    check(scheduler, made, day, kinds)


def steps_until_over(model: LoadedModel, patience: int, monkeypatch: Any) -> int:
    """How many of 120 steps a request takes in a pool of one page, where a more urgent one always waits."""
    monkeypatch.setattr("aerie.engine.scheduler.PRIORITY_LEVEL_STEPS", patience)
    scheduler = Scheduler(model, PagePool(model.config, 1, b""), gathered_cache_for)
    urgent = [scheduler.add_request([5], 2, Sampler(), priority=1)]
    patient = scheduler.add_request([6], 2, Sampler())
    while not patient.is_finished and scheduler.stats.steps < 120:
        if urgent[-1] in scheduler._running:
            urgent.append(scheduler.add_request([5], 2, Sampler(), priority=1))
        scheduler.step()
    return scheduler.stats.steps


def test_the_urgent_pass_others_by_but_nobody_for_ever(model: LoadedModel, monkeypatch: Any) -> None:
    waited = [steps_until_over(model, patience, monkeypatch) for patience in (0, 20, 60, 1000)]
    assert waited[0] <= 4 < 20 <= waited[1] <= 30 < 60 <= waited[2] <= 70 < waited[3] == 120
