"""Compiled programs on disk, found by the hash of what made them.

    CACHE/manifest.json              what is there, and what made it
    CACHE/virtual/NAME-KEY.elf       the artifact of one backend
    CACHE/virtual/NAME-KEY.mlir      the program's text, also when they failed
    CACHE/virtual/NAME-KEY.log       what the tools printed, likewise
    CACHE/locks/                     one lock per artifact, one for the manifest
    CACHE/unfinished/                where compilations under way write
    CACHE/shared/                    parts that programs share: objects of the C++ kernels, for the NPU

An artifact appears in one step (`os.replace`) once it is complete, and then in the manifest. Two processes
may share a cache: who comes second waits for the artifact, and finds it. Nothing is ever removed: an artifact
that no program asks for any more costs its file and nothing else, and `make clean` removes the whole cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from runtime.errors import AerieRuntimeError, CompileError, DiskFullError
from runtime.manifest import Entry, Manifest
from virtual_npu.fingerprint import file_digest, key_of

Report = Callable[[str], None]

Compile = Callable[[Path], Path]
"""Compiles inside the given empty folder and gives the artifact's path in it; may leave BUILD_LOG there."""

BUILD_LOG = "build.log"
PROGRAM_TEXT = "program text"
"""The ingredient that tells apart programs of one name: a program is built for one shape."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True)
class Recipe:
    """What an artifact is made from: every ingredient by name, as a hash or a short text."""

    name: str
    backend: str
    text: str
    ingredients: Mapping[str, str]

    @property
    def key(self) -> str:
        return key_of({"name": self.name, "backend": self.backend, **self.ingredients})

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.key}"


@dataclass(frozen=True)
class Artifact:
    """A compiled program. `seconds` is how long compiling took, `reused` whether it was there already."""

    name: str
    key: str
    path: Path
    seconds: float
    reused: bool


class ArtifactStore:
    """The artifacts under one directory. `report` receives one line for everything unusual.

    Raises AerieRuntimeError for a directory that cannot be used.
    """

    def __init__(self, directory: Path, report: Report) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self._report = report
        try:
            (directory / "locks").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._manifest = Manifest(directory / "manifest.json", self._lock("manifest"), report)

    def find(self, recipe: Recipe, report: Report | None = None) -> Artifact | None:
        """The artifact of this recipe if it is there and whole; `report` is told of one that is not whole."""
        entry = self._manifest.read().get(recipe.stem)
        if entry is None:
            return None
        path = self.directory / entry.file
        damage = _damage(path, entry)
        if damage:
            (report or self._report)(f"artifact {path.name} is damaged ({damage}); compiling it again")
            return None
        return Artifact(recipe.name, recipe.key, path, entry.seconds, reused=True)

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
        changed = [name for name, value in recipe.ingredients.items() if newest.get(name) != value]
        return f"changed: {', '.join(changed)}"

    def build(self, recipe: Recipe, compile_in: Compile) -> Artifact:
        """The artifact of this recipe: the one that is there, or a new one. For the one that is there nothing
        is written, so that a read-only directory which holds it will do.

        Raises what `compile_in` raises, DiskFullError when there is no space, and AerieRuntimeError for a
        directory that cannot be used.
        """
        work = self.directory / "unfinished" / recipe.stem
        try:
            if found := self.find(recipe, report=_silent):
                return found
            with self._held(recipe):
                return self.find(recipe) or self._build_in(work, recipe, compile_in)
        except OSError as error:
            if error.errno not in FULL:
                raise self._unusable(error) from error
            raise self._disk_full(recipe, str(error)) from error
        except CompileError as error:
            if os.strerror(errno.ENOSPC) not in error.cause:
                raise
            raise self._disk_full(recipe, "the compiler found no space") from error

    def _build_in(self, work: Path, recipe: Recipe, compile_in: Compile) -> Artifact:
        target = self.directory / recipe.backend / f"{recipe.stem}.elf"
        shutil.rmtree(work, ignore_errors=True)  # left behind by a process that was killed
        try:
            work.mkdir(parents=True, exist_ok=True)  # a compiler that outlived that one may yet write there
            target.parent.mkdir(exist_ok=True)
            started = time.perf_counter()
            made = compile_in(work)
            return self._keep(recipe, work, made, target, time.perf_counter() - started)
        except CompileError as error:
            _keep_text(recipe, work, target)
            raise CompileError(error.program, error.cause, _keep_log(work, target)) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _keep(self, recipe: Recipe, work: Path, made: Path, target: Path, seconds: float) -> Artifact:
        entry = Entry(
            name=recipe.name,
            backend=recipe.backend,
            file=target.relative_to(self.directory).as_posix(),
            nbytes=made.stat().st_size,
            sha256=file_digest(made),
            seconds=round(seconds, 3),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            made_from=dict(recipe.ingredients),
        )
        _keep_log(work, target)
        _keep_text(recipe, work, target)
        os.replace(made, target)
        self._manifest.add(recipe.stem, entry)
        return Artifact(recipe.name, recipe.key, target, seconds, reused=False)

    def _lock(self, name: str) -> FileLock:
        return FileLock(self.directory / "locks" / f"{name}.lock")

    @contextlib.contextmanager
    def _held(self, recipe: Recipe) -> Iterator[None]:
        lock = self._lock(recipe.stem)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._report(f"another process is compiling {recipe.name}; waiting for it")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _unusable(self, error: OSError) -> AerieRuntimeError:
        return AerieRuntimeError(
            f"the cache directory {self.directory} cannot be used ({error}); choose a writable one"
        )

    def _disk_full(self, recipe: Recipe, cause: str) -> DiskFullError:
        free = shutil.disk_usage(self.directory).free
        return DiskFullError(
            f"no space left while compiling '{recipe.name}' ({cause}; {free} bytes free at "
            f"{self.directory}); what is compiled already stays usable; free some space or choose another "
            "cache directory, then repeat"
        )


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
    try:
        nbytes = path.stat().st_size
    except OSError:
        return "the file is missing"
    if nbytes != entry.nbytes:
        return f"{nbytes} bytes instead of {entry.nbytes}"
    return "" if file_digest(path) == entry.sha256 else "its content changed"
