"""The files that the pages and the code name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, FENCE, PAGES, PROJECT, blocks, table

PATH = re.compile(
    r"`((?:aerie|kernel_builder|kernels_cc|llama32_1b|multi_launch_builder|tests|tools|docs)/[\w./-]*)`"
)
FILE = re.compile(r"`([\w./*]+(?:\.\w+|/))`")
SOURCE = re.compile(r"`((?:\w+/)+\w+\.(?:py|h|hpp|cc))`")
UPSTREAM = ("aie_kernels/",)
DEV = DOCS / "dev"
OTHERS = [PROJECT / name for name in ("kernels_cc/README.md", "examples/README.md", "CHANGELOG.md")]
EVERY = [page for page in (*PAGES, *OTHERS) if DEV not in page.parents]
"""The notes in docs/dev tell what was, and may name files that are gone."""
PAGE_NAMED = re.compile(r"\bdocs/(?:tutorials|how-to|reference|explanation|dev)/[\w-]+\.md\b")


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def room(name: str) -> Path:
    """The folder of a room: some lie at the top, the others in aerie/."""
    return next(path for path in (PROJECT / name, PROJECT / "aerie" / name) if path.is_dir())


def places() -> list[Path]:
    """Where the paths of sources in the pages may begin: `include/vnpu/dots.h` is in virtual_npu."""
    rooms = [*PROJECT.glob("*/__init__.py"), *PROJECT.glob("aerie/*/__init__.py")]
    return [PROJECT, PROJECT / "aerie", PROJECT / "kernels_cc" / "host", *(path.parent for path in rooms)]


def to_save(page: Path) -> set[str]:
    """The names of files that a page has its reader save, and which may be spoken of then."""
    return {Path(found["file"]).name for found in FENCE.finditer(page.read_text()) if found["file"]}


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_paths_are_there(page: Path) -> None:
    missing = [path for path in PATH.findall(page.read_text()) if not (PROJECT / path).exists()]
    assert [path for path in missing if Path(path).name not in to_save(page)] == []


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_sources_are_there(page: Path) -> None:
    named = SOURCE.findall(page.read_text())
    missing = [path for path in named if not any((place / path).is_file() for place in places())]
    ours = [path for path in missing if not path.startswith(UPSTREAM)]
    assert [path for path in ours if Path(path).name not in to_save(page)] == []


@pytest.mark.parametrize("page", EVERY, ids=name_of)
def test_files_that_are_shown_are_the_files(page: Path) -> None:
    for block in blocks(page):
        if "as in the project" in block.marks:
            path = PROJECT / block.file
            assert (
                path if path.exists() else PROJECT / Path(*path.parts[len(PROJECT.parts) + 1 :])
            ).read_text() == block.text


def test_the_files_to_begin_with() -> None:
    rows = table(DOCS / "explanation" / "architecture.md", "room", "what lives there", "begin with")
    assert len(rows) >= 11
    for name, _, files in rows:
        missing = [file for file in files.split(", ") if not (room(name) / file).exists()]
        assert missing == [], name


def test_pages_that_the_code_names_are_there() -> None:
    """In messages, docstrings and the Makefile."""
    suffixes = {".py", ".cc", ".h", ".hpp", ".toml", ".yml", ".md", ""}
    sources = [*PROJECT.glob("*"), *PROJECT.glob("[a-z]*/**/*")]
    texts = [
        path for path in sources if path.suffix in suffixes and path.is_file() and DOCS not in path.parents
    ]
    ours = [path for path in texts if PROJECT / "build" not in path.parents]
    named = {found for path in ours for found in PAGE_NAMED.findall(path.read_text(errors="ignore"))}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (PROJECT / name).is_file()] == []


def test_the_commands_of_the_readme() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    readme = (PROJECT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", readme)) <= targets
