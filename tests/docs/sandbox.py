"""Runs the blocks of a page in order, in one folder, and compares what they print with what the page shows.

`aerie` runs in this process, so that its imports and loaded code are paid once; all else runs in a shell. A
page that changes the project has a copy of it, and then every command is a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie.__main__ import main
from tests.docs.broken import make_broken
from tests.docs.pages import PROJECT, Block, blocks

VERDICT = r"\[verify\] FAIL|\[diagnosis\] layer"
REFUSAL = re.compile(rf'^(error:|{VERDICT}|\S+Error:|guilty:|{{"ok": false)', re.MULTILINE)
PLAIN = re.compile(r"[\w ./:=,@+%?*{{}}\[\]()!#-]|'[^']*'|\"[^\"$`\\]*\"")
"""What a command may have that is run here: no pipe, no redirection, no variable."""
PORT = "8000"
"""Where the pages say that a server is."""
OF_A_PAGE = re.compile(r"(\S+) of (\S+\.md)")
"""A mark that asks for a file that another page shows."""
COUNTS = re.compile(r"\d+ deselected in [\d.]+s")
NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]\d+)?")
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".git", ".venv", "build", "*_cache")


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


def without_numbers(text: str) -> str:
    """Every number as N, tables as wide as any, and the step nearest its bound as any where it keeps it.

    Other CPUs sum in another order, so that another step is nearest. One that is beyond its bound is named.
    """
    text = re.sub(r"step \w+(?= .*ok *$)", "step NAME", NUMBER.sub("N", text), flags=re.MULTILINE)
    lines = [re.sub(r" +", " ", line.strip()) for line in re.sub(r"-{2,}", "--", text).splitlines()]
    return "\n".join([*lines, ""])


class Sandbox:
    """A folder for a page, with the project in it as links or, where `own_project`, as a copy."""

    def __init__(self, folder: Path, own_project: bool = False) -> None:
        self.folder, self.own_project = folder, own_project
        self._server: subprocess.Popen[str] | None = None
        self._port = PORT
        names = [
            path.name for path in PROJECT.iterdir() if not path.name.startswith(".") and path.name != "build"
        ]
        for name in names:
            source, target = PROJECT / name, folder / name
            if own_project and source.is_dir():
                shutil.copytree(source, target, symlinks=True, ignore=NOT_COPIED)
            elif own_project or name in ("Makefile", "tools", "pyproject.toml", "constraints.txt"):
                (shutil.copy if own_project else os.symlink)(source, target)
        self._make_environment()

    def _make_environment(self) -> None:
        """.venv as `make` looks for it, with this Python."""
        programs = self.folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name in ("run", "test", "docs"):
            (programs.parent / f".stamp-{name}").touch()
        (programs / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (programs / "aerie").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m aerie "$@"\n')
        for program in programs.iterdir():
            program.chmod(0o755)

    def prepare(self, marks: tuple[str, ...]) -> None:
        """Make what a page's comments ask for."""
        if "broken checkpoints" in marks:
            make_broken(self.folder)
        if "server" in marks:
            self._serve()
        for found in filter(None, map(OF_A_PAGE.fullmatch, marks)):
            (block,) = (each for each in blocks(PROJECT / found[2]) if each.file == found[1])
            (self.folder / found[1]).write_text(block.text)

    def _serve(self) -> None:
        """A server of the demo model on a free port, which takes the place of PORT in what is run."""
        command = [sys.executable, "-m", "aerie", "serve", "--port", "0", "--slot-save-path", "slots"]
        self._server = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._server.stdout
        assert select.select([self._server.stdout], [], [], 60)[0], "the server sent nothing for 60 s"
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self._server.stdout.readline())
        assert found, "the server did not say where it listens"
        self._port = found[1]

    def close(self) -> None:
        """End the server, where there is one."""
        if self._server:
            self._server.terminate()
            self._server.communicate(timeout=60)

    def _placed(self, text: str) -> str:
        return text.replace(f":{PORT}/", f":{self._port}/")

    def run(self, block: Block, printed: Block | None = None) -> None:
        """Save, run or skip a block. printed: the block after it, where it shows what Python prints."""
        if block.file:
            (self.folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / block.file).write_text(block.text)
        elif block.language == "console":
            for command, expected in block.session:
                self._check(block, command, expected, *self.execute(command))
        elif block.language == "python":
            found = self._python(block)
            if printed:
                self._check(block, "python", printed.text, found, 0)

    def execute(self, command: str) -> tuple[str, int]:
        """(what it printed on both outputs, exit status)."""
        if command.startswith("aerie ") and PLAIN.sub("", command) == "" and not self.own_project:
            return self._here(shlex.split(command)[1:])
        done = subprocess.run(
            ["bash", "-c", self._placed(command)],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        return done.stdout, done.returncode

    def _here(self, words: list[str]) -> tuple[str, int]:
        printed = io.StringIO()
        with self._inside(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                status: object = main(words)
            except SystemExit as ended:
                status = ended.code
        return printed.getvalue(), status if isinstance(status, int) else int(status is not None)

    def _python(self, block: Block) -> str:
        printed = io.StringIO()
        with self._inside(), contextlib.redirect_stdout(printed):
            names: dict[str, Any] = {"__name__": "__main__"}
            exec(compile(self._placed(block.text), block.place, "exec", dont_inherit=True), names)
        for client in names.values():
            if type(client).__name__ == "OpenAI":  # its connections stay open until it is closed
                client.close()
        return printed.getvalue()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("VNPU_DEVICES", "2")
            patch.setenv("COLUMNS", "80")
            yield

    def environment(self) -> dict[str, str]:
        """`python` and `aerie` are those of the folder; output comes in the order it has on a terminal."""
        others = ("PYTEST", "PYTHON", "VNPU", "MAKE", "MFLAGS")
        own = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        return {
            **own,
            "PATH": f"{self.folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.folder if self.own_project else PROJECT),
            "PYTHONUNBUFFERED": "1",
            "PYTEST_ADDOPTS": "-p no:cacheprovider",
            "COLUMNS": "80",
            **{name: os.environ[name] for name in ("VNPU_CACHE", "VNPU_OPT") if name in os.environ},
        }

    def _check(self, block: Block, command: str, expected: str, found: str, status: int) -> None:
        seen = without_numbers if block.ignores_numbers else str
        if not matches(seen(expected), seen(found)):
            shown = f"{block.place}: $ {command}\n--- expected\n{expected}--- found\n{found}"
            pytest.fail(shown, pytrace=False)
        if (status != 0) != (REFUSAL.search(expected) is not None):
            pytest.fail(f"{block.place}: $ {command}\nexit status {status}\n{found}", pytrace=False)
