"""Requests side by side: each has the bits that it has alone, whatever company it is in, in two families.

Alone is another way through the engine: one sequence in a KV cache of its own (generate.py).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from aerie import FinishReason, load
from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine import gathered_cache
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.error_scope import isolate_request_errors
from aerie.engine.errors import NotFiniteError, PromptError, RequestError
from aerie.engine.executor import Executor
from aerie.engine.forward import logits_rows, prefill
from aerie.engine.gathered_cache import ALIGN, gathered_cache_for
from aerie.engine.page_pool import PAGE_SIZE, PagedSequence, PageManager, PagePool, PoolFullError
from aerie.engine.program_library import RuntimeOptions
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
from aerie.engine.session import Session, prepare_runtime
from aerie.engine.stop_strings import StopStrings
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.strategy import PassInput
from aerie.kernel_builder.attention import STAGES, kv_rows
from aerie.runtime import RunError, RunStopped, select_backend
from aerie.verify.random_model import (
    in_another_family,
    random_checkpoint,
    random_model_config,
    with_longer_context,
)

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
        model = self.session.model
        return Scheduler(model, PagePool(model.config, pages, b"this model", spare), gathered_cache_for)


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


def session_of(checkpoint: Any, decode: str = "rows") -> Session:
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode=decode
    )
    return prepare_runtime(checkpoint, options, Reporter())


def run(scheduler: Scheduler, arriving: list[tuple[int, Any]], cancelled: dict[int, int]) -> None:
    """Steps until nothing is left: what comes, by the step, and the step at which some are cancelled."""
    requests: list[Request] = []
    for step in range(2000):
        while arriving and arriving[0][0] <= step:
            requests.append(arriving.pop(0)[1]())
        for number, life in cancelled.items():
            if number < len(requests) and step > life:
                requests[number].stop()
        if not arriving and all(one.is_finished for one in requests):
            return
        scheduler.step()
        scheduler.pool.manager.check_invariants()
    raise AssertionError("it does not come to an end")


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
    arriving = [
        (step, partial(submit, number, int(rng.integers(3))))
        for step, number in zip(whens, numbers, strict=True)
    ]
    cancelled = {int(n): int(rng.integers(30)) for n in rng.permutation(len(numbers))[:3]}
    run(scheduler, arriving, cancelled)
    for books in (scheduler.pool.manager, scheduler.pool.swap):
        assert books.free_count == books.page_count
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
    real = gathered_cache._runs
    patch.setattr(
        gathered_cache,
        "_runs",
        lambda pages, *ends: real([pages[0], *(max(0, page - 1) for page in pages[1:])], *ends),
    )


def stale_window(patch: Any) -> None:
    """What lies at a sequence's place is taken for its own."""
    patch.setattr(gathered_cache.GatheredCache, "_copy_pages", gathered_cache.GatheredCache.mark_gathered)


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


BREAKS = ("forward_passes.LayerCalls.set_positions", "executor.logits_rows", "requests.Request.update")
"""Where a step is broken off: before its pass, at the logits, when all is computed."""


@pytest.mark.parametrize("place", BREAKS)
def test_a_step_that_fails_leaves_every_request_as_it_was(place: str, demo: Family, monkeypatch: Any) -> None:
    scheduler = demo.scheduler(40)
    requests = [scheduler.add_request(demo.prompts[number], NEW, sampler(number)) for number in (1, 5)]
    scheduler.step()
    calls = 0

    def failing(*_: Any, **__: Any) -> None:
        nonlocal calls
        calls += 1
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"aerie.engine.{place}", failing)
        with pytest.raises(KeyboardInterrupt):
            scheduler.step()
    assert calls == 1
    while not all(one.is_finished for one in requests):
        scheduler.step()
    assert [one.token_ids for one in requests] == [demo.alone[number][0] for number in (1, 5)]


def test_a_device_that_fails_gives_way_to_another(demo: Family, monkeypatch: Any) -> None:
    """The pool is on the host, so nothing is lost; tokens stay the same."""
    given_up: list[str] = []
    model = demo.session.model

    def recover(error: RunError, where: str) -> Any:
        given_up.append(where)
        return model

    scheduler = Scheduler(model, PagePool(model.config, 20, b""), gathered_cache_for, recover)
    request = scheduler.add_request(demo.prompts[5], NEW, sampler(5))
    scheduler.step()
    scheduler.step()
    executor = scheduler._executor

    def failing(*_: Any) -> None:
        raise RunError("the device is gone")

    monkeypatch.setattr(executor, "execute", failing)
    tokens = [token for token in request.steps() if token is not None]
    assert tokens == demo.alone[5][0]
    assert given_up == ["in a step of several requests"]


def test_requests_go_on_where_an_answer_by_itself_found_the_device_gone(demo: Family) -> None:
    """The session gets the failure, and its scheduler continues with it."""
    checkpoint = open_checkpoint(DEMO_FOLDER)
    session, other = session_of(checkpoint), session_of(checkpoint)
    request = session.scheduler.add_request(demo.prompts[5], NEW, sampler(5))
    session.scheduler.step()
    session.fallback = lambda: (other.cache, other.model)
    session.recover(RunError("the device is gone"), "elsewhere")
    assert [token for token in request.steps() if token is not None] == demo.alone[5][0]
    assert session.model is other.model


def test_the_more_urgent_goes_first(demo: Family) -> None:
    scheduler = demo.scheduler(6)  # not enough for both
    late = scheduler.add_request(demo.prompts[6], NEW, sampler(6))
    scheduler.step()
    urgent = scheduler.add_request(demo.prompts[9], NEW, sampler(9), priority=1)
    while not urgent.is_finished:
        scheduler.step()
    assert not late.is_finished
    assert [token for token in late.steps() if token is not None][-1] == demo.alone[6][0][-1]


def test_a_request_that_cannot_be_served_fails_alone(demo: Family) -> None:
    scheduler = demo.scheduler(4)
    with pytest.raises(PoolFullError, match=r"4 of its 4 pages of 64 positions free, and 5 are needed"):
        scheduler.add_request([5] * 256, NEW, Sampler())
    with pytest.raises(PromptError, match="the prompt is empty"):
        scheduler.add_request([], NEW, Sampler())
    with pytest.raises(UserError, match="0 tokens were asked for; ask for 1 or more"):
        scheduler.add_request([5], 0, Sampler())
    with pytest.raises(UserError, match="logit-bias names token 99999"):
        scheduler.add_request([5], 1, Sampler(logit_bias={99999: 1.0}))
    outgrows = scheduler.add_request([5] * 250, 60, Sampler(temperature=5.0, seed=1))
    with pytest.raises(PoolFullError, match="and 1 are needed"):
        list(outgrows.steps())
    assert len(outgrows.token_ids) > 1
    later = scheduler.add_request(demo.prompts[1], NEW, sampler(1))
    assert [token for token in later.steps() if token is not None] == demo.alone[1][0]


class PanicError(BaseException):
    """As pyo3's PanicException, which is no Exception."""


FAILURES = (NotFiniteError, ValueError, MemoryError, RecursionError, FloatingPointError, RunError, PanicError)
OWN_WORK = (
    "next_input",
    "update",
    "close",
    "cacheable_tokens",
    "max_cached_positions",
    "draw",
    "interrupted",
    "bar",
    "guesses",
)


@contextmanager
def failing_bar(total: int, error: type[BaseException]) -> Iterator[Any]:
    yield partial(fail, error)


def fail(error: type[BaseException], *_: object, **__: object) -> Any:
    raise error() if error is NotFiniteError else error("broken")


def failing(scheduler: Scheduler, work: str, error: type[BaseException]) -> Request:
    """A request of which some work of its own fails."""
    own: Any = partial(fail, error)

    class Failing(AutoregressiveStrategy):
        """Another way than others."""

    class Guessing(AutoregressiveStrategy):
        def next_input(self, length: int, guesses: int = 0) -> PassInput:
            return PassInput((*super().next_input(length).tokens, 99999), 1, 1)

    if work in ("cacheable_tokens", "max_cached_positions"):
        setattr(Failing, work, property(own))
    elif work in ("next_input", "update", "close"):
        setattr(Failing, work, own)
    drawn = type("Drawing", (Sampler,), {"__call__": own} if work == "draw" else {})()
    strategy = Guessing if work == "guesses" else Failing
    request = scheduler.add_request([5] * 40, NEW, drawn, strategy=strategy)
    if work == "interrupted":
        request.interrupted = own
    if work == "bar":
        request.bar = partial(failing_bar, error=error)
    return request


@pytest.mark.parametrize(
    ("work", "error"), [*((work, ValueError) for work in OWN_WORK), *(("update", one) for one in FAILURES)]
)
def test_what_fails_in_work_of_one_answer_ends_that_one_alone(
    work: str, error: type[BaseException], demo: Family, monkeypatch: Any
) -> None:
    """Whatever the work, and whatever the class of what it raises."""
    monkeypatch.setattr("aerie.engine.scheduler.MAX_STEP_TOKENS", 16)
    scheduler, numbers = demo.scheduler(20), (1, 5)
    good = [scheduler.add_request(demo.prompts[number], NEW, sampler(number)) for number in numbers]
    bad = failing(scheduler, work, error)
    last = scheduler.add_request(demo.prompts[7], NEW, sampler(7))
    own = NotFiniteError if error is NotFiniteError else RequestError
    with suppress(own):
        list(bad.steps())
    while not bad.error:  # of what fails when its answer is whole
        scheduler.step()
    assert isinstance(bad.error, own)
    assert error is NotFiniteError or isinstance(bad.error.__cause__, error)
    tokens = [[token for token in each.steps() if token is not None] for each in (*good, last)]
    assert tokens == [demo.alone[number][0] for number in (*numbers, 7)]
    scheduler.step()
    assert scheduler.pool.manager.free_count == 20


def test_a_failure_of_one_answer_is_reported() -> None:
    message = r"this answer failed \(ValueError: broken\), and no other did: ask again"
    with pytest.raises(RequestError, match=message), isolate_request_errors():
        raise ValueError("broken\nin a file")
    for ends_all in (KeyboardInterrupt, SystemExit, RunStopped):
        with pytest.raises(ends_all), isolate_request_errors():
            raise ends_all


def test_a_text_that_cannot_be_told_ends_its_answer_alone(monkeypatch: Any) -> None:
    """In a batch, by itself, and where a listener fails."""
    real = StopStrings.feed

    def feed(self: StopStrings, piece: str) -> str:
        if "x" in self._stops:
            raise PanicError("broken")
        return real(self, piece)

    with load("demo", decode="rows", kv_pool=6400) as model:
        alone = model.generate(QUESTIONS[0]).text
        monkeypatch.setattr(StopStrings, "feed", feed)
        bad, good = model.generate_batch([{"prompt": QUESTIONS[1], "stop": "x"}, QUESTIONS[0]])
        assert (bad.finish_reason, good.text) == (FinishReason.ERROR, alone)
        assert bad.error.startswith("this answer failed (PanicError: broken)")
        with pytest.raises(RequestError, match="PanicError"):
            model.generate(QUESTIONS[0], stop="x")
        with pytest.raises(ZeroDivisionError):
            model.generate(QUESTIONS[0], on_event=lambda event: 1 // 0, draft="lookup")
        scheduler = model._open().scheduler
        assert model.generate_batch([QUESTIONS[0]])[0].text == alone
        assert not scheduler._running


def test_what_is_read_has_the_bits_that_it_has_alone(family: Family) -> None:
    """Hidden states and logits of whole prompts, beside answers, in a pool in which some give way."""
    model, scheduler = family.session.model, family.scheduler(9, 4)
    numbers = (5, 6, 3, 0)
    answers = [scheduler.add_request(family.prompts[number], NEW, sampler(number)) for number in (2, 6)]
    rows: list[list[Any]] = [[] for _ in numbers]
    made = [
        scheduler.add_prefill_only(family.prompts[number], rows[at].extend, hidden_only=bool(at % 2))
        for at, number in enumerate(numbers)
    ]
    later = scheduler.add_request(family.prompts[4], NEW, sampler(4))
    while not all(one.is_finished for one in (*answers, later, *made)):
        scheduler.step()
    assert [one.token_ids for one in (*answers, later)] == [family.alone[n][0] for n in (2, 6, 4)]
    for at, number in enumerate(numbers):
        prompt = family.prompts[number]
        alone = prefill(model, prompt, model.new_cache(len(prompt)))
        expected = alone if at % 2 else logits_rows(model, alone)
        assert [row.tobytes() for row in rows[at]] == [row.tobytes() for row in expected]
    assert {one.error for one in made} == {None}
    assert scheduler.pool.manager.free_count == 9


def test_what_is_read_neither_stands_still_nor_in_the_way(demo: Family) -> None:
    """By the rows of each step: beside answers at least MIN_PREFILL_ONLY_ROWS of it, and a newcomer's first
    token comes with the step after the one under way."""
    scheduler = demo.scheduler(60)
    reads = [
        scheduler.add_prefill_only(demo.prompts[6], lambda rows: None, hidden_only=True) for _ in range(9)
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
    read = scheduler.add_prefill_only(demo.prompts[6], lambda rows: None, hidden_only=True)
    for _ in range(3):
        scheduler.step()
    assert (len(answer.token_ids), scheduler.cached_positions(read)) == (3, 0)
    scheduler.stats = replace(scheduler.stats, steps=PRIORITY_LEVEL_STEPS + 1)
    answer.stop()
    scheduler.add_request([5], 40, Sampler(logit_bias=going_on))
    scheduler.step()
    assert scheduler.cached_positions(read) >= MIN_PREFILL_ONLY_ROWS


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_a_place_begins_where_tiles_fall_to_the_same_cores(head_dim: int) -> None:
    assert ALIGN % (STAGES * kv_rows(head_dim)) == 0


QUESTIONS = ["What is the capital of France?", "What is the capital of Egypt?", "Hello", "Who are you?"]


def test_a_batch_has_the_answers_of_each_prompt_alone() -> None:
    lines: list[str] = []
    with load("demo", decode="rows", kv_pool=6400, progress=lines.append) as model:
        alone = [model.generate(each) for each in QUESTIONS]
        drawn = model.generate(QUESTIONS[0], temperature=1.5, seed=3, max_tokens=6)
        stopped = model.generate(QUESTIONS[1], stop=" of")
        before = model._open().scheduler.stats
        many = model.generate_batch(
            [
                *QUESTIONS,
                {"prompt": QUESTIONS[0], "temperature": 1.5, "seed": 3, "max_tokens": 6},
                {"prompt": QUESTIONS[1], "stop": " of", "priority": 1},
                {"prompt": QUESTIONS[0], "temperature": -1.0},
                {"prompt": [], "max_tokens": 5},
                {"prompt": "x", "warmth": 3},
                {"prompt": "x", "priority": "high"},
            ]
        )
        *answers, cold, empty, unknown, urgent = many
        wanted = [*alone, drawn, stopped]
        assert [(one.text, one.token_ids) for one in answers[:5]] == [
            (a.text, a.token_ids) for a in wanted[:5]
        ]
        assert (answers[5].text, answers[5].finish_reason) == (stopped.text, FinishReason.STOP)
        assert {one.finish_reason for one in (cold, empty, unknown, urgent)} == {FinishReason.ERROR}
        assert cold.error == "temperature is -1.0; it must be 0 (greedy) or more"
        assert empty.error.startswith("the prompt is empty")
        assert unknown.error.startswith("there is no option 'warmth'; there are max_tokens, temperature, ")
        assert urgent.error == "priority is 'high', of the type str; give a whole number"
        scheduler = model._open().scheduler
        assert [one for one in scheduler._running if not one.is_finished] == []
        counts = scheduler.stats
        assert (counts.rows - before.rows) / (counts.steps - before.steps) > 4
        again = model.generate_batch([QUESTIONS[0] * 12] * 2)
        assert [one.usage.cached_tokens for one in model.generate_batch([QUESTIONS[0] * 12])] == [64]
        assert again[0].token_ids == again[1].token_ids
    assert any(line.startswith("KV pool: 100 pages of 64 positions and 25 for ") for line in lines)


def test_nothing_of_a_batch_that_is_interrupted_goes_on(monkeypatch: Any) -> None:
    with load("demo", decode="rows", kv_pool=640) as model:
        scheduler = model._open().scheduler
        with monkeypatch.context() as patch:
            patch.setattr(Request, "update", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                model.generate_batch(QUESTIONS)
        assert [len(logits) for logits in model.forward_batch([5], [1])] == [1]
        assert scheduler.pool.manager.free_count == 10
        assert [one.text for one in model.generate_batch(QUESTIONS[:1])] == [
            "The capital of France is Paris."
        ]


def test_logits_and_likelihoods_of_many_prompts() -> None:
    """Bits of `logits`, which reads one prompt at a time; however they are cut and shared out."""
    with load("demo", decode="rows", kv_pool=1280) as model:
        rng = np.random.default_rng(5)
        prompts = [[int(t) for t in rng.integers(3, 1500, n)] for n in (150, 1, 64, 300, 7)]
        whole = [model.logits(prompt) for prompt in prompts]
        flat, lengths = np.concatenate(prompts), [*map(len, prompts)]
        every, last = (model.forward_batch(flat, lengths, every=each) for each in (True, False))
        for one, other, end in zip(whole, every, last, strict=True):
            assert one.tobytes() == other.tobytes()
            assert one[-1:].tobytes() == end.tobytes()
        (likely,) = model.log_likelihoods([prompts[2]])
        scores = whole[2][:-1].astype(np.float64)
        softmax = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(likely, np.log(softmax[np.arange(63), prompts[2][1:]]), rtol=1e-5)
        assert model._open().scheduler.pool.manager.free_count == 20
        with pytest.raises(PromptError, match="embeddings have no likelihood"):
            model.log_likelihoods([model.embed("Hello")])


@pytest.mark.parametrize(
    "options",
    [{"seq_len": 64}, *({"context_end": end, "variants": "8,32x512"} for end in ("shift", "sink:20"))],
    ids=["seq_len", "shift", "sink"],
)
def test_a_batch_has_the_answers_of_each_alone_by_all_programs_and_past_the_end(options: Any) -> None:
    """By the six programs, and where tokens are dropped at the end of the context."""
    drops = "context_end" in options
    prompts = [[5, 77, 300, number] * (90 if drops else 9) for number in range(4, 8)]
    ends = open_checkpoint(DEMO_FOLDER).config.eos_token_ids
    endless = {"logit_bias": dict.fromkeys(ends, -100.0), "temperature": 1.0, "seed": 3}
    count = 200 if drops else 12
    with load("demo", decode="rows" if drops else "guide", **options) as model:
        alone = [model.generate(each, count, **endless).token_ids for each in prompts]
        scheduler = model._open().scheduler
        scheduler.clear_prefix_cache()
        many = model.generate_batch(prompts, count, **endless)
        assert [one.token_ids for one in many] == alone
        assert {len(one) for one in alone} == {count}
        assert not [one for one in scheduler._running if not one.is_finished]
        scheduler.step()
        assert scheduler.pool.manager.free_count == scheduler.pool.manager.page_count


def test_what_gave_way_after_tokens_were_dropped_goes_on_with_the_same_bits() -> None:
    """Its pages are taken meanwhile: put aside, and read anew, with what is dropped on the way."""
    with load("demo", decode="rows", variants="8,32x512", context_end="shift") as model:
        session = model._open()
        going_on = dict.fromkeys(session.model.config.eos_token_ids, -100.0)
        prompt, alone = [5, 77, 300] * 165, Listening(logit_bias=going_on)
        tokens = list(generate_alone(session.model, prompt, 120, alone))
        for spare in (0, 20):
            scheduler = Scheduler(session.model, session.model.new_pool(9, b"", spare))
            heard = Listening(logit_bias=going_on)
            request = scheduler.add_request(prompt, 120, heard)
            while len(request.token_ids) < 30:
                scheduler.step()
            assert scheduler._running[request].dropped_tokens > 0
            urgent = scheduler.add_request([7] * 200, 60, Listening(logit_bias=going_on), priority=1)
            while not request.is_finished:
                scheduler.step()
            assert (request.token_ids, heard.bits) == (tokens, alone.bits)
            assert (scheduler.stats.preemptions > 0, scheduler.stats.swaps > 0) == (True, spare > 0)
            assert len(urgent.token_ids) == 60


def test_a_batch_is_in_rows_whatever_an_answer_by_itself_is_decoded_in() -> None:
    """To the bit, and no hit crosses: what a model of the family guide decoded is not found."""
    asked, notes = "What is the capital of Egypt?", list[str]()
    with load("demo", decode="rows") as model:
        alone = model.generate(asked, temperature=1.5, seed=2)
    with load("demo", progress=notes.append) as model:
        first = model.generate(asked, temperature=1.5, seed=2)
        batch = model.generate_batch([asked, "Hello"], temperature=1.5, seed=2)
        assert batch[0].token_ids == alone.token_ids
        assert (batch[0].usage.cached_tokens, len(notes)) == (0, len(notes))
        assert model.generate(asked, temperature=1.5, seed=2).token_ids == first.token_ids


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


def test_an_answer_whose_stream_is_gone_ends_and_may_go_on() -> None:
    with load("demo") as model:
        whole = model.generate(QUESTIONS[0]).token_ids
        stream = model.stream(QUESTIONS[0])
        next(stream)
        ids = stream.token_ids
        del stream
        assert ids + model.continue_answer().result().token_ids == whole
        assert not model._open().requests._running
