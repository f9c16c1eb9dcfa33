"""Trying mutants: in a copy of the tree, one at a time, with the tests that should find them.

The user's files are read and never written. A copy has its own cache of built programs, which begins with
hard links to what the tree's tests have built: a mutant that keeps something wrong keeps it there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.table import Mutant, TableError, sources, test_id

KILLED, SURVIVED, TIMED_OUT, NO_VERDICT = "killed", "survived", "timed out", "no verdict"
CACHE = Path("build", "test-cache")
WHOLE = frozenset({".elf", ".o", ".so"})
"""Suffixes of what is moved into its place whole and never changed there: these may be links."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
OPTIONS = ("-x", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0")
"""Of pytest. What hypothesis draws is the same for every mutant."""
ORIGINS = (
    "import sys; from importlib.util import find_spec\nfor m in sys.argv[1:]: print(find_spec(m).origin)"
)
"""A program that prints where modules would be imported from."""
NOTHING_FAILED, FAILURES = 0, (1, 2, 4)
"""Exit codes of pytest; the last two where a file of tests cannot be imported any more."""
NO_TESTS = 5
"""Exit code of pytest where it runs none: all are slow."""
NAMED_TESTS = "not board"
"""pytest's -m for a test that a mutant names by itself: it is run although it is slow."""


@dataclass(frozen=True)
class Run:
    """The result of pytest: its exit code (None: it took too long), the first test that failed, the time."""

    code: int | None
    failed: str
    seconds: float
    end: str = ""


@dataclass(frozen=True)
class Result:
    """What came of a mutant. by: the test that failed, or why there is no verdict. key: of all that it
    depends on."""

    outcome: str
    by: str
    seconds: float
    key: str


class Results:
    """A file of JSON with what is known so far: of each mutant, and of each test in the tree as it is. It is
    written after every one, so that a run that was broken off goes on."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._lock = path, threading.Lock()
        known = json.loads(path.read_text()) if path and path.is_file() else {}
        self.mutants = {name: Result(**found) for name, found in known.get("mutants", {}).items()}
        self.healthy = {name: Result(**found) for name, found in known.get("healthy", {}).items()}

    def put(self, of: dict[str, Result], name: str, result: Result) -> None:
        """Add one, and write the file whole."""
        with self._lock:
            of[name] = result
            if self._path is None:
                return
            record = {part: _as_json(getattr(self, part)) for part in ("healthy", "mutants")}
            fresh = self._path.with_name(f".{self._path.name}.new")
            fresh.write_text(json.dumps(record, indent=1) + "\n")
            fresh.replace(self._path)


def _as_json(results: dict[str, Result]) -> dict[str, dict[str, object]]:
    return {name: asdict(results[name]) for name in sorted(results)}


class Keys:
    """What a result depends on, as a hash: the product, the tests that are run, the mutant. Taken of a copy,
    as the tree may change meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._product = _digest(path.read_bytes() for path in sources(root))

    def of_test(self, test: str) -> str:
        file = test_id(self._root, test).partition("::")[0]
        return _digest([self._product.encode(), test.encode(), (self._root / file).read_bytes()])

    def of_mutant(self, mutant: Mutant) -> str:
        parts = [mutant.file, mutant.old, mutant.new, *map(self.of_test, mutant.tests)]
        return _digest(each.encode() for each in parts)


def _digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


class Copy:
    """A copy of a tree's files in `folder`: those that git has, and new ones that it does not ignore."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self.folder = root, folder
        self._process: subprocess.Popen[str] | None = None
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if os.path.lexists(root / name):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)

    def check_imports(self, modules: Sequence[str]) -> None:
        """TableError where a module would be imported from elsewhere, so that no mutant would be seen."""
        found = subprocess.run(
            [sys.executable, "-c", ORIGINS, *modules],
            cwd=self.folder, env=self._environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if found.returncode:
            raise TableError(
                f"a module of the table cannot be found: {found.stderr.strip().splitlines()[-1]}"
            )
        away = [one for one in found.stdout.split("\n") if one and not _is_in(Path(one), self.folder)]
        if away:
            raise TableError(f"the copy in {self.folder} would import {away[0]}, which no mutant changes")

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Within this the copy has the mutant."""
        path = mutant.place(self.folder)
        healthy = path.read_text()
        for kept in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            kept.unlink()  # it might count as that of the changed file, which may have its size and second
        path.write_text(healthy.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            path.write_text(healthy)

    def pytest(self, tests: Sequence[str], timeout: float, own_cache: bool, marks: str) -> Run:
        """Run tests until one fails. own_cache: whether programs are kept in the copy alone."""
        self._lay_cache(own_cache)
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        options = [*OPTIONS, "-m", marks]
        ids = [test_id(self.folder, test) for test in tests]
        began = time.monotonic()
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *ids],
            cwd=self.folder, env=self._environment(writes=not own_cache), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            process.communicate()
            return Run(None, "", timeout)
        failed = FAILED.search(output)
        return Run(
            process.returncode, failed[1] if failed else "", time.monotonic() - began, output[-500:].strip()
        )

    def stop(self) -> None:
        """End the tests that are under way, with all that they started."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _environment(self, writes: bool = True) -> dict[str, str]:
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = (each for each in given if each and Path(each).resolve() != self._root.resolve())
        path = [str(self.folder), *others]
        own = {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "" if writes else "1"}
        return {**os.environ, **own}

    def _lay_cache(self, own: bool) -> None:
        built, here = (self._root / CACHE).resolve(), self.folder / CACHE
        if here.is_symlink():
            here.unlink()
        shutil.rmtree(here, ignore_errors=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        if not own:
            built.mkdir(parents=True, exist_ok=True)
            here.symlink_to(built)
        elif built.is_dir():
            shutil.copytree(built, here, copy_function=_linked, ignore=shutil.ignore_patterns("unfinished"))


def _linked(source: str, target: str) -> None:
    if Path(source).suffix in WHOLE:
        try:
            return os.link(source, target)
        except OSError:
            pass  # another file system
    with suppress(FileNotFoundError):  # removed meanwhile, such as a lock
        shutil.copy2(source, target)


def _is_in(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@dataclass(frozen=True)
class Settings:
    """timeout: seconds for the tests of a mutant. marks: pytest's -m."""

    timeout: float = 300
    marks: str = "not slow and not board"


class Trial:
    """Mutants tried in copies side by side. note: called with a line for each."""

    def __init__(
        self,
        keys: Keys,
        results: Results,
        copies: Sequence[Copy],
        settings: Settings,
        note: Callable[[str], None],
    ) -> None:
        self._keys, self._results, self._settings, self._note = keys, results, settings, note
        self._checking = defaultdict[str, threading.Lock](threading.Lock)
        self._copies: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            self._copies.put(copy)

    def _healthy(self, test: str) -> Result:
        """What a file of tests says in the tree as it is: one that fails there kills nothing."""
        key = self._keys.of_test(test)
        with self._checking[test]:
            return _known(self._results.healthy.get(test), key) or self._checked(test, key)

    def _checked(self, test: str, key: str) -> Result:
        copy = self._copies.get()
        try:
            run = self._run(copy, [test], own_cache=False)
        finally:
            self._copies.put(copy)
        outcome = SURVIVED if run.code == NOTHING_FAILED else NO_VERDICT
        why = "" if outcome == SURVIVED else _why(run)
        result = Result(outcome, why, round(run.seconds, 1), key)
        self._results.put(self._results.healthy, test, result)
        self._note(f"{test}: {why or 'passes'} ({result.seconds} s)")
        return result

    def try_(self, mutant: Mutant) -> Result:
        """The result of one; from the file where that has it."""
        key = self._keys.of_mutant(mutant)
        if known := _known(self._results.mutants.get(mutant.id), key):
            return known
        result = self._tried(mutant, key)
        self._results.put(self._results.mutants, mutant.id, result)
        self._note(f"{mutant.id}: {result.outcome} {result.by} ({result.seconds} s)")
        return result

    def _tried(self, mutant: Mutant, key: str) -> Result:
        for test in mutant.tests:
            if self._healthy(test).outcome != SURVIVED:
                return Result(NO_VERDICT, f"{test} does not pass in the tree as it is", 0.0, key)
        copy = self._copies.get()
        try:
            with copy.changed(mutant):
                run = self._run(copy, mutant.tests, own_cache=True)
        finally:
            self._copies.put(copy)
        return Result(*_judged(run), round(run.seconds, 1), key)

    def _run(self, copy: Copy, tests: Sequence[str], own_cache: bool) -> Run:
        """Run files of tests, then tests that are named by themselves, until one fails."""
        files = [test for test in tests if "::" not in test]
        named = [test for test in tests if "::" in test]
        run, seconds = Run(NOTHING_FAILED, "", 0), 0.0
        for group, marks in ((files, self._settings.marks), (named, NAMED_TESTS)):
            if group and run.code == NOTHING_FAILED:
                run = copy.pytest(group, self._settings.timeout, own_cache, marks)
                seconds += run.seconds
        return replace(run, seconds=seconds)


def _why(run: Run) -> str:
    """Why tests say nothing of a mutant."""
    if run.code == NO_TESTS:
        return "no test of it is run, as all are slow; name one by itself"
    return run.failed or run.end or "it took too long"


def _known(result: Result | None, key: str) -> Result | None:
    """A result that holds still. What gave no verdict is tried again."""
    return result if result and result.key == key and result.outcome != NO_VERDICT else None


def _judged(run: Run) -> tuple[str, str]:
    if run.code is None:
        return TIMED_OUT, ""
    if run.code == NOTHING_FAILED:
        return SURVIVED, ""
    if run.code in FAILURES and run.failed:
        return KILLED, run.failed
    return NO_VERDICT, f"pytest ended with {run.code}: {run.end}"
