"""The six programs of a Llama-class model: their arguments, and their launches as tables of steps.

A model with short convolutions has four more, for the layers that have no attention.

Prefill works on the rows of a whole prompt, decode on one token. What a layer does before and after attention
is the same in both, and described once: `rows` is the compiled prompt length (prefill, matrices, GEMMs) or
None (decode, vectors, GEMVs). Attention is a program in prefill, and the host's work in decode. The programs
of other numbers of rows, which continue a KV cache, are made of the same tables (`variants.py`).

Reading the tables needs no IR and no kernel. All buffers are bf16; weights are in Hugging Face's (out, in)
layout in all programs, so that one copy serves prefill and decode.

Options of aircc in addition to the stack's size, which every program sets (`building.stack_option`), each
with its reason and its source. All is taken from upstream's practice; none of our programs has been compiled
by aircc yet. Not given, and why. `--omit-while-true-loop`: a core's program runs again for every call, and
upstream keeps the loop in every program of several launches (mlir-air programming_examples/llms/shared/infra/
backend_presets.py). `--bf16-emulation`: it would round the operands of f32 vector arithmetic to bf16, and the
kernels write none that needs it (docs/dev/lowering.md). `--use-lock-race-condition-fix`: upstream's
GEMV alone is built with it, in its own example and not in the decode programs (backend_presets.py says
False). `--coalesce-shim-dma`: only for transfers marked `air.preserve_shim_dma_order`, and there are none.
`--air-channel-multiplexing`, `--omit-auto-broadcast`: no launch needs more channels than there are.
`--air-runtime-loop-tiling-sizes` for the decode programs: upstream gives 16 to tile a grid of launch steps.
Ours are launches of one step, in which a core's rows of the weight are one run of memory: untiled, the loops
around a transfer fold into its descriptor (mlir-air mlir/include/air/Transform/Passes.td,
air-opt-shim-dma-bds).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aerie.kernel_builder.activations import NO_ACTIVATION
from aerie.kernel_builder.arguments import Argument, ArgumentTable, Role, bf16
from aerie.multi_launch_builder.program import CompileOption, LaunchPlan, ProgramPlan
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS, ModelShape, padded_vocab_size

PREFILL = "mlir-air programming_examples/llms/llama32_1b/llama32_1b_prefill.py"


def _tiled(*sizes: int, reason: str) -> tuple[CompileOption, ...]:
    """How many points of a launch's grid, outermost dimension first, are sent to the shim before a wait."""
    return tuple(CompileOption(f"--air-runtime-loop-tiling-sizes={size}", reason, PREFILL) for size in sizes)


GEMM_GRID = _tiled(
    2,
    2,
    reason="the transfers of a GEMM's grid need more descriptors than the shim's 16: two by two steps are "
    "under way, then their descriptors are free again",
)
ATTENTION_GRID = _tiled(
    1,
    1,
    reason="one step of the grid at a time: the next queries may come once all results of a step have left",
)
NO_PING_PONG = CompileOption(
    "--omit-ping-pong-transform=all",
    "K and V tiles alternate on one channel, so V is loaded while the scores are computed; mlir-air's own "
    "attention kernels are built this way",
    PREFILL,
)
ATTENTION_OPTIONS = (*ATTENTION_GRID, NO_PING_PONG)


Rows = tuple[tuple[str, tuple[int, ...], Role], ...]
"""Rows of an argument table, as bf16_table takes them."""


def bf16_table(*rows: tuple[str, tuple[int, ...], Role]) -> ArgumentTable:
    """An argument table of bf16 buffers, from (name, shape, role) per argument."""
    return ArgumentTable(Argument(name, shape, bf16, role) for name, shape, role in rows)


def _activation(rows: int | None, width: int) -> tuple[int, ...]:
    """The shape of an activation with `width` elements for each token."""
    return (width,) if rows is None else (rows, width)


MAX_TAIL_ROWS = 32
"""Up to this many rows a product uses `gemm_rows`: each core has all of them, and a weight is read once."""


def _product(label: str, rows: int | None, k: int, n: int, x: str, weight: str, out: str) -> LaunchPlan:
    """out = x @ weight.T, x k wide and out n wide: for one token, few rows, or many."""
    if rows is None:
        return LaunchPlan(label, "gemv", {"m": n, "k": k}, {"weight": weight, "x": x, "out": out})
    few = rows <= MAX_TAIL_ROWS
    parameters = {"m": rows, "k": k, "n": n} | ({} if few else {"b_transposed": True})
    return LaunchPlan(label, "gemm_rows" if few else "gemm", parameters, {"a": x, "b": weight, "c": out})


def projection(name: str, rows: int | None, k: int, n: int, x: str, weight: str, out: str) -> LaunchPlan:
    """As `_product`, labelled as a GEMM of rows, or the GEMV of one token."""
    return _product(f"{name}_{'gemv' if rows is None else 'gemm'}", rows, k, n, x, weight, out)


def norm_of_residual(
    label: str, rows: int | None, shape: ModelShape, x: str, weight: str, out: str = "normed"
) -> LaunchPlan:
    """out = RMSNorm of x."""
    parameters = {"rows": rows, "cols": shape.emb_dim, **shape.norm_parameters}
    return LaunchPlan(label, "rms_norm", parameters, {"x": x, "weight": weight, "out": out})


def _grid(rows: int | None) -> tuple[CompileOption, ...]:
    return () if rows is None else GEMM_GRID


def plan_before_attention(
    kind: str, shape: ModelShape, rows: int | None, rope: tuple[str, Role], name: str = ""
) -> ProgramPlan:
    """RMSNorm, the Q, K and V projections, RoPE on Q and K, six launches: x -> q_roped, k_roped, v.

    If the model has biases of these, three more launches add them; if it normalizes queries and keys, there
    are two more; without a norm before attention there is one less. rope: RoPE's input. Prefill keeps the
    table of all positions on the device; programs that start at other positions than 0 receive the rows of
    their positions.
    """
    emb = shape.emb_dim
    lut, lut_role = rope
    projections = (
        Projection("q", shape, rows, shape.n_heads),
        Projection("k", shape, rows, shape.n_kv_heads),
        Projection("v", shape, rows, shape.n_kv_heads),
    )
    rotated = projections[:2]
    arguments = bf16_table(
        ("x", _activation(rows, emb), Role.INPUT),
        *before_arguments(shape, rows, "attn"),
        *(row for each in projections for row in each.arguments),
        *_gate_arguments(shape, rows),
        (lut, _activation(rows, shape.rope_width), lut_role),
        *((f"{each.of}_roped", each.activation, Role.OUTPUT) for each in rotated),
    )
    steps = (
        *((norm_of_residual("rms_norm", rows, shape, "x", "attn_norm"),) if shape.norm_before else ()),
        *(each.product for each in projections),
        *_gate_steps(shape, rows),
        *(each.bias for each in projections if shape.qkv_bias),
        *(each.norm for each in rotated if shape.qk_norm),
        *(each.rope(lut) for each in rotated),
    )
    return ProgramPlan(name or kind, arguments, steps, _grid(rows), kind, rows or 1)


def _gate_arguments(shape: ModelShape, rows: int | None) -> Rows:
    """Arguments of the projection that gates what attention gives, if there is one."""
    if not shape.attention_gate:
        return ()
    gate = ("attn_gate", _activation(rows, shape.q_dim), Role.OUTPUT)
    return ("wg", (shape.q_dim, shape.emb_dim), Role.WEIGHT), gate


def _gate_steps(shape: ModelShape, rows: int | None) -> tuple[LaunchPlan, ...]:
    if not shape.attention_gate:
        return ()
    return (projection("g", rows, shape.emb_dim, shape.q_dim, "normed", "wg", "attn_gate"),)


@dataclass(frozen=True)
class Projection:
    """The launches of queries, keys or values (`of`: q, k, v) after the normed rows.

    q_product -> q -> q_normed -> q_roped: the first only with a bias, the third only with QK-norm.
    """

    of: str
    shape: ModelShape
    rows: int | None
    heads: int

    @property
    def width(self) -> int:
        return self.heads * self.shape.head_dim

    @property
    def activation(self) -> tuple[int, ...]:
        return _activation(self.rows, self.width)

    @property
    def has_norm(self) -> bool:
        return self.shape.qk_norm and self.of != "v"

    @property
    def norm_width(self) -> int:
        """Elements that are normalized together: a head, or all heads."""
        return self.width if self.shape.qk_norm_spans_heads else self.shape.head_dim

    @property
    def product_output(self) -> str:
        """The argument that the product writes."""
        return f"{self.of}_product" if self.shape.qkv_bias else self.of

    @property
    def arguments(self) -> Rows:
        """Those of the product, the bias and the norm."""
        result = Role.OUTPUT if self.of == "v" else Role.INTERMEDIATE
        return (*self.product_arguments(result), *self.norm_arguments)

    def product_arguments(self, result_role: Role) -> Rows:
        """Arguments of the product and the bias. result_role: the role of what they make."""
        of, weight = self.of, (f"w{self.of}", (self.width, self.shape.emb_dim), Role.WEIGHT)
        result = (of, self.activation, result_role)
        if not self.shape.qkv_bias:
            return weight, result
        product = (self.product_output, self.activation, Role.INTERMEDIATE)
        return weight, product, (f"b{of}", (self.width,), Role.WEIGHT), result

    @property
    def norm_arguments(self) -> Rows:
        """Arguments of the norm, if there is one."""
        if not self.has_norm:
            return ()
        weight = (f"{self.of}_norm", (self.norm_width,), Role.WEIGHT)
        return weight, (f"{self.of}_normed", self.activation, Role.INTERMEDIATE)

    @property
    def product(self) -> LaunchPlan:
        x = "normed" if self.shape.norm_before else "x"
        sizes = self.shape.emb_dim, self.width
        return projection(self.of, self.rows, *sizes, x, f"w{self.of}", self.product_output)

    @property
    def bias(self) -> LaunchPlan:
        parameters = {"rows": self.rows, "cols": self.width}
        wiring = {"x": self.product_output, "bias": f"b{self.of}", "out": self.of}
        return LaunchPlan(f"{self.of}_bias", "bias_add", parameters, wiring)

    @property
    def norm(self) -> LaunchPlan:
        """RMSNorm of each head, or of all heads together."""
        sizes = {"cols": self.norm_width, "heads": self.width // self.norm_width}
        parameters = {"rows": self.rows, **sizes, **self.shape.norm_parameters}
        wiring = {"x": self.of, "weight": f"{self.of}_norm", "out": f"{self.of}_normed"}
        return LaunchPlan(f"{self.of}_norm", "rms_norm", parameters, wiring)

    def rope(self, lut: str) -> LaunchPlan:
        parameters = {"rows": self.rows, "head_dim": self.shape.head_dim, "n_heads": self.heads}
        parameters |= self.shape.rope_parameters
        read = f"{self.of}_normed" if self.has_norm else self.of
        return LaunchPlan(
            f"{self.of}_rope", "rope", parameters, {"x": read, "lut": lut, "out": f"{self.of}_roped"}
        )


def plan_after_attention(kind: str, shape: ModelShape, rows: int | None, name: str = "") -> ProgramPlan:
    """Output projection, residual, RMSNorm, SwiGLU FFN, residual, eight launches: attn_out, x -> x_next.

    If the model normalizes what is added to the residual, there are two more launches; without a norm before
    the FFN there is one less.
    """
    emb = shape.emb_dim
    arguments = bf16_table(
        *output_arguments(shape, rows, Role.INTERMEDIATE),
        *after_arguments(shape, rows, "attn"),
        ("x", _activation(rows, emb), Role.INPUT),
        ("res1", _activation(rows, emb), Role.INTERMEDIATE),
        *ffn_arguments(shape, rows, Role.INTERMEDIATE),
        *after_arguments(shape, rows, "ffn"),
        ("x_next", _activation(rows, emb), Role.OUTPUT),
    )
    steps = (
        output_projection(shape, rows),
        *residual_steps(shape, rows, "attn", "x", "proj", "res1"),
        *ffn_steps(shape, rows),
        *residual_steps(shape, rows, "ffn", "res1", "down", "x_next"),
    )
    return ProgramPlan(name or kind, arguments, steps, _grid(rows), kind, rows or 1)


def before_arguments(shape: ModelShape, rows: int | None, of: str) -> Rows:
    """Arguments of the RMSNorm before attention (of: "attn") or the FFN ("ffn"), if there is one."""
    if not shape.norm_before:
        return ()
    normed = ("normed", _activation(rows, shape.emb_dim), Role.INTERMEDIATE)
    return (f"{of}_norm", (shape.emb_dim,), Role.WEIGHT), normed


def after_arguments(shape: ModelShape, rows: int | None, of: str) -> Rows:
    """Arguments of the RMSNorm after attention (of: "attn") or the FFN ("ffn"), if there is one."""
    if not shape.norm_after:
        return ()
    normed = (f"{of}_normed", _activation(rows, shape.emb_dim), Role.INTERMEDIATE)
    return (f"{of}_post_norm", (shape.emb_dim,), Role.WEIGHT), normed


def residual_steps(
    shape: ModelShape, rows: int | None, of: str, residual: str, x: str, out: str
) -> tuple[LaunchPlan, ...]:
    """out = residual + x, or residual + RMSNorm of x."""
    added = f"{of}_normed" if shape.norm_after else x
    norm = norm_of_residual(f"{of}_post_norm", rows, shape, x, f"{of}_post_norm", added)
    sizes = {"rows": rows, "cols": shape.emb_dim, **shape.residual_parameters}
    add = LaunchPlan(f"{of}_add", "eltwise_add", sizes, {"a": residual, "b": added, "out": out})
    return (norm, add) if shape.norm_after else (add,)


def plan_before_conv(kind: str, shape: ModelShape, rows: int | None, name: str = "") -> ProgramPlan:
    """RMSNorm, three projections, and the gate before a short convolution, five launches: x -> gated, conv_c.

    `gated` is what the convolution reads: the host keeps a row of it for each position. The third projection
    is the gate behind the convolution. All three are as wide as queries are, as is what a device has of them.
    """
    emb, width = shape.emb_dim, shape.q_dim
    activation = _activation(rows, width)
    arguments = bf16_table(
        ("x", _activation(rows, emb), Role.INPUT),
        *before_arguments(shape, rows, "attn"),
        *((f"w_{of}", (width, emb), Role.WEIGHT) for of in CONV_PROJECTIONS),
        ("conv_b", activation, Role.INTERMEDIATE),
        ("conv_x", activation, Role.INTERMEDIATE),
        ("conv_c", activation, Role.OUTPUT),
        ("gated", activation, Role.OUTPUT),
    )
    steps = (
        norm_of_residual("rms_norm", rows, shape, "x", "attn_norm"),
        *(projection(of, rows, emb, width, "normed", f"w_{of}", of) for of in CONV_PROJECTIONS),
        _gate("conv_gate", shape, rows, "conv_b", "conv_x", "gated"),
    )
    return ProgramPlan(name or kind, arguments, steps, _grid(rows), kind, rows or 1)


CONV_PROJECTIONS = ("conv_b", "conv_c", "conv_x")
"""B, C and x of a short convolution: y = C conv(B x)."""


def plan_conv(kind: str, shape: ModelShape, rows: int | None, name: str = "") -> ProgramPlan:
    """A short convolution and the gate behind it, two launches: conv_rows, conv_c -> attn_out.

    conv_rows: each row of `gated` after the rows before it that the convolution reads, the oldest first. The
    result is named as that of attention, whose place it takes.
    """
    activation = _activation(rows, shape.q_dim)
    lead = () if rows is None else (rows,)
    arguments = bf16_table(
        ("conv_rows", (*lead, shape.conv_taps, shape.q_dim), Role.INPUT),
        ("w_conv", (shape.conv_taps, shape.q_dim), Role.WEIGHT),
        ("conv", activation, Role.INTERMEDIATE),
        ("conv_c", activation, Role.INPUT),
        ("attn_out", activation, Role.OUTPUT),
    )
    sizes = {"rows": rows, "cols": shape.q_dim, "taps": shape.conv_taps}
    wiring = {"rows": "conv_rows", "weight": "w_conv", "out": "conv"}
    steps = (
        LaunchPlan("conv", "short_conv", sizes, wiring),
        _gate("conv_output", shape, rows, "conv_c", "conv", "attn_out"),
    )
    return ProgramPlan(name or kind, arguments, steps, (), kind, rows or 1)


def _gate(label: str, shape: ModelShape, rows: int | None, gate: str, x: str, out: str) -> LaunchPlan:
    """out = gate * x."""
    parameters = {"rows": rows, "cols": shape.q_dim, "activation": NO_ACTIVATION}
    return LaunchPlan(label, "swiglu", parameters, {"gate": gate, "up": x, "out": out})


def output_arguments(shape: ModelShape, rows: int | None, result_role: Role) -> Rows:
    """Arguments of the output projection. made: the role of its result."""
    return (
        ("attn_out", _activation(rows, shape.q_dim), Role.INPUT),
        ("wo", (shape.emb_dim, shape.q_dim), Role.WEIGHT),
        ("proj", _activation(rows, shape.emb_dim), result_role),
    )


def output_projection(shape: ModelShape, rows: int | None) -> LaunchPlan:
    return projection("o", rows, shape.q_dim, shape.emb_dim, "attn_out", "wo", "proj")


def ffn_arguments(shape: ModelShape, rows: int | None, result_role: Role) -> Rows:
    """Arguments of the FFN with its norm, without its inputs. made: the role of its result."""
    emb, hidden = shape.emb_dim, shape.hidden_dim
    return (
        *before_arguments(shape, rows, "ffn"),
        ("w_gate", (hidden, emb), Role.WEIGHT),
        ("gate", _activation(rows, hidden), Role.INTERMEDIATE),
        ("w_up", (hidden, emb), Role.WEIGHT),
        ("up", _activation(rows, hidden), Role.INTERMEDIATE),
        ("swiglu", _activation(rows, hidden), Role.INTERMEDIATE),
        ("w_down", (emb, hidden), Role.WEIGHT),
        ("down", _activation(rows, emb), result_role),
    )


def ffn_steps(shape: ModelShape, rows: int | None) -> tuple[LaunchPlan, ...]:
    emb, hidden = shape.emb_dim, shape.hidden_dim
    gated = {"gate": "gate", "up": "up", "out": "swiglu"}
    x = "normed" if shape.norm_before else "res1"
    return (
        *((norm_of_residual("ffn_norm", rows, shape, "res1", "ffn_norm"),) if shape.norm_before else ()),
        projection("gate", rows, emb, hidden, x, "w_gate", "gate"),
        projection("up", rows, emb, hidden, x, "w_up", "up"),
        LaunchPlan("swiglu", "swiglu", {"rows": rows, "cols": hidden} | shape.activation_parameters, gated),
        projection("down", rows, hidden, emb, "swiglu", "w_down", "down"),
    )


def _attention(name: str, shape: ModelShape, rows: int) -> ProgramPlan:
    """Causal attention of a prompt, grouped query heads: q_roped, k_roped, v -> attn_out, laid out as
    q_roped.

    One launch, never stitched with others: its many channels make mlir-air's `air-opt-shim-dma-bds` pass grow
    faster than linearly with the launches of a module (more than ten minutes at nine launches).
    """
    arguments = bf16_table(
        ("q_roped", (rows, shape.q_dim), Role.INPUT),
        ("k_roped", (rows, shape.kv_dim), Role.INPUT),
        ("v", (rows, shape.kv_dim), Role.INPUT),
        ("attn_out", (rows, shape.q_dim), Role.OUTPUT),
    )
    parameters = {
        "lq": rows,
        "lk": rows,
        "n_heads": shape.n_heads,
        "n_kv_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        **shape.attention_parameters,
    }
    wiring = {"q": "q_roped", "k": "k_roped", "v": "v", "out": "attn_out"}
    step = LaunchPlan("flash_attention", "flash_attention", parameters, wiring)
    return ProgramPlan(name, arguments, (step,), ATTENTION_OPTIONS, name, rows)


def plan_lm_head(kind: str, shape: ModelShape, rows: int | None, name: str = "") -> ProgramPlan:
    """The logits of a token, or of rows of them: x, lm_head_i (Vp/8, E) -> logits_i; Vp is V padded.

    Eight launches, as mlir-air runs its LM heads: one task of a shim DMA queue repeats at most 255 times.
    """
    emb, partitions = shape.emb_dim, range(LM_HEAD_PARTITIONS)
    part = padded_vocab_size(shape) // LM_HEAD_PARTITIONS
    arguments = bf16_table(
        ("x", _activation(rows, emb), Role.INPUT),
        *((f"lm_head_{i}", (part, emb), Role.WEIGHT) for i in partitions),
        *((f"logits_{i}", _activation(rows, part), Role.OUTPUT) for i in partitions),
    )
    steps = tuple(
        _product(f"partition_{i}", rows, emb, part, "x", f"lm_head_{i}", f"logits_{i}") for i in partitions
    )
    return ProgramPlan(name or kind, arguments, steps, _grid(rows), kind, rows or 1)


LUT, ROW = ("rope_lut", Role.LUT), ("rope_row", Role.INPUT)


PLANS: dict[str, Callable[[ModelShape, int], ProgramPlan]] = {
    "rms_gemms_rope": lambda shape, seq_len: plan_before_attention("rms_gemms_rope", shape, seq_len, LUT),
    "flash_attn": lambda shape, seq_len: _attention("flash_attn", shape, seq_len),
    "o_ffn": lambda shape, seq_len: plan_after_attention("o_ffn", shape, seq_len),
    "rms_gemv_rope": lambda shape, _: plan_before_attention("rms_gemv_rope", shape, None, ROW),
    "o_gemv_ffn": lambda shape, _: plan_after_attention("o_gemv_ffn", shape, None),
    "lm_head_gemv": lambda shape, _: plan_lm_head("lm_head_gemv", shape, None),
}
"""Every program by name: from the model's shape and the compiled prompt length to its plan."""
CONV_PLANS: dict[str, Callable[[ModelShape, int], ProgramPlan]] = {
    "rms_gemms_gate": lambda shape, seq_len: plan_before_conv("rms_gemms_gate", shape, seq_len),
    "short_conv": lambda shape, seq_len: plan_conv("short_conv", shape, seq_len),
    "rms_gemv_gate": lambda shape, _: plan_before_conv("rms_gemv_gate", shape, None),
    "short_conv_row": lambda shape, _: plan_conv("short_conv_row", shape, None),
}
"""Those of layers with a short convolution in place of attention, in models that have such layers. The output
projection and the FFN are the same in both."""


def plan_programs(
    shape: ModelShape, seq_len: int, only: Collection[str] | None = None
) -> dict[str, ProgramPlan]:
    """The plans of a model's programs for prompts of `seq_len` tokens, by name. only: names of a subset.

    Raises ValueError for an unknown name in `only`. Does not check that the kernels accept the shape
    (`shape_limits` does).
    """
    plans = PLANS | (CONV_PLANS if shape.conv_taps else {})
    unknown = sorted(set(only or ()) - set(plans))
    if unknown:
        raise ValueError(f"no program named '{unknown[0]}'; there are: {', '.join(plans)}")
    return {name: plan(shape, seq_len) for name, plan in plans.items() if only is None or name in only}
