"""Forward passes: the tokens of an engine step in rows, or one token by GEMVs with attention on the host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import CacheAttention, NewKVRows
from aerie.engine.call_costs import CallCosts
from aerie.engine.communication import all_gather_columns, all_reduce_sum
from aerie.engine.kv_cache import KeysAndValues
from aerie.engine.layer_states import StatePlan, StateRows
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.page_pool import PagePool
from aerie.engine.planner import VariantCall
from aerie.engine.programs import CACHE, buffer_set, outputs_with_raw_keys
from aerie.engine.state_layers import CONV_ROWS, state_calls
from aerie.kernel_builder.arguments import Role, pack_bits
from aerie.multi_launch_builder import Program
from aerie.runtime import HostWork, Recording

Arrays = dict[str, NDArray[Any]]
OnProgram: TypeAlias = "Callable[[str], None]"
"""Called with the kind of every program that has run."""
ROPE_ROWS, MASK = "rope_rows", "mask"
"""Inputs of the programs of rows that depend on positions."""
OF_ROWS = ("q_roped", "attn_gate", "conv_c", "delta_out", "delta_z")
"""What the first half of a layer gives to the second half, row by row."""


class CallSink(Protocol):
    """Takes the calls of a forward pass: a Recording stores them, ImmediateCalls makes them."""

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
"""Called with a layer, its keys and values and, if the cache stores them, its keys before RoPE, each (rows,
kv_heads * head_dim). Returns the host work that stores the rows of the step's tokens."""


class KVLayout(Protocol):
    """Keys and values of each layer that attention programs read; for each window, the name and the positions
    of the cache of its layers, as gathered_cache.GatheredCache."""

    @property
    def layers(self) -> Mapping[int, KeysAndValues]: ...

    @property
    def slots(self) -> Sequence[str]: ...

    @property
    def contexts(self) -> Sequence[int]: ...


class LayerCalls:
    """Calls the programs of a variant layer by layer, with `calls`. Inputs that are the same in every layer
    (RoPE rows, mask) are arrays that stay at their addresses."""

    def __init__(
        self,
        model: LoadedModel,
        call: VariantCall,
        kv_layout: KVLayout,
        calls: CallSink,
        states: Sequence[BF16Array],
        with_keys_before_rope: bool = False,
    ) -> None:
        self._model, self._layers, self._slots, self._calls = model, kv_layout.layers, kv_layout.slots, calls
        self._with_keys_before_rope, self._width = with_keys_before_rope, call.variant
        self._last, self._masks = model.config.num_hidden_layers - 1, model.config.masks
        layers = range(self._last + 1)
        self._before = model.variant_set.programs_before_attention
        self._names = [model.layer_programs(call.variant, kv_layout.contexts, layer) for layer in layers]
        self._inputs: dict[tuple[str, int], NDArray[Any]] = {}
        self._states = state_calls(model, call.variant, states, calls)
        for layer in layers:
            self._add_inputs(layer)

    def _add_inputs(self, layer: int) -> None:
        """Make the arrays that the programs of a layer take, as far as these are loaded."""
        numbers, kinds = self._input_numbers(layer), self._model.config.weight_kinds
        loaded = (self._model.programs.get(kinds.name(name, layer)) for name in self._names[layer])
        for argument in itertools.chain.from_iterable(each.arguments for each in loaded if each):
            key = argument.name, numbers.get(argument.name, 0)
            if argument.name in numbers and key not in self._inputs:
                self._inputs[key] = np.empty(argument.shape, argument.dtype.numpy)

    def _input_numbers(self, layer: int) -> dict[str, int]:
        """Which array a layer takes: of RoPE the number of its table, of the mask that of its window."""
        return {ROPE_ROWS: self._model.rope.of_layer[layer], MASK: self._masks.of_layer[layer]}

    def set_plan(self, plan: StatePlan) -> None:
        """Set which rows of states the rows read and write."""
        if self._states:
            self._states.set_plan(plan)

    def set_positions(self, positions: NDArray[np.int64], visible: Sequence[NDArray[np.bool_]]) -> None:
        """Set the positions of the rows in their sequences, (rows,), and the cache positions that each row
        attends to, for each of the model's windows: bool (rows, context) each."""
        for (name, number), array in self._inputs.items():
            array[...] = (
                self._model.rope.tables[number][positions]
                if name == ROPE_ROWS
                else pack_bits(visible[number])
            )

    def project(
        self, layer: int, x: BF16Array, store: StoreRows, on_device: Collection[str] = OF_ROWS
    ) -> Arrays:
        """Compute queries, keys and values of a layer, and store keys and values in the cache with `store`;
        or what a short convolution reads, or linear attention, and store what the layer's state becomes."""
        if self._states and layer in self._model.config.layers_with_conv:
            programs = [self._model.program(name, layer) for name in self._names[layer]]
            return self._states.project(programs, layer, x, on_device)
        programs = [self._model.program(name, layer) for name in self._names[layer][: self._before]]
        keys_before_rope, outputs = (
            outputs_with_raw_keys(programs[-1]) if self._with_keys_before_rope else ("", None)
        )
        if len(programs) > 1:
            outputs_by_name = self._project_in_parts(layer, programs, x, outputs)
        else:
            stays, key = {*on_device} & {*programs[0].arguments.names}, buffer_set(programs[0], layer)
            inputs = self._inputs_of(programs[0], layer)
            outputs_by_name = self._calls.run(
                programs[0], bo_key=key, outputs=outputs, on_device=stays, x=x, **inputs
            )
        new_rows = [
            outputs_by_name["k_roped"],
            outputs_by_name["v"],
            *([outputs_by_name.pop(keys_before_rope)] if keys_before_rope else []),
        ]
        for work in store(self._model.kv_layer_index(layer), *new_rows):
            self._calls.host("KV cache write", work)
        return outputs_by_name

    def _project_in_parts(
        self, layer: int, programs: Sequence[Program], x: BF16Array, outputs: Collection[str] | None
    ) -> Arrays:
        """Compute queries, keys and values on one of several devices, where norms of queries and keys take
        the heads of all of them. outputs: of the second program, all or as its roles say."""
        products, norms = programs
        parts = self._calls.run(products, bo_key=buffer_set(products, layer), on_device=(), x=x)
        heads = zip(("q", "k"), self._model.config.all_heads, strict=True)
        whole = {f"{of}_all": self._gather(parts[of], count) for of, count in heads}
        key, inputs = buffer_set(norms, layer), self._inputs_of(norms, layer)
        made = self._calls.run(norms, bo_key=key, outputs=outputs, on_device=(), **whole, **inputs)
        widths = {name: parts[name[0]].shape[1] for name in made}
        own = {name: self._own_columns(each, widths[name]) for name, each in made.items()}
        return {name.replace("_all", ""): each for name, each in own.items()} | {"v": parts["v"]}

    def _gather(self, part: BF16Array, heads: int) -> BF16Array:
        """The columns of `heads` heads, of which every device gives its part."""
        group = self._model.group
        out = np.empty((len(part), heads * self._model.config.head_dim), bf16)
        firsts = [self._first_column(rank, heads) for rank in range(group.world_size)]
        self._calls.host("gather", HostWork(partial(all_gather_columns, group, part, firsts, out)))
        return out

    def _own_columns(self, whole: BF16Array, width: int) -> BF16Array:
        """This device's columns of what all devices have."""
        heads = whole.shape[1] // self._model.config.head_dim
        first = self._first_column(self._model.group.rank, heads)
        out = np.empty((len(whole), width), whole.dtype)
        self._calls.host("gather", HostWork(partial(np.copyto, out, whole[:, first : first + width])))
        return out

    def _first_column(self, rank: int, heads: int) -> int:
        """Where the part of a rank begins in the columns of `heads` heads (tensor_parallel.RankWeights)."""
        return rank * heads // self._model.group.world_size * self._model.config.head_dim

    def attend(self, layer: int, x: BF16Array, projected: Arrays) -> BF16Array:
        """Compute attention, or what a layer has in its place, output projection and FFN of a layer. x: the
        layer's input. projected: the result of `project`."""
        programs = [self._model.program(name, layer) for name in self._names[layer][self._before :]]
        attended, after = self._mix(layer, programs, projected)
        if len(after) > 1:
            return self._attend_in_parts(layer, x, attended, after)
        on_device, key = () if layer == self._last else ("x_next",), buffer_set(after[0], layer)
        return self._calls.run(after[0], bo_key=key, on_device=on_device, x=x, attn_out=attended)["x_next"]

    def _mix(
        self, layer: int, programs: Sequence[Program], projected: Arrays
    ) -> tuple[BF16Array, Sequence[Program]]:
        """What the output projection reads, and the programs that are left."""
        if self._states and layer in self._model.config.layers_with_conv:
            return self._states.mix(programs, layer, projected)
        if not self._model.config.family.attention_gate:
            return self._attend(programs[0], layer, projected), programs[1:]
        attended = self._attend(programs[0], layer, projected, on_device=())
        return self._gate(programs[1], layer, attended, projected["attn_gate"]), programs[2:]

    def _gate(self, program: Program, layer: int, attended: BF16Array, gate: BF16Array) -> BF16Array:
        """What attention gives, times the sigmoid of its gate."""
        inputs, key = {"attended": attended, "attn_gate": gate}, buffer_set(program, layer)
        return self._calls.run(program, bo_key=key, on_device=("attn_out",), **inputs)["attn_out"]

    def _attend(
        self, attention: Program, layer: int, projected: Arrays, on_device: Collection[str] = ("attn_out",)
    ) -> BF16Array:
        window = self._masks.of_layer[layer]
        inputs = {"q_roped": projected["q_roped"], **self._inputs_of(attention, layer)}
        key = buffer_set(attention, layer)
        if MASK in inputs:
            inputs |= dict(zip(CACHE, self._layers[self._model.kv_layer_index(layer)], strict=True))
            key = self._model.buffer_names.key(attention, layer, self._slots[window])
        else:
            inputs |= projected
        return self._calls.run(attention, bo_key=key, on_device=on_device, **inputs)["attn_out"]

    def _attend_in_parts(
        self, layer: int, x: BF16Array, attended: BF16Array, after: Sequence[Program]
    ) -> BF16Array:
        """Compute output projection and FFN on one of several devices. The parts of all devices are summed
        after each of the two programs; where the sum goes through a norm, a program of its own follows."""
        half = len(after) // 2
        res1 = self._sum_of_parts(layer, after[:half], x, attn_out=attended)
        return self._sum_of_parts(layer, after[half:], res1, res1=res1)

    def _sum_of_parts(
        self, layer: int, programs: Sequence[Program], residual: BF16Array, **inputs: BF16Array
    ) -> BF16Array:
        """The residual and the sum of what the first program gives on each device. A second program, if there
        is one, makes a norm of the sum and adds it to the residual."""
        part, *add = programs
        made = self._calls.run(part, bo_key=buffer_set(part, layer), on_device=(), **inputs)
        (partial_sum,) = made.values()
        if not add:
            return self._sum(residual, partial_sum)
        residual_name, sum_name = (each.name for each in add[0].arguments if each.role is Role.INPUT)
        total = {residual_name: residual, sum_name: self._sum(None, partial_sum)}
        (out,) = self._calls.run(add[0], bo_key=buffer_set(add[0], layer), on_device=(), **total).values()
        return out

    def _sum(self, residual: BF16Array | None, partial_sum: BF16Array) -> BF16Array:
        out = np.empty_like(partial_sum)
        scale = 1.0 if residual is None else self._model.config.multipliers.residual
        work = partial(all_reduce_sum, self._model.group, residual, partial_sum, out, scale)
        self._calls.host("sum over devices", HostWork(work))
        return out

    def _inputs_of(self, program: Program, layer: int) -> Arrays:
        """The inputs in `_inputs` that a program takes for a layer."""
        numbers = self._input_numbers(layer)
        names = (name for name in numbers if name in program.arguments.names)
        return {name: self._inputs[name, numbers[name]] for name in names}

    def padded(self, array: BF16Array) -> BF16Array:
        """Pad `array` with rows of zeros to the rows of the programs."""
        if len(array) == self._width:
            return array
        padded = np.zeros((self._width, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded


class RowsPass:
    """A forward pass of the tokens of an engine step, of one sequence or several. Its calls are recorded once
    and repeated, or made at once.

    A row of the result depends on its own token and on the positions it attends to, not on the number of rows
    or on the context. The host writes keys and values to the gathered cache and to the pool; all else stays
    on the device. call: has the variant whose programs are called. calls: a Recording, or where the calls are
    made. plan: of the first step's states; that of a later step has the same key if calls are recorded.
    """

    def __init__(
        self,
        model: LoadedModel,
        call: VariantCall,
        cache: KVLayout,
        pool: PagePool,
        calls: CallSink,
        plan: StatePlan,
    ) -> None:
        self._model, self._cache, self._calls = model, cache, calls
        self._recording = calls if isinstance(calls, Recording) else None
        windows = model.config.with_repeated_layers(model.local_world_size).windows_of_kv_layers
        self._cache_rows = NewKVRows(cache.layers, window_of_layer=windows) if cache.layers else None
        self._pool_rows = NewKVRows(pool.layers, pool.keys_before_rope)
        self._states = pool.states
        self._rows = LayerCalls(model, call, cache, calls, pool.states, bool(pool.keys_before_rope))
        self._rows.set_plan(plan)
        self._last = model.config.num_hidden_layers - 1
        self._width = call.variant
        if self._recording:
            self._x = np.zeros((call.variant, model.config.hidden_size), bf16)
            self._out = self._layers(self._x, self._last + 1)

    @property
    def is_current(self) -> bool:
        """Whether the calls are recorded and their buffers still exist."""
        return self._recording is not None and self._recording.is_current

    def __call__(self, x: BF16Array, rows: BatchLayout, tail: VariantCall | None = None) -> BF16Array:
        """The last layer's output for the output rows, (output rows, hidden_size).

        x: embeddings, (tokens, hidden_size). tail: the variant with fewer rows that computes the end of the
        last layer for the output rows; None means the programs of `call` do. Without output rows the last
        layer computes keys and values only (DECODER_PREFILL).
        """
        if self._cache_rows:
            self._cache_rows.set_positions(*rows.cache_positions)
        self._pool_rows.set_positions(rows.pool_positions)
        self._rows.set_plan(rows.states)
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
        cache_work = self._cache_rows.layer_work(layer, *new[:2]) if self._cache_rows else []
        return [*cache_work, *self._pool_rows.layer_work(layer, *new)]

    def _run_calls(self, x: BF16Array, rows: BatchLayout, tail: VariantCall | None) -> BF16Array:
        x = self._layers(self._rows.padded(x), self._last)
        projected = self._rows.project(self._last, x, self._store, on_device=())
        if not len(rows.output_rows):
            return x[:0].copy()
        if tail is None:
            return self._rows.attend(self._last, x, projected)[rows.output_rows]
        tail_calls = LayerCalls(self._model, tail, self._cache, self._calls, self._states)
        tail_layout = rows.for_output_rows(tail.variant)
        tail_calls.set_positions(tail_layout.positions, tail_layout.visible)
        tail_calls.set_plan(tail_layout.states)
        of_rows: Arrays = {
            name: tail_calls.padded(projected[name][rows.output_rows])
            for name in OF_ROWS
            if name in projected
        }
        x = tail_calls.padded(x[rows.output_rows])
        return tail_calls.attend(self._last, x, of_rows)[: len(rows.output_rows)].copy()


class BatchLayout(NamedTuple):
    """Positions of the rows of an engine step.

    positions: in their sequences, int64 (rows,), 0 for padding. visible: what each row attends to, for each
    of the model's windows, bool (rows, context) each. cache_positions, for each window, and pool_positions:
    where the keys and values of each row go, padding excluded. output_rows: rows whose result is needed.
    states: which rows of states each row reads and writes, padding excluded.
    """

    positions: NDArray[np.int64]
    visible: Sequence[NDArray[np.bool_]]
    cache_positions: Sequence[NDArray[np.int64]]
    pool_positions: NDArray[np.int64]
    output_rows: NDArray[np.int64]
    states: StatePlan

    def for_output_rows(self, width: int) -> BatchLayout:
        """The layout of the output rows only, padded to `width` rows. It stores no keys and values."""
        rows, count = self.output_rows, len(self.output_rows)
        positions = np.zeros(width, np.int64)
        positions[:count] = self.positions[rows]
        visible = [np.zeros((width, seen.shape[1]), bool) for seen in self.visible]
        for seen, all_seen in zip(visible, self.visible, strict=True):
            seen[:count] = all_seen[rows]
        states = self.states.for_rows(rows)
        return BatchLayout(positions, visible, [], self.pool_positions[:0], np.arange(count), states)


class TokenPass:
    """A forward pass of one token by GEMVs, on arrays that stay at their addresses.

    If the model's runner can record, the calls are recorded once and repeated for every token; else they are
    made layer by layer. pool: where keys and values are stored. visible: as in `__call__`.
    """

    def __init__(self, model: LoadedModel, pool: PagePool, visible: Sequence[Any]) -> None:
        config = model.config
        self._model, self._with_keys_before_rope = model, bool(pool.keys_before_rope)
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_rows = [np.empty(table.shape[1:], bf16) for table in model.rope.tables]
        width = config.num_attention_heads * config.head_dim
        scale = config.multipliers.attention
        self._attention = CacheAttention(
            pool.layers, width, visible, pool.keys_before_rope, scale, config.masks.of_layer
        )
        self._states, reach = StateRows(pool.states), config.states.reach
        self._conv_rows = np.empty((reach + 1, config.hidden_size), bf16)
        self._recording = model.runner.record()
        if self._recording:
            self._recorded = self._layers(self._recording)

    def can_reuse_for(self, model: LoadedModel, visible: Sequence[Any]) -> bool:
        """Whether this pass belongs to the model, fits a token that attends to `visible`, and its buffers
        still exist."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.can_reuse_for(visible)

    def __call__(
        self, token_id: int, position: int, state_positions: NDArray[np.int64], visible: Sequence[Any]
    ) -> BF16Array:
        """The last layer's output, (hidden_size,), of a token at a position of its sequence. Its key and
        value go to the last of `state_positions`, as BatchLayout has them; it attends to the pool positions
        that an index selects, one in `visible` for each of the model's windows."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            for row, table in zip(self._rope_rows, self._model.rope.tables, strict=True):
                row[...] = table[position]
        self._attention.set_position(int(state_positions[0, -1]), visible)
        self._states.set_positions(state_positions)
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
        """One layer over one row; x and the result are (hidden_size,)."""
        is_conv = layer in self._model.config.layers_with_conv
        out = (self._convolve if is_conv else self._attend)(steps, layer, x)
        o_ffn = self._model.program("o_gemv_ffn", layer)
        key = buffer_set(o_ffn, layer)
        return steps.run(o_ffn, bo_key=key, on_device=on_device, x=x, attn_out=out)["x_next"]

    def _convolve(self, steps: CallSink, layer: int, x: BF16Array) -> BF16Array:
        before, conv = (self._model.program(name, layer) for name in ("rms_gemv_gate", "short_conv_row"))
        state = self._model.state_index(layer)
        rows = steps.run(before, bo_key=buffer_set(before, layer), on_device=("conv_c",), x=x)
        steps.host("state write", self._states.store(state, rows["gated"][None]))
        steps.host("state read", self._states.gather(state, self._conv_rows[None]))
        inputs = {CONV_ROWS: self._conv_rows, "conv_c": rows["conv_c"]}
        key = buffer_set(conv, layer)
        return steps.run(conv, bo_key=key, on_device=("attn_out",), **inputs)["attn_out"]

    def _attend(self, steps: CallSink, layer: int, x: BF16Array) -> BF16Array:
        qkv = self._model.program("rms_gemv_rope", layer)
        key = buffer_set(qkv, layer)
        keys_before_rope, outputs = outputs_with_raw_keys(qkv) if self._with_keys_before_rope else ("", None)
        rope_row = self._rope_rows[self._model.rope.of_layer[layer]]
        rows = steps.run(qkv, bo_key=key, outputs=outputs, on_device=(), x=x, rope_row=rope_row)
        new_rows = (rows[name] for name in ("k_roped", "v", keys_before_rope) if name)
        cache_layer = self._model.kv_layer_index(layer)
        keep, attend = self._attention.layer_work(cache_layer, rows["q_roped"], *new_rows)
        for work in keep:
            steps.host("KV cache write", work)
        steps.host("decode attention", attend)
        return self._attention.out


class ImmediateCalls:
    """Makes the calls that a Recording would store. on_program: called with the kind of each program. costs:
    gets the time of each call."""

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
        outputs_by_name = self._runner.run(
            program, bo_key=bo_key, outputs=outputs, copy=False, on_device=on_device, **arrays
        )
        if self._costs:
            self._costs.record(program, time.perf_counter() - started)
        if self._on_program:
            self._on_program(program.kind)
        return outputs_by_name

    def host(self, name: str, work: HostWork) -> None:
        with self._timer(name):
            work.run()
