"""docs/add_a_kernel.md does what it says: its files are written, its commands run, their output compared.

A code block with `file=PATH` is a file to save, a `console` block a shell session. In expected output `...`
stands for anything, within a line or for lines. All of it happens in a copy of the project.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "add_a_kernel.md"
COPIED = "kernel_builder"  # the page adds a file to it
LINKED = (
    "air_dialect",
    "virtual_npu",
    "kernels_cc",
    "multi_launch_builder",
    "runtime",
    "tests",
    "pyproject.toml",
)
FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COUNTS = re.compile(r"\d+ deselected in [\d.]+s")


def test_page_runs(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    checked = 0
    for language, path, body in FENCE.findall(PAGE.read_text()):
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(body)
        elif language == "console":
            for command, expected in _session(body):
                _check(tmp_path, command, expected)
                checked += 1
    assert checked > 20


def test_elisions_stand_for_anything_and_nothing_else() -> None:
    assert _pattern("a\n...\nb ... c\n").fullmatch("a\n1\n2\nb 3 c\n")
    assert _pattern("a\n...\n").fullmatch("a\n")
    assert not _pattern("a\n...\nb\n").fullmatch("a\n1\nbb\n")
    assert not _pattern("a\n").fullmatch("a\nb\n")
    assert not _pattern("a.b\n").fullmatch("acb\n")


def _copy_project(folder: Path) -> None:
    shutil.copytree(PROJECT / COPIED, folder / COPIED, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LINKED:
        (folder / name).symlink_to(PROJECT / name)


def _session(body: str) -> Iterator[tuple[str, str]]:
    """The commands of a session, each with what it prints."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        yield command, expected


def _check(folder: Path, command: str, expected: str) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    if not _pattern(expected).fullmatch(_plain(done.stdout)):
        pytest.fail(
            f"{PAGE.name}: $ {command}\n--- expected\n{expected}--- found\n{done.stdout}", pytrace=False
        )
    is_refusal = re.search(r"^(error:|\S+Error:)", expected, re.MULTILINE) is not None
    if (done.returncode != 0) != is_refusal:
        pytest.fail(f"{PAGE.name}: $ {command}\nexit status {done.returncode}\n{done.stdout}", pytrace=False)


def _environment(folder: Path) -> dict[str, str]:
    """`python` is this one, and imports the copy; output comes in the order it would have on a terminal."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "VNPU"))
    }
    return {
        **own,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "VNPU_OPT": "0",
    }


def _plain(text: str) -> str:
    """Without what differs from run to run, and with the columns of tables closed up."""
    return re.sub(" +", " ", COUNTS.sub("", text))


def _pattern(expected: str) -> re.Pattern[str]:
    lines = [
        r"(?:.*\n)*?" if line == "...\n" else re.escape(line).replace(r"\.\.\.", ".*")
        for line in _plain(expected).splitlines(keepends=True)
    ]
    return re.compile("".join(lines))
