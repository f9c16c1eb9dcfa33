"""What all requests of a model share: its worker, its name, the limits, who may wait, and its state."""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from aerie.common.errors import AerieError, UserError
from aerie.engine.chat_template import AT_ONCE
from aerie.engine.errors import TooLittleMemoryError
from aerie.engine.grammar import Grammar
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.tokenizer import Tokenizer
from aerie.runtime.memory import return_freed_memory
from aerie.serve.answer import Ask
from aerie.serve.asking import Asking, at_once
from aerie.serve.bodies import IS_LARGE
from aerie.serve.errors import ApiError, of_engine
from aerie.serve.fields import Form
from aerie.serve.metrics import Line, Metrics
from aerie.serve.npu import Views
from aerie.serve.preparing import Conversed, Conversing, encoded, formed, grammar_of
from aerie.serve.slot_files import SlotFiles, Storage
from aerie.serve.worker import Opened, Worker

Made = TypeVar("Made")
LOG = logging.getLogger("aerie.serve")
LOADING_S = 2
"""What a client is told to wait while the model is loaded."""
FORMING = 32
"""Threads in which forms are asked for: who waits until one is read keeps none waiting whose is known."""
RETRY_S = 10
"""So long a model that could not be loaded is not tried again."""
FOLDERS = re.compile(r"(?<![\w/])(?:\.{1,2}|~)?/(?:[^\s/'\"]+/)*")
"""Of a path, all but its last name."""


@dataclass(frozen=True)
class Limits:
    """queue: answers that may wait beside those under way. time_limit_s: of a request, from its coming to its
    last token. drain_s: what is left to answers when the server is told to stop. heartbeat_s: after so much
    silence a stream has a comment. body_bytes, header_bytes: of a request. connections: at once
    (connections.py). head_s, body_s: until a request's head is there, and its body. send_s: until a reader
    takes some of what was sent. api_key: None lets everybody in. origins: of pages in browsers that may ask.
    is_local: only this machine's names are taken for the server's. slots: where they are saved, None for
    nowhere. load_s: that a request waits for its model to be loaded. kept: responses and conversations that
    are kept, of so many bytes together (kept.py)."""

    queue: int = 64
    time_limit_s: float = 600.0
    drain_s: float = 30.0
    heartbeat_s: float = 5.0
    body_bytes: int = 4 * 2**20
    header_bytes: int = 32 * 2**10
    connections: int = 1000
    head_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 60.0
    api_key: str | None = None
    origins: tuple[str, ...] = ()
    is_local: bool = True
    slots: Storage | None = None
    load_s: float = 120.0
    kept: int = 1000
    kept_bytes: int = 256 * 2**20


class Offer(NamedTuple):
    """A model that a server has, under its name. open: makes it ready, which may take long. needs: the bytes
    of memory that it takes then, foreseen. Both raise AerieError. aliases: other names of it."""

    name: str
    open: Callable[[], Opened]
    needs: Callable[[], int] = int
    aliases: Sequence[str] = ()


class State(enum.Enum):
    """Of a model. The words are those of llama.cpp's server, as far as it has them."""

    UNLOADED = "unloaded"
    WAITING = "waiting"  # for room
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class TooLargeError(TooLittleMemoryError):
    """A model that takes more than all models may have together."""


@dataclass
class Common:
    """What all models of a server share. are_several: whether it has more than one."""

    limits: Limits
    metrics: Metrics
    are_several: bool = True
    is_draining: bool = False


class Service:
    """A model under a name, loaded or not: Models says when. All is called within the event loop.

    taken: bytes of memory that are set aside for it. holds: requests of it that are under way. used_s: when
    the last one came or went, by the loop's clock. is_wanted: it is loaded though nobody asks it anything.
    positions: of its context, once it was loaded.
    """

    def __init__(self, offer: Offer, common: Common) -> None:
        self.name, self.offer, self.common = offer.name, offer, common
        self.aliases = tuple(offer.aliases)
        self.began = int(time.time())
        """When it was made, in seconds since 1970."""
        self.state = State.UNLOADED
        self.was_settled = self._was_loaded = self._died = self.is_wanted = False
        self.needs = self.taken = self.holds = 0
        self.used_s = 0.0
        self.positions: int | None = None
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._worker: Worker | None = None
        self._error: BaseException | None = None
        self._failed_s = -math.inf
        self._askings: set[Asking] = set()
        self._begin_threads()
        self.slot_files, self.views = SlotFiles(self.limits.slots), Views()
        self.metrics.watch(self.name, self._gauges())

    def _gauges(self) -> dict[str, Callable[[], float]]:
        return {
            "running": lambda: self.running,
            "waiting": lambda: self.waiting,
            "model_loaded": lambda: self.state is State.LOADED,
            "model_memory_bytes": lambda: self.taken,
        }

    @property
    def limits(self) -> Limits:
        return self.common.limits

    @property
    def metrics(self) -> Metrics:
        return self.common.metrics

    @property
    def worker(self) -> Worker:
        assert self._worker is not None
        return self._worker

    @property
    def opened(self) -> Opened | None:
        """The model, where it is loaded."""
        return self._worker.opened if self._worker and self.state is State.LOADED else None

    @property
    def running(self) -> int:
        """Answers that are under way."""
        return self._worker.running if self._worker else 0

    @property
    def waiting(self) -> int:
        """Answers that wait for their turn."""
        return self._worker.waiting if self._worker else 0

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded, and nobody asks it anything."""
        return self.state is State.LOADED and not self.holds

    @property
    def fatal(self) -> BaseException | None:
        """Why it cannot be served at all: the error by which its thread ended, or by which it could not be
        loaded the first time."""
        return self._error if self._died or not self._was_loaded else None

    def begin(self, needs: int) -> None:
        """Load it, in a thread."""
        self.taken, self._worker = needs, Worker(self.offer.open)

    async def settled(self) -> None:
        """Wait until it is loaded. Raises why it cannot be."""
        await self.worker.settled.wait()
        if error := self.worker.error:
            raise error if isinstance(error, Exception) else RuntimeError(f"the thread ended: {error!r}")
        self.state, self.was_settled, self._was_loaded, self._died = State.LOADED, True, True, False
        self._watching = asyncio.create_task(self._watch(self.worker))
        self._begin_threads()
        self.used_s = asyncio.get_running_loop().time()
        if opened := self.opened:
            self.positions = opened.session.model.positions
        self.metrics.loaded(self.name)

    async def _watch(self, worker: Worker) -> None:
        """Wait until its thread ends, which it does by itself where a defect is in the way."""
        await worker.over.wait()
        if self._worker is worker and worker.error:
            self._died = True
            await self.failed(worker.error)

    async def failed(self, error: BaseException) -> None:
        """It could not be loaded, or its thread has ended."""
        self._error, self._failed_s = error, time.monotonic()
        await self.close()
        self.state, self.was_settled = State.FAILED, True
        if self.fatal and not self.common.are_several:
            return  # whoever started the server is told
        if isinstance(error, AerieError):
            LOG.warning("the model %s could not be loaded: %s", self.name, error)
        else:
            LOG.error("the model %s could not be loaded", self.name, exc_info=error)

    def _begin_threads(self) -> None:
        self._encoding = ThreadPoolExecutor(AT_ONCE, "encoding")
        self._encoding_large = ThreadPoolExecutor(1, "encoding large")
        self._forming = ThreadPoolExecutor(FORMING, "forming")

    def _end_threads(self) -> None:
        for threads in (self._encoding, self._encoding_large, self._forming):
            threads.shutdown(wait=False)

    def give_up(self) -> None:
        """It is not to be loaded any more; its thread was not begun."""
        self.state = State.UNLOADED

    async def close(self) -> None:
        """End the model's thread, and free what it has."""
        worker, self._worker, self.is_wanted = self._worker, None, False
        self._end_threads()
        self.views.end()
        self.views = Views()
        if worker:
            worker.stop()
            await asyncio.to_thread(worker.join, self.limits.drain_s)
            await worker.over.wait()
            del worker
            await asyncio.to_thread(return_freed_memory)
        self.taken, self.state = 0, State.UNLOADED

    async def end(self) -> None:
        """End all threads. Answers under way have been waited for."""
        self._end_threads()
        self.views.end()
        self.slot_files.end()
        if self._worker:
            self._worker.stop()
            await asyncio.to_thread(self._worker.join, self.limits.drain_s)

    def drain(self) -> None:
        """Give answers under way `drain_s`; then they end with an error."""
        stopped = ApiError(503, "the server was stopped before this answer was complete", code="stopped")
        if self._worker:
            asyncio.get_running_loop().call_later(self.limits.drain_s, self._worker.end_all, stopped)

    def held(self, now_s: float) -> None:
        """A request of it has come."""
        self.holds, self.used_s = self.holds + 1, now_s
        if self.timer:
            self.timer.cancel()

    def let_go(self, now_s: float) -> bool:
        """A request of it is over; whether that was the last."""
        self.holds, self.used_s = self.holds - 1, now_s
        return not self.holds

    def check(self) -> None:
        """ApiError 503 where the server is about to stop."""
        if self.common.is_draining:
            raise ApiError(503, "the server is about to stop; ask another", code="stopping")

    def ready(self) -> Opened:
        """The model. ApiError 503 where it is not loaded."""
        self.check()
        if opened := self.opened:
            return opened
        if self.state is State.FAILED:
            raise self.failure()
        if self.state in (State.LOADING, State.WAITING):
            raise self.is_loading()
        raise ApiError(
            503,
            f"the model {self.name!r} is not loaded; ask it for an answer, or POST /models/load",
            code="not_loaded",
        )

    def is_loading(self) -> ApiError:
        """What is said while it is."""
        return ApiError(
            503,
            f"the model {self.name!r} is being loaded; ask again",
            code="loading",
            retry_after=LOADING_S,
        )

    def recent_failure(self) -> ApiError | None:
        """Why it could not be loaded, where that is too short ago to try again."""
        is_recent = self.state is State.FAILED and time.monotonic() - self._failed_s < RETRY_S
        return self.failure() if is_recent else None

    @property
    def reason(self) -> str | None:
        """Why it could not be loaded, in a line that tells no path."""
        if self.state is not State.FAILED:
            return None
        if isinstance(self._error, AerieError):
            return FOLDERS.sub("", str(self._error).strip().partition("\n")[0])
        return "the server's log says why"

    def failure(self) -> ApiError:
        """What is said where it could not be loaded."""
        if isinstance(self._error, TooLargeError):
            return ApiError(400, str(self._error), "model", "model_too_large")
        code = "no_room" if isinstance(self._error, TooLittleMemoryError) else "failed"
        return ApiError(
            503,
            f"the model {self.name!r} could not be loaded: {self.reason}",
            code=code,
            retry_after=RETRY_S,
        )

    async def encoded(self, function: Callable[[Tokenizer], Made], place: Callable[[str], str] = str) -> Made:
        """What a function makes with the tokenizer, in a thread: of large bodies in one of their own, so that
        others need not wait for them. place: as of_engine. Raises ApiError."""
        thread = self._encoding_large if IS_LARGE.get() else self._encoding
        return await self._made(thread, partial(function, self.ready().tokenizer), place)

    async def _made(
        self, thread: ThreadPoolExecutor, work: Callable[[], Made], place: Callable[[str], str] = str
    ) -> Made:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except UserError as error:
            raise of_engine(error, place) from error

    async def conversed(self, opened: Opened, body: Conversing) -> Conversed:
        """What a conversation asks. Raises ApiError."""
        work = partial(formed, opened.session.grammars, body, opened.tokenizer)
        form = await self._made(self._forming, work, body.place)
        most = opened.session.model.positions
        return Conversed(await self.encoded(partial(encoded, body, most), body.place), *form)

    async def grammar(self, opened: Opened, form: Form | None) -> Grammar | None:
        """The form of an answer. ApiError for one that is none."""
        if form is None:
            return None
        return await self._made(self._forming, partial(grammar_of, opened.session.grammars, form))

    def asking(self, asks: Sequence[Ask], line: Line) -> Asking:
        """Put to the worker. ApiError 429 where too many wait."""
        most, there = MAX_RUNNING_REQUESTS + self.limits.queue, sum(one.waiting for one in self._askings)
        if there + at_once(asks) > most:
            after = min(60, max(1, math.ceil(self.metrics.mean_s * there / MAX_RUNNING_REQUESTS)))
            raise ApiError(
                429,
                f"{there} answers are under way or wait, {at_once(asks)} more were asked for, and {most} is "
                f"the limit; ask again in {after} s",
                code="queue_full",
                retry_after=after,
            )
        line.model, line.prompt = (
            self.name,
            sum(len(prompt) for prompt in {id(one.prompt): one.prompt for one in asks}.values()),
        )
        asking = Asking(self.worker, asks, line, self.limits.heartbeat_s, self._askings.discard)
        self._askings.add(asking)
        return asking
