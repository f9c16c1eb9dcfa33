"""llama.cpp as the other side: what is asked of llama-bench, and what becomes of its answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.reporter import Reporter
from benchmarks import llamacpp
from benchmarks.llamacpp import Rates, gguf_file, run_llama_bench


def write_llama_bench(folder: Path, body: str) -> str:
    """A program of that name, which has `options` as a mapping."""
    program = folder / llamacpp.LLAMA_BENCH
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\noptions = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n{body}\n"
    )
    program.chmod(0o755)
    return str(program)


ANSWERS = """
with open(sys.argv[0] + ".log", "a") as log:
    print(json.dumps(options), file=log)
print(json.dumps([{"avg_ts": 100.0 if options["-n"] == "0" else 10.0}]))
"""


def test_both_parts_are_measured_with_the_same_threads(tmp_path: Path) -> None:
    program, rates = write_llama_bench(tmp_path, ANSWERS), Rates()
    run_llama_bench(program, tmp_path / "a.gguf", 3, 8, rates)
    assert rates == Rates(decode=[10.0], prefill=[100.0])
    asked = [json.loads(line) for line in Path(program + ".log").read_text().splitlines()]
    common = {"-m": str(tmp_path / "a.gguf"), "-t": "3", "-r": "1", "-o": "json"}
    assert asked == [
        {**common, "-p": "512", "-n": "0"},
        {**common, "-p": "0", "-n": "8", "-d": "118"},  # with 2 to warm up, the last one attends to 128
    ]


@pytest.mark.parametrize(
    ("body", "code", "output"),
    [
        ("sys.exit('no such architecture')", 1, "no such architecture"),
        ("print('[]')", 0, "[]"),
        ("print('fast')", 0, "fast"),
        ("pass", 0, "nothing"),
    ],
)
def test_a_program_that_fails(tmp_path: Path, body: str, code: int, output: str) -> None:
    program = write_llama_bench(tmp_path, body)
    with pytest.raises(UserError) as raised:
        run_llama_bench(program, tmp_path / "a.gguf", 1, 8, Rates())
    where = f"{program} failed on {tmp_path / 'a.gguf'}"
    assert str(raised.value) == f"{where} with exit code {code}; it said: {output}"


def test_without_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert llamacpp.main([]) != 0
    assert (
        "llama-bench is not on PATH, so llama.cpp has no side; build llama.cpp, and add its folder of "
        "programs to PATH" in capsys.readouterr().err
    )


def test_the_file_is_the_model_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "cache_folder", lambda: tmp_path)
    file = gguf_file(DEMO_FOLDER, "bf16", Reporter(quiet=True))
    written = file.stat()
    assert file.name == f"{DEMO_FOLDER.name}-bf16.gguf"
    assert gguf_file(DEMO_FOLDER, "bf16", Reporter(quiet=True)).stat() == written
    ours, theirs = open_checkpoint(DEMO_FOLDER).weights, open_checkpoint(file).weights
    for (name, ours_tensor), (_, theirs_tensor) in zip(ours.named(), theirs.named(), strict=True):
        assert ours_tensor.read().tobytes() == theirs_tensor.read().tobytes(), name


@pytest.mark.slow
def test_a_whole_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_llama_bench(tmp_path, ANSWERS)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(folders, "cache_folder", lambda: tmp_path)
    options = ["--model", "demo", "--rounds", "1", "--tokens", "2"]
    assert llamacpp.main([*options, "--weights", "bf16", "--threads", "1", "--threads", "2"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [row for row in table if row[:1] == ["bf16"]]
    assert [row[1] for row in rows] == ["1", "2"]
    for row in rows:
        assert (row[3], row[6]) == ("10.0", "100.0")
        assert float(row[4]) == pytest.approx(float(row[2]) / 10, abs=0.011)
        assert float(row[7]) == pytest.approx(float(row[5]) / 100, abs=0.011)
