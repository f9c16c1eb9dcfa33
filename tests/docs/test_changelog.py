"""CHANGELOG.md: its form, and that each old name is gone and each new one is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
TABLES = {"Modules that moved", "Names that changed"}


def rows(heading: str) -> list[tuple[str, str]]:
    section = PAGE.split(f"### {heading}\n", 1)[1].split("\n### ", 1)[0]
    return re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", section, re.MULTILINE)


def exists(name: str) -> bool:
    """Whether a dotted name below aerie is a module, or something in one."""
    parts = ["aerie", *name.split(".")]
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        if count == len(parts):
            return getattr(found, "__file__", None) is not None  # a folder that a module left behind is none
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_the_form_is_that_of_keep_a_changelog() -> None:
    assert PAGE.startswith("# Changelog\n")
    versions = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert all(re.fullmatch(r"\[?\d+\.\d+\.\d+\]? - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])
    assert set(re.findall(r"^### (.*)$", PAGE, re.MULTILINE)) - KINDS == TABLES


@pytest.mark.parametrize("heading", sorted(TABLES))
def test_rows_are_sorted_and_each_name_has_one(heading: str) -> None:
    old = [name for name, _ in rows(heading)]
    assert old
    assert old == sorted(set(old))


@pytest.mark.parametrize(("old", "new"), [row for heading in sorted(TABLES) for row in rows(heading)])
def test_the_old_name_is_gone_and_the_new_one_is_there(old: str, new: str) -> None:
    assert exists(new), f"aerie.{new} is in no module"
    assert not exists(old), f"aerie.{old} is still there"
