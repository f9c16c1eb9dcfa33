"""Record the last request: its forward passes, and the programs and times of each.

Every request is recorded, because none is known in advance to be looked at. The data are counts and times
that the profiler has anyway, read before and after a pass. No text is recorded, and only the last MAX_PASSES
passes.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from aerie.engine.requests import Request
from aerie.engine.scheduler import Scheduler
from aerie.runtime import Profiler
from aerie.runtime.profiler import ProgramTimes, SpanTimes

MAX_PASSES = 2048
CallTimes: TypeAlias = "Mapping[str, tuple[int, float]]"
"""Calls and seconds, by name."""
Times: TypeAlias = "Mapping[str, ProgramTimes] | Mapping[str, SpanTimes]"


class PassRecord(NamedTuple):
    """One forward pass of all running requests.

    number: counts all passes from 0. began_s: time.perf_counter. rows: tokens computed. tokens_by_request:
    output tokens after the pass, by request number.
    """

    number: int
    began_s: float
    seconds: float
    rows: int
    programs: CallTimes
    host: CallTimes
    tokens_by_request: Mapping[int, int]


@dataclass(frozen=True)
class FinishedRequest:
    """A finished request. passes: the recorded passes while it ran; omitted_passes: how many are no longer
    recorded. Counts are in tokens."""

    number: int
    reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seconds: float
    passes: Sequence[PassRecord]
    omitted_passes: int

    @property
    def programs(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each program over all passes, longest first."""
        return _summed([one.programs for one in self.passes])

    @property
    def host(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of each kind of host work over all passes, longest first."""
        return _summed([one.host for one in self.passes])


@dataclass(frozen=True)
class _RunningRequest:
    number: int
    first_pass: int
    began_s: float


class PassHistory:
    """The model thread writes; any thread may read `last`."""

    def __init__(self) -> None:
        self.last: FinishedRequest | None = None
        self._passes: deque[PassRecord] = deque(maxlen=MAX_PASSES)
        self._running: dict[Request, _RunningRequest] = {}
        self._numbers, self._done = itertools.count(), 0

    def start_request(self, request: Request) -> None:
        """Call this when a request is given to the scheduler."""
        self._running[request] = _RunningRequest(next(self._numbers), self._done, time.perf_counter())

    def step(self, scheduler: Scheduler, profiler: Profiler) -> None:
        """Run the scheduler's next step and record its forward pass, if it ran one. Raises what
        Scheduler.step raises."""
        programs, spans, counts = _calls(profiler.programs), _calls(profiler.spans), scheduler.stats
        began_s = time.perf_counter()
        scheduler.step()
        seconds, rows = time.perf_counter() - began_s, scheduler.stats.rows - counts.rows
        if scheduler.stats.steps > counts.steps:
            times = _since(programs, profiler.programs), _since(spans, profiler.spans)
            tokens_by_request = {
                running.number: len(request.token_ids) for request, running in self._running.items()
            }
            self._passes.append(PassRecord(self._done, began_s, seconds, rows, *times, tokens_by_request))
            self._done += 1

    def collect_finished(self) -> None:
        """Move the requests that have finished to `last`."""
        for request in [one for one in self._running if one.is_finished]:
            self._end(request, self._running.pop(request))

    def _end(self, request: Request, running: _RunningRequest) -> None:
        passes = [one for one in self._passes if one.number >= running.first_pass]
        reason = "error" if request.error else str(request.finish_reason and request.finish_reason.value)
        self.last = FinishedRequest(
            running.number,
            reason,
            len(request.prompt),
            request.cached_tokens,
            len(request.token_ids),
            time.perf_counter() - running.began_s,
            passes,
            self._done - running.first_pass - len(passes),
        )


def _calls(times: Times) -> dict[str, tuple[int, float]]:
    return {name: (each.calls, each.total) for name, each in times.items()}


def _since(before: CallTimes, times: Times) -> CallTimes:
    """Calls and seconds since `before`, of the names that were called since."""
    delta = {}
    for name, (calls, seconds) in _calls(times).items():
        calls_before, seconds_before = before.get(name, (0, 0.0))
        if calls > calls_before:
            delta[name] = calls - calls_before, seconds - seconds_before
    return delta


def _summed(every: Sequence[CallTimes]) -> dict[str, tuple[int, float]]:
    total: dict[str, tuple[int, float]] = {}
    for name, (calls, seconds) in itertools.chain.from_iterable(one.items() for one in every):
        calls_before, seconds_before = total.get(name, (0, 0.0))
        total[name] = calls_before + calls, seconds_before + seconds
    return dict(sorted(total.items(), key=lambda item: -item[1][1]))
