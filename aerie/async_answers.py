"""Answers for asyncio: pieces are made in a worker thread, so that the event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TypeVar

from aerie.answers import Result, Stream
from aerie.common.errors import UserError
from aerie.engine.thinking import AnswerPart

T = TypeVar("T")


class AsyncStream(AsyncIterator[str]):
    """The text of an answer, piece by piece, for `async for`. Nothing is computed before the first piece is
    requested, and what is wrong with the request is raised there.

    `text` is the text so far. A task that is cancelled ends its answer, as `aclose()` and leaving an `async
    with` block do.
    """

    def __init__(self, start: Callable[[], Stream]) -> None:
        """start: makes the stream; called in a worker thread, as it may compile programs."""
        self._start = start
        self._stream: Stream | None = None
        self._has_closed = False

    @property
    def text(self) -> str:
        """The text so far."""
        return self._stream.text if self._stream else ""

    @property
    def thinking(self) -> str:
        """What the model has thought so far."""
        return self._stream.thinking if self._stream else ""

    @property
    def stream(self) -> Stream:
        """The stream behind it, with usage, finish_reason and all else. Raises UserError before the first
        piece."""
        if self._stream is None:
            raise UserError("the answer has not begun; ask for its first piece before")
        return self._stream

    async def __anext__(self) -> str:
        while (part := await self._in_thread(self._next_part)) is not None:
            if part.text:
                return part.text
        raise StopAsyncIteration

    async def parts(self) -> AsyncIterator[AnswerPart]:
        """The thinking and the text as they come; see Stream.parts."""
        while (part := await self._in_thread(self._next_part)) is not None:
            yield part

    async def result(self) -> Result:
        """Generate the rest, and return the whole result. Raises UserError if it was closed before it
        began."""
        async for _ in self:
            pass
        return await self._in_thread(self.stream.result)

    async def aclose(self) -> None:
        """End the answer. Its text so far stays."""
        self._has_closed = True
        if self._stream is not None:
            await asyncio.to_thread(self._stream.close)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _next_part(self) -> AnswerPart | None:
        """The next part, in a worker thread; None at the end. StopIteration cannot leave a thread."""
        if self._stream is None:
            if self._has_closed:
                return None
            self._stream = self._start()
        if self._has_closed:  # while the programs were compiled
            self._stream.close()
        return next(self._stream.parts(), None)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except asyncio.CancelledError:
            await asyncio.shield(self.aclose())
            raise
