"""The layer steps of a forward pass. The programs' plans say which there are, and where our values are. This
file says what each reads, and what transformers has for it, so that a wrongly wired launch shows.

A launch that KNOWN lacks is refused: a new launch of a program needs an entry here with transformers' name
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from aerie.engine.config import ModelConfig
from aerie.kernel_builder.arguments import WRITTEN_ROLES
from aerie.multi_launch_builder import ModelShape, round_up_seq_len
from aerie.multi_launch_builder.delta_programs import plan_before_delta
from aerie.multi_launch_builder.program import LaunchPlan as Launch
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.shapes import GATE_COLUMNS
from aerie.verify.fused_modules import module_part, module_path, weight_of


class Bench(Protocol):
    """What steps need for their computation besides modules: step_reference.StepReference."""

    @property
    def head_dim(self) -> int: ...

    def rotate(self, attention: Any, x: Any) -> Any: ...

    def attend(self, attention: Any, query: Any, keys: Any, values: Any) -> Any: ...

    def convolve(self, conv: Any, rows: Any) -> Any: ...

    def linear_attention(self, module: Any, mixed: Any, gates: Any, z: Any) -> Any: ...


Compute = Callable[[Bench, Any, Mapping[str, Any]], Any]
"""From the step computer, transformers' layer or model, and values by name, to the step's value, (rows,
width).
"""


Hook = tuple[str, str]
"""The path of a module in transformers' layer or model, and whether the value is its input ("in") or output
("out").
"""

BEFORE, AFTER = "before", "after"
"""A layer's programs: before attention, and after it."""
KEYS, VALUES = "k_roped", "v"
"""The outputs of the first one for the KV cache, of all positions of a call."""
STATE = "gated"
"""The output of the first one for the state of a short convolution, of all positions of a call."""
DELTA_STATE, DELTA_GATES = "delta_qkv", "delta_ab"
"""The outputs of the first one that linear attention keeps, of all positions of a call."""


@dataclass(frozen=True)
class ValueSource:
    """Where our value of a step is: an argument of the layer's program before attention, or after it."""

    part: str
    argument: str


@dataclass(frozen=True)
class LayerStep:
    """A step of the forward pass: how to compute it, and where its value is in our run and in transformers'.

    meaning: what it is, for readers. inputs: steps whose values it reads. replaces: the step that later steps
    would read without this one. source: where our value is; None if it is no argument of a program.
    module_hook:
    where transformers' value appears in its own run; None if no module has it, and `compute` computes it
    again.
    equals:
    the step with the same value in that run. product: the path of the module if the step is a matrix product,
    else "".
    """

    name: str
    meaning: str
    compute: Compute
    inputs: tuple[str, ...] = ()
    replaces: str = ""
    source: ValueSource | None = None
    module_hook: Hook | None = None
    equals: str = ""
    product: str = ""


def _module(path: str) -> Compute:
    """The module at `path` of the layer or model, applied to the step's one input."""

    def compute(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
        module, columns = module_part(layer, path)
        return module(next(iter(values.values())))[..., columns]

    return compute


def _same(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return next(iter(values.values()))


def _sum(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
    first, second = values.values()
    return first + second * getattr(layer, "residual_multiplier", 1)


def _rotate(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:
    return bench.rotate(layer.self_attn, next(iter(values.values())))


def _attend(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:
    return bench.attend(layer.self_attn, values["rope_q"], values["keys"], values["values"])


def _swiglu(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
    import torch

    mlp = layer.get_submodule(module_path(layer, "mlp"))
    names = ("act_fn", "activation_fn", "activation")
    activation = next((getattr(mlp, name) for name in names if hasattr(mlp, name)), torch.nn.functional.silu)
    return activation(values["gate"]) * values["up"]


def _gate(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return values["conv_b"] * values["conv_x"]


def _convolve(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:
    return values["conv_c"] * bench.convolve(layer.conv, values["states"])


def _attend_with_gate(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:
    import torch

    return _attend(bench, layer, values) * torch.sigmoid(values["attn_gate"])


def _delta_gates(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
    """What decays, then what rates are made of, then zeros up to the width of our product."""
    import torch

    module, x = layer.linear_attn, values["attn_norm"]
    both = torch.cat([module.in_proj_a(x), module.in_proj_b(x)], dim=-1)
    return torch.nn.functional.pad(both, (0, -both.shape[-1] % GATE_COLUMNS))


def _linear_attention(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:
    return bench.linear_attention(layer.linear_attn, values["states"], values["gates"], values["delta_z"])


def _product_alone(path: str) -> Compute:
    """The matrix product of the module at `path`, without its bias."""

    def compute(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return next(iter(values.values())) @ weight_of(layer, path).T

    return compute


def _bias(path: str) -> Compute:
    """The bias of the module at `path`, added to the step's one input."""

    def compute(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return next(iter(values.values())) + layer.get_submodule(path).bias

    return compute


def _norm_of_heads(path: str) -> Compute:
    """The norm at `path`, applied to each head of the step's one input, (rows, heads * head_dim), or to as
    many heads together as its weight is wide."""

    def compute(bench: Bench, layer: Any, values: Mapping[str, Any]) -> Any:  # noqa: ARG001
        x, norm = next(iter(values.values())), layer.get_submodule(module_path(layer, path))
        return norm(x.reshape(x.shape[0], -1, len(norm.weight))).reshape(x.shape)

    return compute


def _norm(name: str, read: str, meaning: str, path: str, replaces: str = "") -> LayerStep:
    return LayerStep(name, meaning, _module(path), (read,), replaces, module_hook=(path, "out"))


def _product(name: str, read: str, meaning: str, path: str) -> LayerStep:
    return LayerStep(name, meaning, _module(path), (read,), module_hook=(path, "out"), product=path)


def _qkv_steps(name: str, meaning: str) -> dict[str, LayerStep]:
    """The programs' steps for queries, keys or values, without RoPE."""
    path, norm = f"self_attn.{name}_proj", f"self_attn.{name}_norm"
    return {
        name: _product(name, "attn_norm", f"{meaning} projection", path),
        f"{name}_bias": LayerStep(
            f"{name}_bias", f"the {meaning} projection and its bias",
            _bias(path), (name,), name, module_hook=(path, "out"),
        ),
        f"{name}_norm": LayerStep(
            f"{name}_norm", f"RMSNorm of each {meaning} head, or of all together",
            _norm_of_heads(norm), (name,), name, module_hook=(norm, "out"),
        ),
    }  # fmt: skip


_INPUT_NORM, _FFN_NORM = "input_layernorm", "post_attention_layernorm"
_FFN_NORM_OF_FOUR = "pre_feedforward_layernorm"
"""The norm before the FFN where another one, after attention, has the name of Llama's."""

KNOWN: dict[str, LayerStep] = {
    "rms_norm": _norm("attn_norm", "input", "RMSNorm before attention", _INPUT_NORM),
    **_qkv_steps("q", "query"),
    **_qkv_steps("k", "key"),
    **_qkv_steps("v", "value"),
    "q_rope": LayerStep("rope_q", "rotary position embedding of the queries", _rotate, ("q",)),
    "k_rope": LayerStep("rope_k", "rotary position embedding of the keys", _rotate, ("k",)),
    "conv_b": _product("conv_b", "attn_norm", "projection B of a convolution", "conv.b_proj"),
    "conv_c": _product("conv_c", "attn_norm", "projection C of a convolution", "conv.c_proj"),
    "conv_x": _product("conv_x", "attn_norm", "projection x of a convolution", "conv.x_proj"),
    "conv_gate": LayerStep("conv_gate", "B times x, which is convolved", _gate, ("conv_b", "conv_x")),
    "g": _product("attn_gate", "attn_norm", "projection of attention's gate", "self_attn.g_proj"),
    "delta_qkv": _product(
        "delta_qkv", "attn_norm", "queries, keys and values of linear attention", "linear_attn.in_proj_qkv"
    ),
    "delta_z": _product("delta_z", "attn_norm", "gate of linear attention", "linear_attn.in_proj_z"),
    "delta_ab": LayerStep(
        "delta_ab", "what decays and rates of linear attention are made of", _delta_gates, ("attn_norm",)
    ),
    "o": _product("o", "attention", "output projection of attention", "self_attn.o_proj"),
    "attn_post_norm": _norm("attn_post_norm", "o", "RMSNorm of that", _FFN_NORM, "o"),
    "attn_add": LayerStep(
        "attn_residual", "the layer's input plus that", _sum, ("input", "o"), module_hook=(_FFN_NORM, "in")
    ),
    "ffn_norm": _norm("ffn_norm", "attn_residual", "RMSNorm before the feed-forward network", _FFN_NORM),
    "gate": _product("gate", "ffn_norm", "gate projection", "mlp.gate_proj"),
    "up": _product("up", "ffn_norm", "up projection", "mlp.up_proj"),
    "swiglu": LayerStep(
        "swiglu", "SiLU of gate, times up", _swiglu, ("gate", "up"), module_hook=("mlp.down_proj", "in")
    ),
    "down": _product("down", "swiglu", "down projection", "mlp.down_proj"),
    "ffn_post_norm": _norm("ffn_post_norm", "down", "RMSNorm of that", "post_feedforward_layernorm", "down"),
    "ffn_add": LayerStep(
        "ffn_residual",
        "the two added: the layer's output",
        _sum,
        ("attn_residual", "down"),
        module_hook=("", "out"),
    ),
}
"""Transformers' part for a launch, by its label in a plan without the kernel that computes a product."""

_UNNORMED = {"attn_norm": "input", "ffn_norm": "attn_residual"}
"""What is read in place of a norm's output by a model without this norm."""

_INPUT = LayerStep(
    "input", "the layer's input: the output of the layer before it",
    _same, ("before",), source=ValueSource(BEFORE, "x"), module_hook=("", "in"),
)  # fmt: skip
_CACHED = (
    LayerStep("cache_k", "the keys, as the KV cache holds them", _same, ("rope_k",)),
    LayerStep("cache_v", "the values, as the KV cache holds them", _same, ("v",)),
)
_ATTENTION = LayerStep(
    "attention", "softmax of the scores, times the values", _attend,
    ("rope_q", "keys", "values"), source=ValueSource(AFTER, "attn_out"), module_hook=("self_attn.o_proj",
    "in"),
)  # fmt: skip
"""Between the two programs, wherever attention runs: its value is the input of the second program."""
_STATE = LayerStep("state", "what is convolved, as the layer's state holds it", _same, ("conv_gate",))
_CONV = LayerStep(
    "conv", "C times the convolution of B x", _convolve,
    ("conv_c", "states"), source=ValueSource(AFTER, "attn_out"), module_hook=("conv.out_proj", "in"),
)  # fmt: skip
"""In the place of attention, between the two programs of a layer with a short convolution."""
_GATED_ATTENTION = replace(
    _ATTENTION,
    meaning="softmax of the scores, times the values, times the sigmoid of its gate",
    compute=_attend_with_gate,
    inputs=("rope_q", "keys", "values", "attn_gate"),
)
_DELTA = LayerStep(
    "delta", "linear attention: convolution, delta rule, norm of heads and gate", _linear_attention,
    ("delta_z", "states", "gates"), source=ValueSource(AFTER, "attn_out"),
    module_hook=("linear_attn.out_proj", "in"),
)  # fmt: skip
_OUTPUTS = {
    _CONV.name: _product("o", "conv", "output projection of the convolution", "conv.out_proj"),
    _DELTA.name: _product("o", "delta", "output projection of linear attention", "linear_attn.out_proj"),
}
"""What reads it, in layers without attention, by its name."""

HEAD_STEPS = (
    LayerStep(
        "final_norm", "RMSNorm after the last layer",
        _module("model.norm"), ("last",), module_hook=("model.norm", "out"),
    ),
    LayerStep(
        "logits", "LM head: a score for each token of the vocabulary",
        _module("lm_head"), ("final_norm",), module_hook=("lm_head", "out"), product="lm_head",
    ),
)  # fmt: skip
"""The steps after the layers, for the last position only. Our values are the input and output of
lm_head_gemv.
"""
DIVIDED_LOGITS = LayerStep(
    "divided_logits", "the logits divided by a factor of the model",
    lambda _, model, values: values["logits"] / model.config.logits_scaling,
    ("logits",), module_hook=("", "out"),
)  # fmt: skip
"""The last step of a model that has such a factor."""


def head_steps(model: Any) -> tuple[LayerStep, ...]:
    """The steps after the layers of transformers' `model`, a ...ForCausalLM."""
    is_divided = getattr(model.config, "logits_scaling", 1) != 1
    return (*HEAD_STEPS, DIVIDED_LOGITS) if is_divided else HEAD_STEPS


MEANINGS = {
    step.name: step.meaning
    for step in (
        _INPUT,
        *KNOWN.values(),
        *_CACHED,
        _ATTENTION,
        _STATE,
        _CONV,
        _DELTA,
        *HEAD_STEPS,
        DIVIDED_LOGITS,
    )
}


@cache
def layer_steps(shape: ModelShape, is_conv: bool = False) -> tuple[LayerStep, ...]:
    """The steps of a layer with attention, or of one without, in order, from the plans of a model of this
    shape.

    "before" is the value of the step before the layer; "keys", "values", "states" and "gates" are those of
    every position so far, as the projections computed them. Raises ValueError for a launch that KNOWN lacks.
    """
    rows = round_up_seq_len(1)
    plans = plan_programs(shape, rows)
    if is_conv and shape.has_delta:
        before = plan_before_delta("rms_gemms_delta", shape, rows)
        return plan_steps(before, plans["o_ffn"], (), _DELTA)
    if shape.attention_gate:
        return plan_steps(plans["rms_gemms_rope"], plans["o_ffn"], between=_GATED_ATTENTION)
    if is_conv:
        return plan_steps(plans["rms_gemms_gate"], plans["o_ffn"], (_STATE,), _CONV)
    return plan_steps(plans["rms_gemms_rope"], plans["o_ffn"])


def steps_of_layers(config: ModelConfig) -> list[tuple[LayerStep, ...]]:
    """The steps of each layer."""
    layers = range(config.num_hidden_layers)
    return [layer_steps(config.shape, layer in config.layers_with_conv) for layer in layers]


def plan_steps(
    before: ProgramPlan,
    after: ProgramPlan,
    stored: tuple[LayerStep, ...] = _CACHED,
    between: LayerStep = _ATTENTION,
) -> tuple[LayerStep, ...]:
    """Return the steps of a layer's two programs with any number of rows. stored, between: the steps of what
    the host keeps of the first one, and of the program or the host's work between the two."""
    first = tuple(_with_sources(before, BEFORE, ("x",)))
    last = tuple(_with_sources(after, AFTER, ("x", "attn_out")))
    if output := _OUTPUTS.get(between.name):
        last = tuple(
            replace(output, source=step.source) if step.name == output.name else step for step in last
        )
    in_order = tuple(map(_placed(first, last), (_INPUT, *first, *stored, between, *last)))
    names = {step.name for step in in_order}
    latest = {norm: read for norm, read in _UNNORMED.items() if norm not in names}
    steps = []
    for step in in_order:
        inputs = tuple(latest.get(name, name) for name in step.inputs)
        same_as = inputs[0] if step in stored else ""
        steps.append(replace(step, inputs=inputs, equals=same_as))
        if step.replaces:
            latest[step.replaces] = step.name
    return tuple(steps)


def _placed(*programs: Iterable[LayerStep]) -> Callable[[LayerStep], LayerStep]:
    """Says of a step where transformers has its value in layers with norms where these programs have them:
    the residual after attention is what the norm before the FFN reads, or the FFN itself."""
    names = {step.name for steps in programs for step in steps}
    if "attn_post_norm" not in names:
        return lambda step: step
    path = _FFN_NORM_OF_FOUR if "ffn_norm" in names else "mlp"
    changed: dict[str, Callable[[LayerStep], LayerStep]] = {
        "attn_residual": lambda step: replace(step, module_hook=(path, "in")),
        "ffn_norm": lambda step: replace(step, compute=_module(path), module_hook=(path, "out")),
    }
    return lambda step: changed[step.name](step) if step.name in changed else step


def _with_sources(plan: ProgramPlan, part: str, inputs: Iterable[str]) -> Iterator[LayerStep]:
    """A step for each launch, and where its value is. given: the activations that the program receives."""
    labels, results = {_label(launch) for launch in plan.launches}, set(inputs)
    for launch in plan.launches:
        step, out = _find_step(plan, launch), _result(plan, launch, results)
        if f"{_label(launch)}_bias" in labels:
            step = replace(step, compute=_product_alone(step.product), module_hook=None)
        results.add(out)
        yield replace(step, source=ValueSource(part, out))


def _result(plan: ProgramPlan, launch: Launch, results: Collection[str]) -> str:
    """The argument that a launch writes. Each launch has its own, so that the layer check sees its result."""
    written = [
        name
        for name in launch.wiring.values()
        if name not in results and plan.arguments[name].role in WRITTEN_ROLES
    ]
    if len(written) != 1:
        raise ValueError(
            f"launch '{launch.label}' of program '{plan.name}' writes {len(written)} arguments that no "
            "launch before it has written, and the layer check compares one; give its result an argument"
        )
    return written[0]


def _label(launch: Launch) -> str:
    return launch.label.removesuffix("_gemm").removesuffix("_gemv")


def _find_step(plan: ProgramPlan, launch: Launch) -> LayerStep:
    label = _label(launch)
    if label not in KNOWN:
        raise ValueError(
            f"launch '{label}' of program '{plan.name}' is not a known layer step, so nothing would "
            "compare it with transformers; add it to KNOWN in verify/layer_steps.py"
        )
    return KNOWN[label]
