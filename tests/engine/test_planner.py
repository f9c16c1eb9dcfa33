"""The planner: the seed's examples, every token once and in order, and never dearer than any other plan."""

import random
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.engine.errors import NoVariantError, PromptError
from aerie.engine.planner import VariantCall, plan


class V(NamedTuple):
    """A variant without the limits of those that there are programs for, so that small ones can be drawn."""

    rows: int
    context: int


def product(rows, contexts):
    return [V(n, m) for n in rows for m in contexts if n <= m]


SEED = product((1, 8, 64), (4096,))
LARGE = product((1, 8, 32, 128, 512, 2048), (512, 2048, 8192))
variants = st.sets(
    st.builds(V, st.sampled_from((1, 2, 3, 8, 16, 24)), st.sampled_from((8, 16, 24, 40, 64))).filter(
        lambda one: one.rows <= one.context
    ),
    min_size=1,
).map(sorted)


def total(steps, costs):
    return sum(Fraction(costs[V(step.variant, step.context)]) for step in steps)


@st.composite
def cases(draw):
    """Variants with their costs, a past, and new tokens that one of the contexts holds."""
    chosen = draw(variants)
    cost = st.floats(0, 50) if draw(st.booleans()) else st.integers(0, 6)
    costs = {one: draw(cost) for one in chosen}
    end = draw(st.integers(1, max(one.context for one in chosen)))
    past = draw(st.integers(0, end - 1))
    return end - past, past, chosen, costs


@pytest.mark.parametrize(
    ("tokens", "expected"), [(50, [(64, 50)]), (200, [(64, 64)] * 3 + [(8, 8)]), (5, [(8, 5)]), (1, [(1, 1)])]
)
@pytest.mark.parametrize("costs", [None, {V(1, 4096): 9, V(8, 4096): 10, V(64, 4096): 20}])
def test_the_seeds_examples(tokens, expected, costs):
    steps = plan(tokens, 0, SEED, costs)
    assert [(step.variant, step.n_process) for step in steps] == expected
    assert {step.context for step in steps} == {4096}


def test_a_step_as_the_seed_writes_it():
    assert plan(200, 0, SEED)[-1] == VariantCall(8, 4096, 192, 192, 8, 0, 192)
    assert str(plan(1, 50, SEED)[0]) == "AR-1 CL-4096 n_past=50 n_valid_kv=50 n_process=1"


def check_steps(steps, tokens, past, chosen):
    """Every token once and in order, every step inside its context, and a past only where there is one."""
    position = 0 if steps[0].variant == steps[0].context else past
    for step in steps:
        assert V(step.variant, step.context) in chosen
        assert step.n_past == step.n_valid_kv == step.new_idx == position
        assert step.past_idx == 0
        assert 1 <= step.n_process <= step.variant
        assert position + step.n_process <= step.context
        assert step.n_past == 0 or step.variant < step.context
        position += step.n_process
    assert position == past + tokens


@given(cases())
def test_every_token_once_and_in_order_in_its_context(case):
    tokens, past, chosen, costs = case
    check_steps(plan(tokens, past, chosen), tokens, past, chosen)
    check_steps(plan(tokens, past, chosen, costs), tokens, past, chosen)


def least(tokens, past, chosen, costs):
    """The least total cost, from all plans there are: of any number of tokens in every step."""
    end = past + tokens

    @cache
    def rest(position):
        if position == end:
            return Fraction(0)
        costing = [
            Fraction(costs[one]) + rest(position + taken)
            for one in chosen
            if one.rows < one.context or position == 0
            for taken in range(1, min(one.rows, one.context - position, end - position) + 1)
        ]
        return min(costing, default=Fraction(10**9))

    anew = [Fraction(costs[one]) for one in chosen if one.rows == one.context >= end]
    return min([rest(past), *anew])


@settings(max_examples=150)
@given(cases())
def test_no_plan_costs_less(case):
    tokens, past, chosen, costs = case
    cost = total(plan(tokens, past, chosen, costs), costs)
    assert cost == least(tokens, past, chosen, costs)
    assert cost <= total(plan(tokens, past, chosen), costs)
    for one in chosen:
        if one.context >= past + tokens and (one.rows < one.context or one.rows >= past + tokens):
            assert cost <= total(plan(tokens, past, [one]), costs)


@settings(max_examples=60)
@given(cases(), st.sampled_from((0.0, 0.5, 0.875, 1.0)))
def test_no_plan_costs_less_where_padding_spares_something(case, share):
    """Of the plans whose calls take all that they can."""
    tokens, past, chosen, costs = case
    end = past + tokens
    spared = {
        rows: share * min(costs[one] for one in chosen if one.rows == rows) / (2 * rows) for rows, _ in chosen
    }

    def cost_for(one, taken):
        return Fraction(costs[one]) - (one.rows - taken) * Fraction(spared[one.rows])

    @cache
    def rest(position):
        costing = [
            cost_for(one, taken) + rest(position + taken)
            for one in chosen
            if one.rows < one.context or position == 0
            for taken in [min(one.rows, one.context - position, end - position)]
            if taken > 0
        ]
        return min(costing, default=Fraction(10**9)) if position < end else Fraction(0)

    steps = plan(tokens, past, chosen, costs, spared.__getitem__)
    check_steps(steps, tokens, past, chosen)
    cost = sum(cost_for(V(step.variant, step.context), step.n_process) for step in steps)
    anew = [cost_for(one, end) for one in chosen if one.rows == one.context >= end]
    assert cost == min([rest(past), *anew])


def test_padding_that_costs_little_makes_one_call_of_several():
    base = {1: 1.0, 8: 1.2, 32: 2.0, 128: 5.0, 512: 18.0, 2048: 72.0}
    costs = {one: base[one.rows] for one in LARGE}
    steps = [step.variant for step in plan(48, 2000, LARGE, costs)]
    assert steps == [32, 32]
    (step,) = plan(48, 2000, LARGE, costs, lambda rows: 0.9 * (base[rows] - 1) / rows)
    assert step == VariantCall(128, 2048, 2000, 2000, 48, 0, 2000)


@pytest.mark.parametrize("each", [-1.0, 0.2])
def test_what_padding_cannot_spare_is_refused(each):
    message = rf"padding takes {each} off the cost of AR-8xCL-4096, which is 1; all of its rows together must"
    with pytest.raises(ValueError, match=message):
        plan(1, 0, [V(8, 4096)], {V(8, 4096): 1}, lambda _: each)


@given(cases(), st.randoms())
def test_equal_plans_for_equal_inputs(case, order):
    tokens, past, chosen, costs = case
    shuffled = order.sample(chosen, len(chosen))
    assert plan(tokens, past, shuffled) == plan(tokens, past, [*chosen, *chosen])
    assert plan(tokens, past, shuffled, costs) == plan(tokens, past, chosen, costs.__getitem__)


def measured_like():
    """Costs that grow with rows and a little with the context."""
    base = {1: 0.14, 8: 0.19, 32: 0.4, 128: 1.1, 512: 3.8, 2048: 15.0}
    return {one: base[one.rows] * (1 + one.context / 80_000) for one in LARGE}


def test_costs_make_a_better_plan_of_a_prompts_tail():
    costs = measured_like()
    greedy, chosen = plan(600, 0, LARGE), plan(600, 0, LARGE, costs)
    assert [step.variant for step in greedy] == [2048]
    assert [(step.variant, step.context) for step in chosen] == [(512, 512), (128, 2048)]
    assert total(chosen, costs) < total(greedy, costs) / 2


@pytest.mark.parametrize("costs", [None, measured_like()])
def test_the_smallest_context_that_holds_the_end_and_up_in_the_middle(costs):
    """A context serves to its last position, and not one further."""
    pairs = product((1, 8), (512, 2048, 8192))
    priced = costs and {one: costs[one] for one in pairs}
    assert [step.context for step in plan(8, 504, pairs, priced)] == [512]
    assert [step.context for step in plan(1, 511, pairs, priced)] == [512]
    assert [step.context for step in plan(1, 512, pairs, priced)] == [2048]
    went_up = plan(40, 500, pairs, priced)
    assert went_up[0].context == 512
    assert went_up[-1].context == 2048
    for step in went_up:
        assert (step.context == 512) == (step.n_past + step.n_process <= 512)


def test_a_larger_context_only_where_it_is_measured_to_be_cheaper():
    small, large = V(8, 512), V(8, 2048)
    for cost, expected in ((2.0, small), (1.0, small), (0.5, large)):
        (step,) = plan(8, 0, [large, small], {small: 1.0, large: cost})
        assert (step.variant, step.context) == expected


def test_ar_equal_to_cl_computes_all_anew():
    """With a past in one step or not at all, at position 0 as others."""
    assert plan(400, 100, product((1, 128, 512), (512,))) == (VariantCall(512, 512, 0, 0, 500, 0, 0),)
    costs = {V(8, 512): 9.0, V(512, 512): 20.0}
    assert [step.variant for step in plan(8, 400, list(costs), costs)] == [8]
    assert plan(24, 400, list(costs), costs) == (VariantCall(512, 512, 0, 0, 424, 0, 0),)
    first, *others = plan(600, 0, [V(512, 512), V(128, 2048)])
    assert (first.variant, first.n_process) == (512, 512)
    assert [(step.variant, step.n_past) for step in others] == [(128, 512)]


def test_what_no_variant_holds_is_refused_with_the_limit():
    message = (
        r"12 tokens after 4090 end at position 4102, and the largest context of the variants \(VARIANTS\) "
        r"has 4096; shorten the prompt, or add a context of 4102 or more"
    )
    for costs in (None, dict.fromkeys(SEED, 1)):
        with pytest.raises(NoVariantError, match=message) as caught:
            plan(12, 4090, SEED, costs)
        assert (caught.value.length, caught.value.limit) == (4102, 4096)
    assert isinstance(caught.value, PromptError)
    with pytest.raises(NoVariantError, match=r"1 tokens after 0 .* has 0;"):
        plan(1, 0, [])


@pytest.mark.parametrize(("tokens", "past"), [(0, 0), (-1, 5), (1, -1)])
def test_what_is_no_number_of_tokens_is_refused(tokens, past):
    with pytest.raises(ValueError, match=rf"{tokens} tokens after {past} are nothing to plan: 1 or more"):
        plan(tokens, past, SEED)


@pytest.mark.parametrize("cost", [-1.0, float("inf"), float("nan")])
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(ValueError, match=r"the cost of AR-1xCL-4096 is .*; it must be 0 or more, and finite"):
        plan(1, 0, SEED, dict.fromkeys(SEED, cost))


def test_long_prompts_are_planned_in_few_looks(monkeypatch):
    """Thousands of tokens are no thousands of positions: what others are ahead of is not followed."""
    from aerie.engine import planner

    looks: list[object] = []
    calls = planner._PriceList.calls

    def counted(*arguments: Any) -> Any:
        looks.append(arguments)
        return calls(*arguments)

    monkeypatch.setattr(planner._PriceList, "calls", counted)
    costs = measured_like()
    plan(5001, 100, LARGE, costs)
    assert 0 < len(looks) < 600
    looks.clear()
    plan(5001, 100, random.sample(LARGE, len(LARGE)), costs)
    assert not looks  # the same again is not planned again
