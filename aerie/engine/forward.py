"""The forward pass by hand, on a KV cache of one's own: a prompt in steps, then tokens one by one, and from
a hidden row to logits. Requests go by the very same passes (scheduler.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, ids_only
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.executor import Executor, ScheduledTokens
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.head import logits_rows
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, widen
from aerie.engine.page_pool import KVCache
from aerie.engine.reporter import OnProgress, no_progress
from aerie.engine.variant_set import ROWS
from aerie.multi_launch_builder import round_up_seq_len


def check_prompt(
    token_ids: Sequence[Token],
    config: ModelConfig,
    seq_len: int | None = None,
    past: int = 0,
    past_context_allowed: bool = False,
) -> None:
    """PromptError for a prompt that is empty, too long, or holds a token the model does not have.

    seq_len: the length that the programs are compiled for; None or 0: whatever it takes. past: tokens before
    it. endless: whether room is made at the end of the context (context_end.py).
    """
    if not token_ids:
        raise PromptError("the prompt is empty; there is nothing to continue: give it some text")
    length, positions = past + len(token_ids), config.context
    if length > positions and (seq_len or not past_context_allowed):
        raise PromptTooLongError(length, positions, None)
    if seq_len and length > seq_len:
        raise PromptTooLongError(length, seq_len, round_up_seq_len(length))
    outside = next((token for token in ids_only(token_ids) if not 0 <= token < config.vocab_size), None)
    if outside is not None:
        raise PromptError(
            f"the prompt holds token {outside} and the model's vocabulary ends at {config.vocab_size - 1}; "
            f"the tokenizer and the weights do not belong together"
        )


def prefill_call_count(model: LoadedModel, tokens: int, past: int = 0) -> int:
    """How many programs `prefill` runs for the row of the last token: of the last layer, an earlier step
    needs keys and values alone."""
    steps, layers = len(model.plan(tokens, past)), model.config.num_hidden_layers
    of_layer = len(model.variant_set.layer_kinds)
    return steps * layers * of_layer - (steps - 1) * (of_layer - 1)


def prefill(
    model: LoadedModel,
    token_ids: Sequence[Token],
    cache: KVCache,
    step: OnProgress = no_progress,
    last_only: bool = False,
) -> BF16Array:
    """Run tokens through every layer, after those that `cache` holds, and write their keys and values to it.

    A token is an id or an embedding. Returns the last layer's output for each of them, (len(token_ids),
    hidden_size); for the last one alone, (1, hidden_size), with `last_only`, which spares the last layer the
    others. The planner cuts them into steps. No row depends on where it cuts, nor on padding, which comes
    after the tokens and is not kept. `step` is told of every program that has run. An exception in between,
    KeyboardInterrupt too, leaves `cache` as it was; where tokens were dropped on the way, as it was before
    the step that failed. Raises PromptError, before anything is computed, for tokens that cannot be run.
    """
    length, dropped = cache.length, cache.dropped_tokens
    try:
        rows = [*prefill_by_calls(model, token_ids, cache, step, last_only)]
    except BaseException:
        if cache.dropped_tokens == dropped:
            cache.truncate(length)
        raise
    return np.concatenate(rows)[-len(token_ids) :]


def prefill_by_calls(
    model: LoadedModel,
    token_ids: Sequence[Token],
    cache: KVCache,
    step: OnProgress = no_progress,
    last_only: bool = False,
) -> Iterator[BF16Array]:
    """As prefill, step by step: the rows of each, which `cache` holds then. A step that fails leaves it as
    before that step."""
    past = cache.length
    check_prompt(token_ids, model.config, model.seq_len, past, model.context_end.drops)
    steps = model.plan(len(token_ids), past)
    model.ensure_programs(model.variant_set.programs_for_calls(steps, last_only))
    executor, ran, left = _executor(model, cache), _numbered(step), list(token_ids)
    for each in steps:
        model.drop_positions(cache)
        count = each.n_process - (cache.length - each.n_past)  # where AR == CL computes all anew
        own, left = left[:count], left[count:]
        wanted = int(each is steps[-1]) if last_only else count
        yield executor.hidden_states(
            [piece := ScheduledTokens(cache, own, wanted, call=each, is_recurring=False)], ran
        )
        executor.accept(cache, piece.tokens)


def _executor(model: LoadedModel, cache: KVCache) -> Executor:
    """What runs this cache by this model, kept with it."""
    if cache.executor is None or not cache.executor.uses_model(model):
        cache.executor, cache.gathered_length = None, 0
        cache.executor = Executor(
            model, cache.pool, GatheredCache(model.kv_storage, model.variant_set.contexts)
        )
    executor: Executor = cache.executor
    return executor


def _numbered(step: OnProgress) -> Callable[[str], None]:
    """Tells `step` of each program with its number."""
    numbers = itertools.count(1)
    return lambda program: step(program, next(numbers))


def decode_step(model: LoadedModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, at the position after the last one in `cache`, which receives its
    keys and values; where the cache is full, after room was made (context_end.py).

    Returns the last layer's output, (hidden_size,). In the family `rows` a token is a step like any other;
    in `guide` it goes by GEMVs and attention on the host. PoolFullError, or PromptError, where the cache is
    full and cannot grow.
    """
    if model.variant_set.decode_path == ROWS:
        check_prompt(
            [token_id], model.config, past=cache.length, past_context_allowed=model.context_end.drops
        )
        model.drop_positions(cache)
        step = model.plan(1, cache.length)[0]
        executor = _executor(model, cache)
        row: BF16Array = executor.hidden_states([ScheduledTokens(cache, [token_id], call=step)])[-1]
        executor.accept(cache, [token_id])
        return row
    model.drop_positions(cache)
    row = _executor(model, cache).decode_token(ScheduledTokens(cache, [token_id], by_gemv=True))
    cache.advance([token_id], reusable=False)
    return row


def next_token_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """Logits after one position: `hidden` is that row of the last layer's output, (hidden_size,).

    Returns (vocab_size,) in float32 (values of bf16 precision); the padding of the vocabulary is cut.
    """
    row = next_logits_row(model, hidden)
    return widen(row) if row.dtype == bf16 else row


def all_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """As next_token_logits for rows of the last layer's output, (rows, hidden_size): (rows, vocab_size)."""
    rows = logits_rows(model, hidden)
    return np.array([widen(row) if row.dtype == bf16 else row for row in rows], np.float32)


def next_logits_row(model: LoadedModel, hidden: BF16Array) -> BF16Array | F32Array:
    """As next_token_logits, in bf16 where the program gives them so: what a Sampler takes as well."""
    return logits_rows(model, hidden[None])[0]
