"""One run of the comparison: compile, load both sides, then rounds in turn."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.llama32_1b.cache_command import bench_parts, clear
from aerie.llama32_1b.checkpoint import open_checkpoint
from aerie.llama32_1b.config import LlamaConfig
from aerie.llama32_1b.errors import UserError
from aerie.llama32_1b.footprint import footprint, require
from aerie.llama32_1b.progress import Reporter, Step
from aerie.llama32_1b.synthetic.shape import BF16_BYTES, LLAMA_3_2_1B
from aerie.llama32_1b.weights import EMBED, expected_shapes
from aerie.multi_launch_builder.shapes import SEQ_LEN_STEP
from aerie.runtime.knobs import NPU_LOCK
from aerie.runtime.memory import size
from aerie.verify.reference import reference_bytes
from aerie.virtual_npu import knobs
from benchmarks.figures import OURS, THEIRS, Samples, record
from benchmarks.machine import describe, load_average
from benchmarks.peaks import MemoryReader, measure_peaks
from benchmarks.sides import WARM_UP
from benchmarks.worker import Worker, working

LONGEST = 2048
SHORT_CONTEXT = 128

STEPS_BEFORE = 4

FOLDERS = {knobs.HOME.name, knobs.CACHE.name, knobs.KEEP.name, NPU_LOCK.name}
"""Knobs that name a place, which is nobody's business."""


@dataclass(frozen=True)
class Plan:
    """What to measure: rounds of a prompt of `prefill` tokens and `tokens` decoded at each of `contexts`."""

    folder: Path
    config: LlamaConfig
    files: Sequence[Path]
    rounds: int
    tokens: int
    prefill: int
    contexts: tuple[int, ...]

    @property
    def checkpoint_bytes(self) -> int:
        """Of the files with weights."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def room(self) -> int:
        """Positions after the prompt that will be decoded, the warm-up included."""
        return self.tokens + WARM_UP

    @property
    def steps_of_round(self) -> int:
        """The first token, prefill, and decode at each context."""
        return 2 + len(self.contexts)


def make_plan(folder: Path, rounds: int, tokens: int) -> Plan:
    """The plan for a checkpoint: 2048 tokens, or as many as the model has positions for.

    Raises CheckpointError for one that is not whole, and UserError for one with too few positions.
    """
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    positions = config.context - tokens - WARM_UP
    if positions < SHORT_CONTEXT:
        needed = SHORT_CONTEXT + tokens + WARM_UP
        raise UserError(
            f"{folder} has {config.context} positions; measuring {tokens} tokens after a "
            f"context of {SHORT_CONTEXT} takes {needed}: measure fewer --tokens, or another model"
        )
    longest = min(LONGEST, positions) // SEQ_LEN_STEP * SEQ_LEN_STEP
    contexts = tuple(sorted({SHORT_CONTEXT, longest}))
    return Plan(folder, config, checkpoint.weights.files, rounds, tokens, longest, contexts)


def weight_bytes_per_token(config: LlamaConfig) -> int:
    """Bytes of the weights that a decoded token needs: each once, and one row of an untied embedding."""
    shapes = dict(expected_shapes(config))
    if not config.tie_word_embeddings:
        del shapes[EMBED]
    return BF16_BYTES * sum(math.prod(shape) for shape in shapes.values())


def knobs_set() -> dict[str, str]:
    """Our environment variables that are set, but for folders: a figure is nothing without them."""
    ours = sorted(name for name in os.environ if name.startswith(("VNPU_", "AERIE_")))
    return {name: os.environ[name] for name in ours if name not in FOLDERS and os.environ[name]}


def check_memory(config: LlamaConfig, seq_len: int, nbytes: int) -> None:
    """TooLittleMemoryError without room for both sides, and the checkpoint's `nbytes` in the page cache."""
    ours, theirs = footprint(config, seq_len).total, reference_bytes(config, BF16_BYTES)
    parts = f" (ours {size(ours)}, theirs {size(theirs)}, the checkpoint in the page cache {size(nbytes)})"
    require(ours + theirs + nbytes, "the comparison", ["measure the small one with MODEL=demo"], parts)


def run(plan: Plan, model: str, work: Path, report: Reporter) -> tuple[dict[str, Any], Samples]:
    """Measure, and give what build/bench.json holds. `work` is a folder for programs and logs, made anew."""
    nbytes = plan.checkpoint_bytes
    check_memory(plan.config, plan.prefill, nbytes)
    for part in bench_parts(work):
        clear(part)
    work.mkdir(parents=True, exist_ok=True)
    samples = Samples(nbytes, weight_bytes_per_token(plan.config), plan.prefill, plan.contexts)
    load_before = load_average()
    with _bar(report, STEPS_BEFORE + plan.steps_of_round * plan.rounds) as step:
        programs = _measure(plan, work, samples, step)
        peaks = measure_peaks()
    about = {
        "model": model,
        "machine": describe(),
        "peaks": peaks,
        "load_average": {"before": load_before, "after": load_average()},
        "settings": {"rounds": plan.rounds, "tokens": plan.tokens, "prefill_tokens": plan.prefill},
        "knobs": knobs_set(),
        "checkpoint_bytes": nbytes,
        "programs": programs,
    }
    full_size = plan.config.shape == LLAMA_3_2_1B.shape
    judged = full_size and plan.config.num_hidden_layers == LLAMA_3_2_1B.num_hidden_layers
    return record(samples, judged=judged, **about), samples


@contextlib.contextmanager
def _bar(report: Reporter, total: int) -> Iterator[Step]:
    """A progress bar; where there is none, a line per step."""
    with report.bar("measuring", total) as step:

        def tell(what: str, done: int) -> None:
            step(what, done)
            if not report.has_bars:
                report.note(f"[{done + 1}/{total}] {what}")

        yield tell


def _measure(plan: Plan, work: Path, samples: Samples, step: Step) -> dict[str, Any]:
    """Everything, in order; gives the programs' own times."""
    threads = str(knobs.threads())
    env = {"VNPU_THREADS": threads, "OMP_NUM_THREADS": threads, "VNPU_CACHE": str((work / "vnpu").resolve())}
    folder = str(plan.folder.resolve())
    theirs: dict[str, Any] = {"folder": folder}
    ours: dict[str, Any] = {
        "folder": folder,
        "seq_len": plan.prefill,
        "cache_dir": str((work / "programs").resolve()),
    }
    step("compiling", 0)
    with working(OURS, ours, work / "compile.log", env) as worker:
        samples.add(OURS, "compile", worker("compile")["seconds"])
    step("reading the checkpoint into the page cache", 1)
    read_files(plan.files)
    with contextlib.ExitStack() as open_sides:
        sides = {}
        for number, (name, arguments) in enumerate({OURS: ours, THEIRS: theirs}.items(), start=2):
            step(f"starting {name}", number)
            sides[name] = open_sides.enter_context(working(name, arguments, work / f"{name}.log", env))
            _start(plan, samples, name, sides[name])
        for number in range(plan.rounds):
            _round(plan, samples, sides, number, step)
        for name, worker in sides.items():
            samples.add(name, "peak_bytes", worker("memory")["peak_bytes"])
        samples.add(OURS, "load_and_run", sides[OURS]("load_and_run")["seconds"])
        return with_rates(sides[OURS]("programs"))


def _start(plan: Plan, samples: Samples, name: str, worker: Worker) -> None:
    """Load and make the first token, timed from when the process was started; then warm up."""
    samples.add(name, "load", worker("load")["seconds"])
    samples.add(name, "ready", time.perf_counter() - worker.started)
    worker("prefill", length=SHORT_CONTEXT, room=plan.room)
    samples.add(name, "cold", time.perf_counter() - worker.started)
    worker("decode", context=SHORT_CONTEXT, tokens=1)
    if name == OURS:
        worker("reset")


def _round(plan: Plan, samples: Samples, sides: Mapping[str, Worker], number: int, step: Step) -> None:
    """Both sides, measure by measure; who goes first changes from round to round."""
    order = list(sides.items()) if number % 2 == 0 else list(sides.items())[::-1]
    done = STEPS_BEFORE + plan.steps_of_round * number
    where = f"round {number + 1} of {plan.rounds}"
    step(f"{where}: first token", done)
    for name, worker in order:
        samples.add(name, "warm", worker("prefill", length=SHORT_CONTEXT, room=plan.room)["seconds"])
    step(f"{where}: prefill", done + 1)
    for name, worker in order:
        samples.add(name, "prefill", worker("prefill", length=plan.prefill, room=plan.room)["seconds"])
    for offset, context in enumerate(reversed(plan.contexts), start=2):
        step(f"{where}: decode at context {context}", done + offset)
        memory = MemoryReader()
        bandwidths = [memory.bytes_per_second()]
        for name, worker in order:
            _decode(samples, name, worker, context, plan.tokens)
            bandwidths.append(memory.bytes_per_second())
        samples.add("machine", f"bandwidth_{context}", max(bandwidths))


def _decode(samples: Samples, name: str, worker: Worker, context: int, tokens: int) -> None:
    answer = worker("decode", context=context, tokens=tokens)
    samples.add(name, f"decode_{context}", answer["seconds"])
    if name == OURS:
        samples.add(name, f"python_{context}", answer["python_seconds"])
        samples.add(name, f"call_overhead_{context}", answer["call_overhead_seconds"])


def with_rates(programs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The programs' times with what they make of it: milliseconds a call, GFLOP/s, GB/s."""
    return {
        name: {
            "calls": times["calls"],
            "ms": 1e3 * times["seconds"],
            "gflop_per_s": times["flops"] / times["seconds"] / 1e9,
            "gb_per_s": times["nbytes"] / times["seconds"] / 1e9,
        }
        for name, times in programs.items()
    }


def read_files(files: Sequence[Path]) -> None:
    """Read the weights once, so that neither side waits for the disk."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            piece = bytearray(1 << 24)
            while file.readinto(piece):
                pass
