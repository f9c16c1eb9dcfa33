"""Finds the compiler pass that broke a program, by running the IR that was dumped after each pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aerie.common.shown_names import symbol_name
from aerie.device.errors import ParseError, ResourceError
from aerie.virtual_npu.arrays import Array, ArrayDifference, first_difference
from aerie.virtual_npu.console import read_text
from aerie.virtual_npu.errors import OptionError, UnsupportedOpError, VirtualNpuRuntimeError
from aerie.virtual_npu.library import EntryPoint
from aerie.virtual_npu.program import Program, Result

if TYPE_CHECKING:
    from aerie.device import Fault

_DUMP = re.compile(r"pass_(\d+)(?:_(?:after_)?(.+))?\.mlir")
_LOWERED = re.compile(r"^\s*(?:%[\w#:, %]+ = )?\"?((?:aie|aiex|airrt)\.\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Dump:
    """One file: `number` and `pass_name` from `pass_NUMBER_after_NAME.mlir`."""

    path: Path
    number: int
    pass_name: str


@dataclass(frozen=True)
class DumpOutcome:
    """The result of running one dump.

    verdict: `same`, `different`, `skipped` (it cannot be run), or the kind of the failure.
    message: the difference, the failure, or the reason for skipping.
    notes: harmless findings: a lost async token whose order a tile or locks ensure anyway, or an exceeded
    limit that a later pass corrects.
    """

    dump: Dump
    verdict: str
    message: str = ""
    difference: ArrayDifference | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_first_failure(self) -> bool:
        """Whether the pass before this dump broke the program."""
        return self.verdict not in ("same", "skipped")


def list_dumps(folder: Path) -> list[Dump]:
    """The dumps in a folder, in the order of their numbers. Raises OptionError for fewer than two."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is no folder: give the one that `aircc --debug-ir` wrote its dumps to")
    matches = [(path, _DUMP.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    dumps = [Dump(path, int(match[1]), match[2] or path.stem) for path, match in matches if match]
    if len(dumps) < 2:
        raise OptionError(
            f"{folder} has {len(dumps)} files pass_NNN_after_NAME.mlir: give a folder with at least two, "
            "the first to compare the others with"
        )
    return sorted(dumps, key=lambda dump: dump.number)


Load = Callable[[Path], Program]
Arguments = Callable[[EntryPoint], list[Array]]


def bisect(
    dumps: Sequence[Dump], load: Load, arguments: Arguments, entry: str | None = None, tolerance: float = 0
) -> Iterator[DumpOutcome]:
    """Run dumps in order, each on the same arguments; ends after the first that is not as the first file.

    A missing async token is a note if the order of a tile or locks of the device replace it. An exceeded
    limit is a note if a later pass corrects it. A dump with an unsupported operation is skipped. A dump past
    AIR (with operations of aie or airrt) is skipped too, and all after it.

    Raises the errors of the first file's run, whose outputs are the reference, and errors that no dump
    causes: a missing compiler or kernel source.
    """
    first, *others = dumps
    reference = _Reference(load(first.path), arguments, entry, tolerance)
    yield DumpOutcome(first, "same")
    for number, dump in enumerate(others):
        lowered = _LOWERED.search(read_text(dump.path))
        if lowered:
            why = f"past AIR from {lowered[1]} on, which the virtual NPU does not run"
            yield from (DumpOutcome(rest, "skipped", why) for rest in others[number:])
            return
        later = (load(other.path) for other in others[number + 1 :] if not _is_lowered(other))
        outcome = reference.outcome(dump, load(dump.path), later)
        yield outcome
        if outcome.is_first_failure:
            return


def _is_lowered(dump: Dump) -> bool:
    return _LOWERED.search(read_text(dump.path)) is not None


class _Reference:
    """The first file's outputs, to compare the other dumps with."""

    def __init__(self, program: Program, arguments: Arguments, entry: str | None, tolerance: float) -> None:
        self.entry = program.entry(entry)
        self.arguments = arguments(self.entry)
        result = program.run(*self.arguments, entry=self.entry.name)
        self.outputs = result.outputs
        self.reported = set(_missing_tokens(result))  # already reported
        self.fits = not _limits_exceeded(program)
        self.tolerance = tolerance

    def outcome(self, dump: Dump, program: Program, later: Iterator[Program]) -> DumpOutcome:
        """Run a dump and compare it. later: the programs of the dumps after it."""
        try:
            return self._compared(dump, program, later)
        except UnsupportedOpError as error:
            return DumpOutcome(dump, "skipped", str(error))
        except (VirtualNpuRuntimeError, ResourceError, ParseError) as error:
            return DumpOutcome(dump, error.kind, str(error))

    def _compared(self, dump: Dump, program: Program, later: Iterator[Program]) -> DumpOutcome:
        name = self.entry.name
        entry = program.library.entries.get(name)
        if entry is None or entry.arguments != self.entry.arguments:
            return DumpOutcome(
                dump, "arguments", f"no {symbol_name(name)} takes the arguments of the first file"
            )
        notes = self._notes_of_limits(program, later)
        result = program.run(*self.arguments, entry=name)
        difference = first_difference(entry.arguments, self.outputs, result.outputs, self.tolerance)
        if difference:
            return DumpOutcome(dump, "different", str(difference), difference)
        new = {guard: note for guard, note in _missing_tokens(result).items() if guard not in self.reported}
        self.reported.update(new)
        return DumpOutcome(dump, "same", notes=(*notes, *new.values()))

    def _notes_of_limits(self, program: Program, later: Iterator[Program]) -> tuple[str, ...]:
        """A note for each limit that a program exceeds, once each, if a later dump is within all limits.

        Raises ResourceError if none is.
        """
        excess = _limits_exceeded(program) if self.fits else ()
        if excess and not any(_is_within(other) for other in later):
            raise ResourceError("\n".join(map(str, excess)))
        new = {f"{fault.place}: {fault.kind}": f"{fault} (mended by a later pass)" for fault in excess}
        notes = tuple(note for key, note in new.items() if key not in self.reported)
        self.reported.update(new)
        return notes


def _limits_exceeded(program: Program) -> Sequence[Fault]:
    """The faults of a program on the device. Its text already contains the copies of double buffers."""
    return program.check(omit_ping_pong="all").faults


def _is_within(program: Program) -> bool:
    """Whether a dump is AIR that is within all limits."""
    try:
        return not _limits_exceeded(program)
    except ParseError:
        return False


_MISSING = re.compile(r": missing token, a data race but for the (order of the tile|locks of the device): ")


def _missing_tokens(result: Result) -> dict[str, str]:
    """The replacements of missing async tokens (tile order or locks), with the first note of each."""
    notes = [(match[1], note) for note in result.notes if (match := _MISSING.search(note))]
    return dict(reversed(notes))
