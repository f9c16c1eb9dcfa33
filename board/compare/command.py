"""`python -m board compare`.

Exit codes: 0 all as on the virtual NPU, 1 something is not, 2 nothing could be compared.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from board.compare.items import Item, choose
from board.compare.printing import line_of, print_outcomes
from board.compare.records import Outcome
from board.compare.session import CompareOne, compare_all, in_processes, save
from llama32_1b.cli import default_cache_dir
from llama32_1b.errors import UserError
from llama32_1b.progress import Reporter
from runtime import select_backend

RIGHT, WRONG = 0, 1
RECORD = "compare.json"


def board_folder() -> Path:
    """Where records of the board are kept: build/board in the project."""
    return default_cache_dir().with_name("board")


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="kernels, a kernel's case such as gemm[2], programs (default: all)",
    )
    parser.add_argument(
        "--backend", default="npu", choices=["npu", "virtual"], help="what is compared (default: %(default)s)"
    )
    parser.add_argument("--first", action="store_true", help="of each kernel, its first case alone")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="of compiled programs")
    parser.add_argument(
        "--out", type=Path, default=board_folder(), help="the folder of compare.json and of the logs"
    )


def compare(arguments: argparse.Namespace) -> int:
    """Run kernels and programs on the NPU, and say what differs from the virtual NPU, and how."""
    items = choose(arguments.names, arguments.first)
    report = Reporter()
    report.note(select_backend(arguments.backend).reason)  # what is missing is said before anything starts
    make_backend = functools.partial(select_backend, arguments.backend)
    logs = _folder(arguments.out / "logs")
    outcomes = _follow(items, in_processes(make_backend, arguments.cache_dir, logs), report)
    path = arguments.out / RECORD
    try:
        save(outcomes, arguments.backend, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another folder with --out") from None
    print_outcomes(outcomes, arguments.backend)
    report.note(f"record: {path}, logs beside it")
    return RIGHT if all(outcome.status.is_right for outcome in outcomes) else WRONG


def _follow(items: Sequence[Item], compare_one: CompareOne, report: Reporter) -> list[Outcome]:
    """All outcomes, with a bar that moves and a line for each as it ends."""
    outcomes: list[Outcome] = []
    with report.bar("comparing", len(items)) as step:
        found = compare_all(items, compare_one, lambda item, phase: step(f"{item}: {phase}", len(outcomes)))
        for outcome in found:
            outcomes.append(outcome)
            report.note(line_of(outcome))
    return outcomes


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {path} ({error.strerror}); name another folder with --out"
        ) from None
    return path
