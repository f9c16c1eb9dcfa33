"""Programs loaded on the device, once per process, and what has to stay alive with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime.artifacts import Artifact
from runtime.backend import Backend
from runtime.errors import RunError


@dataclass(frozen=True)
class LoadedProgram:
    """An artifact on the device. XRT wants kernel, context and elf released in this order."""

    kernel: Any
    context: Any
    elf: Any


class Contexts:
    """The device of a backend, opened when first needed, and the programs loaded on it."""

    def __init__(self, backend: Backend) -> None:
        self._pyxrt = backend.pyxrt
        self._backend = backend.name
        self._device: Any = None
        self._loaded: dict[str, LoadedProgram] = {}

    @property
    def device(self) -> Any:
        if self._device is None:
            self._device = self._attempt("open the device", lambda: self._pyxrt.device(0))
        return self._device

    def load(self, artifact: Artifact) -> LoadedProgram:
        """The artifact on the device; loaded at the first call."""
        found = self._loaded.get(artifact.key)
        if found is None:
            found = self._attempt(
                f"load '{artifact.name}' from {artifact.path}", lambda: self._load(artifact)
            )
            self._loaded[artifact.key] = found
        return found

    def close(self) -> None:
        """Release kernels, contexts, elfs, then the device."""
        while self._loaded:
            _, program = self._loaded.popitem()
            parts = [program.elf, program.context, program.kernel]
            del program
            while parts:
                parts.pop()
        self._device = None

    def _load(self, artifact: Artifact) -> LoadedProgram:
        elf = self._pyxrt.elf(str(artifact.path))
        context = self._pyxrt.hw_context(self.device, elf)
        return LoadedProgram(self._pyxrt.ext.kernel(context, f"main:{artifact.name}"), context, elf)

    def _attempt(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RuntimeError, OSError, TypeError, AttributeError) as error:  # the last two: an older pyxrt
            raise RunError(f"backend '{self._backend}' could not {what}: {error}") from error
