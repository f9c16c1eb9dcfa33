"""Try mutants: python -m tests.mutants [--only ROOM] [--list] [--draw N --seed S] [--jobs N] [--results FILE]

Each mutant of the table is put into a copy of the tree, and its tests are run there until one fails. Before
that they are run, once, in the tree as it is, which also builds the programs that they need. With --results
a run that was broken off goes on where it was: what did not change is not tried again.

The exit status is 1 where a mutant survives that the table does not say so of, or has no verdict.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.drawing import draw
from tests.mutants.running import (
    KILLED,
    NO_VERDICT,
    SURVIVED,
    TIMED_OUT,
    Copy,
    Keys,
    Result,
    Results,
    Settings,
    Trial,
)
from tests.mutants.table import ROOT, Mutant, TableError, load


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__.partition("\n\n")[2])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--only", action="append", metavar="ROOM", help="a room, or ROOM/NAME; may be given again"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    parser.add_argument(
        "--draw", type=int, default=0, metavar="N", help="so many drawn mutants in place of the table's"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree side by side (default 1)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="JSON with what is known so far")
    parser.add_argument(
        "--timeout", type=float, default=Settings.timeout, help="seconds for a mutant's tests (default 300)"
    )
    parser.add_argument("--marks", default=Settings.marks, help=f"pytest's -m (default {Settings.marks!r})")
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> list[Mutant]:
    table = load()
    rooms = list(dict.fromkeys(mutant.room for mutant in table))
    only = arguments.only or rooms
    known = {*rooms, *(mutant.id for mutant in table)}
    if strange := [one for one in only if one not in known]:
        raise TableError(f"there is no {strange[0]!r}; there are {', '.join(rooms)}, and ROOM/NAME of --list")
    if arguments.draw:
        return draw(ROOT, [room for room in rooms if room in only], arguments.draw, arguments.seed)
    return [mutant for mutant in table if mutant.room in only or mutant.id in only]


def _try_all(mutants: Sequence[Mutant], arguments: argparse.Namespace) -> dict[str, Result]:
    settings = Settings(arguments.timeout, arguments.marks)
    modules = sorted({mutant.file for mutant in mutants if "/" not in mutant.file})
    with tempfile.TemporaryDirectory(prefix="aerie-mutants-", dir=_beside()) as work:
        copies = [Copy(ROOT, Path(work, str(number))) for number in range(arguments.jobs)]
        copies[0].check_imports([name for name in modules if _is_there(name)])
        trial = Trial(Keys(copies[0].folder), Results(arguments.results), copies, settings, _note)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            try:
                found = list(pool.map(trial.try_, mutants))
            except BaseException:  # Ctrl-C
                pool.shutdown(wait=False, cancel_futures=True)
                for copy in copies:
                    copy.stop()
                raise
    return {mutant.id: result for mutant, result in zip(mutants, found, strict=True)}


def _beside() -> Path:
    """Where copies lie: in the tree's build folder, on whose file system links to built programs can be."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    return folder


def _is_there(module: str) -> bool:
    """Whether a module still has its name: where not, its mutants are looked for by their texts."""
    stem = module.replace(".", "/")
    return any((ROOT / f"{one}.py").is_file() for one in (stem, stem.removeprefix("aerie/")))


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _verdict(mutants: Sequence[Mutant], results: dict[str, Result]) -> int:
    """Print the counts, and what no test found; the exit status."""
    bad = 0
    for mutant in mutants:
        outcome = results[mutant.id].outcome
        if outcome in (SURVIVED, NO_VERDICT):
            known = f" (known: {mutant.survives})" if mutant.survives else ""
            print(f"{outcome}: {mutant.id}: {mutant.breaks}{known} {results[mutant.id].by}")
            bad += not mutant.survives or outcome == NO_VERDICT
        elif mutant.survives:
            print(f"{outcome} after all: {mutant.id}; take `survives` out of the table")
    counts = Counter((mutant.room, results[mutant.id].outcome) for mutant in mutants)
    for room in dict.fromkeys(mutant.room for mutant in mutants):
        counted = [f"{counts[room, each]} {each}" for each in (KILLED, SURVIVED, TIMED_OUT, NO_VERDICT)]
        print(f"{room:22}{', '.join(counted)}")
    whole = Counter(result.outcome for result in results.values())
    print(f"{len(mutants)} mutants: {', '.join(f'{count} {name}' for name, count in whole.most_common())}")
    return int(bad > 0)


def main() -> int:
    arguments = _arguments()
    try:
        mutants = _chosen(arguments)
        if arguments.list:
            print("\n".join(f"# {mutant.room}\n{mutant.as_toml()}" for mutant in mutants))
            return 0
        return _verdict(mutants, _try_all(mutants, arguments))
    except TableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; with --results, what is known so far is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
