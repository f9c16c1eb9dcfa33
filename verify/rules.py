"""How far our logits are from the reference's, position by position, and which distances are too far."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llama32_1b.numerics import F32Array
from verify.bounds import Bounds

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Failure:
    """Something beyond its bound. `position` counts from 0 within the part; None for a whole."""

    part: str
    prompt: str
    position: int | None
    what: str
    value: float | None = None
    bound: float | None = None

    def __str__(self) -> str:
        where = f"{self.part}, {self.prompt}" + (
            "" if self.position is None else f", position {self.position}"
        )
        if self.value is None or self.bound is None:
            return f"{where}: {self.what}"
        return f"{where}: {self.what} is {self.value:.4g}, bound {self.bound:.4g}"


@dataclass(frozen=True)
class Distance:
    """Ours against theirs; each array has one number per position, over the whole vocabulary.

    `our_place` is the place (1: first) of our likeliest token in their order, `their_place` the other way
    round. `kl` is KL(theirs || ours) in nats. `rms`, `largest` and `bias` are the root mean square, the
    largest absolute value and the mean of ours - theirs, in logits.
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


def compare(theirs: F32Array, ours: F32Array) -> Distance:
    """The distance of two arrays of logits, each (positions, vocab_size), all finite."""
    rows = [_compare_row(*pair) for pair in zip(theirs, ours, strict=True)]
    our_place, their_place, *numbers = (np.array(column) for column in zip(*rows, strict=True))
    return Distance(our_place, their_place, *numbers)


def join(distances: list[Distance]) -> Distance:
    """Several distances as one."""
    fields = zip(*(vars(distance).values() for distance in distances), strict=True)
    return Distance(*(np.concatenate(arrays) for arrays in fields))


def place(logits: F32Array, token: int) -> int:
    """1 for the likeliest token. Of equal logits none is before another."""
    return 1 + int(np.count_nonzero(logits > logits[token]))


def kl_divergence(theirs: F32Array, ours: F32Array) -> float:
    """KL(softmax(theirs) || softmax(ours)) in nats, in float64."""
    p, q = _log_softmax(theirs), _log_softmax(ours)
    return max(0.0, float(np.exp(p) @ (p - q)))  # rounding can leave it just below 0


def _compare_row(theirs: F32Array, ours: F32Array) -> tuple[float, ...]:
    difference = ours.astype(np.float64) - theirs
    return (
        place(theirs, int(np.argmax(ours))),
        place(ours, int(np.argmax(theirs))),
        kl_divergence(theirs, ours),
        float(np.sqrt(np.mean(difference**2))),
        float(np.abs(difference).max()),
        float(difference.mean()),
    )


def _log_softmax(logits: F32Array) -> Numbers:
    shifted = logits.astype(np.float64) - logits.max()
    result: Numbers = shifted - np.log(np.exp(shifted).sum())
    return result


def judge(part: str, prompt: str, ours: Distance, rounding: Distance, bounds: Bounds) -> Iterator[Failure]:
    """What of `ours` is too far. `rounding` is the reference in float32 against itself in bf16, for the same
    positions: the yardstick."""
    yield from _judge_places(part, prompt, ours, bounds)
    unit = rounding.total_rms
    worst = int(ours.rms.argmax())
    for position, what, value, bound in (
        (None, "rms logit difference", ours.total_rms, rms_bound(rounding, bounds)),
        (worst, "rms logit difference", ours.rms[worst], bounds.rms_at_one * unit),
        (None, "mean KL divergence", ours.mean_kl, kl_bound(rounding, bounds)),
        (int(ours.largest.argmax()), "largest logit difference", ours.most, bounds.largest * unit),
    ):
        if not value <= bound:
            yield Failure(part, prompt, position, what, float(value), float(bound))
    yield from judge_bias(part, prompt, ours, rounding, bounds)


def judge_bias(
    part: str, prompt: str, ours: Distance, rounding: Distance, bounds: Bounds
) -> Iterator[Failure]:
    """The mean difference alone. Noise cancels over many positions, and rounding one way does not."""
    value, bound = abs(ours.mean_bias), bias_bound(rounding, bounds)
    if not value <= bound:
        yield Failure(part, prompt, None, "size of the mean logit difference", value, bound)


def rms_bound(rounding: Distance, bounds: Bounds) -> float:
    """The most that the rms over all positions may be, in logits."""
    return _between(bounds.rms_at_one, bounds.rms, rounding.positions) * rounding.total_rms


def bias_bound(rounding: Distance, bounds: Bounds) -> float:
    """The most that the mean difference over all positions may be, either way, in logits."""
    return bounds.bias_at_one / math.sqrt(rounding.positions) * rounding.total_rms


def kl_bound(rounding: Distance, bounds: Bounds) -> float:
    """The most that the mean KL divergence may be, in nats."""
    of_noise = _between(bounds.noise_kl_at_one, bounds.noise_kl, rounding.positions)
    return bounds.kl * rounding.mean_kl + of_noise * rounding.total_rms**2


def _between(one: float, many: float, positions: int) -> float:
    """From the bound of a single position to that of a mean over many."""
    return many + (one - many) / positions


def _judge_places(part: str, prompt: str, ours: Distance, bounds: Bounds) -> Iterator[Failure]:
    """The top-k rule, at the first position that breaks it."""
    for what, places in (
        ("the place of our token in the reference's order", ours.our_place),
        ("the place of the reference's token in our order", ours.their_place),
    ):
        beyond = np.flatnonzero(places > bounds.top_k)
        if beyond.size:
            first = int(beyond[0])
            yield Failure(part, prompt, first, what, int(places[first]), bounds.top_k)
