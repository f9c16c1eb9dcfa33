"""Schedules of the same tokens in the decode path `rows`. All must give the same bits: of the last layer's
rows, of keys and values, and of the logits after every position.

A schedule also fails if the session did not follow it: fewer steps than it needs, other programs, or a
context that did not grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from aerie.engine.checkpoint import Checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.forward import all_logits, decode_step, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array
from aerie.engine.page_pool import KVCache
from aerie.engine.planner import VariantCall
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.session import Session
from aerie.engine.variant_set import MAX_TAIL_ROWS, ROWS
from aerie.multi_launch_builder import Variant
from aerie.multi_launch_builder.variants import CONTEXTS
from aerie.verify.bit_identity import BitIdentity, Bits, compare, try_identity, with_threads
from aerie.verify.gate_prompts import text_of_length


def with_variants(model: LoadedModel, is_used: Callable[[Variant], bool]) -> LoadedModel:
    """Return the same model in the decode path `rows`, with only the variants for which `is_used` is true."""
    variants = tuple(variant for variant in model.variant_set.variants if is_used(variant))
    blocks = replace(model.variant_set, variants=variants, decode_path=ROWS)
    model.ensure_programs(blocks.decode_programs)
    return replace(model, variant_set=blocks)


def with_few_rows(session: Session) -> Session:
    """Return the same session with its smallest variants only, 32 rows at most if it has such; in decode too.

    A prompt then takes several steps, each after the keys and values of those before. Weights and programs
    are shared with the session.
    """
    min_rows = min(variant.rows for variant in session.model.variant_set.variants)
    model = with_variants(session.model, lambda variant: variant.rows <= max(MAX_TAIL_ROWS, min_rows))
    return replace(session, model=model)


@dataclass(frozen=True)
class Schedule:
    """How the tokens of a text are cut into calls.

    rows: the rows of the variants that must run, all of them. first: tokens of the first call; 0 means as
    many as in the others. tokens: tokens of each further call; 1 means decode_step. rewound_tokens: wrong
    tokens that are computed after the first few and then dropped from the cache. min_calls: minimum calls of
    a layer's programs. grows: whether the run starts in the first context and must end in the second.
    """

    name: str
    rows: tuple[int, ...]
    first: int = 0
    tokens: int = 10**6
    rewound_tokens: int = 0
    min_calls: int = 2
    grows: bool = False


REWOUND_LENGTH = 3
"""Tokens that stay in the cache after the rewind."""

SPLIT_TOKENS = 45
"""Tokens of the text: with 8, 16, 32 or 64 rows, the last call has rows of padding."""

ONE_CALL = Schedule("at once", (64,), min_calls=1)
SEVERAL_CALLS = Schedule("in chunks of 5, padded", (8,), tokens=5, min_calls=9)
SCHEDULES = (
    Schedule("in 8 rows", (8,), min_calls=6),
    Schedule("in 16 rows", (16,), min_calls=3),
    Schedule("in 32 rows", (32,)),
    Schedule("in 32 and in 8 rows", (8, 32), first=32, tokens=8, min_calls=3),
    SEVERAL_CALLS,
    Schedule("decoded one at a time", (8,), first=8, tokens=1, min_calls=38),
    Schedule("after a rewind", (8,), tokens=13, rewound_tokens=11, min_calls=6),
)

LONG_TOKENS = CONTEXTS[0] + 13
"""Tokens of the longer text: more than the smallest context holds."""

ONE_CONTEXT = Schedule("in the larger context at once", (64,), min_calls=9)
TWO_CONTEXTS = Schedule("as the context grows", (8, 64), first=505, tokens=1, min_calls=28, grows=True)


@dataclass
class ScheduleResult:
    """The bits that a schedule gave, and the engine's steps."""

    bits: Bits = field(default_factory=list)
    steps: list[VariantCall] = field(default_factory=list)

    def deviation(self, schedule: Schedule) -> str:
        """Return why the run did not follow the schedule; empty if it did."""
        if len(self.steps) < schedule.min_calls:
            return f"took {len(self.steps)} steps, expected {schedule.min_calls} or more"
        rows = tuple(sorted({step.variant for step in self.steps}))
        if rows != schedule.rows:
            return f"took programs of {rows} rows, expected {schedule.rows}"
        if all(step.n_process == step.variant for step in self.steps):
            return "no row was padding"
        contexts = sorted({step.context for step in self.steps})
        if schedule.grows and len(contexts) < 2:
            return f"stayed in a context of {contexts[0]} positions"
        return ""


Open = Callable[[Checkpoint, RuntimeOptions], Session]


def schedule_identities(
    model_name: str, checkpoint: Checkpoint, options: RuntimeOptions, open_: Open
) -> Iterator[BitIdentity]:
    """Compare all schedules on two threads, and one of them on one thread."""
    options = rows_options(options, checkpoint.config)
    with _opened(open_, checkpoint, options, threads=2) as session:
        model, ids = session.model, text_of_length(session.tokenizer, LONG_TOKENS)
        expected = ReferenceSchedule(model, ids[:SPLIT_TOKENS], ONE_CALL)
        for schedule in SCHEDULES:
            yield expected.judge(schedule, model, model_name)
        if len(model.variant_set.contexts) > 1:
            yield ReferenceSchedule(model, ids, ONE_CONTEXT).judge(TWO_CONTEXTS, model, model_name)
        else:
            reason = f"{model.config.context} positions"
            yield BitIdentity(TWO_CONTEXTS.name, skipped=reason, of=model_name)
    with _opened(open_, checkpoint, options, threads=1) as session:
        yield expected.judge(SEVERAL_CALLS, session.model, f"{model_name}, 1 thread")


def rows_options(options: RuntimeOptions, config: ModelConfig) -> RuntimeOptions:
    """Return options for the decode path `rows`, with variants of 8 to 64 rows."""
    contexts = CONTEXTS[: 2 if config.context >= LONG_TOKENS else 1]
    variants = f"8,16,32,64x{','.join(map(str, contexts))}"
    return replace(options, seq_len=None, variants=variants, decode=ROWS, prompt_tokens=0)


@contextmanager
def _opened(open_: Open, checkpoint: Checkpoint, options: RuntimeOptions, threads: int) -> Iterator[Session]:
    with with_threads(threads):
        session = open_(checkpoint, options)
    try:
        yield session
    finally:
        session.cache.close()


@dataclass
class ReferenceSchedule:
    """Tokens and the schedule that others are compared with."""

    model: LoadedModel
    ids: Sequence[int]
    schedule: Schedule

    @cached_property
    def expected(self) -> ScheduleResult:
        return run_schedule(self.model, self.ids, self.schedule)

    def judge(self, schedule: Schedule, model: LoadedModel, model_name: str) -> BitIdentity:
        return replace(
            try_identity(schedule.name, lambda name: self._compare(name, schedule, model)), of=model_name
        )

    def _compare(self, name: str, schedule: Schedule, model: LoadedModel) -> BitIdentity:
        expected, result = self.expected, run_schedule(model, self.ids, schedule)
        if problem := expected.deviation(self.schedule) or result.deviation(schedule):
            return BitIdentity(name, broken=problem)
        return compare(name, expected.bits, result.bits)


def run_schedule(model: LoadedModel, ids: Sequence[int], schedule: Schedule) -> ScheduleResult:
    """Take tokens that schedule."""
    contexts = model.variant_set.contexts
    first = 0 if schedule.grows or len(ids) <= contexts[0] else 1
    model = with_variants(
        model, lambda variant: variant.rows in schedule.rows and variant.context in contexts[first:]
    )
    cache = model.new_cache(1)
    rows, result = [], ScheduleResult()
    if schedule.rewound_tokens:
        rows.append(_rewound_rows(model, ids, schedule.rewound_tokens, cache, result))
    while cache.length < len(ids):
        count = schedule.first if schedule.first and not cache.length else schedule.tokens
        part = ids[cache.length : cache.length + count]
        rows.append(_run_tokens(model, part, cache, result, one_by_one=count == 1))
    result.bits = _bits(model, np.concatenate(rows), cache, schedule)
    return result


def _run_tokens(
    model: LoadedModel, ids: Sequence[int], cache: KVCache, result: ScheduleResult, one_by_one: bool = False
) -> BF16Array:
    result.steps += model.variant_set.plan(len(ids), cache.length)
    return decode_step(model, ids[0], cache)[None] if one_by_one else prefill(model, ids, cache)


def _rewound_rows(
    model: LoadedModel, ids: Sequence[int], others: int, cache: KVCache, result: ScheduleResult
) -> BF16Array:
    """Return the rows of the first REWOUND_LENGTH tokens. `others` wrong tokens come after them in the same
    call.

    The cache is then rewound, and its entries of the wrong tokens become NaN.
    """
    other = (ids[0] + 1) % model.config.vocab_size
    rows = _run_tokens(model, [*ids[:REWOUND_LENGTH], *[other] * others], cache, result)[:REWOUND_LENGTH]
    cache.length = REWOUND_LENGTH
    for array in _held(cache):
        array[:, REWOUND_LENGTH // cache.pool.positions_of_row(array) :] = np.nan
    return rows


def _held(cache: KVCache) -> list[BF16Array]:
    """Keys, values, and states of layers without attention, (heads, positions or pages, elements) each."""
    return [*(array for layer in cache.layers for array in layer), *cache.pool.states]


def _bits(model: LoadedModel, rows: BF16Array, cache: KVCache, schedule: Schedule) -> Bits:
    """Of rows, keys, values, states, and logits by the LM head of as many rows as the schedule has, 32 at
    most."""
    head = min(schedule.rows[0], MAX_TAIL_ROWS)
    cuts = [rows[start : start + head] for start in range(0, len(rows), head)]
    logits = np.concatenate([all_logits(model, cut) for cut in cuts])
    held = [array[:, : cache.length // cache.pool.positions_of_row(array)] for array in _held(cache)]
    bits: Bits = [np.ascontiguousarray(array).view(np.uint16) for array in (rows, *held)]
    return [*bits, logits.view(np.uint32)]
