"""What a forward pass computes on its way: of ours, every argument of every program call; of theirs, hooks.

Neither changes what is computed. Ours is recorded around the model's runner, so what is seen is what the
very functions of `make run` pass on and get back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernel_builder.arguments import OVERWRITTEN_ROLES
from llama32_1b.numerics import BF16Array, F32Array
from llama32_1b.programs import ProgramRunner
from multi_launch_builder import Program

Call = dict[str, BF16Array]
"""One call of a program: its inputs as they were passed, all it wrote as it left it, by argument name."""


@dataclass
class CallRecorder:
    """A runner that keeps a copy of every call, and asks `inner` for intermediates as well.

    `calls` are by program name, in the order they came. The caller gets what `inner` would have given it.
    """

    inner: ProgramRunner
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        on_device: Collection[str] = (),  # noqa: ARG002  all is brought to the host and kept
        **arrays: Any,
    ) -> dict[str, Any]:
        table = program.arguments
        written = [argument.name for argument in table if argument.role in OVERWRITTEN_ROLES]
        given = {name: array.copy() for name, array in arrays.items()}
        results = self.inner.run(program, bo_key=bo_key, outputs=written, copy=copy, **arrays)
        self.calls[program.name].append(given | {name: array.copy() for name, array in results.items()})
        wanted = [table[slot].name for slot in table.output_indices] if outputs is None else outputs
        return {name: results[name] for name in wanted}

    def unfilled(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        return self.inner.unfilled(program, bo_key=bo_key)

    def preload(self, program: Program, /, *, bo_key: str, **static: Any) -> None:
        self.inner.preload(program, bo_key=bo_key, **static)

    def record(self) -> None:
        """Every call is made by itself, and looked at."""
        return


Captured = dict[tuple[int | None, str], F32Array]
"""Values by layer (None: outside of the layers) and step, one row per position."""

# Where a step's value is seen in transformers' module of a layer, and whether it goes in or comes out.
LAYER_HOOKS: Mapping[str, tuple[str, str]] = {
    "input": ("", "in"),
    "attn_norm": ("input_layernorm", "out"),
    "q": ("self_attn.q_proj", "out"),
    "k": ("self_attn.k_proj", "out"),
    "v": ("self_attn.v_proj", "out"),
    "attention": ("self_attn.o_proj", "in"),
    "o": ("self_attn.o_proj", "out"),
    "attn_residual": ("post_attention_layernorm", "in"),
    "ffn_norm": ("post_attention_layernorm", "out"),
    "gate": ("mlp.gate_proj", "out"),
    "up": ("mlp.up_proj", "out"),
    "swiglu": ("mlp.down_proj", "in"),
    "down": ("mlp.down_proj", "out"),
    "ffn_residual": ("", "out"),
}
HEAD_HOOKS: Mapping[str, tuple[str, str]] = {
    "final_norm": ("model.norm", "out"),
    "logits": ("lm_head", "out"),
}


def capture_reference(model: Any, token_ids: Sequence[int]) -> Captured:
    """Every step of transformers' LlamaForCausalLM `model` on `token_ids`, from one forward pass.

    The rotated queries and keys are no module's; they are made again by transformers' own function.
    """
    import torch

    captured: Captured = {}
    with torch.inference_mode(), _hooks(model, captured):
        model(torch.tensor([list(token_ids)]), use_cache=False)
    return captured


@contextmanager
def _hooks(model: Any, captured: Captured) -> Iterator[None]:
    with ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            for step, (path, side) in LAYER_HOOKS.items():
                stack.callback(_hook(layer.get_submodule(path), side, _keeper(captured, index, step)))
        for step, (path, side) in HEAD_HOOKS.items():
            stack.callback(_hook(model.get_submodule(path), side, _keeper(captured, None, step)))
        yield


def _keeper(captured: Captured, layer: int | None, step: str) -> Callable[[Any], None]:
    def keep(value: Any) -> None:
        captured[layer, step] = np.array(value[0].float().numpy())

    return keep


def _hook(module: Any, side: str, keep: Callable[[Any], None]) -> Callable[[], None]:
    """Call `keep` with what goes into `module` or comes out of it; returns what takes the hook away."""
    if side == "in":

        def before(_: Any, inputs: tuple[Any, ...]) -> None:
            keep(inputs[0])

        handle = module.register_forward_pre_hook(before)
    else:

        def after(_: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
            keep(output[0] if isinstance(output, tuple) else output)

        handle = module.register_forward_hook(after)
    remove: Callable[[], None] = handle.remove
    return remove
