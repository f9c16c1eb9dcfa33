"""`build`: a program into a shared object."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from virtual_npu.commands import common


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("build", help="build a program into a shared object")
    common.add_file(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the shared object to write")
    common.add_building(parser)
    parser.set_defaults(command=_build)


def _build(options: argparse.Namespace) -> int:
    from virtual_npu.texts import read_text
    from virtual_npu.toolchain import build

    build(
        read_text(options.file),
        options.output,
        kernel_dirs=options.kernel_dir,
        filename=str(options.file),
        options=common.build_options(options),
        keep=options.keep,
    )
    return 0
