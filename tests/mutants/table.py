"""The table of mutants: what each changes, and where that is in a tree.

A file is named by its module (`aerie.engine.sampler`), or, in C++, by the end of its path (`vnpu/base.h`). A
text that is no longer there is looked for in all sources, so that a mutant outlives a file that moves.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = Path(__file__).parent / "rooms"
SUFFIXES = (".py", ".cc", ".h", ".hpp")
NO_PRODUCT = frozenset({"tests", "docs", "build", "benchmarks", "examples", "tools"})
"""Folders at the top that mutants are not put into; and those whose name begins with a dot."""


class TableError(Exception):
    """A mutant that cannot be put into this tree, or tests that are not in it."""


@dataclass(frozen=True)
class Mutant:
    """A fault. old, new: the text that it replaces, which occurs once, and the text in its place. breaks:
    what goes wrong, in a line. tests: files of tests by name, each alone or with `::` and one of its tests.
    survives: why no test finds it, where that is known."""

    room: str
    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def id(self) -> str:
        """ROOM/NAME."""
        return f"{self.room}/{self.name}"

    def place(self, root: Path) -> Path:
        """The file of `root` that it changes. TableError where its text is not there exactly once."""
        named = [path for path in _named(root, self.file) if _read(path).count(self.old) == 1]
        if len(named) == 1:
            return named[0]
        found = {path: count for path in sources(root) if (count := _read(path).count(self.old))}
        if sum(found.values()) == 1:
            return next(iter(found))
        places = ", ".join(f"{count} in {path.relative_to(root)}" for path, count in found.items())
        raise TableError(
            f"{self.id}: {self.old!r} must occur once in {self.file}, or once in all sources, and occurs "
            f"{places or 'nowhere'}; change rooms/{self.room}.toml"
        )

    def test_ids(self, root: Path) -> list[str]:
        """Its tests as pytest names them. TableError where one is not there."""
        return [test_id(root, test) for test in self.tests]

    def as_toml(self) -> str:
        """As it stands in the table."""
        lines = [f"[{self.name}]"]
        lines += [
            f"{key} = {_quoted(value)}" for key, value in asdict(self).items() if key in _TEXTS and value
        ]
        return "\n".join([*lines, f"tests = [{', '.join(map(_quoted, self.tests))}]", ""])


_TEXTS = ("file", "old", "new", "breaks", "survives")


def _quoted(text: str) -> str:
    """A string of TOML: its basic strings escape as these do."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"' if "'" in text or "\n" in text or '"' not in text else f"'{text}'"


def load(folder: Path = ROOMS) -> list[Mutant]:
    """All mutants, room by room. TableError for an entry that lacks something."""
    return [mutant for path in sorted(folder.glob("*.toml")) for mutant in _of_room(path)]


def _of_room(path: Path) -> Iterator[Mutant]:
    for name, entry in tomllib.loads(path.read_text()).items():
        yield _mutant(path.stem, name, entry)


def _mutant(room: str, name: str, entry: dict[str, Any]) -> Mutant:
    try:
        mutant = Mutant(room, name, **{**entry, "tests": tuple(entry["tests"])})
    except (TypeError, KeyError) as error:
        raise TableError(f"{room}/{name}: {error}; give file, old, new, breaks and tests") from None
    if mutant.old == mutant.new or not mutant.tests:
        raise TableError(f"{room}/{name} changes nothing, or has no tests")
    return mutant


def sources(root: Path) -> Sequence[Path]:
    """The product's Python and C++, without what a symbolic link leads to."""
    return _sources(root)


@lru_cache(maxsize=4)
def _sources(root: Path) -> Sequence[Path]:
    found: list[Path] = []
    for folder, inner, files in os.walk(root):
        at_top = Path(folder) == root
        inner[:] = sorted(one for one in inner if not (one.startswith(".") or (at_top and one in NO_PRODUCT)))
        found += [Path(folder, name) for name in sorted(files) if name.endswith(SUFFIXES)]
    return [path for path in found if not path.is_symlink()]


def _named(root: Path, file: str) -> list[Path]:
    """What a module's name, or the end of a path, stands for: a room is at the top or in `aerie/`."""
    if "/" in file:
        return [path for path in sources(root) if path.as_posix().endswith(f"/{file}")]
    whole = file.replace(".", "/")
    stems = (whole, whole.removeprefix("aerie/"))
    paths = (root / f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py"))
    return list({path.resolve(): path.resolve() for path in paths if path.is_file()})


def _read(path: Path) -> str:
    return path.read_text()


def test_id(root: Path, test: str) -> str:
    """`test_pages` or `test_pages::test_one`, as pytest names it. TableError where there is no such file."""
    name, separator, one = test.partition("::")
    found = [path for path in _tests(root) if path.stem == name]
    if len(found) != 1:
        raise TableError(
            f"there are {len(found)} files tests/*/{name}.py, and one is needed; change the table"
        )
    return f"{found[0].relative_to(root).as_posix()}{separator}{one}"


@lru_cache(maxsize=4)
def _tests(root: Path) -> Sequence[Path]:
    return sorted((root / "tests").rglob("test_*.py"))


test_id.__test__ = False  # type: ignore[attr-defined]  # for pytest, where a test imports it
