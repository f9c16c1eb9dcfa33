"""`python tools/make_variables.py NAME ...`: tells of variables that make was given and nobody reads.

The arguments are the Makefile's own variables, UNKNOWN in the environment the names of what was given beside
them. make takes any name: `make run prompt=hi` would answer the default question, and say nothing.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

CLOSE = 0.8
"""How alike two names are, 0 to 1, for one to be a slip of the other: MODLE is, and HF_TOKEN no N_TOKENS."""
SHORTEST = 3
"""Letters that tell which name is meant by its beginning: TEMP."""


def meant(name: str, known: Sequence[str]) -> list[str]:
    """Which of `known` somebody meant who wrote `name`, likeliest first; none, where it cannot be told."""
    capitals = name.upper().replace("-", "_")
    if capitals in known:
        return [capitals]
    begun = [each for each in known if len(name) >= SHORTEST and each.startswith(capitals)]
    return begun or difflib.get_close_matches(capitals, known, n=2, cutoff=CLOSE)


def main(known: Sequence[str]) -> int:
    mistaken = False
    for name in os.environ["UNKNOWN"].split():
        if found := meant(name, known):
            mistaken = True
            print(f"error: make has no variable {name}; give {' or '.join(found)}", file=sys.stderr)
        elif name.islower() and not name.endswith("_proxy"):
            print(f"note: make has no variable {name}; make help lists them", file=sys.stderr)
    return int(mistaken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
