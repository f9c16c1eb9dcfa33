"""What goes through the compilers: the six programs of a model, each of their kernels alone, and the programs
of variants that are named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.board.compare.items import KERNEL, PROGRAM, random_arguments
from aerie.common.errors import UsageError
from aerie.kernel_builder.spec import Array
from aerie.kernel_builder.weight_blocks import BF16
from aerie.multi_launch_builder.builder import KernelUse, build_program, kernel_uses
from aerie.multi_launch_builder.program import LaunchPlan, Program, ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shape_limits import check_seq_len, check_shape
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.multi_launch_builder.variants import Variant, plan_by_name, plan_variant_programs
from aerie.multi_launch_builder.weight_kinds import plans_with_kinds, split_name

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


@dataclass(frozen=True)
class SubjectChoice:
    """What there is to choose from: the programs and kernels of a model, and of its variants.

    weights: the kind of all matrices, `bf16`, `q8` or `q4`.
    """

    shape: ModelShape
    seq_len: int
    weights: str = BF16

    @property
    def kinds(self) -> list[str]:
        """The kinds of a program's weights, as its plan takes them."""
        return [] if self.weights == BF16 else [self.weights]

    @functools.cached_property
    def plans(self) -> dict[str, ProgramPlan]:
        """The plans of the six programs."""
        return plans_with_kinds(plan_programs(self.shape, self.seq_len), self.kinds)

    @functools.cached_property
    def uses(self) -> dict[str, KernelUse]:
        """Every kernel at each of its shapes."""
        return kernel_uses(self.shape, self.seq_len, self.kinds)

    def select(self, requested: Sequence[str]) -> list[str]:
        """Resolve names: a kernel's is all its shapes, `kernels` and `programs` all of a kind, a variant's
        (AR-8xCL-512) its programs. No names: the six programs and all kernels.

        Raises UsageError if a name is unknown, UnsupportedShapeError if a variant does not exist.
        """
        kinds = dict.fromkeys(self.plans, PROGRAM) | dict.fromkeys(self.uses, KERNEL)
        chosen: dict[str, None] = {}
        for word in requested or ("programs", "kernels"):
            matches = [
                name
                for name, kind in kinds.items()
                if word in (name, split_name(name)[0], f"{kind}s", name.partition("-")[0])
            ]
            matches = matches or [*self.variant_plans(word)]
            if not matches:
                raise UsageError(
                    f"no kernel or program is called '{word}'; there are: {', '.join(kinds)} "
                    "(kernels, programs: all of them; AR-8xCL-512: those of a variant, such as "
                    "cached_attn_ar8_cl512)"
                )
            chosen |= dict.fromkeys(matches)
        return [name for name in kinds if name in chosen] + [name for name in chosen if name not in kinds]

    def variant_plans(self, word: str) -> dict[str, ProgramPlan]:
        """The plans of a variant, or of the one program of variants with that name; empty if there is none.

        A name may have kinds of weights, which then count instead of `weights`.
        """
        if word.upper().startswith("AR-"):
            return plans_with_kinds(plan_variant_programs(self.shape, [Variant.parse(word)]), self.kinds)
        base, kinds = split_name(word)
        plan = plan_by_name(self.shape, base) or plan_programs(self.shape, self.seq_len).get(base)
        return plans_with_kinds({base: plan}, kinds or self.kinds) if plan else {}

    def build(self, chosen: Sequence[str]) -> Iterator[ToolchainSubject]:
        """Build the subjects of these names. Raises UnsupportedShapeError if no kernel exists for a shape."""
        check_shape(self.shape)
        check_seq_len(self.seq_len)
        for name in chosen:
            if plan := self.plans.get(name) or self.variant_plans(name).get(name):
                yield ToolchainSubject(PROGRAM, plan, build_program(plan))
            else:
                yield _kernel(name, self.uses[name])


def _kernel(name: str, use: KernelUse) -> ToolchainSubject:
    program = use.program(name)
    wiring = {argument: argument for argument in program.arguments.names}
    step = LaunchPlan(name, use.step.kernel, use.step.parameters, wiring)
    return ToolchainSubject(KERNEL, ProgramPlan(name, program.arguments, (step,), program.options), program)
