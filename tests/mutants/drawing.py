"""Mutants that are drawn: one small change in a function of a room, chosen by a random generator.

The changes: a comparison that takes its limit in or leaves it out, or is turned round; `and` for `or`; `+`
for `-`; a number one more; the two sides of a condition, or the two parts of a result, swapped. Whether one
of them changes anything that can be seen is for whoever reads it to say: a drawn mutant may be equivalent.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from tests.mutants.table import Mutant, sources

COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
OPERATORS = {"+": "-", "-": "+", "and": "or", "or": "and"}
MAX_TESTS = 3
"""Files of tests that are run for a drawn mutant: the smallest of those that import its module."""

IMPORT = re.compile(r"^\s*(?:import (aerie[\w.]*)|from (aerie[\w.]*) import (.*))", re.MULTILINE)

Change = tuple[int, int, str, str]
"""First and last place in the source that are replaced, by what, and what that is called."""


def draw(root: Path, rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """So many mutants, from the rooms in turn; the same for the same tree and seed."""
    chance, found = random.Random(seed), dict[str, Mutant]()
    files = {room: _files(root, room) for room in rooms}
    while len(found) < count:
        room = rooms[len(found) % len(rooms)]
        mutant = _drawn(root, room, chance.choice(files[room]), chance)
        if mutant is not None:
            found.setdefault(mutant.name, mutant)
    return list(found.values())


def _files(root: Path, room: str) -> list[Path]:
    """The Python of a room of which tests import something."""
    named = (path for path in sources(root) if path.suffix == ".py")
    own = [path for path in named if room in path.relative_to(root).parts[:2]]
    return [path for path in own if _tests_of(root, _module(root, path))]


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts if parts[0] == "aerie" else ("aerie", *parts))


def _tests_of(root: Path, module: str) -> list[str]:
    """The smallest files of tests that import a module."""
    return [name for name, imported in _tests(root) if module in imported][:MAX_TESTS]


@lru_cache(maxsize=4)
def _tests(root: Path) -> Sequence[tuple[str, frozenset[str]]]:
    """All files of tests, the smallest first, each with what it imports: modules, and names of modules."""
    paths = sorted((root / "tests").rglob("test_*.py"), key=lambda path: (path.stat().st_size, path))
    return [(path.stem, _imported(path.read_text())) for path in paths]


def _imported(text: str) -> frozenset[str]:
    found: set[str] = set()
    for whole, package, names in IMPORT.findall(text):
        found |= {whole, package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))}
    return frozenset(found)


def _drawn(root: Path, room: str, path: Path, chance: random.Random) -> Mutant | None:
    """A mutant of a file; None if nothing in it can be changed, or if its text is not unique."""
    text = path.read_text()
    changes = list(_changes(text))
    if not changes:
        return None
    first, last, new, how = chance.choice(changes)
    begin, end = text.rfind("\n", 0, first) + 1, text.find("\n", last)
    old = text[begin:end].strip()
    if text.count(old) != 1:
        return None
    begin = text.index(old)
    changed = text[begin:first] + new + text[last : begin + len(old)]
    module = _module(root, path)
    line = text.count("\n", 0, first) + 1
    name = f"drawn-{module.rpartition('.')[2]}-{line}-{how}".replace("_", "-")
    return Mutant(room, name, module, old, changed, f"drawn: {how}", tuple(_tests_of(root, module)))


def _changes(text: str) -> Iterator[Change]:
    """All changes that can be made in the functions of a source."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    if not text.isascii():  # places of ast are of bytes
        return
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in (inner for statement in function.body for inner in ast.walk(statement)):
                yield from _of_node(text, starts, node)


def _of_node(text: str, starts: Sequence[int], node: ast.AST) -> Iterator[Change]:
    def span(one: ast.expr) -> tuple[int, int]:
        assert one.end_lineno is not None
        assert one.end_col_offset is not None
        return starts[one.lineno - 1] + one.col_offset, starts[one.end_lineno - 1] + one.end_col_offset

    def between(left: ast.expr, right: ast.expr, table: dict[str, str], how: str) -> Iterator[Change]:
        first, last = span(left)[1], span(right)[0]
        for found in re.finditer(r"[<>=!]=|[<>+-]|\band\b|\bor\b", text[first:last]):
            if found[0] in table:
                yield first + found.start(), first + found.end(), table[found[0]], how

    def swapped(one: ast.expr, other: ast.expr) -> Iterator[Change]:
        (first, middle), (then, last) = span(one), span(other)
        yield first, last, text[then:last] + text[middle:then] + text[first:middle], "swapped"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from between(node.left, node.comparators[0], COMPARISONS, "comparison")
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from between(node.values[0], node.values[1], OPERATORS, "and-or")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from between(node.left, node.right, OPERATORS, "sign")
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        first, last = span(node)
        yield first, last, str(node.value + 1), "one-more"
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        yield from swapped(*node.value.elts)
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.IfExp):
        yield from swapped(node.value.body, node.value.orelse)
