"""What is compared: every case of every kernel, and the demo model's programs; and on which numbers.

The programs are the six, and those of two variants: of few rows, and of many.

A kernel's case is a program of one launch, compiled with the options that the programs give that kernel. The
numbers are drawn from a seed, and like those of a model's layer: small random numbers would not show what
large ones do. A decoder's residual stream has a few channels many times larger than the rest, gains of a norm
lie around 1, a product's weights are scaled so that what they are multiplied with keeps its size, and RoPE's
table holds cosines and sines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.common.errors import UsageError
from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES, Argument, Role
from aerie.kernel_builder.kernels import registry
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.building import build_kernel
from aerie.multi_launch_builder.program import ProgramPlan, Step
from aerie.multi_launch_builder.programs import PLANS, plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from aerie.multi_launch_builder.variants import Variant, plan_variant_programs

KERNEL, PROGRAM = "kernel", "program"
VARIANTS = (Variant(8, 512), Variant(64, 512))


@dataclass(frozen=True, order=True)
class Item:
    """One thing that is compared. `case` counts the cases of a kernel; a program has one."""

    kind: str
    name: str
    case: int = 0

    @property
    def parameters(self) -> str:
        """What tells the cases of a kernel apart, in words."""
        if self.kind == PROGRAM:
            return f"the demo's, {DEMO_SEQ_LEN} positions" if self.name in PLANS else "the demo's"
        case = registry()[self.name].cases[self.case]
        return " ".join(f"{name}={value}" for name, value in case.items() if value is not None)

    def __str__(self) -> str:
        return self.name if self.kind == PROGRAM else f"{self.name}[{self.case}]"


def all_items() -> tuple[Item, ...]:
    """Every case of every kernel, then every program."""
    cases = (Item(KERNEL, name, case) for name, spec in registry().items() for case in range(len(spec.cases)))
    return (*cases, *(Item(PROGRAM, name) for name in demo_plans()))


def choose(names: Sequence[str], first_cases: bool = False) -> tuple[Item, ...]:
    """The items of these names: `gemm` all its cases, `gemm[2]` one, `o_ffn` the program, `kernels` and
    `programs` all of the kind; none: all.

    first_cases: of a kernel that is named without a case, the first alone. Raises UsageError for a name that
    is none.
    """
    known = [item for item in all_items() if not (first_cases and item.case)]
    if not names:
        return tuple(known)
    chosen = dict.fromkeys(item for name in names for item in _named(name, known))
    return tuple(chosen)


def _named(name: str, known: Iterable[Item]) -> list[Item]:
    found = [item for item in known if name in (item.name, f"{item.kind}s")]
    found = found or [item for item in all_items() if str(item) == name]
    if found:
        return found
    names = ", ".join((*registry(), *demo_plans()))
    raise UsageError(
        f"no kernel or program is called '{name}'; there are: {names} (gemm[2] is one case; "
        "kernels, programs: all of them)"
    )


def plan_of(item: Item) -> ProgramPlan:
    """The launches of an item."""
    return demo_plans()[item.name] if item.kind == PROGRAM else _of_one(item)


@functools.cache
def demo_plans() -> Mapping[str, ProgramPlan]:
    """The demo's programs that are compared, by name."""
    return plan_programs(DEMO, DEMO_SEQ_LEN) | plan_variant_programs(DEMO, VARIANTS)


def _of_one(item: Item) -> ProgramPlan:
    """A kernel alone, between its own arguments."""
    name, case = item.name, registry()[item.name].cases[item.case]
    table = build_kernel(Step(name, name, case, {}), name).arguments
    users = [plan for plan in demo_plans().values() if name in {step.kernel for step in plan.steps}]
    options = {option.flag: option for plan in users for option in plan.options}
    step = Step(name, name, case, {argument: argument for argument in table.names})
    return ProgramPlan(name, table, (step,), tuple(options.values()))


LOUD_CHANNELS, LOUDNESS = 32, 8.0
"""One channel in so many is so many times larger, as in the residual streams of trained decoders."""
ROPE_BASE = 500000.0
"""Llama 3's base of the rotation's frequencies."""


def draw(plan: ProgramPlan, seed: int) -> dict[str, Array]:
    """An array for every argument of the plan that is read, by name."""
    rng = np.random.default_rng(seed)
    read = {a.name: a for a in plan.arguments if a.role not in OVERWRITTEN_ROLES}
    arrays = {name: _numbers(argument, rng).astype(argument.dtype.numpy) for name, argument in read.items()}
    return {**arrays, **_kernels_own(plan, read, rng)}


def _numbers(argument: Argument, rng: np.random.Generator) -> Array:
    shape = argument.shape
    if "lut" in argument.name or argument.name.startswith("rope_row"):
        return _rotations(shape, rng)
    if argument.role is Role.WEIGHT and len(shape) == 1:
        return rng.normal(1, 0.1, shape)
    numbers: Array = rng.standard_normal(shape)
    if argument.role is Role.WEIGHT:
        numbers /= np.sqrt(max(shape))
    elif argument.name == "x":
        numbers[..., ::LOUD_CHANNELS] *= LOUDNESS
    return numbers


def _rotations(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Cosines, then sines: one row per position, from any position on."""
    half = shape[-1] // 2
    positions = int(rng.integers(0, 64)) + np.arange(shape[0] if len(shape) > 1 else 1)
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    table: Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return table.reshape(shape)


def _kernels_own(
    plan: ProgramPlan, read: Mapping[str, Argument], rng: np.random.Generator
) -> dict[str, Array]:
    """What a kernel draws for itself because other numbers make no sense to it."""
    drawn: dict[str, Array] = {}
    for step in plan.steps:
        own = registry()[step.kernel].random_inputs
        for inner, array in (own(step.parameters, rng) if own else {}).items():
            if (name := step.wiring[inner]) in read:
                drawn[name] = array.astype(read[name].dtype.numpy)
    return drawn
