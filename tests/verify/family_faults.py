"""Mistakes that only models of one family can have, by its model_type."""

from __future__ import annotations

from dataclasses import replace

from aerie.engine.model_family import Multipliers
from aerie.engine.rope_tables import RopeTables
from aerie.engine.tensors import Rows
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


def other_factors(**changes):
    """Programs, and the host's work, with other factors."""

    def inject(healthy):
        config = healthy.checkpoint.config
        return healthy.rebuild(config=replace(config, multipliers=replace(config.multipliers, **changes)))

    return inject


def embeddings_times(factor):
    def inject(healthy):
        return healthy.with_model(embed_table=Rows(healthy.session.model.embed_table.table, factor))

    return inject


FAMILY_CHANGES = {"granite": {"multipliers": Multipliers(12.0, 0.09, 0.22, 1.7)}}
"""What their configs have besides."""

FAMILY_FAULTS = {
    "granite": (
        Fault("embeddings not multiplied", embeddings_times(1.0), "layer 0, step input"),
        Fault("embeddings multiplied twice", embeddings_times(144.0), "layer 0, step input"),
        Fault("scores of another family", other_factors(attention=None), "layer 0, step attention"),
        Fault("residual factor left out", other_factors(residual=1.0), "layer 0, step attn_residual"),
        Fault("logits not divided", other_factors(logits_divisor=1.0), "divided_logits"),
    ),
    "smollm3": (
        Fault("a layer without RoPE is turned", with_rope_of_layer(all_turned), "layer 1, step rope_q"),
        Fault("the layer before it has none", with_rope_of_layer(the_layer_before), "layer 0, step rope_q"),
    ),
}
