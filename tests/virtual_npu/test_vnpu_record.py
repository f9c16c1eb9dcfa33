"""What a run is asked to record: statistics per tile and channel, and a trace."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aerie.virtual_npu import Program
from aerie.virtual_npu.commands.run import CLOCK, chrome_trace
from aerie.virtual_npu.errors import VirtualNpuRuntimeError
from tests.virtual_npu.air_texts import with_constants

PROGRAM = with_constants("""
module {
  air.channel @in [2]
  air.channel @out [2]
  func.func private @twice(memref<4xf32, 2>) attributes {link_with = "twice.o"}
  func.func @f(%x: memref<8xf32>, %y: memref<16xf32>) {
    air.launch (%l) in (%n=%c2) args(%a=%x, %b=%y) : memref<8xf32>, memref<16xf32> {
      %low = affine.apply affine_map<()[s0] -> (s0 * 8)>()[%l]
      %high = affine.apply affine_map<()[s0] -> (s0 * 8 + 4)>()[%l]
      air.channel.put @in[%c0] (%a[%c0] [%c4] [%c1]) : (memref<8xf32>)
      air.channel.put @in[%c1] (%a[%c4] [%c4] [%c1]) : (memref<8xf32>)
      air.channel.get @out[%c0] (%b[%low] [%c4] [%c1]) : (memref<16xf32>)
      air.channel.get @out[%c1] (%b[%high] [%c4] [%c1]) : (memref<16xf32>)
      air.segment @s {
        air.herd @h tile(%tx, %ty) in (%sx=%c2, %sy=%c1) {
          %b0 = memref.alloc() : memref<4xf32, 2>
          air.channel.get @in[%tx] (%b0[] [] []) : (memref<4xf32, 2>)
          %b1 = memref.alloc() : memref<4xf32, 2>
          air.dma_memcpy_nd (%b1[] [] [], %b0[] [] []) : (memref<4xf32, 2>, memref<4xf32, 2>)
          memref.dealloc %b0 : memref<4xf32, 2>
          func.call @twice(%b1) : (memref<4xf32, 2>) -> ()
          air.channel.put @out[%tx] (%b1[] [] []) : (memref<4xf32, 2>)
          memref.dealloc %b1 : memref<4xf32, 2>
        }
      }
    }
    return
  }
}
""")
TWICE = 'extern "C" void twice(float *x) { for (int i = 0; i < 4; ++i) x[i] *= 2; }'
X, Y = np.arange(8, dtype=np.float32), np.zeros(16, np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "twice.cc").write_text(TWICE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VNPU_OPT", "0")
        program = Program.from_text(PROGRAM, kernel_dirs=[folder])
        assert program.library
    return program


def test_nothing_is_recorded_unless_requested(program):
    result = program.run(X, Y)
    assert result.record is None
    np.testing.assert_array_equal(result.outputs[1], np.tile(2 * X, 2))


def test_statistics_of_tiles(program):
    tiles = {row["where"]: row for row in program.run(X, Y, stats=True).record["stats"]["tiles"]}
    assert list(tiles) == ["launch", "segment @s", "herd @h (0, 0)", "herd @h (1, 0)"]
    for x in range(2):
        assert tiles[f"herd @h ({x}, 0)"] == {
            "where": f"herd @h ({x}, 0)",
            "line": 15,
            "bytes_in": 2 * (16 + 16),  # two launches: a get, and a copy from L1 to L1
            "bytes_out": 2 * 16,
            "transfers": 2 * 3,
            "kernel_calls": 2,
            "peak_l1_bytes": 32,
        }
    assert (tiles["launch"]["bytes_in"], tiles["launch"]["bytes_out"]) == (2 * 32, 2 * 32)
    assert tiles["launch"]["transfers"] == 8


def test_statistics_of_channels(program):
    channels = program.run(X, Y, stats=True).record["stats"]["channels"]
    assert {row["name"]: (row["transfers"], row["bytes"]) for row in channels} == {
        f"@{name}[{i}]": (2, 32) for name in ("in", "out") for i in range(2)
    }
    assert {row["name"]: row["most_in_flight"] for row in channels} == {
        "@in[0]": 1,
        "@in[1]": 1,
        "@out[0]": 0,  # each get was waiting for its put
        "@out[1]": 0,
    }


def test_a_trace_nests(program):
    """On each line of the trace, slices follow one another or lie inside each other."""
    record = program.run(X, Y, trace=True).record
    assert "stats" not in record
    assert record["events_left_out"] == 0
    for lane in range(len(record["threads"])):
        ends: list[int] = []
        events = sorted((e for e in record["trace"] if e["tid"] == lane), key=lambda event: event["ts"])
        for event in events:
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert event["dur"] > 0
            assert not ends or event["ts"] + event["dur"] <= ends[-1]
            ends.append(event["ts"] + event["dur"])


def test_what_a_trace_shows(program):
    record = program.run(X, Y, trace=True).record
    tile = record["threads"].index("herd @h (1, 0)")
    events = [e for e in record["trace"] if e["tid"] == tile and e["args"]["launch"] == "(1)"]
    assert [(e["cat"], e["name"], e["args"]["line"]) for e in events] == [
        ("body", "herd @h", 15),
        ("get", "air.channel.get @in", 17),
        ("copy", "air.dma_memcpy_nd", 19),
        ("kernel", "twice", 21),
        ("put", "air.channel.put @out", 22),
    ]
    assert events[1]["args"]["bytes"] == 16
    buffers = [(e["args"].get("from"), e["args"].get("to")) for e in events]
    assert buffers == [(None, None), (None, "%b0"), ("%b0", "%b1"), (None, None), ("%b1", None)]
    memories = [(e["args"].get("from_memory"), e["args"].get("to_memory")) for e in events]
    assert memories == [(None, None), (None, "L1"), ("L1", "L1"), (None, None), ("L1", None)]
    assert "launch: air.channel.get @out[0]" in record["threads"]


def test_the_same_run_gives_the_same_record(program):
    first, second = (program.run(X, Y, trace=True, stats=True).record for _ in range(2))
    assert first == second


def test_a_trace_for_viewers(program):
    trace = chrome_trace(program.run(X, Y, trace=True).record)
    json.dumps(trace)
    assert "not hardware time" in trace["otherData"]["clock"] == CLOCK
    process, *rest = trace["traceEvents"]
    assert (process["name"], process["ph"]) == ("process_name", "M")
    assert CLOCK in process["args"]["name"]
    assert {event["ph"] for event in rest} == {"M", "X"}
    assert all({"name", "ph", "pid", "tid"} <= set(event) for event in rest)


def test_a_failed_run_keeps_its_trace(tmp_path: Path, program):
    stuck = PROGRAM.replace("air.channel.put @in[%c1]", "air.channel.put @in[%c0]")
    with pytest.raises(VirtualNpuRuntimeError) as caught:
        Program.from_text(stuck, kernel_dirs=program.source.kernel_dirs).run(X, Y, trace=True)
    assert caught.value.kind == "deadlock"
    assert caught.value.record
    waiting = [e for e in caught.value.record["trace"] if e["args"].get("unfinished")]
    assert ("air.channel.get @in", 17) in {(e["name"], e["args"]["line"]) for e in waiting}
