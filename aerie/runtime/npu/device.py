"""The NPU itself: which one this machine has, what pyxrt must offer, and how it behaves once it is open.

Never run on hardware. What each rule rests on is said beside it, and in docs/explanation/board.md.
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
from aerie.runtime.device import DEVICE_ERRORS, Failure, Report
from aerie.runtime.errors import RunError
from aerie.runtime.npu import failures, versions
from aerie.runtime.npu.lock import DeviceLock
from aerie.runtime.toolchain import KERNEL_SOURCES

WANTED = "npu2"

NAMES = {
    "npu1": re.compile(r"\bnpu1\b|\bPhoenix\b|\bHawk Point\b", re.IGNORECASE),
    "npu2": re.compile(r"\bnpu[456]\b|\bStrix\b|\bKrackan\b|\bGorgon Point\b", re.IGNORECASE),
}
"""Generations by the names that the driver gives: amd/xdna-driver drivers/accel/amdxdna/npu*_regs.c, and
mlir-aie python/utils/hostruntime. Whole words: RyzenAI-npu10 is neither of the two."""

ACCELERATORS = Path("/sys/class/accel")

LARGEST_BUFFER = 1 << 32
"""Bytes. Offsets from 4 GiB on were cut to 32 bits where transfers are patched (mlir-air #1836 and #1840; put
right by mlir-aie #3718, which is newer than the pinned one): a wrong address, without any message."""


def generation(name: str) -> str | None:
    """npu1 or npu2 for a device's name as the driver or xrt-smi tells it; None for any other."""
    return next((kind for kind, names in NAMES.items() if names.search(name)), None)


def driver_names(root: Path = ACCELERATORS) -> list[str]:
    """The driver's name of each NPU of this machine (`vbnv`); needs neither XRT nor the right to open it."""
    found = (entry / "device" / "vbnv" for entry in sorted(root.glob("accel*")))
    return [name for file in found if (name := _told(file))]


def device_name(pyxrt: Any, device: Any) -> str:
    """What an open device calls itself; where pyxrt cannot say, what the driver calls it; else nothing."""
    try:
        return str(device.get_info(pyxrt.xrt_info_device.name))
    except DEVICE_ERRORS:
        return next(iter(driver_names()), "")


def unfit(name: str) -> str:
    """Why a device of this name is refused; nothing for one that programs are compiled for."""
    kind = generation(name)
    if kind == WANTED:
        return ""
    if not name:
        return (
            "an NPU was opened and neither pyxrt nor the driver says which; programs for another one would "
            "load and compute nothing, so it is not guessed: update XRT and the driver"
        )
    what = f"an {kind}" if kind else "not one that Aerie knows"
    return (
        f"the NPU found, '{name}', is {what}, and programs are compiled for {WANTED} (Strix, Strix Halo, "
        "Krackan, Gorgon Point); they would load there and compute nothing"
    )


def missing_bindings(pyxrt: Any) -> list[str]:
    """The calls of the ELF flow that this pyxrt lacks, one line each with the XRT that has them."""
    return [
        f"this pyxrt has no {binding.attribute}{binding.signature and f' that takes an {binding.signature}'} "
        f"(since {binding.since}); install XRT {versions.XRT.version} or newer with its pyxrt"
        for binding in versions.BINDINGS
        if not _has(pyxrt, binding)
    ]


def missing_device() -> list[str]:
    """What is missing for running on the NPU, besides the compilers: a line each, [] where all is there."""
    try:
        pyxrt = importlib.import_module("pyxrt")
    except ImportError as error:
        return [f"Python module pyxrt is missing ({error}); it comes with XRT: source its setup.sh"]
    if missing := missing_bindings(pyxrt):
        return missing
    try:
        name = device_name(pyxrt, pyxrt.device(0))
    except DEVICE_ERRORS as error:
        return [f"pyxrt opens no device ({_in_words(error)})"]
    return [reason] if (reason := unfit(name)) else []


class NpuAccess:
    """The NPU: one process at a time, few contexts, runs that may hang and say little."""

    largest_buffer = LARGEST_BUFFER
    batches = False
    copies = 1  # the NPU reads the machine's own memory

    def __init__(self) -> None:
        knobs.check(knobs.NPU_TABLE)
        self.contexts = int(knobs.NPU_CONTEXTS.get())
        self._limit = float(knobs.NPU_TIMEOUT.get())
        self._lock = DeviceLock()

    def reserve(self, report: Report) -> None:
        self._lock.acquire(report)

    def free(self) -> None:
        self._lock.release()

    def execution(self, run: Any) -> Callable[[], None]:
        return partial(_start_and_wait, run, self._limit)

    def settle(self, run: Any) -> None:
        try:
            failures.wait(run, self._limit)
        except DEVICE_ERRORS:
            return

    def lacks_context(self, error: BaseException) -> bool:
        return failures.lacks_context(str(error))

    def failed(self, what: str, error: BaseException) -> RunError:
        return RunError(f"{what}: {_in_words(error)}", lost=_loses_device(error))

    def explain(self, failure: Failure) -> RunError:
        """The failure in one line, and below it what helps to find its cause."""
        arguments = ", ".join(f"{argument} {argument.role.value}" for argument in failure.arguments)
        before = failure.last_completed or "none since the NPU was opened"
        usually = getattr(failure.error, "usually", "")
        details = [
            f"usually: {usually}" if usually else "",
            f"arguments: {arguments}",
            f"the last program that completed: {before}",
            f"the same program on the virtual NPU, with checks: {check_command(failure.artifact.path)}",
        ]
        headline = f"{failure.label} failed on the NPU: {_in_words(failure.error)}"
        return RunError(headline, *filter(None, details), lost=_loses_device(failure.error))


def _start_and_wait(run: Any, limit: float) -> None:
    run.start()
    failures.wait(run, limit)


def check_command(artifact: Path) -> str:
    """The command line that runs a program's text on the virtual NPU, with checks, on random arrays."""
    command = [sys.executable, "-m", "aerie.virtual_npu", "run", str(artifact.with_suffix(".mlir"))]
    return shlex.join([*command, "--checks", "--random", "0", "--kernel-dir", str(KERNEL_SOURCES)])


def _in_words(error: BaseException) -> str:
    """An error of pyxrt, and what is known about it."""
    message = " ".join(str(error).split()) or type(error).__name__
    known = _known(error)
    return f"{message}: {known.meaning}" if known else message


def _loses_device(error: BaseException) -> bool:
    """Whether the device answers no process any more after this error."""
    known = _known(error)
    return getattr(error, "lost", False) or (known is not None and known.lost)


def _known(error: BaseException) -> failures.Known | None:
    return failures.find(f"{' '.join(str(error).split())} {type(error).__name__}")


def _told(file: Path) -> str:
    """What a file of sysfs says; nothing where it is not there, or the driver fails to answer."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _has(pyxrt: Any, binding: versions.Binding) -> bool:
    """Whether pyxrt has a binding. Overloads show in the docstring only, which need not be there."""
    found = pyxrt
    for part in binding.attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        return False
    overloads = getattr(found.__init__, "__doc__", None) or ""
    if not binding.signature or "Overloaded" not in overloads:
        return True
    return re.search(rf"\b{binding.signature}\b", overloads) is not None  # "elf" is in every "self"
