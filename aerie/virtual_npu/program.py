"""The Python API: a program, the result of a run, and the check against a device.

program = Program.from_file("add.mlir")
result = program.run(x, y)
result.outputs[1]
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aerie.common import knobs
from aerie.common.errors import ProgramError
from aerie.common.shown_names import display_name, symbol_name
from aerie.virtual_npu import arrays, cache, child_process
from aerie.virtual_npu.arrays import Array, ArrayDifference, first_difference
from aerie.virtual_npu.console import read_text
from aerie.virtual_npu.errors import (
    ExpectationError,
    GarbageError,
    OptionError,
    ScheduleError,
    VirtualNpuRuntimeError,
)
from aerie.virtual_npu.library import EntryPoint, Library, RunResult
from aerie.virtual_npu.options import BuildOptions, RunOptions, StopPoint
from aerie.virtual_npu.source_places import naming_places, places_in
from aerie.virtual_npu.stops import Stop, stop_points

if TYPE_CHECKING:
    from aerie.device import CheckReport


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run gives.

    outputs: every argument after the run, in order; new arrays of the shapes and dtypes of those given.
    notes: findings that did not end the run, a sentence each.
    record: what was asked for: `{"stats": {...}, "trace": [...]}`, else None.
    schedules: how many schedules gave these outputs.
    stop: where the run stopped; None for one that ended. The outputs are what the arguments held there.
    """

    outputs: tuple[Array, ...]
    notes: tuple[str, ...] = ()
    record: dict[str, Any] | None = None
    schedules: int = 1
    stop: Stop | None = None


@dataclasses.dataclass(frozen=True)
class Program:
    """An AIR program. It is built at the first run, or comes from the cache of built programs."""

    source: cache.ProgramSource
    keep: Path | None = None
    """A folder that receives the generated C++."""
    use_cache: bool = True

    @classmethod
    def from_text(
        cls,
        text: str,
        filename: str = "<string>",
        kernel_dirs: Iterable[Path | str] = (),
        options: BuildOptions | None = None,
        *,
        keep: Path | None = None,
        use_cache: bool = True,
    ) -> Program:
        """A program from MLIR text; `filename` names it in messages.

        kernel_dirs: folders with the sources of external kernels, looked through before the project's own.
        options: how to build it; left out, with checks, and with the numerics that the environment asks for.
        """
        options = options or dataclasses.replace(BuildOptions.from_knobs(), checks=True)
        source = cache.ProgramSource(text, filename, tuple(Path(folder) for folder in kernel_dirs), options)
        return cls(source, keep, use_cache)

    @classmethod
    def from_file(
        cls, path: Path | str, kernel_dirs: Iterable[Path | str] = (), options: BuildOptions | None = None
    ) -> Program:
        """A program from a file of MLIR text. Raises ProgramError when it cannot be read."""
        return cls.from_text(read_text(Path(path)), str(path), kernel_dirs, options)

    @functools.cached_property
    def library(self) -> Library:
        """The built program. Raises a subclass of ProgramError if the build fails."""
        if self.source.options.sanitize:
            child_process.check_asan_loaded()
        with naming_places(lambda: places_in(self.source.text)):
            return cache.load(self.source, use_cache=self.use_cache, keep=self.keep)

    def entry(self, name: str | None = None) -> EntryPoint:
        """A public function and its arguments; the name may be left out where there is one.

        Raises ProgramError that lists them.
        """
        entries = self.library.entries
        names = ", ".join(map(display_name, entries))
        if name is not None and name not in entries:
            raise ProgramError(f"no public function {symbol_name(name)}: the program has {names}")
        if name is None and len(entries) > 1:
            raise ProgramError(f"the program has several public functions ({names}): choose one with --entry")
        return entries[name] if name is not None else next(iter(entries.values()))

    def run(
        self,
        *arguments: Any,
        entry: str | None = None,
        perturb: int = 0,
        seed: int = 1,
        stats: bool = False,
        trace: bool = False,
        races: str = "error",
        garbage: int = 0,
        time_limit: float | None = None,
        expect: Mapping[int, Any] | None = None,
        tolerance: float = 0.0,
        stop_at: StopPoint | int | str | Sequence[StopPoint | int | str] = (),
        show: str | Sequence[str] = (),
    ) -> Result:
        """Run a public function on arrays, one per argument; the arrays given stay as they are. An argument
        `memref<*xT>` takes an array of any shape.

        bf16 is taken as ml_dtypes.bfloat16 or as its bits in uint16, signless integers as signed or unsigned
        ones, and all are given back as they came.
        perturb: after the run in order, so many runs under schedules drawn with seed, seed + 1, ...
        stats, trace: what `Result.record` shall hold, of the run in order.
        races: `error`, or `note`: a data race becomes a line of `Result.notes`, and the run continues.
        garbage: then so many runs on memory that begins as garbage, drawn with seed, seed + 1, ...
        time_limit: seconds of computing after which an endless loop is an error if nothing else moves; 0:
        no limit; None: options.AIE_TIME_LIMIT for a module with aie.device, no limit for others.
        expect: by number, what arguments shall be after the run in order. tolerance: how far floats may be
        from it, in units of 1 + |expected|; 0: no bit may differ.
        stop_at: ends the run before an operation of a line of the text: the line, or `LINE:HIT@X,Y` for the
        how-manieth time and the tile; of several, the first that is reached. show: the buffers to look at
        there: `%name`, `%name@X,Y` of another tile, `%name[0:4, :]`, the line of an allocation, or `all`.

        Raises VnpuArgumentError for arrays that do not fit, VirtualNpuRuntimeError (see its `kind`) if the
        run fails, ScheduleError if schedules give different results, GarbageError if the results depend on
        the initial memory, ExpectationError for the first element that is not what was expected,
        StopNotReachedError for a run that ends before `stop_at`.
        """
        stops, shown = stop_points(stop_at), (show,) if isinstance(show, str) else tuple(show)
        if shown and not stops:
            raise OptionError(f"show {shown[0]} looks at a buffer where a run stops: give stop_at too")
        inputs = [np.asarray(array) for array in arguments]
        program = self.with_elements([array.size for array in inputs])
        if stops:
            program = program._stopping(stops, perturb=perturb, garbage=garbage, expect=expect)
        program._check_can(perturb=perturb > 0, stats=stats, trace=trace, garbage=garbage > 0)
        entry_point = program.entry(entry)
        start = arrays.check_arrays(
            {f"arg{i}": program._flat(array, i, entry_point) for i, array in enumerate(inputs)}, entry_point
        )
        outputs = [array.copy() for array in start]
        options = RunOptions(races=races, time_limit=time_limit, stops=stops, show=shown)
        first = dataclasses.replace(options, stats=stats, trace=trace)
        with naming_places(lambda: program.library.places):
            result = _run_reporting_alike(program.library, entry_point, outputs, first)
            if expect is not None:
                program._check_expected(entry_point, start, outputs, expect, tolerance)
            for number in range(seed, seed + perturb):
                other = dataclasses.replace(options, seed=number)
                program._compare(entry_point, start, outputs, other, _SCHEDULE)
            for number in range(seed, seed + garbage):
                other = dataclasses.replace(options, garbage=number)
                program._compare(entry_point, start, outputs, other, _GARBAGE)
        shaped_outputs = tuple(
            out.view(array.dtype).reshape(array.shape) for out, array in zip(outputs, inputs, strict=True)
        )
        return Result(shaped_outputs, result.notes, result.record, 1 + perturb, result.stop)

    def check(self, device: str = "npu2", *, omit_ping_pong: str = "") -> CheckReport:
        """What the program takes of a device (npu2, npu1), against its limits; it is not built for that.

        omit_ping_pong: the memory whose buffers aircc does not double: L1, L2, all, or none where it is
        empty. `aerie.device.check` has more to choose. Raises ParseError, and OptionError for a device
        that is not known.
        """
        from aerie.device import DEVICES, check

        if device not in DEVICES:
            raise OptionError(f"device '{device}' is not known; choose one of: {', '.join(DEVICES)}")
        source = self.source
        return check(
            source.text,
            DEVICES[device],
            omit_ping_pong=omit_ping_pong,
            kernel_dirs=source.kernel_dirs,
            filename=source.filename,
        )

    @property
    def takes_any_shape(self) -> bool:
        """Whether an argument is `memref<*xT>`."""
        return "memref<*x" in self.source.text

    def with_elements(self, elements: Sequence[int]) -> Program:
        """This program, with so many elements in each argument `memref<*xT>`; itself where it has none."""
        if not self.takes_any_shape:
            return self
        options = dataclasses.replace(self.source.options, elements=tuple(elements))
        return dataclasses.replace(self, source=dataclasses.replace(self.source, options=options))

    def _flat(self, array: Array, number: int, entry: EntryPoint) -> Array:
        """An array for an argument that had no shape, in one dimension; any other as it is."""
        shapes = [argument.shape for argument in entry.arguments]
        is_flat = bool(self.source.options.elements) and shapes[number : number + 1] == [(array.size,)]
        return array.reshape(-1) if is_flat else array

    def _stopping(self, stops: Sequence[StopPoint], **others: object) -> Program:
        """This program, built so that it can stop there."""
        beside = [name for name, value in others.items() if value]
        if beside:
            raise OptionError(
                f"stop_at ends the run before there is a result for {beside[0]}: give one of them"
            )
        lines = tuple(sorted({point.line for point in stops}))
        options = dataclasses.replace(self.source.options, stop_lines=lines)
        return dataclasses.replace(self, source=dataclasses.replace(self.source, options=options))

    def _check_can(self, **requested: bool) -> None:
        names = [name for name, on in requested.items() if on]
        if requested["garbage"] and self.library.is_aie_level:
            raise OptionError(
                "garbage is not there for modules with aie.device: leave it out, or run the AIR program"
            )
        if names and not self.source.options.checks:
            verb = "needs" if len(names) == 1 else "need"
            raise OptionError(
                f"{' and '.join(names)} {verb} a program built with checks: give options="
                "BuildOptions(checks=True), or none"
            )

    def _check_expected(
        self,
        entry: EntryPoint,
        start: Sequence[Array],
        outputs: Sequence[Array],
        expect: Mapping[int, Any],
        tolerance: float,
    ) -> None:
        """Raise ExpectationError for the first difference. A second run, with checks, finds what wrote it."""
        given = {f"arg{number}": np.asarray(array) for number, array in expect.items()}
        rest = {f"arg{number}": array for number, array in enumerate(outputs)}
        wanted = arrays.check_arrays({**rest, **given}, entry)
        difference = first_difference(entry.arguments, wanted, outputs, tolerance)
        if difference is None:
            return
        writer = self._writer(entry, start, difference)
        written = f"; written by {writer}" if writer else "; no launch wrote it" if self._can_trace else ""
        within = f", with a tolerance of {tolerance:g}" if tolerance else ""
        error = ExpectationError(f"{entry.name}: {difference}{within}{written}")
        error.difference, error.writer = difference, writer
        raise error

    @property
    def _can_trace(self) -> bool:
        return self.source.options.checks and not self.library.is_aie_level

    def _writer(self, entry: EntryPoint, start: Sequence[Array], difference: ArrayDifference) -> str:
        if not self._can_trace:
            return ""
        values = [array.copy() for array in start]
        array = values[difference.argument]
        flat = int(np.ravel_multi_index(difference.index, array.shape)) if array.shape else 0
        options = RunOptions(traced=array.ctypes.data + flat * array.itemsize)
        return arrays.run_entry(self.library, entry, values, options).writer

    def _compare(
        self,
        entry: EntryPoint,
        start: Sequence[Array],
        expected: Sequence[Array],
        options: RunOptions,
        other: _Other,
    ) -> None:
        """Run again under the variation. Raises its error if the outputs differ."""
        values = [array.copy() for array in start]
        seed = options.seed or options.garbage
        again = f"repeat it with --{other.option} 1 --seed {seed}"
        try:
            arrays.run_entry(self.library, entry, values, options)
        except VirtualNpuRuntimeError as error:
            error.args = (f"{error}\n{other.under.format(seed)}; {again}",)
            raise
        difference = first_difference(entry.arguments, expected, values)
        if difference:
            message = f"{other.message.format(difference, seed)}; {again}"
            raise other.error(f"{entry.name}: the result depends on {message}")


def _run_reporting_alike(
    library: Library, entry: EntryPoint, values: Sequence[Array], options: RunOptions
) -> RunResult:
    """Run on arrays, in place. Whatever the number of threads, a race has the report of a run on one thread.

    Of two launch points that race, the one that comes second reports it, and on several threads either may.
    """
    start = [array.copy() for array in values] if knobs.thread_count() > 1 else []
    try:
        return arrays.run_entry(library, entry, values, options)
    except VirtualNpuRuntimeError as error:
        if error.kind != "race" or not start:
            raise
        arrays.run_entry(library, entry, start, dataclasses.replace(options, threads=1))
        raise


@dataclasses.dataclass(frozen=True)
class _Other:
    """A variation of a run: its option, and the error if the results depend on it."""

    option: str
    error: type[VirtualNpuRuntimeError]
    under: str
    message: str


_SCHEDULE = _Other(
    "perturb",
    ScheduleError,
    "under the schedule of seed {0} (in program order it runs)",
    "the schedule: {0}, with seed {1} against the run in order; two operations on one buffer lack a "
    "dependency",
)
_GARBAGE = _Other(
    "garbage",
    GarbageError,
    "with the garbage of seed {0} in memory (it runs without)",
    "the initial contents of memory: {0}, with the garbage of seed {1} against none; L1, L2 and "
    "the variables of kernels (.bss) are not cleared for a program, so write what is read",
)
