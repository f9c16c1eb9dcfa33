"""`python -m benchmarks.llamacpp`: Aerie and llama.cpp run the same GGUF file with the same threads, in turn.

llama.cpp is run as its `llama-bench`, which must be on PATH. The file is written from the model at first
need, and is kept. Both decode at the same context and read the same number of tokens. Each round runs one
side after the other: what else the machine does, it does to both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from aerie.cli.arguments import int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import (
    folders,
    interrupts,  # noqa: F401  # isort: split
    knobs,
)
from aerie.common.errors import UserError
from aerie.common.text_tables import text_table
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gguf_file_writer import write_gguf
from aerie.engine.reporter import Reporter
from benchmarks.plan import synthetic_checkpoint
from benchmarks.sides import WARM_UP
from benchmarks.worker import SideProcess, running_worker

LLAMA_BENCH = "llama-bench"
FORMATS = {"bf16": "bf16", "q4": "q4_0", "q8": "q8_0"}
"""The type of the file's matrices, by the kind of weights that Aerie runs with."""
DEFAULT_KINDS = ("bf16", "q4")
PROMPT, CONTEXT = 512, 128
"""Tokens of the prompt, and how many positions the last decoded token attends to."""
TARGETS = {"decode": 1.15, "prefill": 1.0}
"""Speed relative to llama.cpp that is wanted, at every number of threads."""


@dataclass
class Rates:
    """Tokens per second of the rounds of one side."""

    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)

    def median(self) -> dict[str, float]:
        return {"decode": median(self.decode), "prefill": median(self.prefill)}


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(
        prog="python -m benchmarks.llamacpp", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--model", help="an unquantised model (default: a synthetic Llama-3.2-1B)")
    parser.add_argument(
        "--weights", choices=FORMATS, action="append", help="may be repeated (default: bf16 and q4)"
    )
    parser.add_argument(
        "--threads", type=int_at_least(1), action="append", help="may be repeated (default: one per CPU)"
    )
    parser.add_argument("--rounds", type=int_at_least(1), default=3, help="default: 3")
    parser.add_argument("--tokens", type=int_at_least(1), default=16, help="tokens decoded in a round")
    parser.set_defaults(command=measure)
    return parser


def measure(arguments: argparse.Namespace) -> int:
    """Measure both sides, and print the table. Returns 0, whatever the figures."""
    program, report = find_llama_bench(), Reporter()
    if program is None:
        raise UserError(
            f"{LLAMA_BENCH} is not on PATH, so llama.cpp has no side; build llama.cpp, and add its folder of "
            "programs to PATH"
        )
    folder = find_checkpoint(arguments.model) if arguments.model else synthetic_checkpoint(report)
    kinds, threads = arguments.weights or DEFAULT_KINDS, arguments.threads or [knobs.thread_count()]
    print_comparison(program, folder, kinds, threads, arguments.rounds, arguments.tokens, report)
    return 0


def find_llama_bench() -> str | None:
    """The path of llama-bench; None if it is not on PATH."""
    return shutil.which(LLAMA_BENCH)


def print_comparison(
    program: str,
    folder: Path,
    kinds: Sequence[str],
    threads: Sequence[int],
    rounds: int,
    tokens: int,
    report: Reporter,
) -> None:
    """Compare the model of a checkpoint for each kind of weights and number of threads, and print a table."""
    rows = [["weights", "threads", "decode", "llama.cpp", "ratio", f"prefill {PROMPT}", "llama.cpp", "ratio"]]
    for kind in kinds:
        file = gguf_file(folder, kind, report)
        for number in threads:
            ours, theirs = compare(program, file, kind, number, rounds, tokens)
            rows.append([kind, str(number), *_cells(ours, theirs)])
            report.note(" ".join(rows[-1]))
    print(f"{folder.name}: tokens per second, medians of {rounds} rounds; load {os.getloadavg()[0]:.1f}")
    print(text_table(rows, "<>>>>>>>"))
    print(", ".join(f"{part}: {wanted} of llama.cpp wanted" for part, wanted in TARGETS.items()))


def _cells(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Iterator[str]:
    for part in TARGETS:
        yield from (f"{ours[part]:.1f}", f"{theirs[part]:.1f}", f"{ours[part] / theirs[part]:.2f}")


def gguf_file(folder: Path, kind: str, report: Reporter) -> Path:
    """The GGUF file of a checkpoint, written if it is missing."""
    file = folders.cache_folder() / "bench" / "gguf" / f"{folder.name}-{FORMATS[kind]}.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        report.note(f"writing {file}, once")
        unfinished = file.with_suffix(".unfinished")
        write_gguf(unfinished, open_checkpoint(folder, "bf16"), FORMATS[kind], lambda *_: None)
        unfinished.replace(file)
    return file


def compare(
    program: str, file: Path, kind: str, threads: int, rounds: int, tokens: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second of Aerie and of llama.cpp, medians of rounds in turn."""
    ours, theirs = Rates(), Rates()
    work = folders.cache_folder() / "bench" / "llamacpp"
    work.mkdir(parents=True, exist_ok=True)
    side = {"folder": str(file), "cache_dir": str(work / "programs"), "weights": kind}
    with running_worker("ours", side, work / "log", {knobs.THREADS.name: str(threads)}) as worker:
        worker("load")
        worker("first_token", length=PROMPT)  # compiles, and warms up
        for _ in range(rounds):
            run_ours(worker, tokens, ours)
            run_llama_bench(program, file, threads, tokens, theirs)
    return ours.median(), theirs.median()


def run_ours(worker: SideProcess, tokens: int, rates: Rates) -> None:
    """Add a round of Aerie."""
    rates.prefill.append(PROMPT / worker("first_token", length=PROMPT)["seconds"])
    rates.decode.append(1 / worker("decode", context=CONTEXT, tokens=tokens)["seconds"])


def run_llama_bench(program: str, file: Path, threads: int, tokens: int, rates: Rates) -> None:
    """Add a round of llama-bench. Raises UserError if it fails."""
    prefill = {"-p": PROMPT, "-n": 0}
    decode = {"-p": 0, "-n": tokens, "-d": CONTEXT - tokens - WARM_UP}
    for options, found in ((prefill, rates.prefill), (decode, rates.decode)):
        command = [program, "-m", str(file), "-t", str(threads), "-r", "1", "-o", "json"]
        command += [str(part) for option in options.items() for part in option]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            done.check_returncode()
            found.append(float(json.loads(done.stdout)[0]["avg_ts"]))
        except (subprocess.CalledProcessError, ValueError, LookupError, TypeError):
            last = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise UserError(
                f"{program} failed on {file} with exit code {done.returncode}; it said: {last}"
            ) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
