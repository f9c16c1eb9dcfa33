"""The files that the pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_transcripts import DOCS, FENCE

from aerie import rooms

PROJECT = DOCS.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/chunks.md",
    "docs/hardware.md",
    "docs/install.md",
    "docs/usage.md",
    "docs/demo_checkpoint.md",
    "docs/performance.md",
    "docs/python.md",
    "docs/scale.md",
    "docs/serve.md",
    "docs/add_a_kernel.md",
    "docs/add_a_model.md",
    "docs/static_check.md",
    "docs/virtual_npu.md",
    "docs/verification.md",
    "kernels_cc/README.md",
]
ROOMS = "|".join(("aerie", "benchmarks", "docs", "tests", *rooms.AT_THE_TOP))
PATH = re.compile(rf"`((?:{ROOMS})/[\w./]*)`")
FILE = re.compile(r"`([\w./*]+(?:\.\w+|/))`")
TEST = re.compile(r"\btests/[\w/]+\.\w+")
SOURCE = re.compile(r"`((?:\w+/)+\w+\.(?:py|h|hpp|cc))`")
PLACES = [
    PROJECT,
    PROJECT / "kernels_cc" / "host",
    *(path.parent for where in (PROJECT, PROJECT / "aerie") for path in where.glob("*/__init__.py")),
]
"""Where the paths of sources in the pages begin: `include/vnpu/dots.h` is in virtual_npu."""
UPSTREAM = ("aie_kernels/",)
LINK = re.compile(r"\]\(([^)#:]+)[)#]")


def to_save(text: str) -> set[str]:
    """The names of files that a page has its reader save, and which may be spoken of then."""
    return {Path(path).name for _, path, _ in FENCE.findall(text) if path}


@pytest.mark.parametrize("page", PAGES)
def test_paths_and_links(page: str) -> None:
    text = (PROJECT / page).read_text()
    links = [(PROJECT / page).parent / link for link in LINK.findall(text)]
    paths = [PROJECT / path for path in PATH.findall(text)]
    missing = [path for path in (*links, *paths) if not path.exists()]
    assert [str(path) for path in missing if path.name not in to_save(text)] == []


@pytest.mark.parametrize("page", PAGES)
def test_sources(page: str) -> None:
    text = (PROJECT / page).read_text()
    named = SOURCE.findall(text) + TEST.findall(text)
    missing = [path for path in named if not any((place / path).is_file() for place in PLACES)]
    ours = [path for path in missing if not path.startswith(UPSTREAM)]
    assert [path for path in ours if Path(path).name not in to_save(text)] == []


def test_the_files_to_read() -> None:
    rows = _rows_to_read()
    assert len(rows) == 14
    for room, files in rows:
        missing = [name for name in files if not list(rooms.folder(room).glob(name.rstrip("/")))]
        assert missing == [], room


def _rows_to_read() -> list[tuple[str, list[str]]]:
    text = (DOCS / "architecture.md").read_text()
    section = text[text.index("## Where to read") :]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    return [(room, FILE.findall(cells)) for room, cells in rows]


def test_the_rooms_of_the_readme_in_import_order() -> None:
    (layers,) = re.findall(r"^layers = \[(.*)\]$", (PROJECT / "pyproject.toml").read_text(), re.MULTILINE)
    downwards = [name.strip(' "').removeprefix("aerie.") for name in layers.split(",")]
    shown = re.findall(r"^\| \[`(?:aerie/)?(\w+)/`\]", (PROJECT / "README.md").read_text(), re.MULTILINE)
    assert [room for room in shown if room != "kernels_cc"] == downwards[::-1]


def test_the_commands_of_the_readme() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    readme = (PROJECT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", readme)) <= targets
