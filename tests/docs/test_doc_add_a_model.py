"""docs/add_a_model.md is held to the code: its files and rows are there, its figures are counted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from doc_transcripts import DOCS, blocks, check_command, session, table

from aerie import rooms
from aerie.engine.families import FAMILIES
from aerie.engine.family import Family

PAGE = "add_a_model.md"
PROJECT = DOCS.parent
NAMED = '"qwen3'
"""How a row that is about this family begins."""


def rows_of(path: str) -> list[str]:
    return [line for line in (PROJECT / path).read_text().splitlines() if line.strip().startswith(NAMED)]


def test_the_files_shown_are_the_files() -> None:
    shown = {path: body for _, path, body in blocks(PAGE) if path}
    assert set(shown) == {"aerie/engine/families/qwen3.py"}
    for path, body in shown.items():
        assert (PROJECT / path).read_text() == body


def test_the_rows_shown_are_in_their_files() -> None:
    rows = [body.strip("\n") for language, path, body in blocks(PAGE) if language == "text" and not path]
    places = ("tests/llama32_1b/test_families.py", "llama32_1b/synthetic/shape.py")
    assert len(rows) == len(places)
    for row, place in zip(rows, places, strict=True):
        assert row in rows_of(place)


def test_what_it_touched_is_counted() -> None:
    (_, family, count), *rows = table(PAGE, "what", "file", "lines")
    assert len((PROJECT / family).read_text().splitlines()) == int(count)
    assert [(path, int(lines)) for _, path, lines in rows] == [
        (path, sum(": {" in line or "_shape(" in line for line in rows_of(path))) for _, path, _ in rows
    ]


def test_nothing_else_in_the_engine_names_the_family() -> None:
    files = (
        path
        for room in (rooms.folder("engine"), rooms.folder("verify"), PROJECT / "benchmarks")
        for path in room.rglob("*.py")
    )
    naming = [path for path in files if "qwen3" in path.read_text().lower() and path.stem != "qwen3"]
    built_on_it = [path.relative_to(PROJECT) for path in naming if "qwen3.FAMILY" in path.read_text()]
    assert {str(path.parent) for path in built_on_it} == {"aerie/engine/families"}
    allowed = {
        PROJECT / path
        for path in (*built_on_it, "aerie/engine/families/a2d_qwen2.py", "aerie/engine/refused.py")
    }
    assert set(naming) <= allowed


def test_every_field_is_told() -> None:
    told = [name for row in table(PAGE, "field", "what it is") for name in row[0].split(", ")]
    assert told == [field.name for field in dataclasses.fields(Family)]
    assert FAMILIES["qwen3"].qk_norm


def test_the_command_of_the_page(tmp_path: Path) -> None:
    ((command, expected),) = (
        pair for language, _, body in blocks(PAGE) if language == "console" for pair in session(body)
    )
    check_command(PAGE, PROJECT, command, expected)
