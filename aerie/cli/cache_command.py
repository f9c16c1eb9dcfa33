"""`aerie cache`: show what is in the cache folder, or clear it.

Files of Aerie are recognized by name: AERIE_CACHE may name a folder with other files in it, which are neither
counted nor removed.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.cli import package_models
from aerie.common import compiler_records, folders
from aerie.common.errors import UserError
from aerie.common.store import EntryGroup, Store
from aerie.engine.packed_weights import packed_folder, packed_groups
from aerie.runtime.artifacts import Manifest, artifact_store, forget_missing
from aerie.runtime.memory import format_file_bytes

SHOW, CLEAR = "show", "clear"
DONE = 0
_DAY = 24 * 60 * 60

CHECKPOINT = ("*.json", "*.safetensors")
MLIR = ("kernels/*.mlir", "programs/*.mlir", "programs/*.args.json")
BOARD = ("compare.json", "*.xml", "logs/*.log", "aerie-report-*.zip")
MODELS = ("*/*.gguf", f"*/{package_models.LOCK}")
REPORT_FILES = ("diagnosis.html", "diagnosis.json", "bench.json", "setup-npu.log")
FILES: dict[str, tuple[str, bool, Sequence[str]]] = {
    "bench": ("logs of the last benchmark", True, ("*.log",)),
    "mlir": ("MLIR texts", True, MLIR),
    "verify": ("records of verify", False, ("verify-*.json",)),
    "board": ("comparisons and reports", False, BOARD),
    package_models.FOLDER: ("models that were fetched", False, MODELS),
    ".": ("diagnosis, benchmark, setup", False, REPORT_FILES),
}
"""Files outside the stores, by folder: description, whether they are rebuilt when needed, name patterns."""


@dataclass(frozen=True)
class CacheSection:
    """One kind of cached files. is_rebuilt: rebuilt when needed, so clearing loses nothing."""

    description: str
    folder: Path
    groups: list[EntryGroup]
    is_rebuilt: bool = False
    store: Store | None = None

    @property
    def files(self) -> int:
        return sum(len(group.paths) for group in self.groups)

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def last_used_s(self) -> float:
        """Last use of any of it, in seconds since 1970; 0 if there is none."""
        return max((group.used for group in self.groups), default=0.0)


def cache_sections(home: Path, cache_dir: Path | None = None) -> list[CacheSection]:
    """All kinds of files that commands keep in `home`, present or not. Raises KnobError. cache_dir: of
    compiled programs, if they are elsewhere."""
    built = folders.vnpu_folder()
    sections = [_program_section("compiled programs", cache_dir or home / folders.PROGRAMS)]
    if built is not None:
        sections.append(_store_section("what the virtual NPU built", Store(built)))
    synthetic = home / "synthetic" / "llama-3.2-1b"
    sections.append(_packed_section(packed_folder(cache_dir)))
    sections += bench_sections(home / "bench")
    sections.append(
        CacheSection(
            "the benchmark's checkpoint", synthetic, _file_group(synthetic, *CHECKPOINT), is_rebuilt=True
        )
    )
    return [*sections, *(_file_section(home / where, *about) for where, about in FILES.items())]


def _file_section(folder: Path, description: str, is_rebuilt: bool, patterns: Sequence[str]) -> CacheSection:
    return CacheSection(
        description, folder, [EntryGroup([path]) for path in _matching_files(folder, patterns)], is_rebuilt
    )


def _packed_section(folder: Path) -> CacheSection:
    return CacheSection("packed weights", folder, packed_groups(folder), is_rebuilt=True)


def bench_sections(folder: Path) -> list[CacheSection]:
    """What a benchmark compiled in its own folder."""
    return [
        _program_section("the benchmark's programs", folder / "programs"),
        _store_section("what the virtual NPU built for it", Store(folder / "vnpu")),
    ]


def _program_section(description: str, folder: Path) -> CacheSection:
    return _store_section(description, artifact_store(folder))


def _store_section(description: str, store: Store) -> CacheSection:
    return CacheSection(description, store.folder, store.groups(), is_rebuilt=True, store=store)


def _file_group(folder: Path, *patterns: str) -> list[EntryGroup]:
    """Files that are useless without each other, as one group."""
    paths = _matching_files(folder, patterns)
    return [EntryGroup(paths)] if paths else []


def _matching_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        default=SHOW,
        choices=(SHOW, CLEAR),
        help=(
            "show: the folder, its contents, sizes, last use (default); clear: remove what Aerie can "
            "make again"
        ),
    )
    parser.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="clear only what was not used for this many days (default: all)",
    )
    parser.add_argument("--all", action="store_true", help="clear records and reports too")
    parser.add_argument(
        "--cache-dir",
        type=Path,
        help="the folder of compiled programs, if other commands got one",
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
    sections = cache_sections(folders.cache_folder(), arguments.cache_dir)
    if arguments.what == SHOW:
        if arguments.all or arguments.older_than is not None:
            raise UserError("--all and --older-than are for aerie cache clear")
        _show(sections)
    else:
        _clear(
            [section for section in sections if section.is_rebuilt or arguments.all],
            arguments.older_than,
            arguments.all,
        )
    return DONE


def _show(sections: Sequence[CacheSection]) -> None:
    total = sum(section.nbytes for section in sections)
    print(f"{folders.cache_folder()}: {format_file_bytes(total)} of ours")
    non_empty = [section for section in sections if section.files]
    for section in non_empty:
        files = f"{section.files} file{'s' if section.files > 1 else ''}"
        remark = "" if section.is_rebuilt else " (only clear --all removes it)"
        print(
            f"  {format_file_bytes(section.nbytes):>9}  {files:>10}  {_ago(section.last_used_s):13}  "
            f"{section.description}{remark}"
        )
        if not section.folder.is_relative_to(folders.cache_folder()):
            print(f"{'':39}in {section.folder}")
    if folders.vnpu_folder() is None:
        print("  programs of the virtual NPU are not cached (VNPU_CACHE=off)")
    if non_empty:
        print("to remove it: aerie cache clear [--older-than DAYS] [--all]")
    print(f"another folder: {folders.VARIABLE}=/path/to/folder")


def _clear(sections: Sequence[CacheSection], older_than: float | None, everything: bool) -> None:
    freed = 0
    for section in sections:
        files, nbytes = clear(section, older_than)
        freed += nbytes
        if files:
            print(
                f"removed {files} file{'s' if files > 1 else ''}, {format_file_bytes(nbytes)}: "
                f"{section.description}"
            )
    rest = "" if everything else "; records and reports stay (--all removes them too)"
    print(f"{format_file_bytes(freed)} freed in {folders.cache_folder()}{rest}")


def clear(section: CacheSection, older_than: float | None = None) -> tuple[int, int]:
    """Remove everything, or what was not used for `older_than` days. Returns the number of files and bytes
    removed.

    Raises UserError if a file cannot be removed.
    """
    limit = None if older_than is None else time.time() - older_than * _DAY
    old = [group for group in section.groups if limit is None or group.used < limit]
    files, nbytes = sum(len(group.paths) for group in old), sum(group.nbytes for group in old)
    try:
        for group in old:
            group.remove()
        if section.store is not None:
            _tidy(section.store, emptied=len(old) == len(section.groups))
    except OSError as error:
        raise UserError(f"cannot remove {error.filename} ({error.strerror}): whose is it?") from None
    _remove_empty(section, old)
    return files, nbytes


def _tidy(store: Store, emptied: bool) -> None:
    if (store.folder / Manifest.NAME).is_file():
        forget_missing(store.folder)
    if emptied:
        (store.folder / compiler_records.NAME).unlink(missing_ok=True)
        store.remove_empty()


def _remove_empty(section: CacheSection, removed: Sequence[EntryGroup]) -> None:
    """Remove empty folders below the cache folder, which itself may belong to the user."""
    home = folders.cache_folder()
    for folder in {path.parent for group in removed for path in group.paths} | {section.folder}:
        while folder != home and folder.is_relative_to(home):
            with contextlib.suppress(OSError):
                folder.rmdir()
            folder = folder.parent


def _ago(used: float) -> str:
    days = int((time.time() - used) // _DAY)
    if days < 1:
        return "used today"
    return f"{days} day{'s' if days > 1 else ''} ago"
