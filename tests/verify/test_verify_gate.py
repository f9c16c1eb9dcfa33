"""The gate on the demo: what it looks at, and that whatever goes wrong is a failure with a name."""

from dataclasses import replace

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.common import knobs
from aerie.engine.forward import decode_step
from aerie.engine.generate import FinishReason
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PageManager
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.scheduler import Scheduler
from aerie.runtime import RunError, select_backend
from aerie.verify.bit_identity import (
    CONTINUATION_NAME,
    BitIdentity,
    IdentityCase,
    compare,
    identities_in_session,
    identities_reopened,
    identity_of_continuation,
)
from aerie.verify.bounds import EXACT, session_bounds, session_numerics
from aerie.verify.gate import STEPS, steps_for_prompt, verify
from aerie.verify.gate_prompts import Prompt, choose_prompts
from aerie.verify.subject import SessionUnderTest
from tests.verify.fault_runners import Passing

OPTIONS = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())


@pytest.fixture(scope="module")
def prompts(demo_session):
    return choose_prompts(demo_session, full=False)


@pytest.fixture(scope="module")
def record(demo_session, demo_reference, prompts):
    return verify(demo_session, demo_reference, prompts)


class Breaking(Passing):
    """Fails in one program, with the error it was made with."""

    def __init__(self, inner, program, error):
        super().__init__(inner)
        self.program, self.error = program, error

    def run(self, program, /, **rest):
        if program.name == self.program:
            raise self.error
        return super().run(program, **rest)


class Infinite(Passing):
    """The LM head gives an infinite logit, from its `first` call on."""

    def __init__(self, inner, first):
        super().__init__(inner)
        self.left = first

    def run(self, program, /, **rest):
        results = super().run(program, **rest)
        if program.name != "lm_head_gemv":
            return results
        self.left -= 1
        if self.left >= 0:
            return results
        return {**results, "logits_2": np.full_like(results["logits_2"], np.inf)}


def with_runner(session, runner_class, *arguments):
    return replace(
        session, model=replace(session.model, runner=runner_class(session.model.runner, *arguments))
    )


def test_the_demo_passes(record):
    assert record.failures == []
    assert record.verdict == "PASS"
    assert (record.backend, record.numerics, record.bounds) == ("virtual", "exact", EXACT)


def test_every_step_and_every_position_is_compared(record, prompts):
    assert [len(trial.forced_distance.kl) for trial in record.trials] == [STEPS] * 2
    first, second = record.trials
    assert len(first.positions.kl) == len(prompts[0].token_ids)
    assert second.positions is None


def test_the_answers_are_those_of_make_run(record, demo_session):
    run = record.trials[0].free_run
    assert demo_session.tokenizer.decode(run.token_ids) == "The capital of France is Paris."
    assert run.reason is FinishReason.STOP
    assert len(run.logits) == len(run.token_ids)


def test_a_gate_that_looks_at_nothing_does_not_pass(demo_session, demo_reference):
    with pytest.raises(ValueError, match="there is no prompt, and a gate that looks at nothing must not"):
        verify(demo_session, demo_reference, [])


@pytest.mark.parametrize("program", ["cached_attn_ar128_cl512", "lm_head_gemv", "rms_gemv_rope"])
def test_a_program_that_fails_is_a_failure(demo_session, demo_reference, prompts, program):
    broken = with_runner(demo_session, Breaking, program, RunError("channel @c0 waits\nfor ever"))
    record = verify(broken, demo_reference, prompts[1:])
    assert [str(failure) for failure in record.failures][:1] == [
        "free-running, long: channel @c0 waits for ever"
    ]
    assert record.trials[0].forced_distance is None


def test_a_chat_that_gets_no_answer_is_a_failure(demo_session, demo_reference, prompts):
    broken = with_runner(demo_session, Breaking, "cached_attn_ar32_cl512", RunError("lost"))
    assert verify(broken, demo_reference, prompts[:1]).verdict == "FAIL"


def test_logits_that_are_no_numbers_are_a_failure(demo_session, demo_reference, prompts):
    broken = with_runner(demo_session, Infinite, 0)
    failures = verify(broken, demo_reference, prompts[1:]).failures
    assert str(failures[0]).startswith("free-running, long: the logits hold values that are not finite")


def test_logits_that_are_no_numbers_at_one_forced_step_are_a_failure(demo_session, demo_reference, prompts):
    free_run = verify(demo_session, demo_reference, prompts[1:]).trials[0].free_run
    assert free_run
    answered = len(free_run.token_ids)
    broken = with_runner(demo_session, Infinite, answered + 5)
    failures = [str(failure) for failure in verify(broken, demo_reference, prompts[1:]).failures]
    assert "teacher-forced, long, position 5: our logits are not all finite" in failures


def test_the_context_may_leave_fewer_steps(demo_session, demo_reference):
    room = demo_session.model.config.max_position_embeddings
    cut = replace(
        demo_session,
        model=replace(
            demo_session.model, config=replace(demo_session.model.config, max_position_embeddings=64)
        ),
    )
    assert steps_for_prompt(demo_session, Prompt("p", tuple(range(64)))) == STEPS < room
    assert steps_for_prompt(cut, Prompt("p", tuple(range(60)))) == 5
    assert steps_for_prompt(cut, Prompt("p", tuple(range(64)))) == 1


def test_a_full_context_passes(demo_session, demo_reference):
    config = replace(demo_session.model.config, max_position_embeddings=40)
    cut = replace(demo_session, model=replace(demo_session.model, config=config))
    record = verify(cut, demo_reference, [Prompt("to the end", tuple(range(100, 136)))])
    assert [str(failure) for failure in record.failures] == []
    distance = record.trials[0].forced_distance
    assert distance
    assert len(distance.kl) == 5


def test_the_reference_is_computed_once(demo_session, demo_reference, prompts, record, monkeypatch):
    monkeypatch.setattr(type(demo_reference), "greedy", None)
    assert verify(demo_session, demo_reference, prompts).verdict == "PASS"


def test_forced_tokens_are_fed_as_decode_feeds_them(demo_session):
    prompt, tokens = [1495, 10, 20], [30, 40, 50]
    subject, model = SessionUnderTest(demo_session), demo_session.model
    forced = subject.forced_run(prompt, tokens)
    assert forced.logits.shape == (3, model.config.vocab_size)
    assert forced.rows.shape == (3, model.config.hidden_size)
    np.testing.assert_array_equal(subject.position_logits(forced.rows)[-1], forced.logits[0])
    assert decode_step.__module__ == "aerie.engine.forward"


def test_a_position_that_nothing_wrote_must_not_be_read(demo_session, demo_reference, prompts):
    """An empty cache holds zeros, which hardly move the logits."""
    model = replace(demo_session.model, mask=lambda position: slice(0, position + 2))
    record = verify(replace(demo_session, model=model), demo_reference, prompts[:1])
    rms = next(failure for failure in record.failures if failure.what == "rms logit difference")
    assert rms.part == "teacher-forced"
    assert rms.value
    assert rms.bound
    assert rms.value > 10 * rms.bound


def test_a_conversation_is_heard_turn_by_turn(demo_session):
    first, second = SessionUnderTest(demo_session).chat(["Who are you?", "What is 3 plus 4?"], 4)
    assert len(second.prompt_ids) > len(first.prompt_ids) + 4
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert len(first.token_ids) == len(first.logits) == 4


def test_a_chat_stopped_by_the_user_is_no_answer(demo_session, monkeypatch):
    monkeypatch.setattr("aerie.engine.requests.finish_reason_for", lambda *_: FinishReason.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        SessionUnderTest(demo_session).chat(["Who are you?"], 4)


def test_numerics_choose_the_bounds(demo_session):
    assert session_numerics(demo_session) == "exact"
    assert session_bounds(demo_session) is EXACT


# Bit identity


def test_a_prompt_continues_from_the_cache(demo_session, prompts, record):
    (found,) = record.identities
    assert (found.name, found.differing, found.broken) == (CONTINUATION_NAME, 0, "")
    config, kept = demo_session.model.config, len(prompts[0].token_ids)
    keys = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * kept
    assert found.compared > keys


def test_a_prompt_that_is_computed_again_does_not_go_on(demo_session, prompts, monkeypatch):
    monkeypatch.setattr(
        Scheduler,
        "_keep_sequence",
        lambda self, request, sequence: self.clear_prefix_cache() or sequence.release(),
    )
    monkeypatch.setattr(PageManager, "publish", lambda *_: None)
    assert (
        identity_of_continuation(SessionUnderTest(replace(demo_session)), prompts[0]).broken
        == "all of the prompt was computed again"
    )


def test_programs_of_one_length_have_nothing_to_go_on_from(six_session, prompts):
    identity = identity_of_continuation(SessionUnderTest(six_session), prompts[0])
    assert "cannot reuse a prefix" in identity.skipped


@pytest.mark.parametrize(("seq_len", "lengths"), [(None, [64, None]), (128, [64, 128])])
def test_sessions_opened_otherwise_have_the_same_bits(
    seq_len, lengths, demo_session, six_session, demo_checkpoint, prompts, monkeypatch
):
    monkeypatch.setenv("VNPU_THREADS", "2")
    session = six_session if seq_len else demo_session
    case, opened = IdentityCase.record(session, prompts[0]), []
    options = replace(OPTIONS, seq_len=seq_len)

    def reopen(options):
        opened.append((options.seq_len, knobs.thread_count()))
        return prepare_runtime(demo_checkpoint, options, Reporter())

    found = [*identities_in_session(session, case), *identities_reopened(session, case, options, reopen)]
    assert [(one.name, one.differing, one.skipped, one.broken) for one in found] == [
        (one.name, 0, "", "") for one in found
    ]
    assert len(found) == 4
    assert all(identity.compared > 10000 for identity in found)
    assert opened == list(zip(lengths, (2, 1), strict=True))


def test_a_chat_that_grows_too_long_ends_there(open_session, demo_checkpoint):
    session = open_session(demo_checkpoint, 64)
    (first,) = SessionUnderTest(session).chat(["Who are you?", "What is 3 plus 4? " * 9], 4)
    assert first.token_ids


def test_one_bit_is_a_failure():
    one = [np.arange(4), np.zeros(3)]
    assert compare("twice", one, [np.arange(4), np.zeros(3)]).failure is None
    differing = compare("twice", one, [np.array([0, 1, 2, 9]), np.zeros(3)])
    assert differing == BitIdentity("twice", 7, 1)
    assert str(differing.failure) == ("bit identity, twice: the count of numbers that differ is 1, bound 0")


def test_other_shapes_differ_everywhere():
    assert compare("lengths", [np.zeros(3)], [np.zeros(5)]).differing == 5


def test_a_program_that_fails_on_another_way_is_a_failure(demo_session, prompts):
    case = IdentityCase.record(demo_session, prompts[0])
    broken = with_runner(demo_session, Breaking, "o_ffn_ar32", RunError("lost"))
    found = next(identities_in_session(broken, case))
    assert str(found.failure) == "bit identity, after other prompts, and fresh: lost"
