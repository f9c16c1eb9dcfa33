"""One prompt through the model, with every step's value by layer: of ours, every argument of every program
call; of theirs, what hooks see.

Neither changes what is computed. Ours is recorded around the model's runner, so what is seen is what the very
functions of `make run` pass on and get back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.page_pool import KVCache
from aerie.engine.planner import VariantCall
from aerie.engine.programs import HEADS
from aerie.engine.variant_set import ROWS
from aerie.kernel_builder.arguments import WRITTEN_ROLES, Argument
from aerie.multi_launch_builder import Program
from aerie.verify.layer_steps import AFTER, BEFORE, HEAD_STEPS, KEYS, VALUES, LayerStep, layer_steps

Positions = npt.NDArray[np.int64]

Call = dict[str, Any]
"""One call of a program: its inputs as they were passed, all it wrote as it left it, by argument name. A
block's has "rows" too: which of its rows are compared."""

MOST_ROWS = 128
"""Positions of a prompt whose steps are compared; of a longer one so many, evenly spread. A full-size layer's
steps take 180 KB per position and copy, and there are three copies."""


def chosen(length: int) -> Positions:
    """The positions of a prompt that are compared, ascending, its first and its last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, MOST_ROWS)).round().astype(np.int64))


class CallRecorder:
    """A runner that keeps a copy of every call of the programs before and after attention, and of the LM
    head, and asks `inner` for intermediates as well.

    `calls` are by kind of program, in the order they came: a pass is cut into `steps` (of the planner), each
    through layer by layer. Of a step's rows those at `positions` are kept, of keys and values all that are
    real. The caller gets what `inner` would have given it.
    """

    def __init__(self, model: LoadedModel, steps: Sequence[VariantCall], positions: Positions) -> None:
        self.inner, self.layers = model.runner, model.config.num_hidden_layers
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self._steps, self._positions = steps, positions

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
        table, is_seen = program.arguments, program.kind not in ATTENTION_KINDS
        written = [argument.name for argument in table if argument.role in WRITTEN_ROLES]
        given = self._kept(program, arrays) if is_seen else {}
        results = self.inner.run(program, bo_key=bo_key, outputs=written, copy=copy, **arrays)
        if is_seen:
            self.calls[program.kind].append(given | self._kept(program, results))
        wanted = [table[slot].name for slot in table.output_indices] if outputs is None else outputs
        return {name: results[name] for name in wanted}

    def _kept(self, program: Program, arrays: Mapping[str, Any]) -> Call:
        index = len(self.calls[program.kind]) // self.layers
        if program.kind not in BLOCK_KINDS or index >= len(self._steps):
            return {name: array.copy() for name, array in arrays.items()}
        step = self._steps[index]
        rows = self._positions - step.new_idx
        rows = rows[(rows >= 0) & (rows < step.n_process)]
        return {
            name: array[: step.n_process].copy() if name in (KEYS, VALUES) else array[rows]
            for name, array in arrays.items()
        } | {"rows": rows}

    def of_layer(self, kind: str, layer: int) -> list[Call]:
        """The calls of a kind of program for a layer: they come for one layer after the other, whatever
        buffers they are made on, and again so for the next step."""
        return self.calls.get(kind, [])[layer :: self.layers]

    def unfilled_weights(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        return self.inner.unfilled_weights(program, bo_key=bo_key)

    def preload(self, program: Program, /, *, bo_key: str, **static: Any) -> None:
        self.inner.preload(program, bo_key=bo_key, **static)

    def shared_array(self, name: str, argument: Argument) -> Any:
        return self.inner.shared_array(name, argument)

    def record(self) -> None:
        """Every call is made by itself, and looked at."""
        return


Captured = dict[tuple[int | None, str], F32Array]
"""Values by layer (None: outside of the layers) and step, one row per position."""


def capture_reference(
    model: Any, token_ids: Sequence[int], steps: Sequence[LayerStep], positions: Positions
) -> Captured:
    """Those of a layer's `steps` that modules of transformers' `model` see, and the steps after the layers,
    at `positions` of `token_ids`, from one forward pass."""
    import torch

    captured: Captured = {}
    with torch.inference_mode(), ExitStack() as stack:
        for index, layer in enumerate(model.model.layers):
            for step in steps:
                _watch(stack, layer, step, _keeper(captured, index, step.name, positions))
        for step in HEAD_STEPS:
            _watch(stack, model, step, _keeper(captured, None, step.name, positions))
        model(torch.tensor([list(token_ids)]), use_cache=False)
    return captured


def _watch(stack: ExitStack, module: Any, step: LayerStep, keep: Callable[[Any], None]) -> None:
    """Hook the step into transformers' layer or model, for as long as the stack stands."""
    if step.module_hook:
        path, side = step.module_hook
        stack.callback(_hook(module.get_submodule(path), side, keep))


def _keeper(captured: Captured, layer: int | None, step: str, positions: Positions) -> Callable[[Any], None]:
    """Keeps the rows of some positions, flat, from (1, all positions, ...)."""

    def keep(value: Any) -> None:
        captured[layer, step] = np.array(value[0][positions].flatten(1).float().numpy())

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

DECODED = 8
"""Tokens at the end of a prompt that are decoded one by one, where it has as many: a fault of the second
token shows, and over one row alone means of a few numbers would hang on chance."""

StepValues = dict[str, F32Array]
"""By step: (rows, width) in float32, exactly the bf16 values; a step that was never computed is absent. Under
"keys" and "values" those of all positions up to the last one, as the programs made them."""


@dataclass
class Pass:
    """What prefill or decode computed at `positions`, one row for each, ascending. `of_rows`: whether its
    products are of matrices, and not of a matrix and a vector; `head_of_rows`: whether that of the LM head
    is."""

    phase: str
    positions: Positions
    layers: list[StepValues]
    of_rows: bool
    head_of_rows: bool = False
    head: StepValues = field(default_factory=dict)


def observe_prefill(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids`, then the logits after the last one."""
    length = len(token_ids)
    positions = chosen(length)
    recorder = CallRecorder(model, model.variant_set.plan(length, 0), positions)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(length)
    rows = prefill(recorded, token_ids, cache)
    found = Pass("prefill", positions, _layers(recorder, BLOCKS, model), True)
    _add_keys(found, recorder, [BLOCKS], cache)
    _add_head(found, recorded, recorder, rows[-1])
    return found


def observe_decode(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids` but for the last few (DECODED), decode these; then the logits after the last."""
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
    found = Pass("decode", positions, _layers(recorder, BLOCKS if in_blocks else TOKEN, model), in_blocks)
    _add_keys(found, recorder, [BLOCKS] if in_blocks else [BLOCKS, TOKEN], cache)
    _add_head(found, recorded, recorder, row)
    return found


BLOCKS = {BEFORE: "rms_gemms_rope", AFTER: "o_ffn"}
TOKEN = {BEFORE: "rms_gemv_rope", AFTER: "o_gemv_ffn"}
"""Kinds of programs, of rows and of one token."""
BLOCK_KINDS = frozenset(BLOCKS.values())
ATTENTION_KINDS = frozenset({"flash_attn", "cached_attn"})
"""What attention gives is what the next program is given."""


def _layers(recorder: CallRecorder, kinds: Mapping[str, str], model: LoadedModel) -> list[StepValues]:
    """The steps' values in each layer, from the calls of its two programs."""
    layers: list[StepValues] = [{} for _ in range(recorder.layers)]
    for step in layer_steps(model.config.shape):
        if not step.source:
            continue
        for layer, values in enumerate(layers):
            calls = recorder.of_layer(kinds[step.source.part], layer)
            if calls:
                values[step.name] = _rows([_of(call, step.source.argument) for call in calls])
    return layers


def _of(call: Call, argument: str) -> BF16Array:
    """A row for each position that is compared, or the one row of a vector."""
    array: BF16Array = call[argument]
    if array.ndim == 1:
        return np.atleast_2d(array)
    rows: BF16Array = array[call["rows"]] if argument in (KEYS, VALUES) else array
    return rows


def _add_keys(
    found: Pass, recorder: CallRecorder, kinds: Sequence[Mapping[str, str]], cache: KVCache
) -> None:
    """Keys and values of every position, from calls in the order of positions, and what the cache holds at
    those that are compared."""
    for layer, values in enumerate(found.layers):
        calls = [call for each in kinds for call in recorder.of_layer(each[BEFORE], layer)]
        for step, argument in (("keys", KEYS), ("values", VALUES)):
            if calls:
                values[step] = _rows([np.atleast_2d(call[argument]) for call in calls])
        held = (array[:, found.positions].transpose(1, 0, 2) for array in cache.layers[layer])
        values |= {step: _rows([array]) for step, array in zip(("cache_k", "cache_v"), held, strict=True)}


def _add_head(found: Pass, recorded: LoadedModel, recorder: CallRecorder, row: BF16Array) -> None:
    """The logits after `row`, and what the LM head is given for them."""
    found.head = {"logits": next_token_logits(recorded, row)[None]}
    calls = [call for kind in HEADS for call in recorder.calls.get(kind, [])]
    if calls:
        found.head["final_norm"] = _rows([np.atleast_2d(calls[-1]["x"])[:1]])
        found.head_of_rows = calls[-1]["x"].ndim == 2


def _rows(arrays: Sequence[BF16Array]) -> F32Array:
    """One after the other, each (rows, ...), flat, in float32."""
    rows = np.concatenate(arrays)
    values: F32Array = rows.reshape(len(rows), -1).astype(np.float32)
    return values
