"""One name: all is importable as `aerie.ROOM`, in a checkout as installed, and `aerie` is the command."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from setuptools import build_meta

from aerie.__main__ import COMMANDS, TOOLS, find, main

PROJECT = Path(__file__).parents[2]
ROOMS = sorted(link.name for link in (PROJECT / "aerie").iterdir() if link.is_symlink())
NOT_IN_THE_PACKAGE = {"tests", "benchmarks"}
CACHES = shutil.ignore_patterns("__pycache__")


def test_every_room_has_its_link() -> None:
    rooms = {path.parent.name for path in PROJECT.glob("*/__init__.py")} | {"kernels_cc"}
    links = {link.name: os.readlink(link) for link in (PROJECT / "aerie").iterdir() if link.is_symlink()}
    assert links == {room: f"../{room}" for room in rooms - {"aerie"} - NOT_IN_THE_PACKAGE}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, folder)
    for name in ("aerie", *ROOMS):
        shutil.copytree(PROJECT / name, folder / name, symlinks=True, ignore=CACHES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["setup.py"])
        (folder / "dist").mkdir()
        name = build_meta.build_wheel(str(folder / "dist"), {"--build-option": ["--quiet"]})
    return zipfile.ZipFile(folder / "dist" / name)


def test_nothing_but_aerie_is_installed_at_top_level(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"aerie"}


def test_all_that_a_room_has_is_installed(wheel: zipfile.ZipFile) -> None:
    """But for what is written for readers of the repository."""
    files = [path for room in ROOMS for path in (PROJECT / room).rglob("*") if path.is_file()]
    wanted = {f"aerie/{path.relative_to(PROJECT)}" for path in files if path.suffix not in {".pyc", ".md"}}
    assert wanted - set(wheel.namelist()) == set()


def test_a_room_of_the_users_own_is_not_in_the_way(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The installed package beside folders of the user's that have our rooms' names."""
    wheel.extractall(tmp_path / "site")
    for name in ("runtime", "verify", "board"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "__init__.py").write_text("raise ImportError('the user's own')")
    words = [sys.executable, "-m", "aerie", "run", "--prompt", "What is the capital of France?"]
    own = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(words, cwd=tmp_path / "own", env=own, capture_output=True, text=True)
    assert done.stdout == "The capital of France is Paris.\n", done.stderr


def test_every_command_of_a_room_is_one_of_aerie(capsys: pytest.CaptureFixture[str]) -> None:
    for room in {command.room for command in COMMANDS}:
        assert importlib.import_module(f"aerie.{room}.__main__").main(["no-such"]) == 2
        (known,) = re.findall(r"choose from (.*?)\)", capsys.readouterr().err)
        ours = {command.name for command in COMMANDS if command.room == room}
        assert set(re.findall(r"[\w-]+", known)) - {"gate"} == ours


@pytest.mark.parametrize("name", [command.name for command in (*COMMANDS, *TOOLS)])
def test_every_command_tells_what_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code in (0, None)
    assert re.match(rf"usage: aerie {name}\b", capsys.readouterr().out)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {command.name:14}  {command.summary}\n" in told for command in (*COMMANDS, *TOOLS))
    assert max(map(len, told.splitlines())) <= 80
    assert main(["--version"]) == 0
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out in (
        f"aerie {project['version']}\n",
        "aerie, from a checkout that is not installed\n",
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "error: name a command: run, chat, "),
        (["rum"], "error: there is no command 'rum'; there are: run, chat, "),
    ],
)
def test_what_is_no_command(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == find(words) == 2
    assert capsys.readouterr().err.startswith(told)
