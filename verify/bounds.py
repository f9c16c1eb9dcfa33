"""How far our logits are from the reference's, position by position, and which distances are too far: each
bound with the measurement behind it.

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

The positions of a text are not independent: all attend to the same rounded keys and values. If the part of
the variance that they share is s, the mean over n of them has the variance (s + (1 - s) / n) of one, as if
there were n / (1 + (n - 1) s) of them, and never more than 1 / s. That part was measured without anything of
ours: transformers in bf16 against itself in float32, 60 texts of 32 positions each. The means had a standard
deviation of 0.27 times the rms in SmolLM2-135M in q4 (independent positions: 0.16), 0.25 in bf16 (0.16), and
0.11 in the demo (0.09): s is 0.062, 0.052 and 0.019. Different texts are taken as independent. The turns of
a conversation are one text, of which each attends to all before: over the last 576 of 945 positions of 26
texts (this project's pages, SmolLM2-135M, as above) the mean was 0.17 times the rms by root mean square, and
0.34 at most, where 18 independent turns would have 0.05; s is 0.036.

At single positions the reference itself rounds worse than on the whole: over 1,248 positions of a
conversation with SmolLM2-135M, on a CPU with AMX and in one thread of torch, its rms was 4.4 times the
yardstick at one, and that of a healthy run 6.5 times at one where its own was 1.9. So the yardstick of a
single position is the larger of the two: that of all positions, and the reference's own at this one.

With the programs computed in numpy, whose sums run in another order, 14 shapes gave rms 1.1 to 1.4, at one at
most 3.3, mean KL at most 5.4 times (a distribution so sure that its KL is 3e-5 nats).

Faults in the demo (tests/verify/faults.py), the largest rms of two prompts and the positions of one: bf16 by
truncation everywhere 3.2, a mask that sees one position more or fewer 7.9 to 56, heads swapped in a layer 7
to 34, RMSNorm epsilon 1e-6 in the programs 23, RoPE without llama3 scaling 140. So `rms` separates the
subtlest of them from a healthy model, with margin on both sides. Truncation in the SwiGLU or the RMSNorm
alone (1.3) cannot be separated from rounding; nor can the epsilon of the final RMSNorm, where the row is
large.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from aerie.engine.logits import log_softmax
from aerie.engine.numerics import F32Array
from aerie.engine.session import Session
from aerie.runtime.toolchain import VirtualToolchain


@dataclass(frozen=True)
class Bounds:
    """The bounds. All but `top_k` are multiples of what rounding to bf16 does to the reference itself on the
    same positions.

    rms, largest and bias: times its rms. kl: times its mean KL, plus noise_kl times its squared rms, because
    the KL of a very certain distribution can be almost nothing. Over n positions the bounds of `rms` and
    `noise_kl` grow by 1/n of what is allowed `at_one` beyond them; that of the bias is `bias_at_one` /
    sqrt(m), where m is what `independent_positions` says of n.
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


SHARED = 1 / 16
"""Of the variance of a position's mean difference, the part that all positions of a text share."""


def session_numerics(session: Session) -> str:
    """How matrix products are computed: "exact" or "bfp16" on the virtual NPU, else the backend's name."""
    backend = session.cache.backend
    return session.backend if backend.numerics == backend.name else backend.numerics


def session_rounding(session: Session) -> str:
    """How f32 is rounded to bf16 on the virtual NPU ("conv_even" or "floor"), else the backend's name."""
    toolchain = session.cache.backend.toolchain
    return toolchain.options.rounding if isinstance(toolchain, VirtualToolchain) else session.backend


def session_bounds(session: Session) -> Bounds:
    """The bounds for the session's numerics."""
    return EXACT if session_numerics(session) == "exact" else BFP16


Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GateFailure:
    """A measure that exceeds its bound. position: counted from 0 within the part; None for the whole part."""

    part: str
    prompt: str
    position: int | None
    what: str
    value: float | None = None
    bound: float | None = None

    def __str__(self) -> str:
        place = f"{self.part}, {self.prompt}" + (
            "" if self.position is None else f", position {self.position}"
        )
        if self.value is None or self.bound is None:
            return f"{place}: {self.what}"
        return f"{place}: {self.what} is {self.value:.4g}, bound {self.bound:.4g}"


@dataclass(frozen=True)
class LogitsDistance:
    """Our logits against the reference's; each array has one number per position, over the whole vocabulary.

    our_place: the rank (1: first) of our most likely token in the reference's order; their_place: the
    reverse. kl:
    KL(theirs || ours) in nats. rms, largest, bias: the root mean square, the largest absolute value and the
    mean of ours - theirs, in logits.
    """

    our_place: Places
    their_place: Places
    kl: Numbers
    rms: Numbers
    largest: Numbers
    bias: Numbers

    @property
    def positions(self) -> int:
        return len(self.kl)

    @property
    def total_rms(self) -> float:
        """Root mean square over all positions."""
        return float(np.sqrt(np.mean(self.rms**2)))

    @property
    def mean_kl(self) -> float:
        return float(self.kl.mean())

    @property
    def mean_bias(self) -> float:
        return float(self.bias.mean())

    @property
    def most(self) -> float:
        """The largest difference of all."""
        return float(self.largest.max())

    @property
    def worst_place(self) -> int:
        return int(max(self.our_place.max(), self.their_place.max()))


def compare(theirs: F32Array, ours: F32Array) -> LogitsDistance:
    """The distance of two arrays of logits, each (positions, vocab_size), all finite."""
    rows = [_compare_row(*pair) for pair in zip(theirs, ours, strict=True)]
    our_place, their_place, *numbers = (np.array(column) for column in zip(*rows, strict=True))
    return LogitsDistance(our_place, their_place, *numbers)


def join(distances: list[LogitsDistance]) -> LogitsDistance:
    """Join several distances into one."""
    fields = zip(*(vars(distance).values() for distance in distances), strict=True)
    return LogitsDistance(*(np.concatenate(arrays) for arrays in fields))


def token_rank(logits: F32Array, token: int) -> int:
    """The rank of a token, 1 for the most likely. Tokens with equal logits share a rank."""
    return 1 + int(np.count_nonzero(logits > logits[token]))


def kl_divergence(theirs: F32Array | Numbers, ours: F32Array | Numbers) -> float:
    """KL(softmax(theirs) || softmax(ours)) in nats, in float64."""
    p, q = log_softmax(theirs), log_softmax(ours)
    return max(0.0, float(np.exp(p) @ (p - q)))  # rounding can leave it just below 0


def _compare_row(theirs: F32Array, ours: F32Array) -> tuple[float, ...]:
    difference = ours.astype(np.float64) - theirs
    return (
        token_rank(theirs, int(np.argmax(ours))),
        token_rank(ours, int(np.argmax(theirs))),
        kl_divergence(theirs, ours),
        float(np.sqrt(np.mean(difference**2))),
        float(np.abs(difference).max()),
        float(difference.mean()),
    )


def judge(
    part: str,
    prompt: str,
    ours: LogitsDistance,
    rounding: LogitsDistance,
    bounds: Bounds,
) -> Iterator[GateFailure]:
    """The failures of `ours`, of one text. rounding: the reference in float32 against itself in bf16, for the
    same positions, which is the yardstick.
    """
    yield from _judge_ranks(part, prompt, ours, bounds)
    unit = rounding.total_rms
    most_at = bounds.rms_at_one * np.maximum(rounding.rms, unit)
    worst = int((ours.rms - most_at).argmax())
    for position, what, value, bound in (
        (None, "rms logit difference", ours.total_rms, rms_bound(rounding, bounds)),
        (worst, "rms logit difference", ours.rms[worst], most_at[worst]),
        (None, "mean KL divergence", ours.mean_kl, kl_bound(rounding, bounds)),
        (int(ours.largest.argmax()), "largest logit difference", ours.most, bounds.largest * unit),
    ):
        if not value <= bound:
            yield GateFailure(part, prompt, position, what, float(value), float(bound))
    yield from judge_bias(part, prompt, ours, rounding, bounds)


def judge_bias(
    part: str,
    prompt: str,
    ours: LogitsDistance,
    rounding: LogitsDistance,
    bounds: Bounds,
    texts: int = 1,
) -> Iterator[GateFailure]:
    """The failures of the mean difference. Noise cancels over many positions, and rounding in one direction
    does not.
    """
    value, bound = abs(ours.mean_bias), bias_bound(rounding, bounds, texts)
    if not value <= bound:
        yield GateFailure(part, prompt, None, "size of the mean logit difference", value, bound)


def rms_bound(rounding: LogitsDistance, bounds: Bounds) -> float:
    """The maximum rms over all positions, in logits."""
    return _between(bounds.rms_at_one, bounds.rms, rounding.positions) * rounding.total_rms


def bias_bound(rounding: LogitsDistance, bounds: Bounds, texts: int = 1) -> float:
    """The maximum mean difference over all positions, of so many texts, either way, in logits."""
    independent = independent_positions(rounding.positions, texts)
    return bounds.bias_at_one / math.sqrt(independent) * rounding.total_rms


def independent_positions(positions: int, texts: int) -> float:
    """How many independent positions have a mean that varies as much as that of these, of so many texts of
    the same length."""
    return positions / (1 + (positions / texts - 1) * SHARED)


def kl_bound(rounding: LogitsDistance, bounds: Bounds) -> float:
    """The maximum mean KL divergence, in nats."""
    of_noise = _between(bounds.noise_kl_at_one, bounds.noise_kl, rounding.positions)
    return bounds.kl * rounding.mean_kl + of_noise * rounding.total_rms**2


def _between(single: float, mean: float, positions: int) -> float:
    """The bound of a mean over `positions`, from the bound of a single position to that of many."""
    return mean + (single - mean) / positions


def _judge_ranks(part: str, prompt: str, ours: LogitsDistance, bounds: Bounds) -> Iterator[GateFailure]:
    """The top-k rule, at the first position that breaks it."""
    for what, places in (
        ("the place of our token in the reference's order", ours.our_place),
        ("the place of the reference's token in our order", ours.their_place),
    ):
        beyond = np.flatnonzero(places > bounds.top_k)
        if beyond.size:
            first = int(beyond[0])
            yield GateFailure(part, prompt, first, what, int(places[first]), bounds.top_k)
