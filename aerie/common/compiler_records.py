"""What is remembered of C++ compilers, beside what they built: so that none is run where nothing is compiled.

    compilers.json    each compiler that was asked for its version, the last one first, with its files then

A compiler is part of the key of whatever it makes. While its files are as they were when it was asked, it is
not asked again; after an update it is. Where there is none any more, what these built is what can be found.
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
from aerie.common.store import kept_programs, write_whole

NAME = "compilers.json"
MOST = 16
_ASK_S = 30


@dataclass(frozen=True)
class Known:
    """One compiler: what its files were, as a hash, and what it said of itself."""

    files: str
    version: str


def remembered() -> list[Known]:
    """The compilers that made what is kept, the last one first. A file that cannot be read holds none."""
    store = kept_programs()
    if store is None:
        return []
    try:
        return [
            Known(each["files"], each["version"]) for each in json.loads((store.folder / NAME).read_bytes())
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def version_of(command: tuple[str, ...]) -> str:
    """The first line of what the command says with --version, and its options, which change what it makes.

    Without running it where it was asked before and its files are the same.
    """
    return _version(command, _files(command))


@functools.cache
def _version(command: tuple[str, ...], files: str) -> str:
    known = remembered()
    found = next((each for each in known if each.files == files), None)
    if found is None:
        version, can_run = _asked(command)
        if not can_run:
            return version
        found = Known(files, version)
    if known[:1] != [found]:
        _remember([found, *(each for each in known if each != found)][:MOST])
    return found.version


def _asked(command: Sequence[str]) -> tuple[str, bool]:
    """What it says, and whether it said so in good health."""
    options = [word for word in command if word.startswith("-")]
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{' '.join(command)}: {error}", False
    lines = (done.stdout or done.stderr).strip().splitlines()
    said = lines[0] if lines else f"no version, exit code {done.returncode}"
    return " ".join((said, *options)), done.returncode == 0


def _remember(known: Sequence[Known]) -> None:
    store = kept_programs()
    if store is not None:
        text = json.dumps([asdict(each) for each in known], indent=1) + "\n"
        with contextlib.suppress(OSError):  # a full disk: it is asked again
            write_whole(store.folder / NAME, lambda file: file.write(text.encode()))


def _files(command: Sequence[str]) -> str:
    """One hash of the words, and of the path, size and time of every file that they may start."""
    facts = [*command]
    for path in dict.fromkeys(path for word in command for path in _started(word)):
        status = os.stat(path)
        facts.append(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}")
    return text_digest("\n".join(facts))


def _started(word: str) -> Iterator[str]:
    """The program of this name, and those of the same name after it on PATH, which a wrapper may call."""
    name = os.path.basename(word)
    beside = (os.path.join(folder, name) for folder in os.get_exec_path())
    for path in (word, *beside) if name and not word.startswith("-") else ():
        if os.path.isfile(path) and os.access(path, os.X_OK):
            yield path
