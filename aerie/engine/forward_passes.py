"""The ways of tokens through all layers: those of a step in blocks of rows; one by GEMVs, with attention on
the host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import CacheAttention, NewKVRows
from aerie.engine.call_costs import CallCosts
from aerie.engine.communication import all_reduce_sum
from aerie.engine.kv_cache import Layers
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.page_pool import PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.programs import CACHE, buffer_set, outputs_with_raw_keys
from aerie.kernel_builder.arguments import pack_bits
from aerie.multi_launch_builder import Program
from aerie.runtime import HostWork, Recording

Arrays = dict[str, NDArray[Any]]
OnProgram: TypeAlias = "Callable[[str], None]"
"""Is told the kind of every program that has run."""
ROPE_ROWS, MASK = "rope_rows", "mask"
"""What programs of blocks are given of the positions of their rows."""


class CallSink(Protocol):
    """What takes the steps of a pass: a Recording notes them, ImmediateCalls takes them."""

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        on_device: Collection[str],
        **arrays: Any,
    ) -> Arrays: ...

    def host(self, name: str, work: HostWork) -> None: ...


StoreRows: TypeAlias = "Callable[..., list[HostWork]]"
"""Of a layer, its keys and values, and keys before RoPE where the cache has them, each (rows,
kv_heads * head_dim): to store those of the step's tokens."""


class KVLayout(Protocol):
    """Where keys and values lie that programs of blocks attend to, as in kv.KVBuffers."""

    @property
    def layers(self) -> Layers: ...

    @property
    def slot(self) -> str: ...


class LayerCalls:
    """The programs that take blocks of a variant's rows through the layers, called or noted by `calls`; and
    what they are given beside activations, in arrays that stay: the same in every layer of a step."""

    def __init__(
        self,
        model: LoadedModel,
        call: VariantCall,
        kv_layout: KVLayout,
        calls: CallSink,
        with_keys_before_rope: bool = False,
    ) -> None:
        self._model, self._layers, self._slot, self._calls = model, kv_layout.layers, kv_layout.slot, calls
        self._with_keys_before_rope = with_keys_before_rope
        self._programs, self._names = model.programs, model.variant_set.call_programs(call)
        self._last = model.config.num_hidden_layers - 1
        self._width, self._context = call.variant, call.context
        loaded = (model.programs[name] for name in self._names if name in model.programs)
        tables = itertools.chain.from_iterable(program.arguments for program in loaded)
        self._inputs = {
            argument.name: np.empty(argument.shape, argument.dtype.numpy)
            for argument in tables
            if argument.name in (ROPE_ROWS, MASK)
        }

    def set_positions(self, positions: NDArray[np.int64], visible: NDArray[np.bool_]) -> None:
        """The rows have these positions in their sequences, (rows,), and see this of the cache, (rows,
        context)."""
        if ROPE_ROWS in self._inputs:
            self._inputs[ROPE_ROWS][...] = self._model.rope[positions]
        if MASK in self._inputs:
            self._inputs[MASK][...] = pack_bits(visible)

    def project(
        self, layer: int, x: BF16Array, store: StoreRows, on_device: Collection[str] = ("q_roped",)
    ) -> Arrays:
        """Queries, keys and values of a layer: the latter two are in the cache then."""
        program = self._programs[self._names[0]]
        key, given = buffer_set(program, layer), self._inputs_of(program)
        keys_before_rope, outputs = (
            outputs_with_raw_keys(program) if self._with_keys_before_rope else ("", None)
        )
        made = self._calls.run(program, bo_key=key, outputs=outputs, on_device=on_device, x=x, **given)
        new = [made["k_roped"], made["v"], *([made.pop(keys_before_rope)] if keys_before_rope else [])]
        for work in store(self._model.kv_layer_index(layer), *new):
            self._calls.host("KV cache write", work)
        return made

    def attend(self, layer: int, x: BF16Array, projected: Arrays) -> BF16Array:
        """What a layer does with queries: attention, output projection, FFN; x is its input."""
        attention, *after = (self._programs[name] for name in self._names[1:])
        given = {"q_roped": projected["q_roped"], **self._inputs_of(attention)}
        key = buffer_set(attention, layer)
        if MASK in given:
            given |= dict(zip(CACHE, self._layers[self._model.kv_layer_index(layer)], strict=True))
            key = self._model.buffer_names.key(attention, layer, self._slot)
        else:
            given |= projected
        attended = self._calls.run(attention, bo_key=key, on_device=("attn_out",), **given)["attn_out"]
        if len(after) > 1:
            return self._attend_in_parts(layer, x, attended, *after)
        on_device, key = () if layer == self._last else ("x_next",), buffer_set(after[0], layer)
        return self._calls.run(after[0], bo_key=key, on_device=on_device, x=x, attn_out=attended)["x_next"]

    def _attend_in_parts(
        self, layer: int, x: BF16Array, attended: BF16Array, output: Program, ffn: Program
    ) -> BF16Array:
        """The same on one of several devices, with a sum of all of them after each of the two programs."""
        made = self._calls.run(output, bo_key=buffer_set(output, layer), on_device=(), attn_out=attended)
        res1 = self._sum(x, made["proj"])
        made = self._calls.run(ffn, bo_key=buffer_set(ffn, layer), on_device=(), res1=res1)
        return self._sum(res1, made["down"])

    def _sum(self, residual: BF16Array, partial_sum: BF16Array) -> BF16Array:
        out = np.empty_like(residual)
        work = partial(all_reduce_sum, self._model.group, residual, partial_sum, out)
        self._calls.host("sum over devices", HostWork(work))
        return out

    def _inputs_of(self, program: Program) -> Arrays:
        """Those inputs that a program takes."""
        return {name: array for name, array in self._inputs.items() if name in program.arguments.names}

    def padded(self, array: BF16Array) -> BF16Array:
        """Rows for the programs: those of `array`, and zeros."""
        if len(array) == self._width:
            return array
        padded = np.zeros((self._width, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded


class RowsPass:
    """A step's tokens on their way through all layers, of one sequence or of several: noted once and
    repeated, or taken at once.

    A row of the result depends on its own token and on what it sees, not on the step: not on how many rows it
    has, nor on the context. The host writes keys and values into the window and the pool; all else stays on
    the device. step: of the variant whose programs are called. recording: where the calls are noted; None:
    `calls` takes them at once.
    """

    def __init__(
        self, model: LoadedModel, call: VariantCall, cache: KVLayout, pool: PagePool, calls: CallSink
    ) -> None:
        self._model, self._cache, self._calls = model, cache, calls
        self._recording = calls if isinstance(calls, Recording) else None
        self._cache_rows = NewKVRows(cache.layers) if cache.layers else None
        self._pool_rows = NewKVRows(pool.layers, pool.keys_before_rope)
        self._rows = LayerCalls(model, call, cache, calls, bool(pool.keys_before_rope))
        self._last = model.config.num_hidden_layers - 1
        self._width = call.variant
        if self._recording:
            self._x = np.zeros((call.variant, model.config.hidden_size), bf16)
            self._out = self._layers(self._x, self._last + 1)

    @property
    def is_current(self) -> bool:
        """Whether the buffers that its calls were noted for are there still."""
        return self._recording is not None and self._recording.is_current

    def __call__(self, x: BF16Array, rows: BatchLayout, tail: VariantCall | None = None) -> BF16Array:
        """The last layer's output for the wanted rows, (wanted, hidden_size).

        x: embeddings, (tokens, hidden_size). tail: of the programs that compute of the last layer what is
        wanted alone; None where those of the step do. With none wanted, the last layer gives keys and values
        alone (DECODER_PREFILL).
        """
        if self._cache_rows:
            self._cache_rows.set_positions(rows.cache_positions)
        self._pool_rows.set_positions(rows.pool_positions)
        self._rows.set_positions(rows.positions, rows.visible)
        if self._recording is None:
            return self._run_calls(x, rows, tail)
        self._x[: len(x)], self._x[len(x) :] = x, 0
        self._recording()
        return self._out[rows.output_rows]

    def _layers(self, x: BF16Array, count: int) -> BF16Array:
        for layer in range(count):
            x = self._rows.attend(layer, x, self._rows.project(layer, x, self._store))
        return x

    def _store(self, layer: int, *new: BF16Array) -> list[HostWork]:
        to_window = self._cache_rows.layer_work(layer, *new[:2]) if self._cache_rows else []
        return [*to_window, *self._pool_rows.layer_work(layer, *new)]

    def _run_calls(self, x: BF16Array, rows: BatchLayout, tail: VariantCall | None) -> BF16Array:
        x = self._layers(self._rows.padded(x), self._last)
        projected = self._rows.project(self._last, x, self._store, on_device=())
        if not len(rows.output_rows):
            return x[:0].copy()
        if tail is None:
            return self._rows.attend(self._last, x, projected)[rows.output_rows]
        few = LayerCalls(self._model, tail, self._cache, self._calls)
        some = rows.for_output_rows(tail.variant)
        few.set_positions(some.positions, some.visible)
        x, queries = (few.padded(each[rows.output_rows]) for each in (x, projected["q_roped"]))
        return few.attend(self._last, x, {"q_roped": queries})[: len(rows.output_rows)].copy()


class BatchLayout(NamedTuple):
    """Where the rows of a step stand.

    positions: in their sequences, (rows,), 0 for padding. seen: what each sees of the window, (rows, context)
    bool. to_window, to_pool: where keys and values go, of each row that is no padding. wanted: the rows whose
    results are.
    """

    positions: NDArray[np.int64]
    visible: NDArray[np.bool_]
    cache_positions: NDArray[np.int64]
    pool_positions: NDArray[np.int64]
    output_rows: NDArray[np.int64]

    def for_output_rows(self, width: int) -> BatchLayout:
        """Of the wanted rows alone, filled up to so many."""
        positions, seen = np.zeros(width, np.int64), np.zeros((width, self.visible.shape[1]), bool)
        count = len(self.output_rows)
        positions[:count], seen[:count] = self.positions[self.output_rows], self.visible[self.output_rows]
        return BatchLayout(
            positions, seen, self.cache_positions[:0], self.pool_positions[:0], np.arange(count)
        )


class TokenPass:
    """A token's way through all layers, on arrays that stay in place from token to token.

    Where the model's runner records calls, they are noted once and repeated for every token; else they are
    made layer by layer. pool: where keys and values lie. visible: as for `__call__`.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, visible: Any) -> None:
        config = model.config
        self._model, self._with_keys_before_rope = model, bool(pool.keys_before_rope)
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_row = np.empty_like(model.rope[0])
        width = config.num_attention_heads * config.head_dim
        self._attention = CacheAttention(pool.layers, width, visible, pool.keys_before_rope)
        self._recording = model.runner.record()
        if self._recording:
            self._recorded = self._layers(self._recording)

    def can_reuse_for(self, model: LoadedModel, visible: Any) -> bool:
        """Whether it is this model's, for a token that sees `visible`, and its buffers are there still."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.can_reuse_for(visible)

    def __call__(self, token_id: int, position: int, place: int, visible: Any) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token at a position of its sequence. Its keys and
        values go to this place of the pool, and it sees the places that `visible` picks."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            self._rope_row[...] = self._model.rope[position]
        self._attention.set_position(place, visible)
        if self._recording is None:
            row = self._layers(ImmediateCalls(self._model))
        else:
            self._recording()
            row = self._recorded
        return row.copy()  # a view on a buffer that the next token overwrites

    def _layers(self, steps: CallSink) -> BF16Array:
        x = self._x
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last + 1):
            x = self._layer(steps, layer, x, on_device=() if layer == last else ("x_next",))
        return x

    def _layer(self, steps: CallSink, layer: int, x: BF16Array, on_device: Collection[str]) -> BF16Array:
        """One transformer block over one row; x and the result are (hidden_size,)."""
        qkv, o_ffn = (self._model.programs[name] for name in ("rms_gemv_rope", "o_gemv_ffn"))
        key = buffer_set(qkv, layer)
        keys_before_rope, outputs = outputs_with_raw_keys(qkv) if self._with_keys_before_rope else ("", None)
        rows = steps.run(qkv, bo_key=key, outputs=outputs, on_device=(), x=x, rope_row=self._rope_row)
        new = (rows[name] for name in ("k_roped", "v", keys_before_rope) if name)
        keep, attend = self._attention.layer_work(layer, rows["q_roped"], *new)
        for work in keep:
            steps.host("KV cache write", work)
        steps.host("decode attention", attend)
        key, out = buffer_set(o_ffn, layer), self._attention.out
        return steps.run(o_ffn, bo_key=key, on_device=on_device, x=x, attn_out=out)["x_next"]


class ImmediateCalls:
    """Takes at once the steps that a Recording would note. `ran` is told the kind of every program, `costs`
    how long it took."""

    def __init__(
        self,
        model: LoadedModel,
        on_program: OnProgram | None = None,
        costs: CallCosts | None = None,
    ) -> None:
        self._runner, self._timer, self._on_program = model.runner, model.host_timer, on_program
        self._costs = costs

    def run(
        self,
        program: Program,
        /,
        *,
        bo_key: str,
        outputs: Collection[str] | None = None,
        on_device: Collection[str],
        **arrays: NDArray[Any],
    ) -> dict[str, NDArray[Any]]:
        started = time.perf_counter()
        made = self._runner.run(
            program, bo_key=bo_key, outputs=outputs, copy=False, on_device=on_device, **arrays
        )
        if self._costs:
            self._costs.record(program, time.perf_counter() - started)
        if self._on_program:
            self._on_program(program.kind)
        return made

    def host(self, name: str, work: HostWork) -> None:
        with self._timer(name):
            work.run()
