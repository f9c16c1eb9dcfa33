"""Sampling: greedy, and drawing with the tail cut as transformers cuts it."""

import numpy as np
import pytest

from aerie.engine.errors import NotFiniteError, UserError
from aerie.engine.generate import Sampler
from aerie.engine.numerics import bf16

LOGITS = np.array([1.0, 4.0, 3.0, 4.0, -2.0, 0.5], np.float32)


def seen(sampler, logits=LOGITS, draws=400):
    return {sampler(logits) for _ in range(draws)}


def test_greedy_takes_the_first_of_the_highest():
    assert Sampler()(LOGITS) == 1
    assert Sampler().greedy
    assert not Sampler(temperature=0.1).greedy


@pytest.mark.parametrize(
    "logits",
    [[1, 4, 3, 4], [-3, -1, -2, -1], [-1, -0.0, 0, -2], [-0.0, -1], [0, -0.0], [1e-40, -5], [3e38, 2]],
    ids=str,
)
def test_bf16_logits_give_the_same_token(logits):
    narrow = np.array(logits, np.float32).astype(bf16)
    wide = narrow.astype(np.float32)
    assert Sampler()(narrow) == Sampler()(wide) == int(np.argmax(wide))
    assert Sampler(temperature=1.0, seed=3)(narrow) == Sampler(temperature=1.0, seed=3)(wide)


def test_random_bf16_logits_give_the_same_token():
    for seed in range(20):
        drawn = np.random.default_rng(seed).normal(size=500).astype(bf16)
        assert Sampler()(drawn) == int(np.argmax(drawn.astype(np.float32)))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
def test_bf16_logits_that_are_not_finite_are_refused(bad):
    with pytest.raises(NotFiniteError, match="not finite"):
        Sampler()(np.array([1, bad, 2], np.float32).astype(bf16))


def test_seed_repeats_and_no_seed_does_not():
    def draws(seed):
        sampler = Sampler(temperature=2.0, seed=seed)
        return [sampler(LOGITS) for _ in range(50)]

    assert draws(7) == draws(7) != draws(8)
    assert draws(None) != draws(None)


def test_frequencies_follow_the_softmax():
    sampler = Sampler(temperature=1.5, seed=0)
    counts = np.bincount([sampler(LOGITS) for _ in range(6000)], minlength=6)
    expected = np.exp(LOGITS / 1.5) / np.exp(LOGITS / 1.5).sum()
    np.testing.assert_allclose(counts / 6000, expected, atol=0.02)


@pytest.mark.parametrize("top_k", [1, 2, 4, 6, 100])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_kept_tokens_are_those_of_transformers(temperature, top_k, top_p):
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = np.array([1.0, 4.0, 3.0, 2.2, -2.0, 0.5], np.float32)  # no ties, whose order is arbitrary
    scores = torch.tensor(logits)[None]
    for warper in (TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)):
        scores = warper(None, scores)
    probabilities = scores.softmax(-1)[0].numpy()
    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p, seed=1)
    kept = set(np.flatnonzero(probabilities))
    assert seen(sampler, logits, 50) <= kept
    assert kept - seen(sampler, logits, 300) <= set(np.flatnonzero(probabilities < 0.05))


def test_extreme_temperatures_do_not_overflow():
    assert seen(Sampler(temperature=1e-6, seed=0)) == {1, 3}
    assert len(seen(Sampler(temperature=1e6, seed=0))) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, r"temperature is -1\.0; it must be 0 \(greedy\) or more"),
        ({"temperature": float("inf")}, "temperature is inf; it must be 0"),
        ({"top_k": -1}, r"top-k is -1; it must be 0 \(all tokens\) or more"),
        ({"top_p": 0.0}, r"top-p is 0\.0; it must be above 0 and at most 1"),
        ({"top_p": 1.5}, r"top-p is 1\.5; it must be above 0 and at most 1"),
        ({"seed": -3}, "seed is -3; it must be 0 or more"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(UserError, match=message):
        Sampler(**settings)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_not_sampled(bad):
    with pytest.raises(NotFiniteError, match="the logits hold values that are not finite"):
        Sampler()(np.array([0.0, bad], np.float32))
