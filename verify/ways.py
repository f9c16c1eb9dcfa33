"""Ways of the same tokens through blocks of rows (the family `rows`), which must all leave the same bits: of
the last layer's rows, of keys and values, and of the logits after every position.

Each way also fails where it was not gone: where tokens took fewer steps than are meant, or other programs, or
where the KV cache did not grow.
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
from aerie.verify.gate_prompts import text_of_length
from aerie.verify.identity import Bits, Identity, compare, on_threads, try_identity


def of_variants(model: LoadedModel, taken: Callable[[Variant], bool]) -> LoadedModel:
    """The same model, in the family `rows`, by those of its variants that are `taken`."""
    variants = tuple(one for one in model.variant_set.variants if taken(one))
    blocks = replace(model.variant_set, variants=variants, decode_path=ROWS)
    model.ensure_programs(blocks.decode_programs)
    return replace(model, variant_set=blocks)


def in_few_rows(session: Session) -> Session:
    """The same session by its variants of fewest rows, 32 at most where it has such, in decode too: a prompt
    of some length is cut into steps with a past. Weights and programs are those of the session."""
    least = min(one.rows for one in session.model.variant_set.variants)
    few = of_variants(session.model, lambda one: one.rows <= max(MAX_TAIL_ROWS, least))
    return replace(session, model=few)


@dataclass(frozen=True)
class Way:
    """rows: of the variants that take the tokens; all of them are meant to be run. first: tokens of the first
    call, 0 for as many as of the others. tokens: of each further call; 1: by decode_step. others: tokens that
    come after the first few, and that the cache goes back over. least_steps: calls of programs of a layer.
    grows: from the first context into the second; else there is the second alone."""

    name: str
    rows: tuple[int, ...]
    first: int = 0
    tokens: int = 10**6
    others: int = 0
    least_steps: int = 2
    grows: bool = False


KEPT = 3
"""Tokens that a rewind goes back to."""

CUT_TOKENS = 45
"""Tokens of text that are cut: the last block of 8, 16, 32 or 64 rows has padding."""

AT_ONCE = Way("at once", (64,), least_steps=1)
CHUNKS = Way("in chunks of 5, padded", (8,), tokens=5, least_steps=9)
WAYS = (
    Way("in 8 rows", (8,), least_steps=6),
    Way("in 16 rows", (16,), least_steps=3),
    Way("in 32 rows", (32,)),
    Way("in 32 and in 8 rows", (8, 32), first=32, tokens=8, least_steps=3),
    CHUNKS,
    Way("decoded one at a time", (8,), first=8, tokens=1, least_steps=38),
    Way("after a rewind", (8,), tokens=13, others=11, least_steps=6),
)

GROWN_TOKENS = CONTEXTS[0] + 13
"""More than the smallest context holds."""

STAYS = Way("in the larger context at once", (64,), least_steps=9)
GROWS = Way("as the context grows", (8, 64), first=505, tokens=1, least_steps=28, grows=True)


@dataclass
class Made:
    """The bits that a way gave, and the steps that it took."""

    bits: Bits = field(default_factory=list)
    steps: list[VariantCall] = field(default_factory=list)

    def not_gone(self, way: Way) -> str:
        """Why this is not the way that is meant; empty where it is."""
        if len(self.steps) < way.least_steps:
            return f"took {len(self.steps)} steps, and {way.least_steps} or more are meant"
        rows = tuple(sorted({step.variant for step in self.steps}))
        if rows != way.rows:
            return f"took programs of {rows} rows, and {way.rows} are meant"
        if all(step.n_process == step.variant for step in self.steps):
            return "no row was padding"
        contexts = sorted({step.context for step in self.steps})
        if way.grows and len(contexts) < 2:
            return f"stayed in a context of {contexts[0]} positions"
        return ""


Open = Callable[[Checkpoint, RuntimeOptions], Session]


def identities_in_blocks(
    whose: str, checkpoint: Checkpoint, options: RuntimeOptions, open_: Open
) -> Iterator[Identity]:
    """All ways on two threads, and one of them on one."""
    options = in_rows(options, checkpoint.config)
    with _opened(open_, checkpoint, options, threads=2) as session:
        model, ids = session.model, text_of_length(session.tokenizer, GROWN_TOKENS)
        few = Whole(model, ids[:CUT_TOKENS], AT_ONCE)
        for way in WAYS:
            yield few.judge(way, model, whose)
        if len(model.variant_set.contexts) > 1:
            yield Whole(model, ids, STAYS).judge(GROWS, model, whose)
        else:
            reason = f"{model.config.context} positions"
            yield Identity(GROWS.name, skipped=reason, of=whose)
    with _opened(open_, checkpoint, options, threads=1) as session:
        yield few.judge(CHUNKS, session.model, f"{whose}, 1 thread")


def in_rows(options: RuntimeOptions, config: ModelConfig) -> RuntimeOptions:
    """Options for the family `rows`, by blocks of few rows."""
    contexts = CONTEXTS[: 2 if config.context >= GROWN_TOKENS else 1]
    variants = f"8,16,32,64x{','.join(map(str, contexts))}"
    return replace(options, seq_len=None, variants=variants, decode=ROWS, prompt_tokens=0)


@contextmanager
def _opened(open_: Open, checkpoint: Checkpoint, options: RuntimeOptions, threads: int) -> Iterator[Session]:
    with on_threads(threads):
        session = open_(checkpoint, options)
    try:
        yield session
    finally:
        session.cache.close()


@dataclass
class Whole:
    """Tokens, and the way of a model that others are compared with."""

    model: LoadedModel
    ids: Sequence[int]
    way: Way

    @cached_property
    def made(self) -> Made:
        return go(self.model, self.ids, self.way)

    def judge(self, way: Way, model: LoadedModel, whose: str) -> Identity:
        return replace(try_identity(way.name, lambda name: self._compare(name, way, model)), of=whose)

    def _compare(self, name: str, way: Way, model: LoadedModel) -> Identity:
        wanted, found = self.made, go(model, self.ids, way)
        if problem := wanted.not_gone(self.way) or found.not_gone(way):
            return Identity(name, broken=problem)
        return compare(name, wanted.bits, found.bits)


def go(model: LoadedModel, ids: Sequence[int], way: Way) -> Made:
    """Take tokens that way."""
    contexts = model.variant_set.contexts
    first = 0 if way.grows or len(ids) <= contexts[0] else 1
    model = of_variants(model, lambda one: one.rows in way.rows and one.context in contexts[first:])
    cache = model.new_cache(1)
    rows, made = [], Made()
    if way.others:
        rows.append(_gone_back(model, ids, way.others, cache, made))
    while cache.length < len(ids):
        count = way.first if way.first and not cache.length else way.tokens
        some = ids[cache.length : cache.length + count]
        rows.append(_read(model, some, cache, made, one_by_one=count == 1))
    made.bits = _bits(model, np.concatenate(rows), cache, way)
    return made


def _read(
    model: LoadedModel, ids: Sequence[int], cache: KVCache, made: Made, one_by_one: bool = False
) -> BF16Array:
    made.steps += model.variant_set.plan(len(ids), cache.length)
    return decode_step(model, ids[0], cache)[None] if one_by_one else prefill(model, ids, cache)


def _gone_back(model: LoadedModel, ids: Sequence[int], others: int, cache: KVCache, made: Made) -> BF16Array:
    """The rows of the first KEPT tokens, read with others behind them, which are no numbers then."""
    other = (ids[0] + 1) % model.config.vocab_size
    rows = _read(model, [*ids[:KEPT], *[other] * others], cache, made)[:KEPT]
    cache.length = KEPT
    for layer in cache.layers:
        for array in layer:
            array[:, KEPT:] = np.nan
    return rows


def _bits(model: LoadedModel, rows: BF16Array, cache: KVCache, way: Way) -> Bits:
    """Of rows, keys, values, and logits by the LM head of as many rows as the way has, 32 at most."""
    head = min(way.rows[0], MAX_TAIL_ROWS)
    cuts = [rows[start : start + head] for start in range(0, len(rows), head)]
    logits = np.concatenate([all_logits(model, cut) for cut in cuts])
    held = [array[:, : cache.length] for layer in cache.layers for array in layer]
    bits: Bits = [np.ascontiguousarray(each).view(np.uint16) for each in (rows, *held)]
    return [*bits, logits.view(np.uint32)]
