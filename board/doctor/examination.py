"""Runs the checks, each by itself: whatever one meets, the others and the doctor go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass

from board.doctor.findings import Finding, Status
from board.doctor.machine import Machine

LIMIT_S = 30.0
"""How long a check may take in all, in seconds. What a check starts has tighter limits of its own."""

Results = Mapping[str, Finding]
"""A finding for every check, by name, in the table's order."""


@dataclass(frozen=True)
class Check:
    """One look at one layer. `needs`: earlier checks without which there is nothing to look at."""

    name: str
    title: str
    layer: str
    examine: Callable[[Machine], Finding]
    needs: tuple[str, ...] = ()
    limit_s: float = LIMIT_S


def examine_all(checks: Sequence[Check], machine: Machine) -> dict[str, Finding]:
    """Every check's finding, by name. Never raises, and ends even if a check does not.

    Checks run side by side, each in a thread of its own that does not keep the process alive.
    """
    found: dict[str, Future[Finding]] = {check.name: Future() for check in checks}
    for check in checks:
        threading.Thread(target=_examine, args=(check, machine, found), daemon=True).start()
    return {check.name: _finding(check, found) for check in checks}


def _examine(check: Check, machine: Machine, found: Mapping[str, Future[Finding]]) -> None:
    failed = [name for name in check.needs if not works(found[name].result())]
    finding = Finding(Status.SKIPPED, f"not looked at without {failed[0]}", "") if failed else None
    _settle(found[check.name], finding or _looked_at(check, machine))


def _looked_at(check: Check, machine: Machine) -> Finding:
    try:
        return check.examine(machine).printable()
    except BaseException as error:  # a defect of the check, or of what it called: one layer's loss
        return Finding(
            Status.UNKNOWN,
            f"the check itself failed ({type(error).__name__}: {error})",
            "a check that works",
            "this is a defect of Aerie: please report it, with the output of make report",
        ).printable()


def _finding(check: Check, found: Mapping[str, Future[Finding]]) -> Finding:
    """What the check found; its time begins no later than when those it needs are settled."""
    try:
        return found[check.name].result(timeout=check.limit_s)
    except NotYet:
        said = f"no answer within {check.limit_s:g} s"
        _settle(found[check.name], Finding(Status.UNKNOWN, said, "an answer", "look for what blocks it"))
        return found[check.name].result()


def _settle(future: Future[Finding], finding: Finding) -> None:
    """The first finding counts: a check may answer just when it was given up."""
    with contextlib.suppress(InvalidStateError):
        future.set_result(finding)


def works(finding: Finding) -> bool:
    """Whether other layers can build on this one."""
    return finding.status in (Status.OK, Status.WARNING)
