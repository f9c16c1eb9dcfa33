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
        "A run is a line of a test file of `programming_examples` of mlir-air e972f294, with the check that "
        f"it has itself. {len(rows)} of the 355 were made, not all of them on one day or one commit: "
        f"{len(passed)} pass, {len(failed)} do not. A finding passes without the checks of the virtual NPU. "
        "A workflow runs all each night, and fails if one that passed here does not.",
        table(("does not pass", "device", "result", "why"), failed),
        table(("passes", "device"), passed),
    )
