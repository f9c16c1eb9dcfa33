"""Command line: `aerie air-run SCRIPT.py` runs a program written against mlir-air on the virtual NPU."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.common.cli_parser import OneLineParser
from aerie.common.errors import ProgramError
from aerie.virtual_npu.air_run import bindings, checkouts, environment
from aerie.virtual_npu.air_run.knobs import CHECKOUT

USER_ERROR = 2
DEVICES = ("npu2", "npu1")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="aerie air-run",
        description="Runs a Python program that is written against mlir-air, or a command such as make "
        "run, on the virtual NPU. It needs a checkout of mlir-air, and nothing that is built from it.",
    )
    parser.add_argument(
        "--mlir-air",
        type=Path,
        metavar="DIR",
        help=f"the checkout (default: {CHECKOUT.name}, or the one that the script or this folder is in)",
    )
    parser.add_argument("--device", choices=DEVICES, default=DEVICES[0], help="default: npu2")
    parser.add_argument(
        "--checks",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="watch every access, transfer and dependency (default: on)",
    )
    parser.add_argument("--env", action="store_true", help="print the environment, for eval in a shell")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="TSV",
        help="run all examples of the checkout, and write what passes and why not",
    )
    parser.add_argument(
        "--expect", type=Path, metavar="TSV", help="with --table: fail where a run that passes there does not"
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="with --table: the runs whose name has TEXT"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="with --table: so many at a time")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="SCRIPT.py [ARGS], or a command")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR


def _run(options: argparse.Namespace) -> int:
    bindings.check_installed()
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    checkout = _checkout(options.mlir_air, words)
    if options.table:
        from aerie.virtual_npu.air_run import table

        return table.write(options.table, checkout, options.only, options.jobs, options.expect)
    variables = environment.environment(checkout, options.device, checks=options.checks)
    if options.env:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    if not words:
        print("error: name a script or a command: aerie air-run SCRIPT.py [ARGS]", file=sys.stderr)
        return USER_ERROR
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    return _replace_process(words, {**os.environ, **variables})


def _checkout(named: Path | None, words: Sequence[str]) -> Path:
    if named is not None:
        return checkouts.find_checkout(named)
    file = next((word for word in words if Path(word).is_file()), None)
    return checkouts.find_checkout(Path(file).resolve().parent if file else None)


def _replace_process(words: Sequence[str], variables: dict[str, str]) -> int:
    try:
        os.execvpe(words[0], list(words), variables)
    except OSError as error:
        print(f"error: {words[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
