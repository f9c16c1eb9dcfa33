"""`bisect`: dumps of a compiler into which a fault was put by hand, and the pass that it is found in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aerie.kernel_builder.kernels import all_kernels
from aerie.virtual_npu.__main__ import main

FORMS = Path(__file__).parent / "compiled_forms"
PASSES = {
    "pass_001_after_air-dependency": "async",
    "pass_002_after_air-dma-to-channel": "channels",
    "pass_003_after_air-broadcast-detection": "broadcast",
    "pass_010_after_air-ping-pong-transform": "pingpong",
}
LOWERED = "module {\n  aie.device(npu2) {\n    %t = aie.tile(0, 2)\n  }\n}\n"
BIG = """\
          %big = memref.alloc() : memref<40000xbf16, 2>
          memref.dealloc %big : memref<40000xbf16, 2>
"""


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What aircc would have written of rms_norm: five AIR modules, and one past AIR."""
    monkeypatch.setenv("VNPU_OPT", "0")
    folder = tmp_path / "dumps"
    folder.mkdir()
    kernel = all_kernels()["rms_norm"].build(rows=32, cols=32, eps=0.25, herd_x=2)
    (folder / "pass_000_initial.mlir").write_text(kernel.text)
    for name, form in PASSES.items():
        text = (FORMS / f"rms_norm_{form}.mlir").read_text()
        (folder / f"{name}.mlir").write_text(text.replace(f"@rms_norm_{form}(", "@rms_norm("))
    (folder / "pass_020_after_air-to-aie.mlir").write_text(LOWERED)
    (folder / "pass_021_after_canonicalize.mlir").write_text(LOWERED)
    (folder / "notes.txt").write_text("not a dump")
    numbers = np.random.default_rng(1).standard_normal((2, 32, 32)).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", arg0=numbers[0], arg1=numbers[1, 0], arg2=np.zeros_like(numbers[0]))
    return folder


def put_fault(folder: Path, after: str, old: str, new: str) -> None:
    """Replace text that stands once in a dump."""
    (path,) = folder.glob(f"pass_*_after_{after}.mlir")
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def words(folder: Path, *more: str) -> list[str]:
    return ["bisect", str(folder), "--args", str(folder.parent / "in.npz"), *more]


def test_sound_dumps(dumps, capsys):
    assert main(words(dumps)) == 0
    captured = capsys.readouterr()
    past = "past AIR from aie.device on, which the virtual NPU does not run"
    assert captured.out.splitlines() == [
        "same        pass_000_initial.mlir",
        *(f"same        {name}.mlir" for name in PASSES),
        f"skipped     pass_020_after_air-to-aie.mlir: {past}",
        f"skipped     pass_021_after_canonicalize.mlir: {past}",
        "no pass changes the results",
    ]
    assert captured.err == ""


FAULTS = {
    "wrong offset": (
        "air-dependency",
        "%x_3[%at, %c0]",
        "%x_3[%i, %c0]",
        "different",
        r"the results change: arg2\[16, 0\] is \S+ instead of \S+ \(\d+ of 1024 elements differ\)",
    ),
    "wrong channel index": (
        "air-dma-to-channel",
        "@rms_norm_channels_1[%px, %py]",
        "@rms_norm_channels_1[%c0, %py]",
        "deadlock",
        r"@rms_norm_channels_1\[1, 0\]",
    ),
    "dropped broadcast": (
        "air-broadcast-detection",
        " {broadcast_shape = [2, 1]}",
        "",
        "deadlock",
        r"herd @rms_norm_herd \(1, 0\), line \d+: get @rms_norm_broadcast_0\[0, 0\] \(1 put so far",
    ),
    "too much L1": (
        "air-ping-pong-transform",
        "          %none = arith.constant",
        BIG + "          %none = arith.constant",
        "resources",
        r"L1 bytes takes \d+, npu2 has 65536",
    ),
    "no longer a module": (
        "air-dma-to-channel",
        "    return\n",
        "    retrun\n",
        "parse",
        r"pass_002_after_air-dma-to-channel\.mlir:\d+:\d+",
    ),
    "other arguments": (
        "air-dma-to-channel",
        "func.func @rms_norm(",
        "func.func @renamed(",
        "arguments",
        "no @rms_norm takes the arguments of the first file",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_guilty_pass(dumps, capsys, fault):
    after, old, new, kind, message = FAULTS[fault]
    put_fault(dumps, after, old, new)
    assert main(words(dumps)) == 1
    table, _, verdict = capsys.readouterr().out.partition("guilty: ")
    run = table.splitlines()
    assert verdict.startswith(f"{after} (after pass_")
    assert re.search(message, verdict)
    assert run[-1].startswith(f"{kind:12}pass_")
    assert all(line.startswith("same ") for line in run[:-1])


LOST = (
    "air-dependency",
    "%filled = air.wait_all async [%group, %in_x]",
    "%filled = air.wait_all async [%group]",
)


def test_a_lost_token_is_a_note_and_the_search_continues(dumps, capsys):
    put_fault(dumps, *LOST)
    assert main(words(dumps)) == 0
    message = "missing token, a data race but for the order of the tile: this "
    found = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(found) if line.startswith("note: ")]
    assert found[at - 1].endswith("pass_001_after_air-dependency.mlir")
    assert re.match(rf"note: air-dependency: line \d+: .*{message}\w+ .* of %alloc, ", found[at])
    put_fault(dumps, *FAULTS["wrong channel index"][:3])
    assert main(words(dumps, "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["guilty"]["pass"] == "air-dma-to-channel"
    assert [len(file["notes"]) for file in found["files"]] == [0, 1, 0]
    assert message in found["files"][1]["notes"][0]


def test_a_limit_that_a_later_pass_mends_is_a_note(dumps, capsys):
    """Passes in the middle make buffers for a whole herd, which later ones shrink."""
    put_fault(
        dumps,
        "air-dma-to-channel",
        "          %none = arith.constant",
        BIG + "          %none = arith.constant",
    )
    assert main(words(dumps)) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert re.match(
        r"note: air-dma-to-channel: line \d+: .*L1 bytes takes \d+, npu2 has 65536; .*"
        r" \(mended by a later pass\)",
        notes[0],
    )


def test_for_machines(dumps, capsys):
    put_fault(dumps, "air-dependency", "%x_3[%at, %c0]", "%x_3[%i, %c0]")
    assert main(words(dumps, "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    guilty = found["guilty"]
    assert (guilty["file"], guilty["pass"]) == ("pass_001_after_air-dependency.mlir", "air-dependency")
    assert guilty["difference"]["argument"] == "arg2"
    assert guilty["difference"]["index"] == [16, 0]
    assert guilty["difference"]["expected"] != guilty["difference"]["found"]
    assert [file["verdict"] for file in found["files"]] == ["same", "different"]


def test_within_a_tolerance(dumps, capsys):
    """A constant that changes the last bits only."""
    put_fault(
        dumps, "air-dependency", "arith.constant 3.125000e-02 : f32", "arith.constant 3.130000e-02 : f32"
    )
    assert main(words(dumps)) == 1
    assert main(words(dumps, "--tolerance", "0.02")) == 0
    capsys.readouterr()


def test_what_cannot_be_run_is_skipped(dumps, capsys):
    put_fault(
        dumps,
        "air-dependency",
        "    return\n",
        '    %t = "tensor.empty"() : () -> tensor<4xf32>\n    return\n',
    )
    assert main(words(dumps)) == 0
    assert re.search("skipped .*air-dependency.mlir: .*tensor.empty", capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, status: int = 2) -> None:
    assert main(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err)


def test_wrong_input(dumps, tmp_path, capsys):
    refused(capsys, words(tmp_path / "gone"), "gone is no folder: give the one that `aircc --debug-ir`")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "pass_000_initial.mlir").write_text("module {}")
    refused(
        capsys, words(tmp_path / "one"), "one has 1 files pass_NNN_after_NAME.mlir: give a folder with at"
    )
    refused(capsys, words(dumps, "--tolerance", "-1"), "--tolerance -1.0 makes no sense: give a number of 0")
    refused(
        capsys, ["bisect", str(dumps)], "rms_norm takes 3 arguments: give them with --args NPZ, or try it"
    )
    (dumps / "pass_000_initial.mlir").write_text("module {")
    refused(capsys, words(dumps), r"pass_000_initial.mlir:1:")
