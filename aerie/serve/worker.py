"""The thread that owns the model: it takes what is asked for from a queue, and steps while there is work.

All that comes from outside is a function in its inbox, which runs between two steps. What answers give is
told to the event loop after each step, all pieces at once. What fails in work of one answer ends that one
(engine/faults.py); what fails in a step that they share ends the answers that were in it, with an error each.
Neither ends those that wait, nor the thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aerie.common.errors import UserError
from aerie.engine.faults import of_one_answer
from aerie.engine.generate import check_asked
from aerie.engine.pages import PAGE, PoolFullError
from aerie.engine.scheduler import MOST_ANSWERS, MOST_READ, Scheduler
from aerie.engine.session import Session
from aerie.engine.strategies.drafting import Drafting
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.errors import ApiError, blamed, internal, of_engine
from aerie.serve.output_processor import Answer, Ask, Ending, Piece, ReadPrompt, Recorder
from aerie.serve.pass_history import History
from aerie.serve.slots import Slots

LOG = logging.getLogger("aerie.serve")
Made = TypeVar("Made")
Told = Callable[[Piece], None]
"""Called on the event loop with what has come."""


@dataclass(frozen=True)
class Opened:
    """A model that is ready. tokenizer: one for prompts, apart from the session's, which is the thread's.
    draft: where guesses come from where nobody says; drafter: the session of the model that makes them."""

    session: Session
    scheduler: Scheduler
    tokenizer: Tokenizer
    draft: str | Drafting | None = None
    drafter: Session | None = None

    def check(self, ask: Ask) -> None:
        """PromptError and UserError for what cannot be run at all. From any thread."""
        check_asked(self.session.model, ask.prompt, max(1, ask.max_tokens), ask.sampler)
        ask.manner.maker(self.session.model.config, ask.sampler)
        pages, needed = self.scheduler.pool.manager.pages, -(-(len(ask.prompt) + 1) // PAGE)
        if needed > pages:
            raise PoolFullError(needed, pages, pages)

    def close(self) -> None:
        """Give up devices, buffers and weights."""
        for session in filter(None, (self.session, self.drafter)):
            session.close()


class Job:
    """An answer on its way. Its `told` is not called any more once it is cancelled."""

    def __init__(self, ask: Ask, told: Told) -> None:
        self.ask, self.told = ask, told
        self.came_s = time.monotonic()
        self.is_cancelled = False
        self.answer: Answer | ReadPrompt | None = None
        """None while it waits."""

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.came_s > self.ask.time_limit_s


class Worker:
    """See the module. `open_model` is called in the thread, and may take long. It ends by
    `stop`, or since the model cannot be opened: `error` says why, then. `settled` is set when it is opened,
    or never will be; `over` when the thread ends."""

    def __init__(self, open_model: Callable[[], Opened]) -> None:
        self.opened: Opened | None = None
        self.error: BaseException | None = None
        self._open, self._loop = open_model, asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._is_ended = False
        self.settled, self.over, self.slots = asyncio.Event(), asyncio.Event(), Slots()
        self.history = History()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Answers that the scheduler has."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Answers that it was not given yet."""
        return len(self._waiting)

    def put(self, job: Job) -> None:
        """Have it answered when its turn comes. From the event loop, as all that is public here."""
        self._inbox.put(lambda: self._waiting.append(job))  # to the queue of then, which may be another

    def cancel(self, job: Job) -> None:
        """Forget it, before the next step."""
        job.is_cancelled = True
        self._inbox.put(_nothing)

    def end_all(self, error: ApiError) -> None:
        """End all that is asked for, with an error each."""
        self._inbox.put(partial(self._end_each, error))

    async def call(self, function: Callable[[Opened], Made]) -> Made:
        """What a function makes of the model, between two steps. Raises what it raises."""
        if self.over.is_set():
            raise _unloaded()
        made: asyncio.Future[Made] = self._loop.create_future()
        self._inbox.put(partial(self._call, function, made))
        return await made

    def stop(self) -> None:
        """End the thread after the step under way."""
        self._inbox.put(self._end)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            opened = self.opened = self._open()
            self._on_loop(self.settled.set)
            try:
                while not self._is_ended:
                    self._take()
                    self._turn(opened)
            finally:
                opened.close()
        except BaseException as error:  # told by whoever started it
            self.error = error
            self._end_each(internal())
        finally:
            self._on_loop(self._tell_over)

    def _tell_over(self) -> None:
        """In the loop, once the thread takes nothing any more: what came too late is told."""
        self.settled.set()
        self.over.set()
        while not self._inbox.empty():
            self._inbox.get()()
        self._end_each(_unloaded())

    def _take(self) -> None:
        """Do what came; wait for it where there is nothing else to do."""
        try:
            while True:
                self._inbox.get(block=not (self._waiting or self._running))()
                if self._is_ended:
                    return
        except queue.Empty:
            pass

    def _turn(self, opened: Opened) -> None:
        """A step for all, and what comes of it."""
        told = self._left_out()
        told += self._admitted(opened)
        try:
            self.history.step(opened.scheduler, opened.session.cache.profiler)
        except BaseException as error:  # no signal comes in this thread
            LOG.exception("a step failed, and %d answers with it", len(self._running))
            told += self._cut(self._running, of_engine(error))
            self._running.clear()
        told += self._come()
        self.history.notice()
        self._running = [job for job in self._running if job.answer and not job.answer.request.is_over]
        if told:
            self._on_loop(partial(_tell, told))

    def _come(self) -> list[tuple[Job, Piece]]:
        """What has come of each; one whose tokens cannot be told ends alone."""
        told = []
        for job in self._running:
            try:
                with of_one_answer():
                    piece = job.answer.piece() if job.answer else None
                if piece:
                    told.append((job, piece))
            except UserError as error:
                told += self._cut([job], blamed(error))
        return told

    def _left_out(self) -> list[tuple[Job, Piece]]:
        """Let go of what was cancelled, and of what is late, which is told."""
        every = [*self._waiting, *self._running]
        late = [job for job in every if job.is_late and not job.is_cancelled]
        gone = {*late, *(job for job in every if job.is_cancelled)}
        if not gone:
            return []
        for job in gone:
            if job.answer:
                job.answer.request.stop()
        self._waiting = deque(job for job in self._waiting if job not in gone)
        self._running = [job for job in self._running if job not in gone]
        return self._cut(late, None)

    def _cut(self, jobs: list[Job], error: ApiError | None) -> list[tuple[Job, Piece]]:
        """The last pieces of jobs that end here, with an error or because their time is up."""
        return [(job, _last(job, error)) for job in jobs]

    def _admitted(self, opened: Opened) -> list[tuple[Job, Piece]]:
        """Give the scheduler as many as it runs at once, of those that are answered and of those that are
        read; what it refuses is told."""
        refused, left = list[tuple[Job, Piece]](), deque[Job]()
        read = sum(job.ask.reads is not None for job in self._running)
        room = {False: MOST_ANSWERS - len(self._running) + read, True: MOST_READ - read}
        for job in self._waiting:
            is_read = job.ask.reads is not None
            if room[is_read] < 1:
                left.append(job)
                continue
            try:
                with of_one_answer():
                    self._begin(opened, job)
                room[is_read] -= 1
            except UserError as error:
                refused += self._cut([job], blamed(error))
        self._waiting = left
        return refused

    def _begin(self, opened: Opened, job: Job) -> None:
        if job.ask.reads:
            job.answer = ReadPrompt.of(job.ask, opened.session, opened.scheduler)
        else:
            job.answer = _begun(opened, job.ask)
            self.slots.give(job.answer.request, job.ask.slot)
            self.history.begin(job.answer.request)
        self._running.append(job)

    def _end_each(self, error: ApiError) -> None:
        told = self._cut([*self._waiting, *self._running], error)
        self._waiting.clear()
        self._running.clear()
        self._on_loop(partial(_tell, told))

    def _call(self, function: Callable[[Opened], Made], made: asyncio.Future[Made]) -> None:
        try:
            if self.opened is None or self.over.is_set():
                raise _unloaded()
            self._on_loop(partial(_resolve, made, function(self.opened)))
        except Exception as error:
            self._on_loop(partial(_refuse, made, error))
        except BaseException:  # a panic of a library, which the event loop does not survive
            LOG.exception("what was asked of the model failed")
            self._on_loop(partial(_refuse, made, internal()))

    def _end(self) -> None:
        self._is_ended = True

    def _on_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: nobody listens
            LOG.debug("the event loop was closed before the model")


def _begun(opened: Opened, ask: Ask) -> Answer:
    sampler = ask.sampler
    if ask.marks is not None:
        sampler = Recorder(**sampler.settings, top=ask.marks, as_drawn=ask.as_drawn)
    session = opened.session
    maker = ask.manner.maker(session.model.config, sampler)
    most = max(1, ask.max_tokens)  # a prompt that is only read ends with a token that nobody is told
    request = opened.scheduler.submit(ask.prompt, most, sampler, strategy=maker)
    return Answer(ask, request, sampler, session.tokenizer, session.model.config.eos_token_ids)


def _last(job: Job, error: ApiError | None) -> Piece:
    """The last piece of a job that ends here. Text that cannot be told is left out."""
    if job.answer is None:
        return _unbegun(job, error)
    try:
        with of_one_answer():
            return job.answer.cut(error)
    except UserError as fault:
        job.answer.request.stop()
        return _unbegun(job, error or blamed(fault))


def _unbegun(job: Job, error: ApiError | None) -> Piece:
    """The piece of a job of which nothing came."""
    limit = job.ask.time_limit_s
    late = ApiError(
        503, f"its turn did not come within the {limit:g} s that a request has", code="time_limit"
    )
    return Piece(job.ask.index, ending=Ending("error", len(job.ask.prompt), 0, 0, error=error or late))


def _tell(told: list[tuple[Job, Piece]]) -> None:
    for job, piece in told:
        if not job.is_cancelled:
            try:
                job.told(piece)
            except Exception:
                LOG.exception("a piece of an answer could not be told")


def _resolve(made: asyncio.Future[Made], value: Made) -> None:
    if not made.done():
        made.set_result(value)


def _refuse(made: asyncio.Future[Made], error: Exception) -> None:
    if not made.done():
        made.set_exception(error)


def _unloaded() -> ApiError:
    return ApiError(503, "the model was unloaded meanwhile; ask again", code="unloaded", retry_after=1)


def _nothing() -> None:
    """Wakes the thread."""
