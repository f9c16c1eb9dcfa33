"""The command `aerie`: every command of every room, under one name.

A room is imported when one of its commands is asked for: `aerie run` loads neither the compiler nor torch.
"""

from __future__ import annotations

from aerie.common import interrupts  # isort: split

import importlib
import runpy
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from aerie.common import standard_streams
from aerie.version import VERSION


class Command(NamedTuple):
    """A command, the room whose command line it is, and what is said of it."""

    name: str
    room: str
    summary: str


COMMANDS: Final = (
    Command("run", "cli", "Answer one prompt."),
    Command("chat", "cli", "Talk with the model."),
    Command("profile", "cli", "Answer one prompt, and show where the time went."),
    Command("compile", "cli", "Compile a model's programs, so that a later run finds them."),
    Command("mlir", "cli", "Write every kernel and every program as MLIR text."),
    Command("export", "cli", "Write block diffusion's step as AIR of fixed shapes."),
    Command("cache", "cli", "Show what is kept where, or clear it."),
    Command("serve", "serve", "Serve a model over HTTP, with OpenAI's API and a web page."),
    Command("verify", "verify", "Say PASS or FAIL: the model against transformers in bf16."),
    Command("diagnosis", "verify", "Name the first step that is not what transformers computes."),
    Command("doctor", "board", "Check every layer between Python and the NPU."),
    Command("setup-npu", "board", "Install upstream's wheels of the NPU compilers."),
    Command("compare", "board", "Run kernels and programs on the NPU and on the virtual NPU."),
    Command("test-toolchain", "board", "Programs through upstream's compilers, stage by stage."),
    Command("test-npu", "board", "All that wants a board, and one report at the end."),
    Command("report", "board", "Gather what an issue needs in one file."),
)
"""Commands about models and machines: a room's own command line has them under the same name."""

TOOLS: Final = (
    Command("vnpu", "virtual_npu", "Run, check, build or translate an AIR program on the CPU."),
    Command("kernels", "kernel_builder", "Look at the kernels and check them."),
    Command("programs", "multi_launch_builder", "Write the programs of any shape as MLIR text."),
    Command("synthetic", "llama32_1b.synthetic", "Write a checkpoint with random weights, to measure with."),
    Command("air", "air_dialect", "Parse a module in the AIR dialect, verify it and print it."),
)
"""For who writes kernels and compilers: each is a room's command line under a shorter name."""

USER_ERROR: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command in this process; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    found = find(words)
    if isinstance(found, int):
        return found
    room, rest = found
    status: int = importlib.import_module(f"{room}.__main__").main(rest)
    return status


def start() -> None:
    """What the installed command does: all that `python -m aerie.ROOM` does, signals and streams included."""
    try:
        standard_streams.begin()
        try:
            _start()
        finally:
            standard_streams.finish()
    except standard_streams.OutputError as error:
        sys.exit(standard_streams.report_output_error(error))
    except KeyboardInterrupt:
        sys.exit(interrupts.report_interrupt())
    finally:
        interrupts.finish()


def _start() -> None:
    found = find(sys.argv[1:])
    if isinstance(found, int):
        sys.exit(found)
    room, rest = found
    sys.argv[1:] = rest
    runpy.run_module(room, run_name="__main__", alter_sys=True)


def find(words: Sequence[str]) -> tuple[str, Sequence[str]] | int:
    """The package whose command line has these words, and the words it takes; or the exit status, once help,
    the version, or what is wrong with the words has been printed."""
    name = words[0] if words else ""
    if name in ("-h", "--help"):
        return _tell(_help())
    if name == "--version":
        return _tell(f"aerie {VERSION}")
    for each in COMMANDS:
        if each.name == name:
            return f"aerie.{each.room}", words
    for each in TOOLS:
        if each.name == name:
            return f"aerie.{each.room}", words[1:]
    return _refuse(name)


def _tell(text: str) -> int:
    print(text)
    return 0


def _refuse(name: str) -> int:
    known = ", ".join(each.name for each in COMMANDS + TOOLS)
    wrong = f"there is no command '{name}'; there are: {known}" if name else f"name a command: {known}"
    print(f"error: {wrong} (see aerie --help)", file=sys.stderr)
    return USER_ERROR


def _help() -> str:
    rows = [
        "usage: aerie COMMAND [...]",
        "",
        "Language models on AMD Ryzen AI NPUs, and on a virtual one.",
        "",
    ]
    rows += [f"  {each.name:14}  {each.summary}" for each in COMMANDS]
    rows += ["", "for who writes kernels and compilers:"]
    rows += [f"  {each.name:14}  {each.summary}" for each in TOOLS]
    return "\n".join([*rows, "", "`aerie COMMAND --help` tells what a command takes."])


if __name__ == "__main__":
    start()
