"""The results of a diagnosis: for the terminal, as JSON, and as a page of HTML in one file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from aerie.common.text_tables import VERDICT, compact_table, print_tables
from aerie.verify.diagnosis import Diagnosis
from aerie.verify.layer_check import CheckedMeasures, LayerStepResult
from aerie.verify.layer_steps import MEANINGS
from aerie.verify.plots import HeatMap, LineChart, heat_map, line_chart

MAX_ROWS = 1000  # times a bound: beyond that, numbers say nothing

EXPLANATION = """\
Of a layer: its output against transformers' bf16 run, where errors add up. Of
a step: on the inputs that ours had, against transformers' float32, so that
only the step's own error shows. rounding: the relative L1 of transformers' own
bf16 in the same place. bound used: beyond 100 % is too far; by cosine, largest
diff, relative L1, bias (ours lean upwards or downwards) or shrink (ours lean
towards zero)."""


def print_diagnosis(diagnosis: Diagnosis, file: TextIO | None = None) -> None:
    """Print tables, and the verdict as the last line."""
    console = Console(file=file, highlight=False, markup=False)
    print_tables(console, *_tables(diagnosis))
    console.print(EXPLANATION, soft_wrap=True)
    console.print(verdict_line(diagnosis), soft_wrap=True)


def verdict_line(diagnosis: Diagnosis) -> str:
    """The first step that leaves its bound, and by how much; or that none does."""
    first = diagnosis.first
    if first is None:
        return "[diagnosis] no step leaves its bound"
    if first.problem:
        return f"[diagnosis] {first.place}: {first.problem}"
    return f"[diagnosis] {first.place}: far from transformers' run, with no step at fault: {first.drift}"


def percent(used: float) -> str:
    """A share of a bound: as a percentage, or as a multiple if that is easier to read."""
    if used < 10:
        return f"{used:.0%}"
    return f"{used:.0f}x" if used <= MAX_ROWS else f"over {MAX_ROWS}x"


def _tables(diagnosis: Diagnosis) -> Iterator[Table]:
    for phase in diagnosis.phases:
        yield _layer_table(diagnosis, phase)
    phase, layer = diagnosis.focus
    yield _step_table(f"{phase}, layer {layer}: every step", diagnosis.steps(phase, layer))


def _layer_table(diagnosis: Diagnosis, phase: str) -> Table:
    table = _table(f"{phase}: the output of each layer", "layer", "in it, nearest its bound")
    for name, output, inside in diagnosis.phase_outputs(phase):
        worst = max(inside, key=lambda row: row.used)
        nearest = f"{worst.step} ({percent(worst.used)})"
        table.add_row(
            name,
            *_numbers(output.whole_run),
            nearest,
            _verdict(any(row.problem or row.drift for row in inside)),
        )
    return table


def _step_table(title: str, rows: Sequence[LayerStepResult]) -> Table:
    table = _table(title, "step", "bound used")
    for row in rows:
        table.add_row(row.step, *_numbers(row.own_inputs), percent(row.used), _verdict(bool(row.problem)))
    return table


def _table(title: str, first: str, last: str) -> Table:
    figures = ("cosine", "largest diff", "mean diff", "relative L1", "rounding")
    return compact_table(title, (first,), figures, (last, VERDICT))


def _verdict(is_left: bool) -> str:
    return "LEFT" if is_left else "ok"


def _numbers(judged: CheckedMeasures | None) -> list[str]:
    if judged is None:
        return ["-"] * 5
    ours = judged.measures
    return [
        f"{ours.cosine:.6f}",
        f"{ours.max_diff:.2e}",
        f"{ours.mean_diff:+.1e}",
        f"{ours.relative_l1:.5f}",
        f"{judged.rounding_measures.relative_l1:.5f}",
    ]


def as_json(diagnosis: Diagnosis, about: dict[str, str]) -> dict[str, Any]:
    """All results: `about` the run, the verdict, and each step with its measures and bounds."""
    first = diagnosis.first
    return {
        "verdict": verdict_line(diagnosis),
        "first": None if first is None else {"phase": first.phase, "layer": first.layer, "step": first.step},
        **about,
        "token_ids": diagnosis.token_ids,
        "rows": [row_json(row) for row in diagnosis.rows],
    }


def row_json(row: LayerStepResult) -> dict[str, Any]:
    """A step, with its measures and bounds."""
    return {
        "phase": row.phase,
        "layer": row.layer,
        "step": row.step,
        "problem": row.problem,
        "drift": row.drift,
        "own": _judged(row.own_inputs),
        "run": _judged(row.whole_run),
    }


def _judged(judged: CheckedMeasures | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    return {
        "ours": judged.measures.as_dict(),
        "rounding": judged.rounding_measures.as_dict(),
        "bounds": {
            check.name: check.bound if math.isfinite(check.bound) else None for check in judged.checks
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


TEMPLATES = Path(__file__).parent / "templates"

ANSWER_MEANING = {"answer": "tokens, as a user gets them"}


def render(diagnosis: Diagnosis, about: Mapping[str, str]) -> str:
    """The page as text. about: what was run, by name."""
    phase, layer = diagnosis.focus
    page = _environment().get_template("diagnosis.html.j2")
    return page.render(
        diagnosis=diagnosis,
        about=about,
        verdict=verdict_line(diagnosis),
        phase=phase,
        layer=layer,
        charts=[run_chart(diagnosis, each) for each in diagnosis.phases],
        steps=step_chart(diagnosis, phase, layer),
        maps=[step_map(diagnosis, each) for each in diagnosis.phases],
        meanings=MEANINGS | ANSWER_MEANING,
    )


def run_chart(diagnosis: Diagnosis, phase: str) -> LineChart:
    """The error against transformers' run, from layer to layer."""
    outputs = [
        (name.removeprefix("layer "), row.whole_run) for name, row, _ in diagnosis.phase_outputs(phase)
    ]
    return _chart(f"{phase}: relative L1 by layer", outputs)


def step_chart(diagnosis: Diagnosis, phase: str, layer: int) -> LineChart:
    """The error of each step of a layer on its own inputs."""
    return _chart(
        "relative L1 by step", [(row.step, row.own_inputs) for row in diagnosis.steps(phase, layer)]
    )


def _chart(title: str, judged: Sequence[tuple[str, CheckedMeasures | None]]) -> LineChart:
    """Relative L1 of our values, of rounding alone and of the bound, for each step that has a value."""
    shown = [(name, each) for name, each in judged if each]
    return line_chart(
        title,
        [name for name, _ in shown],
        [
            ("bound", "bound", [each.check("relative L1").bound for _, each in shown]),
            ("rounding alone", "rounding", [each.rounding_measures.relative_l1 for _, each in shown]),
            ("ours", "ours", [each.measures.relative_l1 for _, each in shown]),
        ],
    )


def step_map(diagnosis: Diagnosis, phase: str) -> HeatMap:
    """For each step and layer, how much of the step's own bound is used."""
    layers = [inside for name, _, inside in diagnosis.phase_outputs(phase) if name.startswith("layer")]
    return heat_map(
        phase,
        [row.step for row in layers[0]],
        [str(index) for index in range(len(layers))],
        [[row.used for row in of_step] for of_step in zip(*layers, strict=True)],
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "percent": percent,
        "small": lambda value: f"{value:.2e}",
        "signed": lambda value: f"{value:+.1e}",
        "cosine": lambda value: f"{value:.7f}",
    }
    environment.filters.update(filters)
    return environment
