"""`aerie report`: writes parts, redacted, to one zip file with an index of its content.

The format is zip, not tar: an issue on GitHub takes both, and every desktop opens a zip with a double click,
which the sender is asked to do first. Exit codes: 0 the report is written, 2 it cannot be.
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from aerie.board.compare.command import board_folder
from aerie.board.compare.records import ItemStatus
from aerie.board.report.parts import ReportPart, ReportSource, all_parts
from aerie.board.report.redaction import Redactor
from aerie.cli.arguments import CACHE_FOLDER_HELP
from aerie.common import folders, store
from aerie.common.errors import UserError
from aerie.engine.reporter import Reporter

INDEX = "index.md"
RIGHT = {status.value for status in ItemStatus if status.is_right}
MAX_BYTES = 24 << 20
"""GitHub takes attachments of 25 MB."""


@dataclass(frozen=True)
class ArchiveEntry:
    """A file in the archive: its name, its description, its bytes; or why it is missing."""

    name: str
    what: str
    nbytes: int
    missing: str


def write_archive(
    path: Path, parts: Iterable[ReportPart], scrubber: Redactor, headline: str
) -> list[ArchiveEntry]:
    """Write the archive in one step. Returns its entries. Raises OSError."""
    clean = [_scrubbed(part, scrubber) for part in parts]
    entries = [
        ArchiveEntry(part.name, part.description, len(part.content.encode()), part.missing) for part in clean
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_atomic(
        path, lambda file: _fill(cast(IO[bytes], file), clean, index(entries, headline, clean))
    )
    return entries


def _fill(file: IO[bytes], parts: Sequence[ReportPart], index_text: str) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, index_text)
        for part in parts:
            if not part.missing:
                archive.writestr(part.name, part.content)


def _scrubbed(part: ReportPart, scrubber: Redactor) -> ReportPart:
    clean = scrubber.redact_json if part.name.endswith(".json") else scrubber.redact_text
    return ReportPart(
        scrubber.redact_text(part.name),
        part.description,
        clean(part.content),
        scrubber.redact_text(part.missing),
    )


def index(entries: Sequence[ArchiveEntry], headline: str, parts: Sequence[ReportPart] = ()) -> str:
    """The index page: what is in the archive, what is missing and why; the comparison's result at the top."""
    there = [f"| {entry.name} | {entry.nbytes} | {entry.what} |" for entry in entries if not entry.missing]
    missing = [f"| {entry.name} | {entry.what} | {entry.missing} |" for entry in entries if entry.missing]
    lines = [
        f"# {headline}",
        "",
        *_summary(parts),
        "Folders of the user, the names of user and machine, and what looks like a secret were replaced.",
        "Prompts are left out unless --with-prompts was used. Look through the files before you send them.",
        "",
        "| file | bytes | what |",
        "| --- | --- | --- |",
        *there,
        "",
    ]
    if missing:
        lines += ["Not in it:", "", "| file | what | why |", "| --- | --- | --- |", *missing, ""]
    return "\n".join(lines)


def _summary(parts: Sequence[ReportPart]) -> list[str]:
    """The comparison's findings: the items that failed."""
    record = next((part.content for part in parts if part.name.endswith("compare.json") and part.content), "")
    if not record:
        return ["Nothing was compared on this machine yet: `make test-npu` does that.", ""]
    try:
        headline, wrong = _verdict(json.loads(record))
    except (ValueError, TypeError, KeyError):
        return ["The comparison's record is not one of this version: `make test-npu` makes it anew.", ""]
    return [headline, "", *wrong, *([""] if wrong else [])]


def _verdict(record: Any) -> tuple[str, list[str]]:
    wrong = [_wrong(item) for item in record["items"] if item["status"] not in RIGHT]
    verdict = f"{len(wrong)} of {len(record['items'])} are not" if wrong else "all is as on the virtual NPU"
    return f"Backend {record['backend']} against {record['against']}: {verdict}.", wrong


def _wrong(item: Mapping[str, Any]) -> str:
    words = (item["item"]["name"], item["status"], item["first_at_fault"], item["message"])
    return "- " + " ".join(part for part in words if part)


WRITTEN = 0


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the file to write (default: board/aerie-report-DATE.zip in {CACHE_FOLDER_HELP})",
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
    """A new file for every report."""
    return board_folder() / f"aerie-report-{time.strftime('%Y%m%d-%H%M%S')}.zip"


def write_report(path: Path, with_prompts: bool = False) -> None:
    """Write the report; print its content and what to do with it. Raises UserError if it cannot
    be written.
    """
    say = Reporter()
    say.note("gathering: versions, doctor, comparison, logs")
    source = ReportSource(folders.cache_folder(), with_prompts)
    headline = f"Aerie's report of {time.strftime('%Y-%m-%d')}"
    try:
        entries = write_archive(path, all_parts(source), Redactor.for_this_machine(), headline)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file with --out") from None
    print_entries(entries)
    size = path.stat().st_size
    print(f"{path}: {size} bytes. Look at it before you send it ({INDEX} says what is in it),")
    print("then attach it to an issue.")
    if size > MAX_BYTES:
        logs = board_folder() / "logs"
        print(f"GitHub takes attachments of 25 MB: remove logs from {logs}, or send {INDEX} first")


def print_entries(entries: Sequence[ArchiveEntry]) -> None:
    """Print the size of each part, and the reason of each missing part."""
    for entry in entries:
        size = "-" if entry.missing else f"{entry.nbytes} bytes"
        missing = f" (not in it: {entry.missing})" if entry.missing else ""
        print(f"{size:>14}  {entry.name}: {entry.what}{missing}")
