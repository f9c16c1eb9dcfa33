"""What steps cost: an estimate, then what was measured, by which other plans are made and no other bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from aerie import load
from aerie.engine import call_costs as costs_
from aerie.engine.call_costs import MIN_LAYER_ELEMENTS, TIMED_CALLS, TIMED_KINDS, CallCosts
from aerie.engine.variant_set import VariantSet
from aerie.kernel_builder.arguments import ArgumentTable
from aerie.multi_launch_builder import Variant
from aerie.runtime import select_backend
from aerie.runtime.backend import VIRTUAL_PADDING_SHARE

ROWS = (8, 32, 128)
VARIANTS = tuple(Variant(rows, 512) for rows in ROWS)


class Called(NamedTuple):
    kind: str
    rows: int
    name: str = "called"
    arguments: ArgumentTable = ArgumentTable([])


def measured(
    seconds: dict[int, float], calls: int = TIMED_CALLS, weights: int = MIN_LAYER_ELEMENTS
) -> CallCosts:
    """Costs after so many calls of each program of these rows, of which the shortest had so many seconds."""
    found = CallCosts(weights)
    for rows, least in seconds.items():
        for kind in TIMED_KINDS:
            for number in range(calls):
                found.record(Called(kind, rows), least / len(TIMED_KINDS) * (1 + (number - 5) ** 2))
    return found


def steps(costs: CallCosts, tokens: int) -> list[int]:
    return [step.variant for step in VariantSet(0, VARIANTS, costs=costs).plan(tokens, 0)]


def test_the_shortest_of_the_first_calls_counts_and_then_stands():
    found = measured({8: 3.0})
    assert found(Variant(8, 512)) == found(Variant(8, 2048)) == 3.0
    for kind in TIMED_KINDS:
        found.record(Called(kind, 8), 1e-9)
    assert found(Variant(8, 512)) == 3.0


def test_too_few_calls_other_programs_and_small_models_leave_the_estimate():
    estimate = CallCosts(MIN_LAYER_ELEMENTS)(VARIANTS[0])
    assert measured({8: 3.0}, TIMED_CALLS - 1)(VARIANTS[0]) == estimate > 0
    small = measured({8: 3.0}, weights=MIN_LAYER_ELEMENTS - 1)
    assert small(VARIANTS[0]) == CallCosts(MIN_LAYER_ELEMENTS - 1)(VARIANTS[0])
    others = CallCosts(MIN_LAYER_ELEMENTS)
    for _ in range(TIMED_CALLS):
        others.record(Called("cached_attn", 8), 3.0)
        others.record(Called("o_ffn", 8), 3.0)
    assert others(VARIANTS[0]) == estimate


def test_what_was_not_measured_is_as_far_off_as_what_is_nearest_to_it():
    plain = CallCosts(MIN_LAYER_ELEMENTS)
    found = measured({8: 2 * plain(Variant(8, 512)), 128: 3 * plain(Variant(128, 512))})
    for rows, times in ((16, 2), (32, 2), (64, 3), (2048, 3)):
        assert found(Variant(rows, 2048)) == pytest.approx(times * plain(Variant(rows, 2048)))


def test_a_machine_on_which_rows_cost_more_cuts_closer():
    """Of AVX-512 without BF16: a layer of Llama-3.2-1B took 3.3, 9.7 and 43 ms."""
    plain = CallCosts(60_817_408)
    assert steps(plain, 104) == [128]
    other = measured({8: 3.3e-3, 32: 9.7e-3, 128: 43e-3}, weights=60_817_408)
    assert sorted(steps(other, 104)) == [8, 32, 32, 32]
    for tokens in range(1, 300):
        spent = sum(other(Variant(rows, 512)) for rows in steps(other, tokens))
        for one in VARIANTS:
            assert spent <= other(one) * -(-tokens // one.rows) * (1 + 1e-9)


def test_what_is_left_of_a_known_prompt_is_one_call_where_padding_is_not_multiplied():
    """48 tokens after 2,000, in a layer of Llama-3.2-1B."""
    chosen = tuple(Variant(rows, 2048) for rows in ROWS)
    called = {
        share: VariantSet(0, chosen, costs=CallCosts(60_817_408, share)).plan(48, 2000)
        for share in (1.0, VIRTUAL_PADDING_SHARE)
    }
    assert sorted(step.variant for step in called[1.0]) == [8, 8, 32]
    assert [(step.variant, step.n_process) for step in called[VIRTUAL_PADDING_SHARE]] == [(128, 48)]


def test_padding_spares_what_is_measured_of_a_row():
    costs = CallCosts(60_817_408, padding_share=0.25)
    row = 2 * 60_817_408 / costs_.FLOPS_PER_S
    assert costs.spared_by_padding(128) == pytest.approx(0.75 * row)
    twice = measured({128: 2 * costs(Variant(128, 512))}, weights=60_817_408)
    assert twice.spared_by_padding(128) == 0
    twice._padding_share = 0.25
    assert twice.spared_by_padding(128) == pytest.approx(1.5 * row)


@pytest.mark.parametrize(("numerics", "share"), [("exact", VIRTUAL_PADDING_SHARE), ("bfp16", 1.0)])
def test_only_exact_products_leave_padding_out(numerics, share):
    assert select_backend("virtual", numerics).padding_share == share


def test_a_session_measures_and_says_the_same(monkeypatch):
    """The demo, as if its layers were large: another plan for the same prompt, and the same bits."""
    monkeypatch.setattr(costs_, "MIN_LAYER_ELEMENTS", 0)
    ids = [int(token) for token in np.random.default_rng(0).integers(3, 1000, 104)]
    with load("demo", backend="virtual", variants="8,32x512") as model:
        loaded = model._open().model
        costs = loaded.variant_set.costs
        assert costs
        before = costs(Variant(8, 512)), costs(Variant(32, 512))
        first = model.logits(ids)
        for _ in range(TIMED_CALLS):
            model.logits(ids[:40])
        after = costs(Variant(8, 512)), costs(Variant(32, 512))
        assert all(0 < one != other for one, other in zip(before, after, strict=True))
        costs._measured[32] = after[0] / 5
        assert [step.variant for step in loaded.plan(104, 0)] == [32] * 4
        costs._measured[32] = after[0] * 5
        assert [step.variant for step in loaded.plan(104, 0)] == [8] * 13
        assert model.logits(ids).tobytes() == first.tobytes()
