"""Mistakes that only models of one family can have, by its model_type."""

from __future__ import annotations

from dataclasses import replace

from aerie.engine.rope_tables import RopeTables
from tests.verify.faults import Fault, preloaded


def with_rope_of_layer(change):
    """Layers with the tables of `change(rope)`, a RopeTables."""

    def inject(healthy):
        model = healthy.session.model
        return preloaded(replace(model, rope=change(model.rope)), healthy, healthy.checkpoint.weights)

    return inject


def all_turned(rope):
    return RopeTables(rope.tables[:1], (0,) * len(rope.of_layer))


def the_layer_before(rope):
    return RopeTables(rope.tables, (*rope.of_layer[1:], rope.of_layer[0]))


FAMILY_FAULTS = {
    "smollm3": (
        Fault("a layer without RoPE is turned", with_rope_of_layer(all_turned), "layer 1, step rope_q"),
        Fault("the layer before it has none", with_rope_of_layer(the_layer_before), "layer 0, step rope_q"),
    ),
}
