"""Calls that are made again and again: noted once, with the arrays that they read and write, then replayed.

    recording = cache.record()
    found = recording.run(first, bo_key="L0", x=x)                    # noted, not made
    recording.host("attention", HostWork(attend))                     # reads found["q"], writes `attended`
    result = recording.run(second, bo_key="L0", attn_out=attended)
    ... x is filled ...
    recording()                                                       # all of it, in order
    ... result is read ...

An array is known by where it lies: what changes from replay to replay is its contents. A replay does, to the
bit, what the same calls of `KernelCache.run` and the host's work between them would do. Where device, arrays
and work allow it, that is one native call (`replay.py`); else the calls are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from runtime.access import DeviceAccess
from runtime.buffer import Array
from runtime.buffers import BufferSet
from runtime.calls import HostCall, HostWork, ProgramCall, Step
from runtime.errors import AerieRuntimeError
from runtime.profiler import Profiler
from runtime.replay import NativeReplay, native_replay

if TYPE_CHECKING:
    from multi_launch_builder.program import Program

BufferSetOf: TypeAlias = "Callable[[Program | str, str | None], BufferSet]"
"""The buffers of a program under a key: KernelCache.buffer_set."""


class Recording:
    """Steps in order; from KernelCache.record."""

    def __init__(self, buffer_set: BufferSetOf, access: DeviceAccess, profiler: Profiler) -> None:
        self._buffer_set, self._access, self._profiler = buffer_set, access, profiler
        self._steps: list[Step] = []
        self._native: NativeReplay | None = None
        self._is_prepared = False

    def run(
        self,
        program: Program | str,
        /,
        *,
        bo_key: str | None = None,
        outputs: Collection[str] | None = None,
        copy: bool = False,
        unread: Collection[str] = (),
        **arrays: Array,
    ) -> dict[str, Array]:
        """Note a call of KernelCache.run with `copy=False`, and give the views that it would give.

        Inputs only: weights and tables must be on the device. Raises what the call would before it runs.
        """
        if copy:
            raise AerieRuntimeError("a recorded call gives views, which every replay fills: leave copy out")
        buffers = self._buffer_set(program, bo_key)
        buffers.missing(arrays)
        wanted = buffers.outputs if outputs is None else [buffers.slot(output) for output in outputs]
        name = program if isinstance(program, str) else program.name
        self._add(ProgramCall(name, buffers, arrays, tuple(wanted), unread))
        return {buffers.arguments[slot].name: buffers.result(slot) for slot in wanted}

    def host(self, name: str, work: HostWork) -> None:
        """Note work of the host between the calls before and after it, under its name in the profiler."""
        self._add(HostCall(name, work))

    @property
    def is_current(self) -> bool:
        """Whether all its buffers are there still."""
        return all(step.buffers.is_open for step in self._steps if isinstance(step, ProgramCall))

    def __call__(self) -> None:
        """Take all steps, in order. RunError where a program does not complete: none is taken after it."""
        if not self.is_current:
            raise AerieRuntimeError("a recording was replayed whose buffers were released; record it again")
        if not self._is_prepared:
            self._native = native_replay(self._steps, self._access)
            self._is_prepared = True
        if self._native is None:
            for step in self._steps:
                step.make(self._profiler)
            return
        try:
            self._native(self._profiler)
        except BaseException:
            self._is_prepared = False  # a program that failed is loaded afresh
            raise

    def _add(self, step: Step) -> None:
        self._steps.append(step)
        self._is_prepared = False
