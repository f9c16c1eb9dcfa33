"""What the page /npu shows: a program's static check, and what its tiles and channels did in one run.

The run is one of its own, on the virtual NPU, built with checks, on zeros: a program of the dialect moves the
same blocks whatever the numbers are, but for what it reads from positions. The model's own runs go on
without checks, and are not recorded.
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

MOST_BYTES = 64 * 2**20
"""Of a program's arguments together: a larger one is checked, and not run."""
RUN_S = 20.0
"""Seconds after which a run is ended."""
KEPT = 8
"""Programs whose runs are kept."""
MOST_SPANS = 4000
"""Spans of the timeline that the page is given; the trace has all."""
COUNTS = ("bytes_in", "bytes_out", "transfers", "kernel_calls")
ELEMENT_BYTES = 4
"""Of the widest element that the programs have."""


@dataclass(frozen=True)
class View:
    """A program, its check, and the record of its run; without one, `why` says why."""

    program: Program
    report: CheckReport
    record: Mapping[str, Any] | None
    why: str = ""

    @cached_property
    def launches(self) -> list[dict[str, Any]]:
        """What each launch moved; `memtiles`: singly, None where the check does not know them so."""
        if self.record is None:
            return []
        seen = Counter[int]()
        for event in self.record["trace"]:
            seen[event["args"]["line"]] += event["args"].get("bytes", 0)
        known = memtiles(self.program.text, seen)
        made = launches(self.record["stats"]["tiles"])
        return [{**each, "memtiles": _memtiles(known.get(each["name"]))} for each in made]

    @property
    def channels(self) -> list[dict[str, Any]]:
        """What each channel moved."""
        return list(self.record["stats"].get("channels", ())) if self.record else []


class Moved(NamedTuple):
    """What a program moves in a run: `launches` and `channels` as of `told`; or `why` it is not known."""

    launches: list[dict[str, Any]]
    channels: list[dict[str, Any]]
    why: str


class Views:
    """Makes views, one at a time in a thread of its own, and keeps the latest, and of all what they moved."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "npu")
        self._kept: dict[str, View] = {}
        self._moved: dict[str, Moved] = {}

    def knows(self, name: str) -> bool:
        """Whether what a program moves is known already, or why it is not."""
        return name in self._moved

    async def moved(self, programs: Mapping[str, Program], name: str) -> Moved:
        """What a program moves. As `of`."""
        if name not in self._moved:
            await self.of(programs, name)
        return self._moved[name]

    async def of(self, programs: Mapping[str, Program], name: str) -> View:
        """The view of a program, which is made now if it was not. ApiError 404 where the model has none of
        this name."""
        _check_name(programs, name)
        work = partial(self._made, programs[name])
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def made(self, programs: Mapping[str, Program], name: str) -> View:
        """The view of a program that was made before. ApiError 404 where it was not, or was given up."""
        _check_name(programs, name)
        if name not in self._kept:
            raise ApiError(
                404,
                f"{name} was not run yet, or {KEPT} others were since; POST /npu/programs/{name} has it run",
                "name",
                "not_made",
            )
        return self._kept[name]

    def end(self) -> None:
        """Take no more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _made(self, program: Program) -> View:
        if program.name not in self._kept:
            while len(self._kept) >= KEPT:
                self._kept.pop(next(iter(self._kept)))
            seen = self._kept[program.name] = view(program)
            self._moved[program.name] = Moved(seen.launches, seen.channels, seen.why)
        return self._kept[program.name]


def _check_name(programs: Mapping[str, Program], name: str) -> None:
    if name not in programs:
        raise ApiError(
            404,
            f"there is no program {name[:80]!r}; GET /npu/programs lists those that are compiled",
            "name",
        )


def view(program: Program) -> View:
    """The check and the run of a program; compiles it with checks where that was not done before."""
    report = check(program.text, filename=program.name)
    try:
        return View(program, report, _record(program))
    except (ProgramError, RunStopped) as error:
        ended = f"its run was ended after {RUN_S:g} s; `aerie vnpu run --stats --trace` has no limit"
        return View(program, report, None, ended if isinstance(error, RunStopped) else str(error))


def _record(program: Program) -> Mapping[str, Any] | None:
    built = VirtualProgram.from_text(program.text, program.name)
    entry = built.entry()
    nbytes = sum(_elements(argument.shape) * ELEMENT_BYTES for argument in entry.arguments)
    if nbytes > MOST_BYTES:
        raise ProgramError(
            f"its arguments take up to {nbytes} bytes, {MOST_BYTES} is the most that is run for this page; "
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


def listed(programs: Mapping[str, Program]) -> dict[str, Any]:
    """The programs as plain values."""
    told = [
        {
            "name": one.name,
            "kind": one.kind,
            "rows": one.rows,
            "context": one.context,
            "launches": one.launches,
        }
        for one in programs.values()
    ]
    return {"programs": told, "device": limits(NPU2)}


def limits(device: DeviceModel) -> dict[str, Any]:
    """The array as plain values: tiles, and bytes and DMA channels of each kind of tile."""
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


def told(seen: View) -> dict[str, Any]:
    """A view as plain values: device, check, launches with what their tiles did, channels, timeline."""
    record = seen.record or {}
    spans = [_span(event) for event in record.get("trace", ()) if event.get("cat") == "body"]
    return {
        "name": seen.program.name,
        "device": limits(seen.report.device),
        "check": seen.report.to_json(),
        "ran": seen.record is not None,
        "why": seen.why,
        "clock": CLOCK,
        "launches": seen.launches,
        "channels": seen.channels,
        "threads": record.get("threads", []),
        "spans": spans[:MOST_SPANS],
        "spans_left_out": max(0, len(spans) - MOST_SPANS),
    }


def _span(event: Mapping[str, Any]) -> list[int]:
    return [event["tid"], event["ts"], event.get("dur", 0)]


def launches(tiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was counted, by launch: `shim` what the launch's own body moved, `memtile` its segments', `cores`
    its herds', added up where several herds have the same place (x, y)."""
    made: list[dict[str, Any]] = []
    for row in tiles:
        kind, name, *place = row["where"].split(" ", 2)
        if kind == "launch" or not made:
            label = name.lstrip("@") if kind == "launch" else "no launch"
            made.append(launch(label))
        counted = {**row, "peak_bytes": row["peak_l1_bytes"]}
        if kind == "herd" and place:
            x, y = (int(number) for number in place[0].strip("()").split(","))
            add(core(made[-1]["cores"], x, y), counted)
        else:
            add(made[-1]["shim" if kind == "launch" else "memtile"], counted)
    return made


def launch(name: str) -> dict[str, Any]:
    """One in which nothing moved yet."""
    return {"name": name, "shim": _none(), "memtile": _none(), "cores": []}


def _memtiles(tiles: Sequence[MemtileTraffic] | None) -> list[dict[str, int]] | None:
    return None if tiles is None else [tile._asdict() for tile in tiles]


def _none() -> dict[str, int]:
    return dict.fromkeys((*COUNTS, "peak_bytes"), 0)


def core(cores: list[dict[str, int]], x: int, y: int) -> dict[str, int]:
    """That at a place, put there where it is not."""
    for one in cores:
        if (one["x"], one["y"]) == (x, y):
            return one
    cores.append({"x": x, "y": y, **_none()})
    return cores[-1]


def add(to: dict[str, int], counted: Mapping[str, Any]) -> None:
    """Counts are added up, and of peaks the largest is taken."""
    for count in COUNTS:
        to[count] += counted[count]
    to["peak_bytes"] = max(to["peak_bytes"], counted["peak_bytes"])


def trace(seen: View) -> dict[str, Any]:
    """The run as Perfetto reads it. ApiError 404 where there was none."""
    if seen.record is None:
        raise ApiError(404, f"{seen.program.name} has no trace: {seen.why}", code="no_trace")
    return chrome_trace(seen.record)
