"""The steps of a forward pass: which there are, and where ours has them, as the programs' plans have it; what
each reads, and what transformers has for it, as is written here, so that a launch wired wrongly shows.

A launch that a plan names and KNOWN does not is refused: whoever gives the programs a launch says here what
transformers calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES
from aerie.multi_launch_builder import ModelShape, legal_seq_len
from aerie.multi_launch_builder.program import ProgramPlan
from aerie.multi_launch_builder.program import Step as Launch
from aerie.multi_launch_builder.programs import plan_programs


class Bench(Protocol):
    """What steps are computed with beside modules: bench.Bench."""

    @property
    def head_dim(self) -> int: ...

    def rotate(self, x: Any) -> Any: ...

    def attend(self, attention: Any, query: Any, keys: Any, values: Any) -> Any: ...


Compute = Callable[[Bench, Any, Mapping[str, Any]], Any]
"""From the bench, transformers' layer or model, and values by name, to the step's value, (rows, width)."""


Hook = tuple[str, str]
"""The path of a module in transformers' layer or model, and whether the value goes "in" or "out" there."""

BEFORE, AFTER = "before", "after"
"""A layer's programs: before attention, and after it."""
KEYS, VALUES = "k_roped", "v"
"""What the first of them makes for the KV cache, of all positions of a call."""


@dataclass(frozen=True)
class Source:
    """Where ours has a step's value: an argument of the layer's program before attention, or after it."""

    part: str
    argument: str


@dataclass(frozen=True)
class Step:
    """A step of the forward pass: how to compute it, and where its value is found in ours and in theirs.

    meaning: what it is, for readers. inputs: steps whose values it reads. instead_of: the step that those
    after it would read, were it not there. source: where our value is; None
    where it is no argument of a program. hook: where transformers' value is seen in its own run; None where
    no module has it, and `compute` makes it again. same_as: the step that has the same value in that run.
    product: the path of the module where the step is a matrix product, else empty.
    """

    name: str
    meaning: str
    compute: Compute
    inputs: tuple[str, ...] = ()
    instead_of: str = ""
    source: Source | None = None
    hook: Hook | None = None
    same_as: str = ""
    product: str = ""


def _module(path: str) -> Compute:
    """The module at `path` of the layer or model, on the step's one input."""

    def compute(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return layer.get_submodule(path)(next(iter(given.values())))

    return compute


def _same(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return next(iter(given.values()))


def _sum(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    first, second = given.values()
    return first + second


def _rotate(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return bench.rotate(next(iter(given.values())))


def _attend(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:
    return bench.attend(layer.self_attn, given["rope_q"], given["keys"], given["values"])


def _swiglu(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
    return layer.mlp.act_fn(given["gate"]) * given["up"]


def _product_alone(path: str) -> Compute:
    """The matrix product of the module at `path`, without the bias that it adds."""

    def compute(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return next(iter(given.values())) @ layer.get_submodule(path).weight.T

    return compute


def _bias(path: str) -> Compute:
    """The bias of the module at `path`, added to the step's one input."""

    def compute(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:  # noqa: ARG001
        return next(iter(given.values())) + layer.get_submodule(path).bias

    return compute


def _of_heads(path: str) -> Compute:
    """The module at `path`, of each head of the step's one input, (rows, heads * head_dim)."""

    def compute(bench: Bench, layer: Any, given: Mapping[str, Any]) -> Any:
        x = next(iter(given.values()))
        heads = x.reshape(x.shape[0], -1, bench.head_dim)
        return layer.get_submodule(path)(heads).reshape(x.shape)

    return compute


def _norm(name: str, read: str, meaning: str, path: str) -> Step:
    return Step(name, meaning, _module(path), (read,), hook=(path, "out"))


def _product(name: str, read: str, meaning: str, path: str) -> Step:
    return Step(name, meaning, _module(path), (read,), hook=(path, "out"), product=path)


def _of_qkv(name: str, meaning: str) -> dict[str, Step]:
    """What the programs do to get queries, keys or values, RoPE aside."""
    path, norm = f"self_attn.{name}_proj", f"self_attn.{name}_norm"
    return {
        name: _product(name, "attn_norm", f"{meaning} projection", path),
        f"{name}_bias": Step(
            f"{name}_bias", f"the {meaning} projection and its bias",
            _bias(path), (name,), name, hook=(path, "out"),
        ),
        f"{name}_norm": Step(
            f"{name}_norm", f"RMSNorm of each {meaning} head",
            _of_heads(norm), (name,), name, hook=(norm, "out"),
        ),
    }  # fmt: skip


_INPUT_NORM, _FFN_NORM = "input_layernorm", "post_attention_layernorm"

KNOWN: dict[str, Step] = {
    "rms_norm": _norm("attn_norm", "input", "RMSNorm before attention", _INPUT_NORM),
    **_of_qkv("q", "query"),
    **_of_qkv("k", "key"),
    **_of_qkv("v", "value"),
    "q_rope": Step("rope_q", "rotary position embedding of the queries", _rotate, ("q",)),
    "k_rope": Step("rope_k", "rotary position embedding of the keys", _rotate, ("k",)),
    "o": _product("o", "attention", "output projection of attention", "self_attn.o_proj"),
    "attn_add": Step(
        "attn_residual", "the layer's input plus that", _sum, ("input", "o"), hook=(_FFN_NORM, "in")
    ),
    "ffn_norm": _norm("ffn_norm", "attn_residual", "RMSNorm before the feed-forward network", _FFN_NORM),
    "gate": _product("gate", "ffn_norm", "gate projection", "mlp.gate_proj"),
    "up": _product("up", "ffn_norm", "up projection", "mlp.up_proj"),
    "swiglu": Step("swiglu", "SiLU of gate, times up", _swiglu, ("gate", "up"), hook=("mlp.down_proj", "in")),
    "down": _product("down", "swiglu", "down projection", "mlp.down_proj"),
    "ffn_add": Step(
        "ffn_residual", "the two added: the layer's output", _sum, ("attn_residual", "down"), hook=("", "out")
    ),
}
"""What transformers has for a launch, by its label in a plan without the kernel that makes a product."""

_INPUT = Step(
    "input", "what the layer is given: the output of the one before it",
    _same, ("before",), source=Source(BEFORE, "x"), hook=("", "in"),
)  # fmt: skip
_CACHED = (
    Step("cache_k", "the keys, as the KV cache holds them", _same, ("rope_k",)),
    Step("cache_v", "the values, as the KV cache holds them", _same, ("v",)),
)
_ATTENTION = Step(
    "attention", "softmax of the scores, times the values", _attend,
    ("rope_q", "keys", "values"), source=Source(AFTER, "attn_out"), hook=("self_attn.o_proj", "in"),
)  # fmt: skip
"""Between the two programs, whoever attends: what it gives is what the second program is given."""

HEAD_STEPS = (
    Step(
        "final_norm", "RMSNorm after the last layer",
        _module("model.norm"), ("last",), hook=("model.norm", "out"),
    ),
    Step(
        "logits", "LM head: a score for each token of the vocabulary",
        _module("lm_head"), ("final_norm",), hook=("lm_head", "out"), product="lm_head",
    ),
)  # fmt: skip
"""After the layers, for the last position only. Ours are what lm_head_gemv is given, and what it gives."""

MEANINGS = {step.name: step.meaning for step in (_INPUT, *KNOWN.values(), *_CACHED, _ATTENTION, *HEAD_STEPS)}


@cache
def layer_steps(shape: ModelShape) -> tuple[Step, ...]:
    """The steps of a layer, in the order they run, from the plans of a model of this shape.

    "before" is what the step before the layer gave; "keys" and "values" are those of every position so far,
    as the projections made them. Raises ValueError for a launch that KNOWN has not.
    """
    plans = plan_programs(shape, legal_seq_len(1))
    return plan_steps(plans["rms_gemms_rope"], plans["o_ffn"])


def plan_steps(before: ProgramPlan, after: ProgramPlan) -> tuple[Step, ...]:
    """As layer_steps, of a layer's two programs, of however many rows."""
    first = _with_sources(before, BEFORE, ("x",))
    last = _with_sources(after, AFTER, ("x", "attn_out"))
    latest: dict[str, str] = {}
    steps = []
    for step in (_INPUT, *first, *_CACHED, _ATTENTION, *last):
        inputs = tuple(latest.get(name, name) for name in step.inputs)
        same_as = inputs[0] if step in _CACHED else ""
        steps.append(replace(step, inputs=inputs, same_as=same_as))
        if step.instead_of:
            latest[step.instead_of] = step.name
    return tuple(steps)


def _with_sources(plan: ProgramPlan, part: str, given: Iterable[str]) -> Iterator[Step]:
    """A step for each launch, and where its value is. `given`: the activations that the program is given."""
    labels, made = {_label(launch) for launch in plan.steps}, set(given)
    for launch in plan.steps:
        known, out = _known(plan, launch), _result(plan, launch, made)
        if f"{_label(launch)}_bias" in labels:
            known = replace(known, compute=_product_alone(known.product), hook=None)
        made.add(out)
        yield replace(known, source=Source(part, out))


def _result(plan: ProgramPlan, launch: Launch, made: Collection[str]) -> str:
    """The argument that a launch writes: each has one of its own, so that the ladder sees what it made."""
    written = [
        name
        for name in launch.wiring.values()
        if name not in made and plan.arguments[name].role in OVERWRITTEN_ROLES
    ]
    if len(written) != 1:
        raise ValueError(
            f"launch '{launch.label}' of program '{plan.name}' writes {len(written)} arguments that no "
            "launch before it has written, and the ladder compares one for each; give its result an argument"
        )
    return written[0]


def _label(launch: Launch) -> str:
    return launch.label.removesuffix("_gemm").removesuffix("_gemv")


def _known(plan: ProgramPlan, launch: Launch) -> Step:
    label = _label(launch)
    if label not in KNOWN:
        raise ValueError(
            f"launch '{label}' of program '{plan.name}' is no step that the ladder knows, so nothing would "
            "compare it with transformers; say in verify/steps.py: KNOWN what transformers has for it"
        )
    return KNOWN[label]
