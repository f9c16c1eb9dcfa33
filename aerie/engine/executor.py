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
from numpy.typing import NDArray

from aerie.engine.communication import check_ranks_agree
from aerie.engine.delta_states import plan_delta
from aerie.engine.embeddings import Token, embed, ids_only
from aerie.engine.errors import NoVariantError
from aerie.engine.forward_passes import BatchLayout, ImmediateCalls, OnProgram, RowsPass, TokenPass
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.head import logits_rows
from aerie.engine.kv_cache import causal
from aerie.engine.layer_masks import LayerMasks
from aerie.engine.layer_states import RowReads, StatePlan
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import PagedSequence, PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.variant_set import MAX_TAIL_ROWS, ROWS
from aerie.engine.window_cache import Span
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
    def new_positions(self) -> range:
        """The positions that are computed."""
        stop = self.sequence.length + len(self.tokens)
        return range(self.first_position, self.call.n_past + self.call.n_process if self.call else stop)

    @property
    def kept_positions(self) -> int:
        """Number of positions that the sequence holds afterwards."""
        return min(self.new_positions.stop, self.sequence.length + len(self.tokens[: self.kept_count]))

    @property
    def run_tokens(self) -> Sequence[Token]:
        """All tokens that are computed."""
        again = self.sequence.token_ids[self.first_position : self.new_positions.stop] if self.call else ()
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
        self._recorded: dict[tuple[int, tuple[str, ...], int], RowsPass] = {}
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
        try:
            self._cache.contexts_for([tokens.new_positions for tokens in scheduled if not tokens.by_gemv])
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
        ends = [*itertools.accumulate(steps)]
        last = cache.contexts_for([range(ends[-1] - steps[-1], ends[-1])])
        most = cache.contexts_for([range(max(ends[-1], positions))])
        passes_by_end = [(tokens, block, end) for tokens, end in zip(steps, ends, strict=True)]
        for context in cache.contexts_between(max(last), max(most)):
            passes_by_end += [(tokens, logits_count, context) for tokens, logits_count in passes]
        for tokens, logits_count, end in passes_by_end:
            rows = self.padded_rows(tokens)
            contexts = cache.contexts_for([range(max(0, end - tokens), end)], rows)
            step = _call(rows, max(contexts))
            yield from self._programs_of(step, self._tail(step, logits_count), contexts)
            yield self._model.variant_set.lm_head(logits_count, ROWS)

    def programs_for_next_context(self, lengths: Sequence[int]) -> Iterator[str]:
        """The programs of the larger gathered cache that these sequences, of these lengths in positions, need
        within AHEAD_TOKENS more tokens each: for a token of each in the decode path `rows`. Empty if they
        need none, and without variants."""
        if self._model.seq_len or not lengths:
            return
        ends = [min(length + AHEAD_TOKENS, self._model.positions) for length in lengths]
        block = self.diffusion_block
        try:
            larger = self._cache.contexts_for([range(end - block, end) for end in ends])
        except NoVariantError:  # one of them waits then
            return
        if larger == self._cache.contexts_for([range(max(0, end - block), end) for end in lengths]):
            return
        count = len(lengths) * block
        step = _call(self.padded_rows(count), max(larger))
        yield from self._programs_of(step, self._tail(step, count), larger)

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
        model, (step, contexts) = self._model, self._call_for(scheduled)
        self._restore_states(scheduled)
        for tokens in scheduled:
            tokens.sequence.reserve(len(tokens.tokens))
        spans: Sequence[Sequence[Span]] = []
        if not model.seq_len:
            spans = self._cache.gather({one.sequence: one.new_positions for one in scheduled}, contexts)
        rows = self._layout(scheduled, spans, step.variant, contexts)
        with model.host_timer("embedding"):
            x = embed(model.embed_table, [token for tokens in scheduled for token in tokens.run_tokens])
        tail = self._tail_for(scheduled, step)
        model.ensure_programs(self._programs_of(step, tail, contexts))
        check_ranks_agree(model.group, zlib.crc32(x.tobytes(), zlib.crc32(rows.positions.tobytes())))
        is_recorded = step.variant <= MAX_TAIL_ROWS and scheduled[0].is_recurring
        is_full = len(x) == step.variant
        hidden = model.run_on_all(
            lambda part: self._pass(part, step, is_recorded, is_full, rows.states, on_program)(x, rows, tail)
        )
        rows.states.finish()
        return hidden

    def _restore_states(self, scheduled: Sequence[ScheduledTokens]) -> None:
        """Let each sequence have the states of linear attention from which its tokens go on. Where it has
        them not, as after going back, its last page is computed again, up to them."""
        for tokens in scheduled if self._model.config.delta else ():
            sequence, first = tokens.sequence, tokens.first_position
            if sequence.history and sequence.history.can_go_on_at(first):
                continue
            start = sequence.start_history(first // PAGE_SIZE)
            for at in range(start, first, self.max_rows):
                self._compute_again(sequence, range(at, min(first, at + self.max_rows)))

    def _compute_again(self, sequence: PagedSequence, positions: range) -> None:
        """Compute positions of a sequence that holds them."""
        rows = self.padded_rows(len(positions))
        context = max(self._cache.contexts_for([positions], rows))
        call = _call(rows, context)._replace(n_past=positions.start, n_process=len(positions))
        self.hidden_states([ScheduledTokens(sequence, (), 0, call=call, is_recurring=False)])

    def _call_for(self, scheduled: Sequence[ScheduledTokens]) -> tuple[VariantCall, tuple[int, ...]]:
        """The variant for these tokens, and the context of each window's cache."""
        blocks = self._model.variant_set
        if len(scheduled) == 1 and (step := scheduled[0].call):
            return step, blocks.contexts_of(step)
        if self._model.seq_len:
            (step,) = blocks.plan(len(scheduled[0].tokens), scheduled[0].sequence.length)
            return step, blocks.contexts_of(step)
        rows = self.padded_rows(sum(len(piece.tokens) for piece in scheduled))
        contexts = self._cache.contexts_for([tokens.new_positions for tokens in scheduled], rows)
        return _call(rows, max(contexts)), contexts

    def _layout(
        self,
        scheduled: Sequence[ScheduledTokens],
        spans: Sequence[Sequence[Span]],
        width: int,
        contexts: Sequence[int],
    ) -> BatchLayout:
        """The positions of these rows. spans: for each window, of the sequences in its gathered cache; none
        for the six programs, whose attention knows by itself. width: rows of the variant.

        Without `diffusion_block` the rule is the model's mask; with one, positions of a block see each other,
        beside all positions before them. Layers hide more by their windows.
        """
        model, positions = self._model, np.zeros(width, np.int64)
        visible = [np.zeros((width, context), bool) for context in contexts if spans]
        cache_positions: list[list[NDArray[np.int64]]] = [[] for _ in contexts]
        pool_positions, output_rows, row = [], [], 0
        for number, tokens in enumerate(scheduled):
            new = tokens.new_positions
            rows = slice(row, row + len(new))
            positions[rows] = new
            for window, of_window in enumerate(spans):
                span = of_window[number]
                seen = self._seen(positions[rows], range(span.origin, new.stop), model.config.masks, window)
                visible[window][rows, span.base + span.origin : span.base + new.stop] = seen
                cache_positions[window].append(span.base + positions[rows])
            pool_positions.append(tokens.sequence.pool_positions(new.start, len(new)))
            output_rows.append(np.arange(rows.stop - tokens.logits_count, rows.stop))
            row = rows.stop
        in_cache = [np.concatenate(each) for each in cache_positions if each]
        in_pool, outputs = np.concatenate(pool_positions), np.concatenate(output_rows)
        states = self._state_plan(scheduled, width)
        return BatchLayout(positions, visible, in_cache, in_pool, outputs, states)

    def _state_plan(self, scheduled: Sequence[ScheduledTokens], width: int) -> StatePlan:
        """Which rows of states the tokens read and write. width: rows of the variant."""
        config = self._model.config
        if config.delta:
            new = [(one.sequence, one.new_positions, one.kept_positions) for one in scheduled]
            return plan_delta(new, min(width, PAGE_SIZE))
        reads = (
            one.sequence.state_positions(one.first_position, len(one.new_positions), config.states.reach)
            for one in scheduled
        )
        return RowReads(np.concatenate([*reads]))

    def _seen(
        self, positions: NDArray[np.int64], keys: range, masks: LayerMasks, window: int
    ) -> NDArray[np.bool_]:
        """Which of these keys rows at `positions` see in layers with the window of this number: bool (rows,
        keys)."""
        mask, block, all_keys = self._model.mask, self.diffusion_block, np.arange(keys.start, keys.stop)
        if mask is causal or block > 1:
            seen = all_keys // block <= positions[:, None] // block
        else:
            seen = np.zeros((len(positions), keys.stop), bool)
            for visible_row, position in zip(seen, positions, strict=True):
                visible_row[mask(int(position))] = True
            seen = seen[:, keys.start :]
        return masks.visible(seen, positions, all_keys, window)

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

    def _programs_of(
        self, step: VariantCall, tail: VariantCall | None, contexts: Sequence[int]
    ) -> Iterator[str]:
        """The programs of a step."""
        yield from self._model.variant_set.call_programs(step.variant, contexts)
        if tail:
            yield from self._model.variant_set.tail_programs(tail.variant, contexts)

    def _pass(
        self,
        part: LoadedModel,
        step: VariantCall,
        is_recorded: bool,
        is_full: bool,
        plan: StatePlan,
        on_program: OnProgram | None,
    ) -> RowsPass:
        """The forward pass for this variant and the current gathered cache. A recorded one is stored for
        later steps."""
        key = step.variant, self._cache.slots, plan.key
        if is_recorded and (recorded := self._recorded.get(key)) and recorded.is_current:
            return recorded
        recording = part.record() if is_recorded else None
        # With fewer tokens, rows of zeros may be left out, and cost less.
        costs = part.variant_set.costs if is_full and part.variant_set.devices == 1 else None
        calls = recording or ImmediateCalls(part, on_program if part.local_rank == 0 else None, costs)
        rows_pass = RowsPass(part, step, self._cache, self._pool, calls, plan)
        if recording:
            self._recorded[key] = rows_pass
        return rows_pass


NO_LM_HEAD = "hidden"
"""In place of a decode path: return the last layer's output without the LM head."""


def _call(rows: int, context: int) -> VariantCall:
    """A call of this variant, whatever its tokens are."""
    return VariantCall(rows, context, 0, 0, rows, 0, 0)
