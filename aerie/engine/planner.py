"""The planner: which programs take which tokens, for a number of tokens and what is in the KV cache.

A pure function of numbers. A variant AR-n x CL-m takes up to n tokens in a call, with a KV cache of m
positions; a plan is the steps that take all tokens, in order.

Without costs it follows the seed's inference strategy: the smallest variant that takes all that is left, else
the largest. With the cost of a call of each variant (call_costs.py) it finds a plan of the least total cost.
Costs are added up exactly, so no other plan costs less: none of one variant, nor the one made without costs.
A call may cost less where some of its rows are padding; then one call of many rows, most of them padding, may
be cheaper than several of few rows.

A context is left for a larger one where n_past + n_process would pass it. In the seed the past lies beside
the new rows, which take n places of the context, tokens and padding alike (its boundary is CL - AR). In our
cache new rows lie in place, right after the past, and padding is written nowhere, so a context serves to
its last position. A step has the smallest context that holds its end, unless a larger one is measured to be
cheaper, and a prompt may go up in its middle.

AR == CL has no past. At position 0 it is a variant like others; with a past it computes all tokens anew,
those of the past too, in one step from position 0, where they fit.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from aerie.engine.errors import NoVariantError


class VariantSize(Protocol):
    """AR-rows x CL-context: tokens of a call, and positions of the cache."""

    @property
    def rows(self) -> int: ...

    @property
    def context(self) -> int: ...


V = TypeVar("V", bound=VariantSize)
Costs: TypeAlias = "Mapping[V, float] | Callable[[V], float]"
"""The cost of a variant's call: 0 or more, in any unit, such as seconds."""
Spared: TypeAlias = "Callable[[int], float]"
"""Of a call of so many rows: what each row that is padding takes off its cost."""


def nothing_spared(_: int) -> float:
    """Padding costs as much as a token does."""
    return 0.0


class VariantCall(NamedTuple):
    """One call of a variant, in counts of tokens and positions of the cache.

    variant, context: n and m of AR-n x CL-m. n_past: tokens before this call. n_valid_kv: how many of them
    are in the cache, which is all. n_process: tokens that the call takes; its other rows are padding.
    past_idx: where the past starts in the cache. new_idx: where the keys and values of the call go.
    """

    variant: int
    context: int
    n_past: int
    n_valid_kv: int
    n_process: int
    past_idx: int
    new_idx: int

    def __str__(self) -> str:
        return (
            f"AR-{self.variant} CL-{self.context} n_past={self.n_past} n_valid_kv={self.n_valid_kv} "
            f"n_process={self.n_process}"
        )


def plan(
    tokens: int,
    past: int,
    variants: Iterable[V],
    costs: Costs[V] | None = None,
    spared: Spared = nothing_spared,
) -> tuple[VariantCall, ...]:
    """The calls for `tokens` new tokens, 1 or more, after `past` tokens in the cache.

    costs: of a call whose rows are all tokens. Equal inputs give equal plans, for any order of the variants.
    Raises NoVariantError if no context holds all of them, and ValueError for an impossible number of tokens,
    past or cost.
    """
    if tokens < 1 or past < 0:
        raise ValueError(f"{tokens} tokens after {past} are nothing to plan: 1 or more, after 0 or more")
    distinct = sorted(set(variants), key=lambda one: (one.rows, one.context))
    limit = max((one.context for one in distinct), default=0)
    if past + tokens > limit:
        raise NoVariantError(tokens, past, limit)
    if costs is None:
        return _greedy(tokens, past, tuple((one.rows, one.context) for one in distinct))
    prices = tuple(
        (one.rows, one.context, cost := _cost(costs, one), _spared(spared, one, cost)) for one in distinct
    )
    return _cheapest(tokens, past, _price_list(prices))


def _cost(costs: Costs[V], variant: V) -> float:
    cost = costs(variant) if callable(costs) else costs[variant]
    if not 0 <= cost < math.inf:
        raise ValueError(
            f"the cost of AR-{variant.rows}xCL-{variant.context} is {cost}; it must be 0 or more, and finite"
        )
    return cost


def _spared(spared: Spared, variant: V, cost: float) -> float:
    each = spared(variant.rows)
    if not 0 <= each * variant.rows <= cost:
        raise ValueError(
            f"a row of padding takes {each} off the cost of AR-{variant.rows}xCL-{variant.context}, which is "
            f"{cost}; all of its rows together must take off 0 or more, and no more than that"
        )
    return each


@lru_cache(maxsize=1024)
def _greedy(tokens: int, past: int, variants: tuple[tuple[int, int], ...]) -> tuple[VariantCall, ...]:
    """Plan by the seed's rule. Of the contexts that hold the end of a call, the smallest is used."""
    steps: list[VariantCall] = []
    remaining = tokens
    while remaining:
        start = past + tokens - remaining
        fits = [
            (rows, context)
            for rows, context in variants
            if start + min(rows, remaining) <= context
            and (rows < context or start == 0 or (start == past and past + tokens <= rows))
        ]
        rows = min((rows for rows, _ in fits if rows >= remaining), default=max(fits)[0])
        context = min(context for each, context in fits if each == rows)
        steps.append(_variant_call(rows, context, start, min(rows, remaining)))
        remaining -= min(rows, remaining)
    return tuple(steps)


def _variant_call(rows: int, context: int, start: int, taken: int) -> VariantCall:
    """A call for `taken` new tokens from position `start` on; AR == CL computes the positions before them
    too."""
    if rows == context:
        return VariantCall(rows, context, 0, 0, start + taken, 0, 0)
    return VariantCall(rows, context, start, start, taken, 0, start)


class _Call(NamedTuple):
    """A call of a variant. cost: where all rows are tokens. spared: what each row of padding takes off it.
    Both are integers, in a unit that all calls share."""

    rows: int
    context: int
    cost: int
    spared: int

    def cost_for(self, taken: int) -> int:
        """The cost with so many tokens."""
        return self.cost - (self.rows - taken) * self.spared


class _PriceList:
    """The possible calls at a position, and a lower bound for the cost of tokens."""

    def __init__(self, calls: list[_Call]) -> None:
        self.without_past = [call for call in calls if call.rows == call.context]
        self._contexts = sorted({call.context for call in calls})
        by_rows = [[call for call in calls if call.rows == rows] for rows in {call.rows for call in calls}]
        self._by_rows = [
            [
                _without_dearer([call for call in same if context <= call.context != call.rows])
                for same in by_rows
            ]
            for context in self._contexts
        ]
        """Per context, for the positions that it has and no smaller one: calls with a past, by rows."""
        self.parts = math.lcm(*(call.rows for call in calls))
        """A token's share of what a call costs is counted in this part of the unit: it is whole then."""
        self._least_share = [
            min(call.cost * (self.parts // call.rows) for call in calls if call.context >= context)
            for context in self._contexts
        ]

    def calls(self, start: int, remaining: int) -> Iterator[tuple[_Call, int]]:
        """Calls from position `start` on, and how many of the `left` tokens each takes.

        Each takes as many as it can: a plan that is further on can do whatever one behind can, for no more.
        """
        if start == 0:
            yield from ((call, min(call.rows, remaining)) for call in self.without_past)
        for same_rows in self._by_rows[bisect_right(self._contexts, start)]:
            for call in same_rows:
                taken = min(call.rows, remaining, call.context - start)
                yield call, taken
                if taken == call.rows or taken == remaining:
                    break  # a larger context costs as much or more, and takes no more

    def at_least(self, start: int, end: int) -> int:
        """A lower bound for the cost of the tokens at positions `start` to `end`, in `parts` of the unit.

        Each token costs at least its share of the call with the least cost per row, of those whose contexts
        hold it.
        """
        total = 0
        for index in range(bisect_right(self._contexts, start), len(self._contexts)):
            if start >= end:
                break
            last = min(self._contexts[index], end)
            total += (last - start) * self._least_share[index]
            start = last
        return total


def _without_dearer(calls: list[_Call]) -> list[_Call]:
    """The calls by context, smallest first, without those that cost more than a call of a larger context."""
    remaining: list[_Call] = []
    for call in sorted(calls, key=lambda one: -one.context):
        if not remaining or call.cost <= remaining[-1].cost:
            remaining.append(call)
    return remaining[::-1]


@lru_cache(maxsize=64)
def _price_list(prices: tuple[tuple[int, int, float, float], ...]) -> _PriceList:
    """Calls from (rows, context, cost, spared). Floats are fractions; over their common denominator they are
    integers."""
    exact = [(Fraction(cost), Fraction(spared)) for _, _, cost, spared in prices]
    unit = math.lcm(*(number.denominator for both in exact for number in both))
    return _PriceList(
        [
            _Call(*price[:2], int(cost * unit), int(spared * unit))
            for price, (cost, spared) in zip(prices, exact, strict=True)
        ]
    )


class _Path(NamedTuple):
    """A partial plan with `remaining` tokens left, whose last call takes `taken`. The best compares as least.

    at_least: a lower bound for the cost of a complete plan, in parts of the unit. spent: cost so far.
    """

    at_least: int
    remaining: int
    taken: int
    spent: int
    call: _Call | None


@lru_cache(maxsize=1024)
def _cheapest(tokens: int, past: int, prices: _PriceList) -> tuple[VariantCall, ...]:
    """A* over the number of tokens that are left. A path is not followed if another is as far for the same
    cost or less."""
    end = past + tokens
    paths = [_Path(0, tokens, 0, 0, None)]
    best = {tokens: paths[0]}
    if past:
        recompute = ((call, call.cost_for(end)) for call in prices.without_past if call.rows >= end)
        paths += [_Path(cost * prices.parts, 0, tokens, cost, call) for call, cost in recompute]
    heapq.heapify(paths)
    ahead = _Ahead()
    while (path := heapq.heappop(paths)).remaining:
        if not ahead.add(path.remaining, path.spent):
            continue
        best[path.remaining] = path
        for call, taken in prices.calls(end - path.remaining, path.remaining):
            remaining, spent = path.remaining - taken, path.spent + call.cost_for(taken)
            at_least = spent * prices.parts + prices.at_least(end - remaining, end)
            heapq.heappush(paths, _Path(at_least, remaining, taken, spent, call))
    return tuple(reversed(list(_path_calls(path, best, end))))


class _Ahead:
    """The least cost of each number of tokens left, without entries that another one beats."""

    def __init__(self) -> None:
        self._left: list[int] = []
        self._spent: list[int] = []

    def add(self, remaining: int, spent: int) -> bool:
        """Whether no path was as far for the same cost or less. Adds the path if so."""
        index = bisect_right(self._left, remaining)
        if index and self._spent[index - 1] <= spent:
            return False
        past_it = index
        while past_it < len(self._left) and self._spent[past_it] >= spent:
            past_it += 1
        self._left[index:past_it], self._spent[index:past_it] = [remaining], [spent]
        return True


def _path_calls(path: _Path, best: Mapping[int, _Path], end: int) -> Iterator[VariantCall]:
    """The calls of a path, the last one first."""
    while path.call:
        yield _variant_call(path.call.rows, path.call.context, end - path.remaining - path.taken, path.taken)
        path = best[path.remaining + path.taken]
