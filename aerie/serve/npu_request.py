"""The data of the page /npu for the last request: its passes, and the bytes that they moved.

Times are those of the run itself. Bytes are not counted in the model's own runs: a program moves the same
bytes for all values, masks included, so one separate run (npu_view.py) times the number of calls gives them.
A pass is whole: it includes the work for other requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aerie.device import NPU2
from aerie.multi_launch_builder import Program
from aerie.serve import npu_view
from aerie.serve.errors import ApiError
from aerie.serve.pass_history import FinishedRequest, PassRecord

PASSES, PROGRAMS, HOST = range(3)
"""Rows of the trace."""
LINES = ("passes", "programs", "host")


def last_request(ended: FinishedRequest | None) -> FinishedRequest:
    """Return the request. Raises ApiError 404 if there is none."""
    if ended is None:
        raise ApiError(404, "no request was answered yet: send one", code="no_request")
    return ended


def request_to_json(
    ended: FinishedRequest, views: npu_view.ProgramViews, programs: Mapping[str, Program]
) -> dict[str, Any]:
    """A request as JSON. Times are in milliseconds from the first pass on."""
    return {
        "number": ended.number,
        "reason": ended.reason,
        "prompt": ended.prompt_tokens,
        "cached": ended.cached_tokens,
        "made": ended.completion_tokens,
        "left_out": ended.omitted_passes,
        "device": npu_view.limits(NPU2),
        "ms": _ms(ended.seconds),
        "passes": passes_to_json(ended),
        "programs": [
            {
                "name": name,
                "calls": calls,
                "ms": _ms(seconds),
                "is_counted": views.has_traffic(name),
                "kind": program.kind if (program := programs.get(name)) else "",
            }
            for name, (calls, seconds) in ended.programs.items()
        ],
        "host": _in_ms(ended.host),
    }


def passes_to_json(ended: FinishedRequest) -> list[dict[str, Any]]:
    """Each pass as JSON."""
    return [_pass(one, ended) for one in ended.passes]


def _pass(one: PassRecord, ended: FinishedRequest) -> dict[str, Any]:
    """One pass as JSON, with the tokens it gave this request and the number of requests in it."""
    parts = (*one.programs.values(), *one.host.values())
    return {
        "at_ms": _ms(one.began_s - ended.passes[0].began_s),
        "ms": _ms(one.seconds),
        "rows": one.rows,
        "answers": len(one.tokens_by_request),
        "made": one.tokens_by_request.get(ended.number, 0) - _tokens_before(one, ended),
        "programs": _in_ms(one.programs),
        "host": _in_ms(one.host),
        "rest_ms": _ms(max(0.0, one.seconds - sum(seconds for _, seconds in parts))),
    }


def _tokens_before(one: PassRecord, ended: FinishedRequest) -> int:
    """Output tokens of the request before a pass. Passes that are no longer recorded count as part of the
    first one that is."""
    before = one.number - ended.passes[0].number - 1
    return ended.passes[before].tokens_by_request.get(ended.number, 0) if before >= 0 else 0


def _in_ms(parts: Mapping[str, tuple[int, float]]) -> dict[str, tuple[int, float]]:
    return {name: (calls, _ms(seconds)) for name, (calls, seconds) in parts.items()}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 4)


async def traffic_to_json(
    ended: FinishedRequest, views: npu_view.ProgramViews, programs: Mapping[str, Program], name: str
) -> dict[str, Any]:
    """What tiles and channels moved in all calls of a program of the request: `launch` as in
    npu_view.view_to_json, or None with the reason in `why`. Raises ApiError 404 if the request did not run
    the program."""
    calls, _ = ended.programs.get(name, (0, 0.0))
    if not calls:
        raise ApiError(404, f"the last request ran no program {name[:80]!r}; GET /npu/request lists its own")
    if name not in programs:
        return _traffic_body(ended, "the model that ran it was unloaded")
    traffic = await views.traffic(programs, name)
    if traffic.missing_reason:
        return _traffic_body(ended, traffic.missing_reason)
    channels = [_times(channel, calls, ("transfers", "bytes")) for channel in traffic.channels]
    return _traffic_body(ended, "", {**_sum_launches(traffic.launches, calls), "name": name}, channels)


def _traffic_body(
    ended: FinishedRequest,
    missing_reason: str,
    launch: Mapping[str, Any] | None = None,
    channels: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {"number": ended.number, "why": missing_reason, "launch": launch, "channels": channels}


def _sum_launches(launches: Sequence[Mapping[str, Any]], calls: int) -> dict[str, Any]:
    """Sum the launches of a program into one, times `calls`."""
    total = npu_view.empty_launch("")
    for entry in launches:
        for part in ("shim", "memtile"):
            npu_view.add_counts(total[part], entry[part])
        for core in entry["cores"]:
            npu_view.add_counts(npu_view.core_at(total["cores"], core["x"], core["y"]), core)
    parts: dict[str, Any] = {
        part: _times(total[part], calls, npu_view.COUNTS) for part in ("shim", "memtile")
    }
    parts["memtiles"] = _memtiles([entry["memtiles"] for entry in launches], calls)
    return {**parts, "cores": [_times(core, calls, npu_view.COUNTS) for core in total["cores"]]}


def _memtiles(every: Sequence[Sequence[Mapping[str, int]] | None], calls: int) -> list[dict[str, int]] | None:
    """Sum the memtiles of several launches; None if those of one launch are unknown."""
    total = [{"held": 0, "bytes_in": 0, "bytes_out": 0} for _ in range(NPU2.columns)]
    for tiles in every:
        if tiles is None:
            return None
        for entry, tile in zip(total, tiles, strict=False):
            entry["held"] = max(entry["held"], tile["held"])
            for count in ("bytes_in", "bytes_out"):
                entry[count] += calls * tile[count]
    return total


def _times(row: Mapping[str, Any], calls: int, counts: Sequence[str]) -> dict[str, Any]:
    return {name: value * calls if name in counts else value for name, value in row.items()}


def perfetto_trace(ended: FinishedRequest) -> dict[str, Any]:
    """The passes in the format of Perfetto, in microseconds of host time. Within a pass, the calls of a
    program are one slice, and so is each kind of host work: their order is not recorded."""
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(LINES)
    ]
    process = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "aerie serve: a request"}}
    slices = [each for one in passes_to_json(ended) for each in _slices(one)]
    clock = "the host's; in a pass, slices are sums and stand in no order"
    return {"traceEvents": [process, *named, *slices], "displayTimeUnit": "ms", "otherData": {"clock": clock}}


def _slices(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    at = one["at_ms"]
    counts = {name: one[name] for name in ("rows", "answers", "made")}
    slices = [_slice(PASSES, "pass", at, one["ms"], counts)]
    for name, (calls, spent) in one["programs"].items():
        slices.append(_slice(PROGRAMS, name, at, spent, {"calls": calls}))
        at += spent
    for name, (calls, spent) in (*one["host"].items(), ("rest", (1, one["rest_ms"]))):
        slices.append(_slice(HOST, name, at, spent, {"calls": calls}))
        at += spent
    return slices


def _slice(line: int, name: str, at_ms: float, ms: float, args: Mapping[str, Any]) -> dict[str, Any]:
    times = {"ts": 1000 * at_ms, "dur": 1000 * ms}
    return {"name": name, "cat": LINES[line], "ph": "X", **times, "pid": 1, "tid": line, "args": args}
