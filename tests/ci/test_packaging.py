"""Packages and commands: whatever the source it is built from, a wheel has every room, under `aerie` alone;
in a checkout each module has one path; and `aerie` is the command."""

from __future__ import annotations

import ast
import email
import importlib
import importlib.metadata
import inspect
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

import aerie
from aerie import rooms
from aerie.__main__ import COMMANDS, TOOLS, find_command, main
from aerie.version import DISTRIBUTION

PROJECT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "aerie", *rooms.AT_THE_TOP)
ROOMS = sorted({path.parent.name for path in rooms.PACKAGE.glob("*/__init__.py")}.union(rooms.AT_THE_TOP))
CACHES = shutil.ignore_patterns("__pycache__")


def test_no_file_of_the_package_is_a_link() -> None:
    """A zip and a clone on Windows have no links."""
    paths = [path for name in SOURCES for path in (PROJECT / name, *(PROJECT / name).rglob("*"))]
    assert len(paths) > 500
    assert [path for path in paths if path.is_symlink()] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_one_path(room: str) -> None:
    at_the_top = room in rooms.AT_THE_TOP
    expected = (PROJECT if at_the_top else PROJECT / "aerie") / room
    assert rooms.folder(room) == expected
    assert importlib.import_module(f"aerie.{room}").__file__ == str(expected / "__init__.py")
    assert (PROJECT / "aerie" / room).exists() is not at_the_top


def test_nothing_else_beside_the_package_is_in_it() -> None:
    for name in ("aerie.tests", "aerie.benchmarks", "aerie.aerie", "aerie.kernel_builder.verify"):
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
            importlib.import_module(name)


def test_a_build_that_lacks_a_room_fails(tmp_path: Path) -> None:
    (tmp_path / "aerie").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "aerie/__init__.py", "aerie/rooms.py"):
        shutil.copy(PROJECT / name, tmp_path / name)
    for room in rooms.AT_THE_TOP[1:]:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {tmp_path} has no package in {rooms.AT_THE_TOP[0]}, so a wheel of it would not work; build "
        "from a whole checkout, or from an archive of one\n"
    )


def build(source: Path) -> zipfile.ZipFile:
    """The wheel of a source tree, built in this process's environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        patch.setattr(sys, "argv", ["setup.py"])
        (source / "dist").mkdir()
        name = build_meta.build_wheel(str(source / "dist"), {"--build-option": ["--quiet"]})
    return zipfile.ZipFile(source / "dist" / name)


def copy_sources(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, folder / name, ignore=CACHES)
        else:
            shutil.copy(PROJECT / name, folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder)
    return build(folder)


def git(*words: str | Path) -> None:
    subprocess.run(["git", "-C", PROJECT, *words], check=True, capture_output=True)


def from_archive(folder: Path, form: str) -> None:
    archive = folder.with_suffix(f".{form}")
    git("archive", f"--output={archive}", "HEAD")
    shutil.unpack_archive(archive, folder, filter="data" if form == "tar" else None)


def from_clone_without_links(folder: Path) -> None:
    git("clone", "--config", "core.symlinks=false", "--depth=1", f"file://{PROJECT}", folder)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["zip", "tar", "clone"])
def test_a_wheel_is_whole_whatever_its_source(source: str, tmp_path: Path, wheel: zipfile.ZipFile) -> None:
    """Of the last commit, whose files may differ from the checkout's; its rooms do not."""
    folder = tmp_path / "source"
    from_clone_without_links(folder) if source == "clone" else from_archive(folder, source)
    names = {name for name in build(folder).namelist() if name.endswith("/__init__.py")}
    assert names == {name for name in wheel.namelist() if name.endswith("/__init__.py")}
    assert {f"aerie/{room}/__init__.py" for room in ROOMS} <= names


@pytest.mark.slow
def test_an_editable_install_has_one_path(tmp_path: Path) -> None:
    """In an environment of its own, seen from another folder."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    here = Path(inspect.getfile(pytest)).parents[1]
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(f"{here}\n")
    copy_sources(tmp_path / "source")
    how = ("--quiet", "--no-deps", "--no-build-isolation", "--editable", tmp_path / "source")
    subprocess.run([python, "-m", "pip", "install", *how], check=True, capture_output=True)
    look = "import aerie.engine, aerie.verify; print(aerie.engine.__file__, aerie.verify.__file__)"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", look], cwd="/", env=clean, capture_output=True, text=True, check=True
    )
    source = tmp_path / "source"
    assert done.stdout.split() == [f"{source}/aerie/engine/__init__.py", f"{source}/verify/__init__.py"]
    (paths,) = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["pyright"]["extraPaths"]
    shown = {path.name: path.resolve() for path in (source / paths / "aerie").iterdir()}
    at_the_top = {room: source / room for room in rooms.AT_THE_TOP}
    assert shown == {"__init__.py": source / "aerie" / "__init__.py", **at_the_top}


@pytest.mark.slow
def test_uninstalling_leaves_the_files_of_the_page(tmp_path: Path, wheel: zipfile.ZipFile) -> None:
    """The steps of docs/how-to/upgrade-and-uninstall.md, after a program was compiled."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    binaries, home = tmp_path / "venv" / "bin", tmp_path / "home"
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    before = set(site.iterdir()) | set(binaries.iterdir())
    home.mkdir()
    own = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(tmp_path), "VNPU_OPT": "0"}

    def call(*words: str | Path) -> str:
        return subprocess.run(words, cwd="/", env=own, capture_output=True, text=True, check=True).stdout

    pip = (binaries / "python", "-m", "pip", "--disable-pip-version-check")
    call(*pip, "install", "--no-deps", "--no-index", str(wheel.filename))
    assert call(binaries / "aerie", "--version") == f"aerie {aerie.__version__}\n"
    call(binaries / "aerie", "vnpu", "run", PROJECT / "examples" / "air_program" / "double.mlir", "--zeros")
    assert (home / ".cache" / "aerie" / "virtual_npu").is_dir()
    call(binaries / "aerie", "cache", "clear", "--all")
    call(*pip, "uninstall", "--yes", DISTRIBUTION)
    assert set(site.iterdir()) | set(binaries.iterdir()) == before
    files = [path.relative_to(home) for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if "aerie" in str(path)] == []  # pip leaves some of its own


def test_nothing_but_aerie_is_installed_at_top_level(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"aerie"}


def test_all_that_a_room_has_is_installed(wheel: zipfile.ZipFile) -> None:
    """But for what is written for readers of the repository."""
    files = {
        f"aerie/{room}/{path.relative_to(rooms.folder(room))}"
        for room in ROOMS
        for path in rooms.folder(room).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".md"}
    }
    files |= {f"aerie/{path.name}" for path in rooms.PACKAGE.iterdir() if path.is_file()}
    assert files - set(wheel.namelist()) == set()


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


SCRIPT = """
import aerie
import numpy as np
from numpy.typing import NDArray

with aerie.load("demo", progress=print) as model:
    result: aerie.Result = model.generate("hi", temperature=0.5, seed=3)
    text: str = result.text
    tokens: int = result.usage.total_tokens
    complete: bool = result.finish_reason is aerie.FinishReason.LENGTH
    pieces: list[str] = [piece for piece in model.stream("hi", stop=["."])]
    logits: NDArray[np.float32] = model.logits("hi")
    model.generate("hi", no_such_option=3)
    aerie.no_such_name
"""


def imports_of_pages() -> list[str]:
    """Every import of ours that the Python on our pages makes, and in our examples."""
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    texts = [
        text
        for page in pages
        for text in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    texts += [path.read_text() for path in (PROJECT / "examples").rglob("*.py")]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    made = {ast.unparse(node) for node in nodes if isinstance(node, ast.ImportFrom | ast.Import)}
    return sorted(each for each in made if re.match(r"(from|import) aerie\b", each))


@pytest.mark.slow
def test_types_of_the_installed_package(tmp_path: Path, wheel: zipfile.ZipFile) -> None:
    """mypy --strict over a script of a user's, who has the wheel and what it needs, and no checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    wheel.extractall(site)
    (site / "others.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    public = [f"from aerie import {name}" for name in aerie.__all__]
    imports = imports_of_pages()
    assert len(imports) > 5
    # Each in a scope of its own: two pages may mean two things by one name.
    scopes = [f"def scope_{n}() -> None:\n    {each}" for n, each in enumerate((*public, *imports))]
    (tmp_path / "script.py").write_text("\n".join([*scopes, SCRIPT]))
    how = ("--strict", "--no-error-summary", "--python-executable", str(tmp_path / "venv" / "bin" / "python"))
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    words = [sys.executable, "-m", "mypy", *how, "script.py"]
    done = subprocess.run(words, cwd=tmp_path, env=clean, capture_output=True, text=True)
    errors = [line.partition("error: ")[2] for line in done.stdout.splitlines() if "error: " in line]
    assert errors == [
        'Unexpected keyword argument "no_such_option" for "generate" of "Model"  [call-arg]',
        'Module has no attribute "no_such_name"  [attr-defined]',
    ], done.stdout + done.stderr


def test_no_text_installs_the_other_package_named_aerie() -> None:
    """On the public index `aerie` is another project, and there is no release of ours."""
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    texts = {
        name: (PROJECT / name).read_bytes()
        for name in listed.stdout.splitlines()
        if (PROJECT / name).is_file()
    }
    command = re.compile(rb"(pip|uv|pipx) (install|add) (-\S+ )*['\"]?aerie")
    assert len(texts) > 900
    assert [name for name, text in texts.items() if command.search(text)] == []


def test_the_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert (metadata["Name"], metadata["Version"]) == (DISTRIBUTION, aerie.__version__)
    assert importlib.metadata.version(DISTRIBUTION) == aerie.__version__
    classifiers = metadata.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    oldest, newest = (11, 14)
    assert [each for each in classifiers if ":: Python ::" in each] == [
        f"Programming Language :: Python :: 3.{minor}" for minor in range(oldest, newest + 1)
    ]
    assert metadata["Keywords"].count(",") >= 4
    assert metadata.get_all("Project-URL") is None  # there is no public home yet, so none is invented


def test_every_command_of_a_room_is_one_of_aerie(capsys: pytest.CaptureFixture[str]) -> None:
    for module in {command.module for command in COMMANDS}:
        assert importlib.import_module(f"aerie.{module}.__main__").main(["no-such"]) == 2
        (known,) = re.findall(r"choose from (.*?)\)", capsys.readouterr().err)
        ours = {command.name for command in COMMANDS if command.module == module}
        assert set(re.findall(r"[\w-]+", known)) - {"gate"} == ours


@pytest.mark.parametrize("name", [command.name for command in (*COMMANDS, *TOOLS)])
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code in (0, None)
    assert re.match(rf"usage: aerie {name}\b", capsys.readouterr().out)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {command.name:14}  {command.summary}\n" in output for command in (*COMMANDS, *TOOLS))
    assert max(map(len, output.splitlines())) <= 80
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aerie {aerie.__version__}\n"
    assert main(["help"]) == 0
    assert capsys.readouterr().out == output
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"aerie {aerie.__version__}\n"
    assert (
        find_command(["help", "run"]) == find_command(["run", "--help"]) == ("aerie.cli", ["run", "--help"])
    )
    assert find_command(["help", "air"]) == ("aerie.air_dialect", ["--help"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "error: name a command: run, chat, "),
        (["xyz"], "error: there is no command 'xyz'; there are: run, chat, "),
        (["rum"], "error: there is no command 'rum'; did you mean rm or run? (see aerie --help)"),
        (["help", "chta"], "error: there is no command 'chta'; did you mean chat?"),
    ],
)
def test_an_unknown_command_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == find_command(words) == 2
    assert capsys.readouterr().err.startswith(message)
