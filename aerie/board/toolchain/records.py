"""The outcomes of the stages: a line as each ends, the table, every failure as text, the verdict; and as
JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from aerie.board.report.redaction import Redactor
from aerie.board.toolchain.results import NOTHING_COMPARED, BitComparison, BitComparisons, TextComparison
from aerie.common.text_tables import compact_table, print_tables
from aerie.runtime.npu.core_ir import CoreFinding
from aerie.runtime.npu.stages import STAGES, StageOutcome, StageStatus, StageTools

SCHEMA = 1


@dataclass(frozen=True)
class SubjectOutcome:
    """How one program or kernel ended.

    refused: why the static check refused it, "" if it passed. products: what the loops that multiply blocks
    do.
    findings: what is wrong with the code of the cores.
    """

    name: str
    kind: str
    options: tuple[str, ...]
    refused: str = ""
    results: tuple[StageOutcome, ...] = ()
    compared: BitComparisons = NOTHING_COMPARED
    products: str = ""
    findings: tuple[str, ...] = ()

    @property
    def failed(self) -> StageOutcome | None:
        """The stage that failed."""
        return next((result for result in self.results if result.status is StageStatus.FAILED), None)

    @property
    def core_findings(self) -> list[CoreFinding]:
        """What stage 7 found in the code of the cores, slow and wrong."""
        return [finding for result in self.results for finding in result.findings]

    @property
    def is_right(self) -> bool:
        """Whether nothing failed. A refusal by our own check, with its reason, counts as right."""
        wrong = self.compared.placed.is_wrong or self.compared.device.is_wrong
        return self.failed is None and not wrong and not self.findings

    @property
    def seconds(self) -> float:
        """Seconds of all stages, without the comparison."""
        return sum(result.seconds for result in self.results)


def line_of(name: str, result: StageOutcome) -> str:
    """One stage of one program or kernel, as it ends."""
    detail = result.note or (result.failure.line if result.failure else "")
    seconds = f" {result.seconds:.1f} s" if result.status in (StageStatus.OK, StageStatus.FAILED) else ""
    return f"{name}: {result.stage} {result.status}{seconds}{f': {detail}' if detail else ''}"


def comparison_lines(outcome: SubjectOutcome) -> Iterator[str]:
    """The comparisons, one line each."""
    for title, compared in _titled(outcome):
        seconds = f" {compared.seconds:.1f} s" if compared.seconds else ""
        message = f": {compared.message}" if compared.message else ""
        yield f"{outcome.name}: {title} {compared.bits}{seconds}{message}"


def _titled(outcome: SubjectOutcome) -> tuple[tuple[str, TextComparison], ...]:
    return ("bits", outcome.compared.placed), ("device bits", outcome.compared.device)


def print_outcomes(outcomes: Sequence[SubjectOutcome], title: str, console: Console | None = None) -> None:
    """Print the table, the failures, what this release lacks, and the verdict as the last line."""
    console = console or Console(highlight=False, markup=False)
    print_tables(console, _table(outcomes, title))
    for line in (*details(outcomes), *_left_out(outcomes), verdict_line(outcomes)):
        console.print(line, soft_wrap=True)


def _table(outcomes: Sequence[SubjectOutcome], title: str) -> Table:
    table = compact_table(
        title, ("program, kernel", "stages", "fails at", "bits", "device bits"), ("seconds",)
    )
    kind = ""
    for outcome in outcomes:
        if kind and outcome.kind != kind:
            table.add_section()
        kind = outcome.kind
        bits = ("-" if c.bits is BitComparison.NOT_RUN else c.bits.value for _, c in _titled(outcome))
        table.add_row(outcome.name, *_stages(outcome), *bits, f"{outcome.seconds:.1f}")
    return table


def _stages(outcome: SubjectOutcome) -> tuple[str, str]:
    """How many of the stages that can run here passed, and what ended it."""
    if outcome.refused:
        return "-", "our own check"
    passed = sum(result.status is StageStatus.OK for result in outcome.results)
    possible = sum(result.status is not StageStatus.SKIPPED for result in outcome.results)
    return f"{passed} of {possible}", outcome.failed.stage.title if outcome.failed else ""


def details(outcomes: Sequence[SubjectOutcome]) -> Iterator[str]:
    """Every refusal, failure, difference and finding: the tool's line, its meaning, and what the cores' loops
    of products do.
    """
    for outcome in outcomes:
        if outcome.refused:
            yield f"{outcome.name}, refused before any tool: {outcome.refused}"
        if outcome.failed and outcome.failed.failure:
            yield f"{outcome.name}, stage {outcome.failed.stage}: {outcome.failed.failure.line}"
            yield from (f"  this means: {meaning}" for meaning in outcome.failed.failure.meanings)
        for title, compared in _titled(outcome):
            if compared.is_wrong:
                yield f"{outcome.name}, {title} against the source's: {compared.message}"
        if outcome.products:
            yield f"{outcome.name}, core code: {outcome.products}"
        slow = [finding for finding in outcome.core_findings if not finding.wrong]
        yield from (f"{outcome.name}, core code, slow: {finding}" for finding in slow)
        yield from (f"{outcome.name}, core code, wrong: {finding}" for finding in outcome.findings)


def _left_out(outcomes: Sequence[SubjectOutcome]) -> Iterator[str]:
    names = {name: result.stage for o in outcomes for result in o.results for name in result.left_out}
    for name, stage in names.items():
        yield f"stage {stage} ran without {name}, which this release does not have"


def verdict_line(outcomes: Sequence[SubjectOutcome]) -> str:
    """The verdict. Scripts read the first word after the name."""
    right = all(outcome.is_right for outcome in outcomes)
    skipped = {r.stage.number for o in outcomes for r in o.results if r.status is StageStatus.SKIPPED}
    counts = {
        "through all stages": sum(not o.refused and not o.failed for o in outcomes),
        "refused by our own check": sum(bool(o.refused) for o in outcomes),
        "stopped by a tool": sum(o.failed is not None for o in outcomes),
        "with the bits of the source": sum(o.compared.placed.bits is BitComparison.SAME for o in outcomes),
        "with other bits": sum(o.compared.placed.is_wrong for o in outcomes),
        "with the bits of the source on the device's level": sum(
            o.compared.device.bits is BitComparison.SAME for o in outcomes
        ),
        "with other bits there": sum(o.compared.device.is_wrong for o in outcomes),
        "with findings in core code": sum(bool(o.findings) for o in outcomes),
    }
    counted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    partly = f", but for stages {', '.join(map(str, sorted(skipped)))}" if skipped else ""
    return f"[test-toolchain] {'PASS' if right else 'FAIL'}{partly}: {counted}"


def record(outcomes: Sequence[SubjectOutcome], tools: StageTools, of: Mapping[str, Any]) -> dict[str, Any]:
    """All outcomes for JSON, without anything that identifies the machine's owner. of: model, seq_len and
    weights that they are of.
    """
    document = {
        "schema": SCHEMA,
        **of,
        "tools": {name: tools.version(name) for name in tools.paths},
        "stages": [
            {"number": stage.number, "title": stage.title, "obstacle": tools.blocker(stage)}
            for stage in STAGES
        ],
        "right": all(outcome.is_right for outcome in outcomes),
        "items": [_entry(outcome) for outcome in outcomes],
    }
    scrubbed: dict[str, Any] = Redactor.for_this_machine().redact_record(document)
    return scrubbed


def _entry(outcome: SubjectOutcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "kind": outcome.kind,
        "options": list(outcome.options),
        "refused": outcome.refused,
        "right": outcome.is_right,
        "stages": [_result(result) for result in outcome.results],
        "bits": _compared(outcome.compared.placed),
        "device_bits": _compared(outcome.compared.device),
        "products": outcome.products,
        "slow": [str(finding) for finding in outcome.core_findings if not finding.wrong],
        "findings": list(outcome.findings),
    }


def _compared(compared: TextComparison) -> dict[str, Any]:
    return {
        "status": compared.bits.value,
        "said": compared.message,
        "seconds": round(compared.seconds, 2),
    }


def _result(result: StageOutcome) -> dict[str, Any]:
    failure = result.failure
    return {
        "number": result.stage.number,
        "status": result.status.value,
        "seconds": round(result.seconds, 2),
        "note": result.note,
        "line": failure.line if failure else "",
        "meanings": list(failure.meanings) if failure else [],
        "left_out": list(result.left_out),
    }
