"""The ladder: every step of a recorded pass against transformers, layer by layer, in prefill and in decode.

`own`: against transformers' float32 module on the inputs that ours had, so that what went wrong before does
not count. `run`: against transformers' bf16 run of the whole prompt, where errors add up. The yardstick of
both is what rounding does to transformers' own bf16, measured against its float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aerie.engine.forward import check_prompt, decode_step, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.bench import Bench, BlockBench
from aerie.verify.measures import DRIFT, DRIFT_OF_BLOCKS, Check, Measures, measure, own_checks, run_checks
from aerie.verify.passes import (
    DECODED,
    Captured,
    Pass,
    Positions,
    StepValues,
    capture_reference,
    chosen,
    observe_decode,
    observe_prefill,
)
from aerie.verify.reference import Reference
from aerie.verify.rules import Failure, numerics_of
from aerie.verify.steps import HEAD_STEPS, Step, layer_steps
from aerie.verify.subject import BROKEN, one_line

Benches = tuple[Bench, Bench]
"""One that rounds as ours may, one that is exact."""


@dataclass(frozen=True)
class Judged:
    """Ours against something, beside what rounding alone does there, and what that allows."""

    ours: Measures
    yardstick: Measures
    checks: tuple[Check, ...]

    def check(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    @property
    def used(self) -> float:
        """How much of its bounds is used up; beyond 1, one is left."""
        return max(check.used for check in self.checks)

    @property
    def problem(self) -> str:
        """What is beyond its bound, in words; empty where nothing is."""
        return ", ".join(str(check) for check in self.checks if not check.holds)


@dataclass(frozen=True)
class Row:
    """One step. `layer` is None outside of the layers; `own` and `run` are None where there is no value."""

    phase: str
    layer: int | None
    step: str
    own: Judged | None = None
    run: Judged | None = None
    remark: str = ""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        where = self.step if self.layer is None else f"layer {self.layer}, step {self.step}"
        return f"decode, {where}" if self.phase == "decode" else where

    @property
    def problem(self) -> str:
        """Why this step itself is at fault; empty where it is not."""
        return self.remark or (self.own.problem if self.own else "")

    @property
    def used(self) -> float:
        """How much of its own bounds is used up; infinite where there is no value, or a remark."""
        if self.remark:
            return math.inf
        return self.own.used if self.own else 0.0

    @property
    def drift(self) -> str:
        """How far this step is from transformers' run, where that is too far; else empty."""
        return self.run.problem if self.run else ""


class Theirs:
    """Transformers' model in bf16 and in float32, and what both computed on the way for `token_ids`, at the
    positions that are compared.

    `numerics` is how ours makes matrix products: "exact", or anything else for block floating point. `steps`
    are those of a layer.
    """

    def __init__(
        self, reference: Reference, token_ids: Sequence[int], steps: Sequence[Step], numerics: str
    ) -> None:
        self.numerics, self.steps = numerics, steps
        self.drift = DRIFT if numerics == "exact" else DRIFT_OF_BLOCKS
        self.models = (reference.model, reference.exact.model)
        length = len(token_ids)
        self.positions = np.union1d(chosen(length), np.arange(max(0, length - DECODED), length))
        self.bf16, self.f32 = (self._captured(each, token_ids) for each in self.models)

    def _captured(self, model: Any, token_ids: Sequence[int]) -> Captured:
        """What the hooks see, and what no module has (such as rotated keys), made again from its inputs."""
        captured = capture_reference(model, token_ids, self.steps, self.positions)
        bench = Bench(model, self.positions)
        for step in self.steps:
            if step.hook or step.same_as:
                continue
            for layer in range(len(model.model.layers)):
                values = {name: captured[layer, name] for name in step.inputs}
                captured[layer, step.name] = bench.compute(layer, step, values)
        return captured

    def judge(self, recorded: Pass) -> Iterator[Row]:
        """A row for each step, in the order they run."""
        benches = self._benches(recorded, recorded.of_rows)
        before: F32Array | None = self._run(self.bf16, 0, "input", recorded.positions)
        for layer, values in enumerate(recorded.layers):
            given = values if before is None else {**values, "before": before}
            for step in self.steps:
                yield self._row(recorded, layer, step, given, benches)
            before = values.get(self.steps[-1].name)
        given = recorded.head if before is None else {**recorded.head, "last": before[-1:]}
        benches = self._benches(recorded, recorded.head_of_rows)
        for step in HEAD_STEPS:
            yield self._row(recorded, None, step, given, benches)

    def _benches(self, recorded: Pass, of_rows: bool) -> Benches:
        """No numerics makes blocks of what is multiplied with a vector."""
        rounded, exact = self.models
        of_blocks = self.numerics != "exact" and of_rows
        rounding_bench = BlockBench if of_blocks else Bench
        return rounding_bench(rounded, recorded.positions), Bench(exact, recorded.positions)

    def _row(
        self, recorded: Pass, layer: int | None, step: Step, values: StepValues, benches: Benches
    ) -> Row:
        missing = next((name for name in (*step.inputs, step.name) if name not in values), None)
        if missing:
            return Row(recorded.phase, layer, step.name, remark=f"{missing} was never computed")
        ours, at = values[step.name], recorded.positions
        rounded, exact = (bench.compute(layer, step, values) for bench in benches)
        name, at = step.same_as or step.name, at[-len(ours) :]
        theirs, theirs_exact = (self._run(run, layer, name, at) for run in (self.bf16, self.f32))
        near = measure(ours, exact), measure(rounded, exact)
        far = measure(ours, theirs), measure(theirs, theirs_exact)
        own = Judged(*near, own_checks(*near, benches[0].makes_blocks(step)))
        return Row(recorded.phase, layer, step.name, own, Judged(*far, run_checks(*far, self.drift)))

    def _run(self, run: Captured, layer: int | None, step: str, positions: Positions) -> F32Array:
        """A step's value in a run of transformers, at `positions`, which are among those that were kept."""
        rows: F32Array = run[layer, step][np.searchsorted(self.positions, positions)]
        return rows


@dataclass(frozen=True)
class Ladder:
    """What climbing gave: every step of prefill, then of decode, for a prompt of `tokens` tokens; `model`
    says whose. `broken`: what it ended with instead."""

    model: str
    tokens: int
    rows: list[Row]
    broken: str = ""

    @property
    def failures(self) -> list[Failure]:
        """Every step at fault, in the order they run; where none is, the first that has drifted too far."""
        if self.broken:
            return [Failure(LADDER, self.model, None, self.broken)]
        guilty = [f"{row.place}: {row.problem}" for row in self.rows if row.problem]
        drifted = (
            f"{row.place}: far from transformers' run, with no step at fault: {row.drift}"
            for row in self.rows
            if row.drift
        )
        return [Failure(LADDER, self.model, None, what) for what in guilty or list(drifted)[:1]]

    @property
    def phases(self) -> dict[str, list[Row]]:
        phases = dict.fromkeys(row.phase for row in self.rows)
        return {phase: [row for row in self.rows if row.phase == phase] for phase in phases}


LADDER = "ladder"


def try_ladder(model: str, session: Session, reference: Reference, token_ids: Sequence[int]) -> Ladder:
    """Climb. What breaks the forward pass is a failure like any other."""
    try:
        return Ladder(model, len(token_ids), climb(session, reference, token_ids))
    except BROKEN as error:
        return Ladder(model, len(token_ids), [], one_line(error))


def climb(session: Session, reference: Reference, token_ids: Sequence[int]) -> list[Row]:
    """Every step of prefill, then every step of decode, for a prompt of two tokens or more.

    Another prompt goes first, so that what it leaves behind shows. The prompt's last tokens are decoded too,
    against the same positions of the reference. Raises PromptError for a prompt that cannot be run.
    """
    model = session.model
    check_prompt(token_ids, model.config, model.seq_len)
    _leave_something_behind(model, token_ids)
    theirs = Theirs(reference, token_ids, layer_steps(model.config.shape), numerics_of(session))
    passes = observe_prefill(model, token_ids), observe_decode(model, token_ids)
    return [row for recorded in passes for row in theirs.judge(recorded)]


def _leave_something_behind(model: LoadedModel, ids: Sequence[int]) -> None:
    """Other tokens, and a decode step at another position than those that are judged."""
    other = [(token + 1) % model.config.vocab_size for token in ids]
    prompt = other[:-2] or other
    cache = model.new_cache(len(prompt) + 1)
    prefill(model, prompt, cache)
    decode_step(model, other[-2], cache)
