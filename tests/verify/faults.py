"""Faults put in on purpose: each turns a healthy session into one that must fail the gate, at a known place.

They go into our side only: the weights that are preloaded, what programs are given and give back, the KV
cache, the mask, the programs themselves, the answer. Nothing of the gate and of the reference is touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from aerie.engine.attention import reference_attention
from aerie.engine.checkpoint import Checkpoint
from aerie.engine.kv_cache import causal
from aerie.engine.model import LoadedModel, preload
from aerie.engine.numerics import bf16, widen
from aerie.engine.page_pool import KVCache
from aerie.engine.program_library import all_program_names
from aerie.engine.requests import Request
from aerie.engine.rope_tables import rope_tables
from aerie.engine.session import Session
from aerie.engine.variant_set import ROWS
from tests.verify.fault_executors import (
    NothingButBlocks,
    OneOff,
    OneOffInDecode,
    ScaledInDecode,
    Swapping,
    Watched,
    scaled_attention,
)
from tests.verify.fault_runners import (
    AFTER,
    ATTENTION,
    BEFORE,
    HEADS,
    Giving,
    Passing,
    Renaming,
    Returning,
    RowBefore,
    Stale,
    layer_of,
    only,
)

ONE_VARIANT = "32x512"
"""What is built otherwise need not be built for every number of rows: no bit depends on that."""


def not_rebuilt(*_: Any, **__: Any) -> Session:
    raise AssertionError("this test opens no session with programs compiled otherwise")


@dataclass(frozen=True)
class Healthy:
    """What faults are put into. `rebuild(...)` opens it with programs compiled otherwise."""

    session: Session
    checkpoint: Checkpoint
    rebuild: Callable[..., Session] = not_rebuilt

    def with_model(self, **changes) -> Session:
        return self.with_other(replace(self.session.model, **changes))

    def with_other(self, model) -> Session:
        """What the healthy model computed is not gone on from."""
        return replace(self.session, model=model)

    def with_runner(self, runner_class, *arguments) -> Session:
        return self.with_model(runner=runner_class(self.session.model.runner, *arguments))


@dataclass(frozen=True)
class Fault:
    """`place` is where diagnosis must point, in the words of verify.diagnosis.Row.place."""

    name: str
    inject: Callable[[Healthy], Session]
    place: str


# Runners around the healthy one.


# Weights.


def weights_fault(layer, change):
    """`change` the weights of `layer`, in buffer sets of their own."""

    class Changed:
        def __init__(self, weights):
            self.weights = weights
            self.lm_head = weights.lm_head

        def layer(self, index):
            tensors = self.weights.layer(index)
            if index != layer:
                return tensors
            loaded = {name: tensor.read() for name, tensor in tensors.items()}
            return {**loaded, **change(loaded)}

    def inject(healthy):
        return preloaded(healthy.session.model, healthy, Changed(healthy.checkpoint.weights))

    return inject


SESSIONS = itertools.count()
"""Each has buffer sets of its own: an object's id may be another's later."""


def preloaded(model, healthy, weights):
    """A session of `model` on buffer sets that hold `weights`."""
    label = f"{next(SESSIONS)}/"
    faulty = replace(model, runner=Renaming(model.runner, label.__add__))
    if model.variant_set.variants:  # what is compiled later is not given these weights
        few = replace(model.variant_set, decode_path=ROWS)
        model.ensure_programs([*all_program_names(model.config, model.variant_set), *few.decode_programs])
    list(preload(faulty, weights))
    return healthy.with_other(faulty)


def heads_swapped(layer):
    first, second, *others = np.split(layer["wq"], layer["wq"].shape[0] // 64)
    return {"wq": np.concatenate([second, first, *others])}


def keys_and_values_swapped(layer):
    return {"wk": layer["wv"], "wv": layer["wk"]}


def no_ffn(layer):
    return {"w_down": np.zeros_like(layer["w_down"])}


def turned_otherwise(change):
    """RoPE's table, as `change(config)` has it."""

    def inject(healthy):
        model = healthy.session.model
        other = rope_tables(change(model.config), model.rope.positions)
        return preloaded(replace(model, rope=other), healthy, healthy.checkpoint.weights)

    return inject


def unscaled(config):
    return replace(config, rope_scaling=None)


def other_base(config):
    return replace(config, rope_theta=1.02 * config.rope_theta)


def other_layers_weights(layer, other):
    """As if the layer were forgotten in the key of the buffer sets."""

    def rename(bo_key):
        has_weights = not bo_key.startswith(ATTENTION)
        return (
            f"{bo_key.rpartition('_L')[0]}_L{other}" if has_weights and layer_of(bo_key) == layer else bo_key
        )

    return lambda healthy: healthy.with_runner(Renaming, rename)


# What programs are given, and give back.


def given(kinds, change, layer=None):
    return lambda healthy: healthy.with_runner(Giving, only(kinds, change, layer))


def returned(kinds, change, layer=None):
    return lambda healthy: healthy.with_runner(Returning, only(kinds, change, layer))


def all_zero(values):
    return {name: np.zeros_like(value) for name, value in values.items()}


def shifted_partition(part):
    name = f"logits_{part}"
    return returned(HEADS, lambda values: {name: np.roll(values[name], 1, axis=-1)})


def interleaved(x, table):
    """RoPE of pairs of neighbours; `x` is (rows, width), or (width,) for one row; `table` (rows, 64)."""
    cos, sin = np.split(widen(table)[:, None], 2, axis=-1)
    heads = widen(x).reshape(len(table), -1, 64)
    even, odd = heads[..., ::2], heads[..., 1::2]
    turned = np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(bf16)


def interleaved_rope(healthy):
    model = healthy.session.model

    def change(values):
        row = values.get("rope_row")
        table = values.get("rope_rows", model.rope.layer(0)[: model.seq_len]) if row is None else row[None]
        return {f"{name}_roped": interleaved(values[name], table) for name in ("q", "k")}

    return healthy.with_runner(Returning, only(BEFORE, change))


def prefill_attention(mask, attention=reference_attention):
    """Prefill attention again, under another mask rule, or otherwise."""

    def change(values):
        rows = [
            attention(query, *cached, mask(position)) if position >= 0 else np.zeros_like(query)
            for cached in [seen_by(values)]
            for query, position in zip(values["q_roped"], positions_of(values), strict=True)
        ]
        return {"attn_out": np.stack(rows)}

    return returned(ATTENTION, change)


def positions_of(values):
    """Of the query rows, -1 for padding."""
    if "mask" in values:
        return seen(values["mask"]).sum(axis=1).astype(int) - 1
    return range(len(values["q_roped"]))


def seen(mask):
    """The positions of the context that each row sees, as bits."""
    return np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")


def seen_by(values):
    """Keys and values, heads first."""
    if "keys" in values:
        return values["keys"], values["values"]
    return [values[name].reshape(len(values["v"]), -1, 64).transpose(1, 0, 2) for name in ("k_roped", "v")]


def one_too_many(position):
    return slice(0, position + 2)


def one_too_few(position):
    return slice(0, max(1, position))


def stale(kinds, layer, argument):
    return lambda healthy: healthy.with_runner(Stale, kinds, layer, argument)


# The KV cache.


def decode_mask(mask):
    """Decode sees what `mask` says."""

    class Masked(Watched):
        def change_attention(self, attention):
            move_to = attention.set_position
            attention.set_position = lambda place, visible: move_to(place, [*map(moved, visible)])

    def moved(visible):
        if isinstance(visible, slice):
            visible = np.arange(visible.start, visible.stop)
        beyond = visible[-1:] + 1
        return np.concatenate([visible, beyond])[mask(len(visible) - 1)]

    return cache_fault(Masked)


def cache_fault(executor_class):
    """Of all that runs the model: for answers, and by hand."""

    def faulty(executor):
        if executor is not None:
            executor.__dict__.pop("_token_pass", None)
            executor.__class__, executor._made = executor_class, None
        return executor

    class Cache(KVCache):
        @property
        def executor(self):
            return self._executor

        @executor.setter
        def executor(self, made):
            self._executor = faulty(made)

    class Model(LoadedModel):
        def new_cache(self, positions, with_keys_before_rope=False):
            return Cache(self.kv_config, self.config.context, with_keys_before_rope)

    class Answering(Session):
        @property
        def requests(self):
            requests = super().requests
            if not isinstance(requests._executor, executor_class):
                faulty(requests._executor)
            return requests

    def inject(healthy):
        return as_kind(Answering, healthy.with_other(Model(**vars(healthy.with_runner(Passing).model))))

    return inject


# Programs compiled otherwise.


def wrong_epsilon(healthy):
    return healthy.rebuild(config=replace(healthy.checkpoint.config, rms_norm_eps=1e-6))


def truncation(healthy):
    return healthy.rebuild(rounding="floor", sets_rounding=False)


# The answer.


def nothing(request) -> Iterator[int]:
    return iter(())


def cut_short(request) -> Iterator[int]:
    """One token, however many are asked for."""
    yield from itertools.islice((each for each in request.steps() if each is not None), 1)


def garbage_tail(request) -> Iterator[int]:
    """The first token is right and the rest is not."""
    for index, token in enumerate(filter(lambda each: each is not None, request.steps())):
        yield (token + index) % request._scheduler.model.config.vocab_size


def as_kind(kind, session):
    """The same session as one of another class."""
    return kind(**{each.name: getattr(session, each.name) for each in fields(session) if each.init})


def answer_fault(tokens):
    """Tokens of an answer are these of it."""
    faulty = type("Faulty", (Request,), {"__iter__": tokens})

    class Answering(Session):
        def generate(self, *arguments, **named):
            made = super().generate(*arguments, **named)
            made.__class__ = faulty
            return made

    return lambda healthy: as_kind(Answering, healthy.session)


FAULTS = (
    Fault("all logits zero", returned(HEADS, all_zero), "logits"),
    Fault("all-zero output of one layer", returned(AFTER, all_zero, 2), "layer 2, step o"),
    Fault("heads 0 and 1 swapped in layer 3", weights_fault(3, heads_swapped), "layer 3, step q"),
    Fault("layer 3 on the buffers of layer 2", other_layers_weights(3, 2), "layer 3, step attn_norm"),
    Fault("no FFN in layer 4", weights_fault(4, no_ffn), "layer 4, step down"),
    Fault(
        "no residual around attention in layer 1",
        given(AFTER, lambda arrays: {"x": np.zeros_like(arrays["x"])}, 1),
        "layer 1, step attn_residual",
    ),
    Fault(
        "no residual around the FFN in layer 2",
        returned(AFTER, lambda values: {"x_next": values["down"]}, 2),
        "layer 2, step ffn_residual",
    ),
    Fault("interleaved RoPE", interleaved_rope, "layer 0, step rope_q"),
    Fault("RoPE without llama3 scaling", turned_otherwise(unscaled), "layer 0, step rope_q"),
    Fault("RoPE base 2 % off", turned_otherwise(other_base), "layer 0, step rope_q"),
    Fault("RMSNorm epsilon 1e-6", wrong_epsilon, "layer 0, step attn_norm"),
    Fault("KV cache of the prompt written one position off", cache_fault(OneOff), "layer 0, step cache_k"),
    Fault(
        "KV cache written one position off in decode",
        cache_fault(OneOffInDecode),
        "decode, layer 0, step cache_k",
    ),
    Fault("K and V weights swapped in layer 2", weights_fault(2, keys_and_values_swapped), "layer 2, step k"),
    Fault("K and V of the prompt swapped in the cache", cache_fault(Swapping), "layer 0, step cache_k"),
    Fault("prefill sees one position too many", prefill_attention(one_too_many), "layer 0, step attention"),
    Fault("prefill sees one position too few", prefill_attention(one_too_few), "layer 0, step attention"),
    Fault("decode sees one position too many", decode_mask(one_too_many), "decode, layer 0, step attention"),
    Fault("decode sees one position too few", decode_mask(one_too_few), "decode, layer 0, step attention"),
    Fault(
        "attention scores 3 % too large in prefill",
        prefill_attention(causal, scaled_attention(1.03)),
        "layer 0, step attention",
    ),
    Fault(
        "attention scores 5 % too large in decode",
        cache_fault(ScaledInDecode),
        "decode, layer 0, step attention",
    ),
    *(
        Fault(f"LM-head partition {part} shifted by one row", shifted_partition(part), "logits")
        for part in range(6)  # of eight: the demo's vocabulary ends in the sixth
    ),
    Fault("bf16 by truncation", truncation, "layer 0, step attn_norm"),
    Fault("attention of an earlier prompt in layer 2", stale(["o_ffn"], 2, "attn_out"), "layer 2, step o"),
    Fault(
        "RoPE row of an earlier token in layer 1",
        stale(["rms_gemv_rope"], 1, "rope_row"),
        "decode, layer 1, step rope_q",
    ),
    Fault("empty answer", answer_fault(nothing), "answer"),
    Fault("answer cut after one token", answer_fault(cut_short), "answer"),
    Fault("31 wrong tokens", answer_fault(garbage_tail), "answer"),
)

SUBTLE = [fault for fault in FAULTS if "%" in fault.name]
"""Those that move an answer, and its logits, less than rounding does: steps show them."""


# In blocks of rows: what is given to their programs, beside activations.


def mask_moved(by):
    """Each row that sees anything sees so many positions more, or fewer."""

    def change(arrays):
        before = seen(arrays["mask"])
        counts = before.sum(axis=1).astype(int)
        moved = np.where(counts > 0, np.maximum(counts + by, 1), 0)
        bits = (np.arange(before.shape[1]) < moved[:, None]).astype(np.uint8)
        return {"mask": np.packbits(bits, axis=1, bitorder="little").view(np.int32)}

    return change


def others_cache(arrays):
    """Keys as a window of another variant would have them, where nothing was written."""
    return {"keys": np.zeros_like(arrays["keys"])}


BLOCK_FAULTS = (
    Fault("off by one past", given(["cached_attn"], mask_moved(-1)), "layer 0, step attention"),
    Fault("mask moved too far", given(["cached_attn"], mask_moved(1)), "layer 0, step attention"),
    Fault(
        "stale rows beyond the valid length",
        given(["cached_attn"], mask_moved(40)),
        "layer 0, step attention",
    ),
    Fault(
        "wrong RoPE offset",
        given(["rms_gemms_rope"], lambda arrays: {"rope_rows": np.roll(arrays["rope_rows"], 1, axis=0)}),
        "layer 0, step rope_q",
    ),
    Fault("another variant's KV", given(["cached_attn"], others_cache), "layer 0, step attention"),
)
"""Those that only programs with a past can have."""


# What only shows over several prompts, or where something is drawn: the gate finds it, and no step is wrong.


def penalised_twice(healthy):
    class Faulty(Session):
        def generate(self, prompt_ids, max_new_tokens, sampler, *others):
            once = sampler._adjusted
            twice = lambda logits, *ids: once(once(logits, *ids), *ids)  # noqa: E731
            object.__setattr__(sampler, "_adjusted", twice)
            return super().generate(prompt_ids, max_new_tokens, sampler, *others)

    return as_kind(Faulty, healthy.session)


GATE_FAULTS = (
    Fault("a penalty applied twice", penalised_twice, "penalty, "),
    Fault(
        "a hit across families",
        cache_fault(NothingButBlocks),
        "bit identity, going on from an answer, and alone: the count of numbers that differ",
    ),
    Fault(
        "LM head of the wrong row",
        lambda healthy: healthy.with_runner(RowBefore),
        "free-running, ",
    ),
)
"""`place` is how one of the gate's failures begins."""
