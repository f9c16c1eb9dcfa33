"""Sampling: greedy, and drawing after penalties and cuts that are those of transformers."""

import json
import math
from typing import Any

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.engine.errors import NotFiniteError
from aerie.engine.numerics import bf16
from aerie.engine.sampler import Sampler, SamplingSettings

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


def by_transformers(logits, settings, prompt, made):
    """The probability of every token, (vocab_size,), by transformers' processors, in its generate's order;
    frequency and presence penalty, which it does not have, as OpenAI's documentation has them."""
    import torch
    from transformers import (
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    scores, ids = torch.tensor(logits)[None], torch.tensor([[*prompt, *made]])
    if settings["logit_bias"]:
        bias = {(token,): value for token, value in settings["logit_bias"].items()}
        scores = SequenceBiasLogitsProcessor(bias)(ids, scores)
    scores = RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"])(ids, scores)
    for token in made:
        scores[0, token] -= settings["frequency_penalty"]
    for token in set(made):
        scores[0, token] -= settings["presence_penalty"]
    for warper in (
        TemperatureLogitsWarper(settings["temperature"]),
        *([TopKLogitsWarper(settings["top_k"])] if settings["top_k"] else []),
        TopPLogitsWarper(settings["top_p"]),
        MinPLogitsWarper(settings["min_p"]),
    ):
        scores = warper(ids, scores)
    return scores.softmax(-1)[0].numpy()


def drawn_case(random):
    """Logits of a small vocabulary, settings of which about half change something, and the tokens so far."""
    size = int(random.integers(2, 40))
    logits = (random.normal(size=size) * random.choice([0.5, 3, 10])).astype(np.float32)

    def maybe(value, default):
        return value if random.random() < 0.5 else default

    settings = {
        "temperature": float(maybe(random.uniform(0.2, 3), 1.0)),
        "top_k": int(maybe(random.integers(1, 50), 0)),
        "top_p": float(maybe(random.uniform(0.02, 1), 1.0)),
        "min_p": float(maybe(random.choice([0.01, 0.1, 0.5, 1.0]), 0.0)),
        "repetition_penalty": float(maybe(random.uniform(0.5, 2), 1.0)),
        "presence_penalty": float(maybe(random.uniform(-2, 2), 0.0)),
        "frequency_penalty": float(maybe(random.uniform(-2, 2), 0.0)),
        "logit_bias": {
            int(token): float(random.choice([-100, -1.5, 2.5, 100]))
            for token in random.integers(0, size, maybe(3, 0))
        },
    }
    prompt, made = (random.integers(0, size, random.integers(1, 12)).tolist() for _ in range(2))
    return logits, settings, prompt, maybe(made, [])


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_are_those_of_transformers(seed):
    random, cut = np.random.default_rng(seed), 0
    for _ in range(750):
        case = drawn_case(random)
        logits, settings, prompt, made = case
        tokens, found = Sampler(**settings).distribution(logits, prompt, made)
        expected = by_transformers(*case)
        probabilities = np.zeros(len(logits))
        probabilities[tokens] = found
        if set(np.flatnonzero(expected > 1e-6)) ^ set(np.flatnonzero(probabilities > 1e-6)):
            assert is_on_the_edge(logits, settings, prompt, made), case
        else:
            np.testing.assert_allclose(probabilities, expected, atol=2e-5, err_msg=str(case))
        cut += len(tokens) < len(logits)
        assert list(found) == sorted(found, reverse=True)
    assert 300 < cut < 700


def is_on_the_edge(logits, settings, prompt, made):
    """Whether what is kept changes when a threshold moves by what float32 rounds off."""
    kept = {
        tuple(Sampler(**settings | {"top_p": top_p, "min_p": min_p}).distribution(logits, prompt, made)[0])
        for top_p in np.clip(settings["top_p"] * (1 + np.array([-1e-5, 1e-5])), None, 1)
        for min_p in np.clip(settings["min_p"] * (1 + np.array([-1e-5, 1e-5])), None, 1)
    }
    return len(kept) > 1


def test_draws_are_of_the_distribution():
    settings: dict[str, Any] = {
        "temperature": 1.3,
        "top_k": 4,
        "repetition_penalty": 1.4,
        "presence_penalty": 0.5,
    }
    sampler, context = Sampler(**settings, seed=5), ([1, 2], [1, 1, 3])
    counts = np.bincount([sampler(LOGITS, *context) for _ in range(6000)], minlength=6) / 6000
    tokens, probabilities = sampler.distribution(LOGITS, *context)
    np.testing.assert_allclose(counts[tokens], probabilities, atol=0.02)
    assert counts[tokens].sum() == pytest.approx(1)


def test_tokens_as_likely_as_the_kth_stay():
    tied = np.array([2.0, 1.0, 3.0, 2.0, 2.0], np.float32)
    tokens, _ = Sampler(temperature=1.0, top_k=2).distribution(tied)
    assert list(tokens) == [2, 0, 3, 4]


@pytest.mark.parametrize(
    ("settings", "made", "expected"),
    [
        ({}, [1], 1),
        ({"repetition_penalty": 1.5}, [1], 3),  # of the two likeliest, the one that was not made
        ({"repetition_penalty": 1.5}, [1, 3], 2),
        ({"presence_penalty": 0.5}, [1, 1], 3),
        ({"frequency_penalty": 0.4}, [1, 3, 3], 1),  # 3 twice
        ({"frequency_penalty": 0.4}, [1, 1, 1, 3, 3, 3], 2),
        ({"logit_bias": {0: 100}}, [], 0),
        ({"logit_bias": {1: -100, 3: -100}}, [], 2),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, bf16])
def test_greedy_takes_penalties_and_bias(settings, made, expected, dtype):
    """1 and 3 are the likeliest, 2 is next."""
    given = LOGITS.astype(dtype)
    sampler = Sampler(**settings)
    assert sampler(given, [], made) == expected
    assert [int(token) for token in sampler.distribution(given, [], made)[0]] == [expected]
    np.testing.assert_array_equal(given, LOGITS.astype(dtype))


def test_the_prompt_counts_for_repetition_alone():
    assert Sampler(repetition_penalty=1.5)(LOGITS, [1]) == 3
    assert Sampler(presence_penalty=2, frequency_penalty=2)(LOGITS, [1, 1, 1]) == 1


def test_restored_state_draws_what_would_have_come():
    sampler = Sampler(temperature=2.0, seed=7)
    for _ in range(10):
        sampler(LOGITS)
    state = sampler.state()
    wanted = [sampler(LOGITS) for _ in range(40)]
    other = Sampler(temperature=2.0)
    other.restore(json.loads(json.dumps(state)))
    assert [other(LOGITS) for _ in range(40)] == wanted
    assert [sampler(LOGITS) for _ in range(40)] != wanted


@pytest.mark.parametrize(
    "state", ["", "{}", "7", '{"bit_generator": "MT19937"}', '{"bit_generator": "PCG64"}']
)
def test_what_is_no_state_is_refused_and_changes_nothing(state):
    sampler, same = Sampler(temperature=2.0, seed=7), Sampler(temperature=2.0, seed=7)
    with pytest.raises(UserError, match=r"is no state of a sampler \(.*\); give what Sampler.state gave"):
        sampler.restore(state)
    assert [sampler(LOGITS) for _ in range(9)] == [same(LOGITS) for _ in range(9)]


def test_extreme_temperatures_do_not_overflow():
    assert seen(Sampler(temperature=1e-6, seed=0)) == {1, 3}
    assert len(seen(Sampler(temperature=1e6, seed=0))) == 6


HOSTILE = (
    *(
        sign * each
        for each in (0.0, 5e-324, 1e-320, 1e-307, 1e-45, 1.17e-38, 1.2e-38, 1e-6)
        for sign in (1, -1)
    ),
    *(sign * each for each in (0.01, 1, 2, 100, 1e19, 1e38, 3.5e38, 1e300, 1.7e308) for sign in (1, -1)),
    *(math.inf, -math.inf, math.nan, 2**63, 2**127, 2**128, -(2**128), 10**5000, -(10**5000), 1.5, 7),
)
"""Numbers at every edge of float32, float64 and the integers, and over them."""
LARGEST = float(np.finfo(np.float32).max)
ROWS = [
    np.array(row, np.float32)
    for row in ([1.0] * 6, [LARGEST, -LARGEST, 0, 1, 2, 3], [-LARGEST] * 6, [1e-45, 0, -1e-45, 0, 0, 0])
]


@pytest.mark.parametrize("field", [*SamplingSettings.__annotations__, "none"])
def test_hostile_numbers_are_refused_or_drawn_by(field):
    """Every setting from them, the others drawn from them as far as they are taken: it says which one is
    wrong, or draws a token, without a warning of numpy's."""
    rng, taken = np.random.default_rng(5), 0
    for value in HOSTILE if field != "none" else range(200):
        drawn = [of(name, HOSTILE[rng.integers(len(HOSTILE))]) for name in SamplingSettings.__annotations__]
        given = {name: each for one in drawn if refusal(one) is None for name, each in one.items()}
        given |= of(field, value) if field != "none" else {}
        if (wrong := refusal(given)) is not None:
            assert wrong.startswith(field.replace("_", "-")), (given, wrong)
            assert len(wrong) < 200
            continue
        taken += 1
        sampler = Sampler(**given)
        for row in ROWS:
            assert 0 <= sampler(row, [1, 2, 2], [0, 3, 3]) < 6
            tokens, probabilities = sampler.distribution(row, [1, 2, 2], [0, 3, 3])
            assert np.isfinite(probabilities).all()
            assert len(tokens) == len(probabilities) > 0
    assert taken


def refusal(settings):
    """What is wrong with settings; None where nothing is."""
    try:
        Sampler(**settings)
    except UserError as error:
        return str(error)
    return None


def of(name, value):
    return {name: {1: value, 4: value} if name == "logit_bias" else value}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"temperature": 1e-320},
            r"temperature is 1e-320, by which float32 cannot divide; .* or 1\.18e-38 or more",
        ),
        ({"temperature": 10**400}, "temperature is a number of 1329 bits; it must be 0"),
        ({"top_k": 2.5}, r"top-k is 2\.5; it must be a whole number"),
        ({"seed": 0.5}, r"seed is 0\.5; it must be a whole number"),
        ({"seed": 2**128}, r"seed is 340\d+; it must be less than 2\*\*128"),
        ({"temperature": -1.0}, r"temperature is -1\.0; it must be 0 \(greedy\) or more"),
        ({"temperature": float("inf")}, "temperature is inf; it must be 0"),
        ({"top_k": -1}, r"top-k is -1; it must be 0 \(all tokens\) or more"),
        ({"top_p": 0.0}, r"top-p is 0\.0; it must be above 0 and at most 1"),
        ({"top_p": 1.5}, r"top-p is 1\.5; it must be above 0 and at most 1"),
        ({"seed": -3}, "seed is -3; it must be 0 or more"),
        ({"min_p": -0.1}, r"min-p is -0\.1; it must be from 0 \(all tokens\) to 1"),
        ({"min_p": 1.1}, r"min-p is 1\.1; it must be"),
        ({"repetition_penalty": 0.0}, r"repetition-penalty is 0\.0; it must be from 0\.01 to 100; 1 is none"),
        ({"repetition_penalty": float("nan")}, "repetition-penalty is nan; it must be"),
        ({"presence_penalty": 2.5}, r"presence-penalty is 2\.5; it must be from -2 to 2, and 0 is none"),
        ({"frequency_penalty": float("nan")}, "frequency-penalty is nan; it must be from -2 to 2"),
        ({"logit_bias": {7: 101}}, "logit-bias of token 7 is 101; it must be from -100 to 100"),
        ({"logit_bias": {"7": 1}}, "logit-bias names '7'; name a token by its id, a whole number"),
    ],
)
def test_out_of_range(settings, message):
    with pytest.raises(UserError, match=message):
        Sampler(**settings)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_logits_are_not_sampled(bad):
    with pytest.raises(NotFiniteError, match="the logits hold values that are not finite"):
        Sampler()(np.array([0.0, bad], np.float32))


@pytest.mark.parametrize("token", [-1, 6])
def test_bias_of_a_token_that_the_model_does_not_have(token):
    Sampler(logit_bias={0: 1, 5: 1}).check_vocabulary(6)
    with pytest.raises(UserError, match=f"logit-bias names token {token}, .* has 0 to 5; name one of these"):
        Sampler(logit_bias={token: 1}).check_vocabulary(6)


def by_sorted_tokens(sampler, logits, random):
    """What a Sampler gives, with all tokens sorted by their logits, and its draw by Generator.choice."""
    order = np.argsort(-logits, kind="stable")
    if 0 < sampler.top_k < len(logits):
        order = order[logits[order] >= logits[order[sampler.top_k - 1]]]
    wide = logits[order].astype(np.float64) / sampler.temperature
    shares = np.exp(wide - wide.max())
    shares /= shares.sum()
    kept = (np.cumsum(shares) - shares < sampler.top_p) & (shares >= sampler.min_p * shares[0])
    shares = shares[kept] / shares[kept].sum()
    return order[kept], shares, random.choice(order[kept], p=shares)


@pytest.mark.parametrize("seed", range(2))
def test_sorted_values_give_what_sorted_tokens_do(seed):
    """To the bit, for logits of which many are equal too."""
    random = np.random.default_rng(seed)
    for number in range(300):
        logits: Any = (random.normal(size=random.integers(1, 3000)) * 4).astype(np.float32)
        logits = np.round(logits * 4) / 4 if number % 2 else logits
        settings: dict[str, Any] = {
            "temperature": float(random.uniform(0.3, 2)),
            "top_k": int(random.choice([0, 0, 20, 400])),
            "top_p": float(random.choice([1.0, random.uniform(0.05, 1)])),
            "min_p": float(random.choice([0.0, 0.0, 0.01])),
        }
        sampler = Sampler(**settings, seed=number)
        tokens, shares, drawn = by_sorted_tokens(sampler, logits, np.random.default_rng(number))
        found = sampler.distribution(logits)
        np.testing.assert_array_equal(found[0], tokens)
        np.testing.assert_array_equal(found[1], shares)
        assert sampler(logits) == drawn


@pytest.mark.parametrize("dtype", [np.float32, bf16])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_k": 6}, {"top_p": 0.9}, {"presence_penalty": 1}])
def test_a_token_that_is_left_out(filters, dtype):
    logits, settings = LOGITS.astype(dtype), {"temperature": 2.0, "seed": 1, **filters}
    sampler = Sampler(**settings)
    without = sampler.excluding(1)
    tokens, shares = without.distribution(logits)
    others = [0, 2, 3, 4, 5]
    expected, its = Sampler(**settings).distribution(logits[others])
    assert [others[token] for token in expected] == list(tokens)
    np.testing.assert_array_equal(shares, its)
    assert 1 not in seen(without, logits)
    assert 1 in seen(sampler, logits)
    assert Sampler().excluding(1)(logits) == 3
    assert Sampler().excluding(0)(logits) == 1


def test_a_sampler_without_a_token_shares_the_generator():
    sampler, same = Sampler(temperature=2.0, seed=7), Sampler(temperature=2.0, seed=7)
    without = sampler.excluding(0)
    assert [without(LOGITS) for _ in range(3)] == [same.excluding(0)(LOGITS) for _ in range(3)]
    assert without.state() == sampler.state() == same.state()
    assert without.settings == sampler.settings
    assert without != sampler
