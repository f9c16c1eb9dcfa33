"""`emit`: the C++ that a program becomes."""

from __future__ import annotations

import argparse
from typing import Any

from virtual_npu.commands import common


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("emit", help="print the C++ of a program")
    common.add_file(parser)
    common.add_numerics(parser, checks=False)
    parser.set_defaults(command=_emit)


def _emit(options: argparse.Namespace) -> int:
    from virtual_npu.texts import read_text
    from virtual_npu.toolchain import emit

    text = emit(read_text(options.file), str(options.file), common.build_options(options)).text
    print(text, end="")
    return 0
