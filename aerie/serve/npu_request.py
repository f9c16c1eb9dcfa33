"""What the page /npu shows of the last request: its passes as they were, and what they moved, by count.

Times are those of the run itself. Bytes are not: nothing counts them in the model's own runs. But a program
moves the same bytes whatever its numbers are, masks too, so one run by itself (npu_view.py), times how often it
ran, is what it moved. A pass is whole: what other answers had of it is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aerie.device import NPU2
from aerie.multi_launch_builder import Program
from aerie.serve import npu_view
from aerie.serve.errors import ApiError
from aerie.serve.pass_history import Ended, Seen

PASSES, PROGRAMS, HOST = range(3)
"""Lines of the trace."""
LINES = ("passes", "programs", "host")


def last(ended: Ended | None) -> Ended:
    """ApiError 404 where there was none."""
    if ended is None:
        raise ApiError(404, "no request was answered yet: ask something", code="no_request")
    return ended


def told(ended: Ended, views: npu_view.Views, programs: Mapping[str, Program]) -> dict[str, Any]:
    """A request as plain values. Times are in milliseconds, from the first pass on."""
    counts = ("number", "reason", "prompt", "cached", "made", "left_out")
    return {
        **{name: getattr(ended, name) for name in counts},
        "device": npu_view.limits(NPU2),
        "ms": _ms(ended.spent_s),
        "passes": passes(ended),
        "programs": [
            {
                "name": name,
                "calls": calls,
                "ms": _ms(seconds),
                "is_counted": views.knows(name),
                **_kind(programs.get(name)),
            }
            for name, (calls, seconds) in ended.programs.items()
        ],
        "host": _spent(ended.host),
    }


def passes(ended: Ended) -> list[dict[str, Any]]:
    """Each pass as plain values."""
    return [_pass(one, ended) for one in ended.passes]


def _pass(one: Seen, ended: Ended) -> dict[str, Any]:
    """With the tokens that it made of this request, and how many answers it was for."""
    parts = (*one.programs.values(), *one.host.values())
    return {
        "at_ms": _ms(one.began_s - ended.passes[0].began_s),
        "ms": _ms(one.spent_s),
        "rows": one.rows,
        "answers": len(one.made),
        "made": one.made.get(ended.number, 0) - _made_before(one, ended),
        "programs": _spent(one.programs),
        "host": _spent(one.host),
        "rest_ms": _ms(max(0.0, one.spent_s - sum(seconds for _, seconds in parts))),
    }


def _made_before(one: Seen, ended: Ended) -> int:
    """Of the request, before a pass; those of passes that are not kept count with the first one that is."""
    before = one.number - ended.passes[0].number - 1
    return ended.passes[before].made.get(ended.number, 0) if before >= 0 else 0


def _kind(program: Program | None) -> dict[str, str]:
    return {"kind": program.kind if program else ""}


def _spent(parts: Mapping[str, tuple[int, float]]) -> dict[str, tuple[int, float]]:
    return {name: (calls, _ms(seconds)) for name, (calls, seconds) in parts.items()}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)


async def moved(
    ended: Ended, views: npu_view.Views, programs: Mapping[str, Program], name: str
) -> dict[str, Any]:
    """What tiles and channels moved in all calls of a program of a request: `launch` as one of npu_view.told, and
    `why` it is not counted where it is None. ApiError 404 for a program that is not the request's."""
    calls, _ = ended.programs.get(name, (0, 0.0))
    if not calls:
        raise ApiError(404, f"the last request ran no program {name[:80]!r}; GET /npu/request lists its own")
    if name not in programs:
        return _moved(ended, "the model that ran it was given up")
    one = await views.moved(programs, name)
    if one.why:
        return _moved(ended, one.why)
    channels = [_times(channel, calls, ("transfers", "bytes")) for channel in one.channels]
    return _moved(ended, "", {**_together(one.launches, calls), "name": name}, channels)


def _moved(
    ended: Ended,
    why: str,
    launch: Mapping[str, Any] | None = None,
    channels: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {"number": ended.number, "why": why, "launch": launch, "channels": channels}


def _together(launches: Sequence[Mapping[str, Any]], calls: int) -> dict[str, Any]:
    """The launches of a program as one, so many times."""
    made = npu_view.launch("")
    for each in launches:
        for part in ("shim", "memtile"):
            npu_view.add(made[part], each[part])
        for core in each["cores"]:
            npu_view.add(npu_view.core(made["cores"], core["x"], core["y"]), core)
    parts: dict[str, Any] = {part: _times(made[part], calls, npu_view.COUNTS) for part in ("shim", "memtile")}
    parts["memtiles"] = _memtiles([each["memtiles"] for each in launches], calls)
    return {**parts, "cores": [_times(core, calls, npu_view.COUNTS) for core in made["cores"]]}


def _memtiles(every: Sequence[Sequence[Mapping[str, int]] | None], calls: int) -> list[dict[str, int]] | None:
    """Those of several launches as one's; None where they are not known of all."""
    made = [{"held": 0, "bytes_in": 0, "bytes_out": 0} for _ in range(NPU2.columns)]
    for tiles in every:
        if tiles is None:
            return None
        for to, tile in zip(made, tiles, strict=False):
            to["held"] = max(to["held"], tile["held"])
            for count in ("bytes_in", "bytes_out"):
                to[count] += calls * tile[count]
    return made


def _times(row: Mapping[str, Any], calls: int, counts: Sequence[str]) -> dict[str, Any]:
    return {name: value * calls if name in counts else value for name, value in row.items()}


def trace(ended: Ended) -> dict[str, Any]:
    """The passes as Perfetto reads them, in microseconds of the host's clock. In a pass, a program's calls
    are one slice, and so is each piece of the host's work: of their order nothing is kept."""
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(LINES)
    ]
    process = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "aerie serve: a request"}}
    slices = [each for one in passes(ended) for each in _slices(one)]
    clock = "the host's; in a pass, slices are sums and stand in no order"
    return {"traceEvents": [process, *named, *slices], "displayTimeUnit": "ms", "otherData": {"clock": clock}}


def _slices(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    at = one["at_ms"]
    counts = {name: one[name] for name in ("rows", "answers", "made")}
    made = [_slice(PASSES, "pass", at, one["ms"], counts)]
    for name, (calls, spent) in one["programs"].items():
        made.append(_slice(PROGRAMS, name, at, spent, {"calls": calls}))
        at += spent
    for name, (calls, spent) in (*one["host"].items(), ("rest", (1, one["rest_ms"]))):
        made.append(_slice(HOST, name, at, spent, {"calls": calls}))
        at += spent
    return made


def _slice(line: int, name: str, at_ms: float, ms: float, args: Mapping[str, Any]) -> dict[str, Any]:
    times = {"ts": 1000 * at_ms, "dur": 1000 * ms}
    return {"name": name, "cat": LINES[line], "ph": "X", **times, "pid": 1, "tid": line, "args": args}
