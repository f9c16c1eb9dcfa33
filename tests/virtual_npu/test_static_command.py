"""aerie vnpu check: its table, its JSON, its statuses, and the report in Python."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.air_dialect import parse
from aerie.device import NPU1, NPU2, check
from aerie.device.errors import ParseError, ResourceError
from aerie.device.npu2 import DEVICES
from aerie.kernel_builder.kernels import flash_attention
from aerie.virtual_npu.__main__ import main
from tests.virtual_npu.static_texts import program

TALL = program(tiles="%c1, %c5")
EMULATED = program(
    "%b = memref.alloc() : memref<64xf32, 2>\n%v = vector.load %b[%c0] : memref<64xf32, 2>, vector<16xf32>\n"
    "%r = arith.mulf %v, %v : vector<16xf32>"
)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.mlir").write_text(program())
    (tmp_path / "tall.mlir").write_text(TALL)
    (tmp_path / "emulated.mlir").write_text(EMULATED)
    (tmp_path / "bad.mlir").write_text("func.func @f() { air.nonsense }")
    return tmp_path


def test_a_program_that_fits(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(files / "good.mlir")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].endswith("good.mlir on npu2")
    assert re.match(r"where +resource +used +limit +source of the limit$", lines[1])
    assert re.match(r"f +host arguments +1 +none known +ok +mlir-air python/air/backend/xrt.py", lines[2])
    assert re.search(
        r"^f/0/s/h +rows \(y\) +1 +4 +ok +mlir-aie AIETargetModel.h$", captured.out, re.MULTILINE
    )
    assert len(lines) == 2 + len(check(program()).usages)
    assert "\x1b" not in captured.out


def test_a_program_that_does_not_fit(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(files / "tall.mlir")]) == 1
    captured = capsys.readouterr()
    assert re.search(r"rows \(y\) +5 +4 +TOO MUCH", captured.out)
    line = TALL[: TALL.index("air.herd")].count("\n") + 1
    assert captured.err == (
        f"error: line {line}: air.herd: f/0/s/h: rows (y) takes 5, npu2 has 4; x counts columns and y rows; "
        "swap or split the herd (mlir-aie AIETargetModel.h)\n"
    )


def test_warnings_do_not_fail(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(files / "emulated.mlir")]) == 0
    assert capsys.readouterr().err.startswith("warning: line ")
    assert main(["check", str(files / "emulated.mlir"), "--bf16-emulation"]) == 0
    assert capsys.readouterr().err == ""


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(files / "tall.mlir"), "--json"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert captured.err == ""
    assert (found["device"], found["ok"], found["warnings"]) == ("npu2", False, [])
    (fault,) = found["faults"]
    assert (fault["kind"], fault["op"], fault["place"]) == ("limit", "air.herd", "f/0/s/h")
    assert fault["message"].startswith("rows (y) takes 5, npu2 has 4")
    (rows,) = [usage for usage in found["usages"] if usage["resource"] == "rows (y)"]
    assert (rows["used"], rows["limit"], rows["ok"], rows["line"]) == (5, 4, False, fault["line"])
    assert rows["source"] == fault["source"] == "mlir-aie AIETargetModel.h"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.mlir"], "error: cannot read missing.mlir: No such file or directory"),
        (["{}/bad.mlir"], "error: .*bad.mlir:1:"),
        (["{}/good.mlir", "--device", "npu9"], "error: argument --device: invalid choice: 'npu9'"),
        (["{}/good.mlir", "--stack-size", "0"], "error: argument --stack-size: '0' is no number of bytes"),
    ],
)
def test_wrong_input(files: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *(word.format(files) for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(message, captured.err)
    assert captured.err.count("\n") == 1


def test_wrong_input_as_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(files / "bad.mlir"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["error"]["kind"], found["error"]["line"]) == (False, "parse", 1)


def test_options_reach_the_check(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = files / "wide.mlir"
    wide.write_text(program(tiles="%c5, %c1"))
    assert main(["check", str(wide)]) == 0
    assert main(["check", str(wide), "--device", "npu1"]) == 1
    capsys.readouterr()
    assert main(["check", str(wide), "--stack-size", "4096", "--omit-ping-pong-transform=all"]) == 0
    assert re.search(r"L1 bytes +4096", capsys.readouterr().out)


NEAR = "memref<16x64xbf16, 2>"
SHARED = program(
    f"scf.for %i = %c0 to %c4 step %c1 {{\n%b = memref.alloc() : {NEAR}\n"
    "air.dma_memcpy_nd (%b[] [] [], %a[%c0, %c0] [%c16, %c64] [%c64, %c1]) {id = 1 : i32} : "
    f"({NEAR}, memref<64x64xbf16>)\n}}",
    tiles="%c4, %c1",
)
"""Every core reads the same, into a buffer of its own that aircc doubles."""


@pytest.mark.parametrize(
    ("words", "l1_bytes", "shim_tiles"),
    [
        ([], 1024 + 2 * 2048, 1),
        (["--omit-ping-pong-transform=L1"], 1024 + 2048, 1),
        (["--omit-ping-pong-transform=L2"], 1024 + 2 * 2048, 1),
        (["--omit-ping-pong-transform", "all"], 1024 + 2048, 1),
        (["--omit-auto-broadcast"], 1024 + 2 * 2048, 4),
    ],
)
def test_options_of_aircc(
    files: Path, capsys: pytest.CaptureFixture[str], words: list[str], l1_bytes: int, shim_tiles: int
) -> None:
    (files / "shared.mlir").write_text(SHARED)
    assert main(["check", str(files / "shared.mlir"), *words]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"L1 bytes +{l1_bytes} ", shown)
    assert re.search(rf"shim tiles +{shim_tiles} ", shown)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 0, "warning: "),
        (["--air-runtime-loop-tiling-sizes", "0"], 1, "error: "),
        (["--air-runtime-loop-tiling-sizes=1", "--air-runtime-loop-tiling-sizes=1"], 0, ""),
    ],
)
def test_how_many_steps_of_a_launch_are_sent_at_a_time(
    files: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    """A core that is given its launch's place is fed by a step of the launch alone."""
    (files / "steps.mlir").write_text(flash_attention.build(128, 128, 2, 1, 64).text)
    assert main(["check", str(files / "steps.mlir"), *words]) == code
    captured = capsys.readouterr().err
    assert captured.startswith(message)
    assert ("run-time parameter" in captured) is bool(message)


def test_sources_of_kernels(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = program(
        "func.call @k() : () -> ()", module='func.func private @k() attributes {link_with = "k.o"}'
    )
    (files / "call.mlir").write_text(text)
    assert main(["check", str(files / "call.mlir")]) == 1
    assert "k.cc is in none of" in capsys.readouterr().err
    (files / "k.cc").write_text('extern "C" void k() {}')
    assert main(["check", str(files / "call.mlir"), "--kernel-dir", str(files)]) == 0


def test_every_device_can_be_chosen(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in DEVICES:
        assert main(["check", str(files / "good.mlir"), "--device", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["device"] == name


def test_a_terminal_gets_colours_and_its_width(files: Path) -> None:
    columns = 60
    control, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "aerie.virtual_npu", "check", str(files / "tall.mlir")]
    process = subprocess.Popen(command, stdout=terminal, stderr=subprocess.DEVNULL, env=environment)
    os.close(terminal)
    text = _read_all(control)
    assert process.wait() == 1
    assert "\x1b[1;31m" in text
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert 40 < max(map(len, plain.splitlines())) <= columns


def _read_all(control: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(control, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(control)
    return b"".join(parts).decode()


def test_it_starts_quickly(files: Path) -> None:
    """In processor time, which a busy machine does not change much."""
    command = [sys.executable, "-m", "aerie.virtual_npu", "check", str(files / "good.mlir")]

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 1.5 for _ in range(3))


def test_a_module_and_its_text_give_the_same_report() -> None:
    assert check(parse(TALL), NPU2).to_json() == check(TALL, NPU2).to_json()
    assert check(TALL, NPU1).device is NPU1


def test_require_raises_all_faults() -> None:
    report = check(program(tiles="%c9, %c5"))
    with pytest.raises(
        ResourceError, match=r"columns \(x\) takes 9[^\n]*\n[^\n]*rows \(y\) takes 5"
    ) as caught:
        report.raise_faults()
    assert len(str(caught.value).splitlines()) == len(report.faults)
    check(program()).raise_faults()


def test_a_program_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(ParseError, match=r"^here.mlir:1:"):
        check("air.nonsense", filename="here.mlir")
