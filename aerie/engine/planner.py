"""The planner: which programs take which tokens, for a number of tokens and what is in the KV cache.

A pure function of numbers. A variant AR-n x CL-m takes up to n tokens in a call, with a KV cache of m
positions; a plan is the steps that take all tokens, in order.

Without costs it follows the seed's inference strategy: the smallest variant that takes all that is left, else
the largest. With the cost of a call of each variant (costs.py) it finds a plan of the least total cost. Costs
are added up exactly, so no other plan costs less: none of one variant, nor the one made without costs.

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
"""What a call of a variant costs: 0 or more, in any unit, such as seconds."""


class VariantCall(NamedTuple):
    """One call, in counts of tokens and positions of the cache.

    variant, context: n and m of AR-n x CL-m. n_past: tokens before this step. n_valid_kv: how many of them
    are in the cache, which is all. n_process: tokens that the step takes; its other rows are padding.
    past_idx: where the past begins in the cache. new_idx: where the step's keys and values go.
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
    tokens: int, past: int, variants: Iterable[V], costs: Costs[V] | None = None
) -> tuple[VariantCall, ...]:
    """The steps for `tokens` new tokens, 1 or more, after `past` tokens in the cache.

    Equal for equal inputs, in whatever order the variants come. Raises NoVariantError where no variant has a
    context for all of them, and ValueError for a number of tokens, a past or a cost that is none.
    """
    if tokens < 1 or past < 0:
        raise ValueError(f"{tokens} tokens after {past} are nothing to plan: 1 or more, after 0 or more")
    distinct = sorted(set(variants), key=lambda one: (one.rows, one.context))
    limit = max((one.context for one in distinct), default=0)
    if past + tokens > limit:
        raise NoVariantError(tokens, past, limit)
    if costs is None:
        return _greedy(tokens, past, tuple((one.rows, one.context) for one in distinct))
    prices = tuple((one.rows, one.context, _cost(costs, one)) for one in distinct)
    return _cheapest(tokens, past, _price_list(prices))


def _cost(costs: Costs[V], variant: V) -> float:
    cost = costs(variant) if callable(costs) else costs[variant]
    if not 0 <= cost < math.inf:
        raise ValueError(
            f"the cost of AR-{variant.rows}xCL-{variant.context} is {cost}; it must be 0 or more, and finite"
        )
    return cost


@lru_cache(maxsize=1024)
def _greedy(tokens: int, past: int, variants: tuple[tuple[int, int], ...]) -> tuple[VariantCall, ...]:
    """By the seed's rule; of the contexts that hold a step's end, the smallest."""
    steps: list[VariantCall] = []
    left = tokens
    while left:
        start = past + tokens - left
        fits = [
            (rows, context)
            for rows, context in variants
            if start + min(rows, left) <= context
            and (rows < context or start == 0 or (start == past and past + tokens <= rows))
        ]
        rows = min((rows for rows, _ in fits if rows >= left), default=max(fits)[0])
        context = min(context for each, context in fits if each == rows)
        steps.append(_variant_call(rows, context, start, min(rows, left)))
        left -= min(rows, left)
    return tuple(steps)


def _variant_call(rows: int, context: int, start: int, taken: int) -> VariantCall:
    """`taken` new tokens from position `start` on; AR == CL takes those before it too."""
    if rows == context:
        return VariantCall(rows, context, 0, 0, start + taken, 0, 0)
    return VariantCall(rows, context, start, start, taken, 0, start)


class _Call(NamedTuple):
    """A call of a variant. Its cost is a whole number, of a unit that all calls share."""

    rows: int
    context: int
    cost: int


class _PriceList:
    """Which calls can be made at a position, and what tokens cost at least."""

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

    def calls(self, start: int, left: int) -> Iterator[tuple[_Call, int]]:
        """Calls from position `start` on, and how many of the tokens that are left they take.

        Each takes as many as it can: whoever is further on can do whatever one behind can, for no more.
        """
        if start == 0:
            yield from ((call, min(call.rows, left)) for call in self.without_past)
        for same_rows in self._by_rows[bisect_right(self._contexts, start)]:
            for call in same_rows:
                taken = min(call.rows, left, call.context - start)
                yield call, taken
                if taken == call.rows or taken == left:
                    break  # a larger context costs as much or more, and takes no more

    def at_least(self, start: int, end: int) -> int:
        """What tokens at positions from `start` to `end` cost at least, in `parts` of the unit.

        Each costs at least its share of the call that costs least per row, of those whose contexts hold it.
        """
        total = 0
        for place in range(bisect_right(self._contexts, start), len(self._contexts)):
            if start >= end:
                break
            last = min(self._contexts[place], end)
            total += (last - start) * self._least_share[place]
            start = last
        return total


def _without_dearer(calls: list[_Call]) -> list[_Call]:
    """By context, the smallest first, without those that cost more than one of a larger context."""
    kept: list[_Call] = []
    for call in sorted(calls, key=lambda one: -one.context):
        if not kept or call.cost <= kept[-1].cost:
            kept.append(call)
    return kept[::-1]


@lru_cache(maxsize=64)
def _price_list(prices: tuple[tuple[int, int, float], ...]) -> _PriceList:
    """Of rows, contexts and costs. Floats are fractions; over their common denominator they are whole."""
    exact = [Fraction(cost) for _, _, cost in prices]
    unit = math.lcm(*(cost.denominator for cost in exact))
    whole = (int(cost * unit) for cost in exact)
    return _PriceList([_Call(*price[:2], cost) for price, cost in zip(prices, whole, strict=True)])


class _Path(NamedTuple):
    """A way to where `left` tokens are left, by a last call that takes `taken`; the best compares as least.

    at_least: what a plan that begins so costs at least, in parts of the unit. spent: what it costs so far.
    """

    at_least: int
    remaining: int
    taken: int
    spent: int
    call: _Call | None


@lru_cache(maxsize=1024)
def _cheapest(tokens: int, past: int, prices: _PriceList) -> tuple[VariantCall, ...]:
    """A* over the tokens that are left. A way that another is ahead of, for as little, is not followed."""
    end = past + tokens
    ways = [_Path(0, tokens, 0, 0, None)]
    followed = {tokens: ways[0]}
    if past:
        anew = (call for call in prices.without_past if call.rows >= end)
        ways += [_Path(call.cost * prices.parts, 0, tokens, call.cost, call) for call in anew]
    heapq.heapify(ways)
    ahead = _Ahead()
    while (way := heapq.heappop(ways)).remaining:
        if not ahead.add(way.remaining, way.spent):
            continue
        followed[way.remaining] = way
        for call, taken in prices.calls(end - way.remaining, way.remaining):
            left, spent = way.remaining - taken, way.spent + call.cost
            at_least = spent * prices.parts + prices.at_least(end - left, end)
            heapq.heappush(ways, _Path(at_least, left, taken, spent, call))
    return tuple(reversed(list(_path_calls(way, followed, end))))


class _Ahead:
    """How little it cost to have how few tokens left: the fewer, the more, else it is not kept."""

    def __init__(self) -> None:
        self._left: list[int] = []
        self._spent: list[int] = []

    def add(self, left: int, spent: int) -> bool:
        """Whether nothing was as far for as little; it is taken in then."""
        place = bisect_right(self._left, left)
        if place and self._spent[place - 1] <= spent:
            return False
        past_it = place
        while past_it < len(self._left) and self._spent[past_it] >= spent:
            past_it += 1
        self._left[place:past_it], self._spent[place:past_it] = [left], [spent]
        return True


def _path_calls(way: _Path, followed: Mapping[int, _Path], end: int) -> Iterator[VariantCall]:
    """The steps that lead to where no token is left, the last one first."""
    while way.call:
        yield _variant_call(way.call.rows, way.call.context, end - way.remaining - way.taken, way.taken)
        way = followed[way.remaining + way.taken]
