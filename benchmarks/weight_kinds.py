"""`python -m benchmarks.weight_kinds`: a model with quantised weights against itself in bf16.

Both are loaded, and take turns: what else the machine does, it does to both. The model of bf16 is what is run
by default; the other one quantises the same weights when it is loaded. `python -m benchmarks.llamacpp` has
llama.cpp as the other side.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aerie.cli.arguments import default_cache_dir, int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import (
    interrupts,  # noqa: F401  # isort: split
)
from aerie.common.text_tables import text_table
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.kernel_builder.weight_blocks import KINDS
from aerie.runtime import select_backend
from benchmarks.plan import synthetic_checkpoint

PROMPT, FEW_ROWS, WARM_UP = 512, 8, 2
TARGETS = {
    "q4": {"decode": 2.5, "prefill": 0.9},
    "q8": {"decode": 1.6, "prefill": 0.9},
}
"""Speed relative to bf16 that is wanted of each kind."""
MAX_OF_ONE = 1.6
"""How long a pass of 8 rows may take, in passes of one."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(
        prog="python -m benchmarks.weight_kinds", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--weights", choices=KINDS[1:], default="q4", help="default: q4")
    parser.add_argument("--model", help="default: a synthetic Llama-3.2-1B, made at first need")
    parser.add_argument("--rounds", type=int_at_least(1), default=3, help="default: 3")
    parser.add_argument("--tokens", type=int_at_least(1), default=8, help="tokens decoded in a round")
    parser.set_defaults(command=measure)
    return parser


def measure(arguments: argparse.Namespace) -> int:
    """Measure both, and print the table. Returns 0, whatever the figures."""
    report = Reporter()
    folder = find_checkpoint(arguments.model) if arguments.model else synthetic_checkpoint(report)
    models = {kind: load(folder, kind, report) for kind in (KINDS[0], arguments.weights)}
    times = take_turns(models, arguments.rounds, arguments.tokens)
    rows = [["weights", "decode, tokens/s", f"prefill of {PROMPT}, tokens/s", f"{FEW_ROWS} rows, of one"]]
    rows += [[kind, *map("{:.1f}".format, speeds(times[kind]).values())] for kind in models]
    print(f"{folder.name}, {os.cpu_count()} threads")
    print(text_table(rows, "<>>>"))
    for line in verdicts(arguments.weights, *(speeds(times[kind]) for kind in models)):
        print(line)
    print(f"load average {os.getloadavg()[0]:.1f}: times of a busy machine say little, ratios more")
    return 0


def load(folder: Path, kind: str, report: Reporter) -> LoadedModel:
    """The model with its weights of this kind."""
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), prompt_tokens=PROMPT)
    session = prepare_runtime(open_checkpoint(folder, kind), options, report)
    session.ensure_programs([1] * PROMPT)
    return session.model


def take_turns(
    models: Mapping[str, LoadedModel], rounds: int, tokens: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each part, by model, of a prompt, a decoded token, and a pass of 8 rows."""
    times: dict[str, dict[str, list[float]]] = {kind: {} for kind in models}
    for turn in range(rounds + 1):  # the first one is to warm up
        for kind, model in models.items():
            for part, seconds in one_round(model, tokens).items():
                if turn:
                    times[kind].setdefault(part, []).extend(seconds)
    return times


def one_round(model: LoadedModel, tokens: int) -> dict[str, list[float]]:
    """Seconds of each part."""
    ids = [3 + number * 7 % 1000 for number in range(PROMPT)]
    cache = model.new_cache(PROMPT + tokens + WARM_UP)
    found = {"prefill": [timed(lambda: prefill(model, ids, cache, last_only=True))]}

    def decode() -> None:
        next_token_logits(model, decode_step(model, 5, cache))

    found["decode"] = [timed(decode) for _ in range(tokens + WARM_UP)][WARM_UP:]
    cache.length = PROMPT - FEW_ROWS
    found["rows"] = [timed(lambda: prefill(model, ids[:FEW_ROWS], cache))]
    return found


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def speeds(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Tokens per second decoded and of a prompt, and the time of 8 rows in that of one."""
    decode = statistics.median(times["decode"])
    return {
        "decode": 1 / decode,
        "prefill": PROMPT / min(times["prefill"]),
        "rows": statistics.median(times["rows"]) / decode,
    }


def verdicts(kind: str, plain: Mapping[str, float], blocks: Mapping[str, float]) -> list[str]:
    """One line for each target."""
    lines = [
        f"{part}: {blocks[part] / plain[part]:.2f} of bf16, wanted {wanted}"
        for part, wanted in TARGETS[kind].items()
    ]
    return [*lines, f"{FEW_ROWS} rows: {blocks['rows']:.2f} of one, at most {MAX_OF_ONE} wanted"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
