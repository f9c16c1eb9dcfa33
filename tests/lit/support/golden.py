"""`COMMAND | python golden.py FILE`: what COMMAND prints is FILE, letter by letter, below FILE's first lines.

FILE begins with `//` lines, the RUN line among them; the golden text is what follows. A difference is
shown, with exit status 1. With --refresh it is taken over instead.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from pathlib import Path


def parts(text: str) -> tuple[str, str]:
    """The `//` lines that a file begins with, and the rest."""
    lines = text.splitlines(keepends=True)
    head = list(itertools.takewhile(lambda line: line.startswith("//"), lines))
    return "".join(head), "".join(lines[len(head) :])


def main() -> int:
    parser = argparse.ArgumentParser(description="compare standard input with a golden text")
    parser.add_argument("file", type=Path)
    parser.add_argument("--refresh", action="store_true", help="take the new text over")
    options = parser.parse_args()
    head, golden = parts(options.file.read_text())
    found = sys.stdin.read()
    if not found.strip():
        print("error: there is no text on standard input; the command before the pipe printed nothing")
        return 1
    if options.refresh:
        options.file.write_text(head + found)
        return 0
    lines = difflib.unified_diff(golden.splitlines(), found.splitlines(), "golden", "found", lineterm="")
    difference = "\n".join(lines)
    if difference:
        print(difference, "look at the change; `make lit REFRESH=1` takes it over", sep="\n")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
