"""How far ours may be from the reference, with the measurement behind each number.

The yardstick is measured in each run, on the same positions: how far the reference in bf16 is from itself in
float32. A model that amplifies rounding amplifies both, so one set of bounds does for the demo (rms of about
0.7 % of the logits' standard deviation) and for random Llamas of 6 layers (3 %), where absolute bounds would
be four times too wide for the one or too narrow for the other.

Measured on the virtual NPU with every prompt of `make verify-full`: the demo, and 8 random Llamas (1 to 6
layers, 2/2 to 9/3 heads of 32 to 128, tied and untied, hidden size 64 to 576, and one layer of full size,
2048/8192 with 32/8 heads); in multiples of the yardstick, the largest of all:

                      rms   rms at one   largest   mean KL   bias (32 steps)   place
    exact, demo       1.40      3.4        12.6      2.4          0.20           2
    exact, random     0.92      2.5         8.0      2.3          0.02           3
    bfp16, demo       1.81      3.8        16.9      3.3          0.18           2
    bfp16, random     3.44      6.7        21.5     12.4          0.06           5

A mean over few positions is nearer to that of one: over 16 the bias reached 0.48, at one position 2.5.

With the programs computed in numpy, whose sums run in another order, 14 shapes gave rms 1.1 to 1.4, at one at
most 3.3, mean KL at most 5.4 times (a distribution so sure that its KL is 3e-5 nats).

Faults in the demo (tests/verify/faults.py), the largest rms of two prompts and the positions of one: bf16 by
truncation everywhere 3.2, a mask that sees one position more or fewer 7.9 to 56, heads swapped in a layer 7
to 34, RMSNorm epsilon 1e-6 in the programs 23, RoPE without llama3 scaling 140. So `rms` tells the subtlest
of them from health, with margin on both sides. Truncation in the SwiGLU or the RMSNorm alone (1.3) cannot be
told from rounding; nor can the epsilon of the final RMSNorm, where the row is large.
"""

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
# Emulated products leave up to 3.4 times the yardstick in a healthy random model (table above), so of the
# faults below truncation passes here. On the demo alone the exact bounds would do.
BFP16 = replace(EXACT, rms=5.0, rms_at_one=12.0, kl=25.0, noise_kl=0.2, largest=50.0)


def numerics_of(session: Session) -> str:
    """How matrix products are made: exact or bfp16 on the virtual NPU, else the backend's name."""
    toolchain = session.cache.backend.toolchain
    return toolchain.options.numerics if isinstance(toolchain, VirtualToolchain) else session.backend


def rounding_of(session: Session) -> str:
    """How f32 becomes bf16 on the virtual NPU (conv_even or floor), else the backend's name."""
    toolchain = session.cache.backend.toolchain
    return toolchain.options.rounding if isinstance(toolchain, VirtualToolchain) else session.backend


def bounds_of(session: Session) -> Bounds:
    return EXACT if numerics_of(session) == "exact" else BFP16
