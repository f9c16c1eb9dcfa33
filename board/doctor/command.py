"""`python -m board doctor`."""

from __future__ import annotations

import argparse
import json

from board.doctor.basics import python

DONE = 0


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON record on standard output")


def doctor(arguments: argparse.Namespace) -> int:
    """Check every layer between Python and the NPU, and say what will work now."""
    finding = python()
    record = {"Python": {"status": finding.status.value, "found": finding.found}}
    print(json.dumps(record) if arguments.json else f"Python: {finding.status.value}: {finding.found}")
    return DONE
