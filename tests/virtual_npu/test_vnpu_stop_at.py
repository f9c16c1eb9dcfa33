# ruff: noqa: E501 - MLIR has long lines
"""Stops before an operation, and what the buffers hold there: `run --stop-at LINE --show BUFFER`."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from aerie import vnpu
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.cache import ProgramSource
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.options import BuildOptions
from tests.virtual_npu.air_texts import with_constants

# Two tiles double a half of x each, 8 numbers at a time; what a memtile brings comes first.
TEXT = with_constants("""
module {
  air.channel @in [2]
  air.channel @l1 [2]
  air.channel @out [2]
  func.func @twice(%x: memref<2x32xbf16>, %y: memref<2x32xbf16>) {
    air.launch () in () args(%a=%x, %b=%y) : memref<2x32xbf16>, memref<2x32xbf16> {
      air.channel.put @in[%c0] (%a[%c0, %c0] [%c1, %c32] [%c32, %c1]) : (memref<2x32xbf16>)
      air.channel.put @in[%c1] (%a[%c1, %c0] [%c1, %c32] [%c32, %c1]) : (memref<2x32xbf16>)
      air.channel.get @out[%c0] (%b[%c0, %c0] [%c1, %c32] [%c32, %c1]) : (memref<2x32xbf16>)
      air.channel.get @out[%c1] (%b[%c1, %c0] [%c1, %c32] [%c32, %c1]) : (memref<2x32xbf16>)
      air.segment @s {
        %l2 = memref.alloc() : memref<32xbf16, 1>
        %l2_1 = memref.alloc() : memref<32xbf16, 1>
        %t0 = air.channel.get async @in[%c0] (%l2[] [] []) : (memref<32xbf16, 1>)
        %t1 = air.channel.put async [%t0] @l1[%c0] (%l2[] [] []) : (memref<32xbf16, 1>)
        air.channel.get @in[%c1] (%l2_1[] [] []) : (memref<32xbf16, 1>)
        air.channel.put @l1[%c1] (%l2_1[] [] []) : (memref<32xbf16, 1>)
        air.herd @h tile (%tx, %ty) in (%sx=%c2, %sy=%c1) {
          %l = memref.alloc() : memref<32xbf16, 2>
          %3 = memref.alloc() : memref<32xbf16, 2>
          air.channel.get @l1[%tx] (%l[] [] []) : (memref<32xbf16, 2>)
          scf.for %i = %c0 to %c32 step %c8 {
            %v = vector.load %l[%i] : memref<32xbf16, 2>, vector<8xbf16>
            %w = arith.addf %v, %v : vector<8xbf16>
            vector.store %w, %3[%i] : memref<32xbf16, 2>, vector<8xbf16>
          }
          air.channel.put @out[%tx] (%3[] [] []) : (memref<32xbf16, 2>)
          memref.dealloc %l : memref<32xbf16, 2>
          memref.dealloc %3 : memref<32xbf16, 2>
        }
        memref.dealloc %l2 : memref<32xbf16, 1>
        memref.dealloc %l2_1 : memref<32xbf16, 1>
      }
    }
    return
  }
}
""")


def line_of(text: str) -> int:
    assert TEXT.count(text) == 1, text
    return 1 + TEXT[: TEXT.index(text)].count("\n")


ADD, ALLOC_3, HERD, PUT_L1 = map(line_of, ("arith.addf", "%3 = memref", "air.herd", "@l1[%c0]"))
X = np.arange(64).reshape(2, 32).astype(ml_dtypes.bfloat16)


def stopped(stop_at, *show, text=TEXT):
    result = vnpu.run(text, X, np.zeros_like(X), stop_at=stop_at, show=show)
    assert result.stop is not None
    return result.stop


def test_it_stops_before_the_nth_time_on_a_tile_and_shows_what_is_written_so_far():
    stop = stopped(f"{ADD}:3@1,0", "%l", "%3", "%l[2:5]")
    assert stop.message.startswith(
        f"twice: line {ADD}: arith.addf in herd @h (1, 0): stopped before it, hit 3\nwhere it stands:\n"
    )
    assert stop.point == vnpu.StopPoint(ADD, 3, (1, 0))
    source, doubled, part = stop.buffers
    assert doubled.name == "%3"
    assert (source.name, source.memory, source.place) == ("%l", "L1", "herd @h (1, 0)")
    np.testing.assert_array_equal(source.numbers, np.arange(32, 64, dtype=np.float32))
    assert source.written is None
    # Two times 8 numbers are written by now.
    np.testing.assert_array_equal(doubled.written, np.arange(32) < 16)
    np.testing.assert_array_equal(doubled.numbers.compressed(), 2 * np.arange(32, 48, dtype=np.float32))
    np.testing.assert_array_equal(part.numbers, [34, 35, 36])


def test_it_says_where_tiles_dmas_and_channels_stand():
    message = stopped(f"{ADD}@0,0").message
    assert f"\n  segment @s, line {HERD}: air.herd @h, runs: 2 bodies have not ended\n" in message
    assert "\n  herd @h (1, 0): has not begun\n" in message
    assert "\n  herd @h (0, 0): runs, or could run\n" in message
    assert (
        f"\n  launch, line {line_of('get @out[%c1]')}: get @out[1] (0 put so far, 0 in flight), waits until a put comes\n"
        in message
    )
    assert message.endswith("\n  @l1[1] (1 put so far, 1 in flight)")


def test_what_a_segment_hands_to_a_dma_stops_when_what_it_depends_on_is_done():
    stop = stopped(PUT_L1, "%l2", "%x")
    assert "air.channel.put @l1 in segment @s: stopped before it, hit 1" in stop.message
    l2, x = stop.buffers
    assert (l2.memory, l2.place, x.memory, x.how) == ("L2", "segment @s", "L3", "argument 0 of @twice")
    np.testing.assert_array_equal(l2.numbers, np.arange(32, dtype=np.float32))
    np.testing.assert_array_equal(x.data.view(ml_dtypes.bfloat16), X)


def test_another_tile_is_named_by_its_coordinates():
    # The second tile runs after the first one has ended.
    (other,) = stopped(f"{line_of('vector.store')}@1", "%l").buffers
    assert other.place == "herd @h (1, 0)"
    message = (
        "no buffer '%l@0,0' is there where the run stopped: there are %l, %3, %x, %y; --show all lists them"
    )
    with pytest.raises(OptionError, match=message):
        stopped(f"{line_of('vector.store')}@1", "%l@0,0")


def test_of_several_stops_the_first_that_is_reached_ends_the_run_and_outputs_are_as_there():
    points = [ADD, line_of("put @out")]
    result = vnpu.run(TEXT, X, np.ones_like(X), stop_at=points, show="all")
    assert result.stop
    assert result.stop.point.line == ADD
    # What is in L2 was freed when the tiles had it.
    assert [buffer.name for buffer in result.stop.buffers] == ["%l", "%3", "%x", "%y"]
    np.testing.assert_array_equal(result.outputs[1], np.ones_like(X))


def test_a_stop_that_is_not_reached_says_how_often_its_line_was():
    with pytest.raises(vnpu.StopNotReachedError) as caught:
        vnpu.run(TEXT, X, np.zeros_like(X), stop_at=[f"{ADD}:9", f"{ADD}:5@1,0"])
    assert str(caught.value) == (
        f"twice: the run ended without a stop: line {ADD} was reached 8 times, and 9 would stop it; "
        f"line {ADD} was reached 4 times on (1, 0), and 5 would stop it"
    )
    assert caught.value.report.kind == "stop"


def test_a_run_that_fails_before_a_stop_says_so():
    stuck = TEXT.replace("@l1[%tx]", "@l1[%tx]", 1).replace("put @out[%tx]", "put @out[%ty]")
    with pytest.raises(
        vnpu.VirtualNpuDeadlock, match=f"it failed before a stop: line {ADD} was reached 8 times, and 9"
    ):
        vnpu.run(stuck, X, np.zeros_like(X), stop_at=f"{ADD}:9")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stop_at": line_of("    return")},
            r"line \d+ has no operation at which a run can stop \(the text has \d+ lines\): the nearest lines with one are \d+, \d+, \d+",
        ),
        (
            {"stop_at": "12:0"},
            "'12:0' names no place to stop: write LINE, LINE:HIT, LINE@X,Y or LINE:HIT@X,Y, such as 24:3@1,0",
        ),
        ({"stop_at": 2.5}, "2.5 is no place to stop: give a line, or 'LINE:HIT@X,Y'"),
        ({"show": "%l"}, "show %l looks at a buffer where a run stops: give stop_at too"),
        (
            {"stop_at": ADD, "perturb": 2},
            "stop_at ends the run before there is a result for perturb: give one of them",
        ),
        ({"stop_at": ADD, "show": "%l["}, r"'%l\[' names no buffer: write NAME, NAME@X,Y for that of tile"),
        ({"stop_at": ADD, "show": "%l[0::2:1]"}, r"'%l\[0::2:1\]' has no index or slice in its brackets"),
        ({"stop_at": ADD, "show": "%l[99]"}, r"'%l\[99\]' is outside of the buffer, which has shape \(32,\)"),
        (
            {"stop_at": ADD, "options": vnpu.BuildOptions(checks=False)},
            "a run stops only in a program built with checks: leave out --no-checks",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        vnpu.run(TEXT, X, np.zeros_like(X), **options)


def test_a_module_with_aie_device_does_not_stop():
    text = "module { aie.device(npu2) { %t = aie.tile(0, 2) } }"
    with pytest.raises(
        OptionError, match=r"a module with aie.device does not stop at a line: leave --stop-at out"
    ):
        vnpu.run(text, stop_at=1)


def test_a_program_is_not_built_anew_where_no_stop_is_asked_for():
    def key(options):
        return ProgramSource("", "", (), options).plan_key("a compiler")

    assert repr(BuildOptions(checks=True, stop_lines=(3,))) == repr(BuildOptions(checks=True))
    assert key(BuildOptions(checks=True)) != key(BuildOptions(checks=True, stop_lines=(3,)))
    assert key(BuildOptions(checks=True, stop_lines=(4,))) != key(BuildOptions(checks=True, stop_lines=(3,)))


# ---- the command ----


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """run(*words) -> exit status, output, errors of `aerie vnpu run` on the program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.mlir").write_text(TEXT)
    np.savez("in.npz", arg0=X.view(np.uint16), arg1=np.zeros_like(X).view(np.uint16))

    def call(*words):
        status = main(["run", "p.mlir", "--args", "in.npz", "--device", "none", *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_the_command_prints_elements_and_dashes_for_what_nothing_wrote(run):
    status, output, errors = run("--stop-at", f"{ADD}:2", "--show", ALLOC_3, "--show", "x[1, 0:3]")
    assert (status, errors) == (0, "")
    assert f"%3: bf16 32 of L1 (herd @h (0, 0), allocated at line {ALLOC_3}, 8 of 32 written):\n[" in output
    words = output.split("written):\n[")[1].split("]")[0].split()
    assert words == [f"{2 * n}" for n in range(8)] + ["--"] * 24
    assert output.endswith(
        f"%x: bf16 3 of L3 (argument 0 of @twice at line {line_of('func.func')}):\n[         32          33          34]\n"
    )


def test_the_command_lists_all_buffers_and_writes_them(run):
    status, output, _ = run("--stop-at", ADD, "--show", "all", "--show-out", "seen.npz")
    assert status == 0
    rows = [" ".join(line.split()) for line in output.splitlines()]
    assert f"%l L1 herd @h (0, 0) memref<32xbf16, 2> {line_of('%l = memref')} 32 of 32 0 31 0 0" in rows
    with np.load("seen.npz") as seen:
        assert set(seen) == {"l", "3", "x", "y"}
        np.testing.assert_array_equal(seen["x"], X.view(np.uint16))


def test_the_command_in_json(run):
    status, output, _ = run("--stop-at", ADD, "--show", "l", "--json")
    stop = json.loads(output)["stop"]
    assert (status, stop["line"], stop["buffers"][0]["max"]) == (0, ADD, 31.0)
    status, output, _ = run("--stop-at", f"{ADD}:9", "--json")
    assert (status, json.loads(output)["error"]["kind"]) == (1, "stop")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "l"], "--show l looks at a buffer where a run stops: give --stop-at LINE too"),
        (["--stop-at", ADD, "--show-out", "s.npz"], "--show-out s.npz has no buffer to hold: name them with --show"),
        (["--stop-at", ADD, "--perturb", 1], "--stop-at ends the run before there is a result for --perturb: give one of them"),
        (["--stop-at", "x"], "'x' names no place to stop"),
        (["--stop-at", ADD, "--no-checks"], "--stop-at needs a program built with checks: leave out --no-checks"),
    ],
)  # fmt: skip
def test_the_command_refuses_what_cannot_be_meant(run, words, message):
    status, _, errors = run(*words)
    assert status == 2
    assert message in errors
