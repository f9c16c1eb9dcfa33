"""The answers to one HTTP request: put to the worker, heard as they come, cancelled where nobody listens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive

from aerie.engine.call_reader import CallPiece, ToolCall
from aerie.engine.scheduler import MOST_READ
from aerie.serve.errors import ApiError
from aerie.serve.metrics import Line
from aerie.serve.output_processor import NOTHING, READ, Ask, Ending, Mark, Piece, Spent
from aerie.serve.worker import Job, Worker

Made = TypeVar("Made")
GONE = 499
"""The status in the log of a request whose client went away; nginx's number for it."""


@dataclass
class Whole:
    """An answer that is complete."""

    text: str = ""
    marks: list[Mark] = field(default_factory=list)
    ending: Ending | None = None
    tokens: list[int] = field(default_factory=list)
    spent: Spent = NOTHING
    calls: list[ToolCall] = field(default_factory=list)
    made: Any = None

    def add(self, calls: Sequence[CallPiece]) -> None:
        """What has come of calls."""
        for piece in calls:
            if piece.name is not None:
                self.calls.append(ToolCall(piece.name, piece.arguments))
            else:
                last = self.calls[-1]
                self.calls[-1] = last._replace(arguments=last.arguments + piece.arguments)


class Asking:
    """The answers of one request, which are asked for at once. `close` cancels whatever is not over.

    `pieces` gives those of all answers as they come, and None where nothing came for `heartbeat_s`. `closed`
    is called when it is closed. Prompts that are read are put a few at a time, however many they are.
    """

    def __init__(
        self,
        worker: Worker,
        asks: Sequence[Ask],
        line: Line,
        heartbeat_s: float,
        closed: Callable[[Asking], None],
    ) -> None:
        self._worker, self._line, self._heartbeat_s, self._closed = worker, line, heartbeat_s, closed
        self.asks = asks
        self._queue: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self.left = {ask.index: Job(ask, self._told) for ask in asks}
        self.endings: dict[int, Ending] = {}
        self._later = deque(self.left.values())
        self._at_once = at_once(asks)
        for _ in range(self._at_once):
            self._put_next()
        self._beats()

    @property
    def waiting(self) -> int:
        """How many of them are under way, or wait for their turn."""
        return min(len(self.left), self._at_once)

    @property
    def notes(self) -> Sequence[str]:
        """What of its schemas it is not held to; all answers have one form."""
        grammar = self.asks[0].sampler.grammar if self.asks else None
        return grammar.notes if grammar else ()

    def _put_next(self) -> None:
        if self._later:
            self._worker.put(self._later.popleft())

    def close(self) -> None:
        """Once nobody listens."""
        self._beat.cancel()
        for job in self.left.values():
            self._worker.cancel(job)
        self._closed(self)

    async def pieces(self) -> AsyncIterator[Piece | None]:
        """Until all are over."""
        while self.left:
            yield await self.next()

    async def next(self) -> Piece | None:
        """The next of `pieces`, while some are left."""
        piece = await self._queue.get()
        if piece is not None:
            self._note(piece)
        return piece

    async def wholes(self) -> list[Whole]:
        """All answers, in their order. Raises the error of the first that has one."""
        made = {index: Whole() for index in self.left}
        async for piece in self.pieces():
            if piece is None:
                continue
            whole = made[piece.index]
            whole.text += piece.text
            whole.marks += piece.marks
            whole.add(piece.calls)
            whole.tokens += piece.tokens
            whole.ending, whole.spent, whole.made = piece.ending, piece.spent, piece.made
            if piece.ending and piece.ending.error:
                raise piece.ending.error
        return [made[index] for index in sorted(made)]

    def _told(self, piece: Piece) -> None:
        self._heard_s = self._loop.time()
        if piece.ending:
            self._put_next()
        self._queue.put_nowait(piece)

    def _beats(self) -> None:
        """Put a None where nothing came since the last beat, and come again."""
        silent_s = self._loop.time() - self._heard_s
        if silent_s >= self._heartbeat_s:
            self._queue.put_nowait(None)
            silent_s = 0.0
            self._heard_s = self._loop.time()
        self._beat: asyncio.TimerHandle = self._loop.call_later(self._heartbeat_s - silent_s, self._beats)

    def _note(self, piece: Piece) -> None:
        if piece.text or piece.marks or piece.calls:
            self._line.first_token()
        if (ending := piece.ending) is None:
            return
        del self.left[piece.index]
        self.endings[piece.index] = ending
        self._line.made += ending.made
        self._line.cached += ending.cached
        self._line.drafted += ending.drafted
        self._line.accepted += ending.accepted
        if not (ending.reason == READ and READ in self._line.endings):  # of 256 texts one word is enough
            self._line.endings.append(ending.reason)


def at_once(asks: Sequence[Ask]) -> int:
    """How many of them are under way, or wait, at a time."""
    return min(len(asks), MOST_READ) if asks[0].reads else len(asks)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Made]) -> Made:
    """What the work makes, unless the client goes away before: then it is cancelled, and ApiError 499."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(GONE, "the client went away")
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Returns when the client went away. Its body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass
