"""What differs between devices once a program is compiled: who may open it, how much fits, how a run ends."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from kernel_builder.arguments import ArgumentTable
from runtime.artifacts import Artifact
from runtime.errors import RunError
from virtual_npu import knobs

Report = Callable[[str], None]

DEVICE_ERRORS = (RuntimeError, OSError, MemoryError, ValueError, TypeError, AttributeError, LookupError)
"""What pyxrt raises: pybind11 turns C++ exceptions into these; an older pyxrt lacks names or overloads."""


def let_go(error: BaseException) -> None:
    """Keep an error that is kept from keeping what the calls below it held: XRT's order of release counts."""
    traceback.clear_frames(error.__traceback__)


@dataclass(frozen=True)
class Failure:
    """A run that failed: which program on which buffers, why, and what completed before it, if anything."""

    label: str
    error: BaseException
    artifact: Artifact
    arguments: ArgumentTable
    last_completed: str


class DeviceAccess(Protocol):
    """The manners of one kind of device. The calls are pyxrt's on all of them."""

    @property
    def contexts(self) -> int:
        """How many programs may be loaded at once."""

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest buffer object that programs address right."""

    @property
    def copies(self) -> int:
        """How often a buffer object is kept in the machine's memory."""

    @property
    def batches(self) -> bool:
        """Whether runs may be those of virtual_npu.pyxrt, of which many can be one native call."""

    def reserve(self, report: Report) -> None:
        """Before the device is opened: keep other processes off it. Tells `report` while that takes."""

    def free(self) -> None:
        """After the device is closed, or could not be opened."""

    def wait(self, run: Any) -> None:
        """Wait for a started run. Raises one of DEVICE_ERRORS unless it completed."""

    def settle(self, run: Any) -> None:
        """Let a run end that nobody waits for any more, as far as it does."""

    def lacks_context(self, error: BaseException) -> bool:
        """Whether a program could not be loaded because too many are."""

    def failed(self, what: str, error: BaseException) -> RunError:
        """An error of pyxrt as ours: what failed, and the error in words."""

    def explain(self, failure: Failure) -> RunError:
        """The error that tells the user of a failed run."""


class VirtualAccess:
    """The virtual NPU: every process has its own, which ends every run and says itself why one failed."""

    contexts = sys.maxsize
    largest_buffer = sys.maxsize
    batches = True

    @property
    def copies(self) -> int:
        return 2 if knobs.strict() else 1

    def reserve(self, report: Report) -> None:
        pass

    def free(self) -> None:
        pass

    def wait(self, run: Any) -> None:
        run.wait2()

    def settle(self, run: Any) -> None:
        with contextlib.suppress(RuntimeError):
            run.wait()

    def lacks_context(self, error: BaseException) -> bool:  # noqa: ARG002
        return False

    def failed(self, what: str, error: BaseException) -> RunError:
        return RunError(f"{what}: {error}")

    def explain(self, failure: Failure) -> RunError:
        return self.failed(f"{failure.label} failed", failure.error)
