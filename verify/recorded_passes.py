"""Records one prompt's forward passes: the value of every layer step, of our model and of the reference.

Ours is recorded by a runner around the model's runner: the arguments of every program call of `make run`. The
reference is recorded by PyTorch hooks. Neither changes what is computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.config import ModelConfig
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_pool import KVCache
from aerie.engine.planner import VariantCall
from aerie.engine.programs import HEADS, layers_of
from aerie.engine.variant_set import ROWS
from aerie.kernel_builder.arguments import WRITTEN_ROLES, Argument
from aerie.multi_launch_builder import Program
from aerie.multi_launch_builder.shapes import LM_HEAD_PARTITIONS
from aerie.verify.fused_modules import module_part
from aerie.verify.layer_steps import (
    AFTER,
    BEFORE,
    DELTA_GATES,
    DELTA_STATE,
    KEYS,
    STATE,
    VALUES,
    LayerStep,
    head_steps,
    steps_of_layers,
)

Positions = npt.NDArray[np.int64]

RecordedCall = dict[str, Any]
"""The arrays of one program call by argument name: inputs before the call, everything else after it. A call
of several rows also has "rows": the indices of those that are compared."""

MAX_POSITIONS = 128
"""Maximum positions of a prompt that are compared; of a longer prompt, evenly spaced ones. The steps of a
full-size layer take 180 KB per position and copy, and there are three copies."""


def compared_positions(length: int) -> Positions:
    """Return the positions of a prompt that are compared, ascending, with the first and the last one."""
    return np.unique(np.linspace(0, length - 1, min(length, MAX_POSITIONS)).round().astype(np.int64))


class CallRecorder:
    """A runner that copies the arrays of every call of the programs around attention and of the LM head.

    It has `inner` return intermediates too; the caller gets only what it wants. calls: by kind of program, in
    order: the planner cuts a forward pass into `steps`, and each step goes through layer by layer. Only rows
    at `positions` are copied; of keys and values all rows that are not padding.
    """

    def __init__(self, model: LoadedModel, steps: Sequence[VariantCall], positions: Positions) -> None:
        self.inner, self._config = model.runner, model.config
        self.calls: dict[str, list[RecordedCall]] = defaultdict(list)
        self._steps, self._positions = steps, positions

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        copy: bool = True,
        on_device: Collection[str] = (),  # noqa: ARG002  every result is copied to the host
        **arrays: Any,
    ) -> dict[str, Any]:
        table, is_seen = program.arguments, program.kind not in ATTENTION_KINDS
        written = [argument.name for argument in table if argument.role in WRITTEN_ROLES]
        inputs = self._copied(program, arrays) if is_seen else {}
        results = self.inner.run(program, bo_key=bo_key, outputs=written, copy=copy, **arrays)
        if is_seen:
            self.calls[program.kind].append(inputs | self._copied(program, results))
        returned = [table[slot].name for slot in table.output_indices] if outputs is None else outputs
        return {name: results[name] for name in returned}

    def _copied(self, program: Program, arrays: Mapping[str, Any]) -> RecordedCall:
        index = len(self.calls[program.kind]) // len(layers_of(self._config, program.kind))
        if program.kind not in BLOCK_KINDS or index >= len(self._steps):
            return {name: array.copy() for name, array in arrays.items()}
        step = self._steps[index]
        rows = self._positions - step.new_idx
        rows = rows[(rows >= 0) & (rows < step.n_process)]
        return {
            name: array[: step.n_process].copy() if name in OF_ALL_POSITIONS else array[rows]
            for name, array in arrays.items()
        } | {"rows": rows}

    def calls_of_layer(self, kind: str, layer: int) -> list[RecordedCall]:
        """Return the calls of a kind of program for one layer. Each step calls the layers that have it in
        order."""
        layers = layers_of(self._config, kind)
        return self.calls.get(kind, [])[layers.index(layer) :: len(layers)]

    def unfilled_weights(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        return self.inner.unfilled_weights(program, bo_key=bo_key)

    def preload(self, program: Program, /, *, bo_key: str, **static: Any) -> None:
        self.inner.preload(program, bo_key=bo_key, **static)

    def shared_array(self, name: str, argument: Argument) -> Any:
        return self.inner.shared_array(name, argument)

    def record(self) -> None:
        """Record nothing: each call must run by itself, so that it can be copied."""
        return


NORMS_OF_HEADS_FIRST = ("gemma3_text",)
"""Models of transformers that lay heads before positions already for the norms of queries and keys."""
Captured = dict[tuple[int | None, str], F32Array]
"""Values by layer and step, one row per position. Layer None means outside of the layers."""


def capture_reference(
    model: Any, token_ids: Sequence[int], steps: Sequence[Sequence[LayerStep]], positions: Positions
) -> Captured:
    """Run the reference once and return the values of the `steps` of each layer, and of those after them.

    Only steps that a module of transformers' `model` takes or returns are captured, at `positions` of
    `token_ids`.
    """
    import torch

    captured: Captured = {}
    heads_first = model.config.model_type in NORMS_OF_HEADS_FIRST
    with torch.inference_mode(), ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            for step in steps[index]:
                _watch(stack, layer, step, _keeper(captured, index, step.name, positions, heads_first))
        for step in head_steps(model):
            _watch(stack, model, step, _keeper(captured, None, step.name, positions, heads_first))
        model(torch.tensor([list(token_ids)]), use_cache=False)
    return captured


def _watch(stack: ExitStack, module: Any, step: LayerStep, keep: Callable[[Any], None]) -> None:
    """Hook the step into transformers' layer or model until the stack is closed."""
    if step.module_hook:
        path, side = step.module_hook
        found, columns = module_part(module, path)
        stack.callback(_hook(found, side, lambda value: keep(value[..., columns])))


def _keeper(
    captured: Captured, layer: int | None, step: str, positions: Positions, heads_first: bool
) -> Callable[[Any], None]:
    """Return a hook that stores the rows of `positions`, flattened, from (1, all positions, ...), or from
    (1, heads, all positions, ...) where values of heads lie so."""

    def keep(value: Any) -> None:
        rows = value[0].transpose(0, 1) if heads_first and value.ndim == 4 else value[0]
        captured[layer, step] = np.array(rows[positions].flatten(1).float().numpy())

    return keep


def _hook(module: Any, side: str, keep: Callable[[Any], None]) -> Callable[[], None]:
    """Call `keep` with the input or the output of `module`. Returns the function that removes the hook."""
    if side == "in":

        def before(_: Any, inputs: tuple[Any, ...]) -> None:
            keep(inputs[0])

        handle = module.register_forward_pre_hook(before)
    else:

        def after(_: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
            keep(output[0] if isinstance(output, tuple) else getattr(output, "logits", output))

        handle = module.register_forward_hook(after)
    remove: Callable[[], None] = handle.remove
    return remove


UNUSED = 4
"""Unused positions at the end of decode's KV cache, as in a generation: no program may read them."""

DECODED = 8
"""Tokens at the end of a prompt that are decoded one by one, if it has that many. More than one, so that a
fault of the second token shows, and so that means are over enough numbers."""

StepValues = dict[str, F32Array]
"""Values by step name: (rows, width), the bf16 values as float32. A step that was not computed is absent.
"keys" and "values" have all positions up to the last one, as the programs wrote them."""


@dataclass
class RecordedPass:
    """What prefill or decode computed at `positions`, ascending, one row for each.

    uses_gemm: whether its programs multiply matrices, not a matrix and a vector (GEMV). head_uses_gemm: the
    same of the LM head.
    """

    phase: str
    positions: Positions
    layers: list[StepValues]
    uses_gemm: bool
    head_uses_gemm: bool = False
    head: StepValues = field(default_factory=dict)


def observe_prefill(model: LoadedModel, token_ids: Sequence[int]) -> RecordedPass:
    """Record the prefill of `token_ids` and the logits after the last token."""
    length = len(token_ids)
    positions = compared_positions(length)
    recorder = CallRecorder(model, model.variant_set.plan(length, 0), positions)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(length)
    rows = prefill(recorded, token_ids, cache)
    recorded_pass = RecordedPass("prefill", positions, _layers(recorder, BLOCKS, model), True)
    _add_keys(recorded_pass, recorder, [BLOCKS], cache, model)
    _add_head(recorded_pass, recorded, recorder, rows[-1])
    return recorded_pass


def observe_decode(model: LoadedModel, token_ids: Sequence[int]) -> RecordedPass:
    """Prefill all but the last DECODED tokens, then record the decode of those and the logits after the
    last."""
    length = len(token_ids)
    earlier = length - min(DECODED, length - 1)
    positions, in_blocks = np.arange(earlier, length), model.variant_set.decode_path == ROWS
    steps = list(model.variant_set.plan(earlier, 0))
    if in_blocks:
        steps += [step for past in positions for step in model.variant_set.plan(1, int(past))]
    recorder = CallRecorder(model, steps, positions)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(length + UNUSED)
    prefill(recorded, token_ids[:earlier], cache)
    for token in token_ids[earlier:]:
        row = decode_step(recorded, token, cache)
    recorded_pass = RecordedPass(
        "decode", positions, _layers(recorder, BLOCKS if in_blocks else TOKEN, model), in_blocks
    )
    _add_keys(recorded_pass, recorder, [BLOCKS] if in_blocks else [BLOCKS, TOKEN], cache, model)
    _add_head(recorded_pass, recorded, recorder, row)
    return recorded_pass


BLOCKS = {BEFORE: "rms_gemms_rope", AFTER: "o_ffn"}
TOKEN = {BEFORE: "rms_gemv_rope", AFTER: "o_gemv_ffn"}
"""Kinds of the programs before and after attention: for several rows, and for one token."""
BEFORE_CONV = {"rms_gemms_rope": "rms_gemms_gate", "rms_gemv_rope": "rms_gemv_gate"}
"""What layers with a short convolution have in place of those before attention."""
BEFORE_DELTA = {"rms_gemms_rope": "rms_gemms_delta"}
"""The same of layers with linear attention."""
BLOCK_KINDS = frozenset({*BLOCKS.values(), "rms_gemms_gate", "rms_gemms_delta"})
ATTENTION_KINDS = frozenset(
    {
        *("flash_attn", "cached_attn", "attn_gate"),
        *("short_conv", "short_conv_row"),
        *("delta_conv", "delta_rule", "delta_gate"),
    }
)
"""Kinds of the programs of attention and of what layers without have. They are not recorded: their result is
an input of the next program."""
OF_ALL_POSITIONS = frozenset({KEYS, VALUES, STATE, DELTA_STATE, DELTA_GATES})
"""Arguments that are recorded for all positions, since later ones read them."""


def _kind(kinds: Mapping[str, str], part: str, layer: int, config: ModelConfig) -> str:
    """The kind of a layer's program before attention or a convolution, or after it."""
    kind = kinds[part]
    other = BEFORE_DELTA if config.delta else BEFORE_CONV
    return other.get(kind, kind) if layer in config.layers_with_conv else kind


def _layers(recorder: CallRecorder, kinds: Mapping[str, str], model: LoadedModel) -> list[StepValues]:
    """Collect the steps' values in each layer from the calls of its two programs."""
    config, layers = model.config, [StepValues() for _ in range(model.config.num_hidden_layers)]
    for layer, (steps, values) in enumerate(zip(steps_of_layers(config), layers, strict=True)):
        for step in steps:
            if not step.source:
                continue
            calls = recorder.calls_of_layer(_kind(kinds, step.source.part, layer, config), layer)
            if calls:
                values[step.name] = _rows([_argument_rows(call, step.source.argument) for call in calls])
    return layers


def _argument_rows(call: RecordedCall, argument: str) -> BF16Array:
    """Return one row for each compared position, or the one row of a vector."""
    array: BF16Array = call[argument]
    if array.ndim == 1:
        return np.atleast_2d(array)
    rows: BF16Array = array[call["rows"]] if argument in OF_ALL_POSITIONS else array
    return rows


def _add_keys(
    recorded_pass: RecordedPass,
    recorder: CallRecorder,
    kinds: Sequence[Mapping[str, str]],
    cache: KVCache,
    model: LoadedModel,
) -> None:
    """Add the keys and values, or the rows of states, that the programs wrote for every position, and those
    that the cache holds at the compared positions."""
    config = model.config
    for layer, values in enumerate(recorded_pass.layers):
        before = [_kind(kind, BEFORE, layer, config) for kind in kinds]
        calls = [call for kind in before for call in recorder.calls_of_layer(kind, layer)]
        is_conv = layer in config.layers_with_conv
        arguments = _arguments(config) if is_conv else {"keys": KEYS, "values": VALUES}
        for step, argument in arguments.items():
            if calls:
                values[step] = _rows([np.atleast_2d(call[argument]) for call in calls])
        held = (
            dict(zip(("cache_k", "cache_v"), cache.layers[model.kv_layer_index(layer)], strict=True))
            if not is_conv
            else {"state": cache.pool.states[model.state_index(layer)]}
            if not config.delta  # of which pages have states at their ends alone
            else {}
        )
        at = recorded_pass.positions
        values |= {step: _rows([array[:, at].transpose(1, 0, 2)]) for step, array in held.items()}


def _arguments(config: ModelConfig) -> dict[str, str]:
    """What steps read of all positions in layers without attention, and the programs' arguments that have
    it."""
    return {"states": DELTA_STATE, "gates": DELTA_GATES} if config.delta else {"states": STATE}


def _add_head(
    recorded_pass: RecordedPass, recorded: LoadedModel, recorder: CallRecorder, row: BF16Array
) -> None:
    """Add the logits after `row`, and the LM head's input; of a model that divides logits, both."""
    config, logits = recorded.config, next_token_logits(recorded, row)[None]
    recorded_pass.head = {"logits": logits}
    calls = [call for kind in HEADS for call in recorder.calls.get(kind, [])]
    if calls:
        recorded_pass.head["final_norm"] = _rows([np.atleast_2d(calls[-1]["x"])[:1]])
        recorded_pass.head_uses_gemm = calls[-1]["x"].ndim == 2
    if calls and config.multipliers.logits_divisor != 1:
        parts = [np.atleast_2d(calls[-1][f"logits_{part}"])[:1] for part in range(LM_HEAD_PARTITIONS)]
        of_head = np.concatenate(parts, axis=1)[:, : config.vocab_size]
        recorded_pass.head |= {"logits": _rows([of_head]), "divided_logits": logits}


def _rows(arrays: Sequence[BF16Array]) -> F32Array:
    """Concatenate arrays of (rows, ...) as (all rows, width) float32."""
    rows = np.concatenate(arrays)
    values: F32Array = rows.reshape(len(rows), -1).astype(np.float32)
    return values
