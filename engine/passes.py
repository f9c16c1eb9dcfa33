"""One way of tokens through all layers: a step of several tokens on blocks of rows, or one token by GEMVs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerie.engine.attention import CacheAttention
from aerie.engine.kv import KVCache, mask_words
from aerie.engine.model import LoadedModel
from aerie.engine.numerics import BF16Array, bf16
from aerie.engine.planner import Step
from aerie.engine.programs import CACHE, buffer_set
from aerie.multi_launch_builder import Program
from aerie.runtime import HostWork, Recording

Arrays = dict[str, NDArray[Any]]


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
        rows = _Rows(self._model, self._step)
        x = rows.padded(x)
        for layer in range(self._last):
            x = self._attend(rows, layer, x, self._project(rows, layer, x))
        projected = self._project(rows, self._last, x)
        if not wanted:
            return x[:0].copy()
        if tail := self._model.blocks.tail(self._step, wanted):
            rows = _Rows(self._model, tail)
            x, queries = (rows.padded(_cut(each, wanted)) for each in (x, projected["q_roped"]))
            projected, wanted = {"q_roped": queries}, range(len(wanted))
        return _cut(self._attend(rows, self._last, x, projected), wanted).copy()

    def _project(self, rows: _Rows, layer: int, x: BF16Array) -> Arrays:
        """Queries, keys and values of a layer: the latter two are in the cache then."""
        program, cache, step = rows.qkv, self._cache, self._step
        stays = () if layer == self._last else ("q_roped",)
        made = self._model.run(program, layer, stays, slot="", x=x, **rows.given(program))
        self._ran(program.kind)
        with self._model.host_timer("KV cache write"):
            kept = made["k_roped"][: step.n_process], made["v"][: step.n_process]
            cache.write(layer, step.new_idx, *kept)
        return made

    def _attend(self, rows: _Rows, layer: int, x: BF16Array, projected: Arrays) -> BF16Array:
        """What a layer does with queries: attention, output projection, FFN; x is its input."""
        model, attention, ffn = self._model, rows.attention, rows.ffn
        given = {"q_roped": projected["q_roped"], **rows.given(attention)}
        attends_to_cache = "mask" in given
        if attends_to_cache:
            given |= dict(zip(CACHE, self._cache.layers[layer], strict=True))
        else:
            given |= projected
        slot = self._cache.slot if attends_to_cache else ""
        attended = model.run(attention, layer, on_device=("attn_out",), slot=slot, **given)
        self._ran(attention.kind)
        on_device = () if layer == self._last else ("x_next",)
        made = model.run(ffn, layer, on_device=on_device, x=x, attn_out=attended["attn_out"])
        self._ran(ffn.kind)
        return made["x_next"]


def _cut(array: NDArray[Any], rows: range) -> NDArray[Any]:
    return array[rows.start : rows.stop]


class _Rows:
    """What the programs of a step are given beside activations: the same in every layer."""

    def __init__(self, model: LoadedModel, step: Step) -> None:
        self._programs, self._names = model.programs, model.blocks.names(step)
        self._width = step.variant
        self._inputs: Arrays = {}
        if model.blocks.variants:
            first, rows = step.new_idx, step.n_process
            positions = np.minimum(first + np.arange(step.variant), len(model.rope) - 1)
            self._inputs["rope_rows"] = model.rope[positions]
            self._inputs["mask"] = mask_words(model.mask, first, rows, step.variant, step.context)

    @property
    def qkv(self) -> Program:
        """Of which a step that goes on where another stopped has no need."""
        return self._programs[self._names.qkv]

    @property
    def attention(self) -> Program:
        return self._programs[self._names.attention]

    @property
    def ffn(self) -> Program:
        return self._programs[self._names.ffn]

    def given(self, program: Program) -> Arrays:
        """Those that a program takes."""
        return {name: array for name, array in self._inputs.items() if name in program.arguments.names}

    def padded(self, array: BF16Array) -> BF16Array:
        """Rows for the programs: those of `array`, and zeros."""
        if len(array) == self._width:
            return array
        padded = np.zeros((self._width, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded


class TokenPass:
    """A token's way through all layers, on arrays that stay in place from token to token.

    Where the model's runner records calls, they are noted once and repeated for every token; else they are
    made layer by layer.
    """

    def __init__(self, model: LoadedModel, cache: KVCache, visible: Any) -> None:
        config = model.config
        self._model = model
        self._x = np.empty(config.hidden_size, bf16)
        self._rope_row = np.empty_like(model.rope[0])
        self._attention = CacheAttention(cache.layers, config.num_attention_heads * config.head_dim, visible)
        self._recording = model.runner.record()
        if self._recording:
            self._recorded = self._layers(self._recording)

    def serves(self, model: LoadedModel, visible: Any) -> bool:
        """Whether it is this model's, for a token that sees `visible`, and its buffers are there still."""
        is_current = self._recording is None or self._recording.is_current
        return model is self._model and is_current and self._attention.serves(visible)

    def __call__(self, token_id: int, position: int, visible: Any) -> BF16Array:
        """The last layer's output, (hidden_size,), for a token at a position."""
        with self._model.host_timer("embedding"):
            self._x[...] = self._model.embed_table[token_id]
            self._rope_row[...] = self._model.rope[position]
        self._attention.move_to(position, visible)
        if self._recording is None:
            row = self._layers(_AtOnce(self._model))
        else:
            self._recording()
            row = self._recorded
        return row.copy()  # a view on a buffer that the next token overwrites

    def _layers(self, steps: Recording | _AtOnce) -> BF16Array:
        x = self._x
        last = self._model.config.num_hidden_layers - 1
        for layer in range(last + 1):
            x = self._block(steps, layer, x, on_device=() if layer == last else ("x_next",))
        return x

    def _block(
        self, steps: Recording | _AtOnce, layer: int, x: BF16Array, on_device: Collection[str]
    ) -> BF16Array:
        """One transformer block over one row; x and the result are (hidden_size,)."""
        qkv, o_ffn = (self._model.programs[name] for name in ("rms_gemv_rope", "o_gemv_ffn"))
        key = buffer_set(qkv, layer)
        rows = steps.run(qkv, bo_key=key, on_device=(), x=x, rope_row=self._rope_row)
        keep, attend = self._attention.works(layer, rows["q_roped"], rows["k_roped"], rows["v"])
        steps.host("KV cache write", keep)
        steps.host("decode attention", attend)
        key, out = buffer_set(o_ffn, layer), self._attention.out
        return steps.run(o_ffn, bo_key=key, on_device=on_device, x=x, attn_out=out)["x_next"]


class _AtOnce:
    """Takes at once the steps that a Recording would note."""

    def __init__(self, model: LoadedModel) -> None:
        self._runner, self._timer = model.runner, model.host_timer

    def run(
        self, program: Program, /, *, bo_key: str, on_device: Collection[str], **arrays: NDArray[Any]
    ) -> dict[str, NDArray[Any]]:
        return self._runner.run(program, bo_key=bo_key, copy=False, on_device=on_device, **arrays)

    def host(self, name: str, work: HostWork) -> None:
        with self._timer(name):
            work.do()
