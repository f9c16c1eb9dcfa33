"""The benchmark's own parts: the machine, the worker's process, the plan, and one small run of it all."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aerie.common import cpu
from aerie.common.errors import UserError
from aerie.engine import memory_estimate
from aerie.engine.errors import CheckpointError
from aerie.llama32_1b.synthetic.__main__ import main as synthesise
from aerie.llama32_1b.synthetic.shape import LLAMA_3_2_1B
from benchmarks import __main__ as command
from benchmarks import comparison, machine, peaks, sides, worker
from benchmarks.figures import TARGETS
from benchmarks.instruction_sets import SelectedSet
from benchmarks.peaks import MemoryReader, measure_peaks
from benchmarks.plan import (
    TEXT_TOKENS,
    TEXT_WARM_UP_TOKENS,
    attention_flops,
    cache_bytes_per_position,
    make_plan,
    weight_bytes_per_token,
)
from benchmarks.worker import running_worker


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "tiny"
    assert synthesise([str(folder), "--shape", "tiny"]) == 0
    return folder


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc of our own."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tpython\nVmHWM:\t   2048 kB\nVmRSS:\t   100 kB\n")
    (tmp_path / "meminfo").write_text("MemTotal:       24000000 kB\nMemAvailable:    4000000 kB\n")
    (tmp_path / "cpuinfo").write_text("model name\t: A CPU\n\n")
    monkeypatch.setattr(machine, "PROC", tmp_path)


@pytest.fixture
def two_hyperthreads(tmp_path, monkeypatch):
    """A /sys of our own: one core of two hyperthreads, with three caches."""
    for name in ("cpu0", "cpu1"):
        (tmp_path / name / "topology").mkdir(parents=True)
        (tmp_path / name / "topology/thread_siblings_list").write_text("0-1\n")
    caches = [
        ("1", "Data", "48K"),
        ("1", "Instruction", "32K"),
        ("2", "Unified", "1024K"),
        ("3", "Unified", ""),
    ]
    for number, values in enumerate(caches):
        folder = tmp_path / f"cpu0/cache/index{number}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size"), values, strict=True):
            (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(machine, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)


def test_hyperthreads_are_no_cores(two_hyperthreads):
    assert machine.topology() == {"cpus": 2, "cores": 1}


def test_caches_are_data_caches_with_a_size(two_hyperthreads):
    assert machine.caches() == {"L1d": 48 << 10, "L2": 1 << 20}


def test_the_machine(proc):
    described = machine.describe_machine()
    assert described["cpu"] == "A CPU"
    assert described["instruction_sets"] == [each.title for each in cpu.instruction_sets()]
    assert described["memory_bytes"] == 24_576_000_000
    assert machine.peak_bytes() == 2 << 20


def test_no_name_of_host_or_user():
    import getpass
    import socket

    words = json.dumps(machine.describe_machine()).replace('"', " ").split()
    assert not {socket.gethostname(), getpass.getuser()} & set(words)


def test_where_the_system_says_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PROC", tmp_path / "none")
    monkeypatch.setattr(machine, "CPUS", tmp_path / "none")
    assert machine.peak_bytes() > 1 << 20
    assert machine.caches() == {}
    found = machine.topology()
    assert found["cpus"] == found["cores"] >= 1


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_every_byte_is_read(threads, monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", threads)
    reader = MemoryReader(3 * (1 << 20))
    for asks in (True, False):
        reader._memory[-1] = 1
        assert reader.sum(prefetch=asks) == 3 * (1 << 20) // 8
        reader._memory[-1] = 1000
        assert reader.sum(prefetch=asks) == 3 * (1 << 20) // 8 + 999
    assert reader.bytes_per_second() > 1e6


@pytest.mark.parametrize(
    ("found", "nbytes"),
    [({}, 1 << 28), ({"L3": 32 << 20}, 1 << 28), ({"L2": 1, "L3": 300 << 20}, 1200 << 20)],
)
def test_more_is_read_than_a_cache_holds(found, nbytes, monkeypatch):
    monkeypatch.setattr(peaks, "caches", lambda: found)
    assert peaks.bytes_to_read() == nbytes


def test_peaks_are_of_one_thread_and_of_all(monkeypatch):
    monkeypatch.setenv("VNPU_THREADS", "2")
    found = measure_peaks(seconds=0)
    assert set(found) == {"product_gflop_per_s", "f32_fma_gflop_per_s", "memory_gb_per_s"}
    assert all(len(rates) == 2 and min(rates) > 0 for rates in found.values())


class Side:
    """Stands in for a side in a worker's process."""

    def add(self, a, b):
        print("this is no answer")
        return a + b

    def refuse(self):
        raise UserError("cannot be done")

    def crash(self):
        print("out of luck", file=sys.stderr)
        sys.exit(3)


@pytest.fixture
def side(tmp_path, monkeypatch):
    """A worker of Side."""
    program = tmp_path / "side.py"
    program.write_text(
        textwrap.dedent(f"""
        import importlib.util, sys
        from benchmarks.worker import serve
        spec = importlib.util.spec_from_file_location("tests_of_bench", {__file__!r})
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        serve(module.Side())
        """)
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda arguments, **named: popen([arguments[0], str(program)], **named)
    )
    env = {"PYTHONPATH": str(worker.REPOSITORY)}
    with running_worker("ours", {}, tmp_path / "ours.log", env) as made:
        yield made


def test_a_worker_answers_and_keeps_prints_apart(side, tmp_path):
    assert side("add", a=2, b=3) == 5
    with pytest.raises(UserError, match=r"^cannot be done$"):
        side("refuse")
    assert side("add", a=[1], b=[2]) == [1, 2]
    side.close()
    assert "this is no answer" in (tmp_path / "ours.log").read_text()


def test_a_worker_that_ends(side, tmp_path):
    with pytest.raises(UserError) as refused:
        side("crash")
    log = tmp_path / "ours.log"
    assert str(refused.value) == (
        f"the process of 'ours' ended during crash with exit code 3; it said: out of luck (all of it: {log})"
    )


def test_a_worker_that_is_killed(side, tmp_path):
    side._process.kill()
    with pytest.raises(
        UserError, match=r"ended during add with signal 9 \(9: too little memory, most likely\)"
    ):
        side("add", a=1, b=1)


ABANDONED = """
import sys
from pathlib import Path
from benchmarks.worker import SideProcess
folder = Path(sys.argv[1])
side = {"folder": sys.argv[2], "cache_dir": str(folder / "programs")}
worker = SideProcess("ours", side, folder / "ours.log", {"VNPU_CACHE": str(folder / "vnpu")})
print(worker._process.pid, flush=True)
worker("compile")
"""


@pytest.mark.slow
def test_a_side_ends_with_a_benchmark_that_is_killed(tiny, tmp_path):
    command_line = [sys.executable, "-c", ABANDONED, str(tmp_path), str(tiny)]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, text=True, cwd=worker.REPOSITORY) as parent:
        assert parent.stdout
        of_side = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        while "compiling" not in (tmp_path / "ours.log").read_text():
            assert parent.poll() is None
            time.sleep(0.05)
        parent.kill()
    end = time.monotonic() + 120
    while is_running(of_side):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(stat: Path) -> bool:
    """Of a process, by its file in /proc: not where it waits to be collected."""
    try:
        return stat.read_text().split()[2] != "Z"
    except OSError:
        return False


def test_plans(tiny):
    plan = make_plan(tiny, rounds=2, tokens=8)
    assert (plan.prompts, plan.contexts) == ((16, 64, 128, 512), (128, 512))
    assert (plan.shared, plan.few_rows_context, plan.pooled) == (464, 256, 504)
    assert plan.texts == ("code_editing", "prose", "quoting_summary")
    assert {f"lookup_ratio_{text}" for text in plan.texts} <= set(TARGETS)
    assert plan.program_count == 12  # three sizes of blocks in one context, and a token's


def test_a_plan_has_tokens_in_its_short_context(tiny):
    make_plan(tiny, rounds=1, tokens=125)
    with pytest.raises(UserError) as refused:
        make_plan(tiny, rounds=1, tokens=126)
    assert str(refused.value) == (
        "126 tokens, and 2 before the clock runs, do not fit the context of 128 that they are decoded in: "
        "measure at most 125 --tokens"
    )


def with_positions(tiny, folder, positions) -> Path:
    few = shutil.copytree(tiny, folder)
    config = json.loads((few / "config.json").read_text())
    (few / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    return few


def test_a_plan_for_few_positions_has_one_context(tiny, tmp_path):
    plan = make_plan(with_positions(tiny, tmp_path / "few", 140), rounds=1, tokens=2)
    assert (plan.prompts, plan.contexts) == ((16, 64, 128), (128,))
    with pytest.raises(UserError) as refused:
        make_plan(with_positions(tiny, tmp_path / "fewer", 100), rounds=1, tokens=2)
    assert str(refused.value) == (
        f"{tmp_path / 'fewer'} has 100 positions; decoding is measured up to a context of 128: take another "
        "model"
    )


def test_a_checkpoint_that_is_not_whole_is_refused_at_once(tiny, tmp_path):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    os.truncate(broken / "model.safetensors", 100_000)
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        make_plan(broken, rounds=1, tokens=2)


def test_bytes_of_a_token():
    assert weight_bytes_per_token(LLAMA_3_2_1B) == 2_471_628_800
    assert cache_bytes_per_position(LLAMA_3_2_1B) == 16 * 2 * 8 * 64 * 2


def test_attention_is_counted_by_the_pairs_that_are_seen():
    assert attention_flops(LLAMA_3_2_1B, 2) == 15 * 32 * 64 * (1 + 2) * 4


def test_too_little_memory_comes_before_anything_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(memory_estimate, "available_bytes", lambda: 6 << 30)
    monkeypatch.setattr(peaks, "caches", dict)
    assert command.main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the comparison takes about 8.")
    assert (
        "the checkpoint in the page cache 2.3 GiB, memory to read 256 MiB) and 6.0 GiB are available" in line
    )
    assert "measure the small one with MODEL=demo, end other programs" in line
    assert list(tmp_path.iterdir()) == []


def test_torch_is_missed_before_anything_is_done(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert command.main(["--model", "demo"]) == 2
    assert capsys.readouterr().err == (
        "error: transformers needs torch on the CPU, which is not installed; `make bench` installs it, as "
        "does pip install -e '.[test]'\n"
    )


def test_knobs_are_recorded_and_folders_are_not(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("VNPU_", "AERIE_"))]:
        monkeypatch.delenv(name)
    assert comparison.environment_overrides() == {}
    for name, value in {
        "VNPU_OPT": "0",
        "VNPU_CACHE": "/home/me",
        "AERIE_NPU_LOCK": "/home/me/lock",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AERIE_PLAIN", "")
    assert comparison.environment_overrides() == {"VNPU_OPT": "0"}


def test_files_that_no_tensor_is_in_are_not_weighed(tiny, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "more")
    (folder / "other.safetensors").write_bytes(b"other")
    plan = make_plan(folder, rounds=1, tokens=8)
    assert [path.name for path in plan.files] == ["model.safetensors"]
    assert plan.checkpoint_bytes == (tiny / "model.safetensors").stat().st_size


@pytest.mark.slow
def test_a_whole_run(tiny, tmp_path, monkeypatch, capsys):
    """Both sides, in their own processes, on a tiny model: every figure is there and is a time or a size."""
    pytest.importorskip("torch")
    monkeypatch.setenv("AERIE_CACHE", str(tmp_path))
    out = tmp_path / "bench.json"
    arguments = ["--model", str(tiny), "--rounds", "2", "--tokens", "2", "--out", str(out)]
    assert command.main(arguments) == 0
    shown = capsys.readouterr()
    assert "first token of 512, s" in shown.out
    assert "[16/47] round 2 of 2: decode at context 128" in shown.err
    assert "[29/47] programs by themselves" in shown.err
    assert "[35/47] round 2 of 2: decode at context 512, from pages" in shown.err
    assert "[41/47] round 2 of 2: quoting summary, with drafts and without" in shown.err
    assert "[47/47] round 2 of 2: answers over HTTP, 16 at once" in shown.err
    recorded = json.loads(out.read_text())
    found = recorded["sets"]["native"]
    assert recorded["machine"] == json.loads(json.dumps(machine.describe_machine()))
    assert set(found["programs"]) >= {"o_ffn_ar128", "cached_attn_ar128_cl512", "flash_attn", "lm_head_gemv"}
    # What HTTP costs is a difference of two times, which other work on the machine may turn around.
    differences = {name: found["ours"].pop(name) for name in ("http_first_token_ms", "http_token_ms")}
    figures = [*found["ours"].values(), *found["theirs"].values(), *map(min, found["peaks"].values())]
    assert np.isfinite([*figures, *differences.values()]).all()
    assert min(*figures, *(value for name, value in found.items() if "_ratio" in name)) > 0
    assert {"python_ms", "first_token_shared_s"} <= found["ours"].keys()
    assert found["targets"] == {}
    assert len(found["samples"]["ours.decode_512"]) == len(found["samples"]["ours.rows_512"]) == 2
    assert command.main(["--show", "--out", str(out)]) == 0
    assert "prompt of 512: ours/theirs" in capsys.readouterr().out


FORETOLD = "as 64 tokens tell, 512 take 8 s, and {} s in transformers; all longer prompts about {} minutes"
ONCE = ", transformers measured once where that is over a minute"


@pytest.mark.parametrize(
    ("rounds", "ours", "theirs", "note"),
    [
        (3, 0.1, 0.2, None),
        (3, 1.0, 2.0, f"{FORETOLD.format(16, 2.0)}; fewer --rounds take less"),
        (3, 1.0, 10.0, f"{FORETOLD.format(80, 3.3)}{ONCE}; fewer --rounds take less"),
        (1, 1.0, 20.0, f"{FORETOLD.format(160, 4.3)}{ONCE}"),
    ],
)
def test_the_duration_is_estimated(tiny, tmp_path, rounds, ours, theirs, note):
    notes: list[str] = []
    comparison = comparing(tiny, tmp_path, rounds, notes)
    comparison.samples.add("ours", "first_64", ours)
    comparison.samples.add("theirs", "first_64", theirs)
    comparison._note_duration()
    assert notes == ([note] if note else [])


def comparing(tiny: Path, folder: Path, rounds: int, notes: list[str]) -> comparison.ComparisonRun:
    plan = make_plan(tiny, rounds, tokens=8)
    reporter: Any = SimpleNamespace(note=notes.append)
    return comparison.ComparisonRun(plan, SelectedSet("native", None), folder, reporter)


class Recorder:
    """Stands in for a worker: notes what it is called for."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __call__(self, method, **arguments):
        self.log.append((self.name, method, arguments))
        shared = arguments.get("shared", 0)
        few_rows = {"1": 1.0, "8": 1.0, "16": 1.0}
        answers = {
            "programs": {},
            "flash_attention": {},
            "memory": {"peak_bytes": 1},
            "time_few_rows": few_rows,
        }
        answers |= {"time_batch": few_rows, "first_token_of_pool": {"new": 1.0, "shared": 0.1}}
        answers |= {"time_pages": {"pages": 1.0, "own": 1.0}, "time_drafts": {"guide": 1.0, "lookup": 1.0}}
        seconds = arguments.get("length", 64) * (1.0 if self.name == "theirs" else 0.1)
        computed = arguments.get("length", 0) - shared
        parts = {"programs_seconds": 0.1, "attention_seconds": 0.01} if self.name == "ours" else {}
        return answers.get(method, {"seconds": seconds, "computed": computed, **parts})


def test_the_order_of_things(tiny, tmp_path):
    """Short prompts first, the other side once where it is slow; memory before what ours alone is asked."""
    calls: list[tuple[str, str, dict[str, Any]]] = []
    notes: list[str] = []
    comparison = comparing(tiny, tmp_path, 2, notes)
    recorders: dict[str, Any] = {side: Recorder(side, calls) for side in ("ours", "theirs")}
    comparison._compare(recorders)
    prompts = [(name, given["length"]) for name, method, given in calls if method == "first_token"]
    assert prompts[:6] == [("ours", 16), ("theirs", 16)] * 2 + [("theirs", 16), ("ours", 16)]
    assert [length for name, length in prompts if name == "theirs"] == [16] * 3 + [64] * 3 + [128, 512]
    assert notes[0].startswith("as 64 tokens tell, 512 take 51 s, and 512 s in transformers")
    decoding = [(name, given) for name, method, given in calls if method == "decode"]
    decodes = [(name, given["context"]) for name, given in decoding if given["tokens"] == 8]
    assert decodes[:4] == [("ours", 128), ("theirs", 128), ("theirs", 128), ("ours", 128)]
    assert decodes[4:8] == [("ours", 512), ("theirs", 512), ("theirs", 512), ("ours", 512)]
    families = [given.get("family") for _, given in decoding if given["tokens"] == 8]
    assert families[8:] == ["guide", "rows"] * 4
    beside = [(name, given["context"]) for name, given in decoding if given["tokens"] == 1]
    assert beside == [("ours", 512)] * 16
    assert len(comparison.samples.values["machine", "beside_512"]) == 16
    methods = [method for _, method, _ in calls]
    assert methods.index("memory") < methods.index("time_few_rows")
    arguments = [given for _, method, given in calls if method == "time_drafts"]
    assert arguments[0] == {"text": "code_editing", "tokens": TEXT_WARM_UP_TOKENS}
    assert arguments[1:] == [
        {"text": text, "tokens": TEXT_TOKENS} for text in comparison.plan.texts for _ in range(2)
    ]
    assert comparison.steps == comparison._done + 11  # before both sides are there, and over HTTP
    assert len(comparison.samples.values["ours", "prose_lookup"]) == 2
    assert [given["shared"] for _, _, given in calls if given.get("shared")] == [464] * 3 + [464] * 3
    assert len(comparison.samples.values["theirs", "first_512"]) == 1
    assert len(comparison.samples.values["ours", "first_512"]) == 2


@pytest.mark.slow
def test_what_ours_computes_anew_is_what_is_new(tiny, tmp_path):
    """The session's own side, on the tiny model: a prompt that shares tokens, decoding, few rows."""
    side = sides.AerieSide(str(tiny), str(tmp_path))
    side.load()
    assert side.first_token(64)["computed"] == 64
    assert side.first_token(64)["computed"] == 64
    first, second = (side.first_token(64, shared=40) for _ in range(2))
    assert (first["computed"], second["computed"]) == (24, 24)
    side.reset()
    assert side.decode(64, 2, "rows").keys() == {"seconds"}
    assert not set(side.programs()) & {"rms_gemv_rope", "lm_head_gemv"}
    assert side.decode(64, 2).keys() >= {"seconds", "programs_seconds", "attention_seconds"}
    assert side._cache
    assert side._cache.length == 64
    side.reset()
    assert set(side.time_few_rows(32, 1)) == {"1", "8", "16"}
    found = side.programs()
    assert {f"o_ffn_ar{rows}" for rows in (8, 16)} | {"lm_head_ar8", "lm_head_ar16"} <= set(found)
    assert found["o_gemv_ffn"]["calls"] == 3 * 2  # warm-up and one, of two layers
    assert set(side.time_batch(64, 2)) == {"1", "8", "16"}
    assert side.first_token_of_pool(120, 80)["cached"] == [0, 64]
    assert set(side.time_pages(64, 2)) == {"pages", "own"}
    assert set(side.time_drafts("prose", 3)) == {"guide", "rows", "lookup", "per_pass", "share"}


def test_where_nothing_can_be_written_nothing_is_measured(tiny, tmp_path, capsys):
    pytest.importorskip("torch")
    assert command.main(["--model", str(tiny), "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: cannot write {tmp_path} (Is a directory); name another file with --out"
    assert command.main(["--model", str(tiny), "--out", "/proc/none/bench.json"]) == 2
    assert "cannot write /proc/none/bench.json (" in capsys.readouterr().err


def test_a_result_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError) as refused:
        command.write_record({"prefill_ratio": 1.0}, tmp_path)
    assert str(refused.value) == f"cannot write {tmp_path} (Is a directory); name another file with --out"
