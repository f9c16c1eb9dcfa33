"""The executor: one forward pass for the tokens of an engine step, of one sequence or of several.

Matrix products do not depend on which sequence a row belongs to, and attention follows the mask. So a row has
the same bits as if its sequence were alone (gathered_cache.py). Two kinds of tokens do not share a pass. In
the decode path `guide` a decoded token goes by GEMVs, with attention on the host over the sequence's pages. A
prompt of the six programs runs alone, because these programs read no KV cache.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from aerie.engine.communication import check_ranks_agree
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token, embed, ids_only
from aerie.engine.errors import NoVariantError
from aerie.engine.forward_passes import BatchLayout, ImmediateCalls, OnProgram, RowsPass, TokenPass
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.head import logits_rows
from aerie.engine.kv_cache import causal
from aerie.engine.layer_masks import MaskRule
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.variant_set import MAX_TAIL_ROWS, ROWS
from aerie.multi_launch_builder.variants import LM_HEAD_ROWS

Row: TypeAlias = "BF16Array | F32Array"
"""Logits after one position, (vocab_size,); or the last layer's output there, (hidden_size,) bf16."""


class ScheduledTokens(NamedTuple):
    """The next tokens of a sequence, one or more, in an engine step.

    logits_count: the number of last tokens whose logits are needed. by_gemv: one token that GEMVs decode.
    kept_count: the number of first tokens that the sequence holds afterwards, None for all; `Executor.accept`
    adds more. hidden_only: return the last layer's output, (hidden_size,) bf16 each, in place of logits.
    decode_path: whose LM head gives the logits; "" means the model's. call: the planner's variant for these
    tokens; positions of the sequence from `call.n_past` on are computed again. is_recurring: calls with as
    many rows come often, so they are recorded.
    """

    sequence: PagedSequence
    tokens: Sequence[Token]
    logits_count: int = 1
    by_gemv: bool = False
    kept_count: int | None = None
    hidden_only: bool = False
    decode_path: str = ""
    call: VariantCall | None = None
    is_recurring: bool = True

    @property
    def first_position(self) -> int:
        """The position of the first token that is computed."""
        return self.sequence.length if self.call is None else self.call.n_past

    @property
    def run_tokens(self) -> Sequence[Token]:
        """All tokens that are computed."""
        again = self.sequence.token_ids[self.first_position :] if self.call else ()
        return [*again, *self.tokens] if again else self.tokens


AHEAD_TOKENS = 256
"""So many tokens of each sequence before a larger gathered cache is needed, its programs are compiled."""


class Executor:
    """Runs forward passes, one at a time, on the buffers of the model's programs.

    diffusion_block: the number of positions that attend to each other, aligned to a multiple of it; 1 without
    block diffusion. Scheduled tokens end at a multiple of it.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, cache: GatheredCache) -> None:
        self._model, self._pool, self._cache = model, pool, cache
        self._recorded: dict[tuple[int, int, str], RowsPass] = {}
        self._token_pass: TokenPass | None = None
        self.diffusion_block = model.config.diffusion.block_size if model.config.diffusion else 1
        self._rows = model.variant_set.batch_rows

    def uses_model(self, model: LoadedModel) -> bool:
        """Whether it runs this model."""
        return self._model is model

    @property
    def max_rows(self) -> int:
        """Maximum number of tokens in a forward pass, of all sequences together."""
        return self._rows[-1]

    def padded_rows(self, tokens: int) -> int:
        """Rows of the smallest program that takes this number of tokens, at most `max_rows`."""
        return next(n for n in self._rows if n >= tokens)

    def can_run(self, scheduled: Sequence[ScheduledTokens]) -> bool:
        """Whether one gathered cache can hold all these sequences."""
        if self._model.seq_len:
            return True
        positions = [
            tokens.sequence.length + len(tokens.tokens) for tokens in scheduled if not tokens.by_gemv
        ]
        try:
            self._cache.context_for(positions)
        except NoVariantError:
            return False
        return True

    def programs_for(self, steps: Sequence[int], positions: int) -> Iterator[str]:
        """The programs of one sequence alone: of a prompt computed in `steps` (tokens each), then of forward
        passes with drafts, or with a diffusion block after a frozen one, in every context up to `positions`.
        Raises NoVariantError if no context is large enough."""
        block, drafts, cache = self.diffusion_block, self._rows[1], self._cache
        behind = min(2 * block, self.max_rows)
        passes = [(1, 1), (drafts, drafts)] if block == 1 else [(block, block), (behind, block)]
        contexts = [cache.context_for([end]) for end in itertools.accumulate(steps)]
        passes_by_context = [
            (tokens, block, context) for tokens, context in zip(steps, contexts, strict=True)
        ]
        for context in cache.contexts_between(
            contexts[-1], max(contexts[-1], cache.context_for([positions]))
        ):
            passes_by_context += [(tokens, logits_count, context) for tokens, logits_count in passes]
        for tokens, logits_count, context in passes_by_context:
            step = _call(self.padded_rows(tokens), context)
            yield from self._programs_of(step, self._tail(step, logits_count))
            yield self._model.variant_set.lm_head(logits_count, ROWS)

    def programs_for_next_context(self, lengths: Sequence[int]) -> Iterator[str]:
        """The programs of the larger gathered cache that these sequences, of these lengths in positions, need
        within AHEAD_TOKENS more tokens each: for a token of each in the decode path `rows`. Empty if they
        need none, and without variants."""
        if self._model.seq_len or not lengths:
            return
        ends = [min(length + AHEAD_TOKENS, self._model.positions) for length in lengths]
        try:
            larger = self._cache.context_for(ends)
        except NoVariantError:  # one of them waits then
            return
        if larger == self._cache.context_for(lengths):
            return
        count = len(lengths) * self.diffusion_block
        step = _call(self.padded_rows(count), larger)
        yield from self._programs_of(step, self._tail(step, count))

    def execute(self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None = None) -> list[Row]:
        """Run these tokens, of different sequences. Returns, in order, a row for each of the `logits_count`
        last tokens: logits (vocab_size,), or with `hidden_only` the last layer's output. Each sequence then
        holds its first `kept_count` tokens. on_program: called for programs that are not recorded.

        Raises PoolFullError and NoVariantError before anything changes. After a later exception each sequence
        is as before, or as after the step.
        """
        in_rows = [tokens for tokens in scheduled if not tokens.by_gemv]
        rows, results = iter(self._run(in_rows, on_program) if in_rows else ()), list[Row]()
        for tokens in scheduled:
            if not tokens.by_gemv:
                results += itertools.islice(rows, tokens.logits_count)
                continue
            row = self.decode_token(tokens)[None][: tokens.logits_count]
            results += (
                row
                if tokens.hidden_only
                else logits_rows(self._model, row, tokens.decode_path)
                if len(row)
                else ()
            )
            tokens.sequence.advance(tokens.tokens, reusable=False)
        return results

    def decode_token(self, scheduled: ScheduledTokens) -> BF16Array:
        """Compute one token by GEMVs, and write its key and value. Returns the last layer's output,
        (hidden_size,). The sequence does not count the token yet."""
        sequence, position = scheduled.sequence, scheduled.sequence.length
        sequence.reserve(1)
        rules = self._model.config.masks.rules(self._model.mask)
        visible = [sequence.pool_index(rule(position)) for rule in rules]
        token_pass = self._token_pass
        if not (token_pass and token_pass.can_reuse_for(self._model, visible)):
            token_pass = self._token_pass = TokenPass(self._model, self._pool, visible)
        reads = sequence.state_positions(position, 1, self._model.config.states.reach)
        return token_pass(ids_only(scheduled.tokens)[0], position, reads, visible)

    def _run(self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None) -> list[Row]:
        """Run tokens in rows; prompts of the six programs one after the other."""
        if self._model.seq_len and len(scheduled) > 1:
            return [row for tokens in scheduled for row in self._run([tokens], on_program)]
        hidden = self.hidden_states(scheduled, on_program)
        rows = self._outputs(scheduled, hidden)
        for tokens in scheduled:
            self.accept(tokens.sequence, tokens.tokens[: tokens.kept_count])
        return rows

    def _outputs(self, scheduled: Sequence[ScheduledTokens], hidden: BF16Array) -> list[Row]:
        """The result for each output row: logits by the LM head of its decode path, or the row itself."""
        paths = [
            NO_LM_HEAD if path_of_row.hidden_only else path_of_row.decode_path for path_of_row in scheduled
        ]
        of_row = np.repeat(paths, [piece.logits_count for piece in scheduled])
        logits = {
            path: iter(logits_rows(self._model, hidden[of_row == path], path))
            for path in dict.fromkeys(paths)
            if path != NO_LM_HEAD and (of_row == path).any()
        }
        return [
            next(logits[path_of_row]) if path_of_row in logits else row
            for row, path_of_row in zip(hidden, of_row, strict=True)
        ]

    def accept(self, sequence: PagedSequence, tokens: Sequence[Token]) -> None:
        """Let a sequence hold tokens that followed its positions in its last forward pass."""
        if tokens:
            sequence.advance(tokens)
            self._cache.mark_gathered(sequence)

    def hidden_states(
        self, scheduled: Sequence[ScheduledTokens], on_program: OnProgram | None = None
    ) -> BF16Array:
        """Compute tokens in rows, and write their keys and values. Returns the last layer's output for the
        rows whose logits are needed. The sequences do not count the tokens yet."""
        model, step = self._model, self._call_for(scheduled)
        for tokens in scheduled:
            tokens.sequence.reserve(len(tokens.tokens))
        if model.seq_len:
            rows = _batch_layout(scheduled, [0], step.variant, 0, 1, model.mask, model.config)
        else:
            ends = {one.sequence: one.sequence.length + len(one.tokens) for one in scheduled}
            bases = self._cache.gather(ends, step.context)
            block, config = self.diffusion_block, model.config
            rows = _batch_layout(scheduled, bases, step.variant, step.context, block, model.mask, config)
        with model.host_timer("embedding"):
            x = embed(model.embed_table, [token for tokens in scheduled for token in tokens.run_tokens])
        tail = self._tail_for(scheduled, step)
        model.ensure_programs(self._programs_of(step, tail))
        check_ranks_agree(model.group, zlib.crc32(x.tobytes(), zlib.crc32(rows.positions.tobytes())))
        is_recorded = step.variant <= MAX_TAIL_ROWS and scheduled[0].is_recurring
        is_full = len(x) == step.variant
        return model.run_on_all(
            lambda part: self._pass(part, step, is_recorded, is_full, on_program)(x, rows, tail)
        )

    def _call_for(self, scheduled: Sequence[ScheduledTokens]) -> VariantCall:
        """The variant for these tokens."""
        if len(scheduled) == 1 and scheduled[0].call:
            return scheduled[0].call
        if self._model.seq_len:
            (step,) = self._model.variant_set.plan(len(scheduled[0].tokens), scheduled[0].sequence.length)
            return step
        width = self.padded_rows(sum(len(piece.tokens) for piece in scheduled))
        return _call(
            width,
            self._cache.context_for([tokens.sequence.length + len(tokens.tokens) for tokens in scheduled]),
        )

    def _tail_for(self, scheduled: Sequence[ScheduledTokens], step: VariantCall) -> VariantCall | None:
        logits_count = sum(piece.logits_count for piece in scheduled)
        if scheduled[0].call or self._model.seq_len:
            return self._model.variant_set.tail_call(step, range(logits_count)) if logits_count else None
        return self._tail(step, logits_count)

    def _tail(self, step: VariantCall, logits_count: int) -> VariantCall | None:
        """The variant with the fewest rows for the end of the last layer, or None if the variant of `step`
        computes it."""
        is_separate = step.variant > MAX_TAIL_ROWS or self._model.variant_set.devices > 1
        if not (is_separate and 0 < logits_count <= MAX_TAIL_ROWS):
            return None
        return _call(next(n for n in LM_HEAD_ROWS if n >= logits_count), step.context)

    def _programs_of(self, step: VariantCall, tail: VariantCall | None) -> Iterator[str]:
        """The programs of a step."""
        yield from self._model.variant_set.call_programs(step)
        if tail:
            yield from self._model.variant_set.call_programs(tail, is_tail=True)

    def _pass(
        self,
        part: LoadedModel,
        step: VariantCall,
        is_recorded: bool,
        is_full: bool,
        on_program: OnProgram | None,
    ) -> RowsPass:
        """The forward pass for this variant and the current gathered cache. A recorded one is stored for
        later steps."""
        key = step.variant, step.context, self._cache.slot
        if is_recorded and (recorded := self._recorded.get(key)) and recorded.is_current:
            return recorded
        recording = part.record() if is_recorded else None
        # With fewer tokens, rows of zeros may be left out, and cost less.
        costs = part.variant_set.costs if is_full and part.variant_set.devices == 1 else None
        calls = recording or ImmediateCalls(part, on_program if part.local_rank == 0 else None, costs)
        rows_pass = RowsPass(part, step, self._cache, self._pool, calls)
        if recording:
            self._recorded[key] = rows_pass
        return rows_pass


NO_LM_HEAD = "hidden"
"""In place of a decode path: return the last layer's output without the LM head."""


def _batch_layout(
    scheduled: Sequence[ScheduledTokens],
    bases: Sequence[int],
    width: int,
    context: int,
    block: int,
    mask: MaskRule,
    config: ModelConfig,
) -> BatchLayout:
    """The positions of these rows. bases: where each sequence starts in the gathered cache. width, context:
    of the variant.

    block: positions that attend to each other, aligned to a multiple of it, beside all positions before them.
    For `block` 1 the rule is `mask`. config: has the windows, and what layers keep of a sequence.
    """
    masks, reach = config.masks, config.states.reach
    positions = np.zeros(width, np.int64)
    visible = np.zeros((len(masks.windows), width, context), bool)
    cache_positions, pool_positions, output_rows, state_positions, row = [], [], [], [], 0
    for tokens, base in zip(scheduled, bases, strict=True):
        first, end = tokens.first_position, tokens.sequence.length + len(tokens.tokens)
        rows = slice(row, row + end - first)
        positions[rows] = np.arange(first, end)
        if context:  # attention of the six programs knows by itself
            if mask is causal or block > 1:
                seen = np.arange(end) // block <= positions[rows, None] // block
            else:
                seen = np.zeros((end - first, end), bool)
                for visible_row, position in zip(seen, range(first, end), strict=True):
                    visible_row[mask(position)] = True
            visible[:, rows, base : base + end] = masks.visible(seen, positions[rows])
        cache_positions.append(base + positions[rows])
        pool_positions.append(tokens.sequence.pool_positions(first, end - first))
        state_positions.append(tokens.sequence.state_positions(first, end - first, reach))
        output_rows.append(np.arange(rows.stop - tokens.logits_count, rows.stop))
        row = rows.stop
    return BatchLayout(
        positions,
        visible,
        *map(np.concatenate, (cache_positions, pool_positions, output_rows, state_positions)),
    )


def _call(rows: int, context: int) -> VariantCall:
    """A call of this variant, whatever its tokens are."""
    return VariantCall(rows, context, 0, 0, rows, 0, 0)
