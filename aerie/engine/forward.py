"""The forward pass: tokens of a prompt in steps, then one by one, and from a hidden row to logits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.blocks import ROWS
from aerie.engine.communication import from_first
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, embed, ids_among
from aerie.engine.errors import PromptError, PromptTooLongError
from aerie.engine.kv import KVCache
from aerie.engine.logits import last_row
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array, bf16, rms_norm, widen
from aerie.engine.passes import BlockPass, RowPass, TokenPass
from aerie.engine.planner import Step
from aerie.engine.programs import buffer_set
from aerie.engine.progress import Step as ToldStep
from aerie.engine.progress import no_step
from aerie.multi_launch_builder import Program, legal_seq_len


def check_prompt(
    token_ids: Sequence[Token],
    config: ModelConfig,
    seq_len: int | None = None,
    past: int = 0,
    endless: bool = False,
) -> None:
    """PromptError for a prompt that is empty, too long, or holds a token the model does not have.

    seq_len: the length that the programs are compiled for; None or 0: whatever it takes. past: tokens before
    it. endless: whether room is made at the end of the context (context_end.py).
    """
    if not token_ids:
        raise PromptError("the prompt is empty; there is nothing to continue: give it some text")
    length, positions = past + len(token_ids), config.context
    if length > positions and (seq_len or not endless):
        raise PromptTooLongError(length, positions, None)
    if seq_len and length > seq_len:
        raise PromptTooLongError(length, seq_len, legal_seq_len(length))
    outside = next((token for token in ids_among(token_ids) if not 0 <= token < config.vocab_size), None)
    if outside is not None:
        raise PromptError(
            f"the prompt holds token {outside} and the model's vocabulary ends at {config.vocab_size - 1}; "
            f"the tokenizer and the weights do not belong together"
        )


def prefill_steps(model: LoadedModel, tokens: int, past: int = 0) -> int:
    """How many programs `prefill` runs for the row of the last token: of the last layer, an earlier step
    needs keys and values alone."""
    steps, layers = len(model.plan(tokens, past)), model.config.num_hidden_layers
    of_layer = len(model.blocks.kinds)
    return steps * layers * of_layer - (steps - 1) * (of_layer - 1)


def prefill(
    model: LoadedModel,
    token_ids: Sequence[Token],
    cache: KVCache,
    step: ToldStep = no_step,
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
    held, dropped = list(cache.token_ids), cache.dropped
    try:
        rows = [*read(model, token_ids, cache, step, last_only)]
    except BaseException:
        if cache.dropped == dropped:
            cache.token_ids[:] = held
        raise
    return np.concatenate(rows)[-len(token_ids) :]


def read(
    model: LoadedModel,
    token_ids: Sequence[Token],
    cache: KVCache,
    step: ToldStep = no_step,
    last_only: bool = False,
) -> Iterator[BF16Array]:
    """As prefill, step by step: the rows of each, which `cache` holds then. A step that fails leaves it as
    before that step."""
    past = cache.length
    check_prompt(token_ids, model.config, model.seq_len, past, model.end.drops)
    cache.come_to(model.home)
    steps = model.plan(len(token_ids), past, cache.capacity)
    model.supply(model.blocks.needed(steps, last_only))
    ran, left = _numbered(step), list(token_ids)
    for each in steps:
        model.make_room(cache)
        again = cache.length - each.n_past  # where AR == CL computes all anew
        own, left = left[: each.n_process - again], left[each.n_process - again :]
        wanted = int(each is steps[-1]) if last_only else each.n_process
        yield _run(model, each, cache, own, ran, wanted)


def _run(
    model: LoadedModel,
    step: Step,
    cache: KVCache,
    new: list[Token],
    ran: Callable[[str], None],
    wanted: int,
) -> BF16Array:
    """One step, of `new` tokens and those of the cache that it computes anew; the rows of its last `wanted`
    ones."""
    held = list(cache.token_ids)
    own = [*held[step.n_past :], *new]
    try:
        cache.length = step.n_past
        with model.host_timer("embedding"):
            x = embed(model.embed_table, own)
        rows = BlockPass(model, step, cache, ran)(x, range(step.n_process - wanted, step.n_process))
    except BaseException:
        cache.token_ids[:] = held
        raise
    cache.advance(own, in_blocks=True)
    return rows


def _numbered(step: ToldStep) -> Callable[[str], None]:
    """Tells `step` of each program with its number."""
    numbers = itertools.count(1)
    return lambda program: step(program, next(numbers))


def decode_step(model: LoadedModel, token_id: int, cache: KVCache) -> BF16Array:
    """Run `token_id` through every layer, at the position after the last one in `cache`, which receives its
    keys and values; where the cache is full, after room was made (context_end.py).

    Returns the last layer's output, (hidden_size,). In the family `rows` a token is a step like any other;
    in `guide` it goes by GEMVs and attention on the host. IndexError, or NoVariantError, where the cache is
    full and cannot grow.
    """
    if model.blocks.decode == ROWS:
        return _decode_in_rows(model, token_id, cache)
    cache.come_to(model.home)
    model.make_room(cache)
    if model.blocks.variants:
        cache.reserve(cache.length + 1)
    cache.check_room(cache.length, 1)
    visible = model.mask(cache.length)
    kept = cache.token_pass
    if not (isinstance(kept, TokenPass) and kept.serves(model, visible)):
        kept = cache.token_pass = TokenPass(model, cache.layers, visible, cache.unturned)
    row = kept(token_id, cache.length, visible)
    cache.advance([token_id])
    return row


def _decode_in_rows(model: LoadedModel, token_id: int, cache: KVCache) -> BF16Array:
    """As decode_step, by calls that are noted once and repeated; where they cannot be, as a prompt's step."""
    check_prompt([token_id], model.config, past=cache.length, endless=model.end.drops)
    cache.come_to(model.home)
    model.make_room(cache)
    step = model.plan(1, cache.length, cache.capacity)[0]
    kept = _row_pass(model, step, cache) if step.n_process == 1 else None
    if kept is None:
        rows: BF16Array = prefill(model, [token_id], cache, last_only=True)[-1]
        return rows
    row = kept(token_id, step)
    cache.advance([token_id], in_blocks=True)
    return row


def _row_pass(model: LoadedModel, step: Step, cache: KVCache) -> RowPass | None:
    """What the cache keeps for steps like this one; None where the model's runner notes no calls."""
    kept = cache.token_pass
    if isinstance(kept, RowPass) and kept.serves(model, step):
        return kept
    cache.reserve(step.context)
    model.supply(model.blocks.names(step))
    recording = model.record()
    made = cache.token_pass = RowPass(model, step, cache, recording) if recording else None
    return made


def next_token_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """Logits after one position: `hidden` is that row of the last layer's output, (hidden_size,).

    Returns (vocab_size,) in float32 (values of bf16 precision); the padding of the vocabulary is cut.
    """
    row = next_token_row(model, hidden)
    return widen(row) if row.dtype == bf16 else row


def all_logits(model: LoadedModel, hidden: BF16Array) -> F32Array:
    """As next_token_logits for rows of the last layer's output, (rows, hidden_size): (rows, vocab_size)."""
    rows = head_rows(model, hidden)
    return np.array([widen(row) if row.dtype == bf16 else row for row in rows], np.float32)


def next_token_row(model: LoadedModel, hidden: BF16Array) -> BF16Array | F32Array:
    """As next_token_logits, in bf16 where the program gives them so: what a Sampler takes as well."""
    return head_rows(model, hidden[None])[0]


def head_rows(model: LoadedModel, hidden: BF16Array) -> list[BF16Array | F32Array]:
    """As next_token_row for each of several rows, (rows, hidden_size), which the LM head takes a few at a
    time. Of several processes the first one's LM head gives them to all."""
    if model.group.ranks == 1:
        return _head_rows(model, hidden)
    rows = np.empty((len(hidden), model.config.vocab_size), bf16)
    if model.group.rank == 0:
        try:
            rows[...] = _head_rows(model, hidden)
        except BaseException:
            model.group.leave()
            raise
    return list(from_first(model.group, rows))


def _head_rows(model: LoadedModel, hidden: BF16Array) -> list[BF16Array | F32Array]:
    name, rows = model.blocks.head(len(hidden)), list[BF16Array | F32Array]()
    model.supply([name])
    head = model.programs[name]
    for first in range(0, len(hidden), head.rows):
        cut = hidden[first : first + head.rows]
        made = _head(model, head, cut)
        for row in range(len(cut)):
            of_row = {key: array.reshape(head.rows, -1)[row] for key, array in made.items()}
            rows.append(last_row(head.arguments, of_row, model.config.vocab_size))
    return rows


def _head(model: LoadedModel, head: Program, hidden: BF16Array) -> dict[str, NDArray[Any]]:
    """What the LM head makes of rows of the last layer's output, as many as it takes or fewer."""
    with model.host_timer("final RMSNorm"):
        normed = rms_norm(hidden, model.final_norm, model.config.rms_norm_eps)
    x = np.zeros(head.arguments["x"].shape, bf16)
    x.reshape(head.rows, -1)[: len(normed)] = normed
    return model.runner.run(head, bo_key=buffer_set(head, 0), on_device=(), copy=False, x=x)
