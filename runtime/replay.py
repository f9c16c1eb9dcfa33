"""A recording as one native call, and whose time each of its steps takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from runtime.access import DeviceAccess, let_go
from runtime.buffers import BufferSet
from runtime.calls import HostCall, ProgramCall, Step
from runtime.errors import RunError
from runtime.profiler import Profiler
from virtual_npu.knobs import is_plain
from virtual_npu.pyxrt.batch import Batch, Copy, HostCode, StepError, can_be_one

BETWEEN = "between recorded calls"
"""The profiler's span for what a replay takes beside its steps."""

WRITE, RUN, HOST = range(3)


class _Steps:
    """Native steps, and for each its owner: (WRITE or RUN, a program) or (HOST, a piece of host work)."""

    def __init__(self) -> None:
        self.steps: list[Any | Copy | HostCode] = []
        self.owners: list[tuple[int, str]] = []
        self.sets: dict[int, BufferSet] = {}  # of the steps that run programs
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def add(self, step: Step) -> bool:
        """Whether that can be."""
        self.calls[step.name] += 1
        return self._add_host(step) if isinstance(step, HostCall) else self._add_call(step)

    def _add_host(self, step: HostCall) -> bool:
        if step.work.code is not None:
            self._append(step.work.code, HOST, step.name)
        return step.work.code is not None

    def _add_call(self, step: ProgramCall) -> bool:
        buffers = step.buffers
        missing = buffers.missing(step.arrays)
        for slot, array in missing.items():
            target = buffers.view(slot)
            self._append(Copy(target.ctypes.data, array.ctypes.data, target.nbytes), WRITE, step.name)
        self.moved[step.name] += buffers.bytes_moved(missing, step.wanted, step.unread)
        self.sets[len(self.steps)] = buffers
        self._append(buffers.loaded_run(), RUN, step.name)
        return all(array.flags.c_contiguous for array in missing.values())

    def _append(self, step: Any | Copy | HostCode, kind: int, name: str) -> None:
        self.steps.append(step)
        self.owners.append((kind, name))


class NativeReplay:
    """Takes the steps of a recording by one call of the batch that they make."""

    def __init__(self, steps: _Steps, batch: Batch) -> None:
        self._batch, self._sets = batch, steps.sets
        self._last = steps.sets[max(steps.sets)]
        self._calls, self._moved = steps.calls, steps.moved
        owners = list(dict.fromkeys(steps.owners))
        self._owners = {owner: number for number, owner in enumerate(owners)}
        self._owner_of = np.array([self._owners[owner] for owner in steps.owners])

    def __call__(self, profiler: Profiler) -> None:
        """Take them, and count their time. RunError where a program does not complete."""
        started = time.perf_counter()
        try:
            self._batch.execute()
        except StepError as error:
            let_go(error)
            raise self._failed(error) from error
        self._last.completed()
        if profiler.enabled:
            self._count(profiler, time.perf_counter() - started)

    def _failed(self, error: StepError) -> RunError:
        before = [number for number in self._sets if number < error.number]
        if before:
            self._sets[before[-1]].completed()
        return self._sets[error.number].failed(error)

    def _count(self, profiler: Profiler, spent: float) -> None:
        """Give every owner its time, and what no step took to BETWEEN."""
        seconds = np.bincount(self._owner_of, self._batch.nanoseconds * 1e-9).tolist()
        taken = {owner: seconds[number] for owner, number in self._owners.items()}
        for (kind, name), own in taken.items():
            if kind == RUN:
                write = taken.get((WRITE, name), 0.0)
                profiler.record(name, write, own, 0.0, self._moved[name], self._calls[name])
            elif kind == HOST:
                profiler.count_span(name, own, self._calls[name])
        profiler.count_span(BETWEEN, spent - sum(seconds))


def native_replay(steps: Sequence[Step], access: DeviceAccess) -> NativeReplay | None:
    """The steps as one native call; None where work of the host, arrays or the device do not allow it, and
    where AERIE_PLAIN holds calls.

    Loads the programs: raises RunError.
    """
    if is_plain("calls"):
        return None
    native = _Steps()
    if access.batches and all(native.add(step) for step in steps) and can_be_one(native.steps):
        return NativeReplay(native, Batch(native.steps))
    return None
