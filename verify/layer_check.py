"""The layer check: compares every step of a recorded pass with transformers, layer by layer, in prefill and
decode.

`own_inputs`: compared with transformers' float32 module on the inputs that our step had, so that earlier
errors do not count. `whole_run`: compared with transformers' bf16 run of the whole prompt, where errors add
up. The yardstick of both is what rounding does to transformers' own bf16, measured against its float32.
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
from aerie.verify.bounds import GateFailure, session_numerics
from aerie.verify.layer_steps import LayerStep, head_steps, steps_of_layers
from aerie.verify.measures import (
    MAX_DRIFT,
    MAX_DRIFT_BFP16,
    BoundCheck,
    Measures,
    measure,
    own_checks,
    run_checks,
)
from aerie.verify.recorded_passes import (
    DECODED,
    Captured,
    Positions,
    RecordedPass,
    StepValues,
    capture_reference,
    compared_positions,
    observe_decode,
    observe_prefill,
)
from aerie.verify.reference import Reference
from aerie.verify.step_reference import Bfp16StepReference, StepReference
from aerie.verify.subject import FORWARD_ERRORS, one_line

Benches = tuple[StepReference, StepReference]
"""One that rounds as our step may, one that is exact."""


@dataclass(frozen=True)
class CheckedMeasures:
    """Measures of our values, the same measures for rounding alone, and the bounds that follow."""

    measures: Measures
    rounding_measures: Measures
    checks: tuple[BoundCheck, ...]

    def check(self, name: str) -> BoundCheck:
        return next(check for check in self.checks if check.name == name)

    @property
    def used(self) -> float:
        """How much of the bounds is used; above 1, one is exceeded."""
        return max(check.used_share for check in self.checks)

    @property
    def problem(self) -> str:
        """The measures that exceed their bounds, as text; "" if none does."""
        return ", ".join(str(check) for check in self.checks if not check.passes)


@dataclass(frozen=True)
class LayerStepResult:
    """One step. layer: None outside of the layers. own_inputs, whole_run: None if there is no value."""

    phase: str
    layer: int | None
    step: str
    own_inputs: CheckedMeasures | None = None
    whole_run: CheckedMeasures | None = None
    remark: str = ""

    @property
    def place(self) -> str:
        """The step's position in the model, as text."""
        where = self.step if self.layer is None else f"layer {self.layer}, step {self.step}"
        return f"decode, {where}" if self.phase == "decode" else where

    @property
    def problem(self) -> str:
        """Why this step itself is at fault; "" if it is not."""
        return self.remark or (self.own_inputs.problem if self.own_inputs else "")

    @property
    def used(self) -> float:
        """How much of its own bounds is used; infinite if there is no value, or a remark."""
        if self.remark:
            return math.inf
        return self.own_inputs.used if self.own_inputs else 0.0

    @property
    def drift(self) -> str:
        """How far this step is from transformers' run, if that is too far; else ""."""
        return self.whole_run.problem if self.whole_run else ""


class ReferencePasses:
    """Transformers' model in bf16 and in float32, and the values that both computed for `token_ids`, at the
    positions that are compared.

    numerics: how our products are computed: "exact", or anything else for block floating point. steps: of
    each layer.
    """

    def __init__(
        self,
        reference: Reference,
        token_ids: Sequence[int],
        steps: Sequence[Sequence[LayerStep]],
        numerics: str,
    ) -> None:
        self.numerics, self.steps = numerics, steps
        self.drift = MAX_DRIFT if numerics == "exact" else MAX_DRIFT_BFP16
        self.models = (reference.model, reference.exact.model)
        length = len(token_ids)
        self.positions = np.union1d(compared_positions(length), np.arange(max(0, length - DECODED), length))
        self.bf16, self.f32 = (self._captured(each, token_ids) for each in self.models)

    def _captured(self, model: Any, token_ids: Sequence[int]) -> Captured:
        """What the hooks record, and what no module has (such as rotated keys), computed again from its
        inputs.
        """
        captured = capture_reference(model, token_ids, self.steps, self.positions)
        bench = StepReference(model, self.positions)
        for layer, steps in enumerate(self.steps):
            for step in steps:
                if step.module_hook or step.equals:
                    continue
                values = {name: captured[layer, name] for name in step.inputs}
                captured[layer, step.name] = bench.compute(layer, step, values)
        return captured

    def judge(self, recorded: RecordedPass) -> Iterator[LayerStepResult]:
        """The result of each step, in order."""
        benches = self._benches(recorded, recorded.uses_gemm)
        before: F32Array | None = self._run(self.bf16, 0, "input", recorded.positions)
        for layer, values in enumerate(recorded.layers):
            inputs = values if before is None else {**values, "before": before}
            for step in self.steps[layer]:
                yield self._row(recorded, layer, step, inputs, benches)
            before = values.get(self.steps[layer][-1].name)
        inputs = recorded.head if before is None else {**recorded.head, "last": before[-1:]}
        benches = self._benches(recorded, recorded.head_uses_gemm)
        for step in head_steps(self.models[0]):
            yield self._row(recorded, None, step, inputs, benches)

    def _benches(self, recorded: RecordedPass, of_rows: bool) -> Benches:
        """No numerics uses block floating point for a product with a vector."""
        rounded, exact = self.models
        of_blocks = self.numerics != "exact" and of_rows
        rounding_bench = Bfp16StepReference if of_blocks else StepReference
        return rounding_bench(rounded, recorded.positions), StepReference(exact, recorded.positions)

    def _row(
        self, recorded: RecordedPass, layer: int | None, step: LayerStep, values: StepValues, benches: Benches
    ) -> LayerStepResult:
        missing = next((name for name in (*step.inputs, step.name) if name not in values), None)
        if missing:
            return LayerStepResult(recorded.phase, layer, step.name, remark=f"{missing} was never computed")
        ours, at = values[step.name], recorded.positions
        rounded, exact = (bench.compute(layer, step, values) for bench in benches)
        name, at = step.equals or step.name, at[-len(ours) :]
        theirs, theirs_exact = (self._run(run, layer, name, at) for run in (self.bf16, self.f32))
        near = measure(ours, exact), measure(rounded, exact)
        far = measure(ours, theirs), measure(theirs, theirs_exact)
        own = CheckedMeasures(*near, own_checks(*near, benches[0].uses_bfp16(step)))
        return LayerStepResult(
            recorded.phase, layer, step.name, own, CheckedMeasures(*far, run_checks(*far, self.drift))
        )

    def _run(self, run: Captured, layer: int | None, step: str, positions: Positions) -> F32Array:
        """A step's value in a run of transformers, at `positions`, which must be among those that were
        recorded.
        """
        rows: F32Array = run[layer, step][np.searchsorted(self.positions, positions)]
        return rows


@dataclass(frozen=True)
class LayerReport:
    """The results of every step of prefill, then of decode, for a prompt of `tokens` tokens. model: whose
    weights.
    broken: the error that ended it.
    """

    model: str
    tokens: int
    rows: list[LayerStepResult]
    broken: str = ""

    @property
    def failures(self) -> list[GateFailure]:
        """Every step at fault, in order; if there is none, the first that has drifted too far."""
        if self.broken:
            return [GateFailure(LADDER, self.model, None, self.broken)]
        guilty = [f"{row.place}: {row.problem}" for row in self.rows if row.problem]
        drifted = (
            f"{row.place}: far from transformers' run, with no step at fault: {row.drift}"
            for row in self.rows
            if row.drift
        )
        return [GateFailure(LADDER, self.model, None, what) for what in guilty or list(drifted)[:1]]

    @property
    def phases(self) -> dict[str, list[LayerStepResult]]:
        phases = dict.fromkeys(row.phase for row in self.rows)
        return {phase: [row for row in self.rows if row.phase == phase] for phase in phases}


LADDER = "ladder"


def try_layers(
    model: str,
    session: Session,
    reference: Reference,
    token_ids: Sequence[int],
    theirs: ReferencePasses | None = None,
) -> LayerReport:
    """Check all layer steps. An error of the forward pass is a failure. theirs: as check_layers."""
    try:
        return LayerReport(model, len(token_ids), check_layers(session, reference, token_ids, theirs))
    except FORWARD_ERRORS as error:
        return LayerReport(model, len(token_ids), [], one_line(error))


def reference_passes(session: Session, reference: Reference, token_ids: Sequence[int]) -> ReferencePasses:
    """What the reference computes for these tokens, to compare with this session."""
    steps = steps_of_layers(session.model.config)
    return ReferencePasses(reference, token_ids, steps, session_numerics(session))


def check_layers(
    session: Session,
    reference: Reference,
    token_ids: Sequence[int],
    theirs: ReferencePasses | None = None,
) -> list[LayerStepResult]:
    """Check every step of prefill, then every step of decode, for a prompt of two tokens or more.

    theirs: what the reference computed for the same model and tokens, if it has computed that already.
    Another prompt runs first, so that stale data shows. The prompt's last tokens are decoded too, and
    compared with the same positions of the reference. Raises PromptError if the prompt cannot run.
    """
    model = session.model
    check_prompt(token_ids, model.config, model.seq_len)
    _run_other_tokens(model, token_ids)
    theirs = theirs or reference_passes(session, reference, token_ids)
    passes = observe_prefill(model, token_ids), observe_decode(model, token_ids)
    return [row for recorded in passes for row in theirs.judge(recorded)]


def _run_other_tokens(model: LoadedModel, ids: Sequence[int]) -> None:
    """Run other tokens, and a decode step at another position than those that are checked."""
    other = [(token + 1) % model.config.vocab_size for token in ids]
    prompt = other[:-2] or other
    cache = model.new_cache(len(prompt) + 1)
    prefill(model, prompt, cache)
    decode_step(model, other[-2], cache)
