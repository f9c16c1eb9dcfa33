"""`python -m benchmarks`: compare Aerie with transformers on this machine, by instruction set. Prints tables,
and writes build/bench.json."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from aerie.cli.arguments import CACHE_FOLDER_HELP, int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import (
    folders,
    interrupts,  # noqa: F401  # isort: split
    knobs,
)
from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.common.text_tables import print_tables
from aerie.engine.reporter import Reporter
from benchmarks import comparison, instruction_sets, llamacpp
from benchmarks.instruction_sets import SelectedSet
from benchmarks.machine import describe_machine
from benchmarks.plan import make_plan, synthetic_checkpoint
from benchmarks.tables import comparison_table, machine_lines, missed_targets, peaks_by_set, table_by_set
from benchmarks.worker import running_worker


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(
        prog="python -m benchmarks", description="Measure Aerie against transformers in bf16."
    )
    parser.add_argument(
        "--model",
        help="a checkpoint folder, a Hugging Face id, or 'demo' (default: a synthetic Llama-3.2-1B, made at "
        "first need)",
    )
    parser.add_argument(
        "--isa",
        default=instruction_sets.NATIVE,
        help=f"what both sides are limited to: {', '.join(instruction_sets.LIMITS)}, native (default: "
        "nothing is limited), or all sets that this CPU has, in turn",
    )
    parser.add_argument("--rounds", type=int_at_least(1), default=3, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int_at_least(1), default=8, help="tokens decoded per round and context (default: 8)"
    )
    parser.add_argument("--out", type=Path, help=f"default: bench.json in {CACHE_FOLDER_HELP}")
    parser.add_argument(
        "--machine",
        action="store_true",
        help="only print the machine and its peak rates, in seconds",
    )
    parser.add_argument("--show", action="store_true", help="only print what was measured before, by set")
    parser.set_defaults(command=measure)
    return parser


def measure(arguments: argparse.Namespace) -> int:
    """Measure one instruction set after the other. Prints the tables, and writes the figures after each."""
    out = arguments.out or folders.cache_folder() / "bench.json"
    if arguments.show:
        return print_record(out)
    selections = instruction_sets.choose(arguments.isa)
    if arguments.machine:
        return print_machine(selections)
    report = Reporter()
    require_torch()
    require_writable(out)
    folder = find_checkpoint(arguments.model) if arguments.model else synthetic_checkpoint(report)
    plan = make_plan(folder, arguments.rounds, arguments.tokens)
    model = Path(arguments.model).resolve().name if arguments.model else "synthetic Llama-3.2-1B"
    for selected in selections:
        figures = comparison.run(plan, selected, folders.cache_folder() / "bench", report)
        print_tables(Console(), comparison_table(model, selected.title, figures))
        print_conditions(figures, report)
        write_record(merge_figures(read_record(out), model, describe_machine(), figures), out)
    report.note(f"written to {out}")
    if program := llamacpp.find_llama_bench():
        kinds, threads = llamacpp.DEFAULT_KINDS, [knobs.thread_count()]
        llamacpp.print_comparison(program, folder, kinds, threads, arguments.rounds, arguments.tokens, report)
    return print_record(out)


def print_conditions(figures: Mapping[str, Any], report: Reporter) -> None:
    """Print the conditions of the measurement: load of the machine, what transformers used, variables that
    are set."""
    load, transformers_uses = figures["load_average"], figures["theirs_uses"]
    report.note(
        f"memory reads at {figures['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s; load average {load['before']} "
        f"before, {load['after']} after; transformers: torch with {transformers_uses['torch']}, products by "
        f"{'oneDNN, ' + transformers_uses['product'] if transformers_uses['product'] else 'torch itself'}"
    )
    if figures["knobs"]:
        report.note("with " + ", ".join(f"{name}={value}" for name, value in figures["knobs"].items()))


def print_record(out: Path) -> int:
    """Print everything recorded, by instruction set. Raises UserError if there is no record."""
    recorded = read_record(out)
    if not recorded:
        raise UserError(f"{out} has no comparison; `make bench` measures one")
    console = Console()
    sets = {figures["title"]: figures for figures in sort_by_instruction_set(recorded["sets"])}
    for line in machine_lines(recorded["machine"]):
        console.print(line, highlight=False)
    print_tables(console, table_by_set(recorded["model"], sets))
    for line in missed_targets(sets):
        console.print(f"not met: {line}", highlight=False)
    return 0


def print_machine(selections: Sequence[SelectedSet]) -> int:
    """Print the machine and its peaks by instruction set, which takes a few seconds each."""
    console = Console()
    for line in machine_lines(describe_machine()):
        console.print(line, highlight=False)
    with tempfile.TemporaryDirectory(prefix="vnpu-") as work:
        peaks = {}
        for selected in selections:
            with running_worker("machine", {}, Path(work) / "machine.log", selected.environment) as worker:
                peaks[selected.title] = worker("peaks")
    print_tables(console, peaks_by_set(peaks))
    return 0


def read_record(out: Path) -> dict[str, Any]:
    """The record in a file; empty if there is none, or another release wrote it."""
    try:
        recorded = json.loads(out.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(recorded, dict) or not isinstance(recorded.get("sets"), dict):
        return {}
    is_current = all("http_token_ms" in figures.get("ours", {}) for figures in recorded["sets"].values())
    return recorded if is_current else {}


def sort_by_instruction_set(sets: Mapping[str, Any]) -> list[Any]:
    """The recorded figures, smaller instruction sets first."""
    order = [*instruction_sets.LIMITS, instruction_sets.NATIVE]
    return [sets[name] for name in order if name in sets]


def merge_figures(
    recorded: Mapping[str, Any], model: str, machine: Mapping[str, Any], figures: Mapping[str, Any]
) -> dict[str, Any]:
    """The record with the figures of one instruction set replaced. Other sets stay if they are of the same
    model and machine."""
    header = {"model": model, "machine": machine}
    same = all(recorded.get(name) == value for name, value in header.items())
    return {**header, "sets": {**(recorded["sets"] if same else {}), figures["isa"]: figures}}


def write_record(recorded: Mapping[str, Any], out: Path) -> None:
    """Write a record as JSON. Raises UserError if the file cannot be written."""
    text = json.dumps(recorded, indent=2) + "\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, lambda file: file.write(text.encode()))
    except OSError as error:
        raise _unwritable(out, error) from None


def require_writable(out: Path) -> None:
    """Raise UserError if `out` cannot be written, before anything is measured."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise _unwritable(out, error) from None


def _unwritable(out: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {out} ({error.strerror}); name another file with --out")


def require_torch() -> None:
    """Raise UserError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "transformers needs torch on the CPU, which is not installed; `make bench` installs it, as does "
            "pip install -e '.[test]'"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
