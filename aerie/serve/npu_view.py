"""The data of the page /npu: a program's static check, its predicted time on the board, and what its tiles
and channels moved in one run.

That run is separate, on the virtual NPU, built with checks, on zeros: a program moves the same blocks for all
values, except what it reads from positions. The model's own runs have no checks and are not recorded.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from aerie.common.errors import ProgramError
from aerie.device import NPU2, CheckReport, DeviceModel, check
from aerie.device.memtile_traffic import MemtileTraffic, memtiles
from aerie.multi_launch_builder import Program
from aerie.serve.errors import ApiError
from aerie.virtual_npu import arrays
from aerie.virtual_npu.cancellation import RunStopped, StopFlag
from aerie.virtual_npu.commands.run import CLOCK, chrome_trace
from aerie.virtual_npu.program import Program as VirtualProgram
from aerie.virtual_npu.timing import Prediction, TimingError, predict

MAX_ARGUMENT_BYTES = 64 * 2**20
"""Limit of a program's arguments together; a larger program is checked and not run."""
RUN_S = 20.0
"""Seconds after which a run is stopped."""
MAX_CACHED_VIEWS = 8
"""Programs whose views are cached."""
MAX_SPANS = 4000
"""Spans of the timeline that the page gets; the trace has all."""
COUNTS = ("bytes_in", "bytes_out", "transfers", "kernel_calls")
ELEMENT_BYTES = 4
"""Bytes of the widest element type."""


@dataclass(frozen=True)
class ProgramView:
    """A program, its check, its predicted time or why there is none, and the record of its run. Without a
    record, `missing_reason` says why."""

    program: Program
    report: CheckReport
    prediction: Prediction | str
    record: Mapping[str, Any] | None
    missing_reason: str = ""

    @cached_property
    def launches(self) -> list[dict[str, Any]]:
        """What each launch moved. `memtiles`: one entry per memtile, None if the check does not know them."""
        if self.record is None:
            return []
        channel_bytes = Counter[int]()
        for event in self.record["trace"]:
            channel_bytes[event["args"]["line"]] += event["args"].get("bytes", 0)
        known = memtiles(self.program.text, channel_bytes)
        counted = launches(self.record["stats"]["tiles"])
        return [{**each, "memtiles": _memtiles(known.get(each["name"]))} for each in counted]

    @property
    def channels(self) -> list[dict[str, Any]]:
        """What each channel moved."""
        return list(self.record["stats"].get("channels", ())) if self.record else []


class ProgramTraffic(NamedTuple):
    """What a program moves in a run: `launches` and `channels` as in view_to_json, or the reason why they are
    missing."""

    launches: list[dict[str, Any]]
    channels: list[dict[str, Any]]
    missing_reason: str


class ProgramViews:
    """Makes views in a thread, one at a time. It caches the last MAX_CACHED_VIEWS, and the traffic of all."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "npu")
        self._views: dict[str, ProgramView] = {}
        self._traffic: dict[str, ProgramTraffic] = {}

    def has_traffic(self, name: str) -> bool:
        """Whether the traffic of a program, or the reason why it is missing, is known."""
        return name in self._traffic

    async def traffic(self, programs: Mapping[str, Program], name: str) -> ProgramTraffic:
        """The traffic of a program. Runs it if needed. Raises as get_or_make."""
        if name not in self._traffic:
            await self.get_or_make(programs, name)
        return self._traffic[name]

    async def get_or_make(self, programs: Mapping[str, Program], name: str) -> ProgramView:
        """The view of a program. Makes it if it is not cached. Raises ApiError 404 if the model has no such
        program."""
        _check_name(programs, name)
        work = partial(self._make, programs[name])
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def get(self, programs: Mapping[str, Program], name: str) -> ProgramView:
        """The cached view of a program. Raises ApiError 404 if there is none."""
        _check_name(programs, name)
        if name not in self._views:
            raise ApiError(
                404,
                f"{name} was not run yet, or {MAX_CACHED_VIEWS} others were since; POST "
                f"/npu/programs/{name} has it run",
                "name",
                "not_made",
            )
        return self._views[name]

    def end(self) -> None:
        """Stop the thread after the current view."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, program: Program) -> ProgramView:
        if program.name not in self._views:
            while len(self._views) >= MAX_CACHED_VIEWS:
                self._views.pop(next(iter(self._views)))
            made_view = self._views[program.name] = make_view(program)
            self._traffic[program.name] = ProgramTraffic(
                made_view.launches, made_view.channels, made_view.missing_reason
            )
        return self._views[program.name]


def _check_name(programs: Mapping[str, Program], name: str) -> None:
    if name not in programs:
        raise ApiError(
            404,
            f"there is no program {name[:80]!r}; GET /npu/programs lists those that are compiled",
            "name",
        )


def make_view(program: Program) -> ProgramView:
    """Check, time and run a program. Compiles it with checks if it was not before."""
    report, prediction = check(program.text, filename=program.name), _predict(program)
    try:
        return ProgramView(program, report, prediction, _record(program))
    except (ProgramError, RunStopped) as error:
        reason = f"its run was ended after {RUN_S:g} s; `aerie vnpu run --stats --trace` has no limit"
        reason = reason if isinstance(error, RunStopped) else str(error)
        return ProgramView(program, report, prediction, None, reason)


def _predict(program: Program) -> Prediction | str:
    try:
        return predict(program.text, filename=program.name)
    except TimingError as error:
        return str(error)


def _record(program: Program) -> Mapping[str, Any] | None:
    built = VirtualProgram.from_text(program.text, program.name)
    entry = built.entry()
    nbytes = sum(_elements(argument.shape) * ELEMENT_BYTES for argument in entry.arguments)
    if nbytes > MAX_ARGUMENT_BYTES:
        raise ProgramError(
            f"its arguments take up to {nbytes} bytes, {MAX_ARGUMENT_BYTES} is the most that is run "
            "for this page; "
            "`aerie vnpu run --stats --trace` has no limit"
        )
    stop = StopFlag()
    timer = threading.Timer(RUN_S, stop.set)
    timer.start()
    try:
        with stop.watching():
            return built.run(*arrays.zero_arrays(entry), stats=True, trace=True).record
    finally:
        timer.cancel()


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def programs_to_json(programs: Mapping[str, Program]) -> dict[str, Any]:
    """The programs as JSON."""
    entries = [
        {
            "name": program.name,
            "kind": program.kind,
            "rows": program.rows,
            "context": program.context,
            "launches": program.launches,
        }
        for program in programs.values()
    ]
    return {"programs": entries, "device": limits(NPU2)}


def limits(device: DeviceModel) -> dict[str, Any]:
    """The array as JSON: its size, and bytes and DMA channels of each kind of tile."""
    return {
        "name": device.name,
        "columns": device.columns,
        "rows": device.rows,
        "core": {"bytes": device.l1_bytes, **_dma(device.core)},
        "memtile": {"bytes": device.l2_bytes, **_dma(device.memtile)},
        "shim": _dma(device.shim),
    }


def _dma(limits: Any) -> dict[str, int]:
    return {"mm2s": limits.mm2s_channels, "s2mm": limits.s2mm_channels, "descriptors": limits.descriptors}


def view_to_json(program_view: ProgramView) -> dict[str, Any]:
    """A view as JSON: device, check, predicted time, launches with the traffic of their tiles, channels,
    timeline."""
    record, prediction = program_view.record or {}, program_view.prediction
    spans = [
        [event["tid"], event["ts"], event.get("dur", 0)]
        for event in record.get("trace", ())
        if event.get("cat") == "body"
    ]
    return {
        "name": program_view.program.name,
        "device": limits(program_view.report.device),
        "check": program_view.report.to_json(),
        "predicted": {"error": prediction} if isinstance(prediction, str) else prediction.to_json(),
        "ran": program_view.record is not None,
        "why": program_view.missing_reason,
        "clock": CLOCK,
        "launches": program_view.launches,
        "channels": program_view.channels,
        "threads": record.get("threads", []),
        "spans": spans[:MAX_SPANS],
        "spans_left_out": max(0, len(spans) - MAX_SPANS),
    }


def launches(tiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Counts by launch: `shim` for the launch's own body, `memtile` for its segments, `cores` for its herds,
    summed where several herds use the same core (x, y)."""
    by_launch: list[dict[str, Any]] = []
    for row in tiles:
        kind, name, *position = row["where"].split(" ", 2)
        if kind == "launch" or not by_launch:
            label = name.lstrip("@") if kind == "launch" else "no launch"
            by_launch.append(empty_launch(label))
        counted = {**row, "peak_bytes": row["peak_l1_bytes"]}
        if kind == "herd" and position:
            x, y = (int(number) for number in position[0].strip("()").split(","))
            add_counts(core_at(by_launch[-1]["cores"], x, y), counted)
        else:
            add_counts(by_launch[-1]["shim" if kind == "launch" else "memtile"], counted)
    return by_launch


def empty_launch(name: str) -> dict[str, Any]:
    """The counts of a launch in which nothing has moved."""
    return {"name": name, "shim": _zero_counts(), "memtile": _zero_counts(), "cores": []}


def _memtiles(tiles: Sequence[MemtileTraffic] | None) -> list[dict[str, int]] | None:
    return None if tiles is None else [tile._asdict() for tile in tiles]


def _zero_counts() -> dict[str, int]:
    return dict.fromkeys((*COUNTS, "peak_bytes"), 0)


def core_at(cores: list[dict[str, int]], x: int, y: int) -> dict[str, int]:
    """The entry of the core at (x, y); added if it is missing."""
    for entry in cores:
        if (entry["x"], entry["y"]) == (x, y):
            return entry
    cores.append({"x": x, "y": y, **_zero_counts()})
    return cores[-1]


def add_counts(total: dict[str, int], counted: Mapping[str, Any]) -> None:
    """Add counts to a total. The peak is the maximum."""
    for count in COUNTS:
        total[count] += counted[count]
    total["peak_bytes"] = max(total["peak_bytes"], counted["peak_bytes"])


def perfetto_trace(program_view: ProgramView) -> dict[str, Any]:
    """The run in the format of Perfetto. Raises ApiError 404 if there was none."""
    if program_view.record is None:
        raise ApiError(
            404, f"{program_view.program.name} has no trace: {program_view.missing_reason}", code="no_trace"
        )
    return chrome_trace(program_view.record)
