"""The gate's long conversation: it passes on a healthy model, and finds a turn whose logits are wrong."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest

from aerie.common.errors import UserError
from aerie.verify import conversation_check
from aerie.verify.conversation_check import (
    ConversationResult,
    check_fits,
    passes,
    try_conversation,
)
from aerie.verify.gate import verify
from aerie.verify.gate_prompts import QUESTIONS, choose_prompts
from aerie.verify.report import as_json, print_record
from aerie.verify.subject import FreeRun, SessionUnderTest

TOKENS = 150


@pytest.fixture(scope="module")
def healthy(demo_session, demo_reference):
    return try_conversation(demo_session, demo_reference, TOKENS)


def failures(result):
    return [str(failure) for failure in result.failures]


def test_a_healthy_model(healthy):
    assert failures(healthy) == []
    assert healthy.turns > 2
    assert healthy.tokens >= TOKENS
    assert healthy.distance.positions == healthy.rounding.positions > 20


@pytest.fixture
def talk(monkeypatch, demo_session, demo_reference):
    """talk(change) -> the result where `change` was applied to the answers."""

    def run(change):
        whole = SessionUnderTest.chat
        monkeypatch.setattr(SessionUnderTest, "chat", lambda *arguments: change(whole(*arguments)))
        return failures(try_conversation(demo_session, demo_reference, TOKENS))

    return run


def with_last(runs, **changes):
    return [*runs[:-1], replace(runs[-1], **changes)]


def scaled(rows):
    """Logits of which each token is still the likeliest."""
    return [2.0 * row for row in rows]


def test_logits_of_a_late_turn(talk):
    """As where the cache has lost keys and values: those of the last turn alone are wrong."""
    first = talk(lambda runs: with_last(runs, logits=scaled(runs[-1].logits)))[0]
    assert first.startswith("conversation, all turns: rms logit difference is")


def test_logits_that_are_not_finite(talk):
    bad = talk(lambda runs: with_last(runs, logits=[row * np.nan for row in runs[-1].logits]))
    assert len(bad) == 1
    assert bad[0].endswith("our logits are not all finite")


def test_tokens_that_were_not_sampled(talk):
    (failure,) = talk(
        lambda runs: with_last(runs, token_ids=[runs[-1].token_ids[0] + 1, *runs[-1].token_ids[1:]])
    )
    assert failure.endswith("our answer is not what is the likeliest of ours")


def test_an_empty_answer(talk):
    assert talk(lambda runs: with_last(runs, token_ids=[], logits=[]))[0].endswith("our answer is empty")


def test_a_conversation_that_ends_early(talk):
    (failure,) = talk(lambda runs: runs[:1])
    assert failure.startswith("conversation, all turns, position 1: the conversation ends after ")
    assert failure.endswith(f" of {TOKENS} tokens")


def test_an_error_of_the_forward_pass(talk):
    def fail(_):
        raise UserError("the device is gone")

    assert talk(fail) == ["conversation, all turns: the device is gone"]


def test_what_does_not_fit(demo_session):
    with pytest.raises(UserError, match=r"--conversation is 465 tokens \(CONVERSATION\), .* 1 to 464"):
        check_fits(demo_session, 465)
    check_fits(demo_session, 464)

    class Plain:
        has_chat_template = False

    with pytest.raises(UserError, match=r"--conversation 9 \(CONVERSATION\) needs a chat template"):
        check_fits(replace(demo_session, tokenizer=Plain()), 9)


def test_answers_that_share_a_pass():
    """The text of the second answer became other tokens in the third prompt."""
    first, second, third = (
        FreeRun(prompt, tokens, [], None)
        for prompt, tokens in (((1, 2), [3, 4]), ((1, 2, 3, 4, 5), [6, 7]), ((1, 2, 3, 4, 5, 9, 8), [3]))
    )
    assert passes([first, second, third]) == [
        ([1, 2, 3, 4, 5, 9, 8], [first, third]),
        ([1, 2, 3, 4, 5, 6], [second]),
    ]


def test_a_conversation_ends_at_a_refused_message(demo_session):
    """As one that is too long: the chat tells, and the gate does not ask for ever."""
    runs = SessionUnderTest(demo_session).chat(["Hello", "word " * 600, "Hello"], 2)
    assert len(runs) == 1


def test_it_is_part_of_the_record(demo_session, demo_reference, healthy):
    record = verify(demo_session, demo_reference, choose_prompts(demo_session, full=False)[:1])
    record = replace(record, conversations=[healthy])
    printed = io.StringIO()
    print_record(record, printed)
    assert f"{healthy.turns} turns" in printed.getvalue()
    assert as_json(record, "demo")["conversations"][0]["turns"] == healthy.turns
    assert record.verdict == "PASS"
    empty = ConversationResult(failures=[conversation_check._failure(None, "nothing was said")])
    assert replace(record, conversations=[empty]).verdict == "FAIL"
    print_record(replace(record, conversations=[empty]), printed)
    assert "[verify] FAIL: conversation, all turns: nothing was said" in printed.getvalue()


def test_further_prompts(demo_session):
    prompts = choose_prompts(demo_session, False, 20)
    assert len({prompt.name for prompt in prompts}) == 20
    assert prompts[-1].message in QUESTIONS
    with pytest.raises(
        UserError, match=r"--prompts is 99 \(N_PROMPTS\), and for this model there are 1 to 23"
    ):
        choose_prompts(demo_session, False, 99)
    with pytest.raises(UserError, match="--prompts is 0"):
        choose_prompts(demo_session, True, 0)
