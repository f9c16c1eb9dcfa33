"""The ways of tokens through all layers: a step of several on blocks of rows; one token so, or by GEMVs."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import CacheAttention, NewRows
from aerie.engine.communication import add_up, check_alike
from aerie.engine.costs import StepCosts
from aerie.engine.kv import KVCache, Layers, mask_words
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.planner import Step
from aerie.engine.programs import CACHE, buffer_set, with_unturned_keys
from aerie.multi_launch_builder import Program
from aerie.runtime import HostWork, Recording

Arrays = dict[str, NDArray[Any]]
Ran: TypeAlias = "Callable[[str], None]"
ROPE_ROWS, MASK = "rope_rows", "mask"
"""What programs of blocks are given of the positions of their rows."""


class BlockPass:
    """A step's tokens on their way through all layers; keys and values go to the cache.

    A row of the result depends on its own token and on what it sees, not on the step: not on how many rows it
    has, nor on the context. The host writes keys and values into the cache; all else stays on the device. Of
    the last layer only the rows that are wanted are computed, by the programs of fewest rows. `ran` is told
    the kind of every program that has run.
    """

    def __init__(self, model: LoadedModel, step: Step, cache: KVCache, ran: Callable[[str], None]) -> None:
        self._model, self._step, self._cache, self._ran = model, step, cache, ran
        self._last = model.config.num_hidden_layers - 1
        if model.blocks.variants:
            cache.reserve(step.context)

    def __call__(self, x: BF16Array, wanted: range) -> BF16Array:
        """The last layer's output for those tokens of the step that are `wanted`, (len(wanted), hidden_size).

        x: their embeddings, (n_process, hidden_size). With none wanted, the last layer gives keys and values
        alone (DECODER_PREFILL).
        """
        check_alike(self._model.group, zlib.crc32(repr(self._step).encode(), zlib.crc32(x.tobytes())))
        return self._model.each(lambda part: self._on(part, x, wanted))

    def _on(self, part: LoadedModel, x: BF16Array, wanted: range) -> BF16Array:
        """The same on a device that has the model, or a part of it."""
        ran = self._ran if part.part == 0 else None
        rows = self._rows(part, self._step, ran)
        x = rows.padded(x)
        for layer in range(self._last):
            x = rows.attend(layer, x, rows.project(layer, x, self._keep))
        projected = rows.project(self._last, x, self._keep, on_device=())
        if not wanted:
            return x[:0].copy()
        if tail := part.blocks.tail(self._step, wanted):
            rows = self._rows(part, tail, ran)
            x, queries = (rows.padded(_cut(each, wanted)) for each in (x, projected["q_roped"]))
            projected, wanted = {"q_roped": queries}, range(len(wanted))
        return _cut(rows.attend(self._last, x, projected), wanted).copy()

    def _rows(self, part: LoadedModel, step: Step, ran: Ran | None) -> BlockCalls:
        # With fewer tokens, rows of zeros may be left out, and cost less.
        is_timed = step.n_process == step.variant and part.blocks.devices == 1
        calls = AtOnce(part, ran, part.blocks.costs if is_timed else None)
        rows = BlockCalls(part, step, self._cache, calls, bool(self._cache.unturned))
        rows.move_to(step)
        return rows

    def _keep(self, layer: int, *new: BF16Array) -> list[HostWork]:
        first, count = self._step.new_idx, self._step.n_process
        return [HostWork(lambda: self._cache.write(layer, first, *(rows[:count] for rows in new)))]


def _cut(array: NDArray[Any], rows: range) -> NDArray[Any]:
    return array[rows.start : rows.stop]


class Calls(Protocol):
    """What takes the steps of a pass: a Recording notes them, AtOnce takes them."""

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


Keep: TypeAlias = "Callable[..., list[HostWork]]"
"""Of a layer, its keys and values, and keys before RoPE where the cache has them, each (rows,
kv_heads * head_dim): to store those of the step's tokens."""


class Laid(Protocol):
    """Where keys and values lie that programs of blocks attend to, as in kv.Room."""

    @property
    def layers(self) -> Layers: ...

    @property
    def slot(self) -> str: ...


class BlockCalls:
    """The programs that take blocks of a variant's rows through the layers, called or noted by `calls`; and
    what they are given beside activations, in arrays that stay: the same in every layer of a step."""

    def __init__(
        self, model: LoadedModel, step: Step, laid: Laid, calls: Calls, with_unturned: bool = False
    ) -> None:
        self._model, self._layers, self._slot, self._calls = model, laid.layers, laid.slot, calls
        self._with_unturned = with_unturned
        self._programs, self._names = model.programs, model.blocks.names(step)
        self._last = model.config.num_hidden_layers - 1
        self._width, self._context = step.variant, step.context
        loaded = (model.programs[name] for name in self._names if name in model.programs)
        tables = itertools.chain.from_iterable(program.arguments for program in loaded)
        self._inputs = {
            argument.name: np.empty(argument.shape, argument.dtype.numpy)
            for argument in tables
            if argument.name in (ROPE_ROWS, MASK)
        }

    def move_to(self, step: Step) -> None:
        """The next step that is taken, of this variant."""
        model, first = self._model, step.new_idx
        words = np.empty(0, np.int32)
        if MASK in self._inputs:
            words = mask_words(model.mask, first, step.n_process, self._width, self._context)
        self.stand(np.minimum(first + np.arange(self._width), len(model.rope) - 1), words)

    def stand(self, positions: NDArray[np.intp], words: NDArray[np.int32]) -> None:
        """The rows have these positions in their sequences, (rows,), and see what these words of a mask say
        (mask_words)."""
        if ROPE_ROWS in self._inputs:
            self._inputs[ROPE_ROWS][...] = self._model.rope[positions]
        if MASK in self._inputs:
            self._inputs[MASK][...] = words

    def project(
        self, layer: int, x: BF16Array, keep: Keep, on_device: Collection[str] = ("q_roped",)
    ) -> Arrays:
        """Queries, keys and values of a layer: the latter two are in the cache then."""
        program = self._programs[self._names[0]]
        key, given = buffer_set(program, layer), self._given(program)
        unturned, outputs = with_unturned_keys(program) if self._with_unturned else ("", None)
        made = self._calls.run(program, bo_key=key, outputs=outputs, on_device=on_device, x=x, **given)
        new = [made["k_roped"], made["v"], *([made.pop(unturned)] if unturned else [])]
        for work in keep(self._model.at(layer), *new):
            self._calls.host("KV cache write", work)
        return made

    def attend(self, layer: int, x: BF16Array, projected: Arrays) -> BF16Array:
        """What a layer does with queries: attention, output projection, FFN; x is its input."""
        attention, *after = (self._programs[name] for name in self._names[1:])
        given = {"q_roped": projected["q_roped"], **self._given(attention)}
        key = buffer_set(attention, layer)
        if MASK in given:
            given |= dict(zip(CACHE, self._layers[self._model.at(layer)], strict=True))
            key = self._model.places.key(attention, layer, self._slot)
        else:
            given |= projected
        attended = self._calls.run(attention, bo_key=key, on_device=("attn_out",), **given)["attn_out"]
        if len(after) > 1:
            return self._add_up_parts(layer, x, attended, *after)
        on_device, key = () if layer == self._last else ("x_next",), buffer_set(after[0], layer)
        return self._calls.run(after[0], bo_key=key, on_device=on_device, x=x, attn_out=attended)["x_next"]

    def _add_up_parts(
        self, layer: int, x: BF16Array, attended: BF16Array, output: Program, ffn: Program
    ) -> BF16Array:
        """The same on one of several devices, with a sum of all of them after each of the two programs."""
        made = self._calls.run(output, bo_key=buffer_set(output, layer), on_device=(), attn_out=attended)
        res1 = self._sum(x, made["proj"])
        made = self._calls.run(ffn, bo_key=buffer_set(ffn, layer), on_device=(), res1=res1)
        return self._sum(res1, made["down"])

    def _sum(self, residual: BF16Array, partial_sum: BF16Array) -> BF16Array:
        out = np.empty_like(residual)
        work = partial(add_up, self._model.group, residual, partial_sum, out)
        self._calls.host("sum over devices", HostWork(work))
        return out

    def _given(self, program: Program) -> Arrays:
        """Those inputs that a program takes."""
        return {name: array for name, array in self._inputs.items() if name in program.arguments.names}

    def padded(self, array: BF16Array) -> BF16Array:
        """Rows for the programs: those of `array`, and zeros."""
        if len(array) == self._width:
            return array
        padded = np.zeros((self._width, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded


class RowPass:
    """A token's way through all layers as a step of the family `rows`, on arrays that stay in place: the
    calls of a BlockPass, noted once and repeated for every token."""

    def __init__(self, model: LoadedModel, step: Step, cache: KVCache, recording: Recording) -> None:
        self._model, self._kind, self._recording = model, step[:2], recording
        self._x = np.zeros((step.variant, model.config.hidden_size), bf16)
        self._new = NewRows(cache.layers, cache.unturned)
        self._rows = BlockCalls(model, step, cache, recording, bool(cache.unturned))
        x = self._x
        for layer in range(model.config.num_hidden_layers):
            x = self._rows.attend(layer, x, self._rows.project(layer, x, self._new.works))
        self._recorded = x

    def serves(self, model: LoadedModel, step: Step) -> bool:
        """Whether it is this model's, of this step's variant, and its buffers are there still."""
        return model is self._model and step[:2] == self._kind and self._recording.is_current

    def __call__(self, token_id: int, step: Step) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token, the only one of its step."""
        with self._model.host_timer("embedding"):
            self._x[0] = self._model.embed_table[token_id]
            self._rows.move_to(step)
        self._new.move_to(step.new_idx)
        self._recording()
        row: BF16Array = self._recorded[0].copy()  # of a buffer that the next token overwrites
        return row


class TokenPass:
    """A token's way through all layers, on arrays that stay in place from token to token.

    Where the model's runner records calls, they are noted once and repeated for every token; else they are
    made layer by layer. layers, unturned: as for CacheAttention.
    """

    def __init__(
        self, model: LoadedModel, layers: Layers, visible: Any, unturned: Sequence[BF16Array] = ()
    ) -> None:
        config = model.config
        self._model, self._with_unturned = model, bool(unturned)
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_row = np.empty_like(model.rope[0])
        width = config.num_attention_heads * config.head_dim
        self._attention = CacheAttention(layers, width, visible, unturned)
        self._recording = model.runner.record()
        if self._recording:
            self._recorded = self._layers(self._recording)

    def serves(self, model: LoadedModel, visible: Any) -> bool:
        """Whether it is this model's, for a token that sees `visible`, and its buffers are there still."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.serves(visible)

    def __call__(self, token_id: int, position: int, visible: Any, place: int | None = None) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token at a position, which is also its place among
        the layers' keys and values unless that is given."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            self._rope_row[...] = self._model.rope[position]
        self._attention.move_to(position if place is None else place, visible)
        if self._recording is None:
            row = self._layers(AtOnce(self._model))
        else:
            self._recording()
            row = self._recorded
        return row.copy()  # a view on a buffer that the next token overwrites

    def _layers(self, steps: Calls) -> BF16Array:
        x = self._x
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last + 1):
            x = self._block(steps, layer, x, on_device=() if layer == last else ("x_next",))
        return x

    def _block(self, steps: Calls, layer: int, x: BF16Array, on_device: Collection[str]) -> BF16Array:
        """One transformer block over one row; x and the result are (hidden_size,)."""
        qkv, o_ffn = (self._model.programs[name] for name in ("rms_gemv_rope", "o_gemv_ffn"))
        key = buffer_set(qkv, layer)
        unturned, outputs = with_unturned_keys(qkv) if self._with_unturned else ("", None)
        rows = steps.run(qkv, bo_key=key, outputs=outputs, on_device=(), x=x, rope_row=self._rope_row)
        new = (rows[name] for name in ("k_roped", "v", unturned) if name)
        keep, attend = self._attention.works(layer, rows["q_roped"], *new)
        for work in keep:
            steps.host("KV cache write", work)
        steps.host("decode attention", attend)
        key, out = buffer_set(o_ffn, layer), self._attention.out
        return steps.run(o_ffn, bo_key=key, on_device=on_device, x=x, attn_out=out)["x_next"]


class AtOnce:
    """Takes at once the steps that a Recording would note. `ran` is told the kind of every program, `costs`
    how long it took."""

    def __init__(
        self,
        model: LoadedModel,
        ran: Callable[[str], None] | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        self._runner, self._timer, self._ran = model.runner, model.host_timer, ran
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
            self._costs.saw(program, time.perf_counter() - started)
        if self._ran:
            self._ran(program.kind)
        return made

    def host(self, name: str, work: HostWork) -> None:
        with self._timer(name):
            work.do()
