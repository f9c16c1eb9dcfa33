"""One set of buffer objects: a program's arguments on the device, under one key."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kernel_builder.arguments import Argument, ArgumentTable, Role
from runtime.contexts import LoadedProgram
from runtime.errors import ArrayError, RunError

Array = npt.NDArray[Any]

OVERWRITTEN = frozenset({Role.INTERMEDIATE, Role.OUTPUT})


class BufferSet:
    """A buffer object per argument, the host's view on each, and one run bound to all of them.

    Not for two threads at once: a set belongs to one call at a time.
    """

    def __init__(
        self, label: str, pyxrt: Any, device: Any, program: LoadedProgram, arguments: ArgumentTable
    ) -> None:
        self.label = label
        self.arguments = arguments
        self._pyxrt, self._program = pyxrt, program
        self._to_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
        self._from_device = pyxrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE
        self._completed = pyxrt.ert_cmd_state.ERT_CMD_STATE_COMPLETED
        self._slots = {name: slot for slot, name in enumerate(arguments.names)}
        self._bos = [self._allocate(device, argument) for argument in arguments]
        self._views = [_view(bo, argument) for bo, argument in zip(self._bos, arguments, strict=True)]
        self._results = [_read_only(view) for view in self._views]
        self._run = self._bind()
        self.outputs = arguments.output_indices
        self.written: set[int] = set()
        self._missing_statics = set(arguments.static_input_indices)
        self._inputs = {slot for slot, argument in enumerate(arguments) if argument.role is Role.INPUT}
        self._lent: set[int] = set()

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
        self._bos[slot].sync(self._to_device)
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
        """Run the program to its end. RunError unless it completed."""
        if self._lent:
            self._take_over_lent()
        try:
            self._run.start()
            state = self._run.wait2()
        except RuntimeError as error:
            self._renew_run()
            raise RunError(f"{self.label} failed: {error}") from error
        except BaseException:
            self._renew_run()  # Ctrl-C: let the device finish, and leave a set that runs again
            raise
        if state is not None and state != self._completed:  # pyxrt's wait2 gives None, some builds a state
            self._renew_run()
            raise RunError(f"{self.label} ended in {state} instead of ERT_CMD_STATE_COMPLETED")

    def read(self, slot: int) -> Array:
        """A read-only view on what the program left in an argument; the next call overwrites it."""
        self._bos[slot].sync(self._from_device)
        return self._results[slot]

    def close(self) -> None:
        """Release the run and the buffer objects. Views of `read` and `lend` are dead afterwards."""
        self._run = None
        self._views.clear()
        self._results.clear()
        self._bos.clear()

    def _allocate(self, device: Any, argument: Argument) -> Any:
        try:
            return self._pyxrt.ext.bo(device, argument.nbytes)
        except RuntimeError as error:
            raise RunError(f"{self.label}: no buffer object for {argument}: {error}") from error

    def _bind(self) -> Any:
        run = self._pyxrt.run(self._program.kernel)
        for slot, bo in enumerate(self._bos):
            run.set_arg(slot, bo)
        return run

    def _renew_run(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._run.wait()
        self._run = self._bind()

    def _take_over_lent(self) -> None:
        statics = self.arguments.static_input_indices
        for slot in self._lent:
            self._bos[slot].sync(self._to_device)
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
