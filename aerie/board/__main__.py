"""The command `aerie`: one subcommand per row of the table below.

Exit codes: those of the subcommand; 2 if the request cannot be met (one line says why); 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aerie.board.acceptance import add_acceptance, run_acceptance
from aerie.board.compare.command import add_compare, compare
from aerie.board.doctor.command import add_doctor, doctor
from aerie.board.report.command import add_report, report
from aerie.board.setup_npu import add_setup_npu, setup_npu
from aerie.board.toolchain.command import add_toolchain, run_test_toolchain
from aerie.board.why import add_why, why
from aerie.cli.command_line import CommandParser, add_commands, run_command, setup_process


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="aerie", description="What works on this machine, and what does not.")
    add_commands(
        parser,
        ("doctor", doctor, [add_doctor]),
        ("setup-npu", setup_npu, [add_setup_npu]),
        ("compare", compare, [add_compare]),
        ("test-toolchain", run_test_toolchain, [add_toolchain]),
        ("test-npu", run_acceptance, [add_acceptance]),
        ("report", report, [add_report]),
        ("why", why, [add_why]),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
