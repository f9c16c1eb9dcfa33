"""What the last request took: its passes through the model, and in each which programs ran, and how long.

It is noted for every request, as nobody knows which will be looked at: counts and times that the profiler has
anyway, read before and after a pass. No word of a text is kept, and of passes the last MOST_PASSES.
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

MOST_PASSES = 2048
Spent: TypeAlias = "Mapping[str, tuple[int, float]]"
"""By name, calls and seconds."""
Times: TypeAlias = "Mapping[str, ProgramTimes] | Mapping[str, SpanTimes]"


class Seen(NamedTuple):
    """A pass for all answers that were under way.

    number: of all passes, from 0 on. began_s: by time.perf_counter. rows: tokens that were computed. made: of
    each answer that was under way, by its number, how many tokens it had afterwards.
    """

    number: int
    began_s: float
    spent_s: float
    rows: int
    programs: Spent
    host: Spent
    made: Mapping[int, int]


@dataclass(frozen=True)
class Ended:
    """A request that is over. passes: those while it was under way, as far as they are kept; left_out: how
    many are not. Counts are of tokens."""

    number: int
    reason: str
    prompt: int
    cached: int
    made: int
    spent_s: float
    passes: Sequence[Seen]
    left_out: int

    @property
    def programs(self) -> dict[str, tuple[int, float]]:
        """Of all passes, the program that took longest first."""
        return _summed([one.programs for one in self.passes])

    @property
    def host(self) -> dict[str, tuple[int, float]]:
        """The same of the host's work."""
        return _summed([one.host for one in self.passes])


@dataclass(frozen=True)
class _UnderWay:
    number: int
    first_pass: int
    began_s: float


class History:
    """One thread writes, the model's; others read `last`."""

    def __init__(self) -> None:
        self.last: Ended | None = None
        self._passes: deque[Seen] = deque(maxlen=MOST_PASSES)
        self._under_way: dict[Request, _UnderWay] = {}
        self._numbers, self._done = itertools.count(), 0

    def begin(self, request: Request) -> None:
        """A request is given to the scheduler."""
        self._under_way[request] = _UnderWay(next(self._numbers), self._done, time.perf_counter())

    def step(self, scheduler: Scheduler, profiler: Profiler) -> None:
        """Have the scheduler take a step, and note it where it was a pass. Raises what that raises."""
        programs, spans, counts = _calls(profiler.programs), _calls(profiler.spans), scheduler.counts
        began_s = time.perf_counter()
        scheduler.step()
        spent_s, rows = time.perf_counter() - began_s, scheduler.counts.rows - counts.rows
        if scheduler.counts.steps > counts.steps:
            spent = _since(programs, profiler.programs), _since(spans, profiler.spans)
            made = {each.number: len(request.token_ids) for request, each in self._under_way.items()}
            self._passes.append(Seen(self._done, began_s, spent_s, rows, *spent, made))
            self._done += 1

    def notice(self) -> None:
        """Which requests are over."""
        for request in [one for one in self._under_way if one.is_over]:
            self._end(request, self._under_way.pop(request))

    def _end(self, request: Request, was: _UnderWay) -> None:
        passes = [one for one in self._passes if one.number >= was.first_pass]
        reason = "error" if request.error else str(request.finish_reason and request.finish_reason.value)
        self.last = Ended(
            was.number,
            reason,
            len(request.prompt),
            request.cached_tokens,
            len(request.token_ids),
            time.perf_counter() - was.began_s,
            passes,
            self._done - was.first_pass - len(passes),
        )


def _calls(times: Times) -> dict[str, tuple[int, float]]:
    return {name: (each.calls, each.total) for name, each in times.items()}


def _since(before: Spent, times: Times) -> Spent:
    """What came since."""
    made = {}
    for name, (calls, seconds) in _calls(times).items():
        known_calls, known = before.get(name, (0, 0.0))
        if calls > known_calls:
            made[name] = calls - known_calls, seconds - known
    return made


def _summed(every: Sequence[Spent]) -> dict[str, tuple[int, float]]:
    made: dict[str, tuple[int, float]] = {}
    for name, (calls, seconds) in itertools.chain.from_iterable(one.items() for one in every):
        known_calls, known = made.get(name, (0, 0.0))
        made[name] = known_calls + calls, known + seconds
    return dict(sorted(made.items(), key=lambda item: -item[1][1]))
