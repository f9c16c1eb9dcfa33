"""`aerie cache`: what lies in the folder of all that is kept, and clearing it.

What is ours is known by its name, file by file: AERIE_CACHE may name a folder with somebody's own files in
it, and those are neither counted nor removed.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.common import compiler_records, folders
from aerie.common.errors import UserError
from aerie.common.store import EntryGroup, Store
from aerie.runtime.artifacts import Manifest, artifact_store, forget_missing
from aerie.runtime.memory import GIB

SHOW, CLEAR = "show", "clear"
DONE = 0
_DAY = 24 * 60 * 60

CHECKPOINT = ("*.json", "*.safetensors")
MLIR = ("kernels/*.mlir", "programs/*.mlir", "programs/*.args.json")
BOARD = ("compare.json", "*.xml", "logs/*.log", "aerie-report-*.zip")
LOOSE = ("diagnosis.html", "diagnosis.json", "bench.json", "setup-npu.log")
FILES: dict[str, tuple[str, bool, Sequence[str]]] = {
    "bench": ("logs of the last benchmark", True, ("*.log",)),
    "mlir": ("MLIR texts", True, MLIR),
    "verify": ("records of verify", False, ("verify-*.json",)),
    "board": ("comparisons and reports", False, BOARD),
    ".": ("diagnosis, benchmark, setup", False, LOOSE),
}
"""What lies in no store: in which folder, what it is, whether it is made again, names."""


@dataclass(frozen=True)
class Part:
    """One kind of what is kept. `remade`: it is made again when it is needed, so clearing loses nothing."""

    what: str
    folder: Path
    groups: list[EntryGroup]
    remade: bool = False
    store: Store | None = None

    @property
    def files(self) -> int:
        return sum(len(group.paths) for group in self.groups)

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def used(self) -> float:
        """When any of it was used last, in seconds since 1970; 0 where there is nothing."""
        return max((group.used for group in self.groups), default=0.0)


def parts(home: Path, cache_dir: Path | None = None) -> list[Part]:
    """All that any command keeps in the folder `home`, also where there is none of it. Raises KnobError.

    cache_dir: of compiled programs, where they were kept elsewhere.
    """
    built = folders.vnpu_folder()
    kept = [_programs("compiled programs", cache_dir or home / folders.PROGRAMS)]
    if built is not None:
        kept.append(_stored("what the virtual NPU built", Store(built)))
    synthetic = home / "synthetic" / "llama-3.2-1b"
    kept += bench_parts(home / "bench")
    kept.append(Part("the benchmark's checkpoint", synthetic, _whole(synthetic, *CHECKPOINT), remade=True))
    return [*kept, *(_files(home / where, *about) for where, about in FILES.items())]


def _files(folder: Path, what: str, remade: bool, patterns: Sequence[str]) -> Part:
    return Part(what, folder, [EntryGroup([path]) for path in _found(folder, patterns)], remade)


def bench_parts(folder: Path) -> list[Part]:
    """What a benchmark compiled in its folder, apart from all else."""
    return [
        _programs("the benchmark's programs", folder / "programs"),
        _stored("what the virtual NPU built for it", Store(folder / "vnpu")),
    ]


def _programs(what: str, folder: Path) -> Part:
    return _stored(what, artifact_store(folder))


def _stored(what: str, store: Store) -> Part:
    return Part(what, store.folder, store.groups(), remade=True, store=store)


def _whole(folder: Path, *patterns: str) -> list[EntryGroup]:
    """Files that are of no use without each other."""
    found = _found(folder, patterns)
    return [EntryGroup(found)] if found else []


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        default=SHOW,
        choices=(SHOW, CLEAR),
        help="show: the folder, what lies in it, sizes, last use (default); clear: remove what is made again "
        "when it is needed",
    )
    parser.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="clear only what was not used for so many days (default: all)",
    )
    parser.add_argument("--all", action="store_true", help="clear records and reports too")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        help="of compiled programs, as it was given to other commands",
    )


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days, such as 30")
    return days


def cache(arguments: argparse.Namespace) -> int:
    """Show what is kept where, or clear it."""
    found = parts(folders.cache_folder(), arguments.cache_dir)
    if arguments.what == SHOW:
        if arguments.all or arguments.older_than is not None:
            raise UserError("--all and --older-than say what to clear: aerie cache clear ...")
        _show(found)
    else:
        _clear([part for part in found if part.remade or arguments.all], arguments.older_than, arguments.all)
    return DONE


def _show(found: Sequence[Part]) -> None:
    print(f"{folders.cache_folder()}: {told(sum(part.nbytes for part in found))} of ours")
    there = [part for part in found if part.files]
    for part in there:
        files = f"{part.files} file{'s' if part.files > 1 else ''}"
        kept = "" if part.remade else " (a result: only clear --all removes it)"
        print(f"  {told(part.nbytes):>9}  {files:>10}  {_ago(part.used):13}  {part.what}{kept}")
        if not part.folder.is_relative_to(folders.cache_folder()):
            print(f"{'':39}in {part.folder}")
    if folders.vnpu_folder() is None:
        print("  what the virtual NPU built is not kept (VNPU_CACHE=off)")
    if there:
        print("to remove it: aerie cache clear [--older-than DAYS] [--all]")
    print(f"another folder: {folders.VARIABLE}=/path/to/folder")


def _clear(found: Sequence[Part], older_than: float | None, everything: bool) -> None:
    freed = 0
    for part in found:
        files, nbytes = clear(part, older_than)
        freed += nbytes
        if files:
            print(f"removed {files} file{'s' if files > 1 else ''}, {told(nbytes)}: {part.what}")
    left = "" if everything else "; records and reports stay (--all removes them too)"
    print(f"{told(freed)} freed in {folders.cache_folder()}{left}")


def clear(part: Part, older_than: float | None = None) -> tuple[int, int]:
    """Remove what was not used for so many days, or all; how many files and bytes that was.

    Raises UserError for what cannot be removed.
    """
    limit = None if older_than is None else time.time() - older_than * _DAY
    old = [group for group in part.groups if limit is None or group.used < limit]
    files, nbytes = sum(len(group.paths) for group in old), sum(group.nbytes for group in old)
    try:
        for group in old:
            group.remove()
        if part.store is not None:
            _tidy(part.store, emptied=len(old) == len(part.groups))
    except OSError as error:
        raise UserError(f"cannot remove {error.filename} ({error.strerror}): whose is it?") from None
    _remove_empty(part, old)
    return files, nbytes


def _tidy(store: Store, emptied: bool) -> None:
    if (store.folder / Manifest.NAME).is_file():
        forget_missing(store.folder)
    if emptied:
        (store.folder / compiler_records.NAME).unlink(missing_ok=True)
        store.remove_empty()


def _remove_empty(part: Part, removed: Sequence[EntryGroup]) -> None:
    """Folders that nothing is left in, below the folder of all that is kept, which may be somebody's own."""
    home = folders.cache_folder()
    for folder in {path.parent for group in removed for path in group.paths} | {part.folder}:
        while folder != home and folder.is_relative_to(home):
            with contextlib.suppress(OSError):
                folder.rmdir()
            folder = folder.parent


def told(nbytes: int) -> str:
    """A size in words, down to bytes."""
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


def _ago(used: float) -> str:
    days = int((time.time() - used) // _DAY)
    if days < 1:
        return "used today"
    return f"{days} day{'s' if days > 1 else ''} ago"
