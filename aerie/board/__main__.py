"""`aerie`: a command per row of the table below.

Exit codes: what each command says; 2 for a request that cannot be met (one line says why); 130 stopped by
Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aerie.board.acceptance import acceptance, add_acceptance
from aerie.board.compare.command import add_compare, compare
from aerie.board.doctor.command import add_doctor, doctor
from aerie.board.report.command import add_report, report
from aerie.board.setup_npu import add_setup_npu, setup_npu
from aerie.board.toolchain.command import add_toolchain, toolchain
from aerie.cli.arguments import CommandParser, add_commands, run_command, setup_process


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="aerie", description="What works on this machine, and what does not.")
    add_commands(
        parser,
        ("doctor", doctor, [add_doctor]),
        ("setup-npu", setup_npu, [add_setup_npu]),
        ("compare", compare, [add_compare]),
        ("test-toolchain", toolchain, [add_toolchain]),
        ("test-npu", acceptance, [add_acceptance]),
        ("report", report, [add_report]),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
