"""One set of buffer objects: a program's arguments on the device, under one key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_builder.arguments import Argument, ArgumentTable, Role
from runtime.access import DEVICE_ERRORS, Failure, let_go
from runtime.artifacts import Artifact
from runtime.contexts import Contexts, LoadedProgram
from runtime.errors import ArrayError, RunError

Array = npt.NDArray[Any]

OVERWRITTEN = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


class BufferSet:
    """A buffer object per argument, the host's view on each, and the run that is bound to all of them.

    The run belongs to the loaded program and goes when that is released; the buffers stay until `close`, with
    what is in them. Not for two threads at once: a set belongs to one call at a time. Raises RunError.
    """

    def __init__(
        self, label: str, pyxrt: Any, contexts: Contexts, artifact: Artifact, arguments: ArgumentTable
    ) -> None:
        self.label = label
        self.arguments = arguments
        self.outputs = arguments.output_indices
        self.written: set[int] = set()
        self._contexts, self._artifact = contexts, artifact
        self._to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._from_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        self._slots = {name: slot for slot, name in enumerate(arguments.names)}
        self._missing_statics = set(arguments.static_input_indices)
        self._inputs = {slot for slot, argument in enumerate(arguments) if argument.role is Role.INPUT}
        self._lent: set[int] = set()
        self._bos: list[Any] = []
        self._views: list[Array] = []
        self._results: list[Array] = []
        try:
            self._allocate()
        except BaseException:
            self.close()
            raise

    def slot(self, name: str) -> int:
        """The slot of an argument; ArgumentError with the nearest names where there is none."""
        found = self._slots.get(name)
        return self.arguments.slot(name) if found is None else found

    def write(self, slot: int, array: Array) -> None:
        """Copy one array to the device. ArrayError unless shape and dtype are the argument's."""
        view = self._views[slot]
        if array.shape != view.shape or array.dtype != view.dtype:
            raise self._misfit(slot, array)
        view[...] = array
        self._sync(slot, self._to_device)
        self.written.add(slot)
        self._missing_statics.discard(slot)

    def lend(self, slot: int) -> Array:
        """The host's view on an argument, to be filled in place before the next call."""
        self._lent.add(slot)
        self._missing_statics.discard(slot)
        return self._views[slot]

    def write_named(self, arrays: Mapping[str, Array]) -> None:
        """Write the arrays of one call by name: every input, and weights only where none were written."""
        given = set()
        for name, array in arrays.items():
            slot = self.slot(name)
            if slot not in self._inputs:
                self._check_role(slot)
            self.write(slot, array)
            given.add(slot)
        if not self._inputs <= given:
            self._check_inputs(given)
        if self._missing_statics:
            names = ", ".join(self.arguments[slot].name for slot in sorted(self._missing_statics))
            raise ArrayError(
                f"{self.label}: {names} never written; pass them in the first call, or preload them once"
            )

    def execute(self) -> None:
        """Run the program to its end. RunError unless it completed; then the next call loads it afresh."""
        if self._lent:
            self._take_over_lent()
        contexts = self._contexts
        program = contexts.load(self._artifact)
        try:
            self._run_to_its_end(program)
        except DEVICE_ERRORS as error:
            let_go(error)
            contexts.release(self._artifact)
            raise contexts.access.explain(self._failure(error)) from error
        except BaseException:  # Ctrl-C: leave a device and a set that run on
            try:
                if self.label in program.runs:
                    contexts.access.settle(program.runs[self.label])
            finally:
                contexts.release(self._artifact)
            raise
        contexts.last_completed = self.label

    def read(self, slot: int) -> Array:
        """A read-only view on what the program left in an argument; the next call overwrites it."""
        self._sync(slot, self._from_device)
        return self._results[slot]

    def close(self) -> None:
        """Release the run and the buffer objects. Views of `read` and `lend` are dead afterwards."""
        self._contexts.forget_run(self._artifact, self.label)
        self._views.clear()
        self._results.clear()
        self._bos.clear()

    def _allocate(self) -> None:
        for argument in self.arguments:
            self._bos.append(self._contexts.buffer_object(self.label, argument))
            self._views.append(_view(self._bos[-1], argument))
            self._results.append(_read_only(self._views[-1]))

    def _run_to_its_end(self, program: LoadedProgram) -> None:
        """With the run of this set on the loaded program; a new one where the program was loaded since."""
        run = program.runs.get(self.label)
        if run is None:
            run = program.runs[self.label] = self._contexts.new_run(program)
            for slot, bo in enumerate(self._bos):
                run.set_arg(slot, bo)
        run.start()
        self._contexts.access.wait(run)

    def _failure(self, error: BaseException) -> Failure:
        before = self._contexts.last_completed
        return Failure(self.label, error, self._artifact, self.arguments, before)

    def _sync(self, slot: int, direction: Any) -> None:
        try:
            self._bos[slot].sync(direction)
        except DEVICE_ERRORS as error:
            let_go(error)
            reading = self._contexts.access.reading(error)
            argument = self.arguments[slot]
            raise RunError(f"{self.label}: {argument} cannot be synchronised: {reading}") from error

    def _take_over_lent(self) -> None:
        statics = self.arguments.static_input_indices
        for slot in self._lent:
            self._sync(slot, self._to_device)
            self.written.add(slot)
        self._lent -= statics  # weights are filled once, inputs before every call

    def _check_role(self, slot: int) -> None:
        argument = self.arguments[slot]
        if argument.role in OVERWRITTEN:
            raise ArrayError(
                f"{self.label}: {argument.name} is an {argument.role.value}, which the program overwrites; "
                "leave it out"
            )
        if slot in self.written:
            raise ArrayError(
                f"{self.label}: {argument.role.value} {argument.name} is on the device already and would "
                "not be written again; leave it out, replace it with preload(), or use another bo_key"
            )

    def _check_inputs(self, given: Collection[int]) -> None:
        missing = sorted(self._inputs.difference(given, self._lent))
        if missing:
            names = ", ".join(str(self.arguments[slot]) for slot in missing)
            raise ArrayError(f"{self.label} needs {names}; an input is passed in every call")

    def _misfit(self, slot: int, array: Array) -> ArrayError:
        argument = self.arguments[slot]
        given = f"{'x'.join(map(str, array.shape))} {array.dtype}"
        return ArrayError(
            f"{self.label}: {argument.role.value} {argument} was given {given}; "
            f"pass shape {argument.shape} and dtype {np.dtype(argument.dtype.numpy)}"
        )


def _view(bo: Any, argument: Argument) -> Array:
    data = np.frombuffer(bo.map(), dtype=np.uint8)[: argument.nbytes]
    typed: Array = data.view(argument.dtype.numpy)
    return typed.reshape(argument.shape)


def _read_only(view: Array) -> Array:
    result = view.view()
    result.flags.writeable = False
    return result
