"""`emit`: the C++ that a program becomes, or a stage before that."""

from __future__ import annotations

import argparse
from typing import Any

from virtual_npu.commands import common
from virtual_npu.options import STAGES

CPP = "c++"


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("emit", help="print the C++ of a program")
    common.add_file(parser)
    common.add_numerics(parser, checks=False)
    parser.add_argument(
        "--stage",
        choices=(*STAGES, CPP),
        default=CPP,
        help="what to print: MLIR as parsed, as inlined into one function per entry, or as rewritten by the "
        "fast paths; or C++ (default)",
    )
    parser.set_defaults(command=_emit)


def _emit(options: argparse.Namespace) -> int:
    from virtual_npu.texts import read_text
    from virtual_npu.toolchain import emit, staged

    text, name, built_for = read_text(options.file), str(options.file), common.build_options(options)
    if options.stage == CPP:
        print(emit(text, name, built_for).text, end="")
    else:
        print(staged(text, options.stage, name, built_for), end="")
    return 0
