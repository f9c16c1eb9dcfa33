"""`build`, `emit`, `ops`: a program into a shared object; into C++, or a stage before; what is executed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aerie.common.progress import working
from aerie.virtual_npu.commands import common
from aerie.virtual_npu.options import STAGES

CPP = "c++"


def add(commands: Any) -> None:
    """Add the three parsers."""
    building = commands.add_parser("build", help="build a program into a shared object")
    common.add_file(building)
    building.add_argument("-o", "--output", type=Path, required=True, help="the shared object to write")
    building.add_argument(
        "--parameters",
        type=Path,
        metavar="FILE",
        help="file for the scratchpad's parameters of a module with aie.device, as mlir-aie's hosts read it",
    )
    building.add_argument(
        "--instructions",
        type=Path,
        metavar="FILE",
        help="C++ header for hosts that make a run's instructions from the numbers that its sequence takes",
    )
    common.add_building(building)
    building.set_defaults(command=_build)
    emitting = commands.add_parser("emit", help="print the C++ of a program")
    common.add_file(emitting)
    common.add_numerics(emitting, checks=False)
    emitting.add_argument(
        "--stage",
        choices=(*STAGES, CPP),
        default=CPP,
        help="what to print: MLIR as parsed, as inlined into one function per entry, or as rewritten by the "
        "fast paths; or C++ (default)",
    )
    emitting.set_defaults(command=_emit)
    listing = commands.add_parser("ops", help="list the operations that are executed")
    listing.set_defaults(command=_ops)


def _build(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.console import read_text
    from aerie.virtual_npu.toolchain import build, instructions_header, parameters_text

    text, built_for = read_text(options.file), common.build_options(options)
    with working(f"building {options.output}"):
        build(
            text,
            options.output,
            kernel_dirs=options.kernel_dir,
            filename=str(options.file),
            options=built_for,
            keep=options.keep,
        )
        for file, content in (
            (options.parameters, parameters_text),
            (options.instructions, instructions_header),
        ):
            if file is not None:
                file.write_text(content(text, str(options.file)), encoding="utf-8")
    return 0


def _emit(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.console import read_text
    from aerie.virtual_npu.toolchain import emit, ir_at_stage

    text, name, built_for = read_text(options.file), str(options.file), common.build_options(options)
    if options.stage == CPP:
        print(emit(text, name, built_for).text, end="")
    else:
        print(ir_at_stage(text, options.stage, name, built_for), end="")
    return 0


def _ops(_: argparse.Namespace) -> int:
    from aerie.virtual_npu.aie import module  # noqa: F401 - the emitters of both levels register
    from aerie.virtual_npu.codegen.body import supported_operations

    print("\n".join(supported_operations()))
    return 0
