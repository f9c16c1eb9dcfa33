"""How tokens are cut into blocks of rows, and which programs take a block through the layers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from aerie.common.errors import UserError
from aerie.engine.call_costs import CallCosts
from aerie.engine.planner import VariantCall, plan
from aerie.engine.variants import gathered_contexts
from aerie.multi_launch_builder import Variant
from aerie.multi_launch_builder.variants import (
    LAYER_KINDS,
    LM_HEAD_ROWS,
    ONE_ROW_KINDS,
    PARALLEL_LAYER_KINDS,
    program_name,
)

GUIDE, ROWS = "guide", "rows"
"""Families of decode: GEMVs and attention on the host; or blocks of rows on the device, as for prompts."""
MAX_TAIL_ROWS = LM_HEAD_ROWS[-1]
"""Blocks of more rows leave what only the last token needs to a block of fewer."""


def check_decode_path(decode: str) -> None:
    """UserError for what is no family."""
    if decode not in (GUIDE, ROWS):
        raise UserError(f"decode is {decode!r}; give {GUIDE!r} or {ROWS!r}")


class FullPrefill(NamedTuple):
    """The prefill of the six programs as a variant: all of a prompt at once, and no past (AR == CL)."""

    rows: int
    context: int


LayerPrograms: TypeAlias = "tuple[str, ...]"
"""The programs that take a block through a layer, in order: what comes before attention, attention, and after
it one, or, on one of several devices, two (multi_launch_builder/variants.py, SHARED_LAYER)."""


@dataclass(frozen=True)
class VariantSet:
    """seq_len: the prompt length that the six programs are built for; 0 where blocks are of `variants`, each
    of several rows. decode: the family. costs: by which tokens are cut; None: by the planner's own rule.
    devices: how many share each layer.
    """

    seq_len: int = 0
    variants: tuple[Variant, ...] = ()
    decode_path: str = GUIDE
    costs: CallCosts | None = field(default=None, compare=False)
    devices: int = 1

    @property
    def largest_context(self) -> int | None:
        """The most positions of the variants; None where there are none."""
        return max((one.context for one in self.variants), default=None)

    @property
    def contexts(self) -> Sequence[int]:
        """Those of the variants, in positions."""
        return sorted({one.context for one in self.variants})

    @property
    def gathered_contexts(self) -> Sequence[int]:
        """Those of windows that several sequences share; none where there are no variants."""
        return gathered_contexts(self.contexts) if self.variants else []

    def positions(self, context: int) -> int:
        """The most positions of a sequence, for a model of `context` ones."""
        return min(context, self.largest_context or context)

    def plan(self, tokens: int, past: int, recompute: bool = True) -> Sequence[VariantCall]:
        """The steps for `tokens` after `past`.

        anew: whether the past may be computed again (AR == CL). NoVariantError where there is no context for
        them.
        """
        if self.seq_len:
            return plan(tokens, past, [FullPrefill(self.seq_len, self.seq_len)])
        fitting = [one for one in self.variants if recompute or not past or one.rows < one.context]
        return plan(tokens, past, fitting, self.costs)

    def tail_call(self, call: VariantCall, tokens: range) -> VariantCall | None:
        """The step of those of its tokens alone, with fewer rows; None where that would save little."""
        if call.variant <= MAX_TAIL_ROWS:
            return None
        fitting = [one.rows for one in self.variants if one.context == call.context]
        rows = min((each for each in fitting if len(tokens) <= each < call.variant), default=None)
        if rows is None:
            return None
        first = call.new_idx + tokens.start
        return call._replace(variant=rows, n_past=first, n_process=len(tokens), new_idx=first)

    @property
    def layer_kinds(self) -> LayerPrograms:
        """Of the programs of a layer, in blocks of variants."""
        return LAYER_KINDS if self.devices == 1 else PARALLEL_LAYER_KINDS

    def call_programs(self, call: VariantCall) -> LayerPrograms:
        """The programs of a step."""
        if self.seq_len:
            return "rms_gemms_rope", "flash_attn", "o_ffn"
        return tuple(program_name(kind, call.variant, call.context) for kind in self.layer_kinds)

    def programs_for_calls(self, calls: Sequence[VariantCall], last_only: bool) -> Iterator[str]:
        """The programs that these steps run, the last one for its last token alone with `last_only`."""
        for step in calls:
            yield from self.call_programs(step)
        end = calls[-1].n_process
        if last_only and (tail := self.tail_call(calls[-1], range(end - 1, end))):
            yield from self.call_programs(tail)[1:]

    def lm_head(self, rows: int, decode_path: str = "") -> str:
        """The LM head for so many rows, which it may take a few at a time: in `rows`, the one that reads its
        weights least often. decode: of which family; "" for this one."""
        if (decode_path or self.decode_path) == GUIDE:
            return ONE_ROW_KINDS[-1]
        return program_name("lm_head", next((n for n in LM_HEAD_ROWS if n >= rows), LM_HEAD_ROWS[-1]))

    @property
    def lm_heads(self) -> Collection[str]:
        """The LM heads, for any number of rows."""
        return {self.lm_head(rows) for rows in LM_HEAD_ROWS}

    @property
    def batch_rows(self) -> Sequence[int]:
        """Rows of the programs that steps of several sequences take (executor.py)."""
        return sorted({one.rows for one in self.variants if one.rows > 1} | {*LM_HEAD_ROWS})

    @property
    def batch_programs(self) -> Iterator[str]:
        """The programs of all such steps: of any rows, in any window, with any number of rows wanted. None
        where there are no variants."""
        if not self.variants:
            return
        for rows, context in itertools.product(self.batch_rows, gathered_contexts(self.contexts)):
            if rows <= context:
                yield from (program_name(kind, rows, context) for kind in self.layer_kinds)
        yield from replace(self, decode_path=ROWS).lm_heads

    @property
    def decode_programs(self) -> Sequence[str]:
        """The programs that decode a token, beside those of its block; the LM head is the last."""
        return ONE_ROW_KINDS if self.decode_path == GUIDE else (self.lm_head(1),)
