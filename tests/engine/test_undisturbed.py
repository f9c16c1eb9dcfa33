"""Drafts and blocks on a terminal: Ctrl-C amid the draws of a pass, the bar, what is compiled beforehand."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS, DEMO_FOLDER
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.executor import Executor
from aerie.engine.generate import FinishReason
from aerie.engine.model import LoadedModel
from aerie.engine.open_session import prepare_runtime
from aerie.engine.planner import VariantCall
from aerie.engine.program_library import RuntimeOptions, all_program_names, variant_set_for
from aerie.engine.reporter import OnProgress, Reporter, defer_interrupt, stop_on_interrupt
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import MAX_STEP_TOKENS
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import DEFAULT_DECODE_CONFIG, DecodeConfig
from aerie.engine.strategies.draft_model import _programs_for, draft_model_source
from aerie.engine.strategies.drafters import DraftSource, PromptLookupDrafter
from aerie.engine.strategies.prefill_only import WantedRows
from aerie.engine.variants import default_variants, gathered_contexts
from aerie.runtime import select_backend
from aerie.verify.random_model import random_checkpoint, with_longer_context
from tests.engine.scheduling import session_of


class Struck(Sampler):
    """Ctrl-C comes in every third draw, after its number and before its token."""

    def __call__(self, *given: Any) -> int:
        token = super().__call__(*given)
        draws = self.__dict__.setdefault("draws", [])
        draws.append(token)
        if len(draws) % 3 == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return token


@pytest.fixture(scope="module", params=["demo", "demo-diffusion"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_of(open_checkpoint(BUILT_IN_MODELS[request.param]))


def decode_config_of(session: Session) -> DecodeConfig:
    return DecodeConfig(draft="lookup") if session.model.config.diffusion is None else DEFAULT_DECODE_CONFIG


def asked(session: Session) -> list[int]:
    return session.tokenizer.encode_chat([{"role": "user", "content": "Say the multiplication table of 2."}])


SETTINGS: dict[str, Any] = {"temperature": 3.0, "seed": 6}


def test_ctrl_c_amid_the_draws_of_a_pass_loses_none(session: Session) -> None:
    """What a KeyboardInterrupt ends goes on with the draws that it would have had."""
    prompt, decode_config = asked(session), decode_config_of(session)
    whole = list(session.generate(prompt, 40, Sampler(**SETTINGS), decode_config=decode_config))
    request = session.generate(prompt, 40, Struck(**SETTINGS), decode_config=decode_config)
    struck = 0
    while request.finish_reason is None:
        try:
            list(request)
        except KeyboardInterrupt:
            struck += 1
    assert request.token_ids == whole
    assert struck > 3


def test_draws_that_can_be_broken_off_would_be_seen(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def disturbed() -> Iterator[None]:
        yield

    prompt, decode_config = asked(session), decode_config_of(session)
    whole = list(session.generate(prompt, 40, Sampler(**SETTINGS), decode_config=decode_config))
    monkeypatch.setattr("aerie.engine.scheduler.defer_interrupt", disturbed)
    request = session.generate(prompt, 40, Struck(**SETTINGS), decode_config=decode_config)
    for _ in range(80):
        try:
            list(request)
        except KeyboardInterrupt:
            continue
        break
    request.stop()
    assert request.token_ids != whole


def output_ids(session: Session) -> list[int]:
    """What is kept of the last answer."""
    kept = session.scheduler.last_sequence
    assert kept
    assert kept.answer
    return list(kept.answer.token_ids)


def test_ctrl_c_in_a_plain_answer_loses_no_draw() -> None:
    session = session_of(open_checkpoint(DEMO_FOLDER))
    prompt = asked(session)
    whole = list(session.generate(prompt, 20, Sampler(**SETTINGS)))
    answer, struck = session.generate(prompt, 20, Struck(**SETTINGS)), 0
    while answer.finish_reason is None:
        try:
            list(answer)
        except KeyboardInterrupt:
            struck += 1
            answer = session.continue_answer(20 - len(output_ids(session)))
    assert output_ids(session) == whole
    assert struck > 2


def test_what_waited_comes_at_the_end_and_once() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with defer_interrupt():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            assert seen == []
        assert seen == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == [signal.SIGINT] * 2
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with defer_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_request_is_stopped_in_the_middle_of_a_step(session: Session, monkeypatch: Any) -> None:
    """By what the handler of Ctrl-C calls; what has come stays."""
    prompt, decode_config = asked(session), decode_config_of(session)
    request = session.generate(prompt, 40, Sampler(**SETTINGS), decode_config=decode_config)
    scheduler, steps = session.scheduler, 0
    run = scheduler._run

    def stopping(pieces: Any, requests: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 4:
            signal.raise_signal(signal.SIGINT)
        return run(pieces, requests)

    monkeypatch.setattr(scheduler, "_run", stopping)
    with stop_on_interrupt() as interrupted:
        request.interrupted = interrupted
        made = list(request)
    assert request.finish_reason is FinishReason.INTERRUPTED
    assert steps == 4
    monkeypatch.undo()
    whole = list(session.generate(prompt, 40, Sampler(**SETTINGS), decode_config=decode_config))
    assert made == whole[: len(made)] != whole


def test_the_bar_moves_while_a_long_prompt_is_read(session: Session, monkeypatch: Any) -> None:
    """Over tokens, with every step; it is gone before the first of the answer."""
    events: list[Any] = []

    @contextmanager
    def bar(total: int) -> Iterator[OnProgress]:
        events.append(total)
        yield lambda what, done: events.append(done)
        events.append("gone")

    monkeypatch.setattr("aerie.engine.scheduler.MAX_STEP_TOKENS", 32)
    monkeypatch.setattr(session, "bar", bar)
    prompt = [int(token) for token in range(20, 120)]
    (first, *_) = session.generate(prompt, 4, Sampler(**SETTINGS), decode_config=decode_config_of(session))
    assert isinstance(first, int)
    assert events[0] == len(prompt)
    assert events[-1] == "gone"
    moves = events[1:-1]
    assert moves[:3] == [32, 64, 96]
    assert set(moves[3:]) <= {100}


def test_the_bar_of_a_report_is_shown(session: Session, monkeypatch: Any) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(session, "bar", partial(Reporter(shown, terminal=True).bar, "reading the prompt"))
    list(session.generate([*range(20, 120)], 2, Sampler(), decode_config=decode_config_of(session)))
    assert "reading the prompt" in shown.getvalue()
    assert "/100" in shown.getvalue()


@pytest.mark.parametrize("at_once", [False, True])
def test_nothing_is_compiled_in_the_middle_of_an_answer(at_once: bool) -> None:
    """Of a drafter whose programs nobody has asked for yet: all that it needs is there before the answer."""
    model = session_of(open_checkpoint(DEMO_FOLDER))
    output = io.StringIO()
    drafter = drafter_of(at_once, Reporter(output))
    drafting = draft_model_source(lambda: drafter.model, threading.Lock(), model.model.config)
    prompt = [*range(20, 120)]
    going_on = dict.fromkeys(model.model.config.eos_token_ids, -100.0)
    drafts = DecodeConfig(draft=drafting)
    request = model.generate(prompt, 40, Sampler(logit_bias=going_on), decode_config=drafts)
    assert "programs: " in output.getvalue()
    before, have = output.getvalue(), dict(drafter.model.programs)
    assert len(list(request)) == 40
    assert request.pass_counts is not None
    assert request.pass_counts.drafted
    assert output.getvalue() == before
    assert drafter.model.programs.keys() == have.keys()


def test_the_programs_of_every_context_up_to_the_end_are_needed() -> None:
    model = drafter_of(False, Reporter(io.StringIO())).model
    config = with_longer_context(model.config)
    model = replace(
        model,
        config=config,
        variant_set=replace(model.variant_set, variants=default_variants(config.context)),
    )
    assert model.variant_set.contexts == [512, 1024]
    assert contexts_of(model, 100) == {512}
    assert contexts_of(model, 500) == contexts_of(model, 508) == {512, 1024}


def contexts_of(model: LoadedModel, prompt: int) -> set[int]:
    named = (name.rpartition("cl") for name in _programs_for(model, prompt, 20))
    return {int(context) for _, found, context in named if found}


def drafter_of(at_once: bool, report: Reporter) -> Session:
    checkpoint = open_checkpoint(BUILT_IN_MODELS["demo-drafter"])
    if at_once:
        checkpoint = replace(checkpoint, config=replace(checkpoint.config, draft_mask_id=7))
    return fresh(checkpoint, report)


def fresh(checkpoint: Checkpoint, report: Reporter) -> Session:
    """With the programs that every answer needs, and no others yet."""
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir())
    return prepare_runtime(checkpoint, options, report)


def test_an_answer_whose_programs_cannot_be_had_leaves_nothing_waiting() -> None:
    session = session_of(open_checkpoint(DEMO_FOLDER))

    def make_room(prompt: int, more: int) -> None:
        raise KeyboardInterrupt

    drafting = DraftSource(PromptLookupDrafter, ensure_programs=make_room)
    with pytest.raises(KeyboardInterrupt):
        session.generate([5, 6, 7], 4, Sampler(), decode_config=DecodeConfig(draft=drafting))
    session.scheduler.step()
    assert session.scheduler.stats.steps == 0
    assert session.scheduler.pool.manager.free_count == session.scheduler.pool.manager.page_count


@pytest.mark.parametrize(("block", "prompt"), [(1, 35), (1, 170), (1, 460), (4, 35), (4, 460), (32, 70)])
def test_nothing_of_the_model_is_compiled_in_the_middle_of_an_answer(block: int, prompt: int) -> None:
    """Drafts that are all right take the pass to its largest; blocks are filled behind frozen ones; some go
    on into the next context."""
    config = open_checkpoint(BUILT_IN_MODELS["demo-diffusion" if block > 1 else "demo"]).config
    if config.diffusion:
        config = replace(config, diffusion=replace(config.diffusion, block_size=block))
    output = io.StringIO()
    with random_checkpoint(
        with_longer_context(replace(config, num_hidden_layers=1)), Reporter()
    ) as checkpoint:
        session = fresh(checkpoint, Reporter(output))
        going_on = {**dict.fromkeys(session.model.config.eos_token_ids, -100.0), 9: 100.0}
        decode_config = DEFAULT_DECODE_CONFIG if block > 1 else DecodeConfig(draft="lookup")
        ids = [*range(20, 20 + prompt)]
        request = session.generate(ids, 70, Sampler(logit_bias=going_on), decode_config=decode_config)
        before = output.getvalue()
        assert len(list(request)) == 70
        assert output.getvalue() == before


@pytest.mark.parametrize(
    ("variants", "devices", "block"),
    [(None, 1, 1), (None, 1, 4), ("8,32x512", 1, 1), ("128x512 2048x8192", 1, 32), ("8,512x2048", 2, 1)],
)
@pytest.mark.parametrize("positions", [512, 4096])
def test_what_compile_has_ready_is_all_that_steps_need(
    variants: str | None, devices: int, block: int, positions: int
) -> None:
    """Of any number of rows, wanted or not, in any window: by the names of programs alone."""
    config = open_checkpoint(BUILT_IN_MODELS["demo-diffusion" if block > 1 else "demo"]).config
    config = replace(config, max_position_embeddings=positions)
    if config.diffusion:
        config = replace(config, diffusion=replace(config.diffusion, block_size=block))
    blocks = replace(variant_set_for(config, variants, "rows"), devices=devices)
    ready = {*blocks.batch_programs, *all_program_names(config, blocks)}
    executor: Any = SimpleNamespace(
        _model=SimpleNamespace(variant_set=blocks), _rows=blocks.batch_rows, max_rows=blocks.batch_rows[-1]
    )
    seen: set[str] = set()
    for context in gathered_contexts(blocks.contexts):
        for tokens in range(1, min(context, MAX_STEP_TOKENS, executor.max_rows) + 1):
            width = Executor.padded_rows(executor, tokens)
            if width <= context:
                for wanted in {0, 1, min(tokens, 9), min(tokens, 33), tokens}:
                    step = VariantCall(width, context, 0, 0, width, 0, 0)
                    tail = Executor._tail(executor, step, wanted)
                    seen |= {
                        *Executor._programs_of(executor, step, tail, [context]),
                        blocks.lm_head(max(1, wanted)),
                    }
    assert seen <= ready
    assert len(seen) > len(ready) // 2
    end = blocks.contexts[-1]
    prompts = {(tokens, past) for tokens in (1, 7, 40, 511) for past in (0, 1, 300) if tokens + past < end}
    for tokens, past in prompts:
        for last_only in (True, False):
            assert {*blocks.programs_for_calls(blocks.plan(tokens, past), last_only)} <= ready


def test_a_model_that_was_warmed_compiles_nothing(monkeypatch: Any) -> None:
    """Answers side by side, alone, with drafts of a model, and what is read; of windows up to 1024."""
    monkeypatch.setattr("aerie.engine.variants.DEFAULT_CONTEXTS", (512, 1024))
    output = io.StringIO()
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode="rows"
    )
    session = prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter(output))
    drafter = fresh(open_checkpoint(BUILT_IN_MODELS["demo-drafter"]), Reporter(output))
    for each in (session, drafter):
        each.load_all_programs()
    scheduler, before = session.scheduler, output.getvalue().count("programs: ")
    drafting = draft_model_source(lambda: drafter.model, threading.Lock(), session.model.config)
    going_on = Sampler(logit_bias=dict.fromkeys(session.model.config.eos_token_ids, -100.0))
    drafted = DecodeConfig(draft=drafting).strategy_factory(session.model.config, going_on)
    requests = [
        scheduler.add_request([*range(20, 20 + 60 * n)], 12, going_on, strategy=drafted) for n in (1, 2, 5)
    ]
    requests += [scheduler.add_request([20 + n], 9, going_on) for n in range(20)]
    requests += [
        scheduler.add_prefill_only([5] * 400, lambda rows: None, wanted)
        for wanted in (WantedRows.HIDDEN, WantedRows.LOGITS)
    ]
    while not all(one.is_finished for one in requests):
        scheduler.step()
    assert {one.error for one in requests} == {None}
    list(session.generate([*range(20, 250)], 9, going_on))
    assert output.getvalue().count("programs: ") == before
