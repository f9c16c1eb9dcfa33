"""Formatting: clang-format over all C++, the hooks of a commit, and the settings for editors."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[2]
HOOKS = yaml.safe_load((PROJECT / ".pre-commit-config.yaml").read_text())["repos"]
STYLE = yaml.safe_load((PROJECT / ".clang-format").read_text())
UNFORMATTED = {"bad.cc": "int  f( ){return 1;}\n", "bad.py": "import os\ndef f( ): return 1\n"}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROJECT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


format_cpp = load("format_cpp")


def test_all_cpp_is_formatted(capfd: pytest.CaptureFixture[str]) -> None:
    assert format_cpp.main(["--check"]) == 0, capfd.readouterr().err


def test_every_cpp_file_of_the_repository_is_looked_at() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    expected = {PROJECT / name for name in listed.stdout.splitlines() if re.search(r"\.(cc|h|hpp)$", name)}
    assert len(expected) > 80
    assert expected <= set(format_cpp.sources())


def test_a_file_that_is_not_formatted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.cc"
    path.write_text(UNFORMATTED["bad.cc"])
    assert format_cpp.main(["--check", str(path)]) == 1
    printed = capfd.readouterr().err
    assert "bad.cc:1:4: error: code should be clang-formatted" in printed
    assert "error: C++ is not formatted (above); .venv/bin/python tools/format_cpp.py does it" in printed
    assert format_cpp.main([str(path)]) == 0
    assert path.read_text() == "int f() { return 1; }\n"


def test_without_clang_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clang_format", None)
    with pytest.raises(
        SystemExit, match=r"clang-format is not installed here, so no C\+\+ was looked at; make lint"
    ):
        format_cpp.main(["--check"])


def test_make_lint_checks_it() -> None:
    (recipe,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    assert "\t@$(PY) tools/format_cpp.py --check\n" in recipe


def test_no_hook_is_fetched() -> None:
    assert {repository["repo"] for repository in HOOKS} == {"local"}
    assert {hook["language"] for hook in HOOKS[0]["hooks"]} == {"system"}


@pytest.mark.parametrize("hook", HOOKS[0]["hooks"], ids=lambda hook: hook["id"])
def test_a_hook_sees_a_file_that_is_not_formatted(hook: dict[str, Any], tmp_path: Path) -> None:
    """pre-commit refuses a commit where a hook fails, or changes a file."""
    name = "bad.cc" if hook["id"] == "clang-format" else "bad.py"
    path = tmp_path / name
    path.write_text(UNFORMATTED[name])
    python, *words = shlex.split(hook["entry"])
    assert python == ".venv/bin/python"
    done = subprocess.run([sys.executable, *words, str(path)], cwd=PROJECT, capture_output=True, check=False)
    assert done.returncode != 0 or path.read_text() != UNFORMATTED[name]
    assert b"No module named" not in done.stderr


def test_editor_settings_have_the_checked_widths() -> None:
    parser = configparser.ConfigParser()
    parser.read_string("[top]\n" + (PROJECT / ".editorconfig").read_text())
    ruff = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert parser["*.py"]["max_line_length"] == str(ruff["line-length"])
    assert parser["*.{cc,h,hpp}"]["max_line_length"] == str(STYLE["ColumnLimit"])
