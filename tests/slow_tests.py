"""The table of slow tests, slow.txt: which tests `make test` leaves to `make test-slow`.

A line is a file, a test in it with all its parameters, or a test with some of them; a * in it stands for any
text. A line that names no test is an error where the whole suite is collected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS / "slow.txt"


def lines(text: str) -> list[str]:
    """The lines of a table without its comments."""
    found = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in found if line]


def names(node: str) -> Iterator[str]:
    """What a line may call a test: by its file, by its name, by its name with parameters."""
    yield node.partition("::")[0]
    yield node.partition("[")[0]
    yield node


def unused(nodes: Iterable[str], table: Iterable[str]) -> list[str]:
    """The lines of the table that are about none of the tests."""
    called = {name for node in nodes for name in names(node)}
    text = "\n".join(called)
    globs = (line for line in table if line not in called)
    return [
        line for line in globs if "*" not in line or not re.search(f"^{_pattern(line)}$", text, re.MULTILINE)
    ]


def _pattern(line: str) -> str:
    return re.escape(line).replace(r"\*", ".*")


def mark(items: Sequence[pytest.Item], *, is_whole_suite: bool, table: Path = TABLE) -> None:
    """Mark the tests of the table. Raises UsageError for a line that names none, of the whole suite."""
    wanted = lines(table.read_text())
    plain = {line for line in wanted if "*" not in line}
    is_named = re.compile("|".join(_pattern(line) for line in wanted if "*" in line) or "(?!)").fullmatch
    nodes = [_node(item) for item in items]
    for item, node in zip(items, nodes, strict=True):
        if not plain.isdisjoint(names(node)) or any(map(is_named, names(node))):
            item.add_marker(pytest.mark.slow)
    left = unused(nodes, wanted) if is_whole_suite else []
    if left:
        raise pytest.UsageError(
            f"{table.name} names what is no test: {', '.join(left)}; it was renamed or is gone: correct the "
            "line, or drop it"
        )


def _node(item: pytest.Item) -> str:
    """The id of a test without the folder of tests."""
    path = item.path.relative_to(TESTS) if item.path.is_relative_to(TESTS) else item.path
    return "::".join((path.as_posix(), *item.nodeid.split("::")[1:]))
