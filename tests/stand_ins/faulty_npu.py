"""A stand-in for a wrong NPU: the virtual NPU with one fault put into what it leaves in a buffer.

It shows that the comparison names a fault. It is no NPU, and says nothing of one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from aerie.air_dialect import parse, print_module
from aerie.common.fingerprint import file_digest
from aerie.kernel_builder.arguments import Argument
from aerie.kernel_builder.dsl import remove_rounding_calls
from aerie.runtime.backend import Backend
from aerie.runtime.device import FailedRun, VirtualAccess
from aerie.runtime.errors import CompileError, RunError
from aerie.runtime.npu.device import NpuAccess
from aerie.runtime.toolchain import VirtualToolchain
from aerie.virtual_npu import pyxrt

Array = np.ndarray[Any, Any]


def zero_rows(array: Array, _: int) -> None:
    array[3:5] = 0


def nan(array: Array, _: int) -> None:
    array[1, :4] = np.nan


def transpose_blocks(array: Array, _: int) -> None:
    rows, columns = (extent // 8 for extent in array.shape)
    blocks = array[: rows * 8, : columns * 8].reshape(rows, 8, columns, 8)
    blocks[...] = blocks.transpose(0, 3, 2, 1).copy()


def swap_tiles(array: Array, _: int) -> None:
    """The tile of core (2, 1) holds that of core (0, 0), for tiles of 8 x 32."""
    array[16:24, 32:64] = array[0:8, 0:32]


def double(array: Array, _: int) -> None:
    array *= 2


def flip_first(array: Array, runs: int) -> None:
    """Another result in every second run."""
    if runs % 2:
        array.reshape(-1)[0] += 1


def hang(_: Array, __: int) -> None:
    time.sleep(600)


def crash(_: Array, __: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def wedge(_: Array, __: int) -> None:
    raise RuntimeError("DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-5): Input/output error")


def time_out(_: Array, __: int) -> None:
    raise RuntimeError("it ended in ERT_CMD_STATE_TIMEOUT")


Fault = Callable[[Array, int], None]
"""Changes an argument in place after a run; also gets the number of runs so far."""


@dataclass
class FaultyPyxrt(ModuleType):
    """virtual_npu.pyxrt, whose runs of one program leave a fault in one argument (None: in no program)."""

    program: str
    slot: int
    argument: Argument
    fault: Fault

    def __post_init__(self) -> None:
        super().__init__("faulty_pyxrt")
        self.__dict__.update({name: getattr(pyxrt, name) for name in pyxrt.__all__})
        outer = self

        class Run(pyxrt.run):
            def __init__(self, kernel: Any) -> None:
                super().__init__(kernel)
                self.faulty = kernel.name == f"main:{outer.program}"
                self.bo: Any = None
                self.runs = 0

            def set_arg(self, index: int, argument: Any) -> None:
                super().set_arg(index, argument)
                if index == outer.slot:
                    self.bo = argument

            def wait2(self) -> None:
                super().wait2()
                self.runs += 1
                if self.faulty:
                    outer.fault(_view(self.bo, outer.argument), self.runs)

        self.run = Run


def _view(bo: Any, argument: Argument) -> Array:
    data = np.frombuffer(bo.map(), np.uint8)[: argument.nbytes]
    return data.view(argument.dtype.numpy).reshape(argument.shape)


class ExplainedAsOnNpu(VirtualAccess):
    """Behaves as the virtual NPU, with its errors taken for the NPU's."""

    def explain(self, failure: FailedRun) -> RunError:
        return NpuAccess().explain(failure)


def faulty_backend(program: str, slot: int, argument: Argument, fault: Fault) -> Backend:
    """A backend whose runs of `program` end in `fault` on one argument."""
    stand_in, access = FaultyPyxrt(program, slot, argument, fault), ExplainedAsOnNpu()
    return Backend("stand-in", VirtualToolchain("exact"), stand_in, "a stand-in with a fault", access)


class FlooringToolchain(VirtualToolchain):
    """Builds for cores that round downwards in every rounding mode."""

    def compile(self, program: Any, *folders: Any) -> Any:
        text = print_module(remove_rounding_calls(parse(program.text)))
        return super().compile(replace(program, text=text), *folders)

    @property
    def options(self) -> Any:
        return replace(super().options, rounding="floor")

    def ingredients(self, program: Any) -> dict[str, str]:
        """What is built depends on this file too."""
        return {**super().ingredients(program), "stand-in": file_digest(Path(__file__))}


def flooring_backend() -> Backend:
    return Backend("stand-in", FlooringToolchain("bfp16"), pyxrt, "a stand-in that rounds down")


class FailingToolchain(VirtualToolchain):
    """Compiles nothing."""

    def compile(self, program: Any, *_: Any) -> Any:
        raise CompileError(program.name, "aircc: out of shim channels")

    def ingredients(self, program: Any) -> dict[str, str]:
        """Of nothing that a toolchain that compiles has made, or it would be found."""
        return {**super().ingredients(program), "stand-in": "compiles nothing"}


def failing_backend() -> Backend:
    return Backend("stand-in", FailingToolchain(), pyxrt, "a stand-in that compiles nothing")


def healthy_backend() -> Backend:
    return Backend("stand-in", VirtualToolchain("bfp16"), pyxrt, "the virtual NPU in the place of an NPU")


def broken_backend() -> Backend:
    raise KeyError("a defect of ours")
