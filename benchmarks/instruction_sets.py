"""The instruction sets that both sides can be limited to, how, and whether that has an effect.

Ours by VNPU_MARCH. Theirs has three parts that choose instructions when a process starts: torch's own vectors
(ATEN_CPU_CAPABILITY; aten/src/ATen/native/DispatchStub.cpp), oneDNN, which multiplies bf16 matrices
(ONEDNN_MAX_CPU_ISA; its developer guide, "CPU Dispatcher Control"), and MKL (MKL_ENABLE_INSTRUCTIONS; its
developer guide, "Instruction Set Specific Dispatching": on Intel's CPUs only). On ARM torch can be kept from
SVE, but not from BF16 instructions where a CPU has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerie.common import cpu, knobs
from aerie.common.errors import UserError

NATIVE, ALL = "native", "all"


@dataclass(frozen=True)
class InstructionSetLimits:
    """How both sides are limited to an instruction set, and the targets of the comparison.

    march: value of VNPU_MARCH, without the features in `optional` of the set. aten, onednn, mkl: values for
    torch. capability: what torch reports then. targets: minimum figures, by kind (figures.py); none on ARM,
    where nothing was measured.
    """

    march: str
    aten: str
    onednn: str
    mkl: str
    capability: str
    targets: Mapping[str, float]


def _targets(prefill: float, decode: float, memory: float) -> Mapping[str, float]:
    """Targets of a set: ratios of speed, and the share of memory bandwidth in decode."""
    return {"prefill_ratio": prefill, "decode_ratio": decode, "gemv_share": memory, "attention_share": memory}


LIMITS = {
    "avx2": InstructionSetLimits("x86-64-v3", "avx2", "AVX2", "AVX2", "AVX2", _targets(1.5, 1.5, 0.7)),
    "avx512": InstructionSetLimits(
        "x86-64-v4", "avx512", "AVX512_CORE", "AVX512", "AVX512", _targets(1.2, 1.5, 0.8)
    ),
    "avx512_bf16": InstructionSetLimits(
        *("x86-64-v4+avx512bf16", "avx512", "AVX512_CORE_BF16", "AVX512_E3", "AVX512"),
        _targets(1.0, 2.0, 0.8),
    ),
    "amx": InstructionSetLimits(
        *("x86-64-v4+avx512bf16+amx-tile+amx-bf16", "avx512", "AVX512_CORE_AMX", "AVX512_E4", "AVX512"),
        _targets(1.0, 1.5, 0.8),
    ),
    "neon": InstructionSetLimits("armv8-a", "default", "", "", "DEFAULT", {}),
    "neon_bf16": InstructionSetLimits("armv8.2-a+bf16", "default", "", "", "DEFAULT", {}),
}
"""By the set's name (aerie/common/cpu.py)."""

ONEDNN_WORDS_BEYOND = {
    "avx2": ("AVX-512", "bfloat16", "AMX"),
    "avx512": ("bfloat16", "AMX"),
    "avx512_bf16": ("AMX",),
}
"""Words in oneDNN's line that mean it was not limited to a set."""

VARIABLES = (knobs.MARCH.name, "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
OLD_VARIABLES = ("DNNL_MAX_CPU_ISA",)


@dataclass(frozen=True)
class SelectedSet:
    """What one comparison is limited to: an instruction set of this CPU, or everything it has.

    best: the set, or the best of this CPU; None if none is known.
    """

    name: str
    best: cpu.InstructionSet | None

    @property
    def title(self) -> str:
        best_title = self.best.title if self.best else "unknown"
        return f"native, {best_title}" if self.name == NATIVE else best_title

    @property
    def limits(self) -> InstructionSetLimits | None:
        return LIMITS[self.best.name] if self.best else None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of both sides' processes."""
        if self.name == NATIVE or not self.best:
            return {}
        limits = LIMITS[self.best.name]
        also = [name for name in self.best.optional if name in cpu.cpu_features()]
        march = "+".join((limits.march, *also))
        return {
            name: value
            for name, value in zip(VARIABLES, (march, limits.aten, limits.onednn, limits.mkl), strict=True)
            if value
        }

    def check(self, reported: Mapping[str, Any]) -> None:
        """Raise UserError if transformers is not limited to the set.

        theirs: as `TransformersSide.instructions` returns it.
        """
        if not self.environment or not self.limits:
            return
        beyond = [word for word in ONEDNN_WORDS_BEYOND.get(self.name, ()) if word in reported["onednn"]]
        if reported["torch"] == self.limits.capability and not beyond:
            return
        variables = " ".join(f"{name}={value}" for name, value in self.environment.items())
        raise UserError(
            f"transformers is not limited to {self.title}: torch says {reported['torch']}, oneDNN "
            f"'{reported['onednn']}', though {variables} was set; so nothing is compared. Is it another "
            "release of torch than constraints.txt names?"
        )


def choose(isa: str) -> list[SelectedSet]:
    """The comparisons for ISA, in order: a set's name, `native`, or `all` sets of this CPU.

    Raises UserError if the name is unknown, the CPU lacks the set, or the environment limits one side.
    """
    available = cpu.instruction_sets()
    best = available[-1] if available else None
    offered = [*(instruction_set.name for instruction_set in available), NATIVE, ALL]
    _check_environment()
    if isa == ALL and available:
        return [SelectedSet(instruction_set.name, instruction_set) for instruction_set in available]
    if isa in (NATIVE, ALL):
        return [SelectedSet(NATIVE, best)]
    if isa not in LIMITS:
        raise UserError(f"ISA={isa} is no instruction set that is known; give one of {', '.join(offered)}")
    for instruction_set in available:
        if instruction_set.name == isa:
            return [SelectedSet(isa, instruction_set)]
    raise UserError(f"ISA={isa}: this CPU has no such instructions; give one of {', '.join(offered)}")


def _check_environment() -> None:
    for name in (*VARIABLES, *OLD_VARIABLES):
        if os.environ.get(name):
            raise UserError(
                f"{name}={os.environ[name]} limits one side alone, and the comparison would be none; unset "
                "it, and limit both with ISA=..."
            )
