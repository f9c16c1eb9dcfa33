"""One prompt through the model, with every step's value by layer: of ours, every argument of every program
call; of theirs, what hooks see.

Neither changes what is computed. Ours is recorded around the model's runner, so what is seen is what the very
functions of `make run` pass on and get back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aerie.engine.attention import KVCache
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.programs import ProgramRunner
from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES
from aerie.multi_launch_builder import Program
from aerie.verify.steps import HEAD_STEPS, LAYER_STEPS, Step

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
            for step in LAYER_STEPS:
                _watch(stack, layer, step, _keeper(captured, index, step.name))
        for step in HEAD_STEPS:
            _watch(stack, model, step, _keeper(captured, None, step.name))
        yield


def _watch(stack: ExitStack, module: Any, step: Step, keep: Callable[[Any], None]) -> None:
    """Hook the step into transformers' layer or model, for as long as the stack stands."""
    if step.hook:
        path, side = step.hook
        stack.callback(_hook(module.get_submodule(path), side, keep))


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


UNUSED = 4
"""Positions that the KV cache of decode has to spare, as in a generation: none of them may be looked at."""

StepValues = dict[str, F32Array]
"""By step: (rows, width) in float32, exactly the bf16 values; a step that was never computed is absent."""


@dataclass
class Pass:
    """What prefill or decode computed at the positions `positions`, one row for each."""

    phase: str
    positions: range
    layers: list[StepValues]
    head: StepValues = field(default_factory=dict)


def observe_prefill(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids`, then the logits after the last one."""
    recorder = CallRecorder(model.runner)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(len(token_ids))
    rows = prefill(recorded, token_ids, cache)
    found = Pass("prefill", range(len(token_ids)), _layers(recorder, 0, len(token_ids), model))
    for layer, values in enumerate(found.layers):
        _add_keys(values, values, cache, layer, len(token_ids))
    found.head = _head(recorded, recorder, rows[-1])
    return found


def observe_decode(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill all of `token_ids` but the last, decode the last, then the logits after it."""
    recorder = CallRecorder(model.runner)
    recorded = replace(model, runner=recorder)
    earlier = len(token_ids) - 1
    cache = model.new_cache(len(token_ids) + UNUSED)
    prefill(recorded, token_ids[:-1], cache)
    row = decode_step(recorded, token_ids[-1], cache)
    found = Pass("decode", range(earlier, earlier + 1), _layers(recorder, 1, 1, model))
    before = _layers(recorder, 0, earlier, model)
    for layer, values in enumerate(found.layers):
        _add_keys(values, _joined(before[layer], values), cache, layer, earlier + 1)
    found.head = _head(recorded, recorder, row)
    return found


def _layers(recorder: CallRecorder, phase: int, rows: int, model: LoadedModel) -> list[StepValues]:
    """Values of each layer: the n-th call of a program is layer n's, whatever buffers it was made on."""
    layers: list[StepValues] = [{} for _ in range(model.config.num_hidden_layers)]
    for step in LAYER_STEPS:
        if step.source:
            calls: list[Call] = recorder.calls.get(step.source.programs[phase], [])
            for values, call in zip(layers, calls, strict=False):
                values[step.name] = _rows(call[step.source.argument], rows)
    return layers


def _joined(before: StepValues, values: StepValues) -> StepValues:
    """Keys and values of the prefilled positions, then those of the decoded one."""
    both = [step for step in ("rope_k", "v") if step in before and step in values]
    return {step: np.concatenate([before[step], values[step]]) for step in both}


def _add_keys(values: StepValues, made: StepValues, cache: KVCache, layer: int, count: int) -> None:
    """Keys and values of all `count` positions: as the programs `made` them, and as the cache holds them."""
    values.update({name: made[step] for name, step in (("keys", "rope_k"), ("values", "v")) if step in made})
    for step, held in zip(("cache_k", "cache_v"), cache.layers[layer], strict=True):
        values[step] = _rows(np.ascontiguousarray(held[:, :count].transpose(1, 0, 2)), count)


def _head(recorded: LoadedModel, recorder: CallRecorder, row: BF16Array) -> StepValues:
    logits = next_token_logits(recorded, row)
    calls = recorder.calls.get("lm_head_gemv", [])
    normed = {"final_norm": _rows(calls[-1]["x"], 1)} if calls else {}
    return {**normed, "logits": logits[None]}


def _rows(array: BF16Array, rows: int) -> F32Array:
    """The first `rows` rows, flat, in float32; a vector is one row."""
    values: F32Array = np.atleast_2d(array)[:rows].astype(np.float32)
    return values.reshape(rows, -1)
