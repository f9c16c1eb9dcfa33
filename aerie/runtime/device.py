"""The open device of one cache: how its kind behaves, the programs loaded on it, and how a run ends.

The NPU has few hardware contexts, so a program may be released while its buffers stay: these belong to the
device. Its runs, kernel, context and elf are released with it, in this order.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from aerie.common.knobs import is_plain, is_strict
from aerie.kernel_builder.arguments import Argument, ArgumentTable
from aerie.runtime.artifacts import Artifact
from aerie.runtime.errors import RunError
from aerie.virtual_npu.pyxrt.batch import RunBatch, can_be_one

Report = Callable[[str], None]

DEVICE_ERRORS = (RuntimeError, OSError, MemoryError, ValueError, TypeError, AttributeError, LookupError)
"""All that pyxrt raises: pybind11 turns C++ exceptions into these; an older pyxrt lacks names or
overloads."""


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of the calls that raised an error.

    An error that is kept would otherwise keep buffers and runs alive, and XRT wants them released in order.
    """
    traceback.clear_frames(error.__traceback__)


@dataclass(frozen=True)
class Failure:
    """A run that failed: the set's label (program and buffers), pyxrt's error, and the label of the last run
    that completed before, if any."""

    label: str
    error: BaseException
    artifact: Artifact
    arguments: ArgumentTable
    last_completed: str


class DeviceAccess(Protocol):
    """How one kind of device behaves, beside pyxrt's API, which is the same on all of them."""

    @property
    def contexts(self) -> int:
        """How many programs may be loaded at once."""

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest buffer object that programs can address."""

    @property
    def copies(self) -> int:
        """How many times a buffer object is in the machine's memory: twice where host and device are
        apart."""

    @property
    def batches(self) -> bool:
        """Whether several runs can be one native call (virtual_npu.pyxrt.batch)."""

    def reserve(self, report: Report) -> None:
        """Called before the device is opened: keeps other processes off it. `report` is told of the
        waiting."""

    def free(self) -> None:
        """Called after the device is closed, or could not be opened: lets other processes have it."""

    def execution(self, run: Any) -> Callable[[], None]:
        """A function that carries the run out; it raises one of DEVICE_ERRORS unless the run completes."""

    def settle(self, run: Any) -> None:
        """Wait until a run that was interrupted (Ctrl-C) is over, so that its buffers can be released."""

    def lacks_context(self, error: BaseException) -> bool:
        """Whether a program could not be loaded because too many are loaded."""

    def failed(self, what: str, error: BaseException) -> RunError:
        """The RunError for an error of pyxrt outside of runs: `what` failed, and why."""

    def explain(self, failure: Failure) -> RunError:
        """The RunError for a failed run: what happened, and what to do."""


class VirtualAccess:
    """The virtual NPU: each process has its own, and its errors say themselves why a run failed."""

    contexts = sys.maxsize
    largest_buffer = sys.maxsize
    batches = True

    @property
    def copies(self) -> int:
        return 2 if is_strict() else 1

    def reserve(self, report: Report) -> None:
        pass

    def free(self) -> None:
        pass

    def execution(self, run: Any) -> Callable[[], None]:
        if self.batches and not is_plain("calls") and can_be_one([run]):
            return RunBatch([run]).execute
        return partial(_start_and_wait, run)

    def settle(self, run: Any) -> None:
        with contextlib.suppress(RuntimeError):
            run.wait()

    def lacks_context(self, error: BaseException) -> bool:  # noqa: ARG002
        return False

    def failed(self, what: str, error: BaseException) -> RunError:
        return RunError(f"{what}: {error}")

    def explain(self, failure: Failure) -> RunError:
        return self.failed(f"{failure.label} failed", failure.error)


def _start_and_wait(run: Any) -> None:
    run.start()
    run.wait2()


@dataclass
class BoundRun:
    """A run whose arguments are the buffers of one set; `execute` carries it out, as DeviceAccess says."""

    run: Any
    execute: Callable[[], None]


@dataclass
class LoadedProgram:
    """An artifact on the device, and the run of each buffer-object set, by the set's label."""

    elf: Any
    context: Any
    kernel: Any
    runs: dict[str, BoundRun] = field(default_factory=dict)

    def release(self) -> None:
        """Release all in the order that XRT needs; in another one it crashes on Windows."""
        self.runs.clear()
        self.kernel = None
        self.context = None
        self.elf = None


class Contexts:
    """A device, opened at first use, and the programs loaded on it, as many as it takes.

    `backend` names it in errors. `report` is told while another process has the device. `index`: which of the
    devices that pyxrt knows. `last_completed`: the label of the last run that completed.
    """

    def __init__(
        self, pyxrt: ModuleType, access: DeviceAccess, backend: str, report: Report, index: int = 0
    ) -> None:
        self.access = access
        self.last_completed = ""
        self._pyxrt = pyxrt
        self._backend = backend
        self._index = index
        self._report = report
        self._device: Any = None
        self._loaded: OrderedDict[str, LoadedProgram] = OrderedDict()

    def load(self, artifact: Artifact) -> LoadedProgram:
        """The artifact on the device: loaded at the first call, and again after it was released.

        Where the device has no room, the program used longest ago is released. Raises RunError.
        """
        found = self._loaded.get(artifact.key)
        if found is None:
            found = self._loaded[artifact.key] = self._attempt(
                f"load '{artifact.name}' from {artifact.path}", lambda: self._load_in_turn(artifact)
            )
        self._loaded.move_to_end(artifact.key)
        return found

    def release(self, artifact: Artifact) -> None:
        """Take a program off the device, if it is there; the next `load` starts it afresh."""
        if program := self._loaded.pop(artifact.key, None):
            program.release()

    def buffer_object(self, label: str, argument: Argument) -> Any:
        """A buffer object for an argument of the set `label`. RunError where it cannot be had."""
        if argument.nbytes > self.access.largest_buffer:
            raise RunError(
                f"{label}: {argument} takes {argument.nbytes} bytes; programs on this device address at most "
                f"{self.access.largest_buffer} of one buffer and would use others, silently: split it "
                "into several as lm_head_gemv does, or compile for fewer tokens with --seq-len (SEQ_LEN)"
            )
        self._open()
        try:
            return self._pyxrt.ext.bo(self._device, argument.nbytes)
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.access.failed(f"{label}: no buffer object for {argument}", error) from error

    def forget_run(self, artifact: Artifact, label: str) -> None:
        """Drop the run of a set whose buffers are about to go."""
        if program := self._loaded.get(artifact.key):
            program.runs.pop(label, None)

    def new_run(self, program: LoadedProgram, arguments: Sequence[Any]) -> BoundRun:
        """A run of a loaded program on these buffer objects."""
        run = self._pyxrt.run(program.kernel)
        for slot, argument in enumerate(arguments):
            run.set_arg(slot, argument)
        return BoundRun(run, self.access.execution(run))

    def close(self) -> None:
        """Release the programs, then the device. The buffers must be gone by then."""
        while self._loaded:
            self._loaded.popitem()[1].release()
        if self._device is not None:
            self._device = None
            self.access.free()
        self.last_completed = ""

    def _open(self) -> None:
        if self._device is None:
            self.access.reserve(self._report)
            try:
                self._device = self._attempt(f"open device {self._index}", self._new_device)
            finally:
                if self._device is None:
                    self.access.free()

    def _new_device(self) -> Any:
        return self._pyxrt.device(self._index)

    def _load_in_turn(self, artifact: Artifact) -> LoadedProgram:
        while len(self._loaded) >= self.access.contexts:
            self._release_oldest()
        while True:
            try:
                return self._load(artifact)
            except DEVICE_ERRORS as error:
                if not self._loaded or not self.access.lacks_context(error):
                    raise
            self._release_oldest()

    def _load(self, artifact: Artifact) -> LoadedProgram:
        self._open()
        program = LoadedProgram(None, None, None)
        try:
            program.elf = self._pyxrt.elf(str(artifact.path))
            program.context = self._pyxrt.hw_context(self._device, program.elf)
            program.kernel = self._pyxrt.ext.kernel(program.context, f"main:{artifact.name}")
        except BaseException as error:
            clear_frames(error)
            program.release()
            raise
        return program

    def _release_oldest(self) -> None:
        self._loaded.popitem(last=False)[1].release()

    def _attempt(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.access.failed(f"backend '{self._backend}' could not {what}", error) from error
