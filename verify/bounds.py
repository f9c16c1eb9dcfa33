"""How far ours may be from the reference, with the measurement behind each number."""

from __future__ import annotations

from dataclasses import dataclass

from llama32_1b.session import Session
from runtime.toolchain import VirtualToolchain


@dataclass(frozen=True)
class Bounds:
    """What passes. But for `top_k`, each is a multiple of what rounding to bf16 does to the reference
    itself on the same positions: `kl` of its mean KL, `kl_of_noise` of its squared rms, the others of its
    rms."""

    top_k: int
    rms: float
    rms_at_one: float
    kl: float
    kl_of_noise: float
    largest: float
    bias: float
    overall_bias: float


EXACT = Bounds(
    top_k=5, rms=2.0, rms_at_one=6.0, kl=6.0, kl_of_noise=0.05, largest=25.0, bias=0.7, overall_bias=0.25
)
BFP16 = EXACT


def numerics_of(session: Session) -> str:
    """How matrix products are made: exact or bfp16 on the virtual NPU, else the backend's name."""
    toolchain = session.cache.backend.toolchain
    return toolchain.options.numerics if isinstance(toolchain, VirtualToolchain) else session.backend


def bounds_of(session: Session) -> Bounds:
    return EXACT if numerics_of(session) == "exact" else BFP16
