"""Reading the pages: their code blocks, the sessions in them, and their tables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aerie import rooms
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN

DOCS = Path(__file__).parents[2] / "docs"

FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VERDICT = r"\[verify\] FAIL|\[diagnosis\] layer"
REFUSAL = re.compile(rf'^(error:|{VERDICT}|\S+Error:|guilty:|{{"ok": false)', re.MULTILINE)
CACHES = shutil.ignore_patterns("__pycache__")
COUNTS = re.compile(r"\d+ deselected in [\d.]+s")


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, file to save it as or "", text) of each code block that names a language, in order."""
    return FENCE.findall((DOCS / page).read_text())


def session(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with what it prints."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def matches(expected: str, found: str) -> bool:
    """Whether `found` is what a page shows; `...` in it stands for anything, within a line or for lines."""
    lines = [
        r"(?:.*\n)*?" if line == "...\n" else re.escape(line).replace(r"\.\.\.", ".*")
        for line in _plain(expected).splitlines(keepends=True)
    ]
    return re.fullmatch("".join(lines), _plain(found)) is not None


def _plain(text: str) -> str:
    """Without what differs from run to run, and with the columns of tables closed up."""
    return re.sub(" +", " ", COUNTS.sub("", text))


def table(page: str, *heading: str) -> list[tuple[str, ...]]:
    """The rows of the table with this heading; cells without their backticks."""
    text = (DOCS / page).read_text()
    start = text.index("| " + " | ".join(heading) + " |\n")
    rows = text[start:].partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip().replace("`", "") for cell in row.strip("|").split(" | ")) for row in rows]


def kernels_told_of(page: str, column: int, *heading: str) -> set[str]:
    """The kernels that a table is about: those of the six programs, and those that it names itself.

    So a new kernel need not be in it, and may be. `column`: where the table has kernels' names.
    """
    used = {step.kernel for plan in plan_programs(DEMO, DEMO_SEQ_LEN).values() for step in plan.steps}
    return used.union(*(set(row[column].split(", ")) for row in table(page, *heading)))


def make_project(folder: Path, *copied: str) -> None:
    """A folder like the project's: links to all that it has, and copies of some rooms."""
    shutil.copytree(rooms.PACKAGE, folder / "aerie", ignore=CACHES)
    for name in {*rooms.AT_THE_TOP, "tests", "pyproject.toml"} - set(copied):
        (folder / name).symlink_to(DOCS.parent / name)
    for name in copied:
        shutil.copytree(DOCS.parent / name, folder / name, ignore=CACHES)


def check_command(
    page: str,
    folder: Path,
    command: str,
    expected: str,
    seen_as: Callable[[str], str] = str,
    **variables: str,
) -> None:
    """Run a command of a page in a folder: it prints what the page shows, and fails if that is an error.

    `seen_as` is what of both texts is compared; `variables` go to the command's environment.
    """
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**environment(folder), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if not matches(seen_as(expected), seen_as(done.stdout)):
        pytest.fail(f"{page}: $ {command}\n--- expected\n{expected}--- found\n{done.stdout}", pytrace=False)
    is_refusal = REFUSAL.search(expected) is not None
    if (done.returncode != 0) != is_refusal:
        pytest.fail(f"{page}: $ {command}\nexit status {done.returncode}\n{done.stdout}", pytrace=False)


def environment(folder: Path) -> dict[str, str]:
    """`python` is this one and imports from the folder; output comes in the order it has on a terminal."""
    others = ("PYTEST", "PYTHON", "VNPU")
    own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {
        **own,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "VNPU_OPT": "0",
        "VNPU_CACHE": os.environ["VNPU_CACHE"],
    }
