"""Input and output of the command line: reads programs, and prints results and errors as text or JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from aerie.common.errors import ProgramError
from aerie.common.text_tables import text_table


def read_text(path: Path) -> str:
    """The text of a file. Raises ProgramError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


_PLACE = re.compile(r"\bline (\d+): ([a-z_0-9]+\.[\w.]+(?: @\w+)?)?")
_PARSED = re.compile(r"^[^\n]*?:(\d+):\d+")


def print_json(value: Mapping[str, Any]) -> None:
    """Print one line of JSON on standard output."""
    print(json.dumps(value, allow_nan=False))


def print_error(error: ProgramError, as_json: bool) -> None:
    """Print an error on standard error or, as JSON, on standard output."""
    if as_json:
        print_json({"ok": False, "error": error_fields(error)})
    else:
        print(f"error: {error}", file=sys.stderr)


def error_fields(error: ProgramError) -> dict[str, Any]:
    """kind, message, and the line and operation that the message names (else null)."""
    message = str(error)
    place = _PLACE.search(message) if error.kind != "parse" else _PARSED.search(message)
    line = int(place[1]) if place else None
    op = place[2] if place and error.kind != "parse" else None
    return {"kind": error.kind, "message": message, "line": line, "op": op}


def print_table(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    alignment: str,
    stream: TextIO,
    alarming: Container[int] = (),
) -> None:
    """Print a table: in the terminal's width and with colours, or as plain text without a terminal.

    alarming: the numbers of the rows to highlight.
    """
    if stream.isatty():
        _print_rich(title, header, rows, alignment, stream, alarming)
    else:
        print(title, text_table([header, *rows], alignment), sep="\n", file=stream)


def _print_rich(
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    alignment: str,
    stream: TextIO,
    alarming: Container[int],
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for name, side in zip(header, alignment, strict=True):
        table.add_column(name, justify="right" if side == ">" else "left", overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*(Text(cell) for cell in row), style="bold red" if number in alarming else None)
    Console(file=stream).print(table)
