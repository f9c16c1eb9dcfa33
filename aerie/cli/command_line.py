"""The commands of `aerie`: their parser, how a process is set up for one, and how each failure ends.

Exit codes: 0 done, 2 a user's error (one line: what, the limit, what to do), 130 interrupted by Ctrl-C, 141
the reader of standard output closed it.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from aerie.cli import commands
from aerie.cli.arguments import (
    add_draft,
    add_estimate,
    add_estimate_of_calls,
    add_generation,
    add_json,
    add_max_model_len,
    add_model,
    add_out,
    add_prompt,
    add_runtime,
    add_sampling,
    add_structured_output,
    add_system,
    add_weights,
    int_at_least,
)
from aerie.cli.cache_command import add_cache, cache
from aerie.cli.export_command import add_export, export
from aerie.cli.inspect_command import add_inspect, inspect
from aerie.cli.models_command import add_models, add_pull, add_rm, models, pull, rm
from aerie.cli.quantize_command import add_quantize, quantize
from aerie.common import standard_streams
from aerie.common.cli_parser import SuggestingParser, with_nearest_choice
from aerie.common.errors import KnobError, UsageError, UserError
from aerie.engine.reporter import treat_signals_as_interrupt
from aerie.multi_launch_builder import UnsupportedShapeError
from aerie.runtime import AerieRuntimeError, ArrayError
from aerie.runtime.memory import available_bytes, format_bytes, use_one_malloc_arena

BROKEN_PIPE = 141  # 128 + SIGPIPE


# Errors of the user. Anything else is a defect of Aerie and keeps its traceback.
USER_ERRORS = (UserError, UnsupportedShapeError, AerieRuntimeError, KnobError)

Command = Callable[[argparse.Namespace], int]
"""Takes the parsed arguments and returns the exit code."""

Subcommand = tuple[str, Command, Sequence[Callable[[argparse.ArgumentParser], None]]]


class CommandParser(SuggestingParser):
    """Raises UsageError instead of printing its usage, so that every failure is one line from one place."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{with_nearest_choice(message)} (see {self.prog} --help)")


MODEL = (add_model, add_runtime, add_weights, add_max_model_len)
"""What every command takes that opens a model."""
ANSWER = (*MODEL, add_generation, add_prompt, add_sampling, add_structured_output)

COMMANDS: Sequence[Subcommand] = (
    ("compile", commands.compile_, [*MODEL, add_draft, add_estimate]),
    ("run", commands.run, [*ANSWER, add_json]),
    ("chat", commands.chat, [*MODEL, add_generation, add_system, add_sampling]),
    ("profile", commands.profile, [*ANSWER, add_estimate_of_calls]),
    ("mlir", commands.mlir, [add_model, add_out]),
    ("export", export, [partial(add_export, int_at_least(1))]),
    ("quantize", quantize, [add_quantize]),
    ("inspect", inspect, [add_inspect]),
    ("cache", cache, [add_cache]),
    ("models", models, [add_models]),
    ("pull", pull, [add_pull]),
    ("rm", rm, [add_rm]),
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the commands of this package."""
    parser = CommandParser(prog="aerie", description="Run a Llama on an AMD NPU, or a virtual one.")
    add_commands(parser, *COMMANDS)
    return parser


def add_commands(parser: argparse.ArgumentParser, *table: Subcommand) -> None:
    """Add subcommands, each with the functions that add its arguments. The first line of a command's
    docstring is its help.

    A name may be followed by a former one that still works: "verify|gate".
    """
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for names, command, adders in table:
        name, *former = names.split("|")
        summary = (command.__doc__ or "").splitlines()[0]
        subparser = subparsers.add_parser(name, aliases=former, help=summary, description=summary)
        for add in adders:
            add(subparser)
        subparser.set_defaults(command=command)


def _is_shortage(error: Exception) -> bool:
    """Whether the system had no memory or no thread left. Python reports the latter as a plain
    RuntimeError."""
    return isinstance(error, MemoryError) or str(error) == "can't start new thread"


def out_of_memory_error(error: Exception) -> str:
    """The message if memory or a thread could not be had in spite of the check before."""
    reason, available = str(error) or "without a reason", available_bytes()
    remaining = "" if available is None else f", with {format_bytes(available)} available"
    lacking = "memory" if isinstance(error, MemoryError) else "threads"
    return (
        f"the system gave no more {lacking} ({reason}){remaining}: take a shorter --seq-len (SEQ_LEN) or a "
        "smaller model, raise the limit (ulimit, container), or end other programs"
    )


def setup_process() -> None:
    """Set up a command's own process: text, signals and memory. Ctrl-C raises KeyboardInterrupt from here on,
    within imports too, as there may be something to save."""
    from aerie.common import interrupts  # imported by a command's own process only

    interrupts.always_raise()
    standard_streams.open_standard_streams()
    use_utf8()
    treat_signals_as_interrupt()
    use_one_malloc_arena()


def use_utf8() -> None:
    """Use UTF-8 on every standard stream, whatever the locale. Invalid bytes become U+FFFD or "?"."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Run the command in `argv`. A user's error is printed in one line and becomes an exit code."""
    try:
        arguments = parser.parse_args(argv)
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ArrayError:
        raise  # a program was called wrongly: a defect of Aerie
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not _is_shortage(error):
            raise
        print(f"error: {out_of_memory_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return commands.INTERRUPTED
    except BrokenPipeError:
        standard_streams.discard_pending_output()
        return BROKEN_PIPE
    except standard_streams.OutputError as error:
        return standard_streams.report_lost_output(error)
