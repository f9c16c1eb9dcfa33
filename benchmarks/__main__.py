"""`python -m benchmarks`: ours against transformers on this machine, by instruction set: tables, and
build/bench.json."""

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

from aerie.cli.arguments import KEPT_IN, Parser, begin_process, run_command, whole_number
from aerie.cli.checkpoints import find_checkpoint
from aerie.common import (
    folders,
    interrupts,  # noqa: F401  # isort: split
)
from aerie.common.errors import UserError
from aerie.common.store import write_atomic
from aerie.common.text_tables import print_tables
from aerie.engine.progress import Reporter
from aerie.llama32_1b.synthetic.shape import LLAMA_3_2_1B
from aerie.llama32_1b.synthetic.writer import weight_bytes, write_checkpoint
from benchmarks import bench, instruction_sets
from benchmarks.instruction_sets import Choice
from benchmarks.machine import describe
from benchmarks.plan import check_memory, make_plan
from benchmarks.tables import by_set, comparison, machine_lines, missed, peaks_by_set
from benchmarks.worker import working


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks", description="Measure Aerie against transformers in bf16.")
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
    parser.add_argument("--rounds", type=whole_number(1), default=3, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=whole_number(1), default=8, help="tokens decoded per round and context (default: 8)"
    )
    parser.add_argument("--out", type=Path, help=f"default: bench.json in {KEPT_IN}")
    parser.add_argument(
        "--machine",
        action="store_true",
        help="only say what machine this is and what it can do at most, in seconds",
    )
    parser.add_argument("--show", action="store_true", help="only print what was measured before, by set")
    parser.set_defaults(command=measure)
    return parser


def measure(arguments: argparse.Namespace) -> int:
    """Measure set after set; print the tables, write the figures after each."""
    out = arguments.out or folders.cache_folder() / "bench.json"
    if arguments.show:
        return show(out)
    choices = instruction_sets.choose(arguments.isa)
    if arguments.machine:
        return show_machine(choices)
    report = Reporter()
    require_torch()
    require_writable(out)
    folder = find_checkpoint(arguments.model) if arguments.model else synthetic_checkpoint(report)
    plan = make_plan(folder, arguments.rounds, arguments.tokens)
    model = Path(arguments.model).resolve().name if arguments.model else "synthetic Llama-3.2-1B"
    for choice in choices:
        found = bench.run(plan, choice, folders.cache_folder() / "bench", report)
        print_tables(Console(), comparison(model, choice.title, found))
        tell_about(found, report)
        write_record(added(read_record(out), model, describe(), found), out)
    report.note(f"written to {out}")
    return show(out)


def tell_about(found: Mapping[str, Any], report: Reporter) -> None:
    """What figures are nothing without: the load of the machine, what the other side used, knobs."""
    load, theirs = found["load_average"], found["theirs_uses"]
    report.note(
        f"memory reads at {found['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s; load average {load['before']} "
        f"before, {load['after']} after; transformers: torch with {theirs['torch']}, products by "
        f"{'oneDNN, ' + theirs['product'] if theirs['product'] else 'torch itself'}"
    )
    if found["knobs"]:
        report.note("with " + ", ".join(f"{name}={value}" for name, value in found["knobs"].items()))


def show(out: Path) -> int:
    """Print all that was recorded, by instruction set. Raises UserError where nothing was."""
    recorded = read_record(out)
    if not recorded:
        raise UserError(f"{out} has no comparison; `make bench` measures one")
    console, sets = Console(), {found["title"]: found for found in in_order(recorded["sets"])}
    for line in machine_lines(recorded["machine"]):
        console.print(line, highlight=False)
    print_tables(console, by_set(recorded["model"], sets))
    for line in missed(sets):
        console.print(f"not met: {line}", highlight=False)
    return 0


def show_machine(choices: Sequence[Choice]) -> int:
    """What machine this is, and its peaks by instruction set: a few seconds each."""
    console = Console()
    for line in machine_lines(describe()):
        console.print(line, highlight=False)
    with tempfile.TemporaryDirectory(prefix="vnpu-") as work:
        peaks = {}
        for choice in choices:
            with working("machine", {}, Path(work) / "machine.log", choice.environment) as worker:
                peaks[choice.title] = worker("peaks")
    print_tables(console, peaks_by_set(peaks))
    return 0


def read_record(out: Path) -> dict[str, Any]:
    """What was recorded there; empty where nothing was, or what no bench of this release wrote."""
    try:
        recorded = json.loads(out.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(recorded, dict) or not isinstance(recorded.get("sets"), dict):
        return {}
    is_known = all("http_token_ms" in found.get("ours", {}) for found in recorded["sets"].values())
    return recorded if is_known else {}


def in_order(sets: Mapping[str, Any]) -> list[Any]:
    """What was recorded, the lesser sets first."""
    order = [*instruction_sets.LIMITS, instruction_sets.NATIVE]
    return [sets[name] for name in order if name in sets]


def added(
    recorded: Mapping[str, Any], model: str, machine: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, Any]:
    """The record with one set's figures new; the others stay if they are of this model on this machine."""
    about = {"model": model, "machine": machine}
    same = all(recorded.get(name) == value for name, value in about.items())
    return {**about, "sets": {**(recorded["sets"] if same else {}), found["isa"]: found}}


def write_record(found: Mapping[str, Any], out: Path) -> None:
    """Write what was found as JSON. Raises UserError where that cannot be."""
    text = json.dumps(found, indent=2) + "\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, lambda file: file.write(text.encode()))
    except OSError as error:
        raise _unwritable(out, error) from None


def require_writable(out: Path) -> None:
    """UserError where `out` cannot be written, before anything is measured."""
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
    """UserError where it is not installed, before anything else is done."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "transformers needs torch on the CPU, which is not installed; `make bench` installs it, as does "
            "pip install -e '.[test]'"
        )


def synthetic_checkpoint(report: Reporter) -> Path:
    """The synthetic Llama-3.2-1B, made where it is missing."""
    folder = folders.cache_folder() / "synthetic" / "llama-3.2-1b"
    if not folder.is_dir():
        check_memory(LLAMA_3_2_1B, weight_bytes(LLAMA_3_2_1B))
        report.note(f"writing a synthetic Llama-3.2-1B of 2.5 GB to {folder}, once")
        write_checkpoint(LLAMA_3_2_1B, folder, 0, report)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    begin_process()
    sys.exit(main())
