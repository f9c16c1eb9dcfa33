"""Part 1: what an answer must be, and where it may part from the reference's."""

import numpy as np
import pytest

from aerie.verify.gate import first_divergence, judge_answer
from aerie.verify.reference import ReferenceAnswer
from aerie.verify.subject import FreeRun

EOS = (9,)
STEPS = 6


def logits_for(token_ids):
    """Logits that make those tokens the likeliest; the others follow in order of their ids, 0 first."""
    rows = np.tile(-np.arange(20, dtype=np.float32), (len(token_ids), 1))
    rows[np.arange(len(token_ids)), token_ids] = 1
    return rows


def judge(ours, theirs, logits=None, forced=None):
    """Failures as text: `ours` sampled from `logits`, where part 2 saw `forced`."""
    logits = logits_for(ours) if logits is None else logits
    if forced is None:
        forced = logits_for(theirs)
        common = min(len(logits), len(forced))
        forced[:common] = logits[:common]
    run = FreeRun((1, 2), list(ours), list(logits), None)
    answer = ReferenceAnswer(list(theirs), logits_for(theirs))
    return [str(failure) for failure in judge_answer("question", run, answer, forced, EOS, 5)]


def test_the_same_answer_passes():
    assert judge([3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8]) == []


def test_an_answer_that_ends_with_the_reference_s_end_token_passes():
    """The reference is driven on beyond its end token, for part 2."""
    assert judge([3, 4, 9], [3, 4, 9, 5, 6, 7]) == []


def test_an_empty_answer_fails():
    assert judge([], [3, 4, 5, 6, 7, 8]) == ["free-running, question, position 0: our answer is empty"]


def test_an_answer_cut_short_fails():
    assert judge([3, 4], [3, 4, 5, 6, 7, 8]) == [
        "free-running, question, position 2: our answer stops after 2 of 6 tokens, without an end token"
    ]


def test_an_answer_that_continues_after_its_end_fails():
    assert "free-running, question, position 2: our answer goes on after end token 9" in judge(
        [3, 9, 5, 6, 7, 8], [3, 9, 5, 6, 7, 8]
    )


def test_a_near_tie_passes_and_what_follows_is_not_compared():
    assert judge([3, 2, 15, 16, 17, 18], [3, 4, 5, 6, 7, 8]) == []


def test_a_divergence_far_down_the_reference_s_order_fails():
    assert judge([3, 12, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8])[0] == (
        "free-running, question, position 1: the place of our token in the reference's order is 13, bound 5"
    )


def test_a_divergence_where_theirs_is_far_down_in_ours_fails():
    assert judge([3, 2, 5, 6, 7, 8], [3, 14, 5, 6, 7, 8]) == [
        "free-running, question, position 1: the place of the reference's token in our order is 15, bound 5"
    ]


def test_an_end_token_of_our_own_has_to_be_near_too():
    assert judge([3, 9], [3, 4, 5, 6, 7, 8])[0] == (
        "free-running, question, position 1: the place of our token in the reference's order is 10, bound 5"
    )


def test_the_answer_must_be_the_sampled_tokens():
    assert judge([3, 4, 7, 8, 5, 6], [3, 4, 5, 6, 7, 8], logits_for([3, 4, 5, 6, 7, 8]))[0] == (
        "free-running, question, position 2: our answer has token 7 where 5 is the likeliest of ours"
    )


def test_more_tokens_than_samples_fail():
    assert "our answer has token 5 where nothing was sampled of ours" in " ".join(
        judge([3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8], logits_for([3, 4]))
    )


def test_the_same_tokens_have_to_give_the_same_logits_when_forced():
    forced = logits_for([3, 4, 5, 6, 7, 8])
    forced[4, 0] += 0.5
    assert judge([3, 4, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8], forced=forced) == [
        "free-running, question, position 4: the largest difference between our logits and those of the same "
        "tokens, forced, is 0.5, bound 0"
    ]


def test_logits_after_the_divergence_are_of_other_tokens():
    forced = logits_for([3, 2, 0, 0, 0, 0])
    assert judge([3, 2, 5, 6, 7, 8], [3, 4, 5, 6, 7, 8], forced=forced) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 5, 3], [1, 2, 3], 1),
        ([1, 9], [1, 9, 4], None),
        ([], [1, 2], None),
        ([1], [1, 2], None),
        ([9, 9, 3], [9, 4, 4], None),
    ],
)
def test_where_answers_part(ours, theirs, expected):
    assert first_divergence(ours, theirs, EOS) == expected
