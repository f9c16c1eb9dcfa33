"""Diagnosis: every step of a recorded pass against transformers, and the first step that does not hold.

`own`: against transformers' float32 module on the inputs that ours had, so that what went wrong before does
not count. `run`: against transformers' bf16 run of the whole prompt, where errors add up. The yardstick of
both is what rounding does to transformers' own bf16, measured against its float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aerie.engine.forward import check_prompt, decode_step, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.verify.measures import DRIFT, DRIFT_OF_BLOCKS, Check, Measures, measure, own_checks, run_checks
from aerie.verify.passes import Captured, Pass, StepValues, capture_reference, observe_decode, observe_prefill
from aerie.verify.reference import Reference
from aerie.verify.rules import numerics_of
from aerie.verify.steps import HEAD_STEPS, LAYER_STEPS, Bench, BlockBench, Step
from aerie.verify.subject import Subject

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
    """Transformers' model in bf16 and in float32, and what both computed on the way for `token_ids`.

    `numerics` is how ours makes matrix products: "exact", or anything else for block floating point.
    """

    def __init__(self, model: Any, token_ids: Sequence[int], numerics: str) -> None:
        self.numerics = numerics
        self.drift = DRIFT if numerics == "exact" else DRIFT_OF_BLOCKS
        self.models = (model, copy.deepcopy(model).float())
        self.bf16, self.f32 = (_captured(each, token_ids) for each in self.models)

    def judge(self, recorded: Pass) -> Iterator[Row]:
        """A row for each step, in the order they run."""
        benches = self._benches(recorded)
        before: F32Array | None = self.bf16[0, "input"][recorded.positions.start : recorded.positions.stop]
        for layer, values in enumerate(recorded.layers):
            given = values if before is None else {**values, "before": before}
            for step in LAYER_STEPS:
                yield self._row(recorded, layer, step, given, benches)
            before = values.get("ffn_residual")
        given = recorded.head if before is None else {**recorded.head, "last": before[-1:]}
        for step in HEAD_STEPS:
            yield self._row(recorded, None, step, given, benches)

    def _benches(self, recorded: Pass) -> Benches:
        """Decode multiplies a matrix by a vector, which no numerics makes of blocks."""
        rounded, exact = self.models
        of_blocks = self.numerics != "exact" and recorded.phase == "prefill"
        rounding_bench = BlockBench if of_blocks else Bench
        return rounding_bench(rounded, recorded.positions), Bench(exact, recorded.positions)

    def _row(
        self, recorded: Pass, layer: int | None, step: Step, values: StepValues, benches: Benches
    ) -> Row:
        missing = next((name for name in (*step.inputs, step.name) if name not in values), None)
        if missing:
            return Row(recorded.phase, layer, step.name, remark=f"{missing} was never computed")
        ours = values[step.name]
        rounded, exact = (bench.compute(layer, step, values) for bench in benches)
        name, stop = step.same_as or step.name, recorded.positions.stop
        theirs, theirs_exact = (run[layer, name][:stop][-len(ours) :] for run in (self.bf16, self.f32))
        near = measure(ours, exact), measure(rounded, exact)
        far = measure(ours, theirs), measure(theirs, theirs_exact)
        own = Judged(*near, own_checks(*near, benches[0].makes_blocks(step)))
        return Row(recorded.phase, layer, step.name, own, Judged(*far, run_checks(*far, self.drift)))


def _captured(model: Any, token_ids: Sequence[int]) -> Captured:
    """What the hooks see, and what no module has (rotated queries and keys), made again from their inputs."""
    captured = capture_reference(model, token_ids)
    bench = Bench(model, range(len(token_ids)))
    for step in LAYER_STEPS:
        if step.hook or step.same_as:
            continue
        for layer in range(len(model.model.layers)):
            values = {name: captured[layer, name] for name in step.inputs}
            captured[layer, step.name] = bench.compute(layer, step, values)
    return captured


ANSWER_TOKENS = 4
"""Enough to see that an answer goes on after its first token."""


@dataclass(frozen=True)
class Diagnosis:
    """Every step of prefill, then every step of decode, then the answer, in the order they run."""

    token_ids: list[int]
    rows: list[Row]

    @property
    def first(self) -> Row | None:
        """The first step at fault; without one, the first that is too far from transformers' run."""
        guilty = next((row for row in self.rows if row.problem), None)
        return guilty or next((row for row in self.rows if row.drift), None)

    @property
    def phases(self) -> tuple[str, ...]:
        """Those with layers, in the order they run."""
        return tuple(dict.fromkeys(row.phase for row in self.rows if row.layer is not None))

    @property
    def focus(self) -> tuple[str, int]:
        """The phase and layer to look into: of the first step at fault, else of the one nearest its bound."""
        first = self.first
        if first is not None and first.layer is not None:
            return first.phase, first.layer
        inside = [row for row in self.rows if row.layer is not None]
        nearest = max(inside, key=lambda row: row.used)
        return nearest.phase, nearest.layer or 0

    def steps(self, phase: str, layer: int | None) -> list[Row]:
        """Every step of a layer; None: those after the layers."""
        return [row for row in self.rows if (row.phase, row.layer) == (phase, layer)]

    def outputs(self, phase: str) -> Iterator[tuple[str, Row, list[Row]]]:
        """What comes out: of each layer, with all steps in it, then of each step after the layers."""
        layers = dict.fromkeys(row.layer for row in self.rows if row.phase == phase)
        for layer in layers:
            inside = self.steps(phase, layer)
            if layer is not None:
                yield f"layer {layer}", inside[-1], inside
            else:
                yield from ((row.step, row, [row]) for row in inside)


def diagnose(session: Session, reference: Reference, token_ids: Sequence[int]) -> Diagnosis:
    """Climb the ladder with one prompt; `reference` is transformers' bf16 model of the same checkpoint.

    Another prompt goes first, so that what it leaves behind shows. The prompt's last token is decoded
    too, against the same position of the reference; a prompt of one token gets the reference's next one
    for that. Raises PromptError for a prompt that cannot be run.
    """
    model = session.model
    check_prompt(token_ids, model.config, model.seq_len)
    ids = list(token_ids)
    if len(ids) == 1:
        ids += reference.greedy(ids, 1).token_ids
    _leave_something_behind(model, ids)
    theirs = Theirs(reference.model, ids, numerics_of(session))
    whole, split = observe_prefill(model, ids), observe_decode(model, ids)
    return Diagnosis(ids, [*theirs.judge(whole), *theirs.judge(split), _answer(Subject(session), ids)])


def _leave_something_behind(model: LoadedModel, ids: Sequence[int]) -> None:
    """Other tokens, and a decode step at another position than the one that is judged."""
    other = [(token + 1) % model.config.vocab_size for token in ids]
    prompt = other[:-2] or other
    cache = model.new_cache(len(prompt) + 1)
    prefill(model, prompt, cache)
    decode_step(model, other[-2], cache)


def _answer(subject: Subject, ids: Sequence[int]) -> Row:
    """What the session answers has to be what its own logits say, token by token, and as long as asked."""
    tokens = subject.answer(ids, ANSWER_TOKENS).token_ids
    return Row("answer", None, "answer", remark=_answer_problem(subject, ids, tokens))


def _answer_problem(subject: Subject, ids: Sequence[int], tokens: Sequence[int]) -> str:
    if not tokens:
        return "the answer is empty"
    config = subject.model.config
    likeliest = subject.forced(ids, tokens).logits.argmax(axis=-1).tolist()
    for index, (token, likely) in enumerate(zip(tokens, likeliest, strict=True)):
        if token != likely:
            return f"token {index} of the answer is {token}, and the logits say {likely}"
    whole = min(ANSWER_TOKENS, config.context - len(ids) + 1)
    if len(tokens) < whole and tokens[-1] not in config.eos_token_ids:
        return f"the answer ends after {len(tokens)} of {whole} tokens, and not with an end-of-sequence token"
    return ""
