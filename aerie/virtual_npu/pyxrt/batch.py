"""Runs, and what the host does between them, as one native call.

XRT has no such thing. The virtual NPU can do it because its device memory is the host's: nothing has to be
synchronised between a run and the code of the host that reads what it left. It spares the interpreter, whose
own code and data a run that streams weights drives out of the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from aerie.common.errors import ProgramError
from aerie.virtual_npu.pyxrt.objects import XrtError, ert_cmd_state
from aerie.virtual_npu.pyxrt.runs import Run

SLICE_NS = 100_000_000
"""Nanoseconds of steps after which the interpreter has its turn, as it has within a long run."""


@dataclass(frozen=True)
class HostCopy:
    """`nbytes` bytes from address `source` to address `target`."""

    target: int
    source: int
    nbytes: int


@dataclass(frozen=True)
class HostCode:
    """Addresses of a C function `int function(void *argument, void *, void *)`, which gives 0, and of its
    argument. `keep_alive` is whatever must live as long as it may be called.
    """

    function: int
    argument: int
    keep_alive: object = None


Step: TypeAlias = Run | HostCopy | HostCode


class _Step(ctypes.Structure):
    """vnpu::Step in include/vnpu/entry.h."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("third", ctypes.c_void_p),
        ("nanoseconds", ctypes.c_int64),
        ("status", ctypes.c_int64),
    )


STEP_BYTES = ctypes.sizeof(_Step)


def can_be_one(steps: Sequence[object]) -> bool:
    """Whether these may be a RunBatch: plain runs on memory that is the host's too, and one run at least."""
    runs = [step for step in steps if not isinstance(step, (HostCopy, HostCode))]
    return bool(runs) and all(type(run) is Run and not run.strict for run in runs)


class RunBatch:
    """Steps in order, taken any number of times, for which `can_be_one`.

    `nanoseconds` has what each step took the last time. The owner keeps alive what addresses refer to.
    """

    host_seconds: ClassVar[float] = 0.0
    """Spent so far in the host's code, in all batches of this process."""

    def __init__(self, steps: Sequence[Step]) -> None:
        """Raises XrtError where a run lacks an argument."""
        runs = {number: step for number, step in enumerate(steps) if isinstance(step, Run)}
        for run in runs.values():
            run.require_arguments()
        self._steps = steps
        self._runs = runs
        self._calls = {number: run.call for number, run in runs.items()}
        first = next(iter(self._calls))
        self._queue = runs[first].queue
        self._in_c = (_Step * len(steps))(*(_c_step(step) for step in steps))
        self._take_steps = self._calls[first].run_steps_function
        self._take_steps.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self._take_steps.restype = ctypes.c_int64
        self._address = ctypes.addressof(self._in_c)
        fields = np.frombuffer(memoryview(self._in_c), dtype=np.int64).reshape(len(steps), -1)
        self.nanoseconds: npt.NDArray[np.int64] = fields[:, 4]
        self._status = fields[:, 5]
        self._of_host = np.flatnonzero([isinstance(step, HostCode) for step in steps])

    def execute(self) -> None:
        """Take all steps, after whatever else was started. Raises StepError at the first run that fails.

        The interpreter has its turn after every SLICE_NS, so that a signal is handled in a long batch.
        """
        taken, failed, last = 0, False, len(self._steps)
        with self._queue.busy:
            self._queue.finish_started()
            try:
                while taken < last and not failed:
                    more = self._take_steps(self._address + taken * STEP_BYTES, last - taken, SLICE_NS)
                    failed = more < 0  # then it is the complement of the number of the one that failed
                    taken += ~more if failed else more
            finally:
                self._count(taken)
        if failed:
            self._raise_failed(taken)

    def _count(self, taken: int) -> None:
        """Add up the time in the steps that were taken."""
        for number, call in self._calls.items():
            if number < taken:
                call.result_of(0)
        if self._of_host.size:
            of_host = self._of_host[self._of_host < taken]
            RunBatch.host_seconds += float(self.nanoseconds[of_host].sum()) * 1e-9

    def _raise_failed(self, number: int) -> None:
        """Only a run can fail: say so as waiting for it would."""
        try:
            self._calls[number].result_of(int(self._status[number]))
        except ProgramError as failure:
            error = self._runs[number].end_error(ert_cmd_state.ERT_CMD_STATE_ERROR, failure)
            raise StepError(str(error), number) from failure


class StepError(XrtError):
    """A run of a batch did not complete: step `number`, counted from 0."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


def _c_step(step: Step) -> _Step:
    if isinstance(step, Run):
        return _Step(*step.call.c_addresses)
    if isinstance(step, HostCopy):
        return _Step(None, step.target, step.source, step.nbytes)
    return _Step(step.function, step.argument)
