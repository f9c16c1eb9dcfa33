"""Forms of AIR that mlir-air is known not to lower, or to lower to something else."""

from __future__ import annotations

from collections.abc import Iterator

from virtual_npu.static.lowering.air import air_forms_of, find_air
from virtual_npu.static.report import Fault, Finding
from virtual_npu.static.scopes import Program, place_of


def known_bad(program: Program) -> Iterator[Finding]:
    """A warning at each: only the source of mlir-air tells of them, nobody's record of a failure."""
    for op in program.module.walk():
        for form in air_forms_of(op):
            row = find_air(form, program.device.architecture)
            if row is not None and not row.verdict.lowers:
                message = f"{form.detail}: {row.note}; {row.instead}"
                yield Fault("lowering", place_of(op), message, row.evidence[0], op, certain=False)
