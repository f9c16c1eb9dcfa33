"""The timing model: what limits made-up programs, how their times change, and what it cannot follow."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import func

from aerie.common.errors import ProgramError
from aerie.kernel_builder.kernels import gemm, gemv
from aerie.kernel_builder.spec import KernelModule
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.timing import DEFAULT, NOTE, TimingError, events, model, predict
from aerie.virtual_npu.timing.core_costs import call_work
from aerie.virtual_npu.timing.costs import prices
from aerie.virtual_npu.timing.model import TimedProgram
from aerie.virtual_npu.timing.parameters import MAX_PARAMETERS
from aerie.virtual_npu.timing.prediction import ERROR_FACTORS, LIMITS, OTHER_ERROR_FACTOR
from aerie.virtual_npu.timing.replay import Event, Graph, Resource
from benchmarks.board_times.board_gemm import BoardGemm, build_board_gemm

TILE = 4096
"""Elements of bf16 in one transfer."""


L1 = f"memref<{TILE}xbf16, 2>"
VECTOR = "vector<16xbf16>"


def program(cores: int = 1, rows: int = 1, tiles: int = 1, sums: int = 0, points: int = 1) -> str:
    """Each of cores * rows cores takes `tiles` tiles of 8 KiB, and does `sums` vector sums on each."""
    l3 = f"memref<{tiles * TILE}xbf16>"
    return f"""
func.func @made_up(%a: {l3}) {{
  %points = arith.constant {points} : index
  air.launch (%l) in (%ln=%points) args(%a1=%a) : {l3} {{
    air.segment @made_up_segment args(%a2=%a1) : {l3} {{
      %cores = arith.constant {cores} : index
      %rows = arith.constant {rows} : index
      air.herd @made_up_herd tile (%x, %y) in (%nx=%cores, %ny=%rows) args(%a3=%a2) : {l3} {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %n = arith.constant {tiles} : index
        %sums = arith.constant {sums} : index
        %size = arith.constant {TILE} : index
        %zero = arith.constant 0.0 : bf16
        %l1 = memref.alloc() : {L1}
        scf.for %i = %c0 to %n step %c1 {{
          %tile = affine.apply affine_map<()[s0] -> (s0 * {TILE})>()[%i]
          %own = arith.addi %tile, %x : index
          %at = arith.addi %own, %y : index
          air.dma_memcpy_nd (%l1[] [] [], %a3[%at] [%size] [%c1]) : ({L1}, {l3})
          scf.for %j = %c0 to %sums step %c1 {{
            %v = vector.transfer_read %l1[%c0], %zero {{in_bounds = [true]}} : {L1}, {VECTOR}
            %s = arith.addf %v, %v : {VECTOR}
            vector.transfer_write %s, %l1[%c0] {{in_bounds = [true]}} : {VECTOR}, {L1}
          }}
        }}
      }}
    }}
  }}
  func.return
}}
"""


def product(inner: int, k: int = 8) -> str:
    """One core multiplies two blocks `inner` times."""
    maps = ", ".join(f"affine_map<(d0, d1, d2) -> ({dims})>" for dims in ("d0, d2", "d2, d1", "d0, d1"))
    kind = 'iterator_types = ["parallel", "parallel", "reduction"], kind = #vector.kind<add>'
    a, b, c = f"vector<8x{k}xbf16>", f"vector<{k}x8xbf16>", "vector<8x8xf32>"
    return f"""
func.func @product() {{
  air.launch () in () {{
    air.segment @product_segment {{
      %c1 = arith.constant 1 : index
      air.herd @product_herd tile (%x, %y) in (%nx=%c1, %ny=%c1) {{
        %c0 = arith.constant 0 : index
        %one = arith.constant 1 : index
        %n = arith.constant {inner} : index
        %a = arith.constant dense<0.0> : {a}
        %b = arith.constant dense<0.0> : {b}
        %c = arith.constant dense<0.0> : {c}
        scf.for %i = %c0 to %n step %one {{
          %d = vector.contract {{indexing_maps = [{maps}], {kind}}} %a, %b, %c : {a}, {b} into {c}
        }}
      }}
    }}
  }}
  func.return
}}
"""


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (program(cores=8, rows=2, tiles=80), "DDR"),
        (program(cores=1, tiles=80), "stream"),
        (program(cores=2, tiles=10, sums=5000), "core"),
        (program(), "dispatch"),
    ],
)
def test_names_what_limits_a_launch(text: str, limit: str) -> None:
    (launch,) = predict(text).launches
    assert launch.limited_by == limit
    assert set(launch.path_us) <= set(LIMITS)
    assert sum(launch.path_us.values()) == pytest.approx(launch.us)


def test_a_launch_takes_at_least_its_bytes_over_the_bandwidth_of_ddr() -> None:
    (launch,) = predict(program(cores=8, rows=2, tiles=80)).launches
    assert launch.ddr_bytes == 16 * 80 * TILE * 2
    at_least = launch.ddr_bytes / DEFAULT.ddr_gb_s / 1e3
    assert at_least < launch.us - DEFAULT.dispatch_us < 1.1 * at_least


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (program(tiles=20), program(tiles=40)),
        (program(sums=1000), program(sums=2000)),
        (program(points=2), program(points=9)),
        (product(1000), product(2000)),
        (product(1000, k=8), product(1000, k=64)),
        (program(cores=8, tiles=10, sums=100), program(cores=4, tiles=20, sums=100)),
    ],
)
def test_more_work_takes_longer_and_more_columns_less_long(less: str, more: str) -> None:
    assert predict(less).total_us < predict(more).total_us


def test_counts_multiply_accumulates() -> None:
    (launch,) = predict(product(1000)).launches
    assert launch.macs == 1000 * 8 * 8 * 8


def call_cycles(module: KernelModule, symbol: str) -> float:
    """Cycles of the first call of a function, without those of calling it."""
    calls = [op for op in module.module.walk() if isinstance(op, func.CallOp)]
    call = next(op for op in calls if op.callee.root_reference.data.startswith(symbol))
    return float(np.dot(call_work(call).cost, prices(DEFAULT))) - DEFAULT.call_cycles


def test_unpacking_costs_by_the_weights_of_one_call() -> None:
    """A core has 256 columns of 32 rows at once, and unpacks 64 of them in a call."""
    kernel = gemm.build(64, 256, 32, b_transposed=True, weight="q4")
    assert call_cycles(kernel, "unpack_blocks") == pytest.approx(1409 / 4)


@pytest.mark.parametrize("weight", ["q4", "q8"])
def test_a_block_times_a_vector_costs_16_bodies(weight: str) -> None:
    kernel = gemv.build(32, 256, weight=weight)
    assert call_cycles(kernel, "matvec_blocks") == pytest.approx(16 * 140)


def test_transposing_costs_six_operations_for_a_block() -> None:
    kernel = gemm.build(8, 8, 8, b_transposed=True)
    assert call_cycles(kernel, "transpose_blocks") == pytest.approx(6 * DEFAULT.kernel_op_cycles)


def test_transfers_overlap_with_computing() -> None:
    moving = predict(program(tiles=50)).total_us
    computing = predict(program(tiles=50, sums=200)).total_us
    both = moving + computing - 2 * DEFAULT.dispatch_us
    assert computing - DEFAULT.dispatch_us < 0.8 * both


def test_cores_that_take_the_same_data_share_one_transfer() -> None:
    text = program(cores=8, tiles=10).replace("arith.addi %tile, %x", "arith.addi %tile, %c0")
    (launch,) = predict(text).launches
    assert launch.ddr_bytes == 10 * TILE * 2


def twice(text: str) -> str:
    first, last = text.index("  air.launch"), text.index("  func.return")
    return text[:last] + text[first:last] + text[last:]


def test_a_program_of_several_launches_is_dispatched_once_and_loads_each() -> None:
    one, other = predict(twice(program())).launches
    assert one.us - other.us == pytest.approx(DEFAULT.dispatch_us)
    (alone,) = predict(program()).launches
    assert one.us - alone.us == pytest.approx(4 * DEFAULT.load_us)  # two locks in a shim tile, two in a core


def load_us(text: str) -> float:
    """How much longer a launch takes in an ELF of several."""
    timed = TimedProgram(text)
    return timed.predict(loads=True).total_us - timed.predict().total_us


def test_a_larger_design_takes_longer_to_load() -> None:
    assert load_us(program(cores=8)) == pytest.approx(8 * load_us(program()))


def test_points_of_an_elf_wait_for_each_other() -> None:
    one, four = (gemm.build(m, 64, 32, tile_m=16, tile_n=16, herd_m=2, herd_n=2).text for m in (32, 128))
    assert load_us(four) > load_us(one) + 1


def test_the_controller_writes_one_task_after_the_other() -> None:
    def issued_us(cores: int) -> float:
        timed = TimedProgram(program(cores=cores))
        without = dataclasses.replace(DEFAULT, issue_cycles=0.0)
        return timed.predict().total_us - timed.predict(without).total_us

    assert issued_us(8) == pytest.approx(8 * issued_us(1))


def test_a_launch_of_a_larger_program_is_not_dispatched() -> None:
    timed = TimedProgram(program())
    last = predict(twice(program())).launches[-1]
    assert timed.predict(dispatched=False, loads=True).total_us == pytest.approx(last.us)


def test_a_prediction_says_how_sure_it_is() -> None:
    prediction = predict(program(tiles=10, sums=1000, points=20))
    (launch,) = prediction.launches
    assert prediction.limited_by == launch.limited_by
    assert launch.to_json()["error_factor"] == ERROR_FACTORS[launch.limited_by] > 1
    unknown = dataclasses.replace(launch, limited_by="cascade")
    assert unknown.error_factor == OTHER_ERROR_FACTOR
    assert set(ERROR_FACTORS) < set(LIMITS)


def test_points_that_are_not_replayed_are_extrapolated() -> None:
    text = program(tiles=10, points=20)
    (short,) = TimedProgram(text, events_enough=1).predict().launches
    (whole,) = TimedProgram(text, events_enough=10**6).predict().launches
    assert (short.simulated_points, whole.simulated_points) == (2, 20)
    assert short.us == pytest.approx(whole.us, rel=0.1)
    assert short.ddr_bytes == whole.ddr_bytes


def test_iterations_that_are_not_walked_are_extrapolated() -> None:
    text = program(tiles=1000, sums=5)
    (short,) = TimedProgram(text, events_enough=1).predict().launches
    (whole,) = TimedProgram(text, events_enough=10**6).predict().launches
    assert short.us == pytest.approx(whole.us, rel=0.01)
    assert short.ddr_bytes == whole.ddr_bytes == 1000 * TILE * 2
    assert sum(short.path_us.values()) == pytest.approx(short.us)


def test_a_loop_beside_other_transfers_is_walked_to_its_end() -> None:
    moved = "          air.dma_memcpy_nd"
    text = program(tiles=1000)
    line = text[text.index(moved) : text.index("\n", text.index(moved))]
    text = text.replace("        scf.for %i", f"        {line.replace('%at', '%c0')}\n        scf.for %i", 1)
    (short,) = TimedProgram(text, events_enough=1).predict().launches
    assert short.ddr_bytes == 1001 * TILE * 2


def test_a_second_set_of_parameters_takes_no_second_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = TimedProgram(program(cores=2, tiles=5, sums=10))
    timed.predict()
    slow = dataclasses.replace(DEFAULT, clock_ghz=0.904, loop_cycles=16.0, shim_bytes=4.0)
    fresh = predict(program(cores=2, tiles=5, sums=10), slow)
    monkeypatch.setattr(model, "LaunchEvents", None)
    assert timed.predict(slow) == fresh != timed.predict()


def test_a_channel_with_little_to_move_does_not_wait_for_all_of_the_others() -> None:
    """A small request that comes last is served after one large one, not after all of them."""
    shims = [Resource(f"shim {i}", "shim", "shim_bytes") for i in range(5)]
    asked = [Event([shim], nbytes=64) for shim in shims]
    for event, nbytes in zip(asked, (10**6, 10**6, 10**6, 10**6, 1000), strict=True):
        event.ddr_bytes = nbytes
    watcher = Event([Resource("core", "core")])
    watcher.after(asked[-1])
    found = Graph([*asked, watcher], [*shims, *watcher.resources], [[watcher]]).replay(DEFAULT)
    assert found.done == 6
    assert found.marks[0] < 0.3 * found.cycles


def test_what_waits_for_a_channel_that_ddr_holds_up_comes_after_it() -> None:
    shim = Resource("shim", "shim", "shim_bytes")
    events = [Event([shim], nbytes=64) for _ in range(3)]
    for event in events:
        event.ddr_bytes = 10**6
    found = Graph(events, [shim]).replay(DEFAULT)
    each = 10**6 / (DEFAULT.ddr_gb_s / DEFAULT.clock_ghz)
    assert found.done == 3
    assert found.cycles == pytest.approx(3 * each)
    assert found.path == pytest.approx({"DDR": 3 * each, "dependency": 0.0})


@pytest.mark.parametrize(("k", "products"), [(32, 4), (64, 8), (128, 16)])
def test_a_product_in_cpp_pays_for_each_block_of_sums_once_a_call(k: int, products: int) -> None:
    kernel = build_board_gemm(64, k, 32, BoardGemm(64, k, k, 32, (1, 1)))
    held = 4 * 2
    expected = held * (DEFAULT.product_block_cycles + products * 4 * 512 / DEFAULT.bfp16_macs)
    assert call_cycles(kernel, "matmul_8x8x8") == pytest.approx(expected)


# ---- parameters ----


def test_every_parameter_has_a_source_and_lies_in_its_range() -> None:
    table = DEFAULT.describe()
    assert len(table) <= MAX_PARAMETERS
    for one in table:
        assert one["low"] <= one["value"] <= one["high"]
        assert all(len(one[field]) > least for field, least in (("unit", 1), ("meaning", 10), ("source", 10)))


def test_a_slower_clock_makes_cores_slower_and_dispatch_no_slower() -> None:
    text = program(sums=100_000)
    slow = predict(text, dataclasses.replace(DEFAULT, clock_ghz=0.904)).total_us
    fast = predict(text, DEFAULT).total_us
    assert slow - DEFAULT.dispatch_us == pytest.approx(2 * (fast - DEFAULT.dispatch_us))


def test_refuses_a_parameter_outside_its_range() -> None:
    message = "clock_ghz = 9 GHz is outside 0.4 to 2, the range that the timing model has sources for"
    with pytest.raises(OptionError, match=re.escape(message)):
        dataclasses.replace(DEFAULT, clock_ghz=9)


# ---- what it cannot follow ----


LOOP_OVER_DATA = """
func.func @f(%n: index) {
  air.launch () in () args(%n1=%n) : index {
    air.segment @s args(%n2=%n1) : index {
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%nx=%c1, %ny=%c1) args(%n3=%n2) : index {
        %c0 = arith.constant 0 : index
        %one = arith.constant 1 : index
        scf.for %i = %c0 to %n3 step %one {
          %sum = arith.addi %i, %i : index
        }
      }
    }
  }
  func.return
}
"""


def test_refuses_a_loop_over_data() -> None:
    with pytest.raises(TimingError, match=r"line 9: scf.for: the number of iterations depends on data"):
        predict(LOOP_OVER_DATA)


def test_refuses_more_events_than_it_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 10)
    with pytest.raises(
        TimingError, match="one point of launch made_up has more than 10 transfers and pieces"
    ):
        predict(program(tiles=20))


def test_refuses_more_iterations_than_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_ITERATIONS", 10)
    with pytest.raises(
        TimingError, match="launch made_up has more than 10 iterations of loops with transfers"
    ):
        predict(program(tiles=20))


def test_refuses_what_would_take_years() -> None:
    with pytest.raises(TimingError, match=r"launch product takes more than 1e.18 cycles, which is years"):
        predict(product(9 * 10**18))


HALF_A_CHANNEL = """
air.channel @c [1, 1]
func.func @f(%a: memref<64xbf16>) {
  air.launch () in () args(%a1=%a) : memref<64xbf16> {
    air.channel.put @c[] (%a1[] [] []) : (memref<64xbf16>)
    air.segment @s {
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%nx=%c1, %ny=%c1) {
        %l1 = memref.alloc() : memref<64xbf16, 2>
        GET
      }
    }
  }
  func.return
}
"""
GET = "air.channel.get @c[] (%l1[] [] []) : (memref<64xbf16, 2>)"


def test_a_put_meets_its_get() -> None:
    (launch,) = predict(HALF_A_CHANNEL.replace("GET", GET)).launches
    assert launch.ddr_bytes == 128


def test_refuses_a_put_without_a_get() -> None:
    message = "channel @c[0] has a put number 1 without its other end, so the program would hang"
    with pytest.raises(TimingError, match=re.escape(message)):
        predict(HALF_A_CHANNEL.replace("GET", ""))


def test_refuses_events_that_wait_for_each_other() -> None:
    crossed = (
        HALF_A_CHANNEL.replace("air.channel @c [1, 1]", "air.channel @c [1, 1]\nair.channel @d [1, 1]")
        .replace("air.channel.put @c[] (%a1[] [] []) : (memref<64xbf16>)", "")
        .replace("GET", f"{GET}\nair.channel.put @c[] (%l1[] [] []) : (memref<64xbf16, 2>)")
    )
    with pytest.raises(TimingError, match="events wait for each other, so the program would hang"):
        predict(crossed)


def test_refuses_a_launch_in_a_loop() -> None:
    text = """
func.func @f() {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.for %i = %c0 to %c1 step %c1 {
    air.launch @again () in () {
    }
  }
  func.return
}
"""
    with pytest.raises(TimingError, match=r"launch again is inside scf.for, and the timing model takes each"):
        predict(text)


def test_herds_without_a_name_keep_their_cores() -> None:
    named, unnamed = program(points=3), program(points=3).replace("air.herd @made_up_herd", "air.herd")
    assert predict(unnamed).total_us == predict(named).total_us


def test_refuses_text_without_a_launch() -> None:
    with pytest.raises(
        TimingError, match=re.escape("<input> has no air.launch, so there is nothing to time")
    ):
        predict("func.func @f() {\n  func.return\n}")


def test_refuses_text_that_does_not_parse() -> None:
    with pytest.raises(ProgramError, match="<input>:1"):
        predict("nothing")


# ---- the command ----


def test_the_command_says_that_it_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.mlir"
    path.write_text(program(cores=2, tiles=10, sums=5000))
    assert main(["time", str(path), "--clock", "1.57"]) == 0
    text = capsys.readouterr().out
    assert "npu2 at 1.57 GHz" in text
    assert NOTE in text
    assert re.search(r"made_up\s+[\d.]+\s+x 1.3\s+core", text)


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.mlir"
    path.write_text(program())
    assert main(["time", str(path), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert (fields["measured"], fields["note"]) == (False, NOTE)
    assert fields["launches"][0]["limited_by"] == "dispatch"
    assert {part["kind"] for part in fields["launches"][0]["parts"]} == {"core", "dispatch", "shim", "stream"}


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_command_prints_the_parameters(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "--parameters", *more]) == 0
    assert "IRON" in capsys.readouterr().out


def test_the_command_needs_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time"]) == 2
    assert "aerie vnpu time needs a program: give an MLIR file, or --parameters" in capsys.readouterr().err
