"""What all requests of a model share: its thread, its name, the limits, the queue, and its state."""

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
from aerie.engine.chat_template import MAX_CONCURRENT_RENDERS
from aerie.engine.errors import TooLittleMemoryError
from aerie.engine.grammar import Grammar
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.tokenizer import Tokenizer
from aerie.runtime.memory import return_freed_memory
from aerie.serve.chat_fields import DEFAULT_THINKING, UNLIMITED, ThinkingSettings
from aerie.serve.errors import ApiError, from_engine_error
from aerie.serve.load_progress import Progress, WatchedReporter
from aerie.serve.metrics import Metrics, RequestLog
from aerie.serve.npu_view import ProgramViews
from aerie.serve.output_processor import OutputRequest
from aerie.serve.preprocess import (
    ChatBody,
    EncodedChat,
    compile_output_constraints,
    compile_structured_output,
    encode_for_answer,
    output_requests,
)
from aerie.serve.request_body import IS_LARGE
from aerie.serve.request_outputs import RequestOutputs, max_concurrent
from aerie.serve.sampling_fields import SamplingFields
from aerie.serve.slot_files import SlotFiles, SlotFolder
from aerie.serve.structured_output_fields import StructuredOutput
from aerie.serve.worker import ModelThread, OpenedModel

Result = TypeVar("Result")
LOG = logging.getLogger("aerie.serve")
LOADING_RETRY_S = 2
"""Retry-After in seconds while a model is loading."""
GRAMMAR_THREADS = 32
"""Threads that wait for grammars, so that a cached grammar need not wait for one that is being compiled."""
RELOAD_DELAY_S = 10
"""Seconds before a failed model load is retried."""
FOLDERS = re.compile(r"(?<![\w/])(?:\.{1,2}|~)?/(?:[^\s/'\"]+/)*")
"""The folders in a path, without its last name."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits and settings of the server.

    queue: outputs that may wait besides the running ones. time_limit_s: from the arrival of a request to its
    last token. drain_s: for running outputs when the server stops. heartbeat_s: seconds without an event
    after which a stream gets a comment. body_bytes, header_bytes: of a request. connections: open at once
    (connections.py). head_s, body_s: to receive the head and the body of a request. send_s: for the client to
    take some of the response. api_key: None allows everybody. origins: sites whose pages may send requests.
    is_local: accept only host names of this machine. slot_folder: None disables saving slots. load_wait_s:
    how long a request waits for its model. max_stored, max_stored_bytes: of stored responses and
    conversations (response_store.py). thinking_budget: tokens, for requests that set none.
    """

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
    slot_folder: SlotFolder | None = None
    load_wait_s: float = 120.0
    max_stored: int = 1000
    max_stored_bytes: int = 256 * 2**20
    thinking_budget: int | None = None


class ServedModel(NamedTuple):
    """A model and its name. open: opens it, which may take long. memory_bytes: estimates its memory. Both
    raise AerieError. aliases: other names. reporter: what `open` reports to, if its progress is shown."""

    name: str
    open: Callable[[], OpenedModel]
    memory_bytes: Callable[[], int] = int
    aliases: Sequence[str] = ()
    reporter: WatchedReporter | None = None


class ModelState(enum.Enum):
    """The state of a model, in llama.cpp's words where it has them."""

    UNLOADED = "unloaded"
    WAITING = "waiting"  # for memory
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"


class TooLargeError(TooLittleMemoryError):
    """A model that is larger than the limit of all models."""


@dataclass
class SharedState:
    """What all models of a server share."""

    limits: ServerLimits
    metrics: Metrics
    has_several_models: bool = True
    is_draining: bool = False


class ModelService:
    """A served model, loaded or not: ModelManager decides. Call all methods in the event loop.

    reserved_bytes: memory reserved for it. active_requests: requests that use it now. used_s: loop time when
    the last one started or ended. stays_loaded: keep it loaded without requests. positions: its context, once
    it was loaded.
    """

    def __init__(self, served_model: ServedModel, shared: SharedState) -> None:
        self.name, self.served_model, self.shared = served_model.name, served_model, shared
        self.aliases = tuple(served_model.aliases)
        self.began = int(time.time())
        """When it was made, in seconds since 1970."""
        self.state = ModelState.UNLOADED
        self.was_settled = self._was_loaded = self._died = self.stays_loaded = False
        self.memory_bytes = self.reserved_bytes = self.active_requests = 0
        self.used_s = 0.0
        self.positions: int | None = None
        self.loading: asyncio.Task[None] | None = None
        self.unloading: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._worker: ModelThread | None = None
        self._error: BaseException | None = None
        self._failed_s = -math.inf
        self._outputs: set[RequestOutputs] = set()
        self._start_threads()
        self.slot_files, self.views = SlotFiles(self.limits.slot_folder), ProgramViews()
        self.metrics.set_gauges(self.name, self._gauges())

    def _gauges(self) -> dict[str, Callable[[], float]]:
        return {
            "running": lambda: self.running,
            "waiting": lambda: self.waiting,
            "model_loaded": lambda: self.state is ModelState.LOADED,
            "model_memory_bytes": lambda: self.reserved_bytes,
        }

    @property
    def limits(self) -> ServerLimits:
        return self.shared.limits

    @property
    def metrics(self) -> Metrics:
        return self.shared.metrics

    @property
    def worker(self) -> ModelThread:
        assert self._worker is not None
        return self._worker

    @property
    def opened(self) -> OpenedModel | None:
        """The model if it is loaded, else None."""
        return self._worker.opened if self._worker and self.state is ModelState.LOADED else None

    @property
    def progress(self) -> Progress | None:
        """What it compiles or loads now, at its start or for a request; None if nothing."""
        reporter = self.served_model.reporter
        return reporter.progress if reporter else None

    @property
    def running(self) -> int:
        """Outputs in the scheduler."""
        return self._worker.running if self._worker else 0

    @property
    def waiting(self) -> int:
        """Queued outputs."""
        return self._worker.waiting if self._worker else 0

    @property
    def is_idle(self) -> bool:
        """Whether it is loaded and has no active request."""
        return self.state is ModelState.LOADED and not self.active_requests

    @property
    def fatal(self) -> BaseException | None:
        """The error that ended its thread or its first load; None otherwise."""
        return self._error if self._died or not self._was_loaded else None

    def start(self, memory_bytes: int) -> None:
        """Start loading it in its thread."""
        self.reserved_bytes, self._worker = memory_bytes, ModelThread(self.served_model.open)

    async def wait_settled(self) -> None:
        """Wait until it is loaded. Raises the error of the load."""
        await self.worker.settled.wait()
        if error := self.worker.error:
            raise error if isinstance(error, Exception) else RuntimeError(f"the thread ended: {error!r}")
        self.state, self.was_settled, self._was_loaded, self._died = ModelState.LOADED, True, True, False
        self._watching = asyncio.create_task(self._watch(self.worker))
        self._start_threads()
        self.used_s = asyncio.get_running_loop().time()
        if opened := self.opened:
            self.positions = opened.session.model.positions
        self.metrics.count_load(self.name)

    async def _watch(self, worker: ModelThread) -> None:
        """Wait until the thread ends. It ends by itself only after a defect."""
        await worker.ended.wait()
        if self._worker is worker and worker.error:
            self._died = True
            await self.mark_failed(worker.error)

    async def mark_failed(self, error: BaseException) -> None:
        """Record the error of a failed load or an ended thread, and free the memory."""
        self._error, self._failed_s = error, time.monotonic()
        await self.close()
        self.state, self.was_settled = ModelState.FAILED, True
        if self.fatal and not self.shared.has_several_models:
            return  # the server ends with this error
        if isinstance(error, AerieError):
            LOG.warning("the model %s could not be loaded: %s", self.name, error)
        else:
            LOG.error("the model %s could not be loaded", self.name, exc_info=error)

    def _start_threads(self) -> None:
        self._encoding = ThreadPoolExecutor(MAX_CONCURRENT_RENDERS, "encoding")
        self._encoding_large = ThreadPoolExecutor(1, "encoding large")
        self._grammar_threads = ThreadPoolExecutor(GRAMMAR_THREADS, "forming")

    def _end_threads(self) -> None:
        for threads in (self._encoding, self._encoding_large, self._grammar_threads):
            threads.shutdown(wait=False)

    def cancel_load(self) -> None:
        """Give up a load whose thread was not started yet."""
        self.state = ModelState.UNLOADED

    async def close(self) -> None:
        """End the thread and free the memory."""
        worker, self._worker, self.stays_loaded = self._worker, None, False
        self._end_threads()
        self.views.end()
        self.views = ProgramViews()
        if worker:
            worker.stop()
            await asyncio.to_thread(worker.join, self.limits.drain_s)
            await worker.ended.wait()
            del worker
            await asyncio.to_thread(return_freed_memory)
        self.reserved_bytes, self.state = 0, ModelState.UNLOADED

    async def end(self) -> None:
        """End all threads. Call it after the running outputs have finished."""
        self._end_threads()
        self.views.end()
        self.slot_files.end()
        if self._worker:
            self._worker.stop()
            await asyncio.to_thread(self._worker.join, self.limits.drain_s)

    def drain(self) -> None:
        """Give running outputs `drain_s` seconds; then end them with an error."""
        stopped = ApiError(503, "the server was stopped before this answer was complete", code="stopped")
        if self._worker:
            asyncio.get_running_loop().call_later(self.limits.drain_s, self._worker.abort_all, stopped)

    def acquire(self, now_s: float) -> None:
        """Count an active request."""
        self.active_requests, self.used_s = self.active_requests + 1, now_s
        if self.timer:
            self.timer.cancel()

    def release(self, now_s: float) -> bool:
        """End an active request. Returns whether it was the last."""
        self.active_requests, self.used_s = self.active_requests - 1, now_s
        return not self.active_requests

    def check(self) -> None:
        """Raise ApiError 503 if the server is stopping."""
        if self.shared.is_draining:
            raise ApiError(503, "the server is stopping; use another one", code="stopping")

    def require_loaded(self) -> OpenedModel:
        """The model. Raises ApiError 503 if it is not loaded."""
        self.check()
        if opened := self.opened:
            return opened
        if self.state is ModelState.FAILED:
            raise self.load_error()
        if self.state in (ModelState.LOADING, ModelState.WAITING):
            raise self.loading_error()
        raise ApiError(
            503,
            f"the model {self.name!r} is not loaded; send it a request, or POST /models/load",
            code="not_loaded",
        )

    def loading_error(self) -> ApiError:
        """The error of a request while the model is loading."""
        return ApiError(
            503,
            f"the model {self.name!r} is being loaded; try again",
            code="loading",
            retry_after=LOADING_RETRY_S,
        )

    def recent_load_error(self) -> ApiError | None:
        """The error of the last load if it is less than RELOAD_DELAY_S old, else None."""
        is_recent = self.state is ModelState.FAILED and time.monotonic() - self._failed_s < RELOAD_DELAY_S
        return self.load_error() if is_recent else None

    @property
    def reason(self) -> str | None:
        """Why the last load failed, in one line without paths."""
        if self.state is not ModelState.FAILED:
            return None
        if isinstance(self._error, AerieError):
            return FOLDERS.sub("", str(self._error).strip().partition("\n")[0])
        return "the server's log has the reason"

    def load_error(self) -> ApiError:
        """The error of a request after a failed load."""
        if isinstance(self._error, TooLargeError):
            return ApiError(400, str(self._error), "model", "model_too_large")
        code = "no_room" if isinstance(self._error, TooLittleMemoryError) else "failed"
        return ApiError(
            503,
            f"the model {self.name!r} could not be loaded: {self.reason}",
            code=code,
            retry_after=RELOAD_DELAY_S,
        )

    async def run_with_tokenizer(
        self, function: Callable[[Tokenizer], Result], to_field_path: Callable[[str], str] = str
    ) -> Result:
        """Run a function with the tokenizer in a thread; large bodies have their own thread, so that others
        need not wait. to_field_path: as in from_engine_error. Raises ApiError."""
        thread = self._encoding_large if IS_LARGE.get() else self._encoding
        return await self._run_in(thread, partial(function, self.require_loaded().tokenizer), to_field_path)

    async def _run_in(
        self,
        thread: ThreadPoolExecutor,
        work: Callable[[], Result],
        to_field_path: Callable[[str], str] = str,
    ) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except UserError as error:
            raise from_engine_error(error, to_field_path) from error

    async def encode_chat(self, opened: OpenedModel, body: ChatBody) -> EncodedChat:
        """Encode a conversation and compile its grammar. Raises ApiError."""
        work = partial(compile_output_constraints, opened.session.grammar_compiler, body, opened.tokenizer)
        constraints = await self._run_in(self._grammar_threads, work, body.field_path)
        max_tokens = opened.session.model.positions
        ids, thinking = await self.run_with_tokenizer(
            partial(encode_for_answer, body, max_tokens), body.field_path
        )
        return EncodedChat(ids, *constraints, thinking)

    def chat_requests(
        self,
        settings: SamplingFields,
        chat: EncodedChat,
        max_tokens: int | None,
        thinking: ThinkingSettings = DEFAULT_THINKING,
        expected: Sequence[int] = (),
    ) -> list[OutputRequest]:
        """Return one OutputRequest for each answer to a conversation. Raises as output_requests."""
        opened, budget = self.require_loaded(), thinking.budget
        if budget is None and opened.session.model.config.diffusion is None:
            budget = self.limits.thinking_budget
        return output_requests(
            opened,
            settings,
            [chat.ids],
            max_tokens,
            self.limits.time_limit_s,
            chat.grammar,
            expected,
            chat.tool_calls,
            chat.thinking,
            thinking._replace(budget=None if budget == UNLIMITED else budget),
        )

    async def grammar(self, opened: OpenedModel, output: StructuredOutput | None) -> Grammar | None:
        """Compile the grammar of an output; None without one. Raises ApiError if it is invalid."""
        if output is None:
            return None
        return await self._run_in(
            self._grammar_threads, partial(compile_structured_output, opened.session.grammar_compiler, output)
        )

    def submit(self, requests: Sequence[OutputRequest], request_log: RequestLog) -> RequestOutputs:
        """Submit the outputs of a request. Raises ApiError 429 if the queue is full."""
        limit = MAX_RUNNING_REQUESTS + self.limits.queue
        unfinished = sum(one.unfinished_count for one in self._outputs)
        if unfinished + max_concurrent(requests) > limit:
            after = min(60, max(1, math.ceil(self.metrics.mean_s * unfinished / MAX_RUNNING_REQUESTS)))
            raise ApiError(
                429,
                f"{unfinished} answers run or wait, {max_concurrent(requests)} more were "
                f"requested, and {limit} is the limit; try again in {after} s",
                code="queue_full",
                retry_after=after,
            )
        request_log.model = self.name
        request_log.prompt_tokens = sum(
            len(prompt) for prompt in {id(one.prompt): one.prompt for one in requests}.values()
        )
        outputs = RequestOutputs(
            self.worker, requests, request_log, self.limits.heartbeat_s, self._outputs.discard
        )
        self._outputs.add(outputs)
        return outputs
