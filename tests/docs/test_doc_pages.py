"""Every page does what it says: its files are saved, its commands run, and what they print is compared."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, PROJECT, REASONS, Block, blocks, page_marks, prose
from tests.docs.sandbox import Sandbox, matches, without_numbers

RUN = ("console", "python")
DEV = DOCS / "dev"
WORDS = 35_000
"""Of all pages that a user reads once: not of the reference, nor of notes for those who work on Aerie."""


def name_of(page: Path) -> str:
    return str(page.relative_to(PROJECT))


def is_run(block: Block) -> bool:
    return block.reason is None and not block.needs_smollm2 and (block.language in RUN or bool(block.file))


def play(page: Path, folder: Path, slow: bool) -> None:
    """Run a page's blocks; without `slow`, only those that are not marked so."""
    every = blocks(page)
    chosen = [block for block in every if is_run(block) and (slow or not block.is_slow)]
    own_project = any("own project" in block.marks for block in every)
    follows = dict(itertools.pairwise(every))
    with contextlib.closing(Sandbox(folder, own_project)) as sandbox:
        sandbox.prepare(page_marks(page.read_text()))
        for block in chosen:
            after = follows.get(block)
            printed = after if after and after.language == "text" and not after.file else None
            sandbox.run(block, printed if block.language == "python" else None)


FAST = [page for page in PAGES if any(is_run(each) and not each.is_slow for each in blocks(page))]
SLOW = [page for page in PAGES if any(is_run(each) and each.is_slow for each in blocks(page))]
WITH_SMOLLM2 = [page for page in PAGES if any(each.needs_smollm2 for each in blocks(page))]


@pytest.mark.parametrize("page", FAST, ids=name_of)
def test_a_page(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW, ids=name_of)
def test_a_page_with_what_is_slow(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path, slow=True)


@pytest.mark.slow
@pytest.mark.usefixtures("smollm2")
@pytest.mark.parametrize("page", WITH_SMOLLM2, ids=name_of)
def test_a_page_with_smollm2(page: Path, tmp_path: Path) -> None:
    with contextlib.closing(Sandbox(tmp_path)) as sandbox:
        for block in blocks(page):
            if block.needs_smollm2:
                sandbox.run(block)


def test_what_is_not_run_says_why() -> None:
    reasons = [
        (block.place, block.reason) for page in PAGES for block in blocks(page) if block.reason is not None
    ]
    assert [place for place, reason in reasons if not reason.startswith(REASONS)] == []
    commands = [block for page in PAGES for block in blocks(page) if block.language in RUN]
    assert len([block for block in commands if is_run(block)]) > len(commands) / 2


def test_commands_stand_in_blocks_that_are_run() -> None:
    """A block that shows a prompt is a console block: other languages are never run."""
    wrong = [
        block.place
        for page in PAGES
        for block in blocks(page)
        if block.language not in ("console", "text", "mlir") and re.search(r"^\$ ", block.text, re.MULTILINE)
    ]
    assert wrong == []
    for page in PAGES:
        scripts = re.findall(r"^ *```(?:sh|bash)$", page.read_text(), re.MULTILINE)
        marks = page_marks(page.read_text())
        assert not scripts or any(mark.startswith("not run") for mark in marks), name_of(page)


def test_shell_commands_are_whole(tmp_path: Path) -> None:
    commands = [
        command
        for page in PAGES
        for block in blocks(page)
        if block.language == "console"
        for command, _ in block.session
    ]
    assert len(commands) > 60
    script = tmp_path / "commands.sh"
    script.write_text("\n".join(commands) + "\n")
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def read_once() -> list[Path]:
    return [page for page in PAGES if DOCS / "reference" not in page.parents and DEV not in page.parents]


def test_the_pages_are_short() -> None:
    assert sum(len(page.read_text().split()) for page in read_once()) <= WORDS


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_short(page: Path) -> None:
    lines = prose(page.read_text()).splitlines()
    long = [line for line in lines if len(line) > 110 and not line.startswith("|")]
    assert long == []


def test_elisions_stand_for_anything_and_nothing_else() -> None:
    assert matches("a\n...\nb ... c\n", "a\n1\n2\nb 3 c\n")
    assert matches("a\n...\n", "a\n")
    assert not matches("a\n...\nb\n", "a\n1\nbb\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a.b\n", "acb\n")


def test_numbers_may_be_left_out_and_nothing_else() -> None:
    assert without_numbers("rms 1.14 ok\n") == without_numbers("rms 2.0  ok\n")
    assert without_numbers("rms 1.14 ok\n") != without_numbers("rms 1.14 FAIL\n")


def test_a_wrong_page_is_reported(tmp_path: Path) -> None:
    block = Block("page.md:1", "console", "", "$ echo one\ntwo\n", ())
    with pytest.raises(pytest.fail.Exception, match=r"page\.md:1: \$ echo one"):
        Sandbox(tmp_path).run(block)
