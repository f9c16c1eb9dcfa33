"""The page of a diagnosis: one file of HTML, with plots, that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from verify.diagnosis_report import percent, verdict_line
from verify.judging import Judged
from verify.ladder import Diagnosis
from verify.plots import HeatMap, LineChart, heat_map, line_chart
from verify.steps import HEAD_RUNGS, LAYER_RUNGS

TEMPLATES = Path(__file__).parent / "templates"

MEANINGS = {rung.step: rung.meaning for rung in (*LAYER_RUNGS, *HEAD_RUNGS)} | {
    "answer": "tokens, as a user gets them"
}


def render(diagnosis: Diagnosis, about: Mapping[str, str]) -> str:
    """The page as text; `about` says what was run, by name."""
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
        meanings=MEANINGS,
    )


def run_chart(diagnosis: Diagnosis, phase: str) -> LineChart:
    """Against transformers' run, from layer to layer."""
    outputs = [(name.removeprefix("layer "), row.run) for name, row, _ in diagnosis.outputs(phase)]
    return _chart(f"{phase}: relative L1 by layer", outputs)


def step_chart(diagnosis: Diagnosis, phase: str, layer: int) -> LineChart:
    """Each step of a layer on its own inputs."""
    return _chart("relative L1 by step", [(row.step, row.own) for row in diagnosis.steps(phase, layer)])


def _chart(title: str, judged: Sequence[tuple[str, Judged | None]]) -> LineChart:
    """Relative L1 of ours, of rounding alone and of the bound, where there is a value."""
    shown = [(name, each) for name, each in judged if each]
    return line_chart(
        title,
        [name for name, _ in shown],
        [
            ("bound", "bound", [each.check("relative L1").bound for _, each in shown]),
            ("rounding alone", "rounding", [each.yardstick.relative_l1 for _, each in shown]),
            ("ours", "ours", [each.ours.relative_l1 for _, each in shown]),
        ],
    )


def step_map(diagnosis: Diagnosis, phase: str) -> HeatMap:
    """For each step and layer, how much of the step's own bound is used up."""
    layers = [inside for name, _, inside in diagnosis.outputs(phase) if name.startswith("layer")]
    return heat_map(
        phase,
        [rung.step for rung in LAYER_RUNGS],
        [str(index) for index in range(len(layers))],
        [[rows[step].used for rows in layers] for step in range(len(LAYER_RUNGS))],
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
