"""Hundreds of requests, eight under way at a time: what is kept does not grow after the first ones.

Python's objects and what the allocator has given out are counted, not resident pages: those come and go with
the allocator and the machine, and only many requests are more than that.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import numpy as np
import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gathered_cache import gathered_cache_for
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagePool
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.scheduler import Scheduler
from aerie.engine.session import Session
from aerie.runtime import select_backend

REQUESTS, TOKENS, AT_A_TIME, SETTLED = 200, 32, 8, 40
LONGEST = 60
"""Tokens of a prompt. The first ones have as many, so that the largest window and its programs are there."""
TOKENS_PER_OBJECT = 8
"""An object kept for each so many tokens, or four of a request, are a leak; noise is a tenth of it."""
BYTES_PER_TOKEN = 32
"""So are as many bytes of a token, or a KiB of a request, in what is too large for Python's own allocator."""


FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class AllocatorStatistics(ctypes.Structure):
    """`struct mallinfo2` of glibc, whose fields are all sizes in bytes, or counts."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in FIELDS)


def kept() -> tuple[int, int]:
    """Objects of up to 512 bytes, and bytes in all that is larger (0 where the allocator does not count)."""
    gc.collect()
    statistics = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if statistics is None:
        return sys.getallocatedblocks(), 0
    statistics.restype = AllocatorStatistics
    counted = statistics()
    return sys.getallocatedblocks(), counted.uordblks + counted.hblkhd


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
    running, begun, ended, since, settled = list[Request](), 0, 0, 0, (0, 0)
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
        is_settled = ended < SETTLED <= ended + len(over)
        ended += len(over)
        del over
        if is_settled:
            settled, since = kept(), ended
    objects, nbytes = (now - then for now, then in zip(kept(), settled, strict=True))
    made = (ended - since) * TOKENS
    print(f"{objects} objects and {nbytes} bytes more after {made} tokens")
    assert objects < made / TOKENS_PER_OBJECT
    assert nbytes < made * BYTES_PER_TOKEN
    while not all(one.is_finished for one in running):
        scheduler.step()
    scheduler.step()
    assert pool.manager.free_count == pool.manager.page_count
