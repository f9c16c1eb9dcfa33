"""One set of buffer objects: a program's arguments on the device, under one key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kernel_builder.arguments import Argument, ArgumentTable, Role
from runtime.access import DEVICE_ERRORS, Failure, let_go
from runtime.artifacts import Artifact
from runtime.buffer import Array, Buffer, Static
from runtime.contexts import Contexts, LoadedProgram
from runtime.errors import ArrayError, RunError

OVERWRITTEN = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


@dataclass
class Plan:
    """A call by position: slots written in `every` call, those written `once`, and those `wanted` back.

    `is_begun` says that those of `once` have been written.
    """

    every: tuple[int, ...]
    once: tuple[int, ...]
    wanted: Collection[int]
    is_begun: bool = False


class BufferSet:
    """A buffer per argument, and the run that is bound to all of them.

    The run belongs to the loaded program and goes when that is released; the buffers stay until `close`, with
    what is in them, those that other sets share for as long as one of these is open. Not for two threads at
    once: a set belongs to one call at a time, and so do all that share its buffers. `allocate` gives each
    argument its buffer; what it raises is raised. `moved` counts the bytes that the host has written to the
    device and read from it.
    """

    loans: ClassVar[int] = 0
    """How often a buffer of any set was lent, so that a call need not look at each whether it is."""

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
        self._input_names = {arguments.names[slot] for slot in self._inputs}
        self._names = tuple(arguments.names)
        self._nbytes = tuple(argument.nbytes for argument in arguments)
        self._filled = False  # all weights and tables, once and for all
        self._loans_seen = -1
        self._lent: list[int] = []
        self._plans: dict[Hashable, Plan] = {}
        self._buffers: list[Buffer] = []
        try:
            self._buffers.extend(map(allocate, arguments))
        except BaseException:
            self.close()
            raise
        self._forms = [(buffer.view.shape, buffer.view.dtype) for buffer in self._buffers]

    def slot(self, name: str) -> int:
        """The slot of an argument; ArgumentError with the nearest names where there is none."""
        found = self._slots.get(name)
        return self.arguments.slot(name) if found is None else found

    def write(self, slot: int, array: Array) -> None:
        """Bring one array to the device. ArrayError unless shape and dtype are the argument's.

        What another program left in this very buffer is there already, and is not copied.
        """
        if self.lacks(slot, array):
            buffers = self._buffers  # no single one by name: an error that is kept keeps what names it
            buffers[slot].view[...] = array
            self._sync(slot, self._to_device)
            buffers[slot].written = True

    def lacks(self, slot: int, array: Array) -> bool:
        """Whether an array for this slot is elsewhere. ArrayError unless it is as the argument wants it."""
        if array is self._buffers[slot].result:
            return False
        shape, dtype = self._forms[slot]
        if array.shape != shape or array.dtype != dtype:
            raise self._misfit(slot, array)
        return True

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

    def plan(
        self,
        given: int,
        output_indices: Collection[int] | None,
        static_input_indices: Collection[int],
        intermediate_indices: Collection[int],
    ) -> Plan:
        """What a call by position does with its `given` arrays. ArrayError where they do not fit."""
        sets = (output_indices, static_input_indices, intermediate_indices)
        key = given, *(None if indices is None else tuple(indices) for indices in sets)
        found = self._plans.get(key)
        if found is None:
            self._check_positions(given, *sets)
            once = {*static_input_indices, *intermediate_indices}
            wanted = {given - 1} if output_indices is None else set(output_indices)
            found = self._plans[key] = Plan(
                tuple(slot for slot in range(given) if slot not in once), tuple(sorted(once)), wanted
            )
        return found

    def write_positions(self, plan: Plan, arrays: Sequence[Array]) -> None:
        """Write the arrays of one call by position, those that are written once where nobody has."""
        for slot in plan.every:
            self.write(slot, arrays[slot])
        if not plan.is_begun:
            for slot in plan.once:
                if not self._buffers[slot].written:
                    self.write(slot, arrays[slot])
            plan.is_begun = True

    def results_at(self, plan: Plan, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """An array for each of `arrays`: what the program left where the plan wants it, else an empty one."""
        results = []
        for slot, array in enumerate(arrays):
            results.append(self.read(slot) if slot in plan.wanted else np.empty(0, dtype=array.dtype))
        return tuple(results)

    def lend(self, slot: int) -> Array:
        """The host's view on an argument, to be filled in place before the next call."""
        buffer = self._buffers[slot]
        buffer.lent = buffer.written = True
        BufferSet.loans += 1
        return buffer.view

    def write_named(self, arrays: Mapping[str, Array]) -> None:
        """Write the arrays of one call by name: every input, and weights only where none were written."""
        for name, array in arrays.items():
            self.write(self._writable(name), array)
        self._check_complete(arrays)

    def missing(self, arrays: Mapping[str, Array]) -> dict[int, Array]:
        """Those of a call's inputs, by slot, that are not in their buffers already; raises as write_named."""
        slots = {self._writable(name): array for name, array in arrays.items()}
        if not self._inputs.issuperset(slots):
            once = ", ".join(self._names[slot] for slot in slots if slot not in self._inputs)
            raise ArrayError(
                f"{self.label}: {once} would be written once and never again; preload() it before this call "
                "is noted"
            )
        self._check_complete(arrays)
        return {slot: array for slot, array in slots.items() if self.lacks(slot, array)}

    def view(self, slot: int) -> Array:
        """The host's view on an argument, writable, for whoever knows when the device looks at it."""
        return self._buffers[slot].view

    def result(self, slot: int) -> Array:
        """A read-only view on an argument as the host last saw it; `read` makes it see what a run left."""
        return self._buffers[slot].result

    def bytes_moved(self, written: Collection[int], read: Collection[int], unread: Collection[str]) -> int:
        """What a call moves between host and device that writes and reads these slots."""
        seen = [slot for slot in read if not (self._names[slot] in unread and self._buffers[slot].shared)]
        return sum(self._nbytes[slot] for slot in (*written, *seen))

    @property
    def is_open(self) -> bool:
        """Whether it has its buffers: until `close`."""
        return bool(self._buffers)

    def execute(self) -> None:
        """Run the program to its end. RunError unless it completed; then the next call loads it afresh."""
        if self._lent or self._loans_seen != BufferSet.loans:
            self._take_over_lent()
        contexts = self._contexts
        program = contexts.load(self._artifact)
        try:
            self._run_to_its_end(program)
        except DEVICE_ERRORS as error:
            let_go(error)
            raise self.failed(error) from error
        except BaseException:  # Ctrl-C: leave a device and a set that run on
            try:
                if self.label in program.runs:
                    contexts.access.settle(program.runs[self.label])
            finally:
                contexts.release(self._artifact)
            raise
        self.completed()

    def loaded_run(self) -> Any:
        """The run of this set, its program loaded. RunError where that cannot be."""
        program = self._contexts.load(self._artifact)
        try:
            return self._run_on(program)
        except DEVICE_ERRORS as error:
            let_go(error)
            raise self.failed(error) from error

    def completed(self) -> None:
        """Note that the program ran to its end, by whichever way."""
        self._contexts.last_completed = self.label

    def failed(self, error: BaseException) -> RunError:
        """The error that tells of a run that failed; the next call loads the program afresh."""
        self._contexts.release(self._artifact)
        before = self._contexts.last_completed
        failure = Failure(self.label, error, self._artifact, self.arguments, before)
        return self._contexts.access.explain(failure)

    def read(self, slot: int) -> Array:
        """A read-only view on what the program left in an argument; the next call overwrites it."""
        self._sync(slot, self._from_device)
        return self._buffers[slot].result

    def results(self, slots: Collection[int], copy: bool, unread: Collection[str]) -> dict[str, Array]:
        """What the program left in these slots, by name: copies or views, of `unread` as `_leave` says."""
        results = {}
        for slot in slots:
            name = self._names[slot]
            found = self._leave(slot) if name in unread and not copy else self.read(slot)
            results[name] = found.copy() if copy else found
        return results

    def close(self) -> None:
        """Release the run and the buffers. Views of `read` and `lend` are dead once nobody shares them."""
        self._contexts.forget_run(self._artifact, self.label)
        self._buffers.clear()

    def _leave(self, slot: int) -> Array:
        """As `read`, but a buffer that is shared is not brought to the host: its next reader is a program."""
        buffer = self._buffers[slot]
        return buffer.result if buffer.shared else self.read(slot)

    def _run_to_its_end(self, program: LoadedProgram) -> None:
        run = self._run_on(program)
        run.start()
        self._contexts.access.wait(run)

    def _run_on(self, program: LoadedProgram) -> Any:
        """The run of this set on the loaded program; a new one where the program was loaded since."""
        run = program.runs.get(self.label)
        if run is None:
            run = program.runs[self.label] = self._contexts.new_run(program)
            for slot, buffer in enumerate(self._buffers):
                run.set_arg(slot, buffer.bo)
        return run

    def _sync(self, slot: int, direction: Any) -> None:
        self.moved += self._nbytes[slot]
        try:
            self._buffers[slot].bo.sync(direction)  # by no name of ours: an error that is kept keeps it
        except DEVICE_ERRORS as error:
            let_go(error)
            what = f"{self.label}: {self.arguments[slot]} cannot be synchronised"
            raise self._contexts.access.failed(what, error) from error

    def _take_over_lent(self) -> None:
        if self._loans_seen != BufferSet.loans:
            self._loans_seen = BufferSet.loans
            self._lent = [slot for slot, buffer in enumerate(self._buffers) if buffer.lent]
        for slot in tuple(self._lent):
            self._sync(slot, self._to_device)
            if slot not in self._inputs:  # weights are filled once, inputs before every call
                self._buffers[slot].lent = False
                self._lent.remove(slot)

    def _writable(self, name: str) -> int:
        """The slot of an argument that a call by name may pass; ArgumentError and ArrayError for others."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self.slot(name)
        if slot not in self._inputs:
            self._check_role(slot)
        return slot

    def _check_complete(self, given: Mapping[str, Array]) -> None:
        """ArrayError where a call would run without an input, a weight or a table."""
        if not given.keys() >= self._input_names:
            self._check_inputs(given)
        if not self._filled:
            self._check_filled()

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

    def _check_inputs(self, given: Collection[str]) -> None:
        missing = sorted(
            slot for slot in self._inputs if self._names[slot] not in given and not self._buffers[slot].lent
        )
        if missing:
            names = ", ".join(str(self.arguments[slot]) for slot in missing)
            raise ArrayError(f"{self.label} needs {names}; an input is passed in every call")

    def _check_filled(self) -> None:
        if missing := self.unfilled:
            raise ArrayError(
                f"{self.label}: {', '.join(missing)} never written; pass them in the first call, or preload "
                "them once"
            )
        self._filled = True

    def _check_positions(self, given: int, *index_sets: Collection[int] | None) -> None:
        wanted = len(self.arguments)
        if given != wanted:
            raise ArrayError(
                f"{self.label} takes {wanted} arrays and was given {given}; pass one per argument"
            )
        for slot in (slot for indices in index_sets for slot in indices or ()):
            if not 0 <= slot < wanted:
                raise ArrayError(f"{self.label} has no slot {slot}; its {wanted} slots count from 0")

    def _misfit(self, slot: int, array: Array) -> ArrayError:
        argument = self.arguments[slot]
        given = f"{'x'.join(map(str, array.shape))} {array.dtype}"
        return ArrayError(
            f"{self.label}: {argument.role.value} {argument} was given {given}; "
            f"pass shape {argument.shape} and dtype {np.dtype(argument.dtype.numpy)}"
        )
