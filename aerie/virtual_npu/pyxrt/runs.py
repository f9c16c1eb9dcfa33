"""Kernels, runs and lists of runs: an entry of a program with its arguments, started and waited for."""

from __future__ import annotations

import difflib
import math
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import cast

import numpy as np
import numpy.typing as npt

from aerie.virtual_npu.library import EntryCall
from aerie.virtual_npu.pyxrt.objects import (
    FIRST_ARGUMENT,
    BufferObject,
    ExtBufferObject,
    HwContext,
    Module,
    RunQueue,
    XrtError,
    ert_cmd_state,
    make_reference,
)

KERNEL_PREFIX = "main:"
"""A full ELF has one device named `main`; its runtime sequences are XRT's kernels `main:SEQUENCE`."""

SCRATCHPAD_BYTES = 128

NEW = ert_cmd_state.ERT_CMD_STATE_NEW
QUEUED = ert_cmd_state.ERT_CMD_STATE_QUEUED
COMPLETED = ert_cmd_state.ERT_CMD_STATE_COMPLETED
ERROR = ert_cmd_state.ERT_CMD_STATE_ERROR
ABORT = ert_cmd_state.ERT_CMD_STATE_ABORT
TIMEOUT = ert_cmd_state.ERT_CMD_STATE_TIMEOUT

INTEGER = re.compile(r"u?i\d+$|index$")


def itemsize(dtype: str) -> int:
    """Bytes of an MLIR scalar type: `bf16`, `f32`, `ui8`, `i1`, `index`, ..."""
    return 8 if dtype == "index" else max(8, int(dtype.lstrip("buif"))) // 8


class XrtKernel:
    """An entry of the program, named `main:ENTRY`; of an xclbin, the first one by any name."""

    first_argument = 0

    def __init__(self, context: HwContext, name: str) -> None:
        if not isinstance(context, HwContext):
            raise XrtError(f"kernel wants (pyxrt.hw_context, name), not a {type(context).__name__}")
        self.get_context = make_reference(
            context,
            context.strict,
            f"the hw_context of kernel '{name}' was destroyed while the kernel is in use; destroy buffers, "
            "then kernel, then context, then elf, then device",
        )
        entries = context.get_elf().library.entries
        if context.is_xclbin:
            self.first_argument = FIRST_ARGUMENT
            name = KERNEL_PREFIX + next(iter(entries))
        self.entry = name[len(KERNEL_PREFIX) :]
        if not name.startswith(KERNEL_PREFIX) or self.entry not in entries:
            raise XrtError(_no_such_kernel(name, entries))
        self.name = name
        self.arguments = entries[self.entry].arguments
        self.has_scratchpad = entries[self.entry].has_scratchpad

    def group_id(self, argument: int) -> int:  # noqa: ARG002
        """The memory of an argument; here there is one for all."""
        return 0

    def __call__(self, *arguments: BufferObject | int) -> Run:
        """A started run with these arguments."""
        run = Run(self)
        for index, argument in enumerate(arguments):
            run.set_arg(index, argument)
        run.start()
        return run


class ExtKernel(XrtKernel):
    """`ext.kernel(context, "main:ENTRY")`: the kernel of the ELF flow; or, with a module before the name, of
    an xclbin."""

    def __init__(self, context: HwContext, module: Module | str, name: str = "") -> None:
        super().__init__(context, module if isinstance(module, str) else name)


class Run:
    """One call of a kernel: set every argument, start, wait. It may be started again once it has ended."""

    def __init__(self, kernel: XrtKernel) -> None:
        if not isinstance(kernel, XrtKernel):
            raise XrtError(f"run wants a pyxrt.kernel, not a {type(kernel).__name__}")
        strict = kernel.get_context().strict
        self._kernel = make_reference(
            kernel, strict, f"the kernel '{kernel.name}' was destroyed before its run; keep it alive"
        )
        self._name, self.strict = kernel.name, strict
        self._queue = kernel.get_context().get_device().queue
        self._addresses: list[int | None] = [None] * len(kernel.arguments)
        self._call: EntryCall | None = None
        self._held: dict[int, Callable[[], object]] = {}
        self._state = NEW
        self._failure: BaseException | None = None
        self._in_list = False
        if kernel.has_scratchpad:
            self._scratchpad = ExtBufferObject(kernel.get_context().get_device(), SCRATCHPAD_BYTES)
            self._addresses[-1] = self._scratchpad.address()

    def get_ctrl_scratchpad_bo(self) -> BufferObject:
        """What the host gives cores and descriptors of a run: 32 words."""
        if not self._kernel().has_scratchpad:
            raise XrtError(f"the sequence of '{self._name}' has no scratchpad")
        return self._scratchpad

    def set_arg(self, index: int, argument: BufferObject | int) -> None:
        """Bind argument `index` (from 0) to a buffer that holds it (in strict mode, and nothing more), or,
        where the argument is a scalar integer, to an int. Of an xclbin, the first three are the opcode, the
        instructions and their number."""
        self._refuse_pending("set_arg")
        index -= self._kernel().first_argument
        if -self._kernel().first_argument <= index < 0:
            return
        self._call = None
        where = self._describe(index)
        if isinstance(argument, int):
            scalar = self._scalar(index, where, argument)
            self._held[index] = lambda: scalar
            self._addresses[index] = scalar.ctypes.data
            return
        if not isinstance(argument, BufferObject):
            raise XrtError(f"{where} cannot be a {type(argument).__name__}; pass a pyxrt.ext.bo")
        self._check_size(index, where, argument)
        self._held[index] = make_reference(
            argument, self.strict, f"the buffer of {where} was destroyed before the run; keep it alive"
        )
        self._addresses[index] = argument.address()

    def start(self) -> None:
        """Hand the run to the device. Its effects are there once `wait` or `wait2` returns."""
        if self._in_list:
            raise XrtError(f"the run of '{self._name}' belongs to a runlist; execute the list instead")
        self._submit()

    def wait(self, timeout_ms: int = 0) -> ert_cmd_state:
        """Wait until the run ends, or for that many milliseconds (0: without limit); else TIMEOUT."""
        if self._state is NEW:
            raise XrtError(f"wait() for a run of '{self._name}' that was never started; call start() first")
        queue = self.queue
        if timeout_ms > 0:
            queue.drain_within(self, timeout_ms)
            return TIMEOUT if self.pending else self._state
        queue.drain(self)
        if (
            self._state is ERROR and self._kernel().first_argument
        ):  # hosts of this flow look at the state alone
            print(f"error: {self._failure}", file=sys.stderr, flush=True)
        return self._state

    def wait2(self) -> None:
        """Wait until the run ends; XrtError with the reason unless it completed."""
        if self.wait() is not COMPLETED:
            raise self.end_error(self._state, self._failure) from self._failure

    def end_error(self, state: ert_cmd_state, failure: BaseException | None) -> XrtError:
        """The error of a run that did not complete."""
        return XrtError(f"run of '{self._name}' ended in {state.name}: {failure or 'interrupted'}")

    def state(self) -> ert_cmd_state:
        """The state now; does not wait."""
        if self.pending:
            self._queue.drain_within(self, None)
        return self._state

    @property
    def queue(self) -> RunQueue:
        """Where started runs wait. In strict mode the device may have been destroyed, which is refused."""
        return self._kernel().get_context().get_device().queue if self.strict else self._queue

    @property
    def pending(self) -> bool:
        """Whether it was started and has not ended."""
        return self._state == QUEUED

    def execute(self) -> None:
        """Carry the run out; called by the device's queue."""
        try:
            if self.strict:
                self._refuse_destroyed()
            self.call()
        except Exception as failure:
            self._failure = failure
            self._state = ERROR
        except BaseException:
            self._state = ABORT  # Ctrl-C: the caller's to handle, and the run may be started again
            raise
        else:
            self._state = COMPLETED

    @property
    def call(self) -> EntryCall:
        """The call of the program, which stays the same until an argument changes."""
        if self._call is None:
            kernel = self._kernel()
            pointers = cast("list[int]", self._addresses)  # start() lets nothing else through
            self._call = kernel.get_context().get_elf().library.call(kernel.entry, pointers)
        return self._call

    def _submit(self) -> None:
        if self._state is QUEUED:
            self._refuse_pending("start")
        self.require_arguments()
        self._failure = None
        self._state = QUEUED
        self.queue.submit(self)

    def require_arguments(self) -> None:
        """XrtError unless every argument is bound."""
        if self._call is None and None in self._addresses:
            unset = [str(index) for index, address in enumerate(self._addresses) if address is None]
            raise XrtError(
                f"'{self._name}' takes {len(self._addresses)} arguments and is started without "
                f"{', '.join(unset)}; call set_arg for each (the real device would hang)"
            )

    def _describe(self, index: int) -> str:
        arguments = self._kernel().arguments
        if not 0 <= index < len(arguments):
            raise XrtError(f"'{self._name}' has no argument {index}; it takes {len(arguments)}, from 0")
        shape = "x".join(map(str, arguments[index].shape))
        return f"argument {index} of '{self._name}' ({shape} {arguments[index].dtype})"

    def _check_size(self, index: int, where: str, buffer: BufferObject) -> None:
        argument = self._kernel().arguments[index]
        wanted = math.prod(argument.shape) * itemsize(argument.dtype)
        if buffer.size() < wanted or (self.strict and buffer.size() != wanted):
            raise XrtError(
                f"{where} has {wanted} bytes and the buffer {buffer.size()}; make it ext.bo(device, {wanted})"
            )

    def _scalar(self, index: int, where: str, value: int) -> npt.NDArray[np.int64]:
        argument = self._kernel().arguments[index]
        if argument.shape or not INTEGER.match(argument.dtype):
            raise XrtError(f"{where} is not a scalar integer and cannot be {value}; pass a pyxrt.ext.bo")
        return np.array([value], dtype=np.int64)  # little-endian: narrower integers are its first bytes

    def _refuse_destroyed(self) -> None:
        self._kernel().get_context().get_elf()
        for argument in self._held.values():
            argument()

    def _refuse_pending(self, call: str) -> None:
        if self.pending:
            raise XrtError(f"{call}() while the run of '{self._name}' is under way; wait for it first")


class RunList:
    """Runs of one context, carried out in order as a unit."""

    def __init__(self, context: HwContext) -> None:
        self._context = context
        self._runs: list[Run] = []

    def add(self, run: Run) -> None:
        """Append a run; from now on only the list may start it."""
        if run._kernel().get_context() is not self._context:
            raise XrtError(
                f"the run of '{run._name}' is of another hw_context than the runlist; use one list each"
            )
        run._in_list = True
        self._runs.append(run)

    def execute(self) -> None:
        """Hand all runs to the device."""
        if not self._runs:
            raise XrtError("execute() on a runlist without runs; add one first")
        for run in self._runs:
            run._submit()

    def wait(self, timeout: timedelta | None = None) -> None:
        """Wait until all runs have ended; XrtError with the first failure, or when `timeout` has passed."""
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        for position, run in enumerate(self._runs):
            left_ms = 0 if deadline is None else max(1, round((deadline - time.monotonic()) * 1000))
            state = run.wait(left_ms)
            if state == TIMEOUT:
                raise XrtError(f"run {position} of the list ('{run._name}') has not ended within {timeout}")
            if state != COMPLETED:
                raise XrtError(f"run {position} of the list failed: {run._failure}") from run._failure


def _no_such_kernel(name: str, entries: Iterable[str]) -> str:
    names = [KERNEL_PREFIX + entry for entry in entries]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4) or names[:1]
    return (
        f"no kernel '{name}' in this elf; it has: {', '.join(names)}. "
        f"Write '{near[0]}' (the real device answers a wrong name with a timeout)"
    )
