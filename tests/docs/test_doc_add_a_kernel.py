"""docs/add_a_kernel.md does what it says: its files are written, its commands run, their output compared.

A code block with `file=PATH` is a file to save, a `console` block a shell session. All of it happens in a
copy of the project.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_transcripts import blocks, check_command, make_project, matches, session

PAGE = "add_a_kernel.md"


@pytest.mark.long
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    # The page adds files to two rooms, and the third looks for C++ beside itself.
    make_project(tmp_path, "kernel_builder", "kernels_cc")
    checked = 0
    for language, path, body in blocks(PAGE):
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(body)
        elif language == "console":
            for command, expected in session(body):
                check_command(PAGE, tmp_path, command, expected)
                checked += 1
    assert checked > 20


def test_elisions_stand_for_anything_and_nothing_else() -> None:
    assert matches("a\n...\nb ... c\n", "a\n1\n2\nb 3 c\n")
    assert matches("a\n...\n", "a\n")
    assert not matches("a\n...\nb\n", "a\n1\nbb\n")
    assert not matches("a\n", "a\nb\n")
    assert not matches("a.b\n", "acb\n")
