"""The thread that owns a model: it takes functions from an inbox and runs engine steps while there is work.

Everything from outside is a function in the inbox, which runs between two steps. After each step the new
deltas go to the event loop together. An error in the work of one output ends that output
(engine/error_scope.py).
An error in a shared step ends the outputs of that step. Neither ends the queued ones or the thread.
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
from aerie.engine.error_scope import isolate_request_errors
from aerie.engine.generate import check_generation
from aerie.engine.page_manager import PAGE_SIZE, PoolFullError
from aerie.engine.scheduler import MAX_PREFILL_ONLY_REQUESTS, MAX_RUNNING_REQUESTS, Scheduler
from aerie.engine.session import Session
from aerie.engine.strategies.drafters import DraftSource
from aerie.engine.tokenizer import Tokenizer
from aerie.serve.errors import ApiError, from_engine_error, from_request_error, internal_error
from aerie.serve.output_processor import (
    FinishInfo,
    LogprobSampler,
    OutputDelta,
    OutputProcessor,
    OutputRequest,
    PoolingOutput,
)
from aerie.serve.pass_history import PassHistory
from aerie.serve.slots import Slots

LOG = logging.getLogger("aerie.serve")
Result = TypeVar("Result")
OnDelta = Callable[[OutputDelta], None]
"""Called in the event loop with each delta."""


@dataclass(frozen=True)
class OpenedModel:
    """An opened model. tokenizer: for prompts, separate from the session's, which belongs to the model
    thread. draft: the default source of draft tokens. draft_session: the session of the draft model."""

    session: Session
    scheduler: Scheduler
    tokenizer: Tokenizer
    draft: str | DraftSource | None = None
    draft_session: Session | None = None

    def check(self, output_request: OutputRequest) -> None:
        """Raise PromptError or UserError if the request cannot run at all. Any thread may call this."""
        if output_request.make_pooler is None:
            self.session.model.config.roles.check_answers()
        check_generation(
            self.session.model,
            output_request.prompt,
            max(1, output_request.max_tokens),
            output_request.sampler,
        )
        output_request.decode_config.strategy_factory(self.session.model.config, output_request.sampler)
        pages = self.scheduler.pool.manager.page_count
        needed = -(-(len(output_request.prompt) + 1) // PAGE_SIZE)
        if needed > pages:
            raise PoolFullError(needed, pages, pages)

    def close(self) -> None:
        """Free devices, buffers and weights."""
        for session in filter(None, (self.session, self.draft_session)):
            session.close()


class Job:
    """One output from submission to its end. `on_delta` is not called after it is cancelled."""

    def __init__(self, output_request: OutputRequest, on_delta: OnDelta) -> None:
        self.output_request, self.on_delta = output_request, on_delta
        self.arrived_s = time.monotonic()
        self.is_cancelled = False
        self.output: OutputProcessor | PoolingOutput | None = None
        """None while it is queued."""

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.arrived_s > self.output_request.time_limit_s


class ModelThread:
    """The thread of one model. `open_model` runs in the thread and may take long. The thread ends by `stop`,
    or with `error` if the model cannot be opened or a defect occurs. `settled` is set when the model is open
    or never will be, `ended` when the thread ends."""

    def __init__(self, open_model: Callable[[], OpenedModel]) -> None:
        self.opened: OpenedModel | None = None
        self.error: BaseException | None = None
        self._open, self._loop = open_model, asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._is_ended = False
        self.settled, self.ended, self.slots = asyncio.Event(), asyncio.Event(), Slots()
        self.history = PassHistory()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Outputs in the scheduler."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Outputs that are queued for the scheduler."""
        return len(self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job. Call it, like all public methods, in the event loop."""
        self._inbox.put(lambda: self._waiting.append(job))  # _waiting may be another deque by then

    def cancel(self, job: Job) -> None:
        """Drop a job before the next step."""
        job.is_cancelled = True
        self._inbox.put(_wake)

    def abort_all(self, error: ApiError) -> None:
        """End all jobs with an error."""
        self._inbox.put(partial(self._end_all_jobs, error))

    async def run_in_thread(self, function: Callable[[OpenedModel], Result]) -> Result:
        """Run a function with the model between two steps, and return its result. Raises what the function
        raises, and ApiError 503 if the thread has ended."""
        if self.ended.is_set():
            raise _unloaded_error()
        result: asyncio.Future[Result] = self._loop.create_future()
        self._inbox.put(partial(self._call, function, result))
        return await result

    def stop(self) -> None:
        """End the thread after the current step."""
        self._inbox.put(self._end)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            opened = self.opened = self._open()
            self._on_loop(self.settled.set)
            try:
                while not self._is_ended:
                    self._run_inbox()
                    self._step(opened)
            finally:
                opened.close()
        except BaseException as error:  # the event loop reports it
            self.error = error
            self._end_all_jobs(internal_error())
        finally:
            self._on_loop(self._finish_on_loop)

    def _finish_on_loop(self) -> None:
        """Runs in the event loop after the thread has ended: end what was submitted too late."""
        self.settled.set()
        self.ended.set()
        while not self._inbox.empty():
            self._inbox.get()()
        self._end_all_jobs(_unloaded_error())

    def _run_inbox(self) -> None:
        """Run the functions of the inbox. Waits for one if there is nothing else to do."""
        try:
            while True:
                self._inbox.get(block=not (self._waiting or self._running))()
                if self._is_ended:
                    return
        except queue.Empty:
            pass

    def _step(self, opened: OpenedModel) -> None:
        """Run one engine step, and send the deltas."""
        deltas = self._drop_ended()
        deltas += self._admit(opened)
        try:
            self.history.step(opened.scheduler, opened.session.cache.profiler)
        except BaseException as error:  # signals never arrive in this thread
            LOG.exception("a step failed, and %d answers with it", len(self._running))
            deltas += self._end_jobs(self._running, from_engine_error(error))
            self._running.clear()
        deltas += self._new_deltas()
        self.history.collect_finished()
        self._running = [job for job in self._running if job.output and not job.output.request.is_finished]
        if deltas:
            self._on_loop(partial(_notify, deltas))

    def _new_deltas(self) -> list[tuple[Job, OutputDelta]]:
        """The new delta of each output. An output whose tokens cannot be decoded ends alone."""
        deltas = []
        for job in self._running:
            try:
                with isolate_request_errors():
                    delta = job.output.next_delta() if job.output else None
                if delta:
                    deltas.append((job, delta))
            except UserError as error:
                deltas += self._end_jobs([job], from_request_error(error))
        return deltas

    def _drop_ended(self) -> list[tuple[Job, OutputDelta]]:
        """Drop cancelled and late jobs. Returns the final deltas of the late ones."""
        jobs = [*self._waiting, *self._running]
        late = [job for job in jobs if job.is_late and not job.is_cancelled]
        removed = {*late, *(job for job in jobs if job.is_cancelled)}
        if not removed:
            return []
        for job in removed:
            if job.output:
                job.output.request.stop()
        self._waiting = deque(job for job in self._waiting if job not in removed)
        self._running = [job for job in self._running if job not in removed]
        return self._end_jobs(late, None)

    def _end_jobs(self, jobs: list[Job], error: ApiError | None) -> list[tuple[Job, OutputDelta]]:
        """The final deltas of jobs that end now, with an error or because their time is up."""
        return [(job, _final_delta(job, error)) for job in jobs]

    def _admit(self, opened: OpenedModel) -> list[tuple[Job, OutputDelta]]:
        """Give the scheduler as many outputs and pooled prompts as it runs at once. Returns the final deltas
        of the refused ones."""
        refused, still_waiting = list[tuple[Job, OutputDelta]](), deque[Job]()
        pooling = sum(job.output_request.make_pooler is not None for job in self._running)
        capacity = {
            False: MAX_RUNNING_REQUESTS - len(self._running) + pooling,
            True: MAX_PREFILL_ONLY_REQUESTS - pooling,
        }
        for job in self._waiting:
            is_pooling = job.output_request.make_pooler is not None
            if capacity[is_pooling] < 1:
                still_waiting.append(job)
                continue
            try:
                with isolate_request_errors():
                    self._start_job(opened, job)
                capacity[is_pooling] -= 1
            except UserError as error:
                refused += self._end_jobs([job], from_request_error(error))
        self._waiting = still_waiting
        return refused

    def _start_job(self, opened: OpenedModel, job: Job) -> None:
        if job.output_request.make_pooler:
            job.output = PoolingOutput.submit(job.output_request, opened.session, opened.scheduler)
        else:
            job.output = _start_output(opened, job.output_request)
            self.slots.assign(job.output.request, job.output_request.slot)
            self.history.start_request(job.output.request)
        self._running.append(job)

    def _end_all_jobs(self, error: ApiError) -> None:
        deltas = self._end_jobs([*self._waiting, *self._running], error)
        self._waiting.clear()
        self._running.clear()
        self._on_loop(partial(_notify, deltas))

    def _call(self, function: Callable[[OpenedModel], Result], result: asyncio.Future[Result]) -> None:
        try:
            if self.opened is None or self.ended.is_set():
                raise _unloaded_error()
            self._on_loop(partial(_resolve, result, function(self.opened)))
        except Exception as error:
            self._on_loop(partial(_fail, result, error))
        except BaseException:  # a panic of a library would end the event loop
            LOG.exception("an operation of the model failed")
            self._on_loop(partial(_fail, result, internal_error()))

    def _end(self) -> None:
        self._is_ended = True

    def _on_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed
            LOG.debug("the event loop was closed before the model")


def _start_output(opened: OpenedModel, output_request: OutputRequest) -> OutputProcessor:
    sampler = output_request.sampler
    if output_request.num_logprobs is not None:
        sampler = LogprobSampler(
            **sampler.settings,
            num_logprobs=output_request.num_logprobs,
            after_sampling=output_request.after_sampling,
        )
    session = opened.session
    make_strategy = output_request.decode_config.strategy_factory(session.model.config, sampler)
    max_tokens = max(1, output_request.max_tokens)  # without output, one token is generated and dropped
    request = opened.scheduler.add_request(output_request.prompt, max_tokens, sampler, strategy=make_strategy)
    return OutputProcessor(
        output_request, request, sampler, session.tokenizer, session.model.config.eos_token_ids
    )


def _final_delta(job: Job, error: ApiError | None) -> OutputDelta:
    """The final delta of a job that ends now. Text that cannot be decoded is left out."""
    if job.output is None:
        return _unstarted_delta(job, error)
    try:
        with isolate_request_errors():
            return job.output.abort(error)
    except UserError as fault:
        job.output.request.stop()
        return _unstarted_delta(job, error or from_request_error(fault))


def _unstarted_delta(job: Job, error: ApiError | None) -> OutputDelta:
    """The final delta of a job that never ran."""
    limit = job.output_request.time_limit_s
    late = ApiError(
        503, f"its turn did not come within the {limit:g} s that a request has", code="time_limit"
    )
    return OutputDelta(
        job.output_request.index,
        finish=FinishInfo("error", len(job.output_request.prompt), 0, 0, error=error or late),
    )


def _notify(deltas: list[tuple[Job, OutputDelta]]) -> None:
    for job, delta in deltas:
        if not job.is_cancelled:
            try:
                job.on_delta(delta)
            except Exception:
                LOG.exception("a part of an answer could not be sent")


def _resolve(future: asyncio.Future[Result], value: Result) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _unloaded_error() -> ApiError:
    return ApiError(
        503, "the model was unloaded in the meantime; send the request again", code="unloaded", retry_after=1
    )


def _wake() -> None:
    """Does nothing; in the inbox it wakes the thread."""
