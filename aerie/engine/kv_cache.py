"""Keys (after RoPE) and values in the layout that attention programs read: (kv_heads, positions, head_dim),
in buffer objects of the size of a context, so that no call copies or reorders them.

Genie's documents describe two other layouts, SHIFT_CONCAT and POINTER_SHIFT, and call them deprecated. They
are not built.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.engine.config import ModelConfig
from aerie.engine.errors import NoVariantError
from aerie.engine.numerics import BF16Array
from aerie.engine.programs import CACHE, ProgramRunner, kv_buffer_name
from aerie.kernel_builder.arguments import Argument, Role
from aerie.kernel_builder.arguments import bf16 as bf16_type

_NUMBERS = itertools.count()
"""Number the buffers of all storages in this process, so that their names differ."""

KeysAndValues: TypeAlias = tuple[BF16Array, BF16Array]
Layers: TypeAlias = Sequence[KeysAndValues]


def causal(position: int) -> slice:
    """A position attends to itself and to every earlier one."""
    return slice(0, position + 1)


@dataclass(frozen=True)
class KVBuffers:
    """Keys and values of layers, by number, (kv_heads, positions, head_dim) each. `slot`: the name of these
    buffers on the device."""

    layers: Mapping[int, KeysAndValues]
    slot: str = ""

    @property
    def positions(self) -> int:
        """Positions of each layer; 0 without layers."""
        return next((int(keys.shape[1]) for keys, _ in self.layers.values()), 0)


class DeviceKVStorage:
    """Allocates KV buffers on the device: two buffer objects for each layer, with as many positions as one of
    `contexts`.

    config: the model's `kv_config`. runners: one per device; layer by layer, each device has its part of the
    layer. name: start of the buffers' names. Freed buffers are used again.
    """

    def __init__(
        self, config: ModelConfig, runners: Sequence[ProgramRunner], contexts: Sequence[int], name: str = "kv"
    ) -> None:
        self._config, self._runners = config, runners
        self._contexts = sorted(contexts)
        self._name = name
        self._free: dict[tuple[int, int], list[KVBuffers]] = defaultdict(list)

    def allocate(self, positions: int, window: int = 0) -> KVBuffers:
        """Buffers for at least this number of positions, of the layers with the window of this number. Raises
        NoVariantError if it is above the largest context."""
        context = next((one for one in self._contexts if one >= positions), None)
        if context is None:
            raise NoVariantError(positions, 0, self._contexts[-1])
        free = self._free[context, window]
        return free.pop() if free else self._new(context, window)

    def free(self, buffers: KVBuffers, window: int = 0) -> None:
        """Return buffers that `allocate` gave. Any thread may call it at any time."""
        self._free[buffers.positions, window].append(buffers)

    def _new(self, context: int, window: int) -> KVBuffers:
        config, slot = self._config, f"{self._name}{next(_NUMBERS)}"
        shape = (config.num_key_value_heads, context, config.head_dim)

        def array(number: int, name: str) -> BF16Array:
            layer, part = divmod(number, len(self._runners))
            argument = Argument(name, shape, bf16_type, Role.INPUT)
            return self._runners[part].shared_array(kv_buffer_name(slot, layer, name), argument)

        layers = (layer for layer, number in enumerate(config.windows_of_kv_layers) if number == window)
        keys, values = CACHE
        return KVBuffers({layer: (array(layer, keys), array(layer, values)) for layer in layers}, slot)


def write_rows(
    stored: KeysAndValues, positions: slice | NDArray[np.int64], keys: BF16Array, values: BF16Array
) -> None:
    """Store rows, (rows, kv_heads * head_dim) each, at these positions of a layer."""
    for cache, rows in zip(stored, (keys, values), strict=True):
        _put(cache, positions, rows)


def _put(cache: BF16Array, positions: slice | NDArray[np.int64], rows: BF16Array) -> None:
    heads, _, head_dim = cache.shape
    cache[:, positions] = rows.reshape(len(rows), heads, head_dim).transpose(1, 0, 2)
