"""Precompiled headers: what many units of one build begin with is read by the compiler once.

To read the headers of the AIE API takes longer than to compile most kernels. An entry KEY.gch of the content
store has them read, for one compiler and one set of flags. g++ alone makes and uses them: it looks whether an
entry fits the flags and macros of a unit, and reads the headers themselves where it does not. So no result
depends on an entry. To make one takes as long as several units: the first units of a process do without
in a store where it is not there yet.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aerie.common import cpu
from aerie.common.compiler import Compiler
from aerie.common.errors import ToolchainError
from aerie.common.fingerprint import hash_key, includes_digest
from aerie.common.store import Store

UNITS_WITHOUT = {True: 2, False: 8}
"""After how many units of a process, in one store, their headers are precompiled, whether they begin with
the AIE API (True) or not: about as many more make up for it."""

_wanted: Counter[Path] = Counter()
_checked: set[Path] = set()
"""Entries that this process has checked: each has tens of megabytes."""
_lock = threading.Lock()

_AIE_API = "#include <aie_api/aie.hpp>"
_OF_THE_LIBRARY = re.compile(r"#include <[a-z_]+(\.h)?>")
_OF_THE_RUNTIME = re.compile(r'#include "vnpu/[a-z_/]+\.h"')


def _is_include(line: str) -> bool:
    return line.startswith("#include")


def prelude(text: str) -> str:
    """The lines of #include at the start of a unit that are worth to be precompiled; "" if there are none.

    Those of generated C++, or the AIE API, which headers of the C and C++ library alone may precede: nothing
    that the unit says before them may change them.
    """
    lines = (line.strip() for line in text.splitlines())
    first = [*itertools.takewhile(_is_include, (line for line in lines if line and line[:2] != "//"))]
    own = [*itertools.dropwhile(_OF_THE_LIBRARY.fullmatch, first)]
    if own[:1] == [_AIE_API]:
        return f"{_AIE_API}\n"
    return "".join(f"{line}\n" for line in itertools.takewhile(_OF_THE_RUNTIME.fullmatch, first))


def prelude_flags(
    headers: str, folders: Sequence[Path], compiler: Compiler, store: Store | None, work: Path
) -> tuple[str, ...]:
    """The flags that put a unit's prelude before it, precompiled; none where that gains nothing.

    headers: the prelude. work: the unit's own folder. Raises OSError.
    """
    if not headers or store is None or not _is_gcc(compiler):
        return ()
    ingredients = {
        "headers": f"{headers}{includes_digest(headers, folders)}",
        "flags": " ".join(compiler.flags),
        "compiler": compiler.version,
        "CPU": cpu.cpu_identity(),
    }
    entry = store.folder / f"{hash_key(ingredients)}.gch"
    with _lock:
        _wanted[entry] += 1
        is_worth_it = _wanted[entry] > UNITS_WITHOUT[_AIE_API in headers]
    if not is_worth_it and not entry.exists():
        return ()
    source = work / "prelude.h"
    source.write_text(headers)
    try:
        if entry not in _checked or not entry.exists():
            store.get_or_make(entry.name, partial(_precompile, headers, folders, compiler))
            _checked.add(entry)
    except ToolchainError:
        return ()  # the unit's own compilation says what is wrong
    source.with_name("prelude.h.gch").symlink_to(entry.absolute())
    return ("-include", str(source))


def _is_gcc(compiler: Compiler) -> bool:
    """Whether the compiler is g++ by its version line, and no header of others comes before all others."""
    is_plain = "-include" not in compiler.command and not compiler.names_sources
    return is_plain and "clang" not in compiler.version


def _precompile(headers: str, folders: Sequence[Path], compiler: Compiler, work: Path) -> Path:
    source, output = work / "prelude.h", work / "prelude.gch"
    source.write_text(headers)
    compiler.compile(source, output, (*(f"-I{folder}" for folder in folders), "-x", "c++-header"))
    return output
