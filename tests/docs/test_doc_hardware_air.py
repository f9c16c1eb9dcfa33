"""docs/hardware.md, AIR forms and The C++ kernels: their tables are those of the code.

Run this file to have the tables as they should be: `python tests/docs/test_doc_hardware_air.py`.
"""

from __future__ import annotations

import json
from collections import defaultdict

from doc_transcripts import DOCS, kernels_told_of, table

from aerie.device.lowering import LoweringRule, OpForm
from aerie.device.lowering.air import AIR_TABLE, air_forms_of, find_air
from aerie.kernel_builder.kernels import registry

PAGE = "hardware.md"
AIR = ("form of AIR", "kernels", "lowered", "evidence", "note")
API = ("function", "forms", "aie_api", "on AIE2P", "seen in mlir-air's programming_examples for NPU2")
Line = tuple[str, ...]


def used_forms() -> dict[OpForm, set[str]]:
    """Every form of AIR in the kernels that the page tells of, and the kernels that have it."""
    found: dict[OpForm, set[str]] = defaultdict(set)
    for name in kernels_told_of(PAGE, 1, *AIR):
        spec = registry()[name]
        for case in spec.cases:
            for op in spec.build(**case).module.walk():
                for form in air_forms_of(op):
                    found[form].add(name)
    return found


def air() -> list[Line]:
    """A line for each row that one of our kernels needs, and one for the forms that have none."""
    forms: dict[LoweringRule | None, list[OpForm]] = defaultdict(list)
    kernels = used_forms()
    for form in sorted(kernels, key=str):
        forms[find_air(form, "aie2p")].append(form)
    return [
        (
            ", ".join(f"`{form}`" for form in forms[row]),
            ", ".join(sorted(set().union(*(kernels[form] for form in forms[row])))),
            row.verdict.value if row else "no evidence",
            "; ".join(row.evidence) if row else "",
            row.note if row else "no program uses it",
        )
        for row in (*AIR_TABLE, None)
        if row in forms
    ]


def api() -> list[Line]:
    """A line for each function of the AIE API that a C++ kernel calls."""
    rows = json.loads((DOCS.parent / "kernels_cc" / "aie_api_uses.json").read_text())["uses"]
    return [
        (f"`{row['function']}`", str(len(row["forms"])), row["header"], row["on_aie2p"], row["seen"])
        for row in rows
    ]


def plain(lines: list[Line]) -> list[Line]:
    return [tuple(cell.replace("`", "") for cell in line) for line in lines]


def test_air_forms() -> None:
    assert table(PAGE, *AIR) == plain(air())


def test_aie_api() -> None:
    assert table(PAGE, *API) == plain(api())


def markdown(heading: Line, lines: list[Line]) -> str:
    rows = [heading, tuple("---" for _ in heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(markdown(AIR, air()), markdown(API, api()), sep="\n\n")
