"""`python -m benchmarks.http`: measure what the server costs over its engine: first token, time per token,
concurrent clients.

`aerie serve` runs in its own process, as do the clients and the engine alone, by the Python API in the same
decode path `rows`. They take turns, and every output over HTTP must equal the engine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console

from aerie.cli.arguments import int_at_least
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.common.text_tables import compact_table, print_tables
from aerie.engine.reporter import Reporter
from benchmarks.figures import CONCURRENT_CLIENTS, TARGETS
from benchmarks.worker import REPOSITORY, SideProcess, running_worker

QUESTION = "Question {}: what is the capital of France, and how far is it from the sea?"
NAME = "bench"
READY_S = 600.0
"""Seconds for a server to load its model: programs may have to be compiled first."""
DRAIN_S = 10.0


class Endpoints(NamedTuple):
    """Two ways to the same model: a client of its server, and the engine alone."""

    client: SideProcess
    engine: SideProcess


class HttpOverhead(NamedTuple):
    """Seconds that HTTP adds to the first token, and to each further token; and those of the engine alone."""

    first_s: float
    token_s: float
    engine_first_s: float
    engine_token_s: float


class ConcurrentTimes(NamedTuple):
    """Seconds until CONCURRENT_CLIENTS outputs, requested at once, were complete."""

    http_s: float
    engine_s: float


def measure_overhead(endpoints: Endpoints, number: int, tokens: int) -> HttpOverhead:
    """Measure one streamed output of `tokens` tokens. number: makes the prompt unique, so that the pool has
    none of it. Raises UserError if the outputs differ."""
    prompts = [QUESTION.format(number)]
    over_http = endpoints.client("streamed", prompts=prompts, tokens=tokens)
    first = endpoints.engine("time_answers", prompts=prompts, tokens=1)["seconds"]
    alone = endpoints.engine("time_answers", prompts=prompts, tokens=tokens)
    check_same(over_http["texts"], alone["texts"])
    return overhead_from(over_http, first, alone["seconds"], tokens)


def overhead_from(
    over_http: Mapping[str, float], first_s: float, alone_s: float, tokens: int
) -> HttpOverhead:
    """Compute the overhead. first_s, alone_s: seconds of the engine for one token, and for all."""
    rest = over_http["seconds"] - over_http["first_seconds"]
    token_s = (alone_s - first_s) / (tokens - 1)
    return HttpOverhead(over_http["first_seconds"] - first_s, rest / (tokens - 1) - token_s, first_s, token_s)


def measure_concurrent(endpoints: Endpoints, number: int, tokens: int) -> ConcurrentTimes:
    """Measure CONCURRENT_CLIENTS outputs of `tokens` tokens each. Raises UserError if the outputs differ."""
    prompts = [QUESTION.format(f"{number}, {each}") for each in range(CONCURRENT_CLIENTS)]
    over_http = endpoints.client("streamed", prompts=prompts, tokens=tokens)
    alone = endpoints.engine("time_answers", prompts=prompts, tokens=tokens)
    check_same(over_http["texts"], alone["texts"])
    return ConcurrentTimes(over_http["seconds"], alone["seconds"])


def check_same(over_http: list[str], alone: list[str]) -> None:
    """Raise UserError if an output over HTTP differs from the output of the engine."""
    for served, direct in zip(over_http, alone, strict=True):
        if served != direct:
            raise UserError(f"over HTTP an answer is {served[:100]!r}, and the engine's is {direct[:100]!r}")


@contextlib.contextmanager
def open_both(
    folder: Path, work: Path, cache: Path, env: Mapping[str, str], extra: str = ""
) -> Iterator[Endpoints]:
    """Start a server and an engine of a checkpoint without EOS ids. work: for logs and that checkpoint.
    cache: compiled programs. extra: a prefix of the names of logs."""
    model = without_eos(folder, work / f"{extra}endless")
    engine_of = {"folder": str(model.resolve()), "cache_dir": str(cache.resolve())}
    with (
        running_worker("ours", engine_of, work / f"{extra}engine.log", env) as engine,
        running_server(model, work / f"{extra}serve.log", cache, env) as port,
        running_worker("client", {"port": port}, work / f"{extra}client.log", {}) as client,
    ):
        engine("load")
        yield Endpoints(client, engine)


def without_eos(folder: Path, copy: Path) -> Path:
    """A copy of the checkpoint, by links, without EOS ids, so that all outputs have the requested length
    without a logit bias."""
    copy.mkdir(parents=True, exist_ok=True)
    for previous in copy.iterdir():
        previous.unlink()
    for path in folder.resolve().iterdir():
        if path.name != "generation_config.json":
            (copy / path.name).symlink_to(path)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    return copy


@contextlib.contextmanager
def running_server(folder: Path, log: Path, cache: Path, env: Mapping[str, str]) -> Iterator[int]:
    """Start a server, wait until its model is loaded, yield its port, and stop it afterwards."""
    arguments = ["--model", str(folder.resolve()), "--name", NAME, "--backend", "virtual", "--port", "0"]
    command = [sys.executable, "-c", SERVE, *arguments, "--cache-dir", str(cache.resolve())]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **env}, stderr=output)
    try:
        yield _loaded(process, log)
    finally:
        process.terminate()
        try:
            process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


SERVE = """
import sys
from aerie.cli.command_line import setup_process
from aerie.serve.cli import main
from aerie.virtual_npu.child_process import end_with_parent

end_with_parent()
setup_process()
sys.exit(main(["serve", *sys.argv[1:]]))
"""
"""`aerie serve`, which ends with its parent even if that is killed."""


def _loaded(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port, once the model is loaded. Raises UserError if the server ends or takes too long."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        log_text = log.read_text(errors="replace")
        if (code := process.poll()) is not None:
            last = log_text.strip().rpartition("\n")[2] or "nothing"
            raise UserError(
                f"the server ended with exit code {code} before its model was loaded; it printed: {last} "
                f"(all of it: {log})"
            )
        match = re.search(r"at http://127\.0\.0\.1:(\d+);", log_text)
        if match and _has_loaded(int(match[1])):
            return int(match[1])
        time.sleep(0.05)
    raise UserError(f"the server has not loaded its model in {READY_S:g} s; its output: {log}")


def _has_loaded(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as response:
            return bool(json.load(response)["models"][NAME] == "loaded")
    except OSError:  # 503 while it loads
        return False


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(prog="python -m benchmarks.http", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="as of make run (default: %(default)s)")
    parser.add_argument("--rounds", type=int_at_least(1), default=7, help="(default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int_at_least(2), default=100, help="of each answer (default: %(default)s)"
    )
    parser.set_defaults(command=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure and print the table."""
    report, work = Reporter(), folders.cache_folder() / "http"
    folder, tokens = find_checkpoint(arguments.model), arguments.tokens
    report.note(f"starting a server of {arguments.model}, and the engine alone")
    with open_both(folder, work, folders.programs_folder(), {}) as endpoints:
        measure_overhead(endpoints, 0, tokens)  # warm-up of both
        measure_concurrent(endpoints, 0, tokens)
        overheads, concurrent = [], []
        for number in range(1, arguments.rounds + 1):
            report.note(f"round {number} of {arguments.rounds}")
            overheads.append(measure_overhead(endpoints, number, tokens))
            concurrent.append(measure_concurrent(endpoints, number, tokens))
    table = compact_table(
        f"{arguments.model}: medians of {arguments.rounds} rounds", ("figure",), ("HTTP", "engine", "target")
    )
    overhead = HttpOverhead(*map(median, zip(*overheads, strict=True)))
    table.add_row("more to the first token, ms", *_row(overhead.first_s, overhead.engine_first_s, "first"))
    table.add_row("more per streamed token, ms", *_row(overhead.token_s, overhead.engine_token_s, "token"))
    rates = [[CONCURRENT_CLIENTS * tokens / seconds for seconds in each] for each in concurrent]
    http, engine = map(median, zip(*rates, strict=True))
    table.add_row(f"{CONCURRENT_CLIENTS} clients, tokens/s", f"{http:.1f}", f"{engine:.1f}", "")
    ratio = median(each.engine_s / each.http_s for each in concurrent)
    sense, bound = TARGETS["http_together_ratio"]
    table.add_row("  over the engine's", f"{ratio:.3f}", "", f"{sense} {bound:g}")
    print_tables(Console(highlight=False), table)
    return 0


def _row(more_s: float, engine_s: float, name: str) -> tuple[str, str, str]:
    sense, bound = TARGETS["http_first_token_ms" if name == "first" else "http_token_ms"]
    return f"{1e3 * more_s:.2f}", f"{1e3 * engine_s:.2f}", f"{sense} {bound:g}"


if __name__ == "__main__":
    setup_process()
    sys.exit(run_command(build_parser(), None))
