"""Built programs on disk, found by the hash of everything that makes them.

    CACHE/PLAN.json      for a text and the options it is built with: the external kernels it calls
    CACHE/PROGRAM.so     for a plan and the sources of those kernels: the shared object, then its sha256
    CACHE/KEY-NAME.o     an object of the runtime (runtime_objects.py)
    CACHE/PLAN.lock      held while it is built: a second process waits, and finds it

So a program that is found needs neither parser nor compiler. Files appear in one step; one that is damaged
is built again. What was not used for OLDEST_DAYS goes, and the least recently used beyond LARGEST_BYTES.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from virtual_npu import knobs, sealed
from virtual_npu.external import ExternalKernel, KernelObject, kernel_objects
from virtual_npu.fingerprint import file_digest, key_of, text_digest, with_includes
from virtual_npu.library import Library
from virtual_npu.options import BuildOptions
from virtual_npu.recipe import ingredients

LARGEST_BYTES = 1 << 30
OLDEST_DAYS = 30

_DAY = 24 * 60 * 60


@dataclasses.dataclass(frozen=True)
class Source:
    """A program to build: AIR text, the name it has in messages, folders of external kernels, options."""

    text: str
    filename: str
    kernel_dirs: tuple[Path, ...]
    options: BuildOptions

    def build(self, output: Path, keep: Path | None = None) -> list[ExternalKernel]:
        """Build it into `output`; gives the external kernels it calls."""
        from virtual_npu.toolchain import build  # xDSL comes with it

        return build(
            self.text,
            output,
            kernel_dirs=self.kernel_dirs,
            filename=self.filename,
            options=self.options,
            keep=keep,
        )

    @property
    def plan_key(self) -> str:
        """Changes with everything that makes the program but its external kernels."""
        own = {**ingredients(self.options), "options": repr(self.options)}
        return key_of({**own, "text": text_digest(self.text)})


def load(source: Source, *, use_cache: bool = True, keep: Path | None = None) -> Library:
    """The program, from the cache or newly built; `keep` is a folder for its C++, and asks for a new build.

    Raises what building raises. A cache folder that cannot be written is done without.
    """
    keep = keep or (Path(knobs.KEEP.get()) if knobs.KEEP.get() else None)
    folder = knobs.cache_folder() if use_cache else None
    if folder is None or not knobs.is_usable(folder):
        with tempfile.TemporaryDirectory(prefix="vnpu-") as scratch:
            path = Path(scratch) / "program.so"
            source.build(path, keep)
            return Library(path)
    return Library(_Entry(folder, source).path(keep))


class _Entry:
    """The place of one program in a cache folder."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder = folder
        self.source = source
        self.plan = folder / f"{source.plan_key}.json"

    def path(self, keep: Path | None) -> Path:
        found = None if keep else self._find()
        if found is None:
            with self._held():
                found = (None if keep else self._find()) or self._build(keep)
            prune(self.folder)
        return found

    def _find(self) -> Path | None:
        kernels = self._planned()
        if kernels is None:
            return None
        path = self._program(kernels)
        if sealed.content(path) is None:
            return None
        for used in (self.plan, path):
            with contextlib.suppress(OSError):
                os.utime(used)
        return path

    def _planned(self) -> list[ExternalKernel] | None:
        try:
            found = json.loads(self.plan.read_text())
            return [ExternalKernel(**{**kernel, "defines": tuple(kernel["defines"])}) for kernel in found]
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _program(self, kernels: Sequence[ExternalKernel]) -> Path:
        objects = kernel_objects(kernels, self.source.kernel_dirs)
        key = key_of({"plan": self.plan.stem, **{str(i): _made_from(o) for i, o in enumerate(objects)}})
        return self.folder / f"{key}.so"

    def _build(self, keep: Path | None) -> Path:
        work = Path(tempfile.mkdtemp(dir=self.folder, prefix=".work-"))
        try:
            built, plan = work / "program.so", work / "plan.json"
            kernels = self.source.build(built, keep)
            sealed.seal(built)
            plan.write_text(json.dumps([dataclasses.asdict(kernel) for kernel in kernels]))
            path = self._program(kernels)
            os.replace(built, path)
            os.replace(plan, self.plan)
            return path
        finally:
            shutil.rmtree(work, ignore_errors=True)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        from filelock import FileLock

        with FileLock(self.plan.with_suffix(".lock")):
            yield


def _made_from(kernel: KernelObject) -> str:
    files = sorted(with_includes([kernel.source.resolve()]))
    return " ".join([*kernel.flags, *(f"{path} {file_digest(path)}" for path in files)])


def prune(folder: Path, largest_bytes: int = LARGEST_BYTES, oldest_days: float = OLDEST_DAYS) -> None:
    """Remove what was not used for so long, and then the least recently used until the rest is so small."""
    now, kept = time.time(), 0
    for path, used, nbytes in sorted(_files(folder), key=lambda file: -file[1]):
        kept += nbytes
        if kept > largest_bytes or now - used > oldest_days * _DAY:
            kept -= nbytes
            _remove(path)


def _files(folder: Path) -> Iterator[tuple[Path, float, int]]:
    """What is in a cache folder: path, when it was used last, bytes."""
    for path in folder.iterdir():
        if path.suffix in (".so", ".o", ".json", ".lock") or path.name.startswith(".work-"):
            with contextlib.suppress(OSError):
                status = path.stat()
                yield path, status.st_mtime, status.st_size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
