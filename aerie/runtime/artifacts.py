"""Compiled programs on disk, found by the hash of what made them.

    CACHE/manifest.json              what is there, and what made it
    CACHE/virtual/NAME-KEY.elf       the artifact of one backend
    CACHE/virtual/NAME-KEY.mlir      the program's text, also when they failed
    CACHE/virtual/NAME-KEY.log       what the tools printed, likewise
    CACHE/shared/                    parts that programs share: objects of the C++ kernels, for the NPU
    CACHE/locks/, unfinished/        of the content store (aerie/common/store.py)

An artifact appears in one step once it is complete, and then in the manifest. Two processes may share a
cache: who comes second waits for the artifact, and finds it. What no program asked for in a month is removed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from aerie.common import folders
from aerie.common.fingerprint import file_digest, hash_key
from aerie.common.store import Store, mark_used
from aerie.runtime.errors import AerieRuntimeError, CompileError, DiskFullError

Report = Callable[[str], None]

Compile = Callable[[Path], Path]
"""A function that compiles in the empty folder given, and gives the artifact's path in it; the tools' output
may be left there as BUILD_LOG."""

BUILD_LOG = "build.log"
PROGRAM_TEXT = "program text"
"""The ingredient that tells apart programs of one name, which were built for different shapes."""

UNKNOWN = ""
"""An ingredient that nobody can tell now, such as the compiler where there is none any more: any will do."""

INNER = ("virtual", "npu", "shared")
FORMAT = 1
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Recipe:
    """All that an artifact depends on: every ingredient by name, as a hash or a short text. `text`: its
    MLIR."""

    name: str
    backend: str
    text: str
    ingredients: Mapping[str, str]

    @property
    def key(self) -> str:
        """The hash of all of it, 16 hexadecimal digits."""
        return hash_key({"name": self.name, "backend": self.backend, **self.ingredients})

    @property
    def stem(self) -> str:
        """NAME-KEY, as the artifact, its text and its log are called."""
        return f"{self.name}-{self.key}"

    @property
    def file(self) -> str:
        """Where the artifact lies, relative to the cache."""
        return f"{self.backend}/{self.stem}.elf"


@dataclass(frozen=True)
class Artifact:
    """A compiled program. `seconds` is how long compiling took, `reused` whether it was there already."""

    name: str
    key: str
    path: Path
    seconds: float
    reused: bool


@dataclass(frozen=True)
class Entry:
    """One artifact in the manifest. `file` is relative to the cache; `created` is UTC; `made_from` names
    every ingredient."""

    name: str
    backend: str
    file: str
    nbytes: int
    sha256: str
    seconds: float
    created: str
    made_from: dict[str, str]


class Manifest:
    """`{"format": 1, "artifacts": {NAME-KEY: {...}}}` in one file: a readable list of what a cache holds."""

    NAME = "manifest.json"

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self._corruption_reported = False

    def read(self) -> dict[str, Entry]:
        """All entries. A manifest that cannot be read counts as empty, and that is reported."""
        path = self._store.folder / self.NAME
        try:
            return _entries(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if not self._corruption_reported:
                self._report(f"{path} is corrupt ({error}); starting a new one, programs are compiled again")
            self._corruption_reported = True
            return {}

    def add(self, stem: str, entry: Entry) -> None:
        """Add or replace one entry; what another process added meanwhile stays."""
        self._rewrite(lambda entries: {**entries, stem: entry})

    def forget_missing(self) -> None:
        """Remove the entries of artifacts that are not there any more."""
        folder = self._store.folder
        self._rewrite(lambda entries: {s: e for s, e in entries.items() if (folder / e.file).exists()})

    def _rewrite(self, change: Callable[[dict[str, Entry]], dict[str, Entry]]) -> None:
        with self._store.locked_work_folder(self.NAME) as work:
            entries = change(self.read())
            document = {"format": FORMAT, "artifacts": {key: asdict(entries[key]) for key in sorted(entries)}}
            (work / self.NAME).write_text(json.dumps(document, indent=1) + "\n")
            self._store.move_in(work / self.NAME, self.NAME)


def _entries(document: Any) -> dict[str, Entry]:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r} instead of {FORMAT}")
    names = [field.name for field in fields(Entry)]
    found = {
        stem: Entry(**{name: stored[name] for name in names})
        for stem, stored in document["artifacts"].items()
    }
    if not all(entry.file == f"{entry.backend}/{stem}.elf" for stem, entry in found.items()):
        raise ValueError("a file that is not called as its artifact")
    return found


def store_of(directory: Path) -> Store:
    """The content store that artifacts lie in."""
    return Store(directory, INNER)


def forget_missing(directory: Path) -> None:
    """After artifacts were removed: the manifest lists what is left, and goes with the last of them."""
    manifest = Manifest(store_of(directory), report=_silent)
    if (directory / Manifest.NAME).is_file():
        manifest.forget_missing()
    if not manifest.read():
        (directory / Manifest.NAME).unlink(missing_ok=True)


class ArtifactStore:
    """The artifacts under one directory. `report` receives one line for everything unusual.

    Raises AerieRuntimeError for a directory that cannot be used, KnobError for one that others can write to.
    """

    def __init__(self, directory: Path, report: Report) -> None:
        self.directory = directory
        self.store = store_of(directory)
        self._report = report
        self._manifest = Manifest(self.store, report)
        for folder in (directory, *(directory / name for name in INNER)):
            folders.check_private(folder)
        try:
            folders.make_folder(directory)
        except OSError as error:
            raise self._unusable(error) from error

    def find(self, recipe: Recipe, report: Report | None = None) -> Artifact | None:
        """The artifact of this recipe if it is there and whole; `report` is told of one that is not whole."""
        for stem, entry in _fitting(self._manifest.read(), recipe):
            path = self.directory / entry.file
            damage = _damage(path, entry)
            if not damage:
                mark_used(path)
                return Artifact(recipe.name, stem.rpartition("-")[2], path, entry.seconds, reused=True)
            (report or self._report)(f"artifact {path.name} is damaged ({damage}); compiling it again")
        return None

    def why(self, recipe: Recipe) -> str:
        """Why this recipe has to be compiled, against the newest artifact of the same text."""
        entries = self._manifest.read()
        if recipe.stem in entries:
            return "its artifact is missing or damaged"
        others = [e for e in entries.values() if (e.name, e.backend) == (recipe.name, recipe.backend)]
        if not others:
            return "not compiled before"
        text = recipe.ingredients.get(PROGRAM_TEXT)
        same = [e for e in others if e.made_from.get(PROGRAM_TEXT) == text]
        if not same:
            return "new text: another shape, or an edited kernel"
        newest = max(same, key=lambda entry: entry.created).made_from
        told = {name: value for name, value in recipe.ingredients.items() if value != UNKNOWN}
        changed = [name for name, value in told.items() if newest.get(name) != value]
        return f"changed: {', '.join(changed)}" if changed else "its artifact is missing or damaged"

    def build(self, recipe: Recipe, compile_in: Compile) -> Artifact:
        """The artifact of this recipe: the one that is there, or a new one. Nothing is written for one that
        is there, so a read-only directory that holds it will do.

        Raises what `compile_in` raises, DiskFullError when there is no space, and AerieRuntimeError for a
        directory that cannot be used.
        """
        waiting = partial(self._report, f"another process is compiling {recipe.name}; waiting for it")
        try:
            if found := self.find(recipe, report=_silent):
                return found
            with self.store.locked_work_folder(recipe.file, waiting) as work:
                made = self.find(recipe) or self._build_in(work, recipe, compile_in)
            if not made.reused:
                self._prune()
            return made
        except OSError as error:
            if error.errno not in FULL:
                raise self._unusable(error) from error
            raise self._disk_full(recipe, str(error)) from error
        except CompileError as error:
            if os.strerror(errno.ENOSPC) not in error.cause:
                raise
            raise self._disk_full(recipe, "the compiler found no space") from error

    def _build_in(self, work: Path, recipe: Recipe, compile_in: Compile) -> Artifact:
        beside = self.directory / recipe.file
        folders.make_folder(beside.parent)
        started = time.perf_counter()
        try:
            made = compile_in(work)
            return self._keep(recipe, work, made, time.perf_counter() - started)
        except CompileError as error:
            _keep_text(recipe, work, beside)
            raise CompileError(error.program, error.cause, _keep_log(work, beside)) from error

    def _prune(self) -> None:
        """Remove what nobody used for long, and forget it."""
        if self.store.prune_when_due():
            self._manifest.forget_missing()

    def _keep(self, recipe: Recipe, work: Path, made: Path, seconds: float) -> Artifact:
        entry = Entry(
            name=recipe.name,
            backend=recipe.backend,
            file=recipe.file,
            nbytes=made.stat().st_size,
            sha256=file_digest(made),
            seconds=round(seconds, 3),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            made_from=dict(recipe.ingredients),
        )
        path = self.directory / recipe.file
        _keep_log(work, path)
        _keep_text(recipe, work, path)
        self.store.move_in(made, recipe.file)
        self._manifest.add(recipe.stem, entry)
        return Artifact(recipe.name, recipe.key, path, seconds, reused=False)

    def _unusable(self, error: OSError) -> AerieRuntimeError:
        return AerieRuntimeError(
            f"the cache directory {self.directory} cannot be used ({error}): {folders.ADVICE}, or for one "
            "command with --cache-dir"
        )

    def _disk_full(self, recipe: Recipe, cause: str) -> DiskFullError:
        free = shutil.disk_usage(self.directory).free
        return DiskFullError(
            f"no space left while compiling '{recipe.name}' ({cause}; {free} bytes free at "
            f"{self.directory}); what is compiled already stays usable; free some space, as `cache clear` "
            f"does, or name a folder on another disk with {folders.VARIABLE}=/path/to/folder, then repeat"
        )


def _fitting(entries: Mapping[str, Entry], recipe: Recipe) -> list[tuple[str, Entry]]:
    """What this recipe makes; where an ingredient is unknown, what any would have made, the newest first."""
    told = {name: value for name, value in recipe.ingredients.items() if value != UNKNOWN}
    if len(told) == len(recipe.ingredients):
        return [(recipe.stem, entries[recipe.stem])] if recipe.stem in entries else []
    fits = [
        (stem, entry)
        for stem, entry in entries.items()
        if (entry.name, entry.backend) == (recipe.name, recipe.backend)
        and entry.made_from.keys() == recipe.ingredients.keys()
        and told.items() <= entry.made_from.items()
    ]
    return sorted(fits, key=lambda found: found[1].created, reverse=True)


def _silent(line: str) -> None:
    """Whoever looks again will tell."""


def _keep_text(recipe: Recipe, work: Path, target: Path) -> None:
    text = work / "text"
    text.write_text(recipe.text)
    os.replace(text, target.with_suffix(".mlir"))


def _keep_log(work: Path, target: Path) -> Path | None:
    log = work / BUILD_LOG
    if not log.is_file():
        return None
    kept = target.with_suffix(".log")
    os.replace(log, kept)
    return kept


def _damage(path: Path, entry: Entry) -> str:
    """What is wrong with the file, or nothing."""
    if not folders.is_private(path):
        return "others can write it"
    try:
        nbytes = path.stat().st_size
    except OSError:
        return "the file is missing"
    if nbytes != entry.nbytes:
        return f"{nbytes} bytes instead of {entry.nbytes}"
    return "" if file_digest(path) == entry.sha256 else "its content changed"
