"""The manifest of a cache directory: a readable list of what is there and what made it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock

from virtual_npu.whole_files import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One artifact. `file` is relative to the cache; `created` is UTC; `made_from` names every ingredient."""

    name: str
    backend: str
    file: str
    nbytes: int
    sha256: str
    seconds: float
    created: str
    made_from: dict[str, str]


class Manifest:
    """`{"format": 1, "artifacts": {NAME-KEY: {...}}}` in one file, written whole or not at all."""

    def __init__(self, path: Path, lock: FileLock, report: Callable[[str], None]) -> None:
        self.path = path
        self._lock = lock
        self._report = report
        self._corruption_reported = False

    def read(self) -> dict[str, Entry]:
        """All entries. A manifest that cannot be read counts as empty, and that is reported."""
        try:
            document = json.loads(self.path.read_bytes())
            return _entries(document)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if not self._corruption_reported:
                self._report(
                    f"{self.path} is corrupt ({error}); starting a new one, programs are compiled again"
                )
            self._corruption_reported = True
            return {}

    def add(self, stem: str, entry: Entry) -> None:
        """Add or replace one entry; what another process added meanwhile stays."""
        with self._lock:
            entries = {**self.read(), stem: entry}
            document = {"format": FORMAT, "artifacts": {key: asdict(entries[key]) for key in sorted(entries)}}
            text = json.dumps(document, indent=1) + "\n"
            write_whole(self.path, lambda file: file.write(text.encode()))


def _entries(document: Any) -> dict[str, Entry]:
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r} instead of {FORMAT}")
    names = [field.name for field in fields(Entry)]
    return {
        stem: Entry(**{name: stored[name] for name in names})
        for stem, stored in document["artifacts"].items()
    }
