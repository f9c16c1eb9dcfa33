"""Command line: run, build or translate an AIR program."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from air_dialect.command_line import OneLineParser
from virtual_npu import arrays, knobs
from virtual_npu.codegen.body import supported_operations
from virtual_npu.errors import VirtualNpuError, VirtualNpuRuntimeError
from virtual_npu.library import Entry, Library
from virtual_npu.toolchain import build, emit

USER_ERROR, RUN_ERROR = 2, 1


def _parser() -> argparse.ArgumentParser:
    table = "\n".join(f"  {knob.name:14}{knob.meaning}" for knob in knobs.TABLE)
    parser = OneLineParser(
        prog="python -m virtual_npu",
        description="Runs AIR-dialect programs on the CPU.",
        epilog=f"environment:\n{table}\n\nexit status: 0 done, 1 the program failed at run, 2 wrong input",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="build a program and run one of its functions")
    _add_source(run)
    run.add_argument("--args", type=Path, required=True, help="npz file with arg0, arg1, ...")
    run.add_argument("--out", type=Path, required=True, help="npz file for every argument after the run")
    run.add_argument("--entry", help="the public function to run; may be left out when there is one")
    make = commands.add_parser("build", help="build a program into a shared object")
    _add_source(make)
    make.add_argument("-o", "--output", type=Path, required=True, help="the shared object to write")
    show = commands.add_parser("emit", help="print the C++ of a program")
    show.add_argument("file", type=Path, help="MLIR text")
    commands.add_parser("ops", help="list the operations that are executed")
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="MLIR text")
    parser.add_argument(
        "--kernel-dir",
        type=Path,
        action="append",
        default=[],
        help="folder with the sources of external kernels (k.o is built from k.cc); may be repeated",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise VirtualNpuError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _entry(library: Library, name: str | None) -> Entry:
    names = ", ".join(library.entries)
    if name is not None and name not in library.entries:
        raise VirtualNpuError(f"no public function @{name}: the program has {names}")
    if name is None and len(library.entries) > 1:
        raise VirtualNpuError(f"the program has several public functions ({names}): choose one with --entry")
    return library.entries[name or names]


def _run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="vnpu-") as folder:
        path = Path(folder) / f"{options.file.stem}.so"
        build(_text(options.file), path, kernel_dirs=options.kernel_dir, filename=str(options.file))
        library = Library(path)
        entry = _entry(library, options.entry)
        values = arrays.read(options.args, entry)
        arrays.run(library, entry, values)
        arrays.write(options.out, values)


def _build(options: argparse.Namespace) -> None:
    build(_text(options.file), options.output, kernel_dirs=options.kernel_dir, filename=str(options.file))


def _emit(options: argparse.Namespace) -> None:
    print(emit(_text(options.file), str(options.file)).text, end="")


def _ops(_: argparse.Namespace) -> None:
    print("\n".join(supported_operations()))


_COMMANDS = {"run": _run, "build": _build, "emit": _emit, "ops": _ops}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    options = _parser().parse_args(arguments)
    try:
        knobs.check()
        _COMMANDS[options.command](options)
    except VirtualNpuError as error:
        print(f"error: {error}", file=sys.stderr)
        return RUN_ERROR if isinstance(error, VirtualNpuRuntimeError) else USER_ERROR
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
