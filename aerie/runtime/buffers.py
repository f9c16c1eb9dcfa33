"""Buffer objects (BOs): those of one device, and the sets that hold a program's arguments under one
bo_key."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from aerie.common.knobs import is_plain
from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES, STATIC_ROLES, Argument, ArgumentTable, Role
from aerie.runtime.artifacts import Artifact
from aerie.runtime.device import DEVICE_ERRORS, BoundRun, Contexts, Failure, LoadedProgram, clear_frames
from aerie.runtime.errors import ArrayError, RunError
from aerie.virtual_npu.cancellation import check_not_stopped

Array: TypeAlias = npt.NDArray[Any]

Sharing: TypeAlias = Mapping[tuple[str, str], str]
"""Which arguments lie in one buffer object: (bo_key, argument name) -> the buffer object's name.

Arguments that are not in it have a buffer object of their own. What one program writes to a shared one is
where the next program reads it: nothing passes through the host. It may grow: it is looked into when a set is
made.
"""

NOTHING_SHARED: Sharing = {}

Static: TypeAlias = Array | Callable[[Array], None]
"""What a weight or table is filled with: an array, or a function that is given the buffer and fills it."""


def effective(sharing: Sharing) -> Sharing:
    """The sharing that is in force: none where AERIE_PLAIN lists `buffers`."""
    return NOTHING_SHARED if is_plain("buffers") else sharing


class Buffer:
    """A buffer object that holds one argument, of one set or of several that share it.

    `label` names the set it was made for, in errors. `view`: its memory as an array of the argument's shape
    and dtype, writable; `result`: the same, read-only, which is handed out. `written`: the host has filled
    it, through any set. `in_place`: the next run takes what the host has put into `view`. `shared`: other
    sets may use it too.
    """

    def __init__(self, label: str, bo: Any, argument: Argument, shared: bool = False) -> None:
        self.label, self.bo, self.argument, self.shared = label, bo, argument, shared
        self.view = _view(bo, argument)
        self.result = self.view.view()
        self.result.flags.writeable = False
        self.written = self.in_place = False


class Buffers:
    """Makes the buffers of one device, and finds a shared one again for as long as a set holds it.

    `buffer_object(label, argument)` gives a buffer object for an argument of the set `label`. Nothing is
    shared where AERIE_PLAIN lists `buffers`.
    """

    def __init__(self, buffer_object: Callable[[str, Argument], Any], sharing: Sharing) -> None:
        self._buffer_object = buffer_object
        self._sharing = effective(sharing)
        self._shared: WeakValueDictionary[str, Buffer] = WeakValueDictionary()
        self._arrays: dict[str, Buffer] = {}

    def array(self, name: str, argument: Argument) -> Array:
        """A writable view on the buffer object `name`, which stays until `clear`, whatever sets share it.

        The argument tells shape and dtype. RunError where there is none to be had, ArrayError where there is
        one of another shape.
        """
        found = self._arrays.get(name)
        if found is None:
            bo = self._buffer_object(f"array '{name}'", argument)
            found = self._arrays[name] = self._shared[name] = Buffer(name, bo, argument, shared=True)
            found.in_place = True
            BufferSet.note_view()
        _check_alike(found, f"array '{name}'", argument, name)
        return found.view

    def clear(self) -> None:
        """Give up the arrays. Views on them are dead."""
        self._arrays.clear()

    def of(self, label: str, bo_key: str, argument: Argument) -> Buffer:
        """The buffer for an argument of the set `bo_key`; `label` names the set in errors.

        Raises RunError where there is none to be had, ArrayError where two that differ would share one.
        """
        name = self._sharing.get((bo_key, argument.name))
        if name is None:
            return Buffer(label, self._buffer_object(label, argument), argument)
        found = self._shared.get(name)
        if found is None:
            bo = self._buffer_object(label, argument)
            found = self._shared[name] = Buffer(label, bo, argument, shared=True)
        _check_alike(found, label, argument, name)
        return found


def _check_alike(found: Buffer, label: str, argument: Argument, name: str) -> None:
    """Refuse what cannot share: other shapes, or one filled once and one written in every call."""
    other = found.argument
    if (other.shape, other.dtype) != (argument.shape, argument.dtype):
        differs = "shapes and dtypes differ"
    elif (other.role in STATIC_ROLES) != (argument.role in STATIC_ROLES):
        differs = f"{argument.role.value} and {other.role.value} differ in when they are written"
    else:
        return
    raise ArrayError(
        f"{label}: {argument} cannot share buffer '{name}' with {other} of {found.label}: {differs}; "
        "mend the table of shared buffers"
    )


def _view(bo: Any, argument: Argument) -> Array:
    data = np.frombuffer(bo.map(), dtype=np.uint8)[: argument.nbytes]
    typed: Array = data.view(argument.dtype.numpy)
    return typed.reshape(argument.shape)


@dataclass(frozen=True)
class Positions:
    """Slots of a call by position: written in `every` call, written `once`, and `wanted` back."""

    every: tuple[int, ...]
    once: tuple[int, ...]
    wanted: tuple[int, ...]


class BufferSet:
    """A buffer per argument of a program, and the run (XRT's) that is bound to all of them.

    The run belongs to the loaded program and goes when that is released; the buffers stay until `close`, with
    what is in them, those that other sets share for as long as one of these is open. Not for two threads at
    once: a set belongs to one call at a time, and so do all that share its buffers. `allocate` gives each
    argument its buffer; what it raises is raised. `moved` counts the bytes that the host has written to the
    device and read from it. `nothing` has an empty array of each argument's dtype.
    """

    views_given: ClassVar[int] = 0
    """Of the last writable view that was given out, of any set; while that stays, no further buffer is
    `in_place`. No two have the same number, in whatever threads models run."""
    _numbers: ClassVar[Iterator[int]] = itertools.count(1)

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
        self.names = tuple(arguments.names)
        self._slots = {name: slot for slot, name in enumerate(arguments.names)}
        self._statics = sorted(arguments.static_input_indices)
        self._inputs = {slot for slot, argument in enumerate(arguments) if argument.role is Role.INPUT}
        self._nbytes = tuple(argument.nbytes for argument in arguments)
        self._filled = False  # all weights and tables, once and for all
        self._views_known = -1
        self._in_place: list[int] = []
        self._positions: dict[Hashable, Positions] = {}
        self._buffers: list[Buffer] = []
        try:
            self._buffers.extend(map(allocate, arguments))
        except BaseException:
            self.close()
            raise
        self._forms = [(buffer.view.shape, buffer.view.dtype) for buffer in self._buffers]
        self.nothing: list[Array] = [np.empty(0, dtype) for _, dtype in self._forms]

    def slot(self, name: str) -> int:
        """The slot of an argument; ArgumentError with the nearest names where there is none."""
        found = self._slots.get(name)
        return self.arguments.slot(name) if found is None else found

    def write(self, slot: int, array: Array) -> None:
        """Copy one array to the device. ArrayError unless shape and dtype are the argument's.

        A view on this very buffer, which another program or the host may have filled, is not copied.
        """
        if self.must_be_copied(slot, array):
            buffers = self._buffers  # no single one in a variable: an error that is kept keeps those
            buffers[slot].view[...] = array
            self._sync(slot, self._to_device)
            buffers[slot].written = True

    def must_be_copied(self, slot: int, array: Array) -> bool:
        """Whether an array for this slot is no view on its buffer. ArrayError unless shape and dtype fit."""
        buffers = self._buffers
        if array is buffers[slot].result or (buffers[slot].in_place and array is buffers[slot].view):
            return False
        shape, dtype = self._forms[slot]
        if array.shape != shape or array.dtype != dtype:
            raise self._misfit(slot, array)
        return True

    def fill(self, slot: int, static: Static) -> None:
        """Write a weight or table to the device: an array, or what a function puts into the buffer."""
        if isinstance(static, np.ndarray):
            self.write(slot, static)
            return
        static(self._buffers[slot].view)
        self._sync(slot, self._to_device)
        self._buffers[slot].written = True

    @property
    def unfilled(self) -> list[str]:
        """Weights and tables that the host has not filled, through this set or one that shares them."""
        return [self.names[slot] for slot in self._statics if not self._buffers[slot].written]

    def positions(
        self,
        given: int,
        output_indices: Collection[int] | None,
        static_input_indices: Collection[int],
        intermediate_indices: Collection[int],
    ) -> Positions:
        """What a call by position does with its `given` arrays. ArrayError where they do not fit."""
        outputs = None if output_indices is None else tuple(output_indices)
        key = given, outputs, tuple(static_input_indices), tuple(intermediate_indices)
        found = self._positions.get(key)
        if found is None:
            self._check_positions(given, *key[1:])
            once = {*static_input_indices, *intermediate_indices}
            wanted = {given - 1} if outputs is None else set(outputs)
            every = (slot for slot in range(given) if slot not in once)
            found = self._positions[key] = Positions(tuple(every), tuple(sorted(once)), tuple(wanted))
        return found

    def writable_view(self, slot: int) -> Array:
        """A writable view on an argument, to be filled in place: each run takes an input from it, the next
        run a weight or table."""
        buffer = self._buffers[slot]
        buffer.in_place = buffer.written = True
        self.note_view()
        return buffer.view

    @classmethod
    def note_view(cls) -> None:
        """A writable view is given out."""
        cls.views_given = next(cls._numbers)

    def slots(self, arrays: Mapping[str, Array]) -> dict[int, Array]:
        """The arrays of a call, from names to slots: every input, and weights only where they were not
        written.

        Raises ArgumentError for a name that is no argument, ArrayError for one that may not be given, and
        where one is missing.
        """
        found, inputs = {}, self._inputs
        for name, array in arrays.items():
            slot = self._slots.get(name)
            found[slot if slot in inputs else self._writable(name)] = array
        if not found.keys() >= inputs:
            self._check_inputs(found)
        if not self._filled:
            self._check_filled(found)
        return found

    def refuse_statics(self, slots: Collection[int]) -> None:
        """ArrayError where a call that is to be repeated would write weights or tables."""
        if once := [self.names[slot] for slot in slots if slot not in self._inputs]:
            raise ArrayError(
                f"{self.label}: {', '.join(once)} would be written once and never again; preload() it before "
                "this call is noted"
            )

    def is_written(self, slot: int) -> bool:
        """Whether the host has filled the argument's buffer, through this set or one that shares it."""
        return self._buffers[slot].written

    def view(self, slot: int) -> Array:
        """The host's view on an argument, for a copy into it just before the device reads it."""
        return self._buffers[slot].view

    def result(self, slot: int) -> Array:
        """A read-only view on an argument, without a transfer: `read` brings what a run left to it."""
        return self._buffers[slot].result

    def bytes_moved(
        self, written: Collection[int], wanted: Collection[int], on_device: Collection[str]
    ) -> int:
        """Bytes that a call moves between host and device which writes and gives back these slots."""
        read = [slot for slot in wanted if not self._stays(slot, on_device)]
        return sum(self._nbytes[slot] for slot in (*written, *read))

    @property
    def is_open(self) -> bool:
        """Whether it has its buffers: until `close`."""
        return bool(self._buffers)

    def execute(self) -> None:
        """Run the program to its end. RunError unless it completed; then the next call loads it afresh.

        RunStopped, before it begins or in its middle, where this thread watches a Stop that is set.
        """
        check_not_stopped()
        if self._in_place or self._views_known != BufferSet.views_given:
            self._sync_in_place()
        contexts = self._contexts
        program = contexts.load(self._artifact)
        try:
            (program.runs.get(self.label) or self._bind(program)).execute()
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.failed(error) from error
        except BaseException:  # Ctrl-C: leave a device and a set that run on
            try:
                if self.label in program.runs:
                    contexts.access.settle(program.runs[self.label].run)
            finally:
                contexts.release(self._artifact)
            raise
        contexts.last_completed = self.label

    def bound_run(self) -> Any:
        """The run of this set, its program loaded. RunError where that cannot be."""
        program = self._contexts.load(self._artifact)
        try:
            return (program.runs.get(self.label) or self._bind(program)).run
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.failed(error) from error

    def completed(self) -> None:
        """Note that the program ran to its end."""
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

    def results(self, slots: Collection[int], copy: bool, on_device: Collection[str]) -> dict[str, Array]:
        """What the program left in these slots, by name: copies, or read-only views.

        A view of an argument named in `on_device` is not brought to the host if its buffer is shared: only
        programs may read it then.
        """
        results = {}
        for slot in slots:
            stays = on_device and not copy and self._stays(slot, on_device)
            found = self._buffers[slot].result if stays else self.read(slot)
            results[self.names[slot]] = found.copy() if copy else found
        return results

    def close(self) -> None:
        """Release the run and the buffers. Views on buffers are dead once no other set shares them."""
        self._contexts.forget_run(self._artifact, self.label)
        self._buffers.clear()

    def _stays(self, slot: int, on_device: Collection[str]) -> bool:
        return self.names[slot] in on_device and self._buffers[slot].shared

    def _bind(self, program: LoadedProgram) -> BoundRun:
        """The run of this set, for a program that was loaded since it had one."""
        bos = [buffer.bo for buffer in self._buffers]
        bound = program.runs[self.label] = self._contexts.new_run(program, bos)
        return bound

    def _sync(self, slot: int, direction: Any) -> None:
        self.moved += self._nbytes[slot]
        try:
            self._buffers[slot].bo.sync(direction)  # in no variable: an error that is kept keeps those
        except DEVICE_ERRORS as error:
            clear_frames(error)
            what = f"{self.label}: {self.arguments[slot]} cannot be synchronised"
            raise self._contexts.access.failed(what, error) from error

    def _sync_in_place(self) -> None:
        """Bring to the device what the host filled in place: inputs before every run, weights once."""
        if self._views_known != BufferSet.views_given:
            self._views_known = BufferSet.views_given
            self._in_place = [slot for slot, buffer in enumerate(self._buffers) if buffer.in_place]
        for slot in tuple(self._in_place):
            self._sync(slot, self._to_device)
            if slot not in self._inputs:
                self._buffers[slot].in_place = False
                self._in_place.remove(slot)

    def _writable(self, name: str) -> int:
        """The slot of a weight or table that a call may pass; ArgumentError and ArrayError for all else."""
        slot = self.slot(name)
        argument = self.arguments[slot]
        if argument.role in OVERWRITTEN_ROLES:
            raise ArrayError(
                f"{self.label}: {argument.name} is an {argument.role.value}, which the program overwrites; "
                "leave it out"
            )
        if self._buffers[slot].written:
            raise ArrayError(
                f"{self.label}: {argument.role.value} {argument.name} is on the device already and would "
                "not be written again; leave it out, replace it with preload(), or use another bo_key"
            )
        return slot

    def _check_inputs(self, given: Collection[int]) -> None:
        missing = sorted(
            slot for slot in self._inputs if slot not in given and not self._buffers[slot].in_place
        )
        if missing:
            names = ", ".join(str(self.arguments[slot]) for slot in missing)
            raise ArrayError(f"{self.label} needs {names}; an input is passed in every call")

    def _check_filled(self, given: Collection[int]) -> None:
        unfilled = [slot for slot in self._statics if not self._buffers[slot].written]
        if missing := [self.names[slot] for slot in unfilled if slot not in given]:
            raise ArrayError(
                f"{self.label}: {', '.join(missing)} never written; pass them in the first call, or preload "
                "them once"
            )
        self._filled = not unfilled

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
