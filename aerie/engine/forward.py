"""Forward passes by hand, on a KV cache of its own: a prompt in steps, then tokens one by one, and logits of
a row. Requests use the same passes (scheduler.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, ids_only
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.executor import Executor, ScheduledTokens
from aerie.engine.gathered_cache import gathered_cache_for
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
    """Raises PromptError for a prompt that is empty, too long, or has a token that the model does not have.

    seq_len: the length that the programs are compiled for; None or 0 means any. past: number of tokens before
    it. past_context_allowed: whether positions are dropped at the end of the context (context_end.py).
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
    """Number of programs that `prefill` runs for the row of the last token. Earlier calls compute only keys
    and values in the last layer."""
    calls, layers = len(model.plan(tokens, past)), model.config.num_hidden_layers
    programs_per_layer = len(model.variant_set.attention_kinds)
    after = programs_per_layer - model.variant_set.programs_before_attention
    return calls * layers * programs_per_layer - (calls - 1) * after


def prefill(
    model: LoadedModel,
    token_ids: Sequence[Token],
    cache: KVCache,
    step: OnProgress = no_progress,
    last_only: bool = False,
) -> BF16Array:
    """Run tokens through every layer, after those that `cache` holds, and write their keys and values to it.

    A token is an id or an embedding. Returns the last layer's output for each token, (len(token_ids),
    hidden_size); with `last_only` for the last token, (1, hidden_size), which spares the last layer the
    others. The planner splits tokens into calls. No row depends on the split, or on padding, which follows
    the tokens and is not kept. step: called after every program. After an exception, KeyboardInterrupt too,
    `cache` is as before; if tokens were dropped on the way, as before the call that failed. Raises
    PromptError, before anything is computed, for tokens that cannot run.
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
    """As prefill, call by call: yields the rows of each call, which `cache` then holds. A call that fails
    leaves `cache` as before that call."""
    past = cache.length
    check_prompt(token_ids, model.config, model.seq_len, past, model.context_end.drops)
    calls = model.plan(len(token_ids), past)
    model.ensure_programs(model.variant_set.programs_for_calls(calls, last_only))
    executor, on_program, remaining = _executor(model, cache), _numbered(step), list(token_ids)
    for call in calls:
        model.drop_positions(cache)
        count = call.n_process - (cache.length - call.n_past)  # where AR == CL computes all anew
        next_tokens, remaining = remaining[:count], remaining[count:]
        logits_count = int(call is calls[-1]) if last_only else count
        yield executor.hidden_states(
            [scheduled := ScheduledTokens(cache, next_tokens, logits_count, call=call, is_recurring=False)],
            on_program,
        )
        executor.accept(cache, scheduled.tokens)


def _executor(model: LoadedModel, cache: KVCache) -> Executor:
    """The executor for this cache and model, stored in the cache."""
    if cache.executor is None or not cache.executor.uses_model(model):
        cache.executor, cache.gathered_length = None, 0
        cache.executor = Executor(model, cache.pool, gathered_cache_for(model))
    executor: Executor = cache.executor
    return executor


def _numbered(step: OnProgress) -> Callable[[str], None]:
    """Calls `step` with each program and its number."""
    numbers = itertools.count(1)
    return lambda program: step(program, next(numbers))


def decode_step(model: LoadedModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, at the position after the last one in `cache`, and write its key
    and value. A full cache drops positions first (context_end.py).

    Returns the last layer's output, (hidden_size,). In the decode path `rows` a token is a call like any
    other; in `guide` it runs by GEMVs, with attention on the host. Raises PoolFullError, or PromptError, if
    the cache is full and cannot grow.
    """
    if model.variant_set.decode_path == ROWS:
        check_prompt(
            [token_id], model.config, past=cache.length, past_context_allowed=model.context_end.drops
        )
        model.drop_positions(cache)
        call = model.plan(1, cache.length)[0]
        executor = _executor(model, cache)
        row: BF16Array = executor.hidden_states([ScheduledTokens(cache, [token_id], call=call)])[-1]
        executor.accept(cache, [token_id])
        return row
    model.drop_positions(cache)
    row = _executor(model, cache).decode_token(ScheduledTokens(cache, [token_id], by_gemv=True))
    cache.advance([token_id], reusable=False)
    return row


def next_token_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """Logits after one position. hidden: the last layer's output there, (hidden_size,).

    Returns (vocab_size,) float32, with values of bf16 precision, without the padding of the vocabulary.
    """
    row = next_logits_row(model, hidden)
    return widen(row) if row.dtype == bf16 else row


def all_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """Logits after each row of the last layer's output, (rows, hidden_size). Returns (rows, vocab_size)
    float32."""
    rows = logits_rows(model, hidden)
    return np.array([widen(row) if row.dtype == bf16 else row for row in rows], np.float32)


def next_logits_row(model: LoadedModel, hidden: BF16Array) -> BF16Array | F32Array:
    """Logits as next_token_logits, in bf16 if the program gives bf16. A Sampler takes both."""
    return logits_rows(model, hidden[None])[0]
