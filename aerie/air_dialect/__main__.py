"""`aerie air FILE`: parse a module, verify it, print it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.air_dialect.parser_printer import parse, print_module
from aerie.air_dialect.verification import AirParseError
from aerie.common.cli_parser import OneLineParser

INVALID_IR = 1
BAD_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 for invalid IR, 2 for an unreadable file."""
    parser = OneLineParser(
        prog="aerie air",
        description="Parse a module in the AIR dialect (Xilinx/mlir-air), verify it and print it.",
        epilog="Exit status: 0 valid, 1 invalid IR (file:line:col: error on stderr), 2 bad usage.",
    )
    parser.add_argument("file", help="file to read, - for standard input")
    parser.add_argument(
        "--fragment",
        action="store_true",
        help="accept what mlir-air's verifiers accept, even if it cannot run, such as undeclared channels",
    )
    options = parser.parse_args(arguments)
    try:
        name, text = _read(options.file)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        print(f"{options.file}: error: cannot read: {reason}", file=sys.stderr)
        return BAD_USAGE
    try:
        module = parse(text, name, strict=not options.fragment)
    except AirParseError as error:
        print(error, file=sys.stderr)
        return INVALID_IR
    return _write(print_module(module))


def _write(text: str) -> int:
    """Write to standard output; a reader that has gone away, such as `head`, is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _read(file: str) -> tuple[str, str]:
    """The name to show in messages, and the text."""
    if file == "-":
        return "<stdin>", sys.stdin.buffer.read().decode("utf-8")
    return file, Path(file).read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
