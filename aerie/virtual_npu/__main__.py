"""Command line: run, check, build, translate or draw an AIR program."""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from aerie.common import knobs, standard_streams
from aerie.common.errors import ProgramError
from aerie.device.errors import ResourceError
from aerie.virtual_npu import child_process
from aerie.virtual_npu.commands import COMMANDS
from aerie.virtual_npu.commands.common import VnpuParser
from aerie.virtual_npu.console import print_error
from aerie.virtual_npu.errors import VirtualNpuRuntimeError

USER_ERROR, RUN_ERROR, DEFECT, INTERRUPTED = 2, 1, 70, 130


def _parser() -> argparse.ArgumentParser:
    width = max(len(knob.name) for knob in knobs.TABLE)
    table = "\n".join(f"  {knob.name:{width}}  {knob.meaning}" for knob in knobs.TABLE)
    parser = VnpuParser(
        prog="aerie vnpu",
        description="Runs AIR-dialect programs on the CPU.",
        epilog=f"environment:\n{table}\n\nexit status: 0 done, 1 the program failed at run, 2 wrong input",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for module in COMMANDS:
        importlib.import_module(module).add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words, argparse.Namespace(words=words))
        knobs.check()
        return int(options.command(options))
    except ProgramError as error:
        print_error(error, "--json" in words)
        return RUN_ERROR if isinstance(error, VirtualNpuRuntimeError | ResourceError) else USER_ERROR
    except BrokenPipeError:
        return 0
    except standard_streams.OutputError as error:
        return standard_streams.report_lost_output(error)
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        print_error(_defect(error), "--json" in words)
        return DEFECT
    except KeyboardInterrupt as stopped:
        print(*getattr(stopped, "__notes__", ["stopped"]), sep="\n", file=sys.stderr)
        return INTERRUPTED


def _defect(error: Exception) -> ProgramError:
    """The error message of an unexpected exception."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ProgramError(
        f"a defect of the virtual NPU: {what} ({Path(frame.filename).name}:{frame.lineno}); please "
        "report it with the program; `python -X dev -m aerie vnpu` shows where it comes from"
    )


if __name__ == "__main__":
    gc.set_threshold(100_000)  # a sixth of the time to import xDSL
    child_process.fork_and_watch()
    sys.exit(main())
