"""Requests side by side: each has the bits that it has alone, whatever company it is in, in two families.

Alone is another way through the engine: one sequence in a KV cache of its own (generate.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from aerie import FinishReason
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine import window_cache
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.executor import Executor
from aerie.engine.forward import prefill
from aerie.engine.head import logits_rows
from aerie.engine.layer_masks import ALIGN
from aerie.engine.page_manager import PAGE_SIZE, PageManager
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import (
    MIN_PREFILL_ONLY_ROWS,
    PRIORITY_LEVEL_STEPS,
    Scheduler,
    SchedulerStats,
    generate_alone,
)
from aerie.engine.strategies.prefill_only import WantedRows
from aerie.kernel_builder.attention import STAGES, kv_rows
from aerie.verify.random_model import (
    in_another_family,
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from tests.engine.scheduling import (
    NEW,
    Arrival,
    Family,
    Listening,
    drawn_prompts,
    run,
    sampler,
    session_of,
)


@pytest.fixture(scope="module")
def demo() -> Family:
    return Family(session_of(open_checkpoint(DEMO_FOLDER)))


@pytest.fixture(scope="module", params=["demo", "qwen3"])
def family(request: pytest.FixtureRequest) -> Iterator[Family]:
    if request.param == "demo":
        yield request.getfixturevalue("demo")
        return
    config = in_another_family(with_longer_context(random_model_config(open_checkpoint(DEMO_FOLDER).config)))
    with random_checkpoint(config, Reporter()) as checkpoint:
        yield Family(session_of(checkpoint))


Made = list[tuple[int, Request, Listening]]


def arrive(family: Family, scheduler: Scheduler, made: Made, number: int, priority: int) -> Request:
    listening = sampler(number)
    request = scheduler.add_request(family.prompts[number], NEW, listening, priority)
    made.append((number, request, listening))
    return request


def play(family: Family, draw: int) -> tuple[int, SchedulerStats]:
    """A drawn schedule: arrivals, priorities, a pool that may be too small, requests that are stopped.

    Gives how many answers are not those that are given alone, and what happened.
    """
    rng, scheduler = np.random.default_rng(draw), family.scheduler(pages=PAGES[draw], spare=SPARE[draw])
    numbers = [int(n) for n in rng.permutation(np.repeat(np.arange(len(family.prompts)), 2))]
    made: Made = []
    submit = partial(arrive, family, scheduler, made)
    whens = sorted(int(step) for step in rng.integers(0, 25, len(numbers)))
    adds = [partial(submit, number, int(rng.integers(3))) for number in numbers]
    lives = {int(n): int(rng.integers(30)) for n in rng.permutation(len(numbers))[:3]}

    def is_over(number: int, request: Request, step: int) -> bool:
        return step > lives.get(number, step)

    comes = enumerate(zip(whens, adds, strict=True))
    run(scheduler, [Arrival(step, add, partial(is_over, number)) for number, (step, add) in comes])
    return sum(not is_as_alone(family, *each) for each in made), scheduler.stats


def is_as_alone(family: Family, number: int, request: Request, listening: Listening) -> bool:
    """Whether tokens and logits are those that the request gives alone, as far as it was let live."""
    tokens, logits = family.alone[number]
    count = len(request.token_ids) if request.finish_reason is FinishReason.INTERRUPTED else len(tokens)
    heard = listening.bits if request.token_ids else []
    return request.token_ids == tokens[:count] and heard == logits[:count]


PAGES, SPARE = (5, 8, 12, 40), (0, 8, 3, 0)
"""Of the pools of drawn schedules: from hardly more than the longest request to plenty; and aside."""


def test_no_answer_depends_on_its_company(family: Family) -> None:
    """Each schedule has 22 requests; together they are in steps of several, give pages back, find pages."""
    played = [play(family, draw) for draw in range(len(PAGES))]
    assert [wrong for wrong, _ in played] == [0] * len(PAGES)
    steps, rows, preemptions, swaps, cached, _ = np.sum([astuple(counts) for _, counts in played], axis=0)
    assert rows / steps > 4, played
    assert preemptions > swaps > 0, played
    assert cached > 0, played


@pytest.mark.parametrize("spare", [0, 4], ids=["read anew", "put aside"])
def test_an_answer_that_gave_way_goes_on_with_the_same_bits(spare: int, family: Family) -> None:
    """Its pages are taken and written to by another one meanwhile. Put aside, nothing is computed twice."""
    model, scheduler = family.session.model, family.scheduler(5, spare)
    going_on = dict.fromkeys(model.config.eos_token_ids, -100.0)
    alone, listening = Listening(logit_bias=going_on), Listening(logit_bias=going_on)
    tokens = list(generate_alone(model, family.prompts[6], 30, alone))  # four pages
    gives_way = scheduler.add_request(family.prompts[6], 30, listening)
    while len(gives_way.token_ids) < 2:
        scheduler.step()
    urgent = scheduler.add_request([7] * 63, 8, Listening(logit_bias=going_on), priority=1)
    while not gives_way.is_finished:
        scheduler.step()
    assert (gives_way.token_ids, listening.bits) == (tokens, alone.bits)
    assert len(urgent.token_ids) == 8
    counts = scheduler.stats
    assert (counts.preemptions, counts.swaps) == (1, int(bool(spare)))
    once = len(gives_way.prompt) + len(urgent.prompt) + 29 + 7
    assert (counts.rows == once) == bool(spare)
    assert scheduler.pool.swap.free_count == spare


@pytest.mark.parametrize("form", ["C++", "numpy"])
def test_in_guide_each_token_reads_its_pages_on_the_host(form: str, monkeypatch: Any) -> None:
    """And has the bits that it has in a cache of its own, where attention reads one run of memory."""
    if form == "numpy":
        monkeypatch.setenv("AERIE_PLAIN", "host_code")
    guide = Family(session_of(open_checkpoint(DEMO_FOLDER), "guide"))
    played = [play(guide, draw) for draw in range(len(PAGES))]
    assert [wrong for wrong, _ in played] == [0] * len(PAGES)
    *_, preemptions, cached, _ = np.sum([astuple(counts) for _, counts in played], axis=0)
    assert (preemptions > 0, cached > 0) == (True, True)


@pytest.mark.parametrize("crosses", [False, True])
def test_no_hit_crosses_families(crosses: bool, demo: Family, monkeypatch: Any) -> None:
    """What guide decoded is not found by a prompt, whose keys and values come by blocks; it would be seen."""
    session = session_of(open_checkpoint(DEMO_FOLDER), "guide")
    if crosses:
        real = PagedSequence.advance
        monkeypatch.setattr(PagedSequence, "advance", lambda self, tokens, reusable=True: real(self, tokens))
    scheduler, listening, alone = session.scheduler, Listening(), Listening()
    endless = Sampler(logit_bias=dict.fromkeys([0, *session.model.config.eos_token_ids], -100.0))
    first = scheduler.add_request(demo.prompts[4][:30], 90, endless, decode_path="guide")
    assert len([*filter(None, first.steps())]) == 90
    prompt = [*first.prompt, *first.token_ids, 5]
    second = scheduler.add_request(prompt, 1, listening, decode_path="guide")
    assert [*second.steps()]
    assert [*generate_alone(session.model, prompt, 1, alone)]
    assert (second.cached_tokens > 0) == crosses
    assert (listening.bits != alone.bits) == crosses


def neighbours_page(patch: Any) -> None:
    """A sequence reads, from its second page on, what the page after its own holds."""
    real = window_cache._runs
    patch.setattr(
        window_cache,
        "_runs",
        lambda pages, *ends: real([pages[0], *(max(0, page - 1) for page in pages[1:])], *ends),
    )


def stale_window(patch: Any) -> None:
    """What lies at a sequence's place is taken for its own."""
    patch.setattr(window_cache.WindowCache, "_copy_pages", window_cache.WindowCache.mark_gathered)


def keys_of_a_page_alone(patch: Any) -> None:
    """A page is found whatever came before it."""
    real = PagePool.page_keys

    def keys(self: PagePool, tokens: Any, before: bytes) -> Iterator[bytes]:
        for first in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            yield from real(self, tokens[first : first + PAGE_SIZE], b"")

    patch.setattr(PagePool, "page_keys", keys)


def one_seed_for_all(patch: Any) -> None:
    """All requests draw from one generator."""
    shared = np.random.default_rng(7)
    patch.setattr(Sampler, "__post_init__", lambda self: object.__setattr__(self, "_random", shared))


def row_beside(patch: Any) -> None:
    """Logits of a request are the next one's."""
    real = Executor.execute
    patch.setattr(Executor, "execute", lambda *given: np.roll(real(*given), 1, axis=0))


def freed_page(patch: Any) -> None:
    """Pages that are found are not held, so others take them while they are read."""
    real, real_publish = PageManager.release, PageManager.publish

    def release(self: PageManager, pages: Any) -> None:
        for page in reversed(pages):
            if self._ref_counts[page]:
                real(self, [page])

    def publish(self: PageManager, page: int, key: bytes) -> None:
        if self._ref_counts[page]:
            real_publish(self, page, key)

    patch.setattr(PageManager, "retain", lambda *_: None)
    patch.setattr(PageManager, "publish", publish)
    patch.setattr(PageManager, "release", release)


def anothers_place(patch: Any) -> None:
    """What was put aside comes back from where another one lies."""
    real = PagePool.copy

    def copy(self: PagePool, page: int, to: int) -> None:
        pages = self.manager.page_count
        real(self, page if page < pages else pages + (page + 1 - pages) % self.swap.page_count, to)

    patch.setattr(PagePool, "copy", copy)


FAULTS = (
    neighbours_page,
    stale_window,
    keys_of_a_page_alone,
    one_seed_for_all,
    row_beside,
    freed_page,
    anothers_place,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: Any, demo: Family, monkeypatch: Any) -> None:
    """In schedules where nothing is wrong without it."""
    fault(monkeypatch)
    assert any(play(demo, draw)[0] for draw in range(len(PAGES)))


def test_the_more_urgent_goes_first(demo: Family) -> None:
    scheduler = demo.scheduler(6)  # not enough for both
    late = scheduler.add_request(demo.prompts[6], NEW, sampler(6))
    scheduler.step()
    urgent = scheduler.add_request(demo.prompts[9], NEW, sampler(9), priority=1)
    while not urgent.is_finished:
        scheduler.step()
    assert not late.is_finished
    assert [token for token in late.steps() if token is not None][-1] == demo.alone[6][0][-1]


def test_what_is_read_has_the_bits_that_it_has_alone(family: Family) -> None:
    """Hidden states and logits of whole prompts, beside answers, in a pool in which some give way."""
    model, scheduler = family.session.model, family.scheduler(9, 4)
    numbers = (5, 6, 3, 0)
    kinds = (WantedRows.LOGITS, WantedRows.HIDDEN, WantedRows.LAST_HIDDEN, WantedRows.LAST_HIDDEN)
    answers = [scheduler.add_request(family.prompts[number], NEW, sampler(number)) for number in (2, 6)]
    rows: list[list[Any]] = [[] for _ in numbers]
    made = [
        scheduler.add_prefill_only(family.prompts[number], rows[at].extend, kinds[at])
        for at, number in enumerate(numbers)
    ]
    later = scheduler.add_request(family.prompts[4], NEW, sampler(4))
    while not all(one.is_finished for one in (*answers, later, *made)):
        scheduler.step()
    assert [one.token_ids for one in (*answers, later)] == [family.alone[n][0] for n in (2, 6, 4)]
    for at, number in enumerate(numbers):
        prompt = family.prompts[number]
        alone = prefill(model, prompt, model.new_cache(len(prompt)))
        expected = logits_rows(model, alone) if kinds[at] is WantedRows.LOGITS else alone
        if kinds[at] is WantedRows.LAST_HIDDEN:
            expected = expected[-1:]
        assert [row.tobytes() for row in rows[at]] == [row.tobytes() for row in expected]
    assert {one.error for one in made} == {None}
    assert scheduler.pool.manager.free_count == 9


def test_what_is_read_neither_stands_still_nor_in_the_way(demo: Family) -> None:
    """By the rows of each step: beside answers at least MIN_PREFILL_ONLY_ROWS of it, and a newcomer's first
    token comes with the step after the one under way."""
    scheduler = demo.scheduler(60)
    reads = [
        scheduler.add_prefill_only(demo.prompts[6], lambda rows: None, WantedRows.HIDDEN) for _ in range(9)
    ]
    scheduler.step()
    assert scheduler.stats.rows == scheduler._executor.max_rows  # all of it, by itself
    going_on = dict.fromkeys(demo.session.model.config.eos_token_ids, -100.0)
    for late in range(3):
        answer = scheduler.add_request(demo.prompts[1], 4, Sampler(logit_bias=going_on))
        scheduler.step()
        assert len(answer.token_ids) == 1
        while not answer.is_finished:
            before = scheduler.stats.rows
            scheduler.step()
            assert MIN_PREFILL_ONLY_ROWS < scheduler.stats.rows - before <= 2 * MIN_PREFILL_ONLY_ROWS, late
    many = [scheduler.add_request([5] * 200, 9, Sampler(logit_bias=going_on)) for _ in range(8)]
    read, steps = sum(map(scheduler.cached_positions, reads)), scheduler.stats.steps
    while not any(one.token_ids for one in many):
        scheduler.step()
    steps = scheduler.stats.steps - steps
    done = sum(len(one.prompt) for one in reads if one.is_finished) + sum(
        map(scheduler.cached_positions, reads)
    )
    assert done - read >= MIN_PREFILL_ONLY_ROWS * steps
    while not all(one.is_finished for one in (*reads, *many)):
        scheduler.step()


def test_what_was_passed_by_for_long_goes_first(demo: Family, monkeypatch: Any) -> None:
    """As where answers leave no room in the window."""
    monkeypatch.setattr(Executor, "can_run", lambda self, pieces: len(pieces) == 1)
    scheduler = demo.scheduler(40)
    going_on = dict.fromkeys(demo.session.model.config.eos_token_ids, -100.0)
    answer = scheduler.add_request([5], 40, Sampler(logit_bias=going_on))
    read = scheduler.add_prefill_only(demo.prompts[6], lambda rows: None, WantedRows.HIDDEN)
    for _ in range(3):
        scheduler.step()
    assert (len(answer.token_ids), scheduler.cached_positions(read)) == (3, 0)
    scheduler.stats = replace(scheduler.stats, steps=PRIORITY_LEVEL_STEPS + 1)
    answer.stop()
    scheduler.add_request([5], 40, Sampler(logit_bias=going_on))
    scheduler.step()
    assert scheduler.cached_positions(read) >= MIN_PREFILL_ONLY_ROWS


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 256])
def test_a_place_begins_where_tiles_fall_to_the_same_cores(head_dim: int) -> None:
    assert ALIGN % (STAGES * kv_rows(head_dim)) == 0


def test_families_of_decode_share_steps_and_the_pool() -> None:
    """Each answer has the bits that it has alone in its family."""
    sessions = {decode: session_of(open_checkpoint(DEMO_FOLDER), decode) for decode in ("rows", "guide")}
    prompt, other = drawn_prompts(1500)[5:7]
    drawn = partial(Sampler, temperature=1.0, seed=1)
    alone = {
        decode: [list(generate_alone(each.model, one, 12, drawn())) for one in (prompt, other)]
        for decode, each in sessions.items()
    }
    scheduler = sessions["guide"].scheduler
    made = {
        decode: [scheduler.add_request(one, 12, drawn(), decode_path=decode) for one in (prompt, other)]
        for decode in ("rows", "guide")
    }
    while not all(one.is_finished for each in made.values() for one in each):
        scheduler.step()
    assert {decode: [one.token_ids for one in each] for decode, each in made.items()} == alone
    assert alone["rows"] != alone["guide"] or scheduler.stats.steps < 40


def test_a_conversation_that_nobody_asks_for_rests_and_gives_way() -> None:
    """Others go on meanwhile, and take its pages where they need them; it has its tokens all the same."""
    session = session_of(open_checkpoint(DEMO_FOLDER))
    going_on = dict.fromkeys(session.model.config.eos_token_ids, -100.0)
    prompt, other = drawn_prompts(1500)[5:7]
    alone = list(generate_alone(session.model, prompt, 30, Sampler(logit_bias=going_on)))
    scheduler = Scheduler(session.model, session.model.new_pool(5))
    resting = scheduler.add_request(prompt, 30, Sampler(logit_bias=going_on), is_conversation=True)
    while len(resting.token_ids) < 3:
        resting.advance()
    beside = scheduler.add_request(other, 12, Sampler(logit_bias=going_on))
    while not beside.is_finished:
        scheduler.step()
    assert (len(resting.token_ids), scheduler.stats.preemptions) == (3, 1)
    assert list(resting) == alone
    kept = scheduler.last_sequence
    assert kept
    assert kept.sequence.token_ids == [*prompt, *alone[:-1]]
