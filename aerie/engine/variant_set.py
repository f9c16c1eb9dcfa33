"""Which programs take which tokens: the variants of a model, and the programs of each call."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from aerie.common.errors import UserError
from aerie.engine.call_costs import CallCosts
from aerie.engine.layer_masks import LayerMasks, layer_masks, positions_needed
from aerie.engine.planner import VariantCall, plan
from aerie.engine.variants import gathered_contexts, window_contexts
from aerie.multi_launch_builder import Variant
from aerie.multi_launch_builder.variants import (
    CONV_ROW_KINDS,
    LAYER_KINDS,
    LM_HEAD_ROWS,
    ONE_ROW_KINDS,
    program_name,
)

GUIDE, ROWS = "guide", "rows"
"""Decode paths: GEMVs with attention on the host; or rows on the device, as for prompts."""
TURN_TOKENS = (8, 32, 128)
"""Lengths of a next message, with what the chat template puts around it, for which programs are compiled in
the background."""
MAX_TAIL_ROWS = LM_HEAD_ROWS[-1]
"""A variant with more rows leaves the end of the last layer to a variant with fewer."""


def check_decode_path(decode: str) -> None:
    """Raises UserError unless decode is "guide" or "rows"."""
    if decode not in (GUIDE, ROWS):
        raise UserError(f"decode is {decode!r}; give {GUIDE!r} or {ROWS!r}")


class FullPrefill(NamedTuple):
    """The prefill of the six programs as a variant: all of a prompt in one call without a past (AR == CL)."""

    rows: int
    context: int


LayerPrograms: TypeAlias = "tuple[str, ...]"
"""The programs of a layer, in order: before attention, attention, and after attention, where several devices
have more than one (multi_launch_builder/variants.py, PARALLEL_LAYER_KINDS)."""


@dataclass(frozen=True)
class VariantSet:
    """The variants of a model, or the prompt length of the six programs.

    seq_len: the prompt length of the six programs; 0 if there are variants. variants: each has several rows.
    decode_path: "guide" or "rows". costs: of a call, for the planner; None means the seed's rule. devices:
    number of devices that share each layer. attention_kinds, state_kinds: of the programs of layers with and
    without attention, in order; the second is empty where all have attention. masks: the windows of the
    layers.
    """

    seq_len: int = 0
    variants: tuple[Variant, ...] = ()
    decode_path: str = GUIDE
    costs: CallCosts | None = field(default=None, compare=False)
    devices: int = 1
    attention_kinds: LayerPrograms = LAYER_KINDS
    state_kinds: LayerPrograms = ()
    masks: LayerMasks = field(default_factory=lambda: layer_masks(1, None, frozenset()))

    @property
    def largest_context(self) -> int | None:
        """Positions of the largest context; None without variants."""
        return max((one.context for one in self.variants), default=None)

    @property
    def contexts(self) -> Sequence[int]:
        """The contexts of the variants, in positions, smallest first."""
        return sorted({one.context for one in self.variants})

    @property
    def gathered_contexts(self) -> Sequence[int]:
        """The contexts of gathered caches; empty without variants."""
        return gathered_contexts(self.contexts) if self.variants else []

    @property
    def window_contexts(self) -> Sequence[int]:
        """The same, with those of layers with a window where the model has such."""
        has_windows = self.variants and any(window is not None for window in self.masks.windows)
        return window_contexts(self.contexts) if has_windows else self.gathered_contexts

    def positions(self, context: int) -> int:
        """Maximum positions of a sequence, for a model with `context` positions."""
        return min(context, self.largest_context or context)

    def plan(self, tokens: int, past: int, recompute: bool = True) -> Sequence[VariantCall]:
        """The calls for `tokens` after `past` positions.

        recompute: whether a call may compute the past again (AR == CL). Raises NoVariantError if no context
        holds all tokens.
        """
        if self.seq_len:
            return plan(tokens, past, [FullPrefill(self.seq_len, self.seq_len)])
        fitting = [one for one in self.variants if recompute or not past or one.rows < one.context]
        if self.costs is None:
            return plan(tokens, past, fitting)
        return plan(tokens, past, fitting, self.costs, self.costs.spared_by_padding)

    def tail_call(self, call: VariantCall, tokens: range) -> VariantCall | None:
        """A call with fewer rows for these tokens of `call`; None if it would save little. tokens: indices
        within the call."""
        if call.variant <= MAX_TAIL_ROWS:
            return None
        fitting = [one.rows for one in self.variants if one.context == call.context]
        rows = min((each for each in fitting if len(tokens) <= each < call.variant), default=None)
        if rows is None:
            return None
        first = call.new_idx + tokens.start
        return call._replace(variant=rows, n_past=first, n_process=len(tokens), new_idx=first)

    @property
    def _all_kinds(self) -> Sequence[str]:
        """The kinds of the programs of all layers, each once."""
        return [*dict.fromkeys((*self.attention_kinds, *self.state_kinds))]

    def attention_programs(self, rows: int, context: int) -> LayerPrograms:
        """The programs of a layer with attention for this many rows, with a cache of `context` positions."""
        if self.seq_len:
            return "rms_gemms_rope", "flash_attn", "o_ffn"
        return tuple(program_name(kind, rows, context) for kind in self.attention_kinds)

    @property
    def programs_before_attention(self) -> int:
        """How many programs a layer has before attention, or before what it has in its place: their results
        are needed for every row, as later rows attend to them."""
        return 1 if self.seq_len else self.attention_kinds.index("cached_attn")

    def call_programs(self, rows: int, contexts: Sequence[int]) -> Iterator[str]:
        """The programs of a call, of all layers, each once. contexts: of the caches of the windows."""
        layers = [self.attention_programs(rows, context) for context in contexts]
        if self.state_kinds:
            layers.append(self.state_programs(rows))
        yield from dict.fromkeys(itertools.chain.from_iterable(layers))

    def contexts_of(self, call: VariantCall) -> tuple[int, ...]:
        """The contexts of the caches of each window for a call with one sequence: the call's, or a smaller
        one that holds all that a window shows."""
        new = range(call.n_past, call.n_past + call.n_process)
        needed = (max(call.variant, positions_needed(window, new)) for window in self.masks.windows)
        return tuple(
            call.context
            if window is None
            else next((one for one in self.window_contexts if one >= count), call.context)
            for window, count in zip(self.masks.windows, needed, strict=True)
        )

    @property
    def window_variants(self) -> Iterator[Variant]:
        """The variants with whose attention layers with a window run, where these need less of the cache:
        those of calls with one token, with as many as there are rows, and between."""
        for one in self.variants:
            calls = (
                VariantCall(one.rows, one.context, one.context - tokens, 0, tokens, 0, 0)
                for tokens in (1, one.rows)
            )
            for least, most in zip(*map(self.contexts_of, calls), strict=True):
                between = (each for each in self.window_contexts if least <= each <= most)
                yield from (Variant(one.rows, context) for context in between)

    def state_programs(self, rows: int) -> LayerPrograms:
        """The programs of a layer without attention, for this many rows."""
        if self.seq_len:
            return self.state_kinds
        return tuple(program_name(kind, rows) for kind in self.state_kinds)

    def layer_programs(self, rows: int, context: int, is_conv: bool) -> LayerPrograms:
        """The programs of a layer, in order: those before attention, or before what a layer without has in
        its place; the latter; and those after."""
        return self.state_programs(rows) if is_conv else self.attention_programs(rows, context)

    def programs_for_calls(self, calls: Sequence[VariantCall], last_only: bool) -> Iterator[str]:
        """The programs of these calls. last_only: the last call computes its last token only at the end of
        the last layer."""
        for step in calls:
            yield from self.call_programs(step.variant, self.contexts_of(step))
        end = calls[-1].n_process
        if last_only and (tail := self.tail_call(calls[-1], range(end - 1, end))):
            yield from self.tail_programs(tail.variant, self.contexts_of(calls[-1]))

    def tail_programs(self, rows: int, contexts: Sequence[int]) -> Iterator[str]:
        """The programs of the end of the last layer, for this many rows. contexts: as for call_programs."""
        context = contexts[self.masks.of_layer[-1]]
        for is_conv in (False, True)[: 1 + bool(self.state_kinds)]:
            yield from self.layer_programs(rows, context, is_conv)[self.programs_before_attention :]

    def programs_for_next_turn(self, length: int) -> Iterator[str]:
        """The programs for a message of TURN_TOKENS after a conversation of `length` positions, in its
        context and in the next larger one. Empty without variants."""
        starts = [length, *(one for one in self.contexts if one > length)][:2]
        for past, tokens in itertools.product(starts, TURN_TOKENS):
            if past + tokens <= (self.largest_context or 0):
                yield from self.programs_for_calls(self.plan(tokens, past, recompute=False), last_only=True)

    def lm_head(self, rows: int, decode_path: str = "") -> str:
        """The LM head for this number of rows; it may take several calls. With `rows`, the one that reads its
        weights least often. decode_path: "" means this set's."""
        if (decode_path or self.decode_path) == GUIDE:
            return ONE_ROW_KINDS[-1]
        return program_name("lm_head", next((n for n in LM_HEAD_ROWS if n >= rows), LM_HEAD_ROWS[-1]))

    @property
    def lm_heads(self) -> Collection[str]:
        """The LM heads for any number of rows."""
        return {self.lm_head(rows) for rows in LM_HEAD_ROWS}

    @property
    def batch_rows(self) -> Sequence[int]:
        """Rows of the programs for steps of several sequences (executor.py)."""
        return sorted({one.rows for one in self.variants if one.rows > 1} | {*LM_HEAD_ROWS})

    @property
    def batch_programs(self) -> Iterator[str]:
        """All programs for steps of several sequences: any rows, any gathered context, any number of output
        rows. Empty without variants."""
        if not self.variants:
            return
        for rows, context in itertools.product(self.batch_rows, self.window_contexts):
            if rows <= context:
                yield from (program_name(kind, rows, context) for kind in self._all_kinds)
        yield from replace(self, decode_path=ROWS).lm_heads

    @property
    def decode_programs(self) -> Sequence[str]:
        """The programs that decode a token, without those of prefill; the LM head is the last."""
        if self.decode_path != GUIDE:
            return (self.lm_head(1),)
        return (*(CONV_ROW_KINDS if self.state_kinds else ()), *ONE_ROW_KINDS)
