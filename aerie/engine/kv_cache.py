"""Keys (after RoPE) and values as attention's programs read them: heads first, in buffer objects of the size
of a context, in the layout of their argument tables, so that nothing is laid out anew on the way.

Methods that lay the cache out anew for each step (SHIFT_CONCAT) or move it under the program (POINTER_SHIFT),
which Genie's documents call deprecated, are not built.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.config import ModelConfig
from aerie.engine.errors import NoVariantError
from aerie.engine.numerics import BF16Array
from aerie.engine.programs import CACHE, ProgramRunner, kv_buffer_name
from aerie.kernel_builder.arguments import Argument, Role
from aerie.kernel_builder.arguments import bf16 as bf16_type

_NUMBERS = itertools.count()
"""Of the rooms on devices, in all homes of this process."""

KeysAndValues: TypeAlias = tuple[BF16Array, BF16Array]
Layers: TypeAlias = Sequence[KeysAndValues]

MaskRule: TypeAlias = Callable[[int], Any]
"""From the query's position to an index over key positions (a slice or an array of positions)."""


def causal(position: int) -> slice:
    """A position sees itself and every earlier one."""
    return slice(0, position + 1)


@dataclass(frozen=True)
class KVBuffers:
    """Keys and values of each layer, (kv_heads, capacity, head_dim) each, and what its home calls it."""

    layers: Layers
    slot: str = ""


class DeviceKVStorage:
    """Buffer objects, two for each layer, of `contexts` positions; their names begin with `name` and are no
    other's, as homes of one runner would else share them.

    config: of what is stored (LoadedModel.stored). Its layers are those of the runners in turn: each runner
    has its part of every layer of the model, one after the other. What was given back is used again.
    """

    def __init__(
        self, config: ModelConfig, runners: Sequence[ProgramRunner], contexts: Sequence[int], name: str = "kv"
    ) -> None:
        self._config, self._runners = config, runners
        self._contexts = sorted(contexts)
        self._name = name
        self._free: dict[int, list[KVBuffers]] = defaultdict(list)

    def allocate(self, positions: int) -> KVBuffers:
        """Room for so many positions, or more. NoVariantError where there is none so large."""
        context = next((one for one in self._contexts if one >= positions), None)
        if context is None:
            raise NoVariantError(positions, 0, self._contexts[-1])
        free = self._free[context]
        return free.pop() if free else self._new(context)

    def free(self, buffers: KVBuffers) -> None:
        """It is not used any more. May come from any thread, at any moment."""
        self._free[buffers.layers[0][0].shape[1]].append(buffers)

    def _new(self, context: int) -> KVBuffers:
        config, slot = self._config, f"{self._name}{next(_NUMBERS)}"
        shape = (config.num_key_value_heads, context, config.head_dim)

        def array(number: int, name: str) -> BF16Array:
            layer, part = divmod(number, len(self._runners))
            argument = Argument(name, shape, bf16_type, Role.INPUT)
            return self._runners[part].shared_array(kv_buffer_name(slot, layer, name), argument)

        layers = range(config.num_hidden_layers)
        keys, values = CACHE
        return KVBuffers([(array(layer, keys), array(layer, values)) for layer in layers], slot)


def write_rows(
    stored: KeysAndValues, positions: slice | NDArray[np.int64], keys: BF16Array, values: BF16Array
) -> None:
    """Store rows, (rows, kv_heads * head_dim), at these positions of a layer."""
    for cache, given in zip(stored, (keys, values), strict=True):
        _put(cache, positions, given)


def _put(cache: BF16Array, positions: slice | NDArray[np.int64], rows: BF16Array) -> None:
    heads, _, head_dim = cache.shape
    cache[:, positions] = rows.reshape(len(rows), heads, head_dim).transpose(1, 0, 2)
