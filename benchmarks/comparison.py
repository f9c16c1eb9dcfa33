"""One comparison, limited to an instruction set: compile, load both sides, then rounds in turn.

Short prompts come first; they tell how long the long ones will take. Decode follows at the end of some
prompts, then the measures of Aerie alone. Each measure runs all its rounds before the next one, so that a
measure that takes transformers minutes can run once.
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

from aerie.cli.cache_command import bench_sections, clear
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import knobs
from aerie.engine.reporter import OnProgress, Reporter, no_progress
from aerie.engine.variant_set import GUIDE, ROWS
from aerie.runtime.knobs import NPU_LOCK
from benchmarks.figures import CONCURRENT_CLIENTS, OURS, THEIRS, Samples, add_rates, record
from benchmarks.http import measure_concurrent, measure_overhead, open_both
from benchmarks.instruction_sets import SelectedSet
from benchmarks.machine import load_average
from benchmarks.peaks import MemoryReader
from benchmarks.plan import (
    BRIEF_TOKENS,
    CONCURRENT_TOKENS,
    HTTP_TIMES,
    HTTP_TOKENS,
    POOLED_NEW_TOKENS,
    TEXT_TOKENS,
    TEXT_WARM_UP_TOKENS,
    Plan,
    attention_flops,
    cache_bytes_per_position,
    check_memory,
    weight_bytes_per_token,
)
from benchmarks.sides import WARM_UP
from benchmarks.worker import SideProcess, running_worker

SLOW_S = 60.0
"""A prompt that takes transformers longer than this is measured once."""

MEMORY_READS = 2
"""Memory reads beside a token: one of either kind."""

FOLDER_VARIABLES = {knobs.HOME.name, knobs.CACHE.name, knobs.KEEP.name, NPU_LOCK.name}
"""Variables that name folders, which are left out of the record."""


def environment_overrides() -> dict[str, str]:
    """The variables of Aerie that are set, without those that name folders."""
    ours = sorted(name for name in os.environ if name.startswith(("VNPU_", "AERIE_")))
    return {name: os.environ[name] for name in ours if name not in FOLDER_VARIABLES and os.environ[name]}


def run(plan: Plan, selected: SelectedSet, work: Path, report: Reporter) -> dict[str, Any]:
    """Run the comparison, and return the entry of build/bench.json for an instruction set.

    work: a folder for programs and logs, cleared first. Raises UserError if a side is not limited to the set.
    """
    check_memory(plan.config, plan.checkpoint_bytes)
    for section in bench_sections(work):
        clear(section)
    work.mkdir(parents=True, exist_ok=True)
    load_before = load_average()
    comparison_run = ComparisonRun(plan, selected, work, report)
    with _bar(report, f"measuring {selected.title}", comparison_run.steps) as comparison_run.on_progress:
        programs, peaks = comparison_run.measure()
    targets = selected.limits.targets if selected.limits else {}
    return record(
        comparison_run.samples,
        programs,
        peaks,
        targets if plan.has_targets else None,
        isa=selected.name,
        title=selected.title,
        limited_by=selected.environment,
        theirs_uses=comparison_run.instructions,
        measured=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        load_average={"before": load_before, "after": load_average()},
        settings={"rounds": plan.rounds, "tokens": plan.tokens},
        knobs=environment_overrides(),
        checkpoint_bytes=plan.checkpoint_bytes,
    )


@contextlib.contextmanager
def _bar(report: Reporter, title: str, total: int) -> Iterator[OnProgress]:
    """A progress bar; without a terminal, a line per step."""
    with report.bar(title, total) as step:

        def on_step(description: str, done: int) -> None:
            step(description, done)
            if not report.has_bars:
                report.note(f"[{done + 1}/{total}] {description}")

        yield on_step


Sides = Mapping[str, SideProcess]


@dataclass
class ComparisonRun:
    """One comparison in progress: what it measures, and its samples so far."""

    plan: Plan
    selected: SelectedSet
    work: Path
    report: Reporter
    on_progress: OnProgress = no_progress
    samples: Samples = field(init=False)
    instructions: Mapping[str, str] = field(default_factory=dict)
    _done: int = 0

    def __post_init__(self) -> None:
        plan, config = self.plan, self.plan.config
        weights, cache = weight_bytes_per_token(config), cache_bytes_per_position(config)
        attention, prompts = attention_flops(config, plan.longest), plan.prompts
        about = (plan.checkpoint_bytes, weights, cache, attention, prompts)
        self.samples = Samples(*about, sorted({BRIEF_TOKENS, plan.longest}), plan.contexts, plan.texts)

    @property
    def steps(self) -> int:
        """Number of steps of the progress bar: peaks, compiling, reading, two starts, few rows, single
        programs, two servers; a warm-up for each prompt; then the measures, round by round."""
        prompts, contexts = len(self.plan.prompts), len(self.plan.contexts)
        measures = prompts + 6 + 2 * contexts + len(self.plan.texts)
        return 9 + prompts + self.plan.rounds * measures

    def measure(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Measure everything in order. Returns the programs' rates and the peaks of the machine."""
        self._step("what the machine can do at most")
        with self._running_side("machine", {}) as worker:
            peaks = worker("peaks")
        self._compile()
        self._step("reading the checkpoint into the page cache")
        read_files(self.plan.files)
        with self._ours() as ours:
            self._start(OURS, ours)
            with self._running_side(THEIRS, {"folder": self._folder}) as theirs:
                self._start(THEIRS, theirs)
                programs = add_rates(self._compare({OURS: ours, THEIRS: theirs}))
        self._over_http()
        return programs, peaks

    def _compile(self) -> None:
        self._step(f"compiling the {self.plan.program_count} programs of the default set")
        with self._ours("compile") as worker:
            self.samples.add(OURS, "compile", worker("compile")["seconds"])

    def _compare(self, sides: Sides) -> dict[str, Any]:
        """The measures that need both sides. Returns the program times of Aerie."""
        plan, ours = self.plan, sides[OURS]
        programs: dict[str, Any] = {}
        for tokens in plan.prompts:
            self._prompts(sides, tokens)
            programs = ours("programs")
            if tokens == plan.longest:
                self._shared_prompt(ours)
            ours("reset")
            if tokens in plan.contexts:
                self._decoding(sides, tokens)
        programs = {**programs, **ours("programs")}
        for name, worker in sides.items():
            self.samples.add(name, "peak_bytes", worker("memory")["peak_bytes"])
        self._aerie_alone(ours)
        self._together(sides)
        self._drafts(ours)
        return {**programs, **ours("flash_attention", length=plan.longest)}

    def _start(self, name: str, worker: SideProcess) -> None:
        """Load and generate the first token, timed from the start of the process."""
        self._step(f"starting {name}")
        samples, started = self.samples, worker.started
        samples.add(name, "load", worker("load")["seconds"])
        if name == THEIRS:
            self.instructions = worker("instructions")
            self.selected.check(self.instructions)
        samples.add(name, "ready", time.perf_counter() - started)
        worker("first_token", length=BRIEF_TOKENS)
        samples.add(name, "cold", time.perf_counter() - started)

    def _prompts(self, sides: Sides, tokens: int) -> None:
        """Rounds of the first token of a prompt, after one warm-up; transformers runs once if it is slow."""
        once = tokens > BRIEF_TOKENS and self._takes(THEIRS, tokens) > SLOW_S
        self._step(f"{tokens} tokens: one that is not counted")
        for worker in [sides[OURS]] if once else sides.values():
            worker("first_token", length=tokens)
        sides[OURS]("reset")
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: first token of {tokens}")
            for name, worker in both.items():
                if name == OURS or not (once and number):
                    self.samples.add(name, f"first_{tokens}", worker("first_token", length=tokens)["seconds"])
        if tokens == BRIEF_TOKENS:
            self._note_duration()

    def _takes(self, side: str, tokens: int) -> float:
        """Estimated seconds of a prompt, from the time of the short one."""
        return self.samples.median(side, f"first_{BRIEF_TOKENS}") * tokens / BRIEF_TOKENS

    def _note_duration(self) -> None:
        """Print how long the remaining prompts will take, if that is long."""
        longest, rounds = self.plan.longest, self.plan.rounds
        longer = [tokens for tokens in self.plan.prompts if tokens > BRIEF_TOKENS]
        once = [tokens for tokens in longer if self._takes(THEIRS, tokens) > SLOW_S]
        seconds = sum(self._takes(OURS, tokens) * (rounds + 1) for tokens in longer)
        seconds += sum(
            self._takes(THEIRS, tokens) * (1 if tokens in once else rounds + 1) for tokens in longer
        )
        if seconds < SLOW_S:
            return
        measured = ", transformers measured once where that is over a minute" if once else ""
        self.report.note(
            f"as {BRIEF_TOKENS} tokens tell, {longest} take {self._takes(OURS, longest):.0f} s, and "
            f"{self._takes(THEIRS, longest):.0f} s in transformers; all longer prompts about "
            f"{seconds / 60:.1f} minutes{measured}" + ("; fewer --rounds take less" if rounds > 1 else "")
        )

    def _shared_prompt(self, ours: SideProcess) -> None:
        """The longest prompt, when the conversation before it has most of its tokens."""
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

    def _aerie_alone(self, ours: SideProcess) -> None:
        """Measures of Aerie alone: decode in `rows` beside `guide`, passes of few rows, calls of single
        programs."""
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
            for rows, seconds in ours(
                "time_few_rows", context=plan.few_rows_context, times=plan.tokens
            ).items():
                self.samples.add(OURS, f"few_rows_{rows}", seconds)
        self._step("programs by themselves")
        self.samples.add(OURS, "load_and_run", ours("load_and_run")["seconds"])

    def _together(self, sides: Sides) -> None:
        """Requests together on both sides; of Aerie alone, a prompt that is mostly in the pool, and the cost
        of pages."""
        plan, ours = self.plan, sides[OURS]
        for number, both in self._rounds(sides):
            self._step(f"{self._round(number)}: requests together at context {plan.few_rows_context}")
            for name, worker in both.items():
                seconds_by_requests = worker("time_batch", context=plan.few_rows_context, tokens=plan.tokens)
                for requests, seconds in seconds_by_requests.items():
                    self.samples.add(name, f"together_{requests}", seconds)
        ours("first_token_of_pool", length=plan.pooled, shared=plan.pooled - POOLED_NEW_TOKENS)
        for number in range(plan.rounds):
            self._step(
                f"{self._round(number)}: first token of {plan.pooled}, all but {POOLED_NEW_TOKENS} in "
                "the pool"
            )
            seconds_by_requests = ours(
                "first_token_of_pool", length=plan.pooled, shared=plan.pooled - POOLED_NEW_TOKENS
            )
            for name in ("new", "shared"):
                self.samples.add(OURS, f"pool_{name}", seconds_by_requests[name])
        for number in range(plan.rounds):
            self._step(f"{self._round(number)}: decode at context {plan.longest}, from pages")
            for name, seconds in ours("time_pages", context=plan.longest, tokens=plan.tokens).items():
                self.samples.add(OURS, f"decode_{name}", seconds)

    def _drafts(self, ours: SideProcess) -> None:
        """Outputs of Aerie that replay texts, with and without prompt lookup."""
        for text in self.plan.texts[:1]:
            ours("time_drafts", text=text, tokens=TEXT_WARM_UP_TOKENS)  # loads the programs
        for text, number in itertools.product(self.plan.texts, range(self.plan.rounds)):
            self._step(f"{self._round(number)}: {text.replace('_', ' ')}, with drafts and without")
            for name, value in ours("time_drafts", text=text, tokens=TEXT_TOKENS).items():
                self.samples.add(OURS, f"{text}_{name}", value)

    def _over_http(self) -> None:
        """The cost of the server over the engine: first token and time per token with the demo, whose passes
        are short enough for it to show, and throughput with the model itself."""
        plan = self.plan
        self._step("starting a server of the demo, and its engine")
        with open_both(DEMO_FOLDER, self.work, self._programs, self._env, "demo_") as endpoints:
            measure_overhead(endpoints, 0, HTTP_TOKENS)
            for number in range(plan.rounds):
                self._step(f"{self._round(number)}: answers over HTTP, one by one")
                for time_of_round in range(1, 1 + HTTP_TIMES):
                    overhead = measure_overhead(endpoints, number * HTTP_TIMES + time_of_round, HTTP_TOKENS)
                    self.samples.add(OURS, "http_first", overhead.first_s)
                    self.samples.add(OURS, "http_token", overhead.token_s)
        self._step("starting a server of the model, and its engine")
        with open_both(plan.folder, self.work, self._programs, self._env) as endpoints:
            measure_concurrent(endpoints, 0, WARM_UP)
            for number in range(plan.rounds):
                self._step(f"{self._round(number)}: answers over HTTP, {CONCURRENT_CLIENTS} at once")
                times = measure_concurrent(endpoints, number + 1, CONCURRENT_TOKENS)
                self.samples.add(OURS, "http_together", times.http_s / CONCURRENT_TOKENS)
                self.samples.add(OURS, "engine_together", times.engine_s / CONCURRENT_TOKENS)

    def _decode(self, sides: Sides, context: int) -> None:
        """Decode with memory reads before, between and after; at the longest context also in turn."""
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

    def _in_turn_with_memory(self, ours: SideProcess, memory: MemoryReader, context: int) -> None:
        """Time single tokens of Aerie, each between two memory reads: bandwidth changes by the second if
        others use the machine."""
        before = memory.bytes_per_second(MEMORY_READS)
        for _ in range(self.plan.tokens):
            answer = ours("decode", context=context, tokens=1)
            after = memory.bytes_per_second(MEMORY_READS)
            self.samples.add("machine", f"beside_{context}", (before + after) / 2)
            for part in ("programs", "attention"):
                self.samples.add(OURS, f"{part}_beside_{context}", answer[f"{part}_seconds"])
            before = after

    def _rounds(self, sides: Sides) -> Iterator[tuple[int, Sides]]:
        """Yield the rounds; the order of the sides alternates."""
        for number in range(self.plan.rounds):
            yield number, dict(list(sides.items())[:: -1 if number % 2 else 1])

    def _round(self, number: int) -> str:
        return f"round {number + 1} of {self.plan.rounds}"

    def _step(self, what: str) -> None:
        self.on_progress(what, self._done)
        self._done += 1

    @property
    def _folder(self) -> str:
        return str(self.plan.folder.resolve())

    def _ours(self, log: str = OURS) -> contextlib.AbstractContextManager[SideProcess]:
        return self._running_side(OURS, {"folder": self._folder, "cache_dir": str(self._programs)}, log)

    @property
    def _programs(self) -> Path:
        return (self.work / "programs").resolve()

    def _running_side(
        self, side: str, arguments: Mapping[str, Any], log: str = ""
    ) -> contextlib.AbstractContextManager[SideProcess]:
        """A side's process, limited to the instruction set before it starts."""
        return running_worker(side, arguments, self.work / f"{log or side}.log", self._env)

    @property
    def _env(self) -> dict[str, str]:
        threads = str(knobs.thread_count())
        cache = str((self.work / "vnpu").resolve())
        env = {"VNPU_THREADS": threads, "OMP_NUM_THREADS": threads, "VNPU_CACHE": cache}
        return env | self.selected.environment


def read_files(files: Sequence[Path]) -> None:
    """Read the weights once, so that neither side waits for the disk."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            piece = bytearray(1 << 24)
            while file.readinto(piece):
                pass
