"""Refuses before aircc starts what cannot be built: mlir-air accepts it, and fails late or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.errors import CompileError
from runtime.toolchain import KERNEL_SOURCES, first_lines
from virtual_npu.errors import VirtualNpuError
from virtual_npu.static import NPU2, Report, check

if TYPE_CHECKING:
    from multi_launch_builder.program import Program


def preflight(program: Program) -> list[str]:
    """The static check's warnings for a program with its own options. Raises CompileError with its faults."""
    try:
        report = _checked(program)
    except VirtualNpuError as error:
        raise CompileError(program.name, f"its text cannot be checked: {error}") from error
    if report.ok:
        return [f"warning: {warning}" for warning in report.warnings]
    count = len(report.faults)
    found = first_lines("\n".join(map(str, report.faults)))
    raise CompileError(
        program.name,
        f"the check before aircc found {count} thing{'s' * (count != 1)} that {NPU2.name} cannot do "
        f"(`python -m virtual_npu check` shows them beside the limits):\n{found}",
    )


def _checked(program: Program) -> Report:
    stack = program.option("--stack-size")
    return check(
        program.text,
        NPU2,
        ping_pong=program.option("--omit-ping-pong-transform") != "all",
        stack_bytes=int(stack) if stack else None,
        kernel_dirs=(KERNEL_SOURCES,),
        bf16_emulation=program.option("--bf16-emulation") is not None,
        filename=f"{program.name}.mlir",
    )
