"""What is compared, and on which numbers: every case of every kernel, and the demo model's programs.

The programs are the six, and those of two variants: of few rows, and of many.

A kernel's case is a program of one launch, compiled with the options that the programs give that kernel. The
numbers are random, from a seed, with the statistics of a model's layer, because small random numbers would
hide what large ones show. A few channels of the residual stream are many times larger than the rest, gains of
a norm are around 1, a product's weights are scaled so that its result keeps the size of its input, and RoPE's
table has cosines and sines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aerie.common.errors import UsageError
from aerie.kernel_builder.arguments import WRITTEN_ROLES, Argument, Role
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import Array
from aerie.multi_launch_builder.builder import build_kernel
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.programs import PLANS, plan_programs
from aerie.multi_launch_builder.shapes import DEMO, DEMO_SEQ_LEN
from aerie.multi_launch_builder.variants import Variant, plan_variant_programs

KERNEL, PROGRAM = "kernel", "program"
VARIANTS = (Variant(8, 512), Variant(64, 512))


@dataclass(frozen=True, order=True)
class ComparisonItem:
    """One kernel case or program to compare. case: counts the cases of a kernel; None for a program."""

    kind: str
    name: str
    case: int = 0

    @property
    def parameters(self) -> str:
        """The parameters that distinguish the cases of a kernel, as text."""
        if self.kind == PROGRAM:
            return f"the demo's, {DEMO_SEQ_LEN} positions" if self.name in PLANS else "the demo's"
        case = all_kernels()[self.name].cases[self.case]
        return " ".join(f"{name}={value}" for name, value in case.items() if value is not None)

    def __str__(self) -> str:
        return self.name if self.kind == PROGRAM else f"{self.name}[{self.case}]"


def all_items() -> tuple[ComparisonItem, ...]:
    """Every case of every kernel, then every program."""
    cases = (
        ComparisonItem(KERNEL, name, case)
        for name, spec in all_kernels().items()
        for case in range(len(spec.cases))
    )
    return (*cases, *(ComparisonItem(PROGRAM, name) for name in demo_plans()))


def choose(names: Sequence[str], first_cases: bool = False) -> tuple[ComparisonItem, ...]:
    """The items of these names: `gemm` is all its cases, `gemm[2]` one case, `o_ffn` the program, `kernels`
    and `programs` all of a kind. No names: all items.

    first_cases: take only the first case of a kernel that is named without a case. Raises UsageError if a
    name is unknown.
    """
    items = [item for item in all_items() if not (first_cases and item.case)]
    if not names:
        return tuple(items)
    chosen = dict.fromkeys(item for name in names for item in _named(name, items))
    return tuple(chosen)


def _named(name: str, items: Iterable[ComparisonItem]) -> list[ComparisonItem]:
    matches = [item for item in items if name in (item.name, f"{item.kind}s")]
    matches = matches or [item for item in all_items() if str(item) == name]
    if matches:
        return matches
    names = ", ".join((*all_kernels(), *demo_plans()))
    raise UsageError(
        f"no kernel or program is called '{name}'; there are: {names} (gemm[2] is one case; "
        "kernels, programs: all of them)"
    )


def plan_item(item: ComparisonItem) -> ProgramPlan:
    """The launches of an item."""
    return demo_plans()[item.name] if item.kind == PROGRAM else _plan_kernel(item)


@functools.cache
def demo_plans() -> Mapping[str, ProgramPlan]:
    """The demo's programs that are compared, by name."""
    return plan_programs(DEMO, DEMO_SEQ_LEN) | plan_variant_programs(DEMO, VARIANTS)


def _plan_kernel(item: ComparisonItem) -> ProgramPlan:
    """A kernel alone, between its own arguments."""
    name, case = item.name, all_kernels()[item.name].cases[item.case]
    table = build_kernel(LaunchPlan(name, name, case, {}), name).arguments
    users = [plan for plan in demo_plans().values() if name in {step.kernel for step in plan.launches}]
    options = {option.flag: option for plan in users for option in plan.options}
    step = LaunchPlan(name, name, case, {argument: argument for argument in table.names})
    return ProgramPlan(name, table, (step,), tuple(options.values()))


LOUD_CHANNELS, LOUDNESS = 32, 8.0
"""One channel in LOUD_CHANNELS is LOUDNESS times larger, as in the residual streams of trained decoders."""
ROPE_BASE = 500000.0
"""Llama 3's base of the rotation's frequencies."""


def random_arguments(plan: ProgramPlan, seed: int) -> dict[str, Array]:
    """A random array for every argument of the plan that is read, by name."""
    rng = np.random.default_rng(seed)
    read = {a.name: a for a in plan.arguments if a.role not in WRITTEN_ROLES}
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
    """Cosines, then sines: one row per position, from a random position on."""
    half = shape[-1] // 2
    positions = int(rng.integers(0, 64)) + np.arange(shape[0] if len(shape) > 1 else 1)
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(half) / half)
    table: Array = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    return table.reshape(shape)


def _kernels_own(
    plan: ProgramPlan, read: Mapping[str, Argument], rng: np.random.Generator
) -> dict[str, Array]:
    """The arrays that a kernel generates itself, because other numbers are not valid for it."""
    drawn: dict[str, Array] = {}
    for step in plan.launches:
        own = all_kernels()[step.kernel].random_inputs
        for inner, array in (own(step.parameters, rng) if own else {}).items():
            if (name := step.wiring[inner]) in read:
                drawn[name] = array.astype(read[name].dtype.numpy)
    return drawn
