"""`bisect`: the first dump of a compiler's passes that does not do what the first file does."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.virtual_npu.commands import common
from aerie.virtual_npu.console import print_json
from aerie.virtual_npu.errors import OptionError

if TYPE_CHECKING:
    from aerie.virtual_npu.bisection import Dump, DumpOutcome

FOUND = 1
"""Exit status when a guilty pass was found."""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("bisect", help="find the compiler pass that broke a program")
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="dumps pass_NNN_after_NAME.mlir, as aircc writes"
    )
    common.add_arguments(parser)
    common.add_building(parser)
    common.add_cache(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        help="floats may differ by this times (1 + magnitude); default 0: bit for bit",
    )
    common.add_json(parser)
    parser.set_defaults(command=_bisect)


def _bisect(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.bisection import bisect, list_dumps

    if not 0 <= options.tolerance < float("inf"):
        raise OptionError(f"--tolerance {options.tolerance} makes no sense: give a number of 0 or more")
    dumps = list_dumps(options.folder)
    running = bisect(
        dumps,
        functools.partial(common.program, options),
        functools.partial(common.arguments, options),
        options.entry,
        options.tolerance,
    )
    outcomes = _followed(dumps, running)
    guilty = next((outcome for outcome in outcomes if outcome.is_first_failure), None)
    if options.json:
        print_json(_fields(outcomes, guilty))
    else:
        print("\n".join(_lines(outcomes, guilty)))
    return FOUND if guilty else 0


def _followed(dumps: Sequence[Dump], running: Iterable[DumpOutcome]) -> list[DumpOutcome]:
    """All outcomes; on a terminal with a bar of how far it is."""
    if not sys.stderr.isatty():
        return list(running)
    from rich.console import Console
    from rich.progress import track

    return list(
        track(running, "running the dumps", total=len(dumps), console=Console(stderr=True), transient=True)
    )


def _lines(outcomes: Sequence[DumpOutcome], guilty: DumpOutcome | None) -> list[str]:
    lines = [_line(outcome) for outcome in outcomes]
    if guilty is None:
        return [*lines, "no pass changes the results"]
    before = [outcome for outcome in outcomes if outcome.verdict == "same"][-1].dump
    what = f"the results change: {guilty.message}" if guilty.difference else guilty.message
    return [*lines, f"guilty: {guilty.dump.pass_name} (after {before.path.name}): {what}"]


def _line(outcome: DumpOutcome) -> str:
    why = f": {outcome.message}" if outcome.verdict == "skipped" else ""
    notes = "".join(f"\nnote: {outcome.dump.pass_name}: {note}" for note in outcome.notes)
    return f"{outcome.verdict:12}{outcome.dump.path.name}{why}{notes}"


def _fields(outcomes: Sequence[DumpOutcome], guilty: DumpOutcome | None) -> dict[str, Any]:
    fields = [_outcome_fields(outcome) for outcome in outcomes]
    return {"ok": True, "guilty": _outcome_fields(guilty) if guilty else None, "files": fields}


def _outcome_fields(outcome: DumpOutcome) -> dict[str, Any]:
    difference = outcome.difference.to_json() if outcome.difference else None
    named = {"file": outcome.dump.path.name, "pass": outcome.dump.pass_name}
    fields = {"verdict": outcome.verdict, "message": outcome.message, "difference": difference}
    return {**named, **fields, "notes": list(outcome.notes)}
