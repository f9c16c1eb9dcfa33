"""The KV cache: keys (after RoPE) and values of one sequence of tokens, heads first, as attention reads them.

A cache lies where its home keeps it: on the host, or in buffer objects that the attention programs read in
place, in the layout of their argument tables (`native`: nothing is laid out anew on the way). Its capacity is
one of the home's contexts. When a sequence outgrows it, what is held is copied once into the next context;
nothing is computed again.

Only the first `length` positions count. What a cache holds beyond them is never looked at, so going back is
setting `length`. Methods that lay the cache out anew for each step (SHIFT_CONCAT) or move it under the
program (POINTER_SHIFT), which Genie's documents call deprecated, are not built.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aerie.common.errors import UserError
from aerie.engine.config import ModelConfig
from aerie.engine.embeddings import Token
from aerie.engine.errors import NoVariantError
from aerie.engine.numerics import BF16Array, bf16, turned
from aerie.engine.programs import CACHE, ProgramRunner, cache_place
from aerie.engine.sampler import Sampler
from aerie.kernel_builder.arguments import Argument, Role, bit_words
from aerie.kernel_builder.arguments import bf16 as bf16_type

_NUMBERS = itertools.count()
"""Of the rooms on devices, in all homes of this process."""

KeysAndValues: TypeAlias = tuple[BF16Array, BF16Array]
Layers: TypeAlias = Sequence[KeysAndValues]

MaskRule: TypeAlias = Callable[[int], Any]
"""From the query's position to an index over key positions (a slice or a boolean array)."""


def causal(position: int) -> slice:
    """A position sees itself and every earlier one."""
    return slice(0, position + 1)


def mask_words(mask: MaskRule, first: int, rows: int, width: int, context: int) -> NDArray[np.int32]:
    """What `width` rows see of a context: the first `rows` of them, at positions from `first` on; the others
    see nothing.

    (width, context / 32) int32, a bit for each position, position 0 in the lowest: the mask of cached_attn.
    """
    seen = np.zeros((width, context), bool)
    for row in range(rows):
        seen[row, mask(first + row)] = True
    return bit_words(seen)


@dataclass(frozen=True)
class Room:
    """Keys and values of each layer, (kv_heads, capacity, head_dim) each, and what its home calls it.

    `slot` is "" where programs have to be given copies.
    """

    layers: Layers
    slot: str = ""


class Home(Protocol):
    """Where caches lie: all those in `caches`."""

    caches: weakref.WeakSet[KVCache]

    def take(self, positions: int) -> Room:
        """Room for so many positions, or more. NoVariantError where there is none so large."""

    def give_back(self, room: Room) -> None:
        """It is not used any more. May come from any thread, at any moment."""

    def leave(self) -> None:
        """Have all caches move to the host: this home goes."""


class OnHost:
    """The host's memory: room for as many positions as are asked for."""

    def __init__(self, config: ModelConfig) -> None:
        self.caches: weakref.WeakSet[KVCache] = weakref.WeakSet()
        self._config = config

    def take(self, positions: int) -> Room:
        config = self._config
        shape = (config.num_hidden_layers, config.num_key_value_heads, positions, config.head_dim)
        return Room(list(zip(np.zeros(shape, bf16), np.zeros(shape, bf16), strict=True)))

    def give_back(self, room: Room) -> None:
        """The garbage collector sees to it."""

    def leave(self) -> None:
        """It stays."""


class OnDevice:
    """Buffer objects, two for each layer, of `contexts` positions; their names begin with `name` and are no
    other's, as homes of one runner would else share them.

    config: of what is stored (LoadedModel.stored). Its layers are those of the runners in turn: each runner
    has its part of every layer of the model, one after the other. Room that was given back is used again for
    the next sequence.
    """

    def __init__(
        self, config: ModelConfig, runners: Sequence[ProgramRunner], contexts: Sequence[int], name: str = "kv"
    ) -> None:
        self.caches: weakref.WeakSet[KVCache] = weakref.WeakSet()
        self._config, self._runners = config, runners
        self._contexts = sorted(contexts)
        self._name = name
        self._free: dict[int, list[Room]] = defaultdict(list)

    def take(self, positions: int) -> Room:
        context = next((one for one in self._contexts if one >= positions), None)
        if context is None:
            raise NoVariantError(positions, 0, self._contexts[-1])
        free = self._free[context]
        return free.pop() if free else self._new(context)

    def leave(self) -> None:
        host = OnHost(self._config)
        for cache in list(self.caches):
            cache.move(host)

    def give_back(self, room: Room) -> None:
        self._free[room.layers[0][0].shape[1]].append(room)

    def _new(self, context: int) -> Room:
        config, slot = self._config, f"{self._name}{next(_NUMBERS)}"
        shape = (config.num_key_value_heads, context, config.head_dim)

        def array(number: int, name: str) -> BF16Array:
            layer, part = divmod(number, len(self._runners))
            argument = Argument(name, shape, bf16_type, Role.INPUT)
            return self._runners[part].array(cache_place(slot, layer, name), argument)

        layers = range(config.num_hidden_layers)
        keys, values = CACHE
        return Room([(array(layer, keys), array(layer, values)) for layer in layers], slot)


class KVCache:
    """Keys and values of one sequence.

    `length` is the number of positions that every layer holds; a step writes its positions in each layer and
    then calls `advance` with their tokens. `token_ids` has the token of each position, an id or an
    embedding. `in_blocks` is how many positions, from the first on, were made by blocks of rows: what these
    hold depends on their tokens alone, so another prompt that begins with them may go on from there.
    `token_pass` is decode's, which keeps there what is the same for all tokens.

    Where positions may be dropped, `unturned` has each layer's keys before RoPE, (kv_heads, capacity,
    head_dim), on the host; else it is empty. `dropped` is how many tokens were dropped, and `seen` how many
    went in.
    """

    def __init__(self, home: Home, positions: int, with_unturned: bool = False) -> None:
        self._with_unturned = with_unturned
        self._live_in(home, home.take(positions))
        self.token_ids: list[Token] = []
        self.dropped = self._in_blocks = 0

    def _live_in(self, home: Home, room: Room) -> None:
        self._home, self._room = home, room
        self.unturned = [np.zeros(keys.shape, bf16) for keys, _ in room.layers if self._with_unturned]
        self.token_pass: object = None
        home.caches.add(self)
        self._give_back = weakref.finalize(self, home.give_back, room)
        self._give_back.atexit = False

    @property
    def length(self) -> int:
        """The positions that are held. Setting it to less goes back."""
        return len(self.token_ids)

    @length.setter
    def length(self, positions: int) -> None:
        if not 0 <= positions <= self.length:
            raise IndexError(f"a cache of {self.length} positions cannot go back to {positions}")
        del self.token_ids[positions:]

    @property
    def seen(self) -> int:
        """See the class."""
        return self.length + self.dropped

    @property
    def in_blocks(self) -> int:
        """See the class."""
        return min(self._in_blocks, self.length)

    def go_back_for(self, token_ids: Sequence[Token]) -> int:
        """Go back to what is of use for these tokens, the last of which always runs; how many that are.

        In the family `guide` decoded tokens are no part of it: no answer depends on the one before. Nor is
        what came after dropped tokens, which it has seen.
        """
        held = self.token_ids[: self.in_blocks]
        pairs = zip(held, token_ids[:-1], strict=False)
        same = itertools.takewhile(_is_same_id, pairs)
        self.length = sum(1 for _ in same)
        self.dropped = 0
        return self.length

    @property
    def layers(self) -> Layers:
        """Keys and values of each layer, (kv_heads, capacity, head_dim)."""
        return self._room.layers

    @property
    def slot(self) -> str:
        """What its home calls the room that it has."""
        return self._room.slot

    @property
    def capacity(self) -> int:
        """The positions that there is room for."""
        return int(self.layers[0][0].shape[1])

    def write(
        self,
        layer: int,
        position: int,
        keys: BF16Array,
        values: BF16Array,
        unturned: BF16Array | None = None,
    ) -> None:
        """Store rows for positions from `position` on; all are (rows, kv_heads * head_dim)."""
        self.check_room(position, len(keys))
        positions = slice(position, position + len(keys))
        write_rows(self.layers[layer], positions, keys, values)
        if unturned is not None:
            _put(self.unturned[layer], positions, unturned)

    def drop(self, gone: range, rope: BF16Array) -> None:
        """Forget the positions `gone`: those after them move down, and their keys are turned by their new
        rows of `rope`, (positions, head_dim).

        What is left halfway, by an exception, is what was held before `gone`.
        """
        tokens = self.token_ids[:]
        self._in_blocks, self.length = min(self.in_blocks, gone.start), gone.start
        stay, to = slice(gone.stop, len(tokens)), slice(gone.start, len(tokens) - len(gone))
        for (keys, values), unturned in zip(self.layers, self.unturned, strict=True):
            for each in (unturned, values):
                each[:, to] = each[:, stay]
            keys[:, to] = turned(unturned[:, to], rope[to])
        self.token_ids += tokens[stay]
        self.dropped += len(gone)

    def check_room(self, position: int, rows: int) -> None:
        """IndexError where so many rows from `position` on do not fit."""
        if position + rows > self.capacity:
            raise IndexError(f"positions {position}..{position + rows - 1} in a cache of {self.capacity}")

    def reserve(self, positions: int) -> None:
        """Have room for so many positions: where there is less, the cache moves on. NoVariantError."""
        if positions > self.capacity:
            self.move(self._home, positions)

    def come_to(self, home: Home) -> None:
        """Lie in `home`, if that is not so already."""
        if home is not self._home:
            self.move(home, self.capacity)

    def move(self, home: Home, positions: int = 1) -> None:
        """Lie in `home` from now on, with all that is held."""
        left, give_back = self._arrays, self._give_back
        self._home.caches.discard(self)
        self._live_in(home, home.take(max(positions, self.length)))
        for source, target in zip(left, self._arrays, strict=True):
            target[:, : self.length] = source[:, : self.length]
        give_back()

    @property
    def _arrays(self) -> list[BF16Array]:
        """All that has a place for each position, (kv_heads, capacity, head_dim) each."""
        return [*itertools.chain.from_iterable(self.layers), *self.unturned]

    def holds(self, tokens: Sequence[Token], in_blocks: int, dropped: int) -> None:
        """Count what was put into an empty cache from elsewhere."""
        self.token_ids[:], self._in_blocks, self.dropped = tokens, in_blocks, dropped

    def advance(self, tokens: Sequence[Token], in_blocks: bool = False) -> None:
        """Count the positions of these tokens as held, once every layer has written them."""
        if in_blocks and self.in_blocks == self.length:
            self._in_blocks = self.length + len(tokens)
        else:
            self._in_blocks = self.in_blocks
        self.token_ids += tokens


def _is_same_id(tokens: tuple[Token, Token]) -> bool:
    """An embedding is compared with nothing."""
    return all(isinstance(one, Integral) for one in tokens) and bool(tokens[0] == tokens[1])


class Said(NamedTuple):
    """An answer as far as it came: its prompt, its tokens, and what draws them, with what it remembers."""

    prompt: Sequence[Token]
    token_ids: Sequence[int]
    sampler: Sampler


class Kept:
    """The cache of the last sequence, for the next one that begins as it did, and the answer in it, which may
    go on. Lent to one at a time."""

    def __init__(self) -> None:
        self._cache: KVCache | None = None
        self.said: Said | None = None

    def take(self, token_ids: Sequence[Token]) -> KVCache | None:
        """The cache, back at what it has of these tokens; None where that is nothing."""
        cache = self._taken()
        return cache if cache and cache.go_back_for(token_ids) else None

    def take_said(self, said: Said) -> KVCache:
        """The cache as this answer left it. UserError where it is no longer there."""
        is_it = self.said is said
        cache = self._taken() if is_it else None
        if cache is None or cache.seen != len(said.prompt) + len(said.token_ids) - 1:
            raise UserError(
                "the answer cannot go on: another one was begun since, and its keys and values are no longer "
                "kept; give the prompt again"
            )
        return cache

    def _taken(self) -> KVCache | None:
        cache, self._cache, self.said = self._cache, None, None
        return cache

    def give(self, cache: KVCache, said: Said | None = None) -> None:
        self._cache, self.said = cache, said

    @property
    def cache(self) -> KVCache | None:
        """It, where it is not lent."""
        return self._cache


def write_rows(
    stored: KeysAndValues, positions: slice | NDArray[np.int64], keys: BF16Array, values: BF16Array
) -> None:
    """Store rows, (rows, kv_heads * head_dim), at these positions of a layer."""
    for cache, given in zip(stored, (keys, values), strict=True):
        _put(cache, positions, given)


def _put(cache: BF16Array, positions: slice | NDArray[np.int64], rows: BF16Array) -> None:
    heads, _, head_dim = cache.shape
    cache[:, positions] = rows.reshape(len(rows), heads, head_dim).transpose(1, 0, 2)
