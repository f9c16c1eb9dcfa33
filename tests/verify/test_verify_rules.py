"""Places, distances, and what is judged too far: on logits made by hand."""

import math

import numpy as np
import pytest

from aerie.verify.bounds import (
    BFP16,
    EXACT,
    GateFailure,
    bias_bound,
    compare,
    independent_positions,
    join,
    judge,
    judge_bias,
    kl_bound,
    kl_divergence,
    rms_bound,
    token_rank,
)

RANDOM = np.random.default_rng(0)
THEIRS = RANDOM.normal(size=(6, 200)).astype(np.float32) * 4


def noise(scale, seed=1, shape=THEIRS.shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32) * scale


ROUNDING = compare(THEIRS, THEIRS + noise(0.01))


def judged(ours, rounding=ROUNDING):
    return list(judge("part", "prompt", compare(THEIRS, ours.astype(np.float32)), rounding, EXACT))


def whats(failures):
    return {failure.what for failure in failures}


def test_places_count_from_one_and_ties_share_the_better():
    logits = np.array([1, 3, 2, 3, 0], np.float32)
    assert [token_rank(logits, token) for token in range(5)] == [4, 1, 3, 1, 5]


def test_kl_divergence_of_two_known_distributions():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    ours, theirs = np.log(q).astype(np.float32) + 7, np.log(p).astype(np.float32) - 3
    assert kl_divergence(theirs, ours) == pytest.approx(expected, abs=1e-6)
    assert kl_divergence(theirs, theirs) == 0
    sure, even = np.log(np.array([0.25, 0.75], np.float32)), np.zeros(2, np.float32)
    assert kl_divergence(sure, even) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-6)
    assert kl_divergence(even, sure) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)


def test_kl_divergence_of_logits_too_large_for_a_plain_exponential():
    assert kl_divergence(np.array([2000, 0], np.float32), np.array([0, 2000], np.float32)) == 2000


def test_a_distance_by_hand():
    theirs = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.float32)
    ours = np.array([[0, 1, 2, 3], [3, 2, 1, 4]], np.float32)
    distance = compare(theirs, ours)
    assert distance.our_place.tolist() == [1, 4]
    assert distance.their_place.tolist() == [1, 2]
    assert distance.rms.tolist() == [0, 2]
    assert distance.largest.tolist() == [0, 4]
    assert distance.bias.tolist() == [0, 1]
    assert distance.kl[0] == 0 < distance.kl[1]
    assert distance.total_rms == pytest.approx(math.sqrt(2))
    assert (distance.mean_bias, distance.most, distance.worst_place) == (0.5, 4, 4)


def test_joined_distances_hold_all_positions():
    joined = join([ROUNDING, ROUNDING])
    assert joined.kl.tolist() == [*ROUNDING.kl, *ROUNDING.kl]
    assert joined.total_rms == pytest.approx(ROUNDING.total_rms)


def test_rounding_as_large_as_the_reference_s_own_passes():
    assert judged(THEIRS + noise(0.014, seed=2)) == []


def test_equal_logits_pass_even_where_nothing_was_rounded():
    assert judged(THEIRS, rounding=compare(THEIRS, THEIRS)) == []


def test_noise_beyond_the_bound_fails():
    failures = judged(THEIRS + noise(0.03))
    assert "rms logit difference" in whats(failures)
    first = failures[0]
    assert first.bound == pytest.approx(rms_bound(ROUNDING, EXACT))
    assert str(first) == f"part, prompt: rms logit difference is {first.value:.4g}, bound {first.bound:.4g}"


def test_one_bad_position_fails_and_is_named():
    ours = THEIRS + noise(0.005)
    ours[4] += noise(0.12)[4]
    assert next(f.position for f in judged(ours) if f.position is not None) == 4


def test_one_wrong_logit_fails():
    ours = THEIRS + noise(0.01, seed=2)
    ours[3, np.argmin(ours[3])] += 0.3
    assert whats(judged(ours)) == {"largest logit difference"}


def test_a_constant_added_fails_though_no_probability_moves():
    assert whats(judged(THEIRS + 0.014)) == {"size of the mean logit difference"}
    assert whats(judged(THEIRS - 0.014)) == {"size of the mean logit difference"}


def test_likely_tokens_count_more_in_the_divergence():
    ours = THEIRS + noise(0.005)
    ours[np.arange(6), THEIRS.argmax(axis=1)] += 0.2
    assert "mean KL divergence" in whats(judged(ours))


@pytest.mark.parametrize("position", [0, 5])
def test_the_top_k_rule_names_the_position(position):
    ours = THEIRS.copy()
    ours[position, np.argsort(THEIRS[position])[-6]] = 100  # what is 6th there is first here
    failures = [failure for failure in judged(ours) if "place of our token" in failure.what]
    assert failures == [
        GateFailure("part", "prompt", position, "the place of our token in the reference's order", 6, 5)
    ]
    assert str(failures[0]) == (
        f"part, prompt, position {position}: the place of our token in the reference's order is 6, bound 5"
    )


def test_the_top_k_rule_holds_the_other_way_round_too():
    ours = THEIRS.copy()
    ours[2, THEIRS[2].argmax()] = np.sort(THEIRS[2])[-7]
    assert "the place of the reference's token in our order" in whats(judged(ours))


def test_fifth_place_is_near_enough():
    ours = THEIRS.copy()
    fifth = np.argsort(THEIRS[0])[-5]
    ours[0, fifth] = THEIRS[0].max() + 0.001
    assert not [failure for failure in judged(ours) if "place" in failure.what]


def test_nan_does_not_pass():
    with np.errstate(invalid="ignore"):
        failures = judged(np.where(THEIRS > 9, np.nan, THEIRS + 0 * np.inf))
    assert "rms logit difference" in whats(failures)


def test_the_mean_over_more_texts_has_a_tighter_bound():
    many = join([ROUNDING] * 16)
    one = 3 * ROUNDING.total_rms / math.sqrt(6 / (1 + 5 / 16))
    assert bias_bound(ROUNDING, EXACT) == pytest.approx(one)
    assert bias_bound(many, EXACT, texts=16) == pytest.approx(one / 4)
    shifted = compare(THEIRS, (THEIRS + 0.5 * ROUNDING.total_rms).astype(np.float32))
    assert list(judge_bias("part", "one prompt", shifted, ROUNDING, EXACT)) == []
    (failure,) = judge_bias("part", "all prompts", join([shifted] * 16), many, EXACT, texts=16)
    assert str(failure).startswith("part, all prompts: size of the mean logit difference is ")


def test_positions_of_a_text_count_as_fewer():
    assert [independent_positions(n, 1) for n in (1, 17)] == [1, 8.5]
    assert independent_positions(10**6, 1) == pytest.approx(16, rel=1e-3)
    assert independent_positions(34, 2) == 17
    rng = np.random.default_rng(0)
    shared, own = rng.normal(0, 1 / 4, (4000, 1)), rng.normal(0, math.sqrt(15 / 16), (4000, 32))
    assert (shared + own).mean(axis=1).std() == pytest.approx(
        1 / math.sqrt(independent_positions(32, 1)), 0.05
    )


def test_a_shift_of_the_yardstick_s_size_is_found_in_an_answer():
    """All logits larger by what rounding does to one: 32 positions, a rounding of all in one direction."""
    theirs = np.tile(THEIRS, (6, 1))[:32]
    rounding = compare(theirs, theirs + noise(0.01, shape=theirs.shape))
    for sign in (1, -1):
        ours = compare(theirs, (theirs + sign * rounding.total_rms).astype(np.float32))
        (failure,) = judge("part", "prompt", ours, rounding, EXACT)
        assert failure.what == "size of the mean logit difference"


def test_a_single_position_is_judged_as_one():
    one = compare(THEIRS[:1], THEIRS[:1] + noise(0.01)[:1])
    assert rms_bound(one, EXACT) == pytest.approx(EXACT.rms_at_one * one.total_rms)
    assert rms_bound(join([one] * 400), EXACT) == pytest.approx(EXACT.rms * one.total_rms, rel=0.01)


def test_a_position_where_the_reference_rounds_worse_may_be_further_away():
    """And no other one."""
    unit = noise(0.01, shape=THEIRS.shape)
    uneven = unit * np.where(np.arange(len(THEIRS)) == 2, 20, 1)[:, None]
    rounding = compare(THEIRS, (THEIRS + uneven).astype(np.float32))
    for position, is_found in ((2, False), (3, True)):
        far = unit * np.where(np.arange(len(THEIRS)) == position, 8 * rounding.total_rms / 0.01, 1)[:, None]
        ours = compare(THEIRS, (THEIRS + far).astype(np.float32))
        failures = judge("part", "prompt", ours, rounding, EXACT)
        found = [one.position for one in failures if one.what == "rms logit difference" and one.position]
        assert found == [position] * is_found


def test_the_bound_of_kl_grows_with_the_reference_s_own_and_with_its_noise():
    of_noise = EXACT.noise_kl + (EXACT.noise_kl_at_one - EXACT.noise_kl) / 6
    assert kl_bound(ROUNDING, EXACT) == pytest.approx(
        EXACT.kl * ROUNDING.mean_kl + of_noise * ROUNDING.total_rms**2
    )


def test_emulated_products_have_no_tighter_bounds_and_the_same_k():
    assert BFP16.top_k == EXACT.top_k == 5
    assert all(wide >= tight for wide, tight in zip(vars(BFP16).values(), vars(EXACT).values(), strict=True))
