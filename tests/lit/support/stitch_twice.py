"""`python stitch_twice.py FILE`: the kernel in FILE, from x to y, stitched with itself into one program."""

from __future__ import annotations

import sys
from pathlib import Path

from aerie.air_dialect import print_module
from aerie.kernel_builder.arguments import Role
from aerie.multi_launch_builder.programs import bf16_table
from aerie.multi_launch_builder.stitcher import Stitcher


def main(file: str) -> int:
    text = Path(file).read_text()
    rows = [("x", (128,), Role.INPUT), ("mid", (128,), Role.INTERMEDIATE), ("y", (128,), Role.OUTPUT)]
    stitcher = Stitcher("twice", bf16_table(*rows))
    stitcher.add(text, {"x": "x", "y": "mid"}, label="first")
    stitcher.add(text, {"x": "mid", "y": "y"}, label="second")
    print(print_module(stitcher.finish()), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
