"""A program as data: which kernels, with which parameters, wired how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel_builder.arguments import Argument, ArgumentTable, Role
from kernel_builder.dtypes import bf16
from kernel_builder.errors import IllegalShapeError
from kernel_builder.kernels import registry
from kernel_builder.module import KernelModule
from multi_launch_builder.errors import UnsupportedShapeError
from multi_launch_builder.program import CompileOption, Program
from multi_launch_builder.stitcher import Stitcher


def bf16_table(*rows: tuple[str, tuple[int, ...], Role]) -> ArgumentTable:
    """An argument table of bf16 buffers, from (name, shape, role) per argument."""
    return ArgumentTable(Argument(name, shape, bf16, role) for name, shape, role in rows)


@dataclass(frozen=True)
class Step:
    """One launch: the kernel's name and build parameters, and kernel argument -> program argument."""

    label: str
    kernel: str
    parameters: Mapping[str, Any]
    wiring: Mapping[str, str]


@dataclass(frozen=True)
class ProgramPlan:
    """The steps of a program, in launch order, between its arguments."""

    name: str
    arguments: ArgumentTable
    steps: tuple[Step, ...]
    options: tuple[CompileOption, ...] = field(default=())


def build_kernel(step: Step, program: str) -> KernelModule:
    """The kernel of one step. Raises UnsupportedShapeError for parameters that the kernel does not accept."""
    try:
        return registry()[step.kernel].build(**step.parameters)
    except IllegalShapeError as error:
        raise UnsupportedShapeError(f"program {program}, launch {step.label}: {error}") from error


def build_program(plan: ProgramPlan) -> Program:
    """Builds every kernel of the plan and stitches them.

    Raises StitchError for wrong wiring, UnsupportedShapeError for a shape that a kernel does not accept.
    """
    stitcher = Stitcher(plan.name, plan.arguments)
    for step in plan.steps:
        stitcher.add(build_kernel(step, plan.name), step.wiring, label=step.label)
    return Program.from_module(stitcher.finish(), plan.arguments, plan.name, plan.options)
