"""Which pass of a compiler broke a program: its dumps, run one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from virtual_npu.arrays import Array
from virtual_npu.comparison import Difference, first_difference
from virtual_npu.errors import OptionError, VirtualNpuError
from virtual_npu.library import Entry
from virtual_npu.program import Program, read_text

_DUMP = re.compile(r"pass_(\d+)(?:_(?:after_)?(.+))?\.mlir")
_LOWERED = re.compile(r"^\s*(?:%[\w#:, %]+ = )?\"?((?:aie|aiex|airrt)\.\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Dump:
    """One file: `number` and `pass_name` from `pass_NUMBER_after_NAME.mlir`."""

    path: Path
    number: int
    pass_name: str


@dataclass(frozen=True)
class Outcome:
    """What became of one dump.

    verdict: `same`, `different`, `skipped` (past AIR), or the kind of the failure.
    message: what differs or failed, in words; why it was skipped.
    """

    dump: Dump
    verdict: str
    message: str = ""
    difference: Difference | None = None

    @property
    def is_guilty(self) -> bool:
        return self.verdict not in ("same", "skipped")


def dumps(folder: Path) -> list[Dump]:
    """The dumps in a folder, in the order of their numbers. Raises OptionError for fewer than two."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder: give the one that `aircc --debug-ir` wrote its dumps to")
    found = [(path, _DUMP.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    listed = [Dump(path, int(match[1]), match[2] or "") for path, match in found if match]
    if len(listed) < 2:
        raise OptionError(
            f"{folder} has {len(listed)} files pass_NNN_after_NAME.mlir: give a folder with at least two, "
            "the first to compare the others with"
        )
    return sorted(listed, key=lambda dump: dump.number)


Load = Callable[[Path], Program]
Arguments = Callable[[Entry], list[Array]]


def bisect(
    listed: Sequence[Dump], load: Load, arguments: Arguments, entry: str | None = None, tolerance: float = 0
) -> Iterator[Outcome]:
    """Run dumps in order, each on the same arguments; ends after the first that is not as the first file.

    A dump past AIR (with operations of aie or airrt) is skipped, and all after it. Raises what running the
    first file raises: without its outputs there is nothing to compare with.
    """
    first, *others = listed
    reference = load(first.path)
    found = reference.entry(entry)
    given = arguments(found)
    expected = reference.run(*given, entry=found.name).outputs
    yield Outcome(first, "same")
    for number, dump in enumerate(others):
        lowered = _LOWERED.search(read_text(dump.path))
        if lowered:
            yield from _skipped(others[number:], lowered[1])
            return
        outcome = _outcome(dump, load(dump.path), found, given, expected, tolerance)
        yield outcome
        if outcome.is_guilty:
            return


def _skipped(rest: Iterable[Dump], op: str) -> Iterator[Outcome]:
    for dump in rest:
        yield Outcome(dump, "skipped", f"past AIR from {op} on, which the virtual NPU does not run")


def _outcome(
    dump: Dump,
    program: Program,
    entry: Entry,
    given: Sequence[Array],
    expected: Sequence[Array],
    tolerance: float,
) -> Outcome:
    try:
        found = program.entry(entry.name)
        if found.arguments != entry.arguments:
            return Outcome(dump, "arguments", f"@{entry.name} takes other arguments than in the first file")
        outputs = program.run(*given, entry=entry.name).outputs
        difference = first_difference(entry.arguments, expected, outputs, tolerance)
        if difference:
            return Outcome(dump, "different", str(difference), difference)
        program.check().require()
    except VirtualNpuError as error:
        return Outcome(dump, error.kind, str(error))
    return Outcome(dump, "same")
