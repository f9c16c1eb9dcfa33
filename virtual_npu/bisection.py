"""Which pass of a compiler broke a program: runs the IR that it dumped after each pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aerie.virtual_npu.arrays import Array, Difference, first_difference
from aerie.virtual_npu.errors import (
    OptionError,
    ParseError,
    ResourceError,
    UnsupportedOpError,
    VirtualNpuRuntimeError,
)
from aerie.virtual_npu.library import Entry
from aerie.virtual_npu.program import Program, Result
from aerie.virtual_npu.texts import read_text

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

    verdict: `same`, `different`, `skipped` (it cannot be run), or the kind of the failure.
    message: what differs or failed, in words; why it was skipped.
    """

    dump: Dump
    verdict: str
    message: str = ""
    difference: Difference | None = None

    @property
    def is_guilty(self) -> bool:
        """Whether the pass before this dump broke the program."""
        return self.verdict not in ("same", "skipped")


def dumps(folder: Path) -> list[Dump]:
    """The dumps in a folder, in the order of their numbers. Raises OptionError for fewer than two."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder: give the one that `aircc --debug-ir` wrote its dumps to")
    found = [(path, _DUMP.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    listed = [Dump(path, int(match[1]), match[2] or path.stem) for path, match in found if match]
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

    One with an operation that is not executed is skipped; one past AIR (with operations of aie or airrt) too,
    and all after it. Raises what running the first file raises, since without its outputs there is nothing to
    compare with, and what has nothing to do with the dumps: no compiler, no source of a kernel.
    """
    first, *others = listed
    reference = _Reference(load(first.path), arguments, entry, tolerance)
    yield Outcome(first, "same")
    for number, dump in enumerate(others):
        lowered = _LOWERED.search(read_text(dump.path))
        if lowered:
            why = f"past AIR from {lowered[1]} on, which the virtual NPU does not run"
            yield from (Outcome(rest, "skipped", why) for rest in others[number:])
            return
        outcome = reference.outcome(dump, load(dump.path))
        yield outcome
        if outcome.is_guilty:
            return


class _Reference:
    """What the first file does."""

    def __init__(self, program: Program, arguments: Arguments, entry: str | None, tolerance: float) -> None:
        self.entry = program.entry(entry)
        self.given = arguments(self.entry)
        result = program.run(*self.given, entry=self.entry.name)
        self.outputs = result.outputs
        self.lacks_tokens = _missing_token(result) is not None
        self.fits = program.check(ping_pong=False).ok
        self.tolerance = tolerance

    def outcome(self, dump: Dump, program: Program) -> Outcome:
        try:
            return self._compared(dump, program)
        except UnsupportedOpError as error:
            return Outcome(dump, "skipped", str(error))
        except (VirtualNpuRuntimeError, ResourceError, ParseError) as error:
            return Outcome(dump, error.kind, str(error))

    def _compared(self, dump: Dump, program: Program) -> Outcome:
        name = self.entry.name
        found = program.library.entries.get(name)
        if found is None or found.arguments != self.entry.arguments:
            return Outcome(dump, "arguments", f"no @{name} takes the arguments of the first file")
        if self.fits:
            program.check(ping_pong=False).require()  # buffers stand as often as they are written
        result = program.run(*self.given, entry=name)
        difference = first_difference(found.arguments, self.outputs, result.outputs, self.tolerance)
        if difference:
            return Outcome(dump, "different", str(difference), difference)
        missing = _missing_token(result)
        if missing and not self.lacks_tokens:
            return Outcome(dump, "race", missing)
        return Outcome(dump, "same")


def _missing_token(result: Result) -> str | None:
    """The first note of a token that is missing in a tile: there it does no harm, but a pass has lost it."""
    return next((note for note in result.notes if ": missing token, " in note), None)
