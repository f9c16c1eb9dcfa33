"""`python -m benchmarks`: ours against transformers on this machine, a table and build/bench.json."""

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

from aerie.llama32_1b.checkpoint import find_checkpoint
from aerie.llama32_1b.cli import KEPT_IN, Parser, begin_process, run_command, whole_number
from aerie.llama32_1b.errors import UserError
from aerie.llama32_1b.progress import Reporter
from aerie.llama32_1b.synthetic.shape import LLAMA_3_2_1B
from aerie.llama32_1b.synthetic.writer import weight_bytes, write_checkpoint
from aerie.runtime.tables import print_tables
from aerie.virtual_npu import folders
from aerie.virtual_npu.store import write_whole
from benchmarks import bench
from benchmarks.figures import table

"""Characters; wider than any table."""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks", description="Measure Aerie against transformers in bf16.")
    parser.add_argument(
        "--model",
        help="a checkpoint folder, a Hugging Face id, or 'demo' (default: a synthetic Llama-3.2-1B, made at "
        "first need)",
    )
    parser.add_argument("--rounds", type=whole_number(1), default=3, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=whole_number(1), default=8, help="tokens decoded per round and context (default: 8)"
    )
    parser.add_argument("--out", type=Path, help=f"default: bench.json in {KEPT_IN}")
    parser.set_defaults(command=measure)
    return parser


def measure(arguments: argparse.Namespace) -> int:
    """Measure, print the table, write the figures."""
    report = Reporter()
    require_torch()
    out = arguments.out or folders.home() / "bench.json"
    require_writable(out)
    folder = find_checkpoint(arguments.model) if arguments.model else synthetic_checkpoint(report)
    plan = bench.make_plan(folder, arguments.rounds, arguments.tokens)
    model = Path(arguments.model).resolve().name if arguments.model else "synthetic Llama-3.2-1B"
    found, samples = bench.run(plan, model, folders.home() / "bench", report)
    print_tables(Console(), table(found, samples))
    load = found["load_average"]
    report.note(
        f"{found['machine']['cpu']}, {found['machine']['threads']} threads; memory reads at "
        f"{found['bandwidth_bytes_per_s'] / 1e9:.1f} GB/s; load average {load['before']} before, "
        f"{load['after']} after"
    )
    if found["knobs"]:
        report.note("with " + ", ".join(f"{name}={value}" for name, value in found["knobs"].items()))
    write_record(found, out)
    report.note(f"written to {out}")
    return 0


def write_record(found: Mapping[str, Any], out: Path) -> None:
    """Write what was found as JSON. Raises UserError where that cannot be."""
    text = json.dumps(found, indent=2) + "\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, lambda file: file.write(text.encode()))
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
    folder = folders.home() / "synthetic" / "llama-3.2-1b"
    if not folder.is_dir():
        bench.check_memory(LLAMA_3_2_1B, bench.LONGEST, weight_bytes(LLAMA_3_2_1B))
        report.note(f"writing a synthetic Llama-3.2-1B of 2.5 GB to {folder}, once")
        write_checkpoint(LLAMA_3_2_1B, folder, 0, report)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    begin_process()
    sys.exit(main())
