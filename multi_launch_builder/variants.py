"""The programs of graph variants: AR-n x CL-m computes n tokens at once against a KV cache of m positions.

    rms_gemms_rope_ar{n}      x, rope_rows -> q_roped, k_roped, v       as rms_gemms_rope, at any positions
    cached_attn_ar{n}_cl{m}   q_roped, keys, values, mask -> attn_out
    o_ffn_ar{n}               attn_out, x -> x_next                     as o_ffn
    lm_head_ar{n}             x -> logits_0..7                          as lm_head_gemv, of 8, 16 or 32 rows
    rms_gemms_gate_ar{n}      x -> gated, conv_c                        in layers with a short convolution
    short_conv_ar{n}          conv_rows, conv_c -> attn_out
    rms_gemms_delta_ar{n}     x -> delta_qkv, delta_z, delta_ab         in layers with linear attention
    delta_conv_ar{n}          conv_rows -> mixed
    delta_rule_ar{n}          delta_rows, state -> rule_out, state_out  of one sequence, 64 at most
    delta_gate_ar{n}          delta_out, delta_z -> attn_out
    attn_gate_ar{n}           attended, attn_gate -> attn_out           where attention has a gate
    o_ar{n}, ffn_ar{n}        attn_out -> proj, res1 -> down            o_ffn on one of several devices
    attn_add_ar{n}, ffn_add_ar{n}                                       after each of them, where it has norms
    rms_gemms_ar{n}, norm_rope_ar{n}                                    the first, where norms take all heads

The two of a convolution stand in the place of the first two in layers without attention: between them the
host keeps the rows of `gated`, and gathers those that each row reads. The last ones stand in the place of
`o_ffn_ar{n}` where a model is shared out (parallel_programs.py). Their shape, and that of the others then, is
of the heads and the part of the FFN's width that the device has.

Between the first and the second the host writes k_roped and v into the cache, at the positions of their rows.
Only attention knows of the context, so the other programs of n rows are shared by all contexts; and weights
have the names and shapes that they have in the six programs, so that one copy serves all.

Everything that varies from call to call is an input: the rows of RoPE's table, the cache, and a mask that
says which positions each row sees. So a row that is not needed, or not there, is computed and not looked at.

AR-1 is the programs of decode (`rms_gemv_rope`, `o_gemv_ffn`, `lm_head_gemv`), whose attention is the host's.
Whoever wants the bits of the programs here for a single token calls those of 8 rows with one of them filled.

Reading the tables needs no IR and no kernel.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16, i32
from aerie.multi_launch_builder import delta_programs, parallel_programs, programs
from aerie.multi_launch_builder.program import LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.shapes import ModelShape, UnsupportedShapeError

ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of a call that programs exist for."""
LM_HEAD_ROWS = tuple(n for n in ROWS if 1 < n <= programs.MAX_TAIL_ROWS)
"""Rows of the LM head's programs, besides the one row of `lm_head_gemv`."""
CONTEXTS = tuple(512 << doubled for doubled in range(7))
"""Positions of a KV cache that programs exist for: 512 to 32768, with heads wider than 64 to 16384."""
WINDOW_CONTEXTS = tuple(768 << doubled for doubled in range(6))
"""Positions of a KV cache of layers with a sliding window, beside CONTEXTS: a window of 512 needs 768."""
MASK_WORD = 32
"""Positions of a word of the mask, the lowest in its lowest bit."""


@dataclass(frozen=True, order=True)
class Variant:
    """AR-rows x CL-context: tokens of a call, and positions of the KV cache that they are part of.

    Raises UnsupportedShapeError, naming the nearest legal one, if no programs exist for the variant.
    """

    rows: int
    context: int

    def __post_init__(self) -> None:
        _check_among("rows (AR)", self.rows, ROWS, self)
        if self.context not in WINDOW_CONTEXTS:
            _check_among("context (CL)", self.context, CONTEXTS, self)
        if self.rows > self.context:
            raise UnsupportedShapeError(
                f"{self}: the {self.rows} tokens of a call do not fit its cache of {self.context} positions",
                f"the nearest legal one is AR-{self.rows}xCL-{_nearest(self.rows, CONTEXTS)}",
            )

    def __str__(self) -> str:
        return f"AR-{self.rows}xCL-{self.context}"

    @staticmethod
    def parse(text: str) -> Variant:
        """Parse a variant's name. Raises UnsupportedShapeError if it is not one."""
        match = re.fullmatch(r"AR-(\d+)x?_?CL-(\d+)", text.strip(), re.IGNORECASE)
        if not match:
            raise UnsupportedShapeError(
                f"'{text}' is no variant: tokens of a call and positions of the cache",
                "write AR-8xCL-512 for 8 and 512",
            )
        return Variant(*map(int, match.groups()))


def _nearest(number: int, legal: Sequence[int]) -> int:
    return min(legal, key=lambda one: abs(one - number))


def _check_among(name: str, number: int, legal: Sequence[int], variant: Variant) -> None:
    if number not in legal:
        raise UnsupportedShapeError(
            f"{variant}: there are no programs for {name}={number}, only for {', '.join(map(str, legal))}",
            f"the nearest legal value is {_nearest(number, legal)}",
        )


ROPE_ROWS = ("rope_rows", Role.INPUT)
"""A row (D) of RoPE's table for each token, as in `rope_lut`: tokens may be at any positions."""


def _cached_attention(shape: ModelShape, rows: int, context: int) -> ProgramPlan:
    """Attention of rows to a cache, each with the positions that its mask shows: q_roped, keys, values, mask
    -> attn_out.

    The cache is stored heads first, as the kernel reads it: a head's K/V tile is one run of memory.
    """
    cache = (shape.n_kv_heads, context, shape.head_dim)
    arguments = ArgumentTable(
        [
            Argument("q_roped", (rows, shape.q_dim), bf16, Role.INPUT),
            Argument("keys", cache, bf16, Role.INPUT),
            Argument("values", cache, bf16, Role.INPUT),
            Argument("mask", (rows, context // MASK_WORD), i32, Role.INPUT),
            Argument("attn_out", (rows, shape.q_dim), bf16, Role.OUTPUT),
        ]
    )
    heads = {"n_heads": shape.n_heads, "n_kv_heads": shape.n_kv_heads, "head_dim": shape.head_dim}
    wiring = {"q": "q_roped", "k": "keys", "v": "values", "mask": "mask", "out": "attn_out"}
    parameters = {"n": rows, "m": context, **heads, **shape.attention_parameters}
    step = LaunchPlan("cached_attention", "cached_attention", parameters, wiring)
    name, options = program_name("cached_attn", rows, context), programs.ATTENTION_OPTIONS
    return ProgramPlan(name, arguments, (step,), options, "cached_attn", rows, context)


PLANS: dict[str, Callable[[ModelShape, int, int], ProgramPlan]] = {
    "rms_gemms_rope": lambda shape, rows, _: programs.plan_before_attention(
        "rms_gemms_rope", shape, rows, ROPE_ROWS, program_name("rms_gemms_rope", rows)
    ),
    "rms_gemms": lambda shape, rows, _: parallel_programs.plan_projections(
        "rms_gemms", shape, rows, program_name("rms_gemms", rows)
    ),
    "norm_rope": lambda shape, rows, _: parallel_programs.plan_norm_rope(
        "norm_rope", shape, rows, ROPE_ROWS[0], program_name("norm_rope", rows)
    ),
    "cached_attn": _cached_attention,
    "o_ffn": lambda shape, rows, _: programs.plan_after_attention(
        "o_ffn", shape, rows, program_name("o_ffn", rows)
    ),
    "rms_gemms_gate": lambda shape, rows, _: programs.plan_before_conv(
        "rms_gemms_gate", shape, rows, program_name("rms_gemms_gate", rows)
    ),
    "short_conv": lambda shape, rows, _: programs.plan_conv(
        "short_conv", shape, rows, program_name("short_conv", rows)
    ),
    "rms_gemms_delta": lambda shape, rows, _: delta_programs.plan_before_delta(
        "rms_gemms_delta", shape, rows, program_name("rms_gemms_delta", rows)
    ),
    "delta_conv": lambda shape, rows, _: delta_programs.plan_delta_conv(
        "delta_conv", shape, rows, program_name("delta_conv", rows)
    ),
    "delta_rule": lambda shape, rows, _: delta_programs.plan_delta_rule(
        "delta_rule", shape, min(rows, delta_programs.MAX_RUN), program_name("delta_rule", rows)
    ),
    "delta_gate": lambda shape, rows, _: delta_programs.plan_delta_gate(
        "delta_gate", shape, rows, program_name("delta_gate", rows)
    ),
    "attn_gate": lambda shape, rows, _: delta_programs.plan_attention_gate(
        "attn_gate", shape, rows, program_name("attn_gate", rows)
    ),
    "o": lambda shape, rows, _: parallel_programs.plan_attention_output(
        "o", shape, rows, program_name("o", rows)
    ),
    "attn_add": lambda shape, rows, _: parallel_programs.plan_add(
        "attn_add", "attn", shape, rows, program_name("attn_add", rows)
    ),
    "ffn": lambda shape, rows, _: parallel_programs.plan_ffn("ffn", shape, rows, program_name("ffn", rows)),
    "ffn_add": lambda shape, rows, _: parallel_programs.plan_add(
        "ffn_add", "ffn", shape, rows, program_name("ffn_add", rows)
    ),
    "lm_head": lambda shape, rows, _: programs.plan_lm_head(
        "lm_head", shape, rows, program_name("lm_head", rows)
    ),
}
"""Every kind of program of several rows: from the model's shape, rows and context to its plan."""
CONTEXT_KINDS = frozenset({"cached_attn"})
"""Kinds that are built for a context; the others serve all contexts."""
ONE_ROW_KINDS = ("rms_gemv_rope", "o_gemv_ffn", "lm_head_gemv")
"""The programs of AR-1."""
CONV_ROW_KINDS = ("rms_gemv_gate", "short_conv_row")
"""Those of AR-1 in layers with a short convolution, besides the last two of ONE_ROW_KINDS."""


def program_name(kind: str, rows: int, context: int = 0) -> str:
    """The name of a program of several rows. The delta rule takes a page at most."""
    rows = min(rows, delta_programs.MAX_RUN) if kind == "delta_rule" else rows
    return f"{kind}_ar{rows}_cl{context}" if kind in CONTEXT_KINDS else f"{kind}_ar{rows}"


def plan_by_name(shape: ModelShape, name: str) -> ProgramPlan | None:
    """The plan of a variants' program called `name`; None if no program has such a name.

    Raises UnsupportedShapeError if no programs exist for the number of rows or the context.
    """
    match = re.fullmatch(r"([a-z_]+)_ar(\d+)(?:_cl(\d+))?", name)
    if not match or match[1] not in PLANS or (match[3] is not None) != (match[1] in CONTEXT_KINDS):
        return None
    kind, rows = match[1], int(match[2])
    variant = Variant(rows, int(match[3] or CONTEXTS[-1]))
    legal = LM_HEAD_ROWS if kind == "lm_head" else ROWS[1:]
    if rows not in legal:
        raise UnsupportedShapeError(
            f"{name}: {kind} has programs of {', '.join(map(str, legal))} rows alone",
            f"the nearest legal one is {program_name(kind, _nearest(rows, legal), variant.context)}",
        )
    return PLANS[kind](shape, rows, variant.context)


LAYER_KINDS = ("rms_gemms_rope", "cached_attn", "o_ffn")
"""The kinds that take rows through a layer."""
CONV_LAYER_KINDS = ("rms_gemms_gate", "short_conv", "o_ffn")
"""The kinds that take rows through a layer with a short convolution."""


DELTA_LAYER_KINDS = ("rms_gemms_delta", "delta_conv", "delta_rule", "delta_gate", "o_ffn")
"""The kinds that take rows through a layer with linear attention."""
GATED_LAYER_KINDS = ("rms_gemms_rope", "cached_attn", "attn_gate", "o_ffn")
"""The kinds that take rows through a layer whose attention has a gate."""


def attention_layer_kinds(shape: ModelShape, is_shared: bool = False) -> tuple[str, ...]:
    """The kinds that take rows through a layer with attention. is_shared: on one of several devices."""
    if is_shared:
        return _parallel_layer_kinds(shape)
    return GATED_LAYER_KINDS if shape.attention_gate else LAYER_KINDS


def _parallel_layer_kinds(shape: ModelShape) -> tuple[str, ...]:
    """The same on one of several devices (parallel_programs.py)."""
    before = ("rms_gemms", "norm_rope") if shape.qk_norm_spans_heads else ("rms_gemms_rope",)
    gate = ("attn_gate",) if shape.attention_gate else ()
    return (*before, "cached_attn", *gate, *_parallel_kinds_after(shape))


def _parallel_kinds_after(shape: ModelShape) -> tuple[str, ...]:
    """Those after attention, or after what a layer has in its place."""
    return ("o", "attn_add", "ffn", "ffn_add") if shape.norm_after else ("o", "ffn")


def state_layer_kinds(shape: ModelShape, is_shared: bool = False) -> tuple[str, ...]:
    """The kinds that take rows through a layer without attention; none where a model has no such layers.
    is_shared: on one of several devices."""
    if not shape.conv_taps:
        return ()
    kinds = DELTA_LAYER_KINDS if shape.has_delta else CONV_LAYER_KINDS
    return (*kinds[:-1], *_parallel_kinds_after(shape)) if is_shared else kinds


def plan_variant_programs(
    shape: ModelShape, variants: Iterable[Variant], layer: Sequence[str] = ()
) -> dict[str, ProgramPlan]:
    """The plans of all programs that these variants need, by name, each once. layer: the kinds of a layer
    with attention; () means those of one device.

    Every variant of several rows has the LM head of 8 rows, because decode continues from its last row; those
    of 16 and 32 rows come with variants of as many. Does not check that the kernels accept the shape
    (`shape_limits` does).
    """
    plans = (plan for variant in sorted(set(variants)) for plan in _plans_of(shape, variant, layer))
    return {plan.name: plan for plan in plans}


def _plans_of(shape: ModelShape, variant: Variant, layer: Sequence[str]) -> Iterator[ProgramPlan]:
    if variant.rows == 1:
        has_rows = shape.conv_taps and not shape.has_delta
        kinds = (*ONE_ROW_KINDS, *(CONV_ROW_KINDS if has_rows else ()))
        yield from programs.plan_programs(shape, variant.context, kinds).values()
        return
    for kind in dict.fromkeys((*(layer or attention_layer_kinds(shape)), *state_layer_kinds(shape))):
        yield PLANS[kind](shape, variant.rows, variant.context)
    for rows in dict.fromkeys((LM_HEAD_ROWS[0], variant.rows)):
        if rows in LM_HEAD_ROWS:
            yield PLANS["lm_head"](shape, rows, variant.context)


class GraphType(enum.Enum):
    """What a program is for, as far as its argument table shows."""

    LUT = "lut"
    DECODER = "decoder"
    DECODER_PREFILL = "decoder_prefill"
    LMHEAD = "lmhead"
    DEFAULT = "default"


TOKEN_IDS = re.compile(r"input_ids")
NEW_KEYS_OR_VALUES = re.compile(r"k_roped|v|(past|present)_(key|value).*")
LOGITS = re.compile(r"logits(_\d+)?")
IMAGE = re.compile(r"pixel_values|image_features|vision_embedding.*")


def graph_type(arguments: ArgumentTable) -> GraphType:
    """What a program with these arguments is for.

    LUT: token ids go in, and neither keys and values nor logits come out. DECODER: keys and values come out,
    among other things; DECODER_PREFILL: nothing else does. LMHEAD: logits come out, and no keys and values.
    DEFAULT: all else, such as attention, or a whole model. Raises UnsupportedShapeError for an encoder of
    images.
    """
    taken = [a.name for a in arguments if a.role is Role.INPUT]
    outputs = [a.name for a in arguments if a.role is Role.OUTPUT]
    if image := next(filter(IMAGE.fullmatch, (*taken, *outputs)), None):
        raise UnsupportedShapeError(
            f"IMAGE_ENCODER: a program with an argument '{image}' encodes images, and only decoders of text "
            "are built and run here"
        )
    ids, logits = any(map(TOKEN_IDS.fullmatch, taken)), any(map(LOGITS.fullmatch, outputs))
    new_keys_values = [name for name in outputs if NEW_KEYS_OR_VALUES.fullmatch(name)]
    if ids and not new_keys_values and not logits:
        return GraphType.LUT
    if new_keys_values and not ids and not logits:
        return GraphType.DECODER_PREFILL if new_keys_values == outputs else GraphType.DECODER
    return GraphType.LMHEAD if logits and not ids and not new_keys_values else GraphType.DEFAULT
