"""The page of other projects' designs with `aie.device`, from a table of what they did on the virtual NPU."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from md_text import code, page, section, table

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "aie-designs.tsv"
SUITES = {
    "hw_verdicts": "Routed designs of mlir-aie's `test/create-packet-flows/nightly/Inputs/hw_verdicts` that "
    "ran on a Strix: each passes or hangs. Of the 133, a public index has 119. Those below were read there, "
    "written anew from what they say, and run; their numbers are not compared. Of the random ones "
    "(`stress_`) seven are among them. `stress_s30_old` decided who has an arbiter next; with that rule 63 "
    "were run, the other 34 before it.",
    "npu-xrt": "mlir-aie's `test/npu-xrt` at 3ca0193c, of 14 August 2026: modules with a host program for "
    "XRT, which says what is expected. The host programs are compiled unchanged. Tests whose module is made "
    "by Python with mlir-aie's package are left out.",
    "Npu-Embeddings": "The 34 placed modules of vegah/Npu-Embeddings b4a7deb2, which ran on a board. Their "
    "kernels are objects that are not in the repository: plain products, or functions that only clear their "
    "result, stand in their places, so no numbers are compared. The largest ones were built with "
    "`VNPU_OPT=0`.",
}


def _rows() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def _section(suite: str, rows: Sequence[dict[str, str]]) -> str:
    results = Counter(row["result"] for row in rows)
    counts = ", ".join(f"{count} {result}" for result, count in results.most_common())
    cells = [(code(row["design"]), row["expected"], row["result"], row["why"]) for row in rows]
    return section(suite, f"{SUITES[suite]} {counts}.", table(("design", "expected", "result", "why"), cells))


def designs_page() -> str:
    rows = _rows()
    return page(
        "Designs of other projects",
        "What modules with `aie.device` of other projects do here, on [the AIE "
        "level](../explanation/aie-level.md). None of them is in this project.",
        *(_section(suite, [row for row in rows if row["suite"] == suite]) for suite in SUITES),
    )
