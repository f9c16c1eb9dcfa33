"""Measured times of a board beside predicted ones, in one file to send: a line of JSON for each program.

`aerie vnpu time --calibrate FILE` refits the timing model to it.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
from pathlib import Path

from aerie.board.compare.items import ComparisonItem, plan_item
from aerie.board.compare.records import ItemOutcome
from aerie.common.errors import ProgramError, UserError
from aerie.multi_launch_builder.builder import build_program
from aerie.verify.report import write_report
from aerie.virtual_npu.timing import NOTE, predict
from aerie.virtual_npu.timing.calibration import MEASURED_FORMAT

NAME = "times.jsonl"


class TimesFile:
    """The file: a first line about all, then one for each item that ran, on the disk before the next runs. So
    a crash costs no line that was there. The first item makes the file anew.

    Raises UserError if it cannot be written.
    """

    def __init__(self, backend: str, path: Path) -> None:
        note = f"measured_us: on the host's clock; predicted_us: {NOTE}"
        self._path, self._exists = path, False
        self._head = json.dumps({"format": MEASURED_FORMAT, "backend": backend, "note": note}) + "\n"

    def add(self, outcome: ItemOutcome) -> None:
        """Write the line of an item, if it ran."""
        if not self._exists:
            write_report(self._path, self._head)
            self._exists = True
        if not outcome.times_us:
            return
        line = json.dumps(_entry(outcome), allow_nan=False) + "\n"
        try:
            with self._path.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())  # the machine may not live on
        except OSError as error:
            raise UserError(
                f"cannot write {self._path} ({error.strerror}); name another folder with --out"
            ) from None


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
