"""Drafts and blocks in drawn schedules: whatever comes, goes and gives way beside it, an answer is its own.

Prompts, settings, arrivals, cancels, priorities and the pool's size are drawn; some prompts begin alike, and
some answers end at a token of their own. Each answer has the tokens and the trajectory that it has alone; one
that was cancelled has the first of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.families import FAMILIES
from aerie.engine.generate import FinishReason
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session
from aerie.engine.strategies.block_diffusion import BlockDiffusionStrategy
from aerie.engine.strategies.decode_config import DecodeConfig
from aerie.engine.strategies.draft_model import draft_model_source
from aerie.llama32_1b.synthetic.shape import in_family
from aerie.verify.random_model import random_checkpoint, random_model_config
from tests.engine.scheduling import Arrival, run, scheduler_of, session_of

SCHEDULES = 2
"""Of a test."""
ANSWERS = 9
RULES = ("sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded")


class DrawnRequest(NamedTuple):
    """One answer of a schedule: when it comes, and after how many tokens it is cancelled (0: never)."""

    prompt: list[int]
    max_tokens: int
    settings: dict[str, Any]
    decode_config: DecodeConfig
    comes: int
    cancelled: int
    priority: int


class Made(NamedTuple):
    """What has come of one."""

    tokens: list[int]
    reason: FinishReason | None
    filled: list[Any]


def drawn_decode_config(random: np.random.Generator, drafts: Sequence[Any]) -> DecodeConfig:
    if drafts:
        return DecodeConfig(draft=drafts[int(random.integers(len(drafts)))])
    rule = str(random.choice(RULES))
    steps = int(random.integers(1, 5)) if rule != "entropy_bounded" and random.random() < 0.5 else None
    threshold = float(random.choice([0.001, 0.3, 0.9])) if rule == "low_confidence_dynamic" else None
    entropy = float(random.choice([0.1, 3.0, 9.0])) if rule == "entropy_bounded" else None
    return DecodeConfig(rule=rule, steps=steps, threshold=threshold, entropy=entropy)


def drawn(random: np.random.Generator, drafts: Sequence[Any], ends: Sequence[int]) -> list[DrawnRequest]:
    """A schedule. Prompts repeat themselves, so that lookup finds drafts; most answers do not end by
    the model's own tokens."""
    stem = random.integers(20, 1400, 90).tolist()
    made = []
    for _ in range(ANSWERS):
        own = random.integers(20, 1400, random.integers(1, 40)).tolist() * int(random.integers(1, 3))
        settings = {
            "temperature": float(random.choice([0.0, 0.7, 1.3])),
            "top_k": int(random.choice([0, 1, 20])),
            "top_p": float(random.choice([1.0, 0.9])),
            "repetition_penalty": float(random.choice([1.0, 1.2])),
            "seed": int(random.integers(1000)),
            "logit_bias": dict.fromkeys(ends, float(random.choice([0.0, -100.0, -100.0]))),
        }
        made.append(
            DrawnRequest(
                prompt=[*stem[: int(random.choice([0, 0, 64, 70, 90]))], *own],
                max_tokens=int(random.integers(1, 70)),
                settings=settings,
                decode_config=drawn_decode_config(random, drafts),
                comes=int(random.integers(0, 12)),
                cancelled=int(random.choice([0, 0, 0, 1, 5, 11])),
                priority=int(random.choice([0, 0, 0, 1])),
            )
        )
    return sorted(made, key=lambda one: one.comes)


def ask(scheduler: Scheduler, each: DrawnRequest) -> Request:
    sampler = Sampler(**each.settings)
    maker = each.decode_config.strategy_factory(scheduler.model.config, sampler)
    return scheduler.add_request(each.prompt, each.max_tokens, sampler, each.priority, maker)


def made_of(request: Request) -> Made:
    assert request.error is None
    strategy = request.strategy
    filled = list(strategy.trajectory) if isinstance(strategy, BlockDiffusionStrategy) else []
    return Made(list(request.token_ids), request.finish_reason, filled)


def alone(session: Session, each: DrawnRequest) -> Made:
    request = ask(scheduler_of(session, 8, 0), each)
    assert list(request) == request.token_ids
    return made_of(request)


def is_cancelled(each: DrawnRequest, request: Request, step: int) -> bool:
    return bool(each.cancelled) and len(request.token_ids) >= each.cancelled


def together(
    session: Session, schedule: Sequence[DrawnRequest], pages: int, spare: int
) -> tuple[list[Made], int]:
    """What comes of each, and how often one gave way."""
    scheduler = scheduler_of(session, pages, spare)
    requests = run(
        scheduler,
        [
            Arrival(each.comes, partial(ask, scheduler, each), partial(is_cancelled, each))
            for each in schedule
        ],
    )
    return [made_of(one) for one in requests], scheduler.stats.preemptions


def check(session: Session, drafts: Sequence[Any]) -> None:
    """So many schedules, and as many more as it takes for one to give way and one to be cancelled."""
    random = np.random.default_rng(2)
    preempted = cancelled = number = 0
    while number < SCHEDULES or (not (preempted and cancelled) and number < 2 * SCHEDULES):
        number += 1
        schedule = drawn(random, drafts, session.model.config.eos_token_ids)
        wanted = [alone(session, each) for each in schedule]
        found, times = together(session, schedule, int(random.integers(4, 6)), int(random.choice([0, 3])))
        preempted += times
        for each, whole, made in zip(schedule, wanted, found, strict=True):
            if made.reason is FinishReason.INTERRUPTED:
                cancelled += 1
                assert len(made.tokens) >= each.cancelled
                assert made.tokens == whole.tokens[: len(made.tokens)]
                assert made.filled == whole.filled[: len(made.filled)]
            else:
                assert made == whole, each
    assert preempted
    assert cancelled


@pytest.fixture(scope="module", params=["demo-diffusion", "sdar"])
def blocks(request: pytest.FixtureRequest) -> Iterator[Session]:
    demo = open_checkpoint(BUILT_IN_MODELS["demo-diffusion"])
    if request.param == "demo-diffusion":
        yield session_of(demo)
        return
    config = replace(random_model_config(open_checkpoint(BUILT_IN_MODELS["demo"]).config), rope_scaling=None)
    with random_checkpoint(in_family(config, FAMILIES["sdar"]), Reporter()) as checkpoint:
        yield session_of(checkpoint)


def test_blocks_in_drawn_schedules(blocks: Session) -> None:
    check(blocks, ())


@pytest.mark.parametrize("kind", ["lookup", "model", "at once"])
def test_drafts_in_drawn_schedules(kind: str) -> None:
    """By lookup; by the demo's drafter; and by it as if it made its drafts at once."""
    names = ("demo", "demo-drafter")
    session, drafter = (session_of(open_checkpoint(BUILT_IN_MODELS[name])) for name in names)
    model = drafter.model
    if kind == "at once":
        model = replace(model, config=replace(model.config, draft_mask_id=7))
    by = draft_model_source(lambda: model, threading.Lock(), session.model.config)
    check(session, ["lookup"] if kind == "lookup" else [by, by, "lookup"])
