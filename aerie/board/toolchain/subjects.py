"""What goes through the compilers: the six programs of a model, each of their kernels alone, and the programs
of variants that are asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.board.compare.items import KERNEL, PROGRAM, draw
from aerie.common.errors import UsageError
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.building import KernelUse, build_program, kernel_uses
from aerie.multi_launch_builder.limits import check_seq_len, check_shape
from aerie.multi_launch_builder.program import Program, ProgramPlan, Step
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import ModelShape
from aerie.multi_launch_builder.variants import Variant, plan_named, plan_variant_programs

SEED = 1


@dataclass(frozen=True)
class Subject:
    """A program, or a kernel alone, which is a program of one launch."""

    kind: str
    plan: ProgramPlan
    program: Program

    @property
    def name(self) -> str:
        """Its name, which is also that of its texts."""
        return self.program.name

    @property
    def argument_bytes(self) -> int:
        """Bytes of all arguments together."""
        return sum(argument.nbytes for argument in self.program.arguments)

    def arrays(self) -> list[Array]:
        """An array per argument, the same at every call; NaN where nothing is read."""
        drawn = draw(self.plan, SEED)
        return [
            drawn[a.name].reshape(a.shape) if a.name in drawn else np.full(a.shape, np.nan, a.dtype.numpy)
            for a in self.program.arguments
        ]


def names(shape: ModelShape, seq_len: int) -> dict[str, str]:
    """The kind of every subject of a model, by name: programs first."""
    return dict.fromkeys(plan_programs(shape, seq_len), PROGRAM) | dict.fromkeys(
        kernel_uses(shape, seq_len), KERNEL
    )


def choose(shape: ModelShape, seq_len: int, asked: Sequence[str]) -> list[str]:
    """The names asked for, a kernel's for all its shapes, `kernels` and `programs` for all of a kind, a
    variant's (AR-8xCL-512) for its programs; none asked: the six programs and all kernels. Raises UsageError
    for a name that is none, UnsupportedShapeError for a variant that is none."""
    known = names(shape, seq_len)
    chosen: dict[str, None] = {}
    for word in asked or ("programs", "kernels"):
        found = [name for name, kind in known.items() if word in (name, f"{kind}s", name.partition("-")[0])]
        found = found or _of_variants(shape, word)
        if not found:
            raise UsageError(
                f"no kernel or program is called '{word}'; there are: {', '.join(known)} "
                "(kernels, programs: all of them; AR-8xCL-512: those of a variant, such as "
                "cached_attn_ar8_cl512)"
            )
        chosen |= dict.fromkeys(found)
    return [name for name in known if name in chosen] + [name for name in chosen if name not in known]


def _of_variants(shape: ModelShape, word: str) -> list[str]:
    """The programs of a variant, or the one program of variants, that is called so; none."""
    if word.upper().startswith("AR-"):
        return list(plan_variant_programs(shape, [Variant.parse(word)]))
    plan = plan_named(shape, word)
    return [plan.name] if plan else []


def build(shape: ModelShape, seq_len: int, chosen: Sequence[str]) -> Iterator[Subject]:
    """The subjects of these names. Raises UnsupportedShapeError for a shape that no kernel is built for."""
    plans, uses = plan_programs(shape, seq_len), kernel_uses(shape, seq_len)
    check_shape(shape)
    check_seq_len(seq_len)
    for name in chosen:
        if plan := plans.get(name) or plan_named(shape, name):
            yield Subject(PROGRAM, plan, build_program(plan))
        else:
            yield _kernel(name, uses[name])


def _kernel(name: str, use: KernelUse) -> Subject:
    program = use.program(name)
    wiring = {argument: argument for argument in program.arguments.names}
    step = Step(name, use.step.kernel, use.step.parameters, wiring)
    return Subject(KERNEL, ProgramPlan(name, program.arguments, (step,), program.options), program)
