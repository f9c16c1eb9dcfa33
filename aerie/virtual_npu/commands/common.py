"""Options that several commands share, and what is made of them."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from aerie.common.cli_parser import OneLineParser, with_nearest_choice
from aerie.common.progress import working
from aerie.virtual_npu.errors import OptionError, VnpuUsageError
from aerie.virtual_npu.options import NUMERICS, ROUNDINGS, BuildOptions

if TYPE_CHECKING:
    from aerie.virtual_npu.arrays import Array
    from aerie.virtual_npu.library import EntryPoint
    from aerie.virtual_npu.program import Program

DEVICE_NAMES = ("npu2", "npu1")
"""The devices of device/npu2.py, the default first; here without what importing that costs."""
Commands = "argparse._SubParsersAction[Parser]"


class VnpuParser(OneLineParser):
    """Refuses a command line with an error, which is then shown as all others are."""

    def error(self, message: str) -> NoReturn:
        raise VnpuUsageError(f"{with_nearest_choice(message)} (see {self.prog} --help)")


def add_file(parser: argparse.ArgumentParser) -> None:
    """The program's file."""
    parser.add_argument("file", type=Path, help="MLIR text")


def add_building(parser: argparse.ArgumentParser, checks: bool = True) -> None:
    """How a program is built; `checks` is the default."""
    parser.add_argument(
        "--kernel-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder with the sources of external kernels (k.o is built from k.cc); may be repeated",
    )
    add_numerics(parser, checks)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder that receives the generated C++")


def add_numerics(parser: argparse.ArgumentParser, checks: bool = True) -> None:
    """What the generated code depends on."""
    parser.add_argument(
        "--checks",
        action=argparse.BooleanOptionalAction,
        default=checks,
        help=f"watch every access, transfer and dependency (default: {'on' if checks else 'off'})",
    )
    parser.add_argument("--numerics", choices=NUMERICS, help="bf16 matrix products: exact, or block floats")
    parser.add_argument("--rounding", choices=ROUNDINGS, help="how f32 becomes bf16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the arguments of the entry come from."""
    parser.add_argument(
        "--entry", metavar="NAME", help="the public function; may be left out when there is one"
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--args", type=Path, metavar="NPZ", help="npz file with arg0, arg1, ...")
    group.add_argument("--random", type=int, metavar="SEED", help="draw the arguments at random")
    group.add_argument("--zeros", action="store_true", help="all arguments are zero")


def add_json(parser: argparse.ArgumentParser) -> None:
    """The switch for machines."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def build_options(options: argparse.Namespace) -> BuildOptions:
    """What the command line says; what it leaves out, as the environment has it."""
    defaults = BuildOptions.from_knobs()
    return dataclasses.replace(
        defaults,
        checks=options.checks,
        numerics=options.numerics or defaults.numerics,
        rounding=options.rounding or defaults.rounding,
        sanitize=getattr(options, "sanitize", False),
    )


def program(options: argparse.Namespace, path: Path) -> Program:
    """The program in a file, built as the command line says. Raises ProgramError."""
    from aerie.virtual_npu import arrays
    from aerie.virtual_npu.console import read_text
    from aerie.virtual_npu.program import Program

    with working(f"building {path}"):
        found = Program.from_text(
            read_text(path),
            str(path),
            options.kernel_dir,
            build_options(options),
            keep=options.keep,
            use_cache=options.cache,
        )
        given = getattr(options, "args", None) if found.takes_any_shape else None
        return found.with_elements(arrays.sizes(given)) if given else found


def add_cache(parser: argparse.ArgumentParser) -> None:
    """The cache of built programs."""
    parser.add_argument(
        "--cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse built programs (default: on)",
    )


def arguments(options: argparse.Namespace, entry: EntryPoint) -> list[Array]:
    """The arguments that the command line asks for. Raises VnpuArgumentError, OptionError."""
    from aerie.virtual_npu import arrays

    if options.args:
        return arrays.read_npz(options.args, entry)
    if options.random is not None:
        if options.random < 0:
            raise OptionError(f"--random {options.random} is negative: give a seed of 0 or more")
        return arrays.random_arrays(entry, options.random)
    if options.zeros or not entry.arguments:
        return arrays.zero_arrays(entry)
    raise OptionError(
        f"{entry.name} takes {len(entry.arguments)} arguments: give them with --args NPZ, or try it with "
        "--random SEED or --zeros"
    )
