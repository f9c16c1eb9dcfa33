"""The outputs of one HTTP request: submitted to the model thread, received as deltas, cancelled when the
client disconnects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive

from aerie.engine.call_reader import ToolCall, ToolCallDelta
from aerie.engine.scheduler import MAX_PREFILL_ONLY_REQUESTS
from aerie.serve.errors import ApiError
from aerie.serve.metrics import RequestLog
from aerie.serve.output_processor import (
    NO_TIMINGS,
    POOLED,
    FinishInfo,
    OutputDelta,
    OutputRequest,
    Timings,
    TokenLogprob,
)
from aerie.serve.worker import Job, ModelThread

Result = TypeVar("Result")
CLIENT_CLOSED_REQUEST = 499
"""The status that is logged when the client disconnects; nginx's number."""


@dataclass
class CompletedOutput:
    """The collected deltas of one output."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishInfo | None = None
    tokens: list[int] = field(default_factory=list)
    timings: Timings = NO_TIMINGS
    tool_calls: list[ToolCall] = field(default_factory=list)
    pooled: Any = None
    thinking: str = ""

    def add_calls(self, deltas: Sequence[ToolCallDelta]) -> None:
        """Append deltas of tool calls."""
        for delta in deltas:
            if delta.name is not None:
                self.tool_calls.append(ToolCall(delta.name, delta.arguments))
            else:
                last = self.tool_calls[-1]
                self.tool_calls[-1] = last._replace(arguments=last.arguments + delta.arguments)


class RequestOutputs:
    """The outputs of one request, submitted together. `close` cancels the unfinished ones.

    `deltas` yields the deltas of all outputs as they come, and None after `heartbeat_s` seconds without one.
    `close` calls `on_closed`. Prompts that are only pooled are submitted MAX_PREFILL_ONLY_REQUESTS at a time.
    """

    def __init__(
        self,
        worker: ModelThread,
        requests: Sequence[OutputRequest],
        request_log: RequestLog,
        heartbeat_s: float,
        on_closed: Callable[[RequestOutputs], None],
    ) -> None:
        self._worker = worker
        self._request_log = request_log
        self._heartbeat_s = heartbeat_s
        self._on_closed = on_closed
        self.requests = requests
        self._queue: asyncio.Queue[OutputDelta | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._last_delta_s = self._loop.time()
        self.unfinished = {request.index: Job(request, self._on_delta) for request in requests}
        self.finished: dict[int, FinishInfo] = {}
        self._pending = deque(self.unfinished.values())
        self._max_concurrent = max_concurrent(requests)
        for _ in range(self._max_concurrent):
            self._submit_next()
        self._schedule_heartbeat()

    @property
    def unfinished_count(self) -> int:
        """Outputs that are running or queued."""
        return min(len(self.unfinished), self._max_concurrent)

    @property
    def schema_notes(self) -> Sequence[str]:
        """Schema keywords that are not enforced. All outputs of a request share one schema."""
        grammar = self.requests[0].sampler.grammar if self.requests else None
        return grammar.notes if grammar else ()

    def _submit_next(self) -> None:
        if self._pending:
            self._worker.submit(self._pending.popleft())

    def close(self) -> None:
        """Cancel the unfinished outputs. Call it when the client disconnects, too."""
        self._heartbeat.cancel()
        for job in self.unfinished.values():
            self._worker.cancel(job)
        self._on_closed(self)

    async def deltas(self) -> AsyncIterator[OutputDelta | None]:
        """Yield deltas until all outputs have finished."""
        while self.unfinished:
            yield await self.next_delta()

    async def next_delta(self) -> OutputDelta | None:
        """Return the next delta, or None for a heartbeat. Call it only while outputs are unfinished."""
        delta = await self._queue.get()
        if delta is not None:
            self._record(delta)
        return delta

    async def collect(self) -> list[CompletedOutput]:
        """Return all outputs, complete and in order. Raises the error of the first one that failed."""
        outputs = {index: CompletedOutput() for index in self.unfinished}
        async for delta in self.deltas():
            if delta is None:
                continue
            output = outputs[delta.index]
            output.thinking += delta.thinking
            output.text += delta.text
            output.logprobs += delta.logprobs
            output.add_calls(delta.tool_calls)
            output.tokens += delta.tokens
            output.finish, output.timings, output.pooled = delta.finish, delta.timings, delta.pooled
            if delta.finish and delta.finish.error:
                raise delta.finish.error
        return [outputs[index] for index in sorted(outputs)]

    def _on_delta(self, delta: OutputDelta) -> None:
        self._last_delta_s = self._loop.time()
        if delta.finish:
            self._submit_next()
        self._queue.put_nowait(delta)

    def _schedule_heartbeat(self) -> None:
        """Queue a None after `heartbeat_s` seconds without a delta, and schedule the next check."""
        silent_s = self._loop.time() - self._last_delta_s
        if silent_s >= self._heartbeat_s:
            self._queue.put_nowait(None)
            silent_s = 0.0
            self._last_delta_s = self._loop.time()
        self._heartbeat: asyncio.TimerHandle = self._loop.call_later(
            self._heartbeat_s - silent_s, self._schedule_heartbeat
        )

    def _record(self, delta: OutputDelta) -> None:
        if delta.text or delta.thinking or delta.logprobs or delta.tool_calls:
            self._request_log.note_first_token()
        if (finish := delta.finish) is None:
            return
        del self.unfinished[delta.index]
        self.finished[delta.index] = finish
        self._request_log.completion_tokens += finish.completion_tokens
        self._request_log.cached_tokens += finish.cached_tokens
        self._request_log.drafted += finish.drafted
        self._request_log.accepted += finish.accepted
        if not (
            finish.reason == POOLED and POOLED in self._request_log.finish_reasons
        ):  # once, not once per prompt
            self._request_log.finish_reasons.append(finish.reason)


def max_concurrent(requests: Sequence[OutputRequest]) -> int:
    """How many of the requests run or wait at a time."""
    return min(len(requests), MAX_PREFILL_ONLY_REQUESTS) if requests[0].make_pooler else len(requests)


async def run_unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`. If the client disconnects first, cancel it and raise ApiError 499."""
    task, disconnected = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(CLIENT_CLOSED_REQUEST, "the client went away")
    finally:
        for pending in (task, disconnected):
            pending.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Return when the client has disconnected. Its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
