"""The choice of device: the NPU through pyxrt, or the virtual NPU through its own pyxrt."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import ModuleType

from aerie.common import knobs
from aerie.common.errors import ProgramError
from aerie.runtime import knobs as compile_knobs
from aerie.runtime.device import DeviceAccess, VirtualAccess
from aerie.runtime.errors import BackendError
from aerie.runtime.npu.device import NpuAccess, missing_device
from aerie.runtime.npu.toolchain import NpuToolchain
from aerie.runtime.npu.tools import missing_compile_tools, missing_list
from aerie.runtime.toolchain import Toolchain, VirtualToolchain
from aerie.virtual_npu.options import EXACT

CHOICES = ("auto", "virtual", "npu")
VIRTUAL_PADDING_SHARE = 1 / 8
"""`Backend.padding_share` of the virtual NPU: SwiGLU, norms and additions of rows of zeros, and attention's
transfers."""


@dataclass(frozen=True)
class Backend:
    """Where programs run. pyxrt: a module with pyxrt's API. reason: one line, why this backend was chosen.
    access: how the device behaves. device: its index in pyxrt.

    A backend that only compiles may have a NoPyxrt in place of pyxrt.
    """

    name: str
    toolchain: Toolchain
    pyxrt: ModuleType
    reason: str
    access: DeviceAccess = field(default_factory=VirtualAccess)
    device: int = 0

    @property
    def numerics(self) -> str:
        """How matrix products are computed: "exact" or "bfp16" on the virtual NPU, else the
        backend's name.
        """
        toolchain = self.toolchain
        return toolchain.options.numerics if isinstance(toolchain, VirtualToolchain) else self.name

    @property
    def padding_share(self) -> float:
        """What a row of padding costs of what a token costs in a call of a program, beside the weights that
        the call reads. The virtual NPU leaves rows of zeros out of its products, unless it multiplies in
        block floats."""
        return VIRTUAL_PADDING_SHARE if self.numerics == EXACT.numerics else 1.0


class NoPyxrt(ModuleType):
    """Stands in for pyxrt where programs are compiled and never run. Every use raises BackendError."""

    def __getattr__(self, name: str) -> object:
        raise BackendError("this backend only compiles: no NPU was looked for, so nothing can run on it")


def select_backend(
    choice: str = "auto", numerics: str | None = None, *, compile_only: bool = False
) -> Backend:
    """The backend of that name. "auto" is the NPU if pyxrt, a device and the toolchain are found, else
    virtual.

    numerics: how the virtual NPU multiplies bf16 matrices; None means the value of VNPU_NUMERICS.
    compile_only: "npu" needs the toolchain alone, without pyxrt or a device; the backend cannot run programs.
    Raises BackendError if the name is unknown, if "npu" lacks something, if numerics are set for the NPU, and
    if numerics or an environment variable (aerie/common/knobs.py) are not valid for the virtual NPU.
    """
    if choice == "virtual":
        return _virtual("requested", numerics)
    if choice not in CHOICES:
        raise BackendError(f"unknown backend '{choice}'; choose one of: {', '.join(CHOICES)}")
    for_later = compile_only and choice == "npu"
    no_device = [] if for_later else missing_device()
    missing = no_device if no_device and choice == "auto" else [*no_device, *missing_compile_tools()]
    if not missing:
        return _npu(choice, numerics, for_later)
    if choice == "npu":
        raise BackendError(
            missing_list("backend 'npu' cannot be used here; BACKEND=virtual runs the same programs", missing)
        )
    lacking = "no NPU is set up here" if no_device else "this machine has an NPU and not its compilers"
    return _virtual(f"{lacking}; BACKEND=npu lists what is missing", numerics)


def _npu(choice: str, numerics: str | None, compile_only: bool) -> Backend:
    if numerics:
        raise BackendError(
            f"numerics '{numerics}' cannot be had on the NPU, which has its own; leave it out, or take "
            "BACKEND=virtual"
        )
    _check_compile_knobs()
    if compile_only:
        return Backend("npu", NpuToolchain(), NoPyxrt("pyxrt"), "backend npu: requested, to compile only")
    reason = "requested" if choice == "npu" else "pyxrt opened a device"
    pyxrt = importlib.import_module("pyxrt")
    return Backend("npu", NpuToolchain(), pyxrt, f"backend npu: {reason}", _npu_access())


def _check_compile_knobs() -> None:
    try:
        compile_knobs.check()
    except ProgramError as error:
        raise BackendError(str(error)) from error


def _npu_access() -> NpuAccess:
    try:
        return NpuAccess()
    except ProgramError as error:  # a knob that makes no sense
        raise BackendError(str(error)) from error


def _virtual(reason: str, numerics: str | None) -> Backend:
    toolchain = VirtualToolchain(numerics)
    try:
        compile_knobs.check()
        knobs.check()
        chosen = toolchain.options.numerics
    except ProgramError as error:
        raise BackendError(str(error)) from error
    products = "" if chosen == EXACT.numerics else f" with {chosen} products"
    pyxrt = importlib.import_module("aerie.virtual_npu.pyxrt")
    return Backend("virtual", toolchain, pyxrt, f"backend virtual{products}: {reason}")
