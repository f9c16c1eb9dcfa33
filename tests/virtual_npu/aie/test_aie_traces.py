"""What a run of the AIE level records: what each channel moved, and who did what in which cycle."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.virtual_npu.commands.run import chrome_trace, print_stats
from aerie.virtual_npu.errors import VirtualNpuDeadlock
from aerie.virtual_npu.options import BuildOptions
from aerie.virtual_npu.program import Program
from tests.virtual_npu.aie.designs import MODULE


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.from_text(MODULE, "designs.mlir", options=BuildOptions(checks=True))


def _record(program: Program, entry: str, *sizes: int) -> Mapping[str, Any]:
    arrays = [np.arange(size, dtype=np.int32) for size in sizes]
    record = program.run(*arrays, entry=entry, stats=True, trace=True).record
    assert record is not None
    return record


def _lane(record: Mapping[str, Any], name: str, category: str) -> list[dict[str, Any]]:
    number = record["threads"].index(name)
    return [each for each in record["trace"] if each.get("tid") == number and each["cat"] == category]


def test_what_channels_and_tiles_moved(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    stats = _record(program, "turn", 32, 45)["stats"]
    assert {each["name"]: (each["transfers"], each["bytes"]) for each in stats["channels"]} == {
        "S2MM 0 of memtile (0, 1)": (1, 4 * 32),
        "MM2S 0 of memtile (0, 1)": (1, 4 * 45),
        "MM2S 0 of shim (0, 0)": (1, 4 * 32),
        "S2MM 0 of shim (0, 0)": (1, 4 * 45),
    }
    assert {each["where"]: (each["bytes_in"], each["bytes_out"]) for each in stats["tiles"]} == {
        "memtile (0, 1)": (4 * 32, 4 * 45),
        "shim (0, 0)": (4 * 45, 4 * 32),
    }
    print_stats(stats)
    printed = capsys.readouterr().out
    assert ["memtile", "(0,", "1)", "128", "180", "2"] in [line.split() for line in printed.splitlines()]
    assert "kernel calls" not in printed


def test_when_a_descriptor_ran(program: Program) -> None:
    record = _record(program, "turn", 32, 45)
    (filled,) = [
        each for each in _lane(record, "S2MM 0 of memtile (0, 1)", "bd") if "unfinished" not in each["args"]
    ]
    (sent,) = _lane(record, "MM2S 0 of memtile (0, 1)", "bd")
    waited, *_ = _lane(record, "MM2S 0 of memtile (0, 1)", "wait")
    assert (filled["name"], sent["name"], sent["args"]["bytes"]) == ("BD of buffer", "BD of buffer", 4 * 45)
    assert waited["name"] == "waits for lock full >= 1"
    assert filled["ts"] + filled["dur"] == waited["ts"] + waited["dur"] <= sent["ts"]
    words = _lane(record, "stream of MM2S 0 of memtile (0, 1)", "stream")
    assert sum(each["args"]["bytes"] for each in words) == 4 * 45
    assert sum(each["dur"] for each in words) == 45


def test_the_values_of_a_lock(program: Program) -> None:
    record = _record(program, "turn", 32, 45)
    values = [each["args"]["value"] for each in record["trace"] if each["name"] == "lock full of tile (0, 1)"]
    assert values == [0, 1, 0]


def test_cores_compute_and_wait(program: Program) -> None:
    record = _record(program, "fifos", 32, 32)
    computed, waited = (_lane(record, "core (0, 3)", category) for category in ("body", "wait"))
    assert len(computed) >= 4
    assert {each["name"] for each in computed} == {"computes"}
    assert all(each["name"].startswith("waits for lock") for each in waited)
    ends = sorted((each["ts"], each["ts"] + each["dur"]) for each in [*computed, *waited])
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_a_trace_is_the_same_each_time(program: Program) -> None:
    assert _record(program, "parts", 64, 64) == _record(program, "parts", 64, 64)


def test_a_hang_shows_what_never_ended(program: Program) -> None:
    with pytest.raises(VirtualNpuDeadlock) as error:
        program.run(np.zeros(8, np.int32), entry="overrun_6", trace=True)
    record = error.value.record
    assert record is not None
    unfinished = {
        record["threads"][each["tid"]]: each["name"]
        for each in record["trace"]
        if each.get("args", {}).get("unfinished")
    }
    assert unfinished["arbiter 2 of core tile (0, 2)"] == "MM2S 0 of memtile (0, 1)"
    assert unfinished["the runtime sequence"].startswith("waits for a token of")


def test_a_trace_for_viewers(program: Program, tmp_path: Path) -> None:
    trace = chrome_trace(_record(program, "turn", 32, 45))
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    assert "nothing was measured on hardware" in trace["otherData"]["clock"]
    assert {each["ph"] for each in trace["traceEvents"]} == {"M", "X", "C"}


@pytest.mark.slow
def test_a_long_trace_says_how_many_events_it_left_out(program: Program) -> None:
    record = program.run(np.zeros(8, np.int32), entry="busy", trace=True).record
    assert record is not None
    assert (len(record["trace"]), record["events_left_out"] > 0) == (100_000, True)
    assert chrome_trace(record)["otherData"]["events_left_out"] == record["events_left_out"]
