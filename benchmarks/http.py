"""`python -m benchmarks.http`: what a server costs beside its engine: at first, by token, and in crowds.

`aerie serve` runs in a process of its own, and so do the clients and the engine alone, by the Python API and
in the same family of decode, "rows". They take turns, and every answer over HTTP must be the engine's.
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

from aerie.cli.arguments import Parser, begin_process, run_command, whole_number
from aerie.cli.checkpoints import find_checkpoint
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.common.text_tables import compact_table, print_tables
from aerie.engine.progress import Reporter
from benchmarks.figures import CROWD, TARGETS
from benchmarks.worker import REPOSITORY, Worker, working

QUESTION = "Question {}: what is the capital of France, and how far is it from the sea?"
NAME = "bench"
READY_S = 600.0
"""Until a server has loaded its model: programs may have to be compiled first."""
DRAIN_S = 10.0


class Ways(NamedTuple):
    """The two ways to the same model: clients of its server, and the engine alone."""

    client: Worker
    engine: Worker


class Costs(NamedTuple):
    """Seconds that HTTP adds, beside those that the engine alone takes: to the first token, and per token
    after it."""

    first_s: float
    token_s: float
    engine_first_s: float
    engine_token_s: float


class Crowd(NamedTuple):
    """Seconds until as many answers as CROWD were complete, asked for at once."""

    http_s: float
    engine_s: float


def costs(ways: Ways, number: int, tokens: int) -> Costs:
    """Of a streamed answer of `tokens` tokens. number: what makes the question another, so that the pool has
    none of it. UserError where the answers differ."""
    asked = [QUESTION.format(number)]
    over_http = ways.client("streamed", prompts=asked, tokens=tokens)
    first = ways.engine("answered", prompts=asked, tokens=1)["seconds"]
    alone = ways.engine("answered", prompts=asked, tokens=tokens)
    check_same(over_http["texts"], alone["texts"])
    return costs_of(over_http, first, alone["seconds"], tokens)


def costs_of(over_http: Mapping[str, float], first_s: float, alone_s: float, tokens: int) -> Costs:
    """first_s, alone_s: what the engine takes for one token, and for all."""
    rest = over_http["seconds"] - over_http["first_seconds"]
    token_s = (alone_s - first_s) / (tokens - 1)
    return Costs(over_http["first_seconds"] - first_s, rest / (tokens - 1) - token_s, first_s, token_s)


def crowd(ways: Ways, number: int, tokens: int) -> Crowd:
    """Of CROWD answers of `tokens` tokens each. UserError where they differ."""
    asked = [QUESTION.format(f"{number}, {each}") for each in range(CROWD)]
    over_http = ways.client("streamed", prompts=asked, tokens=tokens)
    alone = ways.engine("answered", prompts=asked, tokens=tokens)
    check_same(over_http["texts"], alone["texts"])
    return Crowd(over_http["seconds"], alone["seconds"])


def check_same(over_http: list[str], alone: list[str]) -> None:
    for one, other in zip(over_http, alone, strict=True):
        if one != other:
            raise UserError(f"over HTTP an answer is {one[:100]!r}, and the engine's is {other[:100]!r}")


@contextlib.contextmanager
def both_ways(
    folder: Path, work: Path, cache: Path, env: Mapping[str, str], extra: str = ""
) -> Iterator[Ways]:
    """The model of a checkpoint, whose answers nothing ends early, in both. work: for logs and the folder
    that has it. cache: of compiled programs. extra: what is put before the names of logs."""
    model = endless(folder, work / f"{extra}endless")
    engine_of = {"folder": str(model.resolve()), "cache_dir": str(cache.resolve())}
    with (
        working("ours", engine_of, work / f"{extra}engine.log", env) as engine,
        serving(model, work / f"{extra}serve.log", cache, env) as port,
        working("client", {"port": port}, work / f"{extra}client.log", {}) as client,
    ):
        engine("load")
        yield Ways(client, engine)


def endless(folder: Path, made: Path) -> Path:
    """The checkpoint without tokens that end an answer, by links to its files, so that all are as long as
    they are asked for, and none is drawn with a bias."""
    made.mkdir(parents=True, exist_ok=True)
    for old in made.iterdir():
        old.unlink()
    for path in folder.resolve().iterdir():
        if path.name != "generation_config.json":
            (made / path.name).symlink_to(path)
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": []}))
    return made


@contextlib.contextmanager
def serving(folder: Path, log: Path, cache: Path, env: Mapping[str, str]) -> Iterator[int]:
    """The port of a server that has loaded this model, and ends afterwards."""
    words = ["--model", str(folder.resolve()), "--name", NAME, "--backend", "virtual", "--port", "0"]
    command = [sys.executable, "-c", SERVE, *words, "--cache-dir", str(cache.resolve())]
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
from aerie.cli.arguments import begin_process
from aerie.serve.cli import main
from aerie.virtual_npu.child_process import end_with_parent

end_with_parent()
begin_process()
sys.exit(main(["serve", *sys.argv[1:]]))
"""
"""`aerie serve`, which ends with its parent even where that is killed."""


def _loaded(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port, once the model is loaded. UserError where that does not come to be."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        said = log.read_text(errors="replace")
        if (code := process.poll()) is not None:
            last = said.strip().rpartition("\n")[2] or "nothing"
            raise UserError(
                f"the server ended with exit code {code} before its model was loaded; it said: {last} "
                f"(all of it: {log})"
            )
        found = re.search(r"at http://127\.0\.0\.1:(\d+);", said)
        if found and _has_loaded(int(found[1])):
            return int(found[1])
        time.sleep(0.05)
    raise UserError(f"the server has not loaded its model in {READY_S:g} s; what it said: {log}")


def _has_loaded(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as told:
            return bool(json.load(told)["models"][NAME] == "loaded")
    except OSError:  # 503 while it loads
        return False


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m benchmarks.http", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo", help="as of make run (default: %(default)s)")
    parser.add_argument("--rounds", type=whole_number(1), default=7, help="(default: %(default)s)")
    parser.add_argument(
        "--tokens", type=whole_number(2), default=100, help="of each answer (default: %(default)s)"
    )
    parser.set_defaults(command=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    report, work = Reporter(), folders.cache_folder() / "http"
    folder, tokens = find_checkpoint(arguments.model), arguments.tokens
    report.note(f"starting a server of {arguments.model}, and the engine alone")
    with both_ways(folder, work, folders.programs_folder(), {}) as ways:
        costs(ways, 0, tokens)  # which nobody counts, as both ways warm up
        crowd(ways, 0, tokens)
        alone, together = [], []
        for number in range(1, arguments.rounds + 1):
            report.note(f"round {number} of {arguments.rounds}")
            alone.append(costs(ways, number, tokens))
            together.append(crowd(ways, number, tokens))
    shown = compact_table(
        f"{arguments.model}: medians of {arguments.rounds} rounds", ("figure",), ("HTTP", "engine", "target")
    )
    of_costs = Costs(*map(median, zip(*alone, strict=True)))
    shown.add_row("more to the first token, ms", *_row(of_costs.first_s, of_costs.engine_first_s, "first"))
    shown.add_row("more per streamed token, ms", *_row(of_costs.token_s, of_costs.engine_token_s, "token"))
    rates = [[CROWD * tokens / seconds for seconds in each] for each in together]
    http, engine = map(median, zip(*rates, strict=True))
    shown.add_row(f"{CROWD} clients, tokens/s", f"{http:.1f}", f"{engine:.1f}", "")
    ratio = median(each.engine_s / each.http_s for each in together)
    sense, bound = TARGETS["http_together_ratio"]
    shown.add_row("  over the engine's", f"{ratio:.3f}", "", f"{sense} {bound:g}")
    print_tables(Console(highlight=False), shown)
    return 0


def _row(more_s: float, engine_s: float, name: str) -> tuple[str, str, str]:
    sense, bound = TARGETS["http_first_token_ms" if name == "first" else "http_token_ms"]
    return f"{1e3 * more_s:.2f}", f"{1e3 * engine_s:.2f}", f"{sense} {bound:g}"


if __name__ == "__main__":
    begin_process()
    sys.exit(run_command(build_parser(), None))
