"""Calls of programs: made one by one, or noted once and repeated.

    recording = cache.record()
    found = recording.run(first, bo_key="L0", x=x)                    # noted, not made
    recording.host("attention", HostWork(attend))                     # reads found["q"], writes `attended`
    result = recording.run(second, bo_key="L1", attn_out=attended)
    ... x is filled ...
    recording()                                                       # all of it, in order
    ... result is read ...

A recording holds arrays by reference: their contents may change from one replay to the next. A replay does,
to the bit, what the same calls of `KernelCache.run` and the host's work between them would do. Where device,
arrays and work allow it, it is one native call; else the calls are made one by one.
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

BETWEEN = "between recorded calls"
"""The profiler's span for the time between the steps of a recording that is one native call."""

WRITE, RUN, HOST = range(3)


@dataclass(slots=True, eq=False)
class Call:
    """A call of the program `name`: the arrays to be written to its buffers, and the slots to be read back.

    `arrays`: by slot. `wanted`: slots. Results are views, or copies with `copy`; those of arguments named in
    `on_device` need not come to the host, since only programs read them.
    """

    name: str
    buffers: BufferSet
    arrays: Mapping[int, Array]
    wanted: Sequence[int]
    copy: bool = False
    on_device: Collection[str] = ()

    def make(self, profiler: Profiler) -> dict[str, Array]:
        """Write, run and read; the results by name. Raises ArrayError and RunError."""
        buffers = self.buffers
        started, moved = perf_counter(), buffers.moved
        for slot, array in self.arrays.items():
            buffers.write(slot, array)
        written = perf_counter()
        buffers.execute()
        executed = perf_counter()
        results = buffers.results(self.wanted, self.copy, self.on_device)
        if profiler.enabled:
            spent = written - started, executed - written, perf_counter() - executed
            profiler.record(self.name, *spent, moved=buffers.moved - moved)
        return results


@dataclass(frozen=True)
class HostWork:
    """What the host does between programs, on arrays that stay in place. `code`: the same as a C function."""

    do: Callable[[], None]
    code: HostCode | None = None


class HostCall(NamedTuple):
    """Work of the host, under its name in the profiler."""

    name: str
    work: HostWork

    def make(self, profiler: Profiler) -> None:
        """Do the work, in a span of its name."""
        with profiler.span(self.name):
            self.work.do()


Step: TypeAlias = Call | HostCall


class Recording:
    """Calls and host work, noted once and repeated by calling it. Made by KernelCache.record."""

    def __init__(self, call: Callable[..., Call], access: DeviceAccess, profiler: Profiler) -> None:
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
        """Note a call of KernelCache.run with `copy=False`, and give the views that it would give.

        Inputs only: weights and tables must be on the device. Raises what the call would before it runs.
        """
        if copy:
            raise AerieRuntimeError("a recorded call gives views, which every replay fills: leave copy out")
        call = self._call(program, bo_key, arrays, outputs, copy, on_device)
        buffers = call.buffers
        buffers.refuse_statics(call.arrays)
        for slot, array in call.arrays.items():
            buffers.must_be_copied(slot, array)  # raises where it does not fit
        self._add(call)
        return {buffers.names[slot]: buffers.result(slot) for slot in call.wanted}

    def host(self, name: str, work: HostWork) -> None:
        """Note work of the host between the calls before and after it, under its name in the profiler."""
        self._add(HostCall(name, work))

    @property
    def is_current(self) -> bool:
        """Whether none of its buffers was released; else it must be recorded again."""
        return all(step.buffers.is_open for step in self._steps if isinstance(step, Call))

    def __call__(self) -> None:
        """Take all steps, in order. RunError where a program does not complete: none is taken after it."""
        if not self.is_current:
            raise AerieRuntimeError("a recording was replayed whose buffers were released; record it again")
        if not self._is_prepared:
            self._native = _native_steps(self._steps, self._access)
            self._is_prepared = True
        if self._native is None:
            for step in self._steps:
                step.make(self._profiler)
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
    """The steps of a recording as one native call, and for each part of it whose time it takes.

    An owner is (WRITE or RUN, a program) or (HOST, a piece of host work).
    """

    def __init__(self) -> None:
        self._parts: list[Any | HostCopy | HostCode] = []
        self._owners: list[tuple[int, str]] = []
        self._sets: dict[int, BufferSet] = {}  # by the number of the part that runs their program
        self._calls: Counter[str] = Counter()
        self._moved: Counter[str] = Counter()

    def add(self, step: Step) -> bool:
        """Whether that can be. Loads the step's program: RunError."""
        self._calls[step.name] += 1
        return self._add_host(step) if isinstance(step, HostCall) else self._add_call(step)

    def finish(self) -> bool:
        """Make it one call of the steps that were added; whether that can be."""
        if not can_be_one(self._parts):
            return False
        self._batch = RunBatch(self._parts)
        self._numbers = {owner: number for number, owner in enumerate(dict.fromkeys(self._owners))}
        self._owner_of = np.array([self._numbers[owner] for owner in self._owners])
        return True

    def __call__(self, profiler: Profiler) -> None:
        """Take them, and count their time. RunError where a program does not complete."""
        started = perf_counter()
        try:
            self._batch.execute()
        except StepError as error:
            clear_frames(error)
            raise self._failed(error) from error
        self._sets[max(self._sets)].completed()
        if profiler.enabled:
            self._count(profiler, perf_counter() - started)

    def _add_host(self, step: HostCall) -> bool:
        if step.work.code is not None:
            self._append(step.work.code, HOST, step.name)
        return step.work.code is not None

    def _add_call(self, step: Call) -> bool:
        buffers = step.buffers
        copied = {slot: given for slot, given in step.arrays.items() if buffers.must_be_copied(slot, given)}
        for slot, array in copied.items():
            target = buffers.view(slot)
            self._append(HostCopy(target.ctypes.data, array.ctypes.data, target.nbytes), WRITE, step.name)
        self._moved[step.name] += buffers.bytes_moved(copied, step.wanted, step.on_device)
        self._sets[len(self._parts)] = buffers
        self._append(buffers.bound_run(), RUN, step.name)
        return all(array.flags.c_contiguous for array in copied.values())

    def _append(self, part: Any | HostCopy | HostCode, kind: int, name: str) -> None:
        self._parts.append(part)
        self._owners.append((kind, name))

    def _failed(self, error: StepError) -> RunError:
        before = [number for number in self._sets if number < error.number]
        if before:
            self._sets[before[-1]].completed()
        return self._sets[error.number].failed(error)

    def _count(self, profiler: Profiler, spent: float) -> None:
        """Give every owner its time, and what no part took to BETWEEN."""
        seconds = np.bincount(self._owner_of, self._batch.nanoseconds * 1e-9).tolist()
        taken = {owner: seconds[number] for owner, number in self._numbers.items()}
        for (kind, name), own in taken.items():
            if kind == RUN:
                write = taken.get((WRITE, name), 0.0)
                profiler.record(name, write, own, 0.0, self._moved[name], self._calls[name])
            elif kind == HOST:
                profiler.count_span(name, own, self._calls[name])
        profiler.count_span(BETWEEN, spent - sum(seconds))


def _native_steps(steps: Sequence[Step], access: DeviceAccess) -> _NativeSteps | None:
    """The steps as one native call; None where work of the host, arrays or the device do not allow it, and
    where AERIE_PLAIN holds calls. RunError where a program cannot be loaded."""
    if is_plain("calls") or not access.batches:
        return None
    native = _NativeSteps()
    return native if all(native.add(step) for step in steps) and native.finish() else None
