"""`python -m board report`.

Exit codes: 0 the report is written, 2 it cannot be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from board.compare.command import board_folder
from board.report.archive import INDEX, MOST_BYTES, Entry, write_archive
from board.report.parts import Source, all_parts
from board.report.scrubbing import Scrubber
from llama32_1b.cli import default_cache_dir
from llama32_1b.errors import UserError
from llama32_1b.progress import Reporter

WRITTEN = 0


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="the file to write (default: build/board/aerie-report-DATE.zip)"
    )
    parser.add_argument(
        "--with-prompts",
        action="store_true",
        help="leave prompts and token ids in the gate's and diagnosis' records",
    )


def report(arguments: argparse.Namespace) -> int:
    """Gather versions, the doctor's record, logs and comparison in one file to attach to an issue."""
    path = arguments.out or default_path()
    write_report(path, arguments.with_prompts)
    return WRITTEN


def default_path() -> Path:
    """A file of its own for every report."""
    return board_folder() / f"aerie-report-{time.strftime('%Y%m%d-%H%M%S')}.zip"


def write_report(path: Path, with_prompts: bool = False) -> None:
    """Write it, and say what went in and what to do with it. Raises UserError where it cannot be written."""
    say = Reporter()
    say.note("gathering: versions, doctor, comparison, logs")
    source = Source(default_cache_dir().parent, with_prompts)
    headline = f"Aerie's report of {time.strftime('%Y-%m-%d')}"
    try:
        entries = write_archive(path, all_parts(source), Scrubber.of_this_machine(), headline)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file with --out") from None
    print_entries(entries)
    size = path.stat().st_size
    print(f"{path}: {size} bytes. Look at it before you send it ({INDEX} says what is in it),")
    print("then attach it to an issue.")
    if size > MOST_BYTES:
        print(f"GitHub takes attachments of 25 MB: remove logs from build/board/logs, or send {INDEX} first")


def print_entries(entries: Sequence[Entry]) -> None:
    """What went in with its size, and what did not with the reason."""
    for entry in entries:
        size = "-" if entry.missing else f"{entry.nbytes} bytes"
        missing = f" (not in it: {entry.missing})" if entry.missing else ""
        print(f"{size:>14}  {entry.name}: {entry.what}{missing}")
