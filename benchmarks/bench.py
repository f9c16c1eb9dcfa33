"""One comparison, limited to an instruction set: compile, load both sides, then rounds in turn.

First short prompts, which tell how long the long ones will take, with decoding at the end of some; then what
is asked of our side alone. Each measure goes through all its rounds before the next, so that what takes the
other side minutes can be measured once.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.cli.cache_command import bench_parts, clear
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import knobs
from aerie.engine.blocks import GUIDE, ROWS
from aerie.engine.progress import Reporter, Step, no_step
from aerie.runtime.knobs import NPU_LOCK
from benchmarks.figures import CROWD, OURS, THEIRS, Samples, record, with_rates
from benchmarks.http import both_ways, costs, crowd
from benchmarks.instruction_sets import Choice
from benchmarks.machine import load_average
from benchmarks.peaks import MemoryReader
from benchmarks.plan import (
    BRIEF,
    CROWD_TOKENS,
    FIRST_SAID,
    HTTP_TIMES,
    HTTP_TOKENS,
    POOLED_NEW,
    SAID,
    Plan,
    attention_flops,
    cache_bytes_per_position,
    check_memory,
    weight_bytes_per_token,
)
from benchmarks.sides import WARM_UP
from benchmarks.worker import Worker, working

SLOW_S = 60.0
"""A prompt that takes the other side longer than this is measured once."""

READINGS = 2
"""Of memory beside a token: one of either kind."""

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
    check_memory(plan.config, plan.checkpoint_bytes)
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
        attention, prompts = attention_flops(config, plan.longest), plan.prompts
        about = (plan.checkpoint_bytes, weights, cache, attention, prompts)
        self.samples = Samples(*about, sorted({BRIEF, plan.longest}), plan.contexts, plan.texts)

    @property
    def steps(self) -> int:
        """Peaks, compiling, reading, two starts, few rows, programs by themselves, two servers; a warm-up for
        each prompt; then the measures, round by round."""
        prompts, contexts = len(self.plan.prompts), len(self.plan.contexts)
        measures = prompts + 6 + 2 * contexts + len(self.plan.texts)
        return 9 + prompts + self.plan.rounds * measures

    def measure(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Everything, in order; gives the programs' own rates, and what the machine can do at most."""
        self._step("what the machine can do at most")
        with self._working("machine", {}) as worker:
            peaks = worker("peaks")
        self._compile()
        self._step("reading the checkpoint into the page cache")
        read_files(self.plan.files)
        with self._ours() as ours:
            self._start(OURS, ours)
            with self._working(THEIRS, {"folder": self._folder}) as theirs:
                self._start(THEIRS, theirs)
                programs = with_rates(self._compare({OURS: ours, THEIRS: theirs}))
        self._over_http()
        return programs, peaks

    def _compile(self) -> None:
        self._step(f"compiling the {self.plan.program_count} programs of the default set")
        with self._ours("compile") as worker:
            self.samples.add(OURS, "compile", worker("compile")["seconds"])

    def _compare(self, sides: Sides) -> dict[str, Any]:
        """All that is measured once both sides are there; gives what ours says of its programs."""
        plan, ours = self.plan, sides[OURS]
        programs: dict[str, Any] = {}
        for tokens in plan.prompts:
            self._prompts(sides, tokens)
            programs = ours("programs")
            if tokens == plan.longest:
                self._shared(ours)
            ours("reset")
            if tokens in plan.contexts:
                self._decoding(sides, tokens)
        programs = {**programs, **ours("programs")}
        for name, worker in sides.items():
            self.samples.add(name, "peak_bytes", worker("memory")["peak_bytes"])
        self._of_ours_alone(ours)
        self._many(sides)
        self._guesses(ours)
        return {**programs, **ours("flash_attention", length=plan.longest)}

    def _start(self, name: str, worker: Worker) -> None:
        """Load and make the first token, timed from when the process was started."""
        self._step(f"starting {name}")
        samples, started = self.samples, worker.started
        samples.add(name, "load", worker("load")["seconds"])
        if name == THEIRS:
            self.instructions = worker("instructions")
            self.choice.check(self.instructions)
        samples.add(name, "ready", time.perf_counter() - started)
        worker("first_token", length=BRIEF)
        samples.add(name, "cold", time.perf_counter() - started)

    def _prompts(self, sides: Sides, tokens: int) -> None:
        """Rounds of the first token of a prompt, after one that nobody counts; one in all of the other side
        where it takes long."""
        once = tokens > BRIEF and self._takes(THEIRS, tokens) > SLOW_S
        self._step(f"{tokens} tokens: one that is not counted")
        for worker in [sides[OURS]] if once else sides.values():
            worker("first_token", length=tokens)
        sides[OURS]("reset")
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: first token of {tokens}")
            for name, worker in both.items():
                if name == OURS or not (once and number):
                    self.samples.add(name, f"first_{tokens}", worker("first_token", length=tokens)["seconds"])
        if tokens == BRIEF:
            self._tell_how_long()

    def _takes(self, side: str, tokens: int) -> float:
        """Seconds that a prompt will take, by what the short one took."""
        return self.samples.median(side, f"first_{BRIEF}") * tokens / BRIEF

    def _tell_how_long(self) -> None:
        """A note on how long the prompts to come will take, where that is long."""
        longest, rounds = self.plan.longest, self.plan.rounds
        longer = [tokens for tokens in self.plan.prompts if tokens > BRIEF]
        once = [tokens for tokens in longer if self._takes(THEIRS, tokens) > SLOW_S]
        seconds = sum(self._takes(OURS, tokens) * (rounds + 1) for tokens in longer)
        seconds += sum(
            self._takes(THEIRS, tokens) * (1 if tokens in once else rounds + 1) for tokens in longer
        )
        if seconds < SLOW_S:
            return
        measured = ", transformers measured once where that is over a minute" if once else ""
        self.report.note(
            f"as {BRIEF} tokens tell, {longest} take {self._takes(OURS, longest):.0f} s, and "
            f"{self._takes(THEIRS, longest):.0f} s in transformers; all longer prompts about "
            f"{seconds / 60:.1f} minutes{measured}" + ("; fewer --rounds take less" if rounds > 1 else "")
        )

    def _shared(self, ours: Worker) -> None:
        """The longest prompt, where the conversation has had most of it."""
        longest, shared = self.plan.longest, self.plan.shared
        ours("first_token", length=longest, shared=shared)
        for number in range(self.plan.rounds):
            self._step(f"{self._round(number)}: first token of {longest}, {shared} of them known")
            answer = ours("first_token", length=longest, shared=shared)
            assert answer["computed"] == longest - shared, answer
            self.samples.add(OURS, "shared", answer["seconds"])

    def _decoding(self, sides: Sides, context: int) -> None:
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: decode at context {context}")
            self._decode(both, context)

    def _of_ours_alone(self, ours: Worker) -> None:
        """Decoding in the family rows beside guide, passes of few rows, calls of programs by themselves."""
        plan = self.plan
        for context in reversed(plan.contexts):
            ours("first_token", length=context)
            for number in range(plan.rounds):
                self._step(f"{self._round(number)}: decode in rows at context {context}")
                for family in (GUIDE, ROWS):
                    answer = ours("decode", context=context, tokens=plan.tokens, family=family)
                    self.samples.add(OURS, f"{family}_{context}", answer["seconds"])
        self._step(f"passes of few rows at context {plan.few_rows_context}")
        for _ in range(plan.rounds):
            for rows, seconds in ours("few_rows", context=plan.few_rows_context, times=plan.tokens).items():
                self.samples.add(OURS, f"few_rows_{rows}", seconds)
        self._step("programs by themselves")
        self.samples.add(OURS, "load_and_run", ours("load_and_run")["seconds"])

    def _many(self, sides: Sides) -> None:
        """Requests together, on both sides; of ours, a prompt that is mostly in the pool, and what pages
        take."""
        plan, ours = self.plan, sides[OURS]
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: requests together at context {plan.few_rows_context}")
            for name, worker in both.items():
                found = worker("together", context=plan.few_rows_context, tokens=plan.tokens)
                for requests, seconds in found.items():
                    self.samples.add(name, f"together_{requests}", seconds)
        ours("first_token_of_pool", length=plan.pooled, shared=plan.pooled - POOLED_NEW)
        for number in range(plan.rounds):
            self._step(
                f"{self._round(number)}: first token of {plan.pooled}, all but {POOLED_NEW} in the pool"
            )
            found = ours("first_token_of_pool", length=plan.pooled, shared=plan.pooled - POOLED_NEW)
            for name in ("new", "shared"):
                self.samples.add(OURS, f"pool_{name}", found[name])
        for number in range(plan.rounds):
            self._step(f"{self._round(number)}: decode at context {plan.longest}, from pages")
            for name, seconds in ours("paging", context=plan.longest, tokens=plan.tokens).items():
                self.samples.add(OURS, f"decode_{name}", seconds)

    def _guesses(self, ours: Worker) -> None:
        """Answers of ours that are texts, with guesses by lookup and without."""
        for text in self.plan.texts[:1]:
            ours("guesses", text=text, tokens=FIRST_SAID)  # loads the programs
        for text, number in itertools.product(self.plan.texts, range(self.plan.rounds)):
            self._step(f"{self._round(number)}: {text.replace('_', ' ')}, with guesses and without")
            for name, value in ours("guesses", text=text, tokens=SAID).items():
                self.samples.add(OURS, f"{text}_{name}", value)

    def _over_http(self) -> None:
        """What a server costs beside the engine alone: to the first token and by token with the demo, whose
        passes are short enough for it to be seen; in a crowd with the model itself."""
        plan = self.plan
        self._step("starting a server of the demo, and its engine")
        with both_ways(DEMO_FOLDER, self.work, self._programs, self._env, "demo_") as ways:
            costs(ways, 0, HTTP_TOKENS)
            for number in range(plan.rounds):
                self._step(f"{self._round(number)}: answers over HTTP, one by one")
                for time_of_round in range(1, 1 + HTTP_TIMES):
                    found = costs(ways, number * HTTP_TIMES + time_of_round, HTTP_TOKENS)
                    self.samples.add(OURS, "http_first", found.first_s)
                    self.samples.add(OURS, "http_token", found.token_s)
        self._step("starting a server of the model, and its engine")
        with both_ways(plan.folder, self.work, self._programs, self._env) as ways:
            crowd(ways, 0, WARM_UP)
            for number in range(plan.rounds):
                self._step(f"{self._round(number)}: answers over HTTP, {CROWD} at once")
                together = crowd(ways, number + 1, CROWD_TOKENS)
                self.samples.add(OURS, "http_together", together.http_s / CROWD_TOKENS)
                self.samples.add(OURS, "engine_together", together.engine_s / CROWD_TOKENS)

    def _decode(self, sides: Sides, context: int) -> None:
        """With readings of memory's bandwidth before, between and after; at the longest, in turn as well."""
        memory = MemoryReader()
        bandwidths = [memory.bytes_per_second()]
        for name, worker in sides.items():
            answer = worker("decode", context=context, tokens=self.plan.tokens)
            bandwidths.append(memory.bytes_per_second())
            self.samples.add(name, f"decode_{context}", answer.pop("seconds"))
            for part, seconds in answer.items():  # of ours alone
                self.samples.add(name, f"{part.removesuffix('_seconds')}_{context}", seconds)
        self.samples.add("machine", f"bandwidth_{context}", max(bandwidths))
        if context == self.plan.contexts[-1]:
            self._in_turn_with_memory(sides[OURS], memory, context)

    def _in_turn_with_memory(self, ours: Worker, memory: MemoryReader, context: int) -> None:
        """Tokens of ours, each between two readings: what memory gives changes by the second where others use
        the machine too."""
        before = memory.bytes_per_second(READINGS)
        for _ in range(self.plan.tokens):
            answer = ours("decode", context=context, tokens=1)
            after = memory.bytes_per_second(READINGS)
            self.samples.add("machine", f"beside_{context}", (before + after) / 2)
            for part in ("programs", "attention"):
                self.samples.add(OURS, f"{part}_beside_{context}", answer[f"{part}_seconds"])
            before = after

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

    def _ours(self, log: str = OURS) -> contextlib.AbstractContextManager[Worker]:
        return self._working(OURS, {"folder": self._folder, "cache_dir": str(self._programs)}, log)

    @property
    def _programs(self) -> Path:
        return (self.work / "programs").resolve()

    def _working(
        self, side: str, arguments: Mapping[str, Any], log: str = ""
    ) -> contextlib.AbstractContextManager[Worker]:
        """A side's process, limited to the instruction set before it starts."""
        return working(side, arguments, self.work / f"{log or side}.log", self._env)

    @property
    def _env(self) -> dict[str, str]:
        threads = str(knobs.thread_count())
        cache = str((self.work / "vnpu").resolve())
        env = {"VNPU_THREADS": threads, "OMP_NUM_THREADS": threads, "VNPU_CACHE": cache}
        return env | self.choice.environment


def read_files(files: Sequence[Path]) -> None:
    """Read the weights once, so that neither side waits for the disk."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            piece = bytearray(1 << 24)
            while file.readinto(piece):
                pass
