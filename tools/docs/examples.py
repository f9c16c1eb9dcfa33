"""The page of mlir-air's examples, from the table that `aerie air-run --table` writes."""

from __future__ import annotations

from pathlib import Path

from md_text import code, page, table

from aerie.virtual_npu.air_run.table import PASS, read

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "mlir-air-examples.tsv"


def examples_page() -> str:
    rows = read(TABLE)
    failed = [(code(row.run), row.device, row.result, row.why) for row in rows if row.result != PASS]
    passed = [(code(row.run), row.device) for row in rows if row.result == PASS]
    return page(
        "mlir-air's examples",
        "`aerie air-run --table` wrote this, at mlir-air e972f294. A run is a line of a test file of "
        f"`programming_examples`, with the check that it has itself: {len(passed)} of the {len(rows)} runs "
        "here pass. What is not here was not run to its end. A finding passes without checks, and with "
        "them ends with the error that is shown. A workflow runs all of them each night.",
        table(("does not pass", "device", "result", "why"), failed),
        table(("passes", "device"), passed),
    )
