"""Executors that put something wrong into the KV cache, or read it wrongly."""

from __future__ import annotations

import numpy as np

from aerie.engine.executor import Executor
from aerie.engine.numerics import bf16, widen
from aerie.runtime import HostWork


class Watched(Executor):
    """An executor of which the passes are changed as they are made."""

    def change_rows(self, made):
        """What takes blocks of rows through the layers."""

    def change_attention(self, attention):
        """The host's, of a token."""

    def _pass(self, *given):
        made = super()._pass(*given)
        self.change_rows(made)
        return made

    @property
    def _token_pass(self):
        return self._made

    @_token_pass.setter
    def _token_pass(self, made):
        self._made = made
        if made is not None:
            self.change_attention(made._attention)


class OneOff(Watched):
    def change_rows(self, made):
        for new in filter(None, (made._cache_rows, made._pool_rows)):
            new.set_positions = lambda *places, real=new.set_positions: real(*(at + 1 for at in places))


class OneOffInDecode(Watched):
    """What a decoded token leaves goes one position too far."""

    def change_attention(self, attention):
        move_to = attention.set_position
        attention.set_position = lambda place, visible: move_to(place + 1, visible)


class Swapping(Watched):
    def change_rows(self, made):
        for new in filter(None, (made._cache_rows, made._pool_rows)):
            new.layer_work = lambda layer, keys, values, real=new.layer_work: real(layer, values, keys)


class ScaledInDecode(Watched):
    """The host's attention has scores 5 % too large."""

    def change_attention(self, attention):
        works = attention.layer_work

        def scaled_works(layer, query, *rows):
            keep, _ = works(layer, query, *rows)

            def attend():
                scaled = scaled_attention(1.05)
                attention.out[...] = scaled(query, *self._pool.layers[layer], attention._visible[0])

            return keep, HostWork(attend)

        attention.layer_work = scaled_works


class NothingButBlocks(Watched):
    """Decoded tokens, which GEMVs made, count as made by blocks: the other family goes on from them."""

    def decode_token(self, piece):
        row = super().decode_token(piece)
        piece.sequence._reusable_length = 10**9
        return row


def scaled_attention(times):
    """reference_attention, whose scores are so many times as large."""

    def attend(query, keys, values, visible):
        kv_heads, _, head_dim = keys.shape
        grouped = widen(query).reshape(kv_heads, -1, head_dim)
        scores = times * grouped @ widen(keys[:, visible]).transpose(0, 2, 1) / np.sqrt(head_dim)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ widen(values[:, visible])).reshape(-1).astype(bf16)

    return attend
