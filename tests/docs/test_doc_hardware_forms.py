"""docs/hardware.md, Forms: its tables are those of `aerie/device/lowering`.

Run this file to have the tables as they should be: `python tests/docs/test_doc_hardware_forms.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from doc_transcripts import DOCS, kernels_told_of, table

from aerie.device.lowering import TABLE, LoweringRule, OpForm, find_rule, forms_of
from aerie.device.lowering.evidence import is_run_upstream
from aerie.device.rules.lowering import core_operations
from aerie.kernel_builder.kernels import registry

PAGE = "hardware.md"
USED = ("form", "kernels", "lowered", "evidence", "note")
NOT_LOWERED = ("form", "verdict", "why", "instead", "evidence")
Line = tuple[str, ...]


def used_forms() -> dict[OpForm, set[str]]:
    """Every form on the cores of the kernels that the page tells of, and the kernels that have it."""
    found: dict[OpForm, set[str]] = defaultdict(set)
    for name in kernels_told_of(PAGE, 1, *USED):
        spec = registry()[name]
        for case in spec.cases:
            for op in core_operations(spec.build(**case).module):
                for form in forms_of(op):
                    found[form].add(name)
    return found


def used() -> list[Line]:
    """A line for each row that one of our kernels needs, with the forms that it needs it for."""
    forms: dict[LoweringRule, list[OpForm]] = defaultdict(list)
    kernels = used_forms()
    for form in sorted(kernels, key=str):
        row = find_rule(form, "aie2p")
        assert row is not None, form
        forms[row].append(form)
    return [
        (
            ", ".join(f"`{form}`" for form in forms[row]),
            ", ".join(sorted(set().union(*(kernels[form] for form in forms[row])))),
            row.verdict.value,
            "; ".join(row.evidence),
            row.note,
        )
        for row in TABLE
        if row in forms
    ]


def not_lowered() -> Iterator[Line]:
    """A line for each row about forms that do not lower on AIE2P as they stand."""
    for row in TABLE:
        if not row.verdict.lowers and "aie2p" in row.architectures:
            yield row.forms, row.verdict.value, row.note, row.alternative, "; ".join(row.evidence)


def plain(lines: Iterable[Line]) -> list[Line]:
    return [tuple(cell.replace("`", "") for cell in line) for line in lines]


def test_what_our_kernels_need() -> None:
    assert table(PAGE, *USED) == plain(used())


def test_what_does_not_lower() -> None:
    assert table(PAGE, *NOT_LOWERED) == plain(not_lowered())


def test_counts() -> None:
    rows = {form: find_rule(form, "aie2p") for form in used_forms()}
    counts = Counter(row.verdict.value for row in rows.values() if row)
    unrun = sorted(
        f"`{form}`" for form, row in rows.items() if row and not any(map(is_run_upstream, row.evidence))
    )
    page = " ".join((DOCS / PAGE).read_text().split())
    assert f"{len(rows)} forms: {', '.join(f'{n} {how}' for how, n in counts.most_common())}." in page
    assert f"no program of upstream shows on an NPU2: {', '.join(unrun) or 'nothing'}." in page


def markdown(heading: Line, lines: Iterable[Line]) -> str:
    rows = [heading, tuple("---" for _ in heading), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(markdown(USED, used()), markdown(NOT_LOWERED, not_lowered()), sep="\n\n")
