"""`reduce`: the smallest text that still fails in the same way."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from aerie import air_dialect
from aerie.virtual_npu.__main__ import main
from aerie.virtual_npu.reduction import Failure, Reduction

TEXT = """\
module {
  air.channel @in [8, 1]
  func.func private @unused()
  func.func @main(%a: memref<64xf32>) {
    %t = air.wait_all async
    %l = air.launch async [%t] () in () args(%x = %a) : memref<64xf32> {
      %c8 = arith.constant 8 : index
      %c1 = arith.constant 1 : index
      %near = memref.alloc() : memref<64xf32, 2>
      air.herd @cores tile (%i, %j) in (%ni = %c8, %nj = %c1) args(%y = %near, %z = %x) :
          memref<64xf32, 2>, memref<64xf32> {
        %c0 = arith.constant 0 : index
        %c1_0 = arith.constant 1 : index
        %c64 = arith.constant 64 : index
        %f = arith.constant 1.0 : f32
        scf.for %k = %c0 to %c64 step %c1_0 {
          %v = memref.load %y[%k] : memref<64xf32, 2>
          %w = arith.addf %v, %f : f32
          %s = math.sqrt %w : f32
          memref.store %s, %y[%k] : memref<64xf32, 2>
        }
      }
    }
    return
  }
}
"""


def reduced(text: str, *wanted: str, max_tries: int = 1000) -> Reduction:
    """The reduction of a text to what holds all of these words."""
    reduction = Reduction(text, lambda found: all(word in found for word in wanted), max_tries)
    reduction.run()
    return reduction


def test_operations_that_are_not_needed_go():
    text = reduced(TEXT, "math.sqrt").best
    names = [op.name for op in air_dialect.parse(text).walk()]
    assert names == ["builtin.module", "func.func", "arith.constant", "math.sqrt", "func.return"]


@pytest.mark.slow
def test_grids_loops_and_shapes_shrink():
    text = reduced(TEXT, "air.herd", "scf.for", "memref.store").best
    assert "memref<1xf32" in text
    assert "64" not in text
    assert "8" not in text
    assert "%z" not in text  # what the body does not use is not handed in


def test_a_text_that_does_not_parse_loses_lines():
    assert reduced("module {\n  oops\n}\nmore\n", "oops").best == "  oops\n"


def test_no_more_texts_than_allowed():
    reduction = reduced(TEXT, "math.sqrt", max_tries=3)
    assert reduction.tries == 3
    assert "math.sqrt" in reduction.best


@pytest.mark.parametrize(
    ("kind", "one", "other", "same"),
    [
        ("race", "f: line 3: memref.load in herd @h (0): x", "f: line 9: memref.load: y", True),
        ("race", "f: line 3: memref.load: x", "f: line 3: memref.store: x", False),
        ("deadlock", "f: line 3: air.channel.get @a", "f: line 3: air.channel.get @b", False),
        ("expect", "f: arg2[0] is 1.0 instead of 2.0 (9", "f: arg2[0] is 1.0 instead of 3.0 (1", True),
        ("expect", "f: arg2[0] is 1.0 instead of 2.0", "f: arg2[0] is 1.5 instead of 2.0", False),
        ("parse", "a.mlir:3:1: error: no %x_1", "a.mlir:4:8: error: no %y", True),
        ("parse", "a.mlir:3:1: error: no %x", "a.mlir:3:1: error: not %x", False),
        ("unsupported", "line 3: cf.br: blocks", "line 4: cf.br: others", False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same_failure(kind, one, other, same):
    assert Failure(kind, one).is_same_as(Failure(kind, other)) is same
    assert not Failure("error", one).is_same_as(Failure(kind, other))


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A program that the virtual NPU does not run."""
    path = tmp_path / "refused.mlir"
    path.write_text(
        "func.func @main(%a: memref<4xf32>) {\n  %c = memref.alloc() : memref<4xf32>\n"
        "  %t = bufferization.to_tensor %a : memref<4xf32> to tensor<4xf32>\n  return\n}\n"
    )
    return path


def test_the_command_writes_the_text_and_shows_how_it_fails(refused: Path, capsys):
    out = refused.with_name("out.mlir")
    assert main(["reduce", str(refused), "--zeros", "-o", str(out), "--max-tries", "6"]) == 0
    assert "to_tensor" in out.read_text()
    assert "alloc" not in out.read_text()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "they fail with: line 3: bufferization.to_tensor: " in shown.err


def test_as_json(refused: Path, capsys):
    assert main(["reduce", str(refused), "--zeros", "--json", "--max-tries", "1"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["ok"]
    assert not fields["stopped"]
    assert fields["texts_run"] == 1
    assert fields["error"]["kind"] == "unsupported"
    assert "to_tensor" in fields["text"]


def test_the_message_for_a_program_that_runs(tmp_path: Path, capsys):
    path = tmp_path / "fine.mlir"
    path.write_text("func.func @main() {\n  return\n}\n")
    assert main(["reduce", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {path} runs without an error: there is nothing to reduce; give the options of "
        "`aerie vnpu run` with which it fails\n"
    )


@pytest.mark.parametrize("option", ["--max-tries", "--candidate-limit"])
def test_the_message_for_a_bound_of_nothing(refused: Path, option, capsys):
    assert main(["reduce", str(refused), option, "0"]) == 2
    assert capsys.readouterr().err == f"error: {option} 0 runs nothing: give a whole number from 1 on\n"


def test_ctrl_c_keeps_the_smallest_text_so_far(monkeypatch, refused: Path, capsys):
    def stop(self: Reduction) -> None:
        self.best = "smaller\n"
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Reduction, "run", stop)
    assert main(["reduce", str(refused), "--zeros"]) == 130
    shown = capsys.readouterr()
    assert shown.out == "smaller\n"
    assert "1 of 5 lines are left, after 0 texts; stopped before the end; they fail with: " in shown.err
