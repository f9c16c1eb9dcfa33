"""docs/virtual_npu.md does what it says: its files are written, its commands run, its tables compared."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest
from doc_transcripts import DOCS, blocks, check_command, session, table

from aerie.common import store
from aerie.virtual_npu.__main__ import _parser
from aerie.virtual_npu.errors import ERROR_KINDS

PAGE = "virtual_npu.md"


@pytest.mark.long
def test_the_tour(tmp_path: Path) -> None:
    """From an empty folder, in which nothing of the project is but what `import` finds."""
    (tmp_path / "aerie").symlink_to(DOCS.parent / "aerie")
    checked = 0
    for language, path, body in blocks(PAGE):
        if path:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(body)
        elif language == "console":
            for command, expected in session(body):
                check_command(PAGE, tmp_path, command, expected)
                checked += 1
    assert checked > 30


def test_every_kind_of_failure_is_explained() -> None:
    shown = [kind for kind, _, _ in table(PAGE, "kind", "what it means", "what it cannot see")]
    assert set(shown) == {*ERROR_KINDS, "schedule", "garbage", "sanitizer", "crash"}


def _options() -> dict[str, set[str]]:
    """Per command, its options, each as the long names it has."""
    (choices,) = (a.choices for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: {
            ", ".join(name for name in action.option_strings if name.startswith("--"))
            for action in parser._actions
            if action.option_strings and action.dest != "help"
        }
        for name, parser in choices.items()
    }


def test_every_option_is_listed() -> None:
    rows = table(PAGE, "option", "of", "meaning")
    for command, options in _options().items():
        shown = {re.sub(r" [A-Z]+$", "", option) for option, of, _ in rows if command in of.split(", ")}
        assert shown == options, command


def test_the_limits_of_the_cache() -> None:
    text = (DOCS / PAGE).read_text()
    assert f"at most {store.MAX_BYTES >> 30} GiB" in text
    assert re.search(rf"not used for {store.MAX_UNUSED_DAYS}\s+days", text)
