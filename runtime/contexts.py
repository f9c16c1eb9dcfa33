"""The open device of one cache, and the programs loaded on it.

Contexts are rationed on the NPU, so a program may be released while its buffers stay: these belong to the
device. What hangs on a program itself, kernel, context and elf, goes with it, runs first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kernel_builder.arguments import Argument
from runtime.access import DEVICE_ERRORS, Report, let_go
from runtime.artifacts import Artifact
from runtime.backend import Backend
from runtime.errors import RunError


@dataclass
class LoadedProgram:
    """An artifact on the device, and the run of each buffer-object set, by the set's label."""

    elf: Any
    context: Any
    kernel: Any
    runs: dict[str, Any] = field(default_factory=dict)

    def release(self) -> None:
        """Let go in the order that XRT wants; on Windows it faults otherwise."""
        self.runs.clear()
        self.kernel = None
        self.context = None
        self.elf = None


class Contexts:
    """The device of a backend, opened when first needed, and as many programs on it as it takes.

    `report` is told while another process keeps the device. `last_completed` names the last good run.
    """

    def __init__(self, backend: Backend, report: Report) -> None:
        self.access = backend.access
        self.last_completed = ""
        self._pyxrt = backend.pyxrt
        self._backend = backend.name
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
                "into several as lm_head_gemv does, or compile for fewer tokens with --seq-len"
            )
        self._open()
        try:
            return self._pyxrt.ext.bo(self._device, argument.nbytes)
        except DEVICE_ERRORS as error:
            let_go(error)
            raise self.access.failed(f"{label}: no buffer object for {argument}", error) from error

    def forget_run(self, artifact: Artifact, label: str) -> None:
        """Drop the run of a set whose buffers are about to go."""
        if program := self._loaded.get(artifact.key):
            program.runs.pop(label, None)

    def new_run(self, program: LoadedProgram) -> Any:
        return self._pyxrt.run(program.kernel)

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
                self._device = self._attempt("open the device", lambda: self._pyxrt.device(0))
            finally:
                if self._device is None:
                    self.access.free()

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
            let_go(error)
            program.release()
            raise
        return program

    def _release_oldest(self) -> None:
        self._loaded.popitem(last=False)[1].release()

    def _attempt(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except DEVICE_ERRORS as error:
            let_go(error)
            raise self.access.failed(f"backend '{self._backend}' could not {what}", error) from error
