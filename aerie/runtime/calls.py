"""Calls of programs: executed one by one, or recorded once and repeated.

    recording = cache.record()
    outputs = recording.run(first, bo_key="L0", x=x)                  # recorded, not executed
    recording.host("attention", HostWork(attend))                     # reads outputs["q"], writes `attended`
    result = recording.run(second, bo_key="L1", attn_out=attended)
    ... fill x ...
    recording()                                                       # executes all of it, in order
    ... read result ...

A recording keeps arrays by reference: their contents may change between replays. A replay has the same bits
as the same calls of `KernelCache.run` with the host's work between them. If device, arrays and work allow it,
a replay is one native call; otherwise the calls are made one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from aerie.common.knobs import is_plain
from aerie.runtime.buffers import Array, BufferSet
from aerie.runtime.device import DeviceAccess, clear_frames
from aerie.runtime.errors import AerieRuntimeError, RunError
from aerie.runtime.profiler import Profiler
from aerie.virtual_npu.pyxrt.batch import HostCode, HostCopy, RunBatch, StepError, can_be_one

if TYPE_CHECKING:
    from aerie.multi_launch_builder.program import Program

BETWEEN_PROGRAMS = "between recorded calls"
"""The profiler's span for the time between the steps of a recording that is one native call."""

WRITE, RUN, HOST = range(3)


@dataclass(slots=True, eq=False)
class ProgramCall:
    """A call of the program `name`. arrays: by slot, written to its buffers. outputs: the slots to read back.

    Results are views, or copies if `copy` is set. Results of arguments in `on_device` need not come to the
    host, because only programs read them.
    """

    name: str
    buffers: BufferSet
    arrays: Mapping[int, Array]
    outputs: Sequence[int]
    copy: bool = False
    on_device: Collection[str] = ()

    def execute(self, profiler: Profiler) -> dict[str, Array]:
        """Write, run and read; returns the results by name. Raises ArrayError and RunError."""
        buffers = self.buffers
        started, moved = perf_counter(), buffers.moved
        for slot, array in self.arrays.items():
            buffers.write(slot, array)
        written = perf_counter()
        buffers.execute()
        executed = perf_counter()
        results = buffers.results(self.outputs, self.copy, self.on_device)
        if profiler.enabled:
            spent = written - started, executed - written, perf_counter() - executed
            profiler.record(self.name, *spent, moved=buffers.moved - moved)
        return results


@dataclass(frozen=True)
class HostWork:
    """What the host does between programs, on arrays that do not move. code: the same as a C function."""

    run: Callable[[], None]
    code: HostCode | None = None


class HostCall(NamedTuple):
    """One piece of host work, under its name in the profiler."""

    name: str
    work: HostWork

    def execute(self, profiler: Profiler) -> None:
        """Do the work, in a profiler span of its name."""
        with profiler.span(self.name):
            self.work.run()


Step: TypeAlias = ProgramCall | HostCall


class Recording:
    """Calls and host work that are recorded once and repeated by calling the object. See
    KernelCache.record.
    """

    def __init__(self, call: Callable[..., ProgramCall], access: DeviceAccess, profiler: Profiler) -> None:
        self._call, self._access, self._profiler = call, access, profiler
        self._steps: list[Step] = []
        self._native: _NativeSteps | None = None
        self._is_prepared = False

    def run(
        self,
        program: Program | str,
        /,
        *,
        bo_key: str | None = None,
        outputs: Collection[str] | None = None,
        copy: bool = False,
        on_device: Collection[str] = (),
        **arrays: Array,
    ) -> dict[str, Array]:
        """Record a call of KernelCache.run with `copy=False`, and return the views that it would return.

        Takes inputs only: weights and tables must be on the device. Raises what `run` raises before the
        program runs.
        """
        if copy:
            raise AerieRuntimeError("a recorded call gives views, which every replay fills: leave copy out")
        call = self._call(program, bo_key, arrays, outputs, copy, on_device)
        buffers = call.buffers
        buffers.require_no_weights(call.arrays)
        for slot, array in call.arrays.items():
            buffers.needs_copy(slot, array)  # raises where it does not fit
        self._add(call)
        return {buffers.names[slot]: buffers.result(slot) for slot in call.outputs}

    def host(self, name: str, work: HostWork) -> None:
        """Record work of the host between the previous and the next call, under its name in the profiler."""
        self._add(HostCall(name, work))

    @property
    def is_current(self) -> bool:
        """False once one of its buffers was released: record it again."""
        return all(step.buffers.is_open for step in self._steps if isinstance(step, ProgramCall))

    def __call__(self) -> None:
        """Execute all steps, in order. Raises RunError at the first program that does not complete."""
        if not self.is_current:
            raise AerieRuntimeError("the buffers of the replayed recording were released; record it again")
        if not self._is_prepared:
            self._native = _native_steps(self._steps, self._access)
            self._is_prepared = True
        if self._native is None:
            for step in self._steps:
                step.execute(self._profiler)
            return
        try:
            self._native(self._profiler)
        except BaseException:
            self._is_prepared = False  # a program that failed is loaded afresh
            raise

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        self._is_prepared = False


class _NativeSteps:
    """The steps of a recording as one native call, with the owner of the time of each part.

    An owner is (WRITE or RUN, a program) or (HOST, a piece of host work).
    """

    def __init__(self) -> None:
        self._parts: list[Any | HostCopy | HostCode] = []
        self._owners: list[tuple[int, str]] = []
        self._sets: dict[int, BufferSet] = {}  # by the number of the part that runs their program
        self._calls: Counter[str] = Counter()
        self._moved: Counter[str] = Counter()

    def add(self, step: Step) -> bool:
        """Add a step, and load its program. Returns False if it cannot be native. Raises RunError if loading
        fails.
        """
        self._calls[step.name] += 1
        return self._add_host(step) if isinstance(step, HostCall) else self._add_call(step)

    def finish(self) -> bool:
        """Combine the added steps into one call. Returns False if that is not possible."""
        if not can_be_one(self._parts):
            return False
        self._batch = RunBatch(self._parts)
        self._numbers = {owner: number for number, owner in enumerate(dict.fromkeys(self._owners))}
        self._owner_of = np.array([self._numbers[owner] for owner in self._owners])
        return True

    def __call__(self, profiler: Profiler) -> None:
        """Execute the steps and count their time. Raises RunError if a program does not complete."""
        started = perf_counter()
        try:
            self._batch.execute()
        except StepError as error:
            clear_frames(error)
            raise self._failed(error) from error
        self._sets[max(self._sets)].mark_completed()
        if profiler.enabled:
            self._count(profiler, perf_counter() - started)

    def _add_host(self, step: HostCall) -> bool:
        if step.work.code is not None:
            self._append(step.work.code, HOST, step.name)
        return step.work.code is not None

    def _add_call(self, step: ProgramCall) -> bool:
        buffers = step.buffers
        copied = {slot: given for slot, given in step.arrays.items() if buffers.needs_copy(slot, given)}
        for slot, array in copied.items():
            target = buffers.view(slot)
            self._append(HostCopy(target.ctypes.data, array.ctypes.data, target.nbytes), WRITE, step.name)
        self._moved[step.name] += buffers.bytes_moved(copied, step.outputs, step.on_device)
        self._sets[len(self._parts)] = buffers
        self._append(buffers.bound_run(), RUN, step.name)
        return all(array.flags.c_contiguous for array in copied.values())

    def _append(self, part: Any | HostCopy | HostCode, kind: int, name: str) -> None:
        self._parts.append(part)
        self._owners.append((kind, name))

    def _failed(self, error: StepError) -> RunError:
        before = [number for number in self._sets if number < error.number]
        if before:
            self._sets[before[-1]].mark_completed()
        return self._sets[error.number].run_error(error)

    def _count(self, profiler: Profiler, spent: float) -> None:
        """Give every owner its time; the rest goes to BETWEEN_PROGRAMS."""
        seconds = np.bincount(self._owner_of, self._batch.nanoseconds * 1e-9).tolist()
        taken = {owner: seconds[number] for owner, number in self._numbers.items()}
        for (kind, name), own in taken.items():
            if kind == RUN:
                write = taken.get((WRITE, name), 0.0)
                profiler.record(name, write, own, 0.0, self._moved[name], self._calls[name])
            elif kind == HOST:
                profiler.count_span(name, own, self._calls[name])
        profiler.count_span(BETWEEN_PROGRAMS, spent - sum(seconds))


def _native_steps(steps: Sequence[Step], access: DeviceAccess) -> _NativeSteps | None:
    """The steps as one native call. Returns None if host work, arrays or the device do not allow it, or if
    AERIE_PLAIN lists calls. Raises RunError if a program cannot be loaded.
    """
    if is_plain("calls") or not access.supports_batches:
        return None
    native = _NativeSteps()
    return native if all(native.add(step) for step in steps) and native.finish() else None
