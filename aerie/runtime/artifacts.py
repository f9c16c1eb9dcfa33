"""Compiled programs on disk, found by the hash of everything that made them.

    CACHE/manifest.json              a list of the artifacts and their ingredients
    CACHE/virtual/NAME-KEY.elf       the artifact of one backend
    CACHE/virtual/NAME-KEY.mlir      the program's text, also of a failed compilation
    CACHE/virtual/NAME-KEY.log       what the tools printed, also of a failed compilation
    CACHE/shared/                    parts that programs share: objects of the C++ kernels, for the NPU
    CACHE/locks/, unfinished/        of the content store (aerie/common/store.py)

An artifact is complete when it appears, and is then added to the manifest. Processes may share a cache: the
second one waits for the first one's artifact and uses it. An artifact that was not used for a month is
removed.
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

Note = Callable[[str], None]

Compile = Callable[[Path], Path]
"""A function that compiles in an empty folder and returns the artifact's path in it. It may leave the output
of the tools there as BUILD_LOG.
"""

BUILD_LOG = "build.log"
PROGRAM_TEXT = "program text"
"""The ingredient that separates programs of one name that were built for different shapes."""

UNKNOWN = ""
"""The value of an ingredient that cannot be determined, such as the version of a compiler that is no longer
installed. It matches any value.
"""

RESERVED_FOLDERS = ("virtual", "npu", "shared")
FORMAT = 1
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class ArtifactInputs:
    """Everything that an artifact depends on: ingredients by name, as hashes or short texts.
    text: the MLIR.
    """

    name: str
    backend: str
    text: str
    ingredients: Mapping[str, str]

    @property
    def key(self) -> str:
        """The hash of all ingredients: 16 hexadecimal digits."""
        return hash_key({"name": self.name, "backend": self.backend, **self.ingredients})

    @property
    def stem(self) -> str:
        """NAME-KEY: the file name of the artifact, its text and its log, without the suffix."""
        return f"{self.name}-{self.key}"

    @property
    def file(self) -> str:
        """The artifact's path, relative to the cache."""
        return f"{self.backend}/{self.stem}.elf"


@dataclass(frozen=True)
class Artifact:
    """A compiled program. seconds: how long compiling took. reused: True if the cache had it already."""

    name: str
    key: str
    path: Path
    seconds: float
    reused: bool


@dataclass(frozen=True)
class ManifestEntry:
    """One artifact in the manifest. file: relative to the cache. created: UTC. made_from: all ingredients by
    name.
    """

    name: str
    backend: str
    file: str
    nbytes: int
    sha256: str
    seconds: float
    created: str
    made_from: dict[str, str]


class Manifest:
    """The file `{"format": 1, "artifacts": {NAME-KEY: {...}}}`: a readable list of what a cache holds."""

    NAME = "manifest.json"

    def __init__(self, store: Store, report: Note) -> None:
        self._store = store
        self._report = report
        self._corruption_reported = False

    def read(self) -> dict[str, ManifestEntry]:
        """Return all entries. A manifest that cannot be read counts as empty, and one line is reported."""
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

    def add(self, stem: str, entry: ManifestEntry) -> None:
        """Add or replace one entry. Entries that other processes added meanwhile stay."""
        self._rewrite(lambda entries: {**entries, stem: entry})

    def forget_missing(self) -> None:
        """Remove the entries whose artifacts were deleted."""
        folder = self._store.folder
        self._rewrite(lambda entries: {s: e for s, e in entries.items() if (folder / e.file).exists()})

    def _rewrite(self, change: Callable[[dict[str, ManifestEntry]], dict[str, ManifestEntry]]) -> None:
        with self._store.locked_work_folder(self.NAME) as work:
            entries = change(self.read())
            document = {"format": FORMAT, "artifacts": {key: asdict(entries[key]) for key in sorted(entries)}}
            (work / self.NAME).write_text(json.dumps(document, indent=1) + "\n")
            self._store.move_in(work / self.NAME, self.NAME)


def _entries(document: Any) -> dict[str, ManifestEntry]:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r} instead of {FORMAT}")
    names = [field.name for field in fields(ManifestEntry)]
    entries = {
        stem: ManifestEntry(**{name: stored[name] for name in names})
        for stem, stored in document["artifacts"].items()
    }
    if not all(entry.file == f"{entry.backend}/{stem}.elf" for stem, entry in entries.items()):
        raise ValueError("a file that is not called as its artifact")
    return entries


def artifact_store(directory: Path) -> Store:
    """The content store of the artifacts in a cache directory."""
    return Store(directory, RESERVED_FOLDERS)


def forget_missing(directory: Path) -> None:
    """Update the manifest after artifacts were deleted; delete the manifest if none is left."""
    manifest = Manifest(artifact_store(directory), report=_no_note)
    if (directory / Manifest.NAME).is_file():
        manifest.forget_missing()
    if not manifest.read():
        (directory / Manifest.NAME).unlink(missing_ok=True)


class ArtifactStore:
    """The artifacts under one directory. report: receives one line about each unusual event.

    Raises AerieRuntimeError if the directory cannot be used, KnobError if other users can write to it.
    """

    def __init__(self, directory: Path, report: Note) -> None:
        self.directory = directory
        self.store = artifact_store(directory)
        self._report = report
        self._manifest = Manifest(self.store, report)
        for folder in (directory, *(directory / name for name in RESERVED_FOLDERS)):
            folders.check_private(folder)
        try:
            folders.make_folder(directory)
        except OSError as error:
            raise self._unusable(error) from error

    def find(self, recipe: ArtifactInputs, report: Note | None = None) -> Artifact | None:
        """Return the artifact if it exists and its hash is right, else None. A damaged one is reported."""
        for stem, entry in _matching(self._manifest.read(), recipe):
            path = self.directory / entry.file
            damage = _damage(path, entry)
            if not damage:
                mark_used(path)
                return Artifact(recipe.name, stem.rpartition("-")[2], path, entry.seconds, reused=True)
            (report or self._report)(f"artifact {path.name} is damaged ({damage}); compiling it again")
        return None

    def rebuild_reason(self, recipe: ArtifactInputs) -> str:
        """Why this program must be compiled: what differs from the newest artifact of the same text."""
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
        known_inputs = {name: value for name, value in recipe.ingredients.items() if value != UNKNOWN}
        changed = [name for name, value in known_inputs.items() if newest.get(name) != value]
        return f"changed: {', '.join(changed)}" if changed else "its artifact is missing or damaged"

    def build(self, recipe: ArtifactInputs, compile: Compile) -> Artifact:
        """Return the existing artifact, or compile a new one. Finding one writes nothing, so a read-only
        directory will do.

        Raises what `compile` raises, DiskFullError if no space is left, and AerieRuntimeError if the
        directory cannot be used.
        """
        waiting = partial(self._report, f"another process is compiling {recipe.name}; waiting for it")
        try:
            if artifact := self.find(recipe, report=_no_note):
                return artifact
            with self.store.locked_work_folder(recipe.file, waiting) as work:
                built = self.find(recipe) or self._build_in(work, recipe, compile)
            if not built.reused:
                self._prune()
            return built
        except OSError as error:
            if error.errno not in DISK_FULL_ERRNOS:
                raise self._unusable(error) from error
            raise self._disk_full(recipe, str(error)) from error
        except CompileError as error:
            if os.strerror(errno.ENOSPC) not in error.cause:
                raise
            raise self._disk_full(recipe, "the compiler found no space") from error

    def _build_in(self, work: Path, recipe: ArtifactInputs, compile_in: Compile) -> Artifact:
        target = self.directory / recipe.file
        folders.make_folder(target.parent)
        started = time.perf_counter()
        try:
            path = compile_in(work)
            return self._store_artifact(recipe, work, path, time.perf_counter() - started)
        except CompileError as error:
            _save_text(recipe, work, target)
            raise CompileError(error.program, error.cause, _save_log(work, target)) from error

    def _prune(self) -> None:
        """Remove the artifacts that were not used for long, also from the manifest."""
        if self.store.prune_when_due():
            self._manifest.forget_missing()

    def _store_artifact(self, recipe: ArtifactInputs, work: Path, compiled: Path, seconds: float) -> Artifact:
        entry = ManifestEntry(
            name=recipe.name,
            backend=recipe.backend,
            file=recipe.file,
            nbytes=compiled.stat().st_size,
            sha256=file_digest(compiled),
            seconds=round(seconds, 3),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            made_from=dict(recipe.ingredients),
        )
        path = self.directory / recipe.file
        _save_log(work, path)
        _save_text(recipe, work, path)
        self.store.move_in(compiled, recipe.file)
        self._manifest.add(recipe.stem, entry)
        return Artifact(recipe.name, recipe.key, path, seconds, reused=False)

    def _unusable(self, error: OSError) -> AerieRuntimeError:
        return AerieRuntimeError(
            f"the cache directory {self.directory} cannot be used ({error}): {folders.ADVICE}, or for one "
            "command with --cache-dir"
        )

    def _disk_full(self, recipe: ArtifactInputs, cause: str) -> DiskFullError:
        free = shutil.disk_usage(self.directory).free
        return DiskFullError(
            f"no space left while compiling '{recipe.name}' ({cause}; {free} bytes free at "
            f"{self.directory}); compiled programs stay usable; free some space, for example "
            "with `cache clear`, or name a folder on another disk with "
            f"{folders.VARIABLE}=/path/to/folder, then repeat"
        )


def _matching(
    entries: Mapping[str, ManifestEntry], recipe: ArtifactInputs
) -> list[tuple[str, ManifestEntry]]:
    """The entries that match these inputs, newest first. UNKNOWN ingredients match any value."""
    known_inputs = {name: value for name, value in recipe.ingredients.items() if value != UNKNOWN}
    if len(known_inputs) == len(recipe.ingredients):
        return [(recipe.stem, entries[recipe.stem])] if recipe.stem in entries else []
    fits = [
        (stem, entry)
        for stem, entry in entries.items()
        if (entry.name, entry.backend) == (recipe.name, recipe.backend)
        and entry.made_from.keys() == recipe.ingredients.keys()
        and known_inputs.items() <= entry.made_from.items()
    ]
    return sorted(fits, key=lambda found: found[1].created, reverse=True)


def _no_note(line: str) -> None:
    """Report nothing: `find` reports the same line later."""


def _save_text(recipe: ArtifactInputs, work: Path, target: Path) -> None:
    text = work / "text"
    text.write_text(recipe.text)
    os.replace(text, target.with_suffix(".mlir"))


def _save_log(work: Path, target: Path) -> Path | None:
    log = work / BUILD_LOG
    if not log.is_file():
        return None
    saved = target.with_suffix(".log")
    os.replace(log, saved)
    return saved


def _damage(path: Path, entry: ManifestEntry) -> str:
    """What is wrong with the artifact's file; "" if it is intact."""
    if not folders.is_private(path):
        return "others can write it"
    try:
        nbytes = path.stat().st_size
    except OSError:
        return "the file is missing"
    if nbytes != entry.nbytes:
        return f"{nbytes} bytes instead of {entry.nbytes}"
    return "" if file_digest(path) == entry.sha256 else "its content changed"
