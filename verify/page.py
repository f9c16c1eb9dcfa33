"""The page of a diagnosis: one file of HTML, with plots, that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from verify.diagnosis_report import percent, verdict_line
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
        maps=[step_map(diagnosis, each) for each in diagnosis.phases],
        meanings=MEANINGS,
    )


def run_chart(diagnosis: Diagnosis, phase: str) -> LineChart:
    """Relative L1 against transformers' run, from layer to layer, with the yardstick and the bound."""
    outputs = [(name, row.run) for name, row, _ in diagnosis.outputs(phase) if row.run]
    return line_chart(
        phase,
        [name.removeprefix("layer ") for name, _ in outputs],
        [
            ("bound", "bound", [judged.checks[1].bound for _, judged in outputs]),
            ("rounding alone", "rounding", [judged.yardstick.relative_l1 for _, judged in outputs]),
            ("ours", "ours", [judged.ours.relative_l1 for _, judged in outputs]),
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
