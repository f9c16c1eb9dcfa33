"""Buffer objects (BOs): the buffers of one device, and the sets that hold a program's arguments for one
bo_key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from aerie.common.knobs import is_plain
from aerie.kernel_builder.arguments import STATIC_ROLES, WRITTEN_ROLES, Argument, ArgumentTable, Role
from aerie.runtime.artifacts import Artifact
from aerie.runtime.device import DEVICE_ERRORS, BoundRun, FailedRun, LoadedProgram, OpenDevice, clear_frames
from aerie.runtime.errors import ArrayError, RunError
from aerie.virtual_npu.cancellation import check_not_stopped

Array: TypeAlias = npt.NDArray[Any]

Sharing: TypeAlias = Mapping[tuple[str, str], str]
"""Which arguments share a buffer object: (bo_key, argument name) -> the buffer object's name.

An argument that is not listed has its own buffer object. The next program reads what the previous one wrote
to a shared buffer, without a copy through the host. Entries may be added later: a set reads them when it is
created.
"""

NOTHING_SHARED: Sharing = {}

Static: TypeAlias = Array | Callable[[Array], None]
"""The content of a weight or table: an array, or a function that fills the buffer it is given."""


def sharing_in_force(sharing: Sharing) -> Sharing:
    """The sharing in use: empty if AERIE_PLAIN lists `buffers`."""
    return NOTHING_SHARED if is_plain("buffers") else sharing


class ArgumentBuffer:
    """A buffer object that holds one argument, for one set or for several that share it.

    label: names the set that it was created for, in errors. view: the host's memory as a writable array of
    the argument's shape and dtype. result: the same memory, read-only, which callers get. written: the host
    has filled it, through any set. in_place: the next run uploads what the host wrote to `view`. shared:
    other sets may use it too.
    """

    def __init__(self, label: str, bo: Any, argument: Argument, shared: bool = False) -> None:
        self.label, self.bo, self.argument, self.shared = label, bo, argument, shared
        self.view = _view(bo, argument)
        self.result = self.view.view()
        self.result.flags.writeable = False
        self.written = self.in_place = False


class BufferAllocator:
    """Allocates the buffers of one device. A shared buffer lives as long as a set holds it.

    `buffer_object(label, argument)` allocates a buffer object for an argument of the set `label`. Nothing is
    shared if AERIE_PLAIN lists `buffers`.
    """

    def __init__(self, buffer_object: Callable[[str, Argument], Any], sharing: Sharing) -> None:
        self._buffer_object = buffer_object
        self._sharing = sharing_in_force(sharing)
        self._shared: WeakValueDictionary[str, ArgumentBuffer] = WeakValueDictionary()
        self._arrays: dict[str, ArgumentBuffer] = {}

    def array(self, name: str, argument: Argument) -> Array:
        """A writable view of the buffer object `name`, which lives until `clear`. The argument gives shape
        and dtype.

        Raises RunError if no buffer can be allocated, ArrayError if `name` exists with another shape.
        """
        buffer = self._arrays.get(name)
        if buffer is None:
            bo = self._buffer_object(f"array '{name}'", argument)
            buffer = self._arrays[name] = self._shared[name] = ArgumentBuffer(name, bo, argument, shared=True)
            buffer.in_place = True
            BufferSet.note_view()
        _check_can_share(buffer, f"array '{name}'", argument, name)
        return buffer.view

    def clear(self) -> None:
        """Release the arrays. Views of them must not be used afterwards."""
        self._arrays.clear()

    def for_argument(self, label: str, bo_key: str, argument: Argument) -> ArgumentBuffer:
        """The buffer for an argument of the set `bo_key`. label: names the set in errors.

        Raises RunError if no buffer can be allocated, ArrayError if two different arguments would share one.
        """
        name = self._sharing.get((bo_key, argument.name))
        if name is None:
            return ArgumentBuffer(label, self._buffer_object(label, argument), argument)
        buffer = self._shared.get(name)
        if buffer is None:
            bo = self._buffer_object(label, argument)
            buffer = self._shared[name] = ArgumentBuffer(label, bo, argument, shared=True)
        _check_can_share(buffer, label, argument, name)
        return buffer


def _check_can_share(existing: ArgumentBuffer, label: str, argument: Argument, name: str) -> None:
    """Raise ArrayError if two arguments cannot share: different shapes, or one is a weight and the other is
    not.
    """
    other = existing.argument
    if (other.shape, other.dtype) != (argument.shape, argument.dtype):
        differs = "shapes and dtypes differ"
    elif (other.role in STATIC_ROLES) != (argument.role in STATIC_ROLES):
        differs = f"{argument.role.value} and {other.role.value} differ in when they are written"
    else:
        return
    raise ArrayError(
        f"{label}: {argument} cannot share buffer '{name}' with {other} of {existing.label}: {differs}; "
        "mend the table of shared buffers"
    )


def _view(bo: Any, argument: Argument) -> Array:
    data = np.frombuffer(bo.map(), dtype=np.uint8)[: argument.nbytes]
    typed: Array = data.view(argument.dtype.numpy)
    return typed.reshape(argument.shape)


@dataclass(frozen=True)
class CallSlots:
    """What one call does, by slot: per_call slots are written each time, once slots only the first time;
    outputs are read back.
    """

    per_call: tuple[int, ...]
    once: tuple[int, ...]
    outputs: tuple[int, ...]


class BufferSet:
    """A buffer for each argument of a program, and the XRT run that is bound to them.

    The run belongs to the loaded program and is dropped when that is released. The buffers and their contents
    live until `close`; shared ones as long as one of their sets is open. Not thread-safe: a set and all that
    share its buffers belong to one call at a time. `allocate` creates the buffer of an argument; its errors
    are passed on. moved: bytes written to the device and read from it. nothing: an empty array of each
    argument's dtype.
    """

    views_given: ClassVar[int] = 0
    """Number of the last writable view that any set returned, unique across threads. While it does not
    change, no further buffer becomes `in_place`.
    """
    _numbers: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(
        self,
        label: str,
        pyxrt: Any,
        contexts: OpenDevice,
        artifact: Artifact,
        arguments: ArgumentTable,
        allocate: Callable[[Argument], ArgumentBuffer],
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
        self._positions: dict[Hashable, CallSlots] = {}
        self._buffers: list[ArgumentBuffer] = []
        try:
            self._buffers.extend(map(allocate, arguments))
        except BaseException:
            self.close()
            raise
        self._forms = [(buffer.view.shape, buffer.view.dtype) for buffer in self._buffers]
        self.nothing: list[Array] = [np.empty(0, dtype) for _, dtype in self._forms]

    def slot(self, name: str) -> int:
        """The slot of an argument. Raises ArgumentTableError, with the nearest names, if there is none."""
        slot = self._slots.get(name)
        return self.arguments.slot(name) if slot is None else slot

    def write(self, slot: int, array: Array) -> None:
        """Copy an array to the device. Raises ArrayError unless shape and dtype are the argument's.

        A view of this buffer itself, filled by another program or the host, is not copied.
        """
        if self.needs_copy(slot, array):
            buffers = self._buffers  # no single one in a variable: an error that is kept keeps those
            buffers[slot].view[...] = array
            self._sync(slot, self._to_device)
            buffers[slot].written = True

    def needs_copy(self, slot: int, array: Array) -> bool:
        """Whether an array is not a view of this slot's buffer. Raises ArrayError unless shape
        and dtype fit.
        """
        buffers = self._buffers
        if array is buffers[slot].result or (buffers[slot].in_place and array is buffers[slot].view):
            return False
        shape, dtype = self._forms[slot]
        if array.shape != shape or array.dtype != dtype:
            raise self._misfit(slot, array)
        return True

    def fill(self, slot: int, weight: Static) -> None:
        """Write a weight or table to the device: an array, or what a function puts into the buffer."""
        if isinstance(weight, np.ndarray):
            self.write(slot, weight)
            return
        weight(self._buffers[slot].view)
        self._sync(slot, self._to_device)
        self._buffers[slot].written = True

    @property
    def unfilled(self) -> list[str]:
        """Weights and tables that the host has not filled yet, through this set or one that shares them."""
        return [self.names[slot] for slot in self._statics if not self._buffers[slot].written]

    def positions(
        self,
        count: int,
        output_indices: Collection[int] | None,
        static_input_indices: Collection[int],
        intermediate_indices: Collection[int],
    ) -> CallSlots:
        """What a call by position does with its `given` arrays. Raises ArrayError if they do not fit."""
        outputs = None if output_indices is None else tuple(output_indices)
        key = count, outputs, tuple(static_input_indices), tuple(intermediate_indices)
        slots = self._positions.get(key)
        if slots is None:
            self._check_positions(count, *key[1:])
            once = {*static_input_indices, *intermediate_indices}
            output_slots = {count - 1} if outputs is None else set(outputs)
            every = (slot for slot in range(count) if slot not in once)
            slots = self._positions[key] = CallSlots(tuple(every), tuple(sorted(once)), tuple(output_slots))
        return slots

    def writable_view(self, slot: int) -> Array:
        """A writable view of an argument, to be filled in place. Each run uploads an input; the next run
        uploads a weight or table once.
        """
        buffer = self._buffers[slot]
        buffer.in_place = buffer.written = True
        self.note_view()
        return buffer.view

    @classmethod
    def note_view(cls) -> None:
        """Count a writable view that a caller received."""
        cls.views_given = next(cls._numbers)

    def slots(self, arrays: Mapping[str, Array]) -> dict[int, Array]:
        """The arrays of a call by slot. Every input is required; a weight only if it was not written yet.

        Raises ArgumentTableError if a name is no argument, ArrayError if an array is missing or not allowed.
        """
        by_slot, inputs = {}, self._inputs
        for name, array in arrays.items():
            slot = self._slots.get(name)
            by_slot[slot if slot in inputs else self._writable(name)] = array
        if not by_slot.keys() >= inputs:
            self._check_inputs(by_slot)
        if not self._filled:
            self._check_filled(by_slot)
        return by_slot

    def require_no_weights(self, slots: Collection[int]) -> None:
        """Raise ArrayError if a recorded call would write weights or tables."""
        if once := [self.names[slot] for slot in slots if slot not in self._inputs]:
            raise ArrayError(
                f"{self.label}: {', '.join(once)} would be written once and never again; preload() it before "
                "this call is noted"
            )

    def is_written(self, slot: int) -> bool:
        """Whether the host has filled the argument's buffer, through this set or one that shares it."""
        return self._buffers[slot].written

    def view(self, slot: int) -> Array:
        """The host's view of an argument, into which data is copied just before the device reads it."""
        return self._buffers[slot].view

    def result(self, slot: int) -> Array:
        """A read-only view of an argument, without a transfer from the device; `read` makes the transfer."""
        return self._buffers[slot].result

    def bytes_moved(
        self, inputs: Collection[int], outputs: Collection[int], on_device: Collection[str]
    ) -> int:
        """Bytes that a call moves between host and device if it writes `inputs` and reads
        `outputs` (slots).
        """
        read = [slot for slot in outputs if not self._stays(slot, on_device)]
        return sum(self._nbytes[slot] for slot in (*inputs, *read))

    @property
    def is_open(self) -> bool:
        """Whether the set has buffers: until `close`."""
        return bool(self._buffers)

    def execute(self) -> None:
        """Run the program to its end. Raises RunError unless it completes; the next call then reloads the
        program.

        Raises RunStopped, before or during the run, if this thread watches a Stop that is set.
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
            raise self.run_error(error) from error
        except BaseException:  # Ctrl-C: leave a device and a set that run on
            try:
                if self.label in program.runs:
                    contexts.access.wait_interrupted(program.runs[self.label].run)
            finally:
                contexts.release(self._artifact)
            raise
        contexts.last_completed = self.label

    def bound_run(self) -> Any:
        """The run of this set, with its program loaded. Raises RunError if loading fails."""
        program = self._contexts.load(self._artifact)
        try:
            return (program.runs.get(self.label) or self._bind(program)).run
        except DEVICE_ERRORS as error:
            clear_frames(error)
            raise self.run_error(error) from error

    def mark_completed(self) -> None:
        """Note that the program ran to its end."""
        self._contexts.last_completed = self.label

    def run_error(self, error: BaseException) -> RunError:
        """The error for a failed run. The next call reloads the program."""
        self._contexts.release(self._artifact)
        before = self._contexts.last_completed
        failure = FailedRun(self.label, error, self._artifact, self.arguments, before)
        return self._contexts.access.explain(failure)

    def read(self, slot: int) -> Array:
        """A read-only view of an argument after a run. The next call overwrites it."""
        self._sync(slot, self._from_device)
        return self._buffers[slot].result

    def results(self, slots: Collection[int], copy: bool, on_device: Collection[str]) -> dict[str, Array]:
        """The contents of these slots after a run, by name: copies, or read-only views.

        A view of an argument in `on_device` is not transferred to the host if its buffer is shared: only
        programs may read it then.
        """
        results = {}
        for slot in slots:
            stays = on_device and not copy and self._stays(slot, on_device)
            result = self._buffers[slot].result if stays else self.read(slot)
            results[self.names[slot]] = result.copy() if copy else result
        return results

    def close(self) -> None:
        """Release the run and the buffers. Views must not be used once no other set shares their buffers."""
        self._contexts.forget_run(self._artifact, self.label)
        self._buffers.clear()

    def _stays(self, slot: int, on_device: Collection[str]) -> bool:
        return self.names[slot] in on_device and self._buffers[slot].shared

    def _bind(self, program: LoadedProgram) -> BoundRun:
        """The run of this set, for a program that was loaded after the last run."""
        bos = [buffer.bo for buffer in self._buffers]
        bound = program.runs[self.label] = self._contexts.new_run(program, bos)
        return bound

    def _sync(self, slot: int, direction: Any) -> None:
        self.moved += self._nbytes[slot]
        try:
            self._buffers[slot].bo.sync(direction)  # in no variable: an error that is kept keeps those
        except DEVICE_ERRORS as error:
            clear_frames(error)
            action = f"{self.label}: {self.arguments[slot]} cannot be synchronised"
            raise self._contexts.access.device_error(action, error) from error

    def _sync_in_place(self) -> None:
        """Upload what the host filled in place: inputs before every run, weights once."""
        if self._views_known != BufferSet.views_given:
            self._views_known = BufferSet.views_given
            self._in_place = [slot for slot, buffer in enumerate(self._buffers) if buffer.in_place]
        for slot in tuple(self._in_place):
            self._sync(slot, self._to_device)
            if slot not in self._inputs:
                self._buffers[slot].in_place = False
                self._in_place.remove(slot)

    def _writable(self, name: str) -> int:
        """The slot of a weight or table that a call may pass. Raises ArgumentTableError or ArrayError for
        others.
        """
        slot = self.slot(name)
        argument = self.arguments[slot]
        if argument.role in WRITTEN_ROLES:
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

    def _check_inputs(self, passed: Collection[int]) -> None:
        missing = sorted(
            slot for slot in self._inputs if slot not in passed and not self._buffers[slot].in_place
        )
        if missing:
            names = ", ".join(str(self.arguments[slot]) for slot in missing)
            raise ArrayError(f"{self.label} needs {names}; an input is passed in every call")

    def _check_filled(self, passed: Collection[int]) -> None:
        unfilled = [slot for slot in self._statics if not self._buffers[slot].written]
        if missing := [self.names[slot] for slot in unfilled if slot not in passed]:
            raise ArrayError(
                f"{self.label}: {', '.join(missing)} never written; pass them in the first call, or preload "
                "them once"
            )
        self._filled = not unfilled

    def _check_positions(self, count: int, *index_sets: Collection[int] | None) -> None:
        expected = len(self.arguments)
        if count != expected:
            raise ArrayError(f"{self.label} takes {expected} arrays and got {count}; pass one per argument")
        for slot in (slot for indices in index_sets for slot in indices or ()):
            if not 0 <= slot < expected:
                raise ArrayError(f"{self.label} has no slot {slot}; its {expected} slots count from 0")

    def _misfit(self, slot: int, array: Array) -> ArrayError:
        argument = self.arguments[slot]
        actual = f"{'x'.join(map(str, array.shape))} {array.dtype}"
        return ArrayError(
            f"{self.label}: {argument.role.value} {argument} was given {actual}; "
            f"pass shape {argument.shape} and dtype {np.dtype(argument.dtype.numpy)}"
        )
