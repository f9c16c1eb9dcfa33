"""A built program: its entries, and calls of them."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from aerie.common import knobs
from aerie.common.errors import ProgramError
from aerie.common.shown_names import display_name
from aerie.virtual_npu.cancellation import RunStopped
from aerie.virtual_npu.cpp_quoting import entry_symbol
from aerie.virtual_npu.errors import (
    AT_STOP_POINT,
    STOPPED,
    StopNotReachedError,
    VnpuArgumentError,
    run_error,
)
from aerie.virtual_npu.options import AIE_TIME_LIMIT, IN_ORDER, RunOptions
from aerie.virtual_npu.source_places import SourcePlaces, with_places
from aerie.virtual_npu.thread_team import use_team

if TYPE_CHECKING:
    from aerie.virtual_npu.stops import Stop, StopCall

FORMAT = 13
"""Version of the metadata and of the entries' calling convention."""


AIE_LEVEL = "aie"
"""The level of a program that was made from `aie.device`, in its metadata; others have none."""

STATS, TRACE = 1, 2
"""What a run can record (`RunOptions::record` in include/vnpu/entry.h)."""


class _Interpreter(ctypes.Structure):
    """vnpu::Interpreter."""

    _fields_ = (
        ("acquire", ctypes.c_void_p),
        ("handle_signals", ctypes.c_void_p),
        ("take_raised", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
    )


_INTERPRETER = _Interpreter(
    *(
        ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        for name in ("PyGILState_Ensure", "PyErr_CheckSignals", "PyErr_Fetch", "PyGILState_Release")
    )
)
"""Functions of the Python interpreter, with which a run lets Python handle signals, which may end the run."""


class _RunOptions(ctypes.Structure):
    """vnpu::RunOptions."""

    _fields_ = (
        ("threads", ctypes.c_int32),
        ("record", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("races_are_notes", ctypes.c_int32),
        ("max_events", ctypes.c_int64),
        ("garbage", ctypes.c_uint64),
        ("interpreter", ctypes.POINTER(_Interpreter)),
        ("stall", ctypes.c_int64),
        ("traced", ctypes.c_void_p),
        ("stops", ctypes.c_void_p),
    )


class _RunReport(ctypes.Structure):
    """vnpu::RunReport; void pointers, so that the texts can be given back."""

    _fields_ = (
        ("message", ctypes.c_void_p),
        ("notes", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("writer", ctypes.c_void_p),
        ("nanoseconds", ctypes.c_int64),
        ("raised", ctypes.c_void_p * 3),
    )


@dataclass(frozen=True)
class RunResult:
    """The result of a run beside its outputs.

    notes: findings that did not end the run. record: the requested stats and trace, else None. writer: the
    operation that wrote the traced element last; empty where none was recorded. stop: where the run stopped,
    None for one that ended.
    """

    notes: tuple[str, ...] = ()
    record: dict[str, Any] | None = None
    writer: str = ""
    stop: Stop | None = None


EMPTY_RESULT = RunResult()


@dataclass(frozen=True)
class ArgumentType:
    """Shape and MLIR element type (`bf16`, `f32`, `i32`, ...) of an argument; shape () is a scalar."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class EntryPoint:
    """A public function of the program."""

    name: str
    arguments: tuple[ArgumentType, ...]
    has_scratchpad: bool = False
    """Whether the last argument is the scratchpad of a module with `aie.device`."""


_LOADED: dict[Path, tuple[int, int, int]] = {}
"""The files that this process has loaded, each with its device, inode and time."""


def _load(path: Path) -> ctypes.CDLL:
    """The shared object at an absolute path, as it lies there now.

    The dynamic linker knows a loaded object by its path, and gives the old one where the file was replaced.
    """
    status = path.stat()
    identity = status.st_dev, status.st_ino, status.st_mtime_ns
    if _LOADED.setdefault(path, identity) == identity:
        return ctypes.CDLL(str(path))
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / path.name
        link.symlink_to(path)
        return ctypes.CDLL(str(link))


class Library:
    """A shared object that `virtual_npu.build` made, loaded. `entries`: its public functions, by name;
    `kernels`: the external functions that it calls."""

    seconds: ClassVar[float] = 0.0
    """Spent so far in the code of all programs of this process, without the Python that calls them."""

    def __init__(self, path: Path | str) -> None:
        """Load it. Raises ProgramError when the file is no such object or of another version."""
        self.path = Path(path)
        try:
            self._library = _load(self.path.resolve())
            first = ctypes.c_char.in_dll(self._library, "vnpu_metadata")
        except (OSError, ValueError) as error:
            raise ProgramError(
                f"{self.path} is not a program of the virtual NPU ({error}): build it again"
            ) from error
        metadata = json.loads(ctypes.string_at(ctypes.addressof(first)))
        if metadata["format"] != FORMAT:
            raise ProgramError(
                f"{self.path} has format {metadata['format']}, this version reads {FORMAT}: build it again"
            )
        use_team(self._library)
        self.kernels = tuple(metadata["kernels"])
        self.is_aie_level = metadata.get("level") == AIE_LEVEL
        self.places: SourcePlaces = {int(line): place for line, place in metadata.get("places", {}).items()}
        self.entries = {name: _entry(name, found) for name, found in metadata["entries"].items()}

    def run(self, entry: str, pointers: Sequence[int], options: RunOptions = IN_ORDER) -> RunResult:
        """Run an entry on buffers at these addresses, as `call` says."""
        return self.call(entry, pointers, options)()

    def call(self, entry: str, pointers: Sequence[int], options: RunOptions = IN_ORDER) -> EntryCall:
        """A call of an entry on buffers at these addresses, one per argument, in order.

        The caller keeps the buffers alive, with the sizes in `entries`. Raises VnpuArgumentError if their
        number does not fit the entry, KnobError for a wrong VNPU_THREADS.
        """
        entry_point = self.entries.get(entry)
        if entry_point is None:
            raise VnpuArgumentError(f"no entry {entry} in {self.path.name}: it has {', '.join(self.entries)}")
        if len(pointers) != len(entry_point.arguments):
            raise VnpuArgumentError(
                f"{entry} takes {len(entry_point.arguments)} arguments, {len(pointers)} given"
            )
        if options.time_limit is None:
            options = replace(options, time_limit=AIE_TIME_LIMIT if self.is_aie_level else 0.0)
        return EntryCall(self._library, entry, pointers, options, self.places)


class EntryCall:
    """A call of an entry, to be made any number of times, by one thread at a time; from Library.call."""

    def __init__(
        self,
        library: ctypes.CDLL,
        entry: str,
        pointers: Sequence[int],
        options: RunOptions,
        places: SourcePlaces,
    ) -> None:
        self._places = places
        self._library, self._entry = library, entry
        self._function = getattr(library, entry_symbol(entry))
        self._report = _RunReport()
        wanted = STATS * options.stats + TRACE * options.trace
        as_notes = options.races == "note"
        events, python = knobs.max_race_events(), ctypes.pointer(_INTERPRETER)
        threads = 1 if as_notes else options.threads or knobs.thread_count()
        seed, garbage = options.seed, options.garbage
        stall = int((options.time_limit or 0) * 1e9)
        self._stops = _stop_call(options)
        stops = ctypes.addressof(self._stops.structure) if self._stops else None
        options_struct = _RunOptions(
            threads, wanted, seed, as_notes, events, garbage, python, stall, options.traced, stops
        )
        self._objects = (ctypes.c_void_p * len(pointers))(*pointers), options_struct, self._report
        self._passed = tuple(map(ctypes.byref, self._objects))

    def __call__(self) -> RunResult:
        """Make it. Raises VirtualNpuDeadlock, or VirtualNpuRuntimeError with what failed and what was
        recorded until then.

        In the main thread signals are handled meanwhile; what their handlers raise (KeyboardInterrupt) ends
        the call within a tenth of a second or so, and leaves in the buffers whatever it had written. So does
        a StopFlag that the calling thread watches, by RunStopped, and at once.
        """
        return self.result_of(self._function(*self._passed))

    @property
    def c_addresses(self) -> tuple[int, int, int, int]:
        """Addresses of the C function and of its three arguments, for code that makes the call itself."""
        function = ctypes.cast(self._function, ctypes.c_void_p).value
        assert function is not None
        first, second, third = map(ctypes.addressof, self._objects)
        return function, first, second, third

    @property
    def run_steps_function(self) -> Any:
        """vnpu_take_steps of the program's library (include/vnpu/entry.h)."""
        return self._library.vnpu_take_steps

    def result_of(self, status: int) -> RunResult:
        """The result of a call that returned `status`, after it was made; raises as making it does."""
        report = self._report
        Library.seconds += report.nanoseconds * 1e-9
        if status == 0 and not (self._stops or report.notes or report.record or report.writer):
            return EMPTY_RESULT
        texts = (report.message, report.notes, report.record, report.writer)
        message, notes, record, writer = (self._taken(text) for text in texts)
        report.message = report.notes = report.record = report.writer = None
        record_fields = json.loads(record) if record else None
        if status == STOPPED:
            _raise_stopped(report, message)
        message = f"{display_name(self._entry)}: {message}"
        stop = self._stops.stop(message) if self._stops and status == AT_STOP_POINT else None
        if stop is None and self._stops:
            message = self._not_reached(status, message)
        if status != 0 and stop is None:
            raise run_error(status, with_places(message, self._places), record_fields)
        return RunResult(tuple(notes.splitlines()), record_fields, writer, stop)

    def _not_reached(self, status: int, message: str) -> str:
        """The message of a run that failed before a stop. Raises StopNotReachedError for one that ended."""
        assert self._stops is not None
        if status == 0:
            raise StopNotReachedError(f"{message}the run ended without a stop: {self._stops.hits()}")
        return f"{message}\nit failed before a stop: {self._stops.hits()}"

    def _taken(self, address: int | None) -> str:
        """The text at an address, which the program gives away."""
        if not address:
            return ""
        text = ctypes.string_at(address).decode(errors="replace")
        self._library.vnpu_release(ctypes.c_void_p(address))
        return text


def _stop_call(options: RunOptions) -> StopCall | None:
    if not options.stops:
        return None
    from aerie.virtual_npu.stops import StopCall  # it needs numpy, whose import takes long

    return StopCall(options.stops, options.show)


def _raise_stopped(report: _RunReport, message: str) -> None:
    """Raise what the handler of a signal has raised during a run, or RunStopped where a StopFlag ended it.

    message: where everything stood; it becomes a note of the exception.
    """
    raised, report.raised = tuple(report.raised), (ctypes.c_void_p * 3)()
    if not raised[0]:
        raise RunStopped(message)
    try:
        ctypes.pythonapi.PyErr_Restore(*map(ctypes.c_void_p, raised))
    except BaseException as error:
        error.add_note(message)
        raise


def _entry(name: str, described: dict[str, Any]) -> EntryPoint:
    types = []
    for argument in described["arguments"]:
        shape, dtype = argument["shape"], argument["dtype"]
        assert isinstance(shape, list)
        assert isinstance(dtype, str)
        types.append(ArgumentType(tuple(shape), dtype))
    return EntryPoint(name, tuple(types), bool(described.get("scratchpad")))
