"""One prompt through the model, with every step's value by layer: of ours, every argument of every program
call; of theirs, what hooks see.

Neither changes what is computed. Ours is recorded around the model's runner, so what is seen is what the very
functions of `make run` pass on and get back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from aerie.engine.attention import KVCache
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, F32Array
from aerie.engine.programs import ProgramRunner
from aerie.kernel_builder.arguments import OVERWRITTEN_ROLES
from aerie.multi_launch_builder import Program
from aerie.verify.steps import AFTER, BEFORE, HEAD_STEPS, KEYS, VALUES, Step, layer_steps

Positions = npt.NDArray[np.int64]

Call = dict[str, BF16Array]
"""One call of a program: its inputs as they were passed, all it wrote as it left it, by argument name."""

MOST_ROWS = 128
"""Positions of a prompt whose steps are compared; of a longer one so many, evenly spread. A full-size layer's
steps take 180 KB per position and copy, and there are three copies."""


def chosen(length: int) -> Positions:
    """The positions of a prompt that are compared, ascending, its first and its last among them."""
    return np.unique(np.linspace(0, length - 1, min(length, MOST_ROWS)).round().astype(np.int64))


@dataclass
class CallRecorder:
    """A runner that keeps a copy of every call, and asks `inner` for intermediates as well.

    `calls` are by program name, in the order they came, of a model of `layers` layers. Of what has a row for
    each position, `rows` are kept; of keys and values all. The caller gets what `inner` would have given it.
    """

    inner: ProgramRunner
    rows: Positions
    layers: int
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
        given = self._kept(arrays)
        results = self.inner.run(program, bo_key=bo_key, outputs=written, copy=copy, **arrays)
        self.calls[program.name].append(given | self._kept(results))
        wanted = [table[slot].name for slot in table.output_indices] if outputs is None else outputs
        return {name: results[name] for name in wanted}

    def _kept(self, arrays: Mapping[str, Any]) -> Call:
        return {
            name: array.copy() if array.ndim == 1 or name in (KEYS, VALUES) else array[self.rows]
            for name, array in arrays.items()
        }

    def of_layer(self, program: str, layer: int) -> list[Call]:
        """The calls of `program` for a layer: they come for one layer after the other, whatever buffers they
        are made on, and again so for the next token."""
        return self.calls.get(program, [])[layer :: self.layers]

    def rows_of(self, call: Call, argument: str) -> BF16Array:
        """A row for each of `rows`, or the one row of a vector."""
        array = call[argument]
        if array.ndim == 1:
            return array[None]
        return array[self.rows] if argument in (KEYS, VALUES) else array

    def unfilled(self, program: Program, /, *, bo_key: str) -> Collection[str]:
        return self.inner.unfilled(program, bo_key=bo_key)

    def preload(self, program: Program, /, *, bo_key: str, **static: Any) -> None:
        self.inner.preload(program, bo_key=bo_key, **static)

    def record(self) -> None:
        """Every call is made by itself, and looked at."""
        return


Captured = dict[tuple[int | None, str], F32Array]
"""Values by layer (None: outside of the layers) and step, one row per position."""


def capture_reference(
    model: Any, token_ids: Sequence[int], steps: Sequence[Step], positions: Positions
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


def _watch(stack: ExitStack, module: Any, step: Step, keep: Callable[[Any], None]) -> None:
    """Hook the step into transformers' layer or model, for as long as the stack stands."""
    if step.hook:
        path, side = step.hook
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
    products are of matrices, and not of a matrix and a vector."""

    phase: str
    positions: Positions
    layers: list[StepValues]
    of_rows: bool
    head: StepValues = field(default_factory=dict)


def observe_prefill(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids`, then the logits after the last one."""
    length = len(token_ids)
    positions = chosen(length)
    recorder = CallRecorder(model.runner, positions, model.config.num_hidden_layers)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(length)
    rows = prefill(recorded, token_ids, cache)
    found = Pass("prefill", positions, _layers(recorder, PREFILL, model), True)
    for layer, values in enumerate(found.layers):
        made = recorder.of_layer(PREFILL[BEFORE], layer)
        values |= _keys_and_values([(made, length)]) | _cached(cache, layer, positions)
    found.head = _head(recorded, recorder, rows[-1])
    return found


def observe_decode(model: LoadedModel, token_ids: Sequence[int]) -> Pass:
    """Prefill `token_ids` but for the last few (DECODED), decode these; then the logits after the last."""
    length = len(token_ids)
    earlier = length - min(DECODED, length - 1)
    recorder = CallRecorder(model.runner, chosen(earlier), model.config.num_hidden_layers)
    recorded = replace(model, runner=recorder)
    cache = model.new_cache(length + UNUSED)
    prefill(recorded, token_ids[:earlier], cache)
    for token in token_ids[earlier:]:
        row = decode_step(recorded, token, cache)
    found = Pass("decode", np.arange(earlier, length), _layers(recorder, DECODE, model), False)
    for layer, values in enumerate(found.layers):
        prompt, tokens = (recorder.of_layer(names[BEFORE], layer) for names in (PREFILL, DECODE))
        made = _keys_and_values([(prompt, earlier), (tokens, 1)])
        values |= made | _cached(cache, layer, found.positions)
    found.head = _head(recorded, recorder, row)
    return found


PREFILL = {BEFORE: "rms_gemms_rope", AFTER: "o_ffn"}
DECODE = {BEFORE: "rms_gemv_rope", AFTER: "o_gemv_ffn"}


def _layers(recorder: CallRecorder, programs: Mapping[str, str], model: LoadedModel) -> list[StepValues]:
    """The steps' values in each layer, from the calls of its two programs."""
    layers: list[StepValues] = [{} for _ in range(recorder.layers)]
    for step in layer_steps(model.config.shape):
        if not step.source:
            continue
        for layer, values in enumerate(layers):
            calls = recorder.of_layer(programs[step.source.part], layer)
            if calls:
                values[step.name] = _rows([recorder.rows_of(call, step.source.argument) for call in calls])
    return layers


def _keys_and_values(made: Iterable[tuple[Sequence[Call], int]]) -> StepValues:
    """Those of every position, from calls in the order of positions, each with so many rows that are real."""
    calls = [(call, count) for several, count in made for call in several]
    if not calls:
        return {}
    return {
        step: _rows([np.atleast_2d(call[argument])[:count] for call, count in calls])
        for step, argument in (("keys", KEYS), ("values", VALUES))
    }


def _cached(cache: KVCache, layer: int, positions: Positions) -> StepValues:
    """What the cache holds at `positions`."""
    held = (array[:, positions].transpose(1, 0, 2) for array in cache.layers[layer])
    return {step: _rows([array]) for step, array in zip(("cache_k", "cache_v"), held, strict=True)}


def _head(recorded: LoadedModel, recorder: CallRecorder, row: BF16Array) -> StepValues:
    logits = next_token_logits(recorded, row)
    calls = recorder.calls.get("lm_head_gemv", [])
    normed = {"final_norm": _rows([calls[-1]["x"][None]])} if calls else {}
    return {**normed, "logits": logits[None]}


def _rows(arrays: Sequence[BF16Array]) -> F32Array:
    """One after the other, each (rows, ...), flat, in float32."""
    rows = np.concatenate(arrays)
    values: F32Array = rows.reshape(len(rows), -1).astype(np.float32)
    return values
