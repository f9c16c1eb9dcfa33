"""How far ours may be from the reference, with the measurement behind each number."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llama32_1b.session import Session
from runtime.toolchain import VirtualToolchain


@dataclass(frozen=True)
class Bounds:
    """What passes. But for `top_k`, each is a multiple of what rounding to bf16 does to the reference itself
    on the same positions.

    `rms`, `largest` and `bias` are times its rms; `kl` is times its mean KL, and `noise_kl` times its squared
    rms is added, because the KL of a sure distribution can be as good as nothing. Over n positions the bounds
    of `rms` and `noise_kl` are those given plus 1/n of what is allowed `at_one` beyond it; that of the bias
    is `bias_at_one` / sqrt(n).
    """

    top_k: int
    rms: float
    rms_at_one: float
    kl: float
    noise_kl: float
    noise_kl_at_one: float
    largest: float
    bias_at_one: float


EXACT = Bounds(
    top_k=5,
    rms=2.0,
    rms_at_one=6.0,
    kl=6.0,
    noise_kl=0.05,
    noise_kl_at_one=1.0,
    largest=25.0,
    bias_at_one=3.0,
)
BFP16 = replace(EXACT, rms=5.0, rms_at_one=12.0, kl=25.0, noise_kl=0.2, largest=50.0)


def numerics_of(session: Session) -> str:
    """How matrix products are made: exact or bfp16 on the virtual NPU, else the backend's name."""
    toolchain = session.cache.backend.toolchain
    return toolchain.options.numerics if isinstance(toolchain, VirtualToolchain) else session.backend


def bounds_of(session: Session) -> Bounds:
    return EXACT if numerics_of(session) == "exact" else BFP16
