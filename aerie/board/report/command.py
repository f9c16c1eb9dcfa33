"""`aerie report`: parts to one zip file, scrubbed, with an index that says what is in it.

A zip and no tar: an issue on GitHub takes both, and every desktop opens a zip with a double click, which is
what whoever sends it is asked to do first. Exit codes: 0 the report is written, 2 it cannot be.
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
from aerie.board.compare.records import Status
from aerie.board.report.parts import Part, Source, all_parts
from aerie.board.report.scrubbing import Scrubber
from aerie.cli.arguments import CACHE_FOLDER_HELP
from aerie.common import folders, store
from aerie.common.errors import UserError
from aerie.engine.progress import Reporter

INDEX = "index.md"
RIGHT = {status.value for status in Status if status.is_right}
MOST_BYTES = 24 << 20
"""GitHub takes attachments of 25 MB."""


@dataclass(frozen=True)
class Entry:
    """A file in the archive: its name, what it is, its bytes; why it is not there, where it is not."""

    name: str
    what: str
    nbytes: int
    missing: str


def write_archive(path: Path, parts: Iterable[Part], scrubber: Scrubber, headline: str) -> list[Entry]:
    """Write the archive in one step, and give what went in. Raises OSError."""
    clean = [_scrubbed(part, scrubber) for part in parts]
    entries = [Entry(part.name, part.what, len(part.content.encode()), part.missing) for part in clean]
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_whole(path, lambda file: _fill(cast(IO[bytes], file), clean, index(entries, headline, clean)))
    return entries


def _fill(file: IO[bytes], parts: Sequence[Part], index_text: str) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(INDEX, index_text)
        for part in parts:
            if not part.missing:
                archive.writestr(part.name, part.content)


def _scrubbed(part: Part, scrubber: Scrubber) -> Part:
    clean = scrubber.json if part.name.endswith(".json") else scrubber.text
    return Part(scrubber.text(part.name), part.what, clean(part.content), scrubber.text(part.missing))


def index(entries: Sequence[Entry], headline: str, parts: Sequence[Part] = ()) -> str:
    """The page that says what is in the archive, what is not and why; the comparison's result at the top."""
    there = [f"| {entry.name} | {entry.nbytes} | {entry.what} |" for entry in entries if not entry.missing]
    missing = [f"| {entry.name} | {entry.what} | {entry.missing} |" for entry in entries if entry.missing]
    lines = [
        f"# {headline}",
        "",
        *_summary(parts),
        "Folders of the user, the names of user and machine, and what looks like a secret were replaced;",
        "prompts were left out unless they were asked for. Look through the files before you send them.",
        "",
        "| file | bytes | what |",
        "| --- | --- | --- |",
        *there,
        "",
    ]
    if missing:
        lines += ["Not in it:", "", "| file | what | why |", "| --- | --- | --- |", *missing, ""]
    return "\n".join(lines)


def _summary(parts: Sequence[Part]) -> list[str]:
    """What the comparison found, item by item that is not right."""
    record = next((part.content for part in parts if part.name.endswith("compare.json") and part.content), "")
    if not record:
        return ["Nothing was compared on this machine yet: `make test-npu` does that.", ""]
    try:
        headline, wrong = _verdict(json.loads(record))
    except (ValueError, TypeError, KeyError):
        return ["The comparison's record is not one of this version: `make test-npu` makes it anew.", ""]
    return [headline, "", *wrong, *([""] if wrong else [])]


def _verdict(found: Any) -> tuple[str, list[str]]:
    wrong = [_wrong(item) for item in found["items"] if item["status"] not in RIGHT]
    verdict = f"{len(wrong)} of {len(found['items'])} are not" if wrong else "all is as on the virtual NPU"
    return f"Backend {found['backend']} against {found['against']}: {verdict}.", wrong


def _wrong(item: Mapping[str, Any]) -> str:
    said = (item["item"]["name"], item["status"], item["first_at_fault"], item["message"])
    return "- " + " ".join(part for part in said if part)


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
    """A file of its own for every report."""
    return board_folder() / f"aerie-report-{time.strftime('%Y%m%d-%H%M%S')}.zip"


def write_report(path: Path, with_prompts: bool = False) -> None:
    """Write it, and say what went in and what to do with it. Raises UserError where it cannot be written."""
    say = Reporter()
    say.note("gathering: versions, doctor, comparison, logs")
    source = Source(folders.home(), with_prompts)
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
        logs = board_folder() / "logs"
        print(f"GitHub takes attachments of 25 MB: remove logs from {logs}, or send {INDEX} first")


def print_entries(entries: Sequence[Entry]) -> None:
    """What went in with its size, and what did not with the reason."""
    for entry in entries:
        size = "-" if entry.missing else f"{entry.nbytes} bytes"
        missing = f" (not in it: {entry.missing})" if entry.missing else ""
        print(f"{size:>14}  {entry.name}: {entry.what}{missing}")
