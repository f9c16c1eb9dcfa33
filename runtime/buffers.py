"""One set of buffer objects: a program's arguments on the device, under one key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from kernel_builder.arguments import Argument, ArgumentTable, Role
from runtime.access import DEVICE_ERRORS, Failure, let_go
from runtime.artifacts import Artifact
from runtime.buffer import Array, Buffer, Static
from runtime.contexts import Contexts, LoadedProgram
from runtime.errors import ArrayError

OVERWRITTEN = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


class BufferSet:
    """A buffer per argument, and the run that is bound to all of them.

    The run belongs to the loaded program and goes when that is released; the buffers stay until `close`, with
    what is in them, those that other sets share for as long as one of these is open. Not for two threads at
    once: a set belongs to one call at a time, and so do all that share its buffers. `allocate` gives each
    argument its buffer; what it raises is raised. `moved` counts the bytes that the host has written to the
    device and read from it.
    """

    def __init__(
        self,
        label: str,
        pyxrt: Any,
        contexts: Contexts,
        artifact: Artifact,
        arguments: ArgumentTable,
        allocate: Callable[[Argument], Buffer],
    ) -> None:
        self.label = label
        self.arguments = arguments
        self.outputs = arguments.output_indices
        self.moved = 0
        self._contexts, self._artifact = contexts, artifact
        self._to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._from_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        self._slots = {name: slot for slot, name in enumerate(arguments.names)}
        self._statics = sorted(arguments.static_input_indices)
        self._inputs = {slot for slot, argument in enumerate(arguments) if argument.role is Role.INPUT}
        self._buffers: list[Buffer] = []
        try:
            self._buffers.extend(map(allocate, arguments))
        except BaseException:
            self.close()
            raise

    def slot(self, name: str) -> int:
        """The slot of an argument; ArgumentError with the nearest names where there is none."""
        found = self._slots.get(name)
        return self.arguments.slot(name) if found is None else found

    def write(self, slot: int, array: Array) -> None:
        """Bring one array to the device. ArrayError unless shape and dtype are the argument's.

        What another program left in this very buffer is there already, and is not copied.
        """
        if array is not self._buffers[slot].result:
            self._fill(slot, array)
            self._sync(slot, self._to_device)
            self._buffers[slot].written = True

    def fill(self, slot: int, static: Static) -> None:
        """Bring a weight or table to the device: an array, or what a function puts into the buffer."""
        if isinstance(static, np.ndarray):
            self.write(slot, static)
            return
        static(self._buffers[slot].view)
        self._sync(slot, self._to_device)
        self._buffers[slot].written = True

    @property
    def unfilled(self) -> list[str]:
        """Weights and tables that the host has not filled, through this set or one that shares them."""
        return [self.arguments[slot].name for slot in self._statics if not self._buffers[slot].written]

    @property
    def written(self) -> set[int]:
        """The slots that the host has filled."""
        return {slot for slot, buffer in enumerate(self._buffers) if buffer.written}

    def lend(self, slot: int) -> Array:
        """The host's view on an argument, to be filled in place before the next call."""
        buffer = self._buffers[slot]
        buffer.lent = buffer.written = True
        return buffer.view

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
        if missing := self.unfilled:
            names = ", ".join(missing)
            raise ArrayError(
                f"{self.label}: {names} never written; pass them in the first call, or preload them once"
            )

    def execute(self) -> None:
        """Run the program to its end. RunError unless it completed; then the next call loads it afresh."""
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
        return self._buffers[slot].result

    def results(self, slots: Collection[int], copy: bool, unread: Collection[str]) -> dict[str, Array]:
        """What the program left in these slots, by name: copies or views, of `unread` as `_leave` says."""
        names = self.arguments.names
        if copy:
            return {names[slot]: self.read(slot).copy() for slot in slots}
        return {
            names[slot]: self._leave(slot) if names[slot] in unread else self.read(slot) for slot in slots
        }

    def close(self) -> None:
        """Release the run and the buffers. Views of `read` and `lend` are dead once nobody shares them."""
        self._contexts.forget_run(self._artifact, self.label)
        self._buffers.clear()

    def _fill(self, slot: int, array: Array) -> None:
        view = self._buffers[slot].view
        if array.shape != view.shape or array.dtype != view.dtype:
            raise self._misfit(slot, array)
        view[...] = array

    def _leave(self, slot: int) -> Array:
        """As `read`, but a buffer that is shared is not brought to the host: its next reader is a program."""
        buffer = self._buffers[slot]
        return buffer.result if buffer.shared else self.read(slot)

    def _run_to_its_end(self, program: LoadedProgram) -> None:
        """With the run of this set on the loaded program; a new one where the program was loaded since."""
        run = program.runs.get(self.label)
        if run is None:
            run = program.runs[self.label] = self._contexts.new_run(program)
            for slot, buffer in enumerate(self._buffers):
                run.set_arg(slot, buffer.bo)
        run.start()
        self._contexts.access.wait(run)

    def _failure(self, error: BaseException) -> Failure:
        before = self._contexts.last_completed
        return Failure(self.label, error, self._artifact, self.arguments, before)

    def _sync(self, slot: int, direction: Any) -> None:
        self.moved += self.arguments[slot].nbytes
        try:
            self._buffers[slot].bo.sync(direction)  # by no name of ours: an error that is kept keeps it
        except DEVICE_ERRORS as error:
            let_go(error)
            what = f"{self.label}: {self.arguments[slot]} cannot be synchronised"
            raise self._contexts.access.failed(what, error) from error

    def _take_over_lent(self) -> None:
        for slot in [slot for slot, buffer in enumerate(self._buffers) if buffer.lent]:
            self._sync(slot, self._to_device)
            # Weights are filled once, inputs before every call.
            self._buffers[slot].lent = slot in self._inputs

    def _check_role(self, slot: int) -> None:
        argument = self.arguments[slot]
        if argument.role in OVERWRITTEN:
            raise ArrayError(
                f"{self.label}: {argument.name} is an {argument.role.value}, which the program overwrites; "
                "leave it out"
            )
        if self._buffers[slot].written:
            raise ArrayError(
                f"{self.label}: {argument.role.value} {argument.name} is on the device already and would "
                "not be written again; leave it out, replace it with preload(), or use another bo_key"
            )

    def _check_inputs(self, given: Collection[int]) -> None:
        missing = sorted(slot for slot in self._inputs.difference(given) if not self._buffers[slot].lent)
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
