"""The instruction sets that both sides can be limited to, how, and whether it took effect.

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
class Limits:
    """How a set is asked of either side, and what is wanted of the comparison in it.

    march: value of VNPU_MARCH, without what `optional` of the set adds. aten, onednn, mkl: values of theirs.
    capability: what torch says of itself then. least: the least figure that is wanted, by its kind
    (figures.py); none on ARM, which nobody has measured.
    """

    march: str
    aten: str
    onednn: str
    mkl: str
    capability: str
    least: Mapping[str, float]


def _least(prefill: float, decode: float, memory: float) -> Mapping[str, float]:
    """Targets of a set: ratios of speed, and the share of memory's bandwidth that decoding takes."""
    return {"prefill_ratio": prefill, "decode_ratio": decode, "gemv_share": memory, "attention_share": memory}


LIMITS = {
    "avx2": Limits("x86-64-v3", "avx2", "AVX2", "AVX2", "AVX2", _least(1.5, 1.5, 0.7)),
    "avx512": Limits("x86-64-v4", "avx512", "AVX512_CORE", "AVX512", "AVX512", _least(1.2, 1.5, 0.8)),
    "avx512_bf16": Limits(
        *("x86-64-v4+avx512bf16", "avx512", "AVX512_CORE_BF16", "AVX512_E3", "AVX512"), _least(1.0, 2.0, 0.8)
    ),
    "amx": Limits(
        *("x86-64-v4+avx512bf16+amx-tile+amx-bf16", "avx512", "AVX512_CORE_AMX", "AVX512_E4", "AVX512"),
        _least(1.0, 1.5, 0.8),
    ),
    "neon": Limits("armv8-a", "default", "", "", "DEFAULT", {}),
    "neon_bf16": Limits("armv8.2-a+bf16", "default", "", "", "DEFAULT", {}),
}
"""By the set's name (aerie/common/cpu.py)."""

BEYOND = {"avx2": ("AVX-512", "bfloat16", "AMX"), "avx512": ("bfloat16", "AMX"), "avx512_bf16": ("AMX",)}
"""Words of oneDNN's line on what it uses that say that it was not limited to a set."""

VARIABLES = (knobs.MARCH.name, "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
ALSO_READ = ("DNNL_MAX_CPU_ISA",)


@dataclass(frozen=True)
class Choice:
    """What one comparison is limited to: a set of this CPU, or all that it has.

    best: the set, or the best of this CPU; None where none is known.
    """

    name: str
    best: cpu.InstructionSet | None

    @property
    def title(self) -> str:
        known = self.best.title if self.best else "unknown"
        return f"native, {known}" if self.name == NATIVE else known

    @property
    def limits(self) -> Limits | None:
        return LIMITS[self.best.name] if self.best else None

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the processes of both sides."""
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

    def check(self, theirs: Mapping[str, Any]) -> None:
        """Raises UserError where the other side is not limited as it was told to be.

        theirs: as `Theirs.instructions` gives it.
        """
        if not self.environment or not self.limits:
            return
        beyond = [word for word in BEYOND.get(self.name, ()) if word in theirs["onednn"]]
        if theirs["torch"] == self.limits.capability and not beyond:
            return
        told = " ".join(f"{name}={value}" for name, value in self.environment.items())
        raise UserError(
            f"transformers is not limited to {self.title}: torch says {theirs['torch']}, oneDNN "
            f"'{theirs['onednn']}', though {told} was set; so nothing is compared. Is it another release of "
            "torch than constraints.txt names?"
        )


def choose(isa: str) -> list[Choice]:
    """The comparisons that ISA asks for, in order: a set's name, `native`, or `all` sets that this CPU has.

    Raises UserError for a name that is none, for a set that this CPU lacks, and where one side is limited.
    """
    found = cpu.instruction_sets()
    best = found[-1] if found else None
    offered = [*(each.name for each in found), NATIVE, ALL]
    _check_environment()
    if isa == ALL and found:
        return [Choice(each.name, each) for each in found]
    if isa in (NATIVE, ALL):
        return [Choice(NATIVE, best)]
    if isa not in LIMITS:
        raise UserError(f"ISA={isa} is no instruction set that is known; give one of {', '.join(offered)}")
    for each in found:
        if each.name == isa:
            return [Choice(isa, each)]
    raise UserError(f"ISA={isa}: this CPU has no such instructions; give one of {', '.join(offered)}")


def _check_environment() -> None:
    for name in (*VARIABLES, *ALSO_READ):
        if os.environ.get(name):
            raise UserError(
                f"{name}={os.environ[name]} limits one side alone, and the comparison would be none; unset "
                "it, and limit both with ISA=..."
            )
