"""Measured times of a board beside predicted ones, in one file to send.

`aerie vnpu time --calibrate FILE` refits the timing model to it.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from aerie.board.compare.items import ComparisonItem, plan_item
from aerie.board.compare.records import ItemOutcome
from aerie.common.errors import ProgramError
from aerie.multi_launch_builder.builder import build_program
from aerie.verify.report import write_report
from aerie.virtual_npu.timing import NOTE, predict
from aerie.virtual_npu.timing.calibration import FORMAT

NAME = "times.json"


def save_times(outcomes: Sequence[ItemOutcome], backend: str, path: Path) -> None:
    """Write the times of all items that ran, in one step. Raises UserError if it cannot be written."""
    record = {
        "format": FORMAT,
        "backend": backend,
        "note": f"measured_us: on the host's clock; predicted_us: {NOTE}",
        "programs": [_entry(outcome) for outcome in outcomes if outcome.times_us],
    }
    write_report(path, json.dumps(record, indent=1, allow_nan=False) + "\n")


def _entry(outcome: ItemOutcome) -> dict[str, object]:
    return {
        "name": str(outcome.item),
        "status": outcome.status.value,
        "measured_us": [round(us, 1) for us in outcome.times_us],
        "median_us": round(statistics.median(outcome.times_us), 1),
        **_prediction(outcome.item),
    }


@functools.cache
def _prediction(item: ComparisonItem) -> dict[str, object]:
    """The program's text, and its predicted time or why there is none."""
    text = build_program(plan_item(item)).text
    try:
        return {"predicted_us": round(predict(text, filename=str(item)).total_us, 1), "text": text}
    except ProgramError as error:
        return {"predicted_us": None, "not_predicted": str(error), "text": text}
