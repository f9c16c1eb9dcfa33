"""What goes through the compilers: the six programs of a model, each of their kernels alone, and the programs
of variants that are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.board.compare.items import KERNEL, PROGRAM, random_arguments
from aerie.common.errors import UsageError
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.builder import KernelUse, build_program, kernel_uses
from aerie.multi_launch_builder.program import LaunchPlan, Program, ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shape_limits import check_seq_len, check_shape
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.multi_launch_builder.variants import Variant, plan_by_name, plan_variant_programs

SEED = 1


@dataclass(frozen=True)
class ToolchainSubject:
    """A program, or one kernel as a program of one launch."""

    kind: str
    plan: ProgramPlan
    program: Program

    @property
    def name(self) -> str:
        """The name of the subject and of its texts."""
        return self.program.name

    @property
    def argument_bytes(self) -> int:
        """Bytes of all arguments together."""
        return sum(argument.nbytes for argument in self.program.arguments)

    def arrays(self) -> list[Array]:
        """One array per argument, equal in every call; NaN in arguments that are not read."""
        drawn = random_arguments(self.plan, SEED)
        return [
            drawn[a.name].reshape(a.shape) if a.name in drawn else np.full(a.shape, np.nan, a.dtype.numpy)
            for a in self.program.arguments
        ]


def subject_kinds(shape: ModelShape, seq_len: int) -> dict[str, str]:
    """The kind of every subject of a model, by name; programs first."""
    return dict.fromkeys(plan_programs(shape, seq_len), PROGRAM) | dict.fromkeys(
        kernel_uses(shape, seq_len), KERNEL
    )


def select_subjects(shape: ModelShape, seq_len: int, requested: Sequence[str]) -> list[str]:
    """Resolve names: a kernel's is all its shapes, `kernels` and `programs` all of a kind, a variant's
    (AR-8xCL-512) its programs. No names: the six programs and all kernels.

    Raises UsageError if a name is unknown, UnsupportedShapeError if a variant does not exist.
    """
    kinds = subject_kinds(shape, seq_len)
    chosen: dict[str, None] = {}
    for word in requested or ("programs", "kernels"):
        matches = [name for name, kind in kinds.items() if word in (name, f"{kind}s", name.partition("-")[0])]
        matches = matches or _variant_names(shape, word)
        if not matches:
            raise UsageError(
                f"no kernel or program is called '{word}'; there are: {', '.join(kinds)} "
                "(kernels, programs: all of them; AR-8xCL-512: those of a variant, such as "
                "cached_attn_ar8_cl512)"
            )
        chosen |= dict.fromkeys(matches)
    return [name for name in kinds if name in chosen] + [name for name in chosen if name not in kinds]


def _variant_names(shape: ModelShape, word: str) -> list[str]:
    """The programs of a variant, or the one program of variants with that name; empty if there is none."""
    if word.upper().startswith("AR-"):
        return list(plan_variant_programs(shape, [Variant.parse(word)]))
    plan = plan_by_name(shape, word)
    return [plan.name] if plan else []


def build_subjects(shape: ModelShape, seq_len: int, chosen: Sequence[str]) -> Iterator[ToolchainSubject]:
    """Build the subjects of these names. Raises UnsupportedShapeError if no kernel exists for a shape."""
    plans, uses = plan_programs(shape, seq_len), kernel_uses(shape, seq_len)
    check_shape(shape)
    check_seq_len(seq_len)
    for name in chosen:
        if plan := plans.get(name) or plan_by_name(shape, name):
            yield ToolchainSubject(PROGRAM, plan, build_program(plan))
        else:
            yield _kernel(name, uses[name])


def _kernel(name: str, use: KernelUse) -> ToolchainSubject:
    program = use.program(name)
    wiring = {argument: argument for argument in program.arguments.names}
    step = LaunchPlan(name, use.step.kernel, use.step.parameters, wiring)
    return ToolchainSubject(KERNEL, ProgramPlan(name, program.arguments, (step,), program.options), program)
