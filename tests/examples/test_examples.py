"""examples/: each runs as its docstring says, and prints what stands there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "examples"
PROGRAMS = sorted(FOLDER.rglob("*.py"))
CLIENT = FOLDER / "client.py"
MAX_LINES = 40


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**own, "PYTHONPATH": str(PROJECT)}


def expected(program: Path) -> str:
    """The output in a program's docstring: its last block that is set in by four."""
    text = ast.get_docstring(ast.parse(program.read_text()), clean=False)
    assert text is not None
    return textwrap.dedent(re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)[-1])


def output(program: Path, *arguments: str) -> str:
    words = [sys.executable, str(program), *arguments]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_output(program: Path, found: str) -> None:
    """`...` in the docstring stands for anything in a line."""
    pattern = re.escape(expected(program)).replace(r"\.\.\.", ".*")
    assert re.fullmatch(pattern, found), f"{program.name}: expected\n{expected(program)}\nfound\n{found}"


@pytest.mark.parametrize("program", [path for path in PROGRAMS if path != CLIENT], ids=lambda path: path.stem)
def test_a_program_prints_what_its_docstring_says(program: Path) -> None:
    check_output(program, output(program))


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server of the demo model, which prints it first of all."""
    words = [sys.executable, "-m", "aerie", "serve", "--model", "demo", "--port", "0"]
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(words, env=environment(), stdout=out, stderr=err, text=True) as server:
        assert server.stdout is not None
        try:
            first = server.stdout.readline()
            address = re.search(r"http://[\d.:]+", first)
            assert address is not None, first + server.stdout.read()
            yield address[0]
        finally:
            server.terminate()
            server.communicate(timeout=60)


@pytest.mark.slow
def test_the_client_prints_what_its_docstring_says() -> None:
    with serving() as address:
        check_output(CLIENT, output(CLIENT, address))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_short(program: Path) -> None:
    assert len(program.read_text().splitlines()) <= MAX_LINES


def test_the_page_has_every_example() -> None:
    page = (FOLDER / "README.md").read_text()
    linked = set(re.findall(r"^\| \[[\w./]+\]\(([\w./]+)\)", page, re.MULTILINE))
    found = {path.relative_to(FOLDER).parts[0] for path in FOLDER.rglob("*") if path.is_file()}
    assert linked == found - {"README.md", "__pycache__"}


def test_the_command_of_the_page_runs_the_air_program() -> None:
    (words,) = re.findall(r"`aerie (vnpu run .*?)`", (FOLDER / "README.md").read_text())
    command = [sys.executable, "-m", "aerie", *words.split()]
    done = subprocess.run(
        command, cwd=PROJECT, env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "arg1" in done.stdout
