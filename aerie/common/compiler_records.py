"""Recorded versions of C++ compilers, so that a run that compiles nothing does not start a compiler.

    compilers.json    each compiler whose version was queried, the last one first, with a hash of its files

The version is part of the key of every artifact. It is queried again only after the compiler's files have
changed. Without a compiler, the recorded versions still find what these compilers built.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from aerie.common.fingerprint import text_digest
from aerie.common.store import programs_store, write_atomic

NAME = "compilers.json"
MAX_RECORDS = 16
_VERSION_TIMEOUT_S = 30


@dataclass(frozen=True)
class CompilerRecord:
    """One compiler: a hash of its files, and its version line."""

    files: str
    version: str


def recorded_compilers() -> list[CompilerRecord]:
    """The recorded compilers, the last one first; [] if the file is missing or damaged."""
    store = programs_store()
    if store is None:
        return []
    try:
        return [
            CompilerRecord(record["files"], record["version"])
            for record in json.loads((store.folder / NAME).read_bytes())
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def compiler_version(command: tuple[str, ...]) -> str:
    """The first line of `command --version`, and the command's options, which change its output.

    The command runs only if its files are not recorded.
    """
    return _version(command, _files_digest(command))


@functools.cache
def _version(command: tuple[str, ...], files: str) -> str:
    records = recorded_compilers()
    record = next((each for each in records if each.files == files), None)
    if record is None:
        version, can_run = _query_version(command)
        if not can_run:
            return version
        record = CompilerRecord(files, version)
    if records[:1] != [record]:
        _write_records([record, *(other for other in records if other != record)][:MAX_RECORDS])
    return record.version


def _query_version(command: Sequence[str]) -> tuple[str, bool]:
    """The version line, and whether the command exited with status 0."""
    options = [word for word in command if word.startswith("-")]
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}", False
    lines = (done.stdout or done.stderr).strip().splitlines()
    version = lines[0] if lines else f"no version, exit code {done.returncode}"
    return " ".join((version, *options)), done.returncode == 0


def _write_records(records: Sequence[CompilerRecord]) -> None:
    store = programs_store()
    if store is not None:
        text = json.dumps([asdict(record) for record in records], indent=1) + "\n"
        with contextlib.suppress(OSError):  # a full disk: the next run queries again
            write_atomic(store.folder / NAME, lambda file: file.write(text.encode()))


def _files_digest(command: Sequence[str]) -> str:
    """One hash of the command's words, and of path, size and time of every file that they may start."""
    facts = [*command]
    for path in dict.fromkeys(path for word in command for path in _executables(word)):
        status = os.stat(path)
        facts.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    return text_digest("\n".join(facts))


def _executables(word: str) -> Iterator[str]:
    """The executables of this name on PATH, in order: a wrapper such as ccache calls a later one."""
    name = os.path.basename(word)
    on_path = (os.path.join(folder, name) for folder in os.get_exec_path())
    for path in (word, *on_path) if name and not word.startswith("-") else ():
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path
