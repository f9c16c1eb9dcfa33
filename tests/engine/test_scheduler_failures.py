"""What fails in a step, on a device or in the work of one request, and what becomes of the other requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from aerie import FinishReason, load
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.error_scope import isolate_request_errors
from aerie.engine.errors import NotFiniteError, PromptError, RequestError
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.page_manager import PoolFullError
from aerie.engine.page_pool import PagePool
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import (
    Scheduler,
)
from aerie.engine.stop_strings import StopStrings
from aerie.engine.strategies.autoregressive import AutoregressiveStrategy
from aerie.engine.strategies.strategy import PassInput
from aerie.runtime import RunError, RunStopped
from tests.engine.scheduling import (
    NEW,
    Family,
    sampler,
    session_of,
)

QUESTIONS = ["What is the capital of France?", "What is the capital of Egypt?"]


@pytest.fixture(scope="module")
def demo() -> Family:
    return Family(session_of(open_checkpoint(DEMO_FOLDER)))


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


def test_a_text_that_cannot_be_decoded_ends_its_answer_alone(monkeypatch: Any) -> None:
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
