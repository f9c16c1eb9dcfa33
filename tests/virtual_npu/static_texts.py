"""Programs for the tests of the static check: a herd in a segment in a launch, with one thing in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from aerie.device import CheckReport, Fault, check

CONSTANTS = "".join(f"%c{n} = arith.constant {n} : index\n" for n in (0, 1, 2, 3, 4, 5, 8, 9, 16, 32, 64))
ONE = {"a": "memref<64x64xbf16>"}


def program(
    herd: str = "",
    *,
    segment: str = "",
    launch: str = "",
    function: str = "",
    module: str = "",
    tiles: str = "%c1, %c1",
    herd_attributes: str = "",
    segment_attributes: str = "",
    unroll: str = "",
    trips: str = "",
    args: Mapping[str, str] = ONE,
) -> str:
    """AIR text: the bodies of each level, in which %c0 ... %c64 are constants and `args` have their names."""
    passed = ", ".join(f"%{name}=%{name}" for name in args)
    captured = f"args({passed}) : {', '.join(args.values())}" if args else ""
    x, y = (size.strip() for size in tiles.split(","))
    return f"""{module}
func.func @f({", ".join(f"%{name}: {type_}" for name, type_ in args.items())}) {{
{CONSTANTS}{function}
air.launch {trips or "() in ()"} {captured} {{
{CONSTANTS}{launch}
air.segment @s {unroll} {captured} {_attributes(segment_attributes)} {{
{CONSTANTS}{segment}
air.herd @h tile (%x, %y) in (%sx={x}, %sy={y}) {captured} {_attributes(herd_attributes)} {{
{CONSTANTS}{herd}
}}
}}
}}
return
}}
"""


def _attributes(text: str) -> str:
    return f"attributes {{{text}}}" if text else ""


def used(report: CheckReport, resource: str) -> int:
    """What a program takes of a resource that one line of its report is about."""
    (found,) = [usage.used for usage in report.usages if usage.resource == resource]
    return found


INCOMPLETE = frozenset({"traffic", "unpaired"})
"""Rules about a whole program: one with one thing in it lacks the other ends and the host."""


def faults_of(report: CheckReport) -> list[Fault]:
    """The faults of a program with one thing in it."""
    return _found(report.faults)


def _found(faults: Iterable[Fault], kind: str = "") -> list[Fault]:
    return [fault for fault in faults if fault.kind == kind or fault.kind not in INCOMPLETE]


def assert_clean(text: str, **options: Any) -> None:
    """The program has neither faults nor warnings."""
    report = check(text, **options)
    assert [str(found) for found in _found((*report.faults, *report.warnings))] == []


def assert_fault(text: str | ModuleOp, kind: str, message: str, **options: Any) -> None:
    """The program has exactly one fault, of this kind, whose message matches."""
    report = check(text, **options)
    faults = _found(report.faults, kind)
    assert [fault.kind for fault in faults] == [kind], [str(fault) for fault in faults]
    assert re.search(message, str(faults[0])), str(faults[0])
    assert not report.ok


def assert_warning(text: str, kind: str, message: str, **options: Any) -> None:
    """The program has no fault, and exactly one warning."""
    report = check(text, **options)
    warnings = _found(report.warnings, kind)
    assert _found(report.faults) == []
    assert [found.kind for found in warnings] == [kind]
    assert re.search(message, str(warnings[0])), str(warnings[0])
