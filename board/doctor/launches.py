"""One kernel really compiled and run, on the virtual NPU and on the NPU, against numpy."""

from __future__ import annotations

import json
from typing import Any

from board.doctor.findings import Finding, Status
from board.doctor.machine import Answer, Machine

MODULE = "board.doctor.one_kernel"
VIRTUAL_S = 60.0
NPU_S = 120.0
"""Most seconds for one kernel: aircc and Peano take their time, and another process may hold the device."""


def on_virtual_npu(machine: Machine) -> Finding:
    """A sum of two arrays on the virtual NPU."""
    return _judge(_launch(machine, "virtual", VIRTUAL_S), f"python -m {MODULE} virtual shows all it says")


def on_npu(machine: Machine) -> Finding:
    """The same on the NPU, through aircc, Peano and XRT."""
    return _judge(_launch(machine, "npu", NPU_S), "make test-npu tells more; docs/hardware.md, Running")


def _launch(machine: Machine, backend: str, limit_s: float) -> Answer:
    return machine.ask([machine.python, "-m", MODULE, backend], limit_s)


def _judge(answer: Answer, fix: str) -> Finding:
    wanted = "one kernel compiled and run, with numpy's result"
    record = _record(answer)
    if record is None:
        found = f"{answer.trouble or 'it says nothing that makes sense'}; its last line: {answer.last_line}"
        return Finding(Status.FAILED, found, wanted, fix)
    if record["error"]:
        return Finding(Status.FAILED, str(record["error"]), wanted, fix)
    if record["wrong"]:
        return Finding(Status.FAILED, f"it ran, and {record['wrong']} elements are wrong", wanted, fix)
    return Finding(Status.OK, f"compiled and run in {record['seconds']:.1f} s, result right", wanted)


def _record(answer: Answer) -> dict[str, Any] | None:
    """What one_kernel said; None where it did not come that far."""
    lines = [line for line in answer.text.splitlines() if line.startswith('{"error": ')]
    try:
        record: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return record if {"error", "wrong", "seconds"} <= record.keys() else None
