"""The NPU: which one this machine has, what pyxrt must offer, and how the open device behaves.

This was never run on hardware. The source of each rule is beside it, and in docs/explanation/board.md.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aerie.runtime import knobs
from aerie.runtime.device import DEVICE_ERRORS, FailedRun, Note
from aerie.runtime.errors import RunError
from aerie.runtime.npu import failures, versions
from aerie.runtime.npu.lock import DeviceLock
from aerie.runtime.toolchain import KERNEL_SOURCES

REQUIRED_GENERATION = "npu2"

GENERATION_PATTERNS = {
    "npu1": re.compile(r"\bnpu1\b|\bPhoenix\b|\bHawk Point\b", re.IGNORECASE),
    "npu2": re.compile(r"\bnpu[456]\b|\bStrix\b|\bKrackan\b|\bGorgon Point\b", re.IGNORECASE),
}
"""Generations by the names of the driver: amd/xdna-driver drivers/accel/amdxdna/npu*_regs.c, and mlir-aie
python/utils/hostruntime. Whole words: RyzenAI-npu10 is neither.
"""

ACCELERATORS = Path("/sys/class/accel")

MAX_BUFFER_BYTES = 1 << 32
"""Bytes. Offsets from 4 GiB on were cut to 32 bits where transfers are patched, which gives a wrong address
without a message (mlir-air #1836 and #1840; fixed by mlir-aie #3718, which is newer than the pinned one).
"""


def generation(name: str) -> str | None:
    """npu1 or npu2 for a device name of the driver or xrt-smi; None for other names."""
    return next((kind for kind, names in GENERATION_PATTERNS.items() if names.search(name)), None)


def driver_names(root: Path = ACCELERATORS) -> list[str]:
    """The driver's name of each NPU of this machine (`vbnv`); needs neither XRT nor permission to open it."""
    paths = (entry / "device" / "vbnv" for entry in sorted(root.glob("accel*")))
    return [name for file in paths if (name := _read_sysfs(file))]


def device_name(pyxrt: Any, device: Any) -> str:
    """The name of an open device: from pyxrt, else from the driver, else ""."""
    try:
        return str(device.get_info(pyxrt.xrt_info_device.name))
    except DEVICE_ERRORS:
        return next(iter(driver_names()), "")


def unsupported_reason(name: str) -> str:
    """Why a device of this name is refused; "" if programs are compiled for it."""
    kind = generation(name)
    if kind == REQUIRED_GENERATION:
        return ""
    if not name:
        return (
            "an NPU was opened, and neither pyxrt nor the driver reports which one; a program for "
            "another NPU would load and compute nothing: update XRT and the driver"
        )
    description = f"an {kind}" if kind else "not one that Aerie knows"
    return (
        f"the NPU found, '{name}', is {description}, and programs are compiled for {REQUIRED_GENERATION} "
        "(Strix, Strix Halo, Krackan, Gorgon Point); they would load there and compute nothing"
    )


def missing_bindings(pyxrt: Any) -> list[str]:
    """The calls of the ELF flow that this pyxrt lacks, one line each with the XRT version that has them."""
    return [
        f"this pyxrt has no {binding.attribute}{binding.signature and f' that takes an {binding.signature}'} "
        f"(since {binding.since}); install XRT {versions.XRT.version} or newer with its pyxrt"
        for binding in versions.BINDINGS
        if not _has(pyxrt, binding)
    ]


def missing_device() -> list[str]:
    """What is missing for running on the NPU, besides the compilers: one line each, [] if nothing is."""
    try:
        pyxrt = importlib.import_module("pyxrt")
    except ImportError as error:
        return [f"Python module pyxrt is missing ({error}); it comes with XRT: source its setup.sh"]
    if missing := missing_bindings(pyxrt):
        return missing
    try:
        name = device_name(pyxrt, pyxrt.device(0))
    except DEVICE_ERRORS as error:
        return [f"pyxrt opens no device ({_explain_error(error)})"]
    return [reason] if (reason := unsupported_reason(name)) else []


class NpuAccess:
    """The NPU: one process at a time, few contexts, and runs that may hang without a message."""

    largest_buffer = MAX_BUFFER_BYTES
    supports_batches = False
    copies_per_buffer = 1  # the NPU reads the machine's own memory

    def __init__(self) -> None:
        knobs.check(knobs.NPU_TABLE)
        self.contexts = int(knobs.NPU_CONTEXTS.get())
        self._limit = float(knobs.NPU_TIMEOUT.get())
        self._lock = DeviceLock()

    def acquire(self, report: Note) -> None:
        self._lock.acquire(report)

    def release(self) -> None:
        self._lock.release()

    def execution(self, run: Any) -> Callable[[], None]:
        return partial(_start_and_wait, run, self._limit)

    def wait_interrupted(self, run: Any) -> None:
        try:
            failures.wait(run, self._limit)
        except DEVICE_ERRORS:
            return

    def is_out_of_contexts(self, error: BaseException) -> bool:
        return failures.is_out_of_contexts(str(error))

    def device_error(self, action: str, error: BaseException) -> RunError:
        return RunError(f"{action}: {_explain_error(error)}", lost=_loses_device(error))

    def explain(self, failure: FailedRun) -> RunError:
        """The failure in one line, and below it lines that help to find the cause."""
        arguments = ", ".join(f"{argument} {argument.role.value}" for argument in failure.arguments)
        before = failure.last_completed or "none since the NPU was opened"
        likely_cause = getattr(failure.error, "likely_cause", "")
        details = [
            f"usually: {likely_cause}" if likely_cause else "",
            f"arguments: {arguments}",
            f"the last program that completed: {before}",
            f"the same program on the virtual NPU, with checks: {check_command(failure.artifact.path)}",
        ]
        headline = f"{failure.label} failed on the NPU: {_explain_error(failure.error)}"
        return RunError(headline, *filter(None, details), lost=_loses_device(failure.error))


def _start_and_wait(run: Any, limit: float) -> None:
    run.start()
    failures.wait(run, limit)


def check_command(artifact: Path) -> str:
    """The command that runs a program's text on the virtual NPU, with checks, on random arrays."""
    command = [sys.executable, "-m", "aerie.virtual_npu", "run", str(artifact.with_suffix(".mlir"))]
    return shlex.join([*command, "--checks", "--random", "0", "--kernel-dir", str(KERNEL_SOURCES)])


def _explain_error(error: BaseException) -> str:
    """A pyxrt error, with what is known about it."""
    message = " ".join(str(error).split()) or type(error).__name__
    known_message = _known_message(error)
    return f"{message}: {known_message.meaning}" if known_message else message


def _loses_device(error: BaseException) -> bool:
    """Whether the device answers no process after this error."""
    known_message = _known_message(error)
    return getattr(error, "lost", False) or (known_message is not None and known_message.lost)


def _known_message(error: BaseException) -> failures.KnownXrtMessage | None:
    return failures.find_known_message(f"{' '.join(str(error).split())} {type(error).__name__}")


def _read_sysfs(file: Path) -> str:
    """The content of a sysfs file; "" if it does not exist or the driver fails to answer."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _has(pyxrt: Any, binding: versions.Binding) -> bool:
    """Whether pyxrt has a binding. Overloads show in the docstring only, which may be missing."""
    current = pyxrt
    for part in binding.attribute.split("."):
        current = getattr(current, part, None)
    if current is None:
        return False
    overloads = getattr(current.__init__, "__doc__", None) or ""
    if not binding.signature or "Overloaded" not in overloads:
        return True
    return re.search(rf"\b{binding.signature}\b", overloads) is not None  # "elf" is in every "self"
