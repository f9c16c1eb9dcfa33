"""`python -m board doctor`."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from board.doctor.checks import CHECKS, GOALS
from board.doctor.examination import Results, examine_all
from board.doctor.machine import Machine
from board.doctor.page import print_page
from board.doctor.record import record
from llama32_1b.checkpoint import DEMO
from llama32_1b.cli import default_cache_dir

WORKS, NOTHING_RUNS = 0, 1


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default=DEMO,
        help="the checkpoint to look at: a folder, a Hugging Face id, or 'demo' (default: %(default)s); "
        "nothing is fetched",
    )
    parser.add_argument("--json", action="store_true", help="one record of JSON instead of the page")


def doctor(arguments: argparse.Namespace) -> int:
    """Check every layer between Python and the NPU, and say what will work now.

    The exit code is 0 where a model can be run, on the NPU or on the virtual one, and 1 where it cannot: a
    script asks for more by name, in the record.
    """
    machine = Machine(model=arguments.model, cache_dir=default_cache_dir())
    with Console(stderr=True).status("looking at every layer ..."):
        results = examine_all(CHECKS, machine)
    if arguments.json:
        print(json.dumps(record(results), indent=2))
    else:
        print_page(results, Console())
    return exit_code(results)


def exit_code(results: Results) -> int:
    """Whether a model can be run at all."""
    runs = [goal for goal in GOALS if goal.runs and goal.obstacle(results) is None]
    return WORKS if runs else NOTHING_RUNS
