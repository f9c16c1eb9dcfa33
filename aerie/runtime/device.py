"""The open device of one cache: how its kind behaves, which programs are loaded, and how a run ends.

The NPU has few hardware contexts, so a program may be released while its buffers stay: buffers belong to the
device. Run, kernel, context and elf of a program are released with it, in this order.
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

Note = Callable[[str], None]

DEVICE_ERRORS = (RuntimeError, OSError, MemoryError, ValueError, TypeError, AttributeError, LookupError)
"""All exceptions that pyxrt raises: pybind11 turns C++ exceptions into these; an older pyxrt lacks names or
overloads.
"""


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of the calls that raised an error.

    A stored error would otherwise keep buffers and runs alive, and XRT needs them released in order.
    """
    traceback.clear_frames(error.__traceback__)


@dataclass(frozen=True)
class FailedRun:
    """A run that failed: label of the set (program and buffers), pyxrt's error, and label of the last run
    that completed before it, if any.
    """

    label: str
    error: BaseException
    artifact: Artifact
    arguments: ArgumentTable
    last_completed: str


class DeviceAccess(Protocol):
    """How one kind of device behaves. pyxrt's API is the same for all kinds."""

    @property
    def contexts(self) -> int:
        """How many programs can be loaded at once."""

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest buffer object that programs can address."""

    @property
    def copies_per_buffer(self) -> int:
        """How many copies of a buffer object are in the machine's memory: 2 if the device has its
        own memory.
        """

    @property
    def supports_batches(self) -> bool:
        """Whether several runs can be one native call (virtual_npu.pyxrt.batch)."""

    def acquire(self, report: Note) -> None:
        """Lock the device before it is opened, against other processes. report: called while it waits."""

    def release(self) -> None:
        """Unlock the device after it is closed, or could not be opened."""

    def execution(self, run: Any) -> Callable[[], None]:
        """A function that executes the run. It raises one of DEVICE_ERRORS unless the run completes."""

    def wait_interrupted(self, run: Any) -> None:
        """Wait for the end of a run that was interrupted (Ctrl-C), so that its buffers can be released."""

    def is_out_of_contexts(self, error: BaseException) -> bool:
        """Whether a program could not be loaded because too many are loaded."""

    def device_error(self, action: str, error: BaseException) -> RunError:
        """The RunError for a pyxrt error outside of runs. action: the action that failed."""

    def explain(self, failure: FailedRun) -> RunError:
        """The RunError for a failed run: what happened, and what to do."""


class VirtualAccess:
    """The virtual NPU: each process has its own, and its errors explain why a run failed."""

    contexts = sys.maxsize
    largest_buffer = sys.maxsize
    supports_batches = True

    @property
    def copies_per_buffer(self) -> int:
        return 2 if is_strict() else 1

    def acquire(self, report: Note) -> None:
        pass

    def release(self) -> None:
        pass

    def execution(self, run: Any) -> Callable[[], None]:
        if self.supports_batches and not is_plain("calls") and can_be_one([run]):
            return RunBatch([run]).execute
        return partial(_start_and_wait, run)

    def wait_interrupted(self, run: Any) -> None:
        with contextlib.suppress(RuntimeError):
            run.wait()

    def is_out_of_contexts(self, error: BaseException) -> bool:  # noqa: ARG002
        return False

    def device_error(self, action: str, error: BaseException) -> RunError:
        return RunError(f"{action}: {error}")

    def explain(self, failure: FailedRun) -> RunError:
        return self.device_error(f"{failure.label} failed", failure.error)


def _start_and_wait(run: Any) -> None:
    run.start()
    run.wait2()


@dataclass
class BoundRun:
    """A run whose arguments are the buffers of one set. `execute` is DeviceAccess.execution of it."""

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
        """Release everything in the order that XRT needs; another order crashes on Windows."""
        self.runs.clear()
        self.kernel = None
        self.context = None
        self.elf = None


class OpenDevice:
    """A device, opened at first use, and the programs loaded on it, up to its limit.

    backend: its name in errors. report: called while another process has the device. index: of the device in
    pyxrt. last_completed: label of the last run that completed.
    """

    def __init__(
        self, pyxrt: ModuleType, access: DeviceAccess, backend: str, report: Note, index: int = 0
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

        If the device is full, the least recently used program is released. Raises RunError if loading fails.
        """
        program = self._loaded.get(artifact.key)
        if program is None:
            program = self._loaded[artifact.key] = self._attempt(
                f"load '{artifact.name}' from {artifact.path}", lambda: self._load_in_turn(artifact)
            )
        self._loaded.move_to_end(artifact.key)
        return program

    def release(self, artifact: Artifact) -> None:
        """Release a program if it is loaded. The next `load` loads it again."""
        if program := self._loaded.pop(artifact.key, None):
            program.release()

    def buffer_object(self, label: str, argument: Argument) -> Any:
        """Allocate a buffer object for an argument of the set `label`. Raises RunError if that fails."""
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
            raise self.access.device_error(f"{label}: no buffer object for {argument}", error) from error

    def forget_run(self, artifact: Artifact, label: str) -> None:
        """Drop the run of a set before its buffers are released."""
        if program := self._loaded.get(artifact.key):
            program.runs.pop(label, None)

    def new_run(self, program: LoadedProgram, arguments: Sequence[Any]) -> BoundRun:
        """A run of a loaded program on these buffer objects."""
        run = self._pyxrt.run(program.kernel)
        for slot, argument in enumerate(arguments):
            run.set_arg(slot, argument)
        return BoundRun(run, self.access.execution(run))

    def close(self) -> None:
        """Release the programs, then the device. The buffers must be released before."""
        while self._loaded:
            self._loaded.popitem()[1].release()
        if self._device is not None:
            self._device = None
            self.access.release()
        self.last_completed = ""

    def _open(self) -> None:
        if self._device is None:
            self.access.acquire(self._report)
            try:
                self._device = self._attempt(
                    f"open device {self._index}", lambda: self._pyxrt.device(self._index)
                )
            finally:
                if self._device is None:
                    self.access.release()

    def _load_in_turn(self, artifact: Artifact) -> LoadedProgram:
        while len(self._loaded) >= self.access.contexts:
            self._release_oldest()
        while True:
            try:
                return self._load(artifact)
            except DEVICE_ERRORS as error:
                if not self._loaded or not self.access.is_out_of_contexts(error):
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

    def _attempt(self, action: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.access.device_error(f"backend '{self._backend}' could not {action}", error) from error
