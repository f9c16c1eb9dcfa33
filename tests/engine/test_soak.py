"""A thousand requests, eight under way at a time: memory does not grow after the first hundred."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.page_pool import PAGE_SIZE, PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session, prepare_runtime
from aerie.runtime import select_backend

REQUESTS, TOKENS, AT_A_TIME, SETTLED = 1000, 80, 8, 100
LONGEST = 60
"""Tokens of a prompt. The first ones have as many, so that the largest window and its programs are there."""
GROWTH_BYTES = 2 << 20
"""What an allocator may keep to itself. An object of 32 bytes for each token that is made would be more."""


def resident_bytes() -> int:
    """Of this process, without what the system may take back from files."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))


def session() -> Session:
    """Of two layers: what is kept of a token or a request hangs on no number of layers."""
    options = RuntimeOptions(
        None, select_backend("virtual"), default_cache_dir(), variants="8,32x512", decode="rows"
    )
    return prepare_runtime(open_checkpoint(BUILT_IN_MODELS["demo-drafter"]), options, Reporter())


@pytest.mark.slow
def test_memory_does_not_grow() -> None:
    model = session().model
    endless = dict.fromkeys(model.config.eos_token_ids, -100.0)
    pool = PagePool(model.config, AT_A_TIME * -(-(TOKENS + LONGEST) // PAGE_SIZE), b"the drafter")
    scheduler, rng = Scheduler(model, pool, gathered_cache_for), np.random.default_rng(0)
    running, begun, ended, settled = list[Request](), 0, 0, 0
    while ended <= REQUESTS - AT_A_TIME:  # as many under way as before: fewer would go by other programs
        while begun < REQUESTS and len(running) < AT_A_TIME:
            length = LONGEST if begun < AT_A_TIME else rng.integers(1, LONGEST)
            prompt = [int(token) for token in rng.integers(3, 1400, length)]
            sampler = Sampler(temperature=1.0, seed=begun, logit_bias=endless)
            running.append(scheduler.add_request(prompt, TOKENS, sampler))
            begun += 1
        scheduler.step()
        over = [one for one in running if one.is_finished]
        assert all(len(one.token_ids) == TOKENS for one in over)
        running = [one for one in running if not one.is_finished]
        if over:
            gc.collect()  # what waits for the collector is no leak, and how much that is hangs on chance
        if ended < SETTLED <= ended + len(over):
            settled = resident_bytes()
        ended += len(over)
    grown = resident_bytes() - settled
    print(f"{settled >> 10} KiB after {SETTLED} requests, {grown >> 10} KiB more after {REQUESTS}")
    assert settled > 0
    assert grown < GROWTH_BYTES
    while not all(one.is_finished for one in running):
        scheduler.step()
    scheduler.step()
    assert pool.manager.free_count == pool.manager.page_count
