"""Mistakes that only models with linear attention, or with a gate on attention, can have."""

from __future__ import annotations

import numpy as np

from aerie.engine.numerics import bf16
from aerie.kernel_builder.delta_rows import DECAY, LANES, RATE
from tests.verify.faults import Fault, given, returned, weights_fault

RULE = ("delta_rule",)


def without(number):
    """1 in the place of each position's decay, or of its rate. Heads are 64 wide."""

    def change(arrays):
        rows = arrays["delta_rows"].copy()
        rows[..., 128 : 128 + LANES].view(np.float32)[..., number] = 1
        return {"delta_rows": rows}

    return given(RULE, change)


def of_another_sequence(arrays):
    """The state before a page is that of some other text; before the first page there is none."""
    other = 0.1 * np.random.default_rng(0).standard_normal(arrays["state"].shape)
    return {"state": other.astype(np.float32) if arrays["state"].any() else arrays["state"]}


def a_tap_too_late(arrays):
    """Of each row the rows of the position before, and not its own."""
    rows = np.zeros_like(arrays["conv_rows"])
    rows[:, 1:] = arrays["conv_rows"][:, :-1]
    return {"conv_rows": rows}


def halves_swapped(layer):
    return {"wq": layer["wg"], "wg": layer["wq"]}


def decays_and_rates_swapped(layer):
    first, second, *others = np.split(layer["w_ab"], len(layer["w_ab"]) // 4)
    return {"w_ab": np.concatenate([second, first, *others])}


def normed_alone(values):
    return {"attn_out": values["delta_normed"].astype(bf16)}


QWEN3_5_FAULTS = (
    Fault("decay left out", without(DECAY), "layer 0, step delta"),
    Fault("rate left out", without(RATE), "layer 0, step delta"),
    Fault("the state of another sequence", given(RULE, of_another_sequence), "layer 0, step delta"),
    Fault("a tap too late", given(("delta_conv",), a_tap_too_late), "layer 0, step delta"),
    Fault(
        "linear attention's gate forgotten", returned(("delta_gate",), normed_alone), "layer 0, step delta"
    ),
    Fault("decays and rates swapped", weights_fault(0, decays_and_rates_swapped), "layer 0, step delta_ab"),
    Fault(
        "attention's gate forgotten",
        returned(("attn_gate",), lambda values: {"attn_out": values["attended"]}),
        "layer 1, step attention",
    ),
    Fault("queries and their gate swapped", weights_fault(1, halves_swapped), "layer 1, step q"),
)
