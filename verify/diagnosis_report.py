"""What diagnosis found, for the terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from rich.box import ASCII, HEAVY_HEAD, Box
from rich.console import Console
from rich.table import Table

from verify.judging import Judged, Row
from verify.ladder import Diagnosis

MOST = 1000  # times a bound: beyond that, numbers say nothing
PIPED_WIDTH = 132  # columns, where the reader is no terminal

EXPLANATION = """\
Of a layer: its output against transformers' bf16 run, where errors add up. Of a step: on the inputs that
ours had, against transformers' float32, so that only the step's own error shows. rounding: the relative L1
of transformers' own bf16 in the same place. bound used: beyond 100 % is too far; by cosine, largest diff,
relative L1, bias (ours lean upwards or downwards) or shrink (ours lean towards zero)."""


def print_diagnosis(diagnosis: Diagnosis, file: TextIO | None = None) -> None:
    """Tables, and the verdict as the last line."""
    console = Console(file=file, highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, width=PIPED_WIDTH)
    for table in _tables(diagnosis, HEAVY_HEAD if console.is_terminal else ASCII):
        console.print(table)
    console.print(EXPLANATION)
    console.print(verdict_line(diagnosis), soft_wrap=True)


def verdict_line(diagnosis: Diagnosis) -> str:
    """The first step that leaves its bound, and how far; or that none does."""
    first = diagnosis.first
    if first is None:
        return "[diagnosis] no step leaves its bound"
    if first.problem:
        return f"[diagnosis] {first.place}: {first.problem}"
    return f"[diagnosis] {first.place}: far from transformers' run, with no step at fault: {first.drift}"


def percent(used: float) -> str:
    """A share of a bound: as a percentage, or as a multiple where that is easier to read."""
    if used < 10:
        return f"{used:.0%}"
    return f"{used:.0f}x" if used <= MOST else f"over {MOST}x"


def _tables(diagnosis: Diagnosis, box: Box) -> Iterator[Table]:
    for phase in diagnosis.phases:
        yield _layer_table(diagnosis, phase, box)
    phase, layer = diagnosis.focus
    yield _step_table(f"{phase}, layer {layer}: every step", diagnosis.steps(phase, layer), box)


def _layer_table(diagnosis: Diagnosis, phase: str, box: Box) -> Table:
    table = _table(f"{phase}: the output of each layer", box, "layer", "in it, nearest its bound")
    for name, output, inside in diagnosis.outputs(phase):
        worst = max(inside, key=lambda row: row.used)
        nearest = f"{worst.step} ({percent(worst.used)})"
        table.add_row(
            name, *_numbers(output.run), nearest, _verdict(any(row.problem or row.drift for row in inside))
        )
    return table


def _step_table(title: str, rows: Sequence[Row], box: Box) -> Table:
    table = _table(title, box, "step", "bound used")
    for row in rows:
        table.add_row(row.step, *_numbers(row.own), percent(row.used), _verdict(bool(row.problem)))
    return table


def _table(title: str, box: Box, first: str, last: str) -> Table:
    table = Table(first, title=title, title_justify="left", box=box)
    for name in ("cosine", "largest diff", "mean diff", "relative L1", "rounding"):
        table.add_column(name, justify="right")
    table.add_column(last)
    table.add_column("")
    return table


def _verdict(is_left: bool) -> str:
    return "LEFT" if is_left else "ok"


def _numbers(judged: Judged | None) -> list[str]:
    if judged is None:
        return ["-"] * 5
    ours = judged.ours
    return [
        f"{ours.cosine:.6f}",
        f"{ours.max_diff:.2e}",
        f"{ours.mean_diff:+.1e}",
        f"{ours.relative_l1:.5f}",
        f"{judged.yardstick.relative_l1:.5f}",
    ]


def as_json(diagnosis: Diagnosis, about: dict[str, str]) -> dict[str, Any]:
    """Everything: `about` the run, the verdict, and each step with its measures and bounds."""
    first = diagnosis.first
    return {
        "verdict": verdict_line(diagnosis),
        "first": None if first is None else {"phase": first.phase, "layer": first.layer, "step": first.step},
        **about,
        "token_ids": diagnosis.token_ids,
        "rows": [_row(row) for row in diagnosis.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "phase": row.phase,
        "layer": row.layer,
        "step": row.step,
        "problem": row.problem,
        "drift": row.drift,
        "own": _judged(row.own),
        "run": _judged(row.run),
    }


def _judged(judged: Judged | None) -> dict[str, Any] | None:
    if judged is None:
        return None
    return {
        "ours": judged.ours.as_dict(),
        "rounding": judged.yardstick.as_dict(),
        "bounds": {
            check.name: check.bound if math.isfinite(check.bound) else None for check in judged.checks
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
