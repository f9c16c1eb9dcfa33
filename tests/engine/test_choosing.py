"""Rules of choice in block diffusion: counts, ties, bounds, what is drawn, and what is refused."""

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.engine.errors import NotFiniteError
from aerie.engine.numerics import bf16
from aerie.engine.sampler import Sampler
from aerie.engine.strategies.unmasking import (
    DEFAULT_SETTINGS,
    RULE_NAMES,
    UnmaskedTokens,
    Unmasker,
    UnmaskingRule,
)

MASK, VOCAB = 7, 8


def rows(*shares, token=3):
    """Logits of which each has this share for the token, and the rest for the others alike."""
    logits = np.zeros((len(shares), VOCAB))
    logits[:, token] = [np.log(share * (VOCAB - 1) / (1 - share)) for share in shares]
    return logits.astype(np.float32)


def chosen(logits, rule, masked=None, step=0, block=None, **settings):
    masked = range(len(logits)) if masked is None else masked
    return Unmasker(rule, block or len(logits), Sampler(**settings), MASK)(logits, masked, step, [], [])


@pytest.mark.parametrize(
    ("rule", "positions"),
    [
        (UnmaskingRule("sequential", steps=4), (0,)),
        (UnmaskingRule("sequential", steps=3), (0, 1)),
        (UnmaskingRule("low_confidence_static"), (2,)),
        (UnmaskingRule("low_confidence_static", steps=2), (1, 2)),
        (UnmaskingRule("low_confidence_dynamic", threshold=0.9), (2,)),
        (UnmaskingRule("low_confidence_dynamic", threshold=0.5), (1, 2, 3)),
        (UnmaskingRule("low_confidence_dynamic", threshold=0.99), (2,)),
        (UnmaskingRule("low_confidence_dynamic", threshold=0.99, steps=2), (1, 2)),
        (UnmaskingRule("low_confidence_dynamic", threshold=1.0, steps=1), (0, 1, 2, 3)),
        (UnmaskingRule("low_confidence_dynamic", threshold=0.0), (0, 1, 2, 3)),
        (UnmaskingRule("entropy_bounded", entropy=0.01), (2,)),
        (UnmaskingRule("entropy_bounded", entropy=1.5), (1, 2)),
        (UnmaskingRule("entropy_bounded", entropy=2.7), (1, 2, 3)),
        (UnmaskingRule("entropy_bounded", entropy=np.inf), (0, 1, 2, 3)),
    ],
)
def test_what_each_rule_takes(rule, positions):
    """Of shares 0.4, 0.8, 0.95 and 0.6; their entropies are 1.84, 0.89, 0.30 and 1.45 nats."""
    found = chosen(rows(0.4, 0.8, 0.95, 0.6), rule)
    assert found.positions == positions
    assert found.tokens == (3,) * len(positions)


def test_the_text_of_an_unmasking_rule():
    found = chosen(rows(0.8, 0.5), UnmaskingRule(steps=1))
    shares = np.array([[0.8, *[0.2 / 7] * 7], [0.5, *[0.5 / 7] * 7]])
    np.testing.assert_allclose(found.confidences, [0.8, 0.5], rtol=1e-6)
    np.testing.assert_allclose(found.entropies, -(shares * np.log(shares)).sum(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("block", "steps", "counts"),
    [(8, None, [1] * 8), (8, 4, [2] * 4), (8, 3, [3, 3, 2]), (8, 1, [8]), (4, 3, [2, 1, 1]), (1, 1, [1])],
)
def test_how_many_a_step_has_to_fill(block, steps, counts):
    rule = UnmaskingRule(steps=steps).for_block(block)
    assert [rule.min_unmasked(step, block) for step in range(len(counts))] == counts
    assert sum(counts) == block


@pytest.mark.parametrize("name", RULE_NAMES)
def test_no_position_that_holds_a_token_is_chosen(name):
    """A block of 8 in 4 steps, 5 positions of which end the prompt: the second step has one mask, and to
    fill two. SDAR's own code takes a position of the prompt for the other."""
    rule, masked = UnmaskingRule(name, steps=4, entropy=2.0), [5, 6, 7]
    first = chosen(rows(0.3, 0.3, 0.3), rule, masked, 0, block=8)
    assert first.positions == ((5,) if name == "entropy_bounded" else (5, 6))
    last = chosen(rows(0.3), rule, [7], 1, block=8)
    assert last.positions == (7,)
    assert chosen(rows(), rule, [], 2, block=8) == UnmaskedTokens((), (), (), ())


@pytest.mark.parametrize("name", RULE_NAMES)
def test_of_equal_ones_the_leftmost(name):
    rule = UnmaskingRule(name, steps=3, entropy=1.8)
    assert chosen(rows(0.8, 0.8, 0.8, 0.8, 0.8), rule).positions == (0, 1)


def test_a_threshold_has_to_be_passed():
    half = np.zeros((2, VOCAB), np.float32)
    half[:, 2:] = -1000  # two tokens have a share of exactly 1/2
    assert chosen(half, UnmaskingRule(threshold=0.5)).positions == (0,)
    assert chosen(half, UnmaskingRule(threshold=np.nextafter(0.5, 0))).positions == (0, 1)


def test_a_bound_has_to_be_kept_under():
    logits = rows(0.8, 0.8)
    (one, _) = chosen(logits, UnmaskingRule("entropy_bounded", entropy=9)).entropies
    assert chosen(logits, UnmaskingRule("entropy_bounded", entropy=2 * one)).positions == (0,)
    assert chosen(logits, UnmaskingRule("entropy_bounded", entropy=np.nextafter(2 * one, 9))).positions == (
        0,
        1,
    )


@pytest.mark.parametrize(
    "filters",
    [{"temperature": 1.0, "top_k": 1}, {"temperature": 1.0, "top_p": 0.01}, {"temperature": 0.01}, {}],
    ids=str,
)
def test_filters_make_no_choice_surer(filters):
    """After them each token's probability would be 1, and the whole block would be filled at once."""
    found = chosen(
        rows(0.4, 0.5, 0.45, 0.3), UnmaskingRule("low_confidence_dynamic", threshold=0.9), **filters
    )
    assert found.positions == (1,)
    np.testing.assert_allclose(found.confidences, 0.5, rtol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "top_k": 1}])
@pytest.mark.parametrize("dtype", [np.float32, bf16])
def test_the_mask_token_is_never_drawn_and_counts_as_doubt(settings, dtype):
    logits = rows(0.9, 0.9, token=MASK).astype(dtype)
    for _ in range(50):
        found = chosen(logits, UnmaskingRule(steps=1), **settings)
        assert MASK not in found.tokens
        np.testing.assert_allclose(found.confidences, 0.1 / 7, rtol=0.02)


def test_penalties_and_bias_choose_the_token_and_not_the_confidence():
    logits = rows(0.6, 0.6)
    chooser = Unmasker(UnmaskingRule(steps=1), 2, Sampler(presence_penalty=2, frequency_penalty=2), MASK)
    assert chooser(logits, [0, 1], 0, [3], []).tokens == (3, 3)
    found = chooser(logits, [0, 1], 0, [], [3, 3])
    assert found.tokens == (0, 0)
    np.testing.assert_allclose(found.confidences, 0.4 / 7, rtol=1e-6)
    assert chosen(logits, UnmaskingRule(steps=1), logit_bias={5: 100}).tokens == (5, 5)


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_step_draws_one_number_for_each_mask(name):
    """Whatever the rule keeps, so that the stream does not depend on who makes the logits."""
    sampler, alone = Sampler(temperature=1.0, seed=3), np.random.default_rng(3)
    choose = Unmasker(UnmaskingRule(name), 6, sampler, MASK)
    choose(rows(0.2, 0.3, 0.4, 0.5), [2, 3, 4, 5], 0)
    choose(rows(0.2, 0.3, 0.4), [3, 4, 5], 1)
    alone.random(7)
    other = Sampler(temperature=1.0)
    other.restore(sampler.state())
    assert other._random.random() == alone.random()
    greedy = Sampler(seed=3)
    before = greedy.state()
    Unmasker(UnmaskingRule(name), 6, greedy, MASK)(rows(0.2, 0.3), [0, 1], 0)
    assert greedy.state() == before


def test_a_restored_sampler_goes_on():
    rule, logits = UnmaskingRule(steps=1), rows(0.2, 0.2, 0.2, 0.2)
    sampler = Sampler(temperature=1.0, seed=5)
    choose = Unmasker(rule, 4, sampler, MASK)
    choose(logits, range(4), 0)
    state = sampler.state()
    wanted = [choose(logits, range(4), 0) for _ in range(9)]
    other = Sampler(temperature=1.0, seed=6)
    again = Unmasker(rule, 4, other, MASK)
    other.restore(state)
    assert [again(logits, range(4), 0) for _ in range(9)] == wanted


def test_bf16_rows_are_their_values():
    narrow = rows(0.3, 0.7, 0.5).astype(bf16)
    settings = {"temperature": 1.0, "seed": 2}
    assert chosen(narrow, UnmaskingRule(), **settings) == chosen(
        narrow.astype(np.float32), UnmaskingRule(), **settings
    )
    assert chosen([*narrow], UnmaskingRule(), **settings) == chosen(narrow, UnmaskingRule(), **settings)


def test_broken_logits_are_refused():
    logits = rows(0.5, 0.5)
    logits[1, 2] = np.nan
    with pytest.raises(NotFiniteError, match="the logits hold values that are not finite"):
        chosen(logits, UnmaskingRule())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "loudest"}, f"rule is 'loudest'; give one of {', '.join(RULE_NAMES)}$"),
        ({"steps": 0}, "steps is 0; a block is filled in 1 step or more, a whole number$"),
        ({"steps": 2.5}, "steps is 2.5; a block is filled in 1 step or more, a whole number$"),
        ({"threshold": 1.1}, r"threshold is 1.1; it is a probability, from 0 \(.*\) to 1 \(.*\)$"),
        ({"threshold": float("nan")}, "threshold is nan; it is a probability"),
        ({"entropy": 0.0}, "entropy is 0.0 nats, and nothing is under that; it must be above 0, and 0.1 is"),
        ({"entropy": float("nan")}, "entropy is nan nats"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(UserError, match=message):
        UnmaskingRule(**settings)


def test_more_steps_than_tokens():
    with pytest.raises(UserError, match=r"steps is 9, and each fills in a token or more of 8; give 1 to 8$"):
        Unmasker(UnmaskingRule(steps=9), 8, Sampler(), MASK)


def test_defaults():
    assert UnmaskingRule() == DEFAULT_SETTINGS
    assert (DEFAULT_SETTINGS.name, DEFAULT_SETTINGS.steps, DEFAULT_SETTINGS.threshold) == (
        "low_confidence_dynamic",
        None,
        0.9,
    )
