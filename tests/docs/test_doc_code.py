"""The code on the pages is such as `make lint` takes: what a reader saves as it stands passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerie.air_dialect import parse
from tests.docs.pages import PAGES, PROJECT, blocks

LINE_LENGTH = int(re.findall(r"^line-length = (\d+)", (PROJECT / "pyproject.toml").read_text(), re.M)[0])


def code(*languages: str) -> Iterator[tuple[str, str]]:
    """Every block in one of these languages: where it stands, as PAGE:LINE, and its text."""
    for page in PAGES:
        for block in blocks(page):
            if block.language in languages:
                yield block.place, block.text


def ruff(folder: Path, *words: str) -> str:
    """What ruff says of the files in a folder with the project's settings, by the places on the pages."""
    command = [sys.executable, "-m", "ruff", *words, "--config", "pyproject.toml", "--no-cache", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = done.stdout if done.returncode else ""
    return re.sub(rf"\S*{folder.name}/(\S+?)__(\d+)\.py", r"\1, the block at line \2", found)


def test_python_passes_ruff(tmp_path: Path) -> None:
    blocks = dict(code("python"))
    assert len(blocks) > 15
    for place, text in blocks.items():
        page, _, line = place.partition(":")
        (tmp_path / f"{page.replace('/', '.')}__{line}.py").write_text(text)
    checked = ruff(tmp_path, "check", "--output-format", "concise")
    formatted = ruff(tmp_path, "format", "--diff")
    if checked + formatted:
        pytest.fail(f"{checked}\n{formatted}", pytrace=False)


def test_ruff_sees_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "docs.page.md__7.py").write_text("import os\nimport aerie\nx = 1 ;y = '2'\n")
    assert "docs.page.md, the block at line 7:1:" in ruff(tmp_path, "check", "--output-format", "concise")
    assert '+y = "2"' in ruff(tmp_path, "format", "--diff")


def test_lines_are_no_longer_than_the_projects() -> None:
    """Of all that is written by hand; MLIR has no such rule."""
    long = [
        f"{place.partition(':')[0]}: {line}"
        for place, text in code("python", "cpp", "make", "sh", "bash")
        for line in text.splitlines()
        if len(line) > LINE_LENGTH
    ]
    assert long == []


def test_mlir_is_what_the_dialect_takes() -> None:
    texts = dict(code("mlir"))
    assert len(texts) >= 2
    for place, text in texts.items():
        parse(text, place).verify()
