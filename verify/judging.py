"""Every step of a recorded pass against transformers: on its own inputs, and in the whole run.

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

from llama32_1b.numerics import F32Array
from verify.captures import Captured, capture_reference
from verify.measures import Measures, measure
from verify.passes import Pass, StepValues
from verify.step_bounds import DRIFT, DRIFT_OF_BLOCKS, Check, own_checks, run_checks
from verify.steps import HEAD_RUNGS, LAYER_RUNGS, Bench, BlockBench, Rung

Benches = tuple[Bench, Bench]
"""One that rounds as ours may, one that is exact."""

SAME_AS = {"cache_k": "rope_k", "cache_v": "v"}
"""Steps whose value transformers' run holds under another name."""


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

    def judge(self, seen: Pass) -> Iterator[Row]:
        """A row for each step, in the order they run."""
        benches = self._benches(seen)
        before: F32Array | None = self.bf16[0, "input"][seen.positions.start : seen.positions.stop]
        for layer, values in enumerate(seen.layers):
            given = values if before is None else {**values, "before": before}
            for rung in LAYER_RUNGS:
                yield self._row(seen, layer, rung, given, benches)
            before = values.get("ffn_residual")
        given = seen.head if before is None else {**seen.head, "last": before[-1:]}
        for rung in HEAD_RUNGS:
            yield self._row(seen, None, rung, given, benches)

    def _benches(self, seen: Pass) -> Benches:
        """Decode multiplies a matrix by a vector, which no numerics makes of blocks."""
        rounded, exact = self.models
        of_blocks = self.numerics != "exact" and seen.phase == "prefill"
        return (BlockBench if of_blocks else Bench)(rounded, seen.positions), Bench(exact, seen.positions)

    def _row(self, seen: Pass, layer: int | None, rung: Rung, values: StepValues, benches: Benches) -> Row:
        missing = next((name for name in (*rung.inputs, rung.step) if name not in values), None)
        if missing:
            return Row(seen.phase, layer, rung.step, remark=f"{missing} was never computed")
        ours = values[rung.step]
        rounded, exact = (bench.step(layer, rung, values) for bench in benches)
        name, stop = SAME_AS.get(rung.step, rung.step), seen.positions.stop
        theirs, theirs_exact = (run[layer, name][:stop][-len(ours) :] for run in (self.bf16, self.f32))
        near = measure(ours, exact), measure(rounded, exact)
        far = measure(ours, theirs), measure(theirs, theirs_exact)
        own = Judged(*near, own_checks(*near, benches[0].makes_blocks(rung)))
        return Row(seen.phase, layer, rung.step, own, Judged(*far, run_checks(*far, self.drift)))


def _captured(model: Any, token_ids: Sequence[int]) -> Captured:
    """What the hooks see, and the rotated queries and keys, made again from the projections."""
    captured = capture_reference(model, token_ids)
    bench = Bench(model, range(len(token_ids)))
    for rung in LAYER_RUNGS:
        if rung.step in ("rope_q", "rope_k"):
            for layer in range(len(model.model.layers)):
                values = {step: captured[layer, step] for step in rung.inputs}
                captured[layer, rung.step] = bench.step(layer, rung, values)
    return captured
