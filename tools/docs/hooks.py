"""mkdocs calls this: pages under Reference are made from the code, and join those of docs/."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_made: dict[str, str] = {}
"""Pages by their path; `mkdocs serve` builds often, and imports the code once."""


def on_files(files: Files, config: Any) -> Files:
    if not _made:
        sys.path.insert(0, str(Path(__file__).parent))  # mkdocs takes back what a hook's import adds
        import reference

        _made.update({name: make() for name, make in reference.PAGES.items()})
    for name, text in _made.items():
        files.append(File.generated(config, name, content=text))
    return files
