"""The choice of device: the NPU through pyxrt, or the virtual NPU through its own pyxrt."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from runtime.errors import BackendError
from runtime.npu_toolchain import NpuToolchain, missing_npu_tools
from runtime.toolchain import Toolchain, VirtualToolchain

CHOICES = ("auto", "virtual", "npu")


@dataclass(frozen=True)
class Backend:
    """Where programs run. `pyxrt` has pyxrt's API; `reason` says in one line why this one was chosen."""

    name: str
    toolchain: Toolchain
    pyxrt: ModuleType
    reason: str


def select_backend(choice: str = "auto") -> Backend:
    """The backend of that name; "auto" is the NPU where pyxrt, a device and the toolchain are found.

    Raises BackendError for an unknown name, and for "npu" where something that it needs is missing.
    """
    if choice == "virtual":
        return _virtual("asked for")
    if choice not in CHOICES:
        raise BackendError(f"unknown backend '{choice}'; choose one of: {', '.join(CHOICES)}")
    missing = missing_npu_parts()
    if not missing:
        why = "asked for" if choice == "npu" else "pyxrt opened a device"
        pyxrt = importlib.import_module("pyxrt")
        return Backend("npu", NpuToolchain(), pyxrt, f"backend npu: {why}")
    if choice == "npu":
        raise BackendError(
            f"backend 'npu' cannot be used here: {'; '.join(missing)}. BACKEND=virtual runs the same programs"
        )
    return _virtual(f"no NPU in use ({missing[0]})")


def missing_npu_parts() -> list[str]:
    """What the NPU backend lacks on this machine, the device first, then the tools; one line each."""
    return [*_missing_device(), *missing_npu_tools()]


def _missing_device() -> list[str]:
    try:
        pyxrt = importlib.import_module("pyxrt")
    except ImportError as error:
        return [f"Python module pyxrt is missing ({error}); it comes with XRT: source its setup.sh"]
    try:
        pyxrt.device(0)
    except Exception as error:  # whatever the driver's binding raises, it means: no device
        return [f"pyxrt opens no device ({error})"]
    return []


def _virtual(why: str) -> Backend:
    pyxrt = importlib.import_module("virtual_npu.pyxrt")
    return Backend("virtual", VirtualToolchain(), pyxrt, f"backend virtual: {why}")
