"""`python tools/make_variables.py TARGET ...`: warns of variables that make was given and nobody reads.

CHECKED in the environment has the names of what was given. make takes any name: `make run prompt=hi` would
answer the default question, and say nothing; so would `make serve SEED=1`, as a server has no seed.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"

CLOSE = 0.8
"""How alike two names are, 0 to 1, for one to be a slip of the other: MODLE is, and HF_TOKEN no N_TOKENS."""
SHORTEST = 3
"""Letters that tell which name is meant by its beginning: TEMP."""
OF_PROGRAMS = re.compile(
    "(AERIE|VNPU|HF|HUGGING_?FACE|TRANSFORMERS|TOKENIZERS|TORCH|OMP|MKL|RAY|PIP|UV|XDG|XRT|XILINX|LD|LC|PYTHON|GIT)_?.*"
    "|CC|CXX|C(XX|PP)?FLAGS|LDFLAGS|PATH|HOME|USER|SHELL|LANG|TERM|TMPDIR|NO_COLOR|MAKEFLAGS|PY|.*_(proxy|PROXY)"
)
"""Names of the environment, which the programs read, or those that they start."""


def known(makefile: str) -> list[str]:
    """The variables that a Makefile has."""
    return re.findall(r"^([A-Z_]+) *\?=", makefile, re.MULTILINE)


def read_by(target: str, makefile: str) -> set[str]:
    """All names in a target's recipe, and in what those stand for."""
    recipe = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)*)", makefile, re.MULTILINE)
    stand_for = dict(re.findall(r"^override (\w+) *:?=((?:.*\\\n)*.*)", makefile, re.MULTILINE))
    found: set[str] = set()
    new = set(re.findall(r"\w+", recipe[1])) if recipe else set()
    while new:
        found |= new
        new = {name for each in new for name in re.findall(r"\w+", stand_for.get(each, ""))} - found
    return found


def meant(name: str, known: Sequence[str]) -> list[str]:
    """Return the names of `known` that `name` may stand for, likeliest first; empty if there is no guess."""
    capitals = name.upper().replace("-", "_")
    if capitals in known:
        return [capitals]
    begun = [each for each in known if len(name) >= SHORTEST and each.startswith(capitals)]
    return begun or difflib.get_close_matches(capitals, known, n=2, cutoff=CLOSE)


def main(targets: Sequence[str]) -> int:
    makefile = MAKEFILE.read_text()
    names, read = known(makefile), {name for target in targets for name in read_by(target, makefile)}
    mistaken = False
    for name in os.environ["CHECKED"].split():
        if name in names:
            if name not in read:
                has = ", ".join(each for each in names if each in read) or "none"
                print(f"note: make {' '.join(targets)} reads no {name}; it reads {has}", file=sys.stderr)
        elif OF_PROGRAMS.fullmatch(name):
            continue
        elif found := meant(name, names):
            mistaken = True
            print(f"error: make has no variable {name}; give {' or '.join(found)}", file=sys.stderr)
        else:
            print(f"note: make has no variable {name}; make help lists them", file=sys.stderr)
    return int(mistaken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
