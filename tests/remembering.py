"""A C++ compiler that is asked once for the same object, whatever cache of ours is empty.

Tests of the cache begin with an empty one each. Most of what they compile is the runtime and one program,
always the same: their sources include nothing but the runtime's headers.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

REAL = shutil.which("c++") or "c++"

_LINES = """
for word in "$@"; do
  case "$before" in -o) made="$word"; before=; continue;; esac
  case "$word" in
    */vnpu/*.cc|*/program.cc|*.o) files="$files $word";;
    *.cc) exec REAL "$@";;
    -o) before=-o;;
    -I*) ;;
    *) flags="$flags $word";;
  esac
done
[ -n "$made" ] && [ -n "$files" ] || exec REAL "$@"
kept="KEPT/$( { cat $files; echo "$flags"; } | md5sum | cut -c1-32)"
[ -e "$kept" ] || { REAL "$@" && cp "$made" "$kept.$$" && mv "$kept.$$" "$kept"; } || exit
cp "$kept" "$made"
"""


def lines(kept: Path) -> list[str]:
    """The lines of a shell script that compiles and links, and keeps what it made in a folder."""
    return _LINES.replace("REAL", REAL).replace("KEPT", str(kept)).splitlines()


def compiler(folder: Path) -> Path:
    """Such a compiler, in a folder that is there; it keeps what it made beside it."""
    path = folder / "g++"
    path.write_text("\n".join(("#!/bin/sh", *lines(folder), "")))
    path.chmod(0o755)
    return path


def share_objects(store: Path, folder: Path) -> None:
    """Put what one store has compiled into another one, which has no program linked yet."""
    for compiled in store.glob("*.o"):
        try:
            os.link(compiled, folder / compiled.name)
        except OSError:  # another file system
            shutil.copy2(compiled, folder / compiled.name)
