"""`aerie compare`.

Exit codes: 0 everything is as on the virtual NPU, 1 something differs, 2 nothing could be compared.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from aerie.board.compare.items import ComparisonItem, choose
from aerie.board.compare.processes import compare_all, compile_ahead, subprocess_comparer
from aerie.board.compare.records import ItemOutcome, line_of, print_outcomes, save
from aerie.board.compare.times import NAME, TimesFile
from aerie.cli.arguments import CACHE_FOLDER_HELP
from aerie.common import folders
from aerie.engine.reporter import Reporter
from aerie.runtime import select_backend
from aerie.verify.report import make_folder

RIGHT, WRONG = 0, 1
RECORD = "compare.json"


def board_folder() -> Path:
    """The folder for records of the NPU, unless --out names another. Raises KnobError."""
    return folders.cache_folder() / "board"


def add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a kernel, a kernel's case such as gemm[2], a program; `kernels`, `programs` (default: all)",
    )
    parser.add_argument(
        "--backend", default="npu", choices=["npu", "virtual"], help="what is compared (default: %(default)s)"
    )
    parser.add_argument("--first", action="store_true", help="of each kernel, its first case alone")
    parser.add_argument("--cache-dir", type=Path, help="of compiled programs")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the folder of compare.json and of the logs (default: board in {CACHE_FOLDER_HELP})",
    )


def compare(arguments: argparse.Namespace) -> int:
    """Run kernels and programs on the NPU; print what differs from the virtual NPU, and how."""
    items = choose(arguments.names, arguments.first)
    cache_dir, out = arguments.cache_dir or folders.programs_folder(), arguments.out or board_folder()
    outcomes = compare_and_print(items, arguments.backend, cache_dir, out)
    return RIGHT if all(outcome.status.is_right for outcome in outcomes) else WRONG


def compare_and_print(
    items: Sequence[ComparisonItem], backend: str, cache_dir: Path, out: Path
) -> list[ItemOutcome]:
    """Compare, with progress, a record that is complete after each item, and a table at the end.

    Raises BackendError if the backend is missing here, UserError if a folder cannot be written or a knob's
    value is not valid.
    """
    report = Reporter()
    selected = select_backend(backend)  # fails before anything starts if a part is missing
    report.note(selected.reason)
    apart = subprocess_comparer(functools.partial(select_backend, backend), cache_dir, out / "logs")
    make_folder(out / "logs")
    with report.bar("compiling", len(items)) as step:
        failed = compile_ahead(items, selected, cache_dir, lambda item, done: step(str(item), done))
    report.note(f"compiled: {len(items) - len(failed)} of {len(items)}")
    outcomes: list[ItemOutcome] = []
    times = TimesFile(backend, out / NAME)
    with report.bar("comparing", len(items)) as step:

        def on_done(item: ComparisonItem, phase: str) -> None:
            step(f"{item}: {phase}", len(outcomes))

        for outcome in compare_all(items, apart, on_done, failed):
            outcomes.append(outcome)
            save(outcomes, backend, out / RECORD)  # at once: the machine may not live on
            times.add(outcome)
            report.note(line_of(outcome))
    print_outcomes(outcomes, backend)
    report.note(f"record: {out / RECORD}, times: {out / NAME}, logs beside them")
    return outcomes
