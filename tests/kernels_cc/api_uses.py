"""What a C++ source calls of the AIE API, read from the relocations of an unoptimised object file.

Without optimisation and without forced inlining every call is a relocation in the section of its caller, so
nothing can be missed but what a compiler evaluates itself (constants).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from aerie.common.compiler import find_compiler
from tests.kernels_cc.host_compiler import INCLUDES

FLAGS = ("-std=c++20", "-O0", "-fno-exceptions", "-ffunction-sections", "-DAIE_HOST_INLINE=inline", "-c")
_SECTION = re.compile(r"RELOCATION RECORDS FOR \[(\.text\.)?(\S+)\]")
_RELOCATION = re.compile(r"^[0-9a-f]+\s+\S+\s+(\S+?)([+-]0x[0-9a-f]+)?$")
_HOST = re.compile(r"_Z(NK?)?(St|3aie|8bfloat16)|_ZZNK?3aie|aie_host_")
"""Symbols of the host API and of what it is made of."""


_OWN_NAME = re.compile(r"(?:[\w:<>, ]+ )?\(anonymous namespace\)::")
"""A function of the source itself; the name of a template begins with the type that it returns."""


def calls(source: Path, folder: Path) -> set[str]:
    """The functions that `source`'s own code calls, demangled, its own left out."""
    output = folder / f"{source.stem}.o"
    command = [*find_compiler().command, *FLAGS, *INCLUDES, str(source), "-o", str(output)]
    subprocess.run(command, check=True, capture_output=True)
    listing = subprocess.run(
        ["objdump", "-r", str(output)], check=True, capture_output=True, text=True
    ).stdout
    names = sorted(set(_callees(listing)))
    filt = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True)
    return {name for name in filt.stdout.splitlines() if not _OWN_NAME.match(name)}


def _callees(listing: str) -> Iterator[str]:
    """Mangled names that the sections of the source's own functions refer to, data left out."""
    own = False
    for line in listing.splitlines():
        section = _SECTION.match(line)
        if section:
            own = section[1] is not None and not _HOST.match(section[2])
            continue
        found = _RELOCATION.match(line)
        if own and found:
            name = found[1].removeprefix(".text.")
            if not name.startswith("."):
                yield name


def use(demangled: str) -> tuple[str, str]:
    """A call as (function, form): `mul` and `mul(vector<float, 8>, float)`.

    Template arguments are left out where vectors among the parameters show them.
    """
    text = re.sub(r"(\d)u\b", r"\1", demangled.replace("aie::", ""))
    text = re.sub(r"std::type_identity<(\w+)>::type", r"\1", text).replace("short", "int16")
    text = text.replace(" const&", "").replace(" const*", "*").removesuffix(" const")
    opening = _opening(text)
    *scope, last = _split(_split(text[:opening], " ")[-1], "::")
    function, parameters = last.partition("<")[0], text[opening:]
    form = "::".join([*scope, function if re.search("vector<|accum<", parameters) else last]) + parameters
    return "::".join([*(part.partition("<")[0] for part in scope), function]), form


def _opening(text: str) -> int:
    """Where the list of parameters at the end begins."""
    depth = 0
    for at in range(len(text) - 1, -1, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return at
    raise ValueError(text)


def _split(text: str, by: str) -> list[str]:
    """Split outside angle brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth == 0 and text.startswith(by, at) and at >= start:
            parts.append(text[start:at])
            start = at + len(by)
    return [*parts, text[start:]]
