"""One comparison, limited to an instruction set: compile, load both sides, then rounds in turn.

First the short prompt, on programs compiled for its length; then, in another process of ours, the long one
and decoding. Each measure goes through all its rounds before the next, so that what the other side needs
minutes for can be measured once.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.engine.progress import Reporter, Step, no_step
from aerie.llama32_1b.cache_command import bench_parts, clear
from aerie.runtime.knobs import NPU_LOCK
from aerie.virtual_npu import knobs
from benchmarks.figures import OURS, THEIRS, Samples, record
from benchmarks.instruction_sets import Choice
from benchmarks.machine import load_average
from benchmarks.peaks import MemoryReader
from benchmarks.plan import BRIEF, Plan, cache_bytes_per_position, check_memory, weight_bytes_per_token
from benchmarks.worker import Worker, working

SLOW_S = 60.0
"""A prompt that takes the other side longer than this is measured once."""

FOLDERS = {knobs.HOME.name, knobs.CACHE.name, knobs.KEEP.name, NPU_LOCK.name}
"""Knobs that name a place, which is nobody's business."""


def knobs_set() -> dict[str, str]:
    """Our environment variables that are set, but for folders: a figure is nothing without them."""
    ours = sorted(name for name in os.environ if name.startswith(("VNPU_", "AERIE_")))
    return {name: os.environ[name] for name in ours if name not in FOLDERS and os.environ[name]}


def run(plan: Plan, choice: Choice, work: Path, report: Reporter) -> dict[str, Any]:
    """Measure, and give what build/bench.json holds of an instruction set.

    `work` is a folder for programs and logs, made anew. Raises UserError where a side is not limited.
    """
    check_memory(plan.config, plan.prefill, plan.checkpoint_bytes)
    for part in bench_parts(work):
        clear(part)
    work.mkdir(parents=True, exist_ok=True)
    load_before = load_average()
    comparison = Comparison(plan, choice, work, report)
    with _bar(report, f"measuring {choice.title}", comparison.steps) as comparison.show:
        programs, peaks = comparison.measure()
    least = choice.limits.least if choice.limits else {}
    return record(
        comparison.samples,
        programs,
        peaks,
        least if plan.is_judged else None,
        isa=choice.name,
        title=choice.title,
        limited_by=choice.environment,
        theirs_uses=comparison.instructions,
        measured=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        load_average={"before": load_before, "after": load_average()},
        settings={"rounds": plan.rounds, "tokens": plan.tokens},
        knobs=knobs_set(),
        checkpoint_bytes=plan.checkpoint_bytes,
    )


@contextlib.contextmanager
def _bar(report: Reporter, title: str, total: int) -> Iterator[Step]:
    """A progress bar; where there is none, a line per step."""
    with report.bar(title, total) as step:

        def tell(what: str, done: int) -> None:
            step(what, done)
            if not report.has_bars:
                report.note(f"[{done + 1}/{total}] {what}")

        yield tell


Sides = Mapping[str, Worker]


@dataclass
class Comparison:
    """One run of it: what it measures, and what it has found so far."""

    plan: Plan
    choice: Choice
    work: Path
    report: Reporter
    show: Step = no_step
    samples: Samples = field(init=False)
    instructions: Mapping[str, str] = field(default_factory=dict)
    _done: int = 0

    def __post_init__(self) -> None:
        plan, config = self.plan, self.plan.config
        weights, cache = weight_bytes_per_token(config), cache_bytes_per_position(config)
        self.samples = Samples(plan.checkpoint_bytes, weights, cache, plan.prefills, plan.contexts)

    @property
    def steps(self) -> int:
        """Peaks, compiling, reading, three starts; then the measures, round by round."""
        return 6 + self.plan.rounds * (len(self.plan.prefills) + len(self.plan.contexts))

    def measure(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything, in order; gives the programs' own rates, and what the machine can do at most."""
        self._step("what the machine can do at most")
        with self._working("machine", {}) as worker:
            peaks = worker("peaks")
        self._compile()
        self._step("reading the checkpoint into the page cache")
        read_files(self.plan.files)
        with self._working(THEIRS, {"folder": self._folder}) as theirs:
            self._brief_prompt(theirs)
            with self._ours(self.plan.prefill) as ours:
                self._long_prompt({OURS: ours, THEIRS: theirs})
                for name, worker in ((OURS, ours), (THEIRS, theirs)):
                    self.samples.add(name, "peak_bytes", worker("memory")["peak_bytes"])
                self.samples.add(OURS, "load_and_run", ours("load_and_run")["seconds"])
                return with_rates(ours("programs")), peaks

    def _compile(self) -> None:
        self._step("compiling")
        with self._ours(self.plan.prefill, "compile") as worker:
            self.samples.add(OURS, "compile", worker("compile")["seconds"])
        with self._ours(BRIEF, "compile_brief") as worker:
            worker("compile")

    def _brief_prompt(self, theirs: Worker) -> None:
        """Both sides up to their first token, then prefill of the short prompt."""
        with self._ours(BRIEF, "ours_brief") as ours:
            for name, worker in ((OURS, ours), (THEIRS, theirs)):
                self._step(f"starting {name}")
                self._start(name, worker)
            for number, sides in self._rounds({OURS: ours, THEIRS: theirs}):
                self._step(f"{self._round(number)}: prefill of {BRIEF} tokens")
                self._prefill(sides, BRIEF)

    def _start(self, name: str, worker: Worker) -> None:
        """Load and make the first token, timed from when the process was started."""
        samples = self.samples
        samples.add(name, "load", worker("load")["seconds"])
        if name == THEIRS:
            self.instructions = worker("instructions")
            self.choice.check(self.instructions)
        samples.add(name, "ready", time.perf_counter() - worker.started)
        worker("prefill", length=BRIEF, room=self.plan.room)
        samples.add(name, "cold", time.perf_counter() - worker.started)
        worker("decode", context=BRIEF, tokens=1)

    def _long_prompt(self, sides: Sides) -> None:
        """Prefill of the long prompt, and decoding after it."""
        plan, ours = self.plan, sides[OURS]
        self._step(f"starting {OURS} for {plan.prefill} tokens")
        ours("load")
        once = self._tell_how_long()
        ours("prefill", length=BRIEF, room=plan.room)
        ours("decode", context=BRIEF, tokens=1)
        ours("reset")
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: prefill of {plan.prefill} tokens")
            self._prefill({OURS: ours} if once and number else both, plan.prefill)
        for context in reversed(plan.contexts):
            for number, both in self._rounds(sides):
                self._step(f"{self._round(number)}: decode at context {context}")
                self._decode(both, context)

    def _tell_how_long(self) -> bool:
        """A note on how long the long prompt takes, by what the short one took. Gives whether the other side
        is measured once."""
        plan, samples = self.plan, self.samples
        ours, theirs = (
            samples.median(side, f"prefill_{BRIEF}") * plan.prefill / BRIEF for side in (OURS, THEIRS)
        )
        once = theirs > SLOW_S and plan.rounds > 1
        seconds = ours * (plan.rounds + 1) + theirs * (1 if once else plan.rounds)
        if seconds < SLOW_S:
            return once
        rounds = "one round" if plan.rounds == 1 else f"{plan.rounds} rounds"
        measured = "transformers measured once" if once else rounds
        fewer = "; fewer --rounds take less" if plan.rounds > 1 else ""
        self.report.note(
            f"as {BRIEF} tokens tell, {plan.prefill} take {ours:.0f} s, and {theirs:.0f} s in transformers: "
            f"with {measured} about {seconds / 60:.1f} minutes{fewer}"
        )
        return once

    def _prefill(self, sides: Sides, tokens: int) -> None:
        for name, worker in sides.items():
            answer = worker("prefill", length=tokens, room=self.plan.room)
            self.samples.add(name, f"prefill_{tokens}", answer["seconds"])

    def _decode(self, sides: Sides, context: int) -> None:
        """With readings of memory's bandwidth before, between and after."""
        memory = MemoryReader()
        bandwidths = [memory.bytes_per_second()]
        for name, worker in sides.items():
            answer = worker("decode", context=context, tokens=self.plan.tokens)
            bandwidths.append(memory.bytes_per_second())
            self.samples.add(name, f"decode_{context}", answer.pop("seconds"))
            for part, seconds in answer.items():  # of ours alone
                self.samples.add(name, f"{part.removesuffix('_seconds')}_{context}", seconds)
        self.samples.add("machine", f"bandwidth_{context}", max(bandwidths))

    def _rounds(self, sides: Sides) -> Iterator[tuple[int, Sides]]:
        """The rounds; who goes first changes from one to the next."""
        for number in range(self.plan.rounds):
            yield number, dict(list(sides.items())[:: -1 if number % 2 else 1])

    def _round(self, number: int) -> str:
        return f"round {number + 1} of {self.plan.rounds}"

    def _step(self, what: str) -> None:
        self.show(what, self._done)
        self._done += 1

    @property
    def _folder(self) -> str:
        return str(self.plan.folder.resolve())

    def _ours(self, seq_len: int, log: str = OURS) -> contextlib.AbstractContextManager[Worker]:
        programs = str((self.work / "programs").resolve())
        return self._working(OURS, {"folder": self._folder, "seq_len": seq_len, "cache_dir": programs}, log)

    def _working(
        self, side: str, arguments: Mapping[str, Any], log: str = ""
    ) -> contextlib.AbstractContextManager[Worker]:
        """A side's process, limited to the instruction set before it starts."""
        threads = str(knobs.threads())
        cache = str((self.work / "vnpu").resolve())
        env = {"VNPU_THREADS": threads, "OMP_NUM_THREADS": threads, "VNPU_CACHE": cache}
        env |= self.choice.environment
        return working(side, arguments, self.work / f"{log or side}.log", env)


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
