"""The kinds of a program's weights: bf16, or blocks of codes (kernel_builder/weight_blocks.py).

A program is planned for weights in bf16, and made from that plan for weights of other kinds: the arguments
become blocks, and the products that read them unpack blocks. Its name then ends with the kinds, one for all
of its matrices, or one for each in the order of its arguments: `o_ffn_ar8_q4`, `o_ffn_ar8_q4_q4_q4_q8`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, byte
from aerie.kernel_builder.weight_blocks import BF16, KINDS, WEIGHT_BLOCKS
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan

MATRICES: Mapping[str, Sequence[str]] = {
    "rms_gemms_rope": ("wq", "wk", "wv", "wg"),
    "rms_gemv_rope": ("wq", "wk", "wv"),
    "rms_gemms": ("wq", "wk", "wv"),
    "rms_gemms_gate": ("w_conv_b", "w_conv_c", "w_conv_x"),
    "rms_gemv_gate": ("w_conv_b", "w_conv_c", "w_conv_x"),
    "rms_gemms_delta": ("w_qkv", "w_z", "w_ab"),
    "o_ffn": ("wo", "w_gate", "w_up", "w_down"),
    "o_gemv_ffn": ("wo", "w_gate", "w_up", "w_down"),
    "o": ("wo",),
    "ffn": ("w_gate", "w_up", "w_down"),
    "lm_head_gemv": ("lm_head",),
    "lm_head": ("lm_head",),
}
"""By the kind of a program: its weights that are matrices, in the order of its arguments; the partitions of
an LM head count as one."""
OF_SOME = frozenset({"wg"})
"""Matrices that only some models have; the kinds of a layer name them where it has them."""
SUFFIX = re.compile(rf"((?:_(?:{'|'.join(KINDS)}))+)$")
WEIGHT_ARGUMENTS = {"gemv": "weight", "gemm": "b", "gemm_rows": "b"}
"""By kernel, its argument that is a weight."""

Kinds: TypeAlias = "Mapping[str, str]"
"""Kinds of weights by argument; those that are not named are bf16."""


@dataclass(frozen=True)
class WeightKinds:
    """The kinds of a model's weights. layers: of each layer, (argument, kind) for all matrices that are not
    bf16, and for those of OF_SOME; () if all of the model are bf16. head: of the LM head.
    """

    layers: tuple[tuple[tuple[str, str], ...], ...] = ()
    head: str = BF16

    def of_layer(self, layer: int) -> dict[str, str]:
        """The kinds of a layer's matrices, and of the LM head, by argument."""
        own = dict(self.layers[layer]) if self.layers else {}
        return own if self.head == BF16 else own | {"lm_head": self.head}

    def name(self, program: str, layer: int = 0) -> str:
        """The name of a program, given without kinds, for the weights of a layer."""
        return name_with_kinds(program, self.of_layer(layer))


def name_with_kinds(program: str, kinds: Kinds) -> str:
    """The name of a program, given without kinds, for weights of these kinds."""
    matrices = MATRICES.get(_kind_of(program), ())
    found = [kinds.get(matrix, BF16) for matrix in matrices if matrix not in OF_SOME or matrix in kinds]
    if all(kind == BF16 for kind in found):
        return program
    return "_".join([program, *(found[:1] if len(set(found)) == 1 else found)])


def split_name(name: str) -> tuple[str, list[str]]:
    """A program's name without its kinds, and these; [] for bf16."""
    match = SUFFIX.search(name)
    return (name, []) if match is None else (name[: match.start()], match[1].strip("_").split("_"))


def _kind_of(program: str) -> str:
    return re.sub(r"_ar\d+(_cl\d+)?$", "", program)


def plan_with_kinds(plan: ProgramPlan, kinds: Sequence[str]) -> ProgramPlan:
    """The plan for weights of these kinds: one for all of its matrices, or one for each.

    Raises ValueError if their number is another.
    """
    if not kinds:
        return plan
    matrices = [a for a in plan.arguments if a.role is Role.WEIGHT and len(a.shape) == 2]
    if len(kinds) not in (1, len(matrices)):
        raise ValueError(
            f"{plan.name} has {len(matrices)} matrices, and {len(kinds)} kinds are given; give one for all, "
            "or one for each"
        )
    each = kinds if len(kinds) > 1 else [*kinds] * len(matrices)
    by_name = {a.name: kind for a, kind in zip(matrices, each, strict=True) if kind != BF16}
    arguments = ArgumentTable(_argument(argument, by_name) for argument in plan.arguments)
    launches = tuple(_launch(launch, by_name) for launch in plan.launches)
    return replace(plan, name="_".join([plan.name, *kinds]), arguments=arguments, launches=launches)


def plans_with_kinds(plans: Mapping[str, ProgramPlan], kinds: Sequence[str]) -> dict[str, ProgramPlan]:
    """These plans, by name; those of programs with matrices for weights of these kinds."""
    made = (plan_with_kinds(plan, kinds if plan.kind in MATRICES else ()) for plan in plans.values())
    return {plan.name: plan for plan in made}


def _argument(argument: Argument, kinds: Kinds) -> Argument:
    if argument.name not in kinds:
        return argument
    rows, columns = argument.shape
    return replace(argument, shape=WEIGHT_BLOCKS[kinds[argument.name]].shape(rows, columns), dtype=byte)


def _launch(launch: LaunchPlan, kinds: Kinds) -> LaunchPlan:
    weight = launch.wiring.get(WEIGHT_ARGUMENTS.get(launch.kernel, ""), "")
    if weight not in kinds:
        return launch
    return replace(launch, parameters={**launch.parameters, "weight": kinds[weight]})
