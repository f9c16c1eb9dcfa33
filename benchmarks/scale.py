"""One to 64 boxes that share conversations, simulated: `python -m benchmarks.scale` prints the page's tables.

What is simulated: when requests come, which box each is sent to, what its pool of pages still has of the
prompt, and how long its steps take. What is not: the network, Ray, the front's time, tokens, and memory that
answers under way keep others from using. A box's costs are those of the virtual NPU on two cores of a CPU
(docs/performance.md, AVX512-BF16, the size of Llama-3.2-1B), as no NPU was measured. The routing
policy `affinity` is the server's own class.

Requests are turns of conversations: each has the system prompt of one of several applications, all that was
said before, and something new. Conversations begin as a Poisson process; the next turn comes a while after
the answer. Everything follows from the seed. The page is docs/scale.md.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from aerie.engine.pages import PAGE
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.serve.prefix_affinity import LOAD_SLACK, PrefixAffinity

RANDOM, LEAST, AFFINITY = POLICIES = ("random", "least loaded", "affinity")
BOXES = (1, 2, 4, 8, 16, 32, 64)
RATES = (0.1, 0.2, 0.4, 0.6, 0.8)
SLACKS = (0, 2, 8, 32)
SOME = 16


class Costs(NamedTuple):
    """Of a step, in seconds. From docs/performance.md: prompts of 64 and 2048 tokens take 0.21 and 5.5 s; 1
    and 16 requests together make 13.1 and 166.4 tokens/s. pages: of a pool of a quarter of 23.5 GiB, at
    32 KiB a position. chunk: tokens of prompts in a step, at most (docs/serve.md)."""

    prompt_token_s: float = (5.5 - 0.21) / (2048 - 64)
    row_s: float = (16 / 166.4 - 1 / 13.1) / 15
    step_s: float = 1 / 13.1 - (16 / 166.4 - 1 / 13.1) / 15
    pages: int = 3008
    chunk: int = 512


class Traffic(NamedTuple):
    """rate: requests per second and box. Lengths, in tokens, and turns are means, of geometric distributions
    but for `system`, which all prompts of an application begin with; `think_s` is the mean of an exponential
    one. Of `apps` applications per box, one or more in all, the k-th has 1/k of the first one's
    conversations. seconds: for so long conversations begin; all come to their end."""

    rate: float = 0.15
    system: int = 1024
    said: int = 64
    answer: int = 128
    turns: int = 5
    think_s: float = 15.0
    apps: float = 4
    seconds: float = 1000.0


ONE_APP = Traffic(rate=0.4, apps=0)


@dataclass(eq=False)
class Turn:
    """A request. keys: of the pages of its prompt and then of its answer; lengths in tokens."""

    session: int
    number: int
    prompt: int
    answer: int
    keys: list[bytes]
    came_s: float = 0.0
    cached: int = 0
    to_read: int = 0
    left: int = 0
    first_s: float = math.nan
    over_s: float = math.nan


@dataclass
class Session:
    begins_s: float
    app: int
    said: Sequence[int]
    answers: Sequence[int]
    thinks_s: Sequence[float]


class Box:
    """An engine: its pool, and the steps that it makes. `ends_s`: when it looks at its queue next."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._pool: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: deque[Turn] = deque()
        self._running: list[Turn] = []
        self._block = (0.0, 0, 0.0)
        self.ends_s = math.inf
        self.busy_s = 0.0

    @property
    def load(self) -> int:
        """Answers under way or waiting."""
        return len(self._waiting) + len(self._running)

    def put(self, turn: Turn, now_s: float) -> None:
        """Have it answered. A run of steps that is under way ends with the step that is."""
        self._waiting.append(turn)
        began_s, steps, each_s = self._block
        if not steps:
            self._begin(now_s)
        elif len(self._running) < MOST_ANSWERS:
            made = min(steps, max(1, math.ceil((now_s - began_s) / each_s)))
            self._block, self.ends_s = (began_s, made, each_s), began_s + made * each_s

    def step(self) -> list[Turn]:
        """Come to the end of the steps under way, and begin others. What is over."""
        now_s, (began_s, steps, _) = self.ends_s, self._block
        self.busy_s += now_s - began_s
        budget = self._costs.chunk
        for turn in self._running:
            if turn.to_read:
                budget -= (part := min(turn.to_read, budget))
                turn.to_read -= part
                if not turn.to_read:
                    turn.first_s, turn.left = now_s, turn.left - 1
                    self._keep(turn.keys[: turn.prompt // PAGE])
            else:
                turn.left -= steps
        over = [turn for turn in self._running if not turn.left]
        for turn in over:
            turn.over_s = now_s
            self._keep(turn.keys)
        self._running = [turn for turn in self._running if turn.left]
        self._begin(now_s)
        return over

    def _begin(self, now_s: float) -> None:
        while self._waiting and len(self._running) < MOST_ANSWERS:
            self._running.append(turn := self._waiting.popleft())
            turn.cached = min(self._found(turn.keys) * PAGE, turn.prompt - 1)
            turn.to_read, turn.left = turn.prompt - turn.cached, turn.answer
        if not self._running:
            self._block, self.ends_s = (now_s, 0, 0.0), math.inf
            return
        reading = min(self._costs.chunk, sum(turn.to_read for turn in self._running))
        steps = 1 if reading else min(turn.left for turn in self._running)
        rows = sum(not turn.to_read for turn in self._running)
        each_s = self._costs.step_s + rows * self._costs.row_s + reading * self._costs.prompt_token_s
        self._block, self.ends_s = (now_s, steps, each_s), now_s + steps * each_s

    def _found(self, keys: Sequence[bytes]) -> int:
        """How many pages of the beginning the pool has."""
        return next((number for number, key in enumerate(keys) if key not in self._pool), len(keys))

    def _keep(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._pool[key] = None
            self._pool.move_to_end(key)
        while len(self._pool) > self._costs.pages:
            self._pool.popitem(last=False)


@dataclass
class Outcome:
    """What came of a run. under_way_s: the integral of the requests in the system over time, kept apart."""

    turns: list[Turn]
    asked: int
    under_way_s: float
    ended_s: float
    busy_s: list[float] = field(default_factory=list)

    @property
    def hits(self) -> float:
        """The share of the prompts' tokens that a pool had."""
        return sum(turn.cached for turn in self.turns) / sum(turn.prompt for turn in self.turns)

    def first_s(self, percent: float) -> float:
        """So many percent of the requests had their first token after so many seconds."""
        return float(np.percentile([turn.first_s - turn.came_s for turn in self.turns], percent))

    @property
    def spread(self) -> float:
        """The busiest box's time in steps over the mean of all."""
        return max(self.busy_s) / (sum(self.busy_s) / len(self.busy_s))


def sessions(traffic: Traffic, boxes: int, seed: int) -> list[Session]:
    """The conversations, the same for every policy."""
    draw = np.random.default_rng([seed, boxes])
    count = int(draw.poisson(traffic.rate * boxes * traffic.seconds / traffic.turns))
    weights = 1 / np.arange(1, max(1, round(traffic.apps * boxes)) + 1)
    apps = draw.choice(len(weights), count, p=weights / weights.sum())
    begins = np.sort(draw.uniform(0, traffic.seconds, count))
    turns = draw.geometric(1 / traffic.turns, count)

    def lengths(mean: int, many: int) -> list[int]:
        return [int(each) for each in draw.geometric(1 / mean, many)]

    return [
        Session(
            float(begin),
            int(app),
            lengths(traffic.said, many),
            lengths(traffic.answer, many),
            [float(each) for each in draw.exponential(traffic.think_s, many)],
        )
        for begin, app, many in zip(begins, apps, turns, strict=True)
    ]


def turns_of(number: int, session: Session, system: int) -> Iterator[Turn]:
    """Its requests: each prompt has all that was said before."""
    there, keys = system, [b"app %d %d" % (session.app, page) for page in range(system // PAGE)]
    for turn, (said, answer) in enumerate(zip(session.said, session.answers, strict=True)):
        prompt = there + said
        there = prompt + answer
        keys = [*keys, *(b"%d %d" % (number, page) for page in range(len(keys), there // PAGE))]
        yield Turn(number, turn, prompt, answer, keys)


class Router:
    """Which box is asked, by its number."""

    def __init__(self, policy: str, boxes: int, slack: float, seed: int) -> None:
        self._policy, self._draw = policy, np.random.default_rng([seed, boxes, 1])
        self._names = [f"{number:02}" for number in range(boxes)]
        self._affinity = PrefixAffinity(slack)

    def __call__(self, turn: Turn, boxes: Sequence[Box]) -> int:
        if self._policy == RANDOM:
            return int(self._draw.integers(len(boxes)))
        loads = {name: float(box.load) for name, box in zip(self._names, boxes, strict=True)}
        keys = turn.keys[: turn.prompt // PAGE] if self._policy == AFFINITY else []
        if self._policy == LEAST:
            least = min(loads.values())
            return int(self._draw.choice([number for number, box in enumerate(boxes) if box.load == least]))
        name = self._affinity.choose(keys, loads)
        self._affinity.record(keys, name)
        return int(name)


def simulate(
    policy: str,
    boxes: int,
    traffic: Traffic = Traffic(),  # noqa: B008
    slack: float = LOAD_SLACK,
    seed: int = 0,
) -> Outcome:
    """A run, from the first conversation to the end of the last. slack: of Affinity."""
    engines = [Box(Costs()) for _ in range(boxes)]
    drawn, route = sessions(traffic, boxes, seed), Router(policy, boxes, slack, seed)
    coming = [list(turns_of(number, one, traffic.system)) for number, one in enumerate(drawn)]
    events = [(one.begins_s, number, -1) for number, one in enumerate(drawn)]
    outcome = Outcome([], sum(map(len, coming)), 0.0, 0.0)
    under_way, before_s = 0, 0.0
    heapq.heapify(events)
    while events:
        now_s, session, box = heapq.heappop(events)
        outcome.under_way_s += under_way * (now_s - before_s)
        before_s = now_s
        if box < 0:
            turn = coming[session].pop(0)
            turn.came_s, box = now_s, route(turn, engines)
            engines[box].put(turn, now_s)
            under_way += 1
        elif engines[box].ends_s != now_s:
            continue  # what was planned to end now was cut short, and looked at already
        else:
            for turn in engines[box].step():
                under_way -= 1
                outcome.turns.append(turn)
                if coming[turn.session]:
                    after_s = drawn[turn.session].thinks_s[turn.number]
                    heapq.heappush(events, (now_s + after_s, turn.session, -1))
        if engines[box].ends_s < math.inf:
            heapq.heappush(events, (engines[box].ends_s, -1, box))
    outcome.ended_s, outcome.busy_s = before_s, [box.busy_s for box in engines]
    return outcome


def row(first: str, policy: str, made: Outcome) -> str:
    """Of a table."""
    return (
        f"| {first} | {policy} | {len(made.turns)} | {made.hits:.2f} | {made.first_s(50):.2f} | "
        f"{made.first_s(95):.2f} | {made.spread:.2f} |"
    )


def heading(first: str) -> str:
    titles = ("policy", "requests", "tokens found", "first token, median, s", "95 %", "busiest over mean")
    return f"| {' | '.join((first, *titles))} |\n|{' --- |' * (1 + len(titles))}"


def by_boxes(boxes: Sequence[int] = BOXES) -> Iterator[str]:
    """The table of all policies at one rate."""
    yield heading("boxes")
    for each in boxes:
        for policy in POLICIES if each > 1 else POLICIES[:1]:
            yield row(str(each), policy, simulate(policy, each))


def by_rate(rates: Sequence[float] = RATES) -> Iterator[str]:
    """The table of all policies at SOME boxes."""
    yield heading("requests/s and box")
    for rate in rates:
        for policy in POLICIES:
            yield row(f"{rate:g}", policy, simulate(policy, SOME, Traffic(rate=rate)))


def by_slack(slacks: Sequence[float] = SLACKS) -> Iterator[str]:
    """The table of Affinity's slack, where all conversations at SOME boxes begin alike."""
    yield heading("slack")
    for slack in slacks:
        yield row(f"{slack:g}", AFFINITY, simulate(AFFINITY, SOME, ONE_APP, slack))


def main() -> None:
    """All tables."""
    for number, table in enumerate((by_boxes(), by_rate(), by_slack())):
        if number:
            print()
        for line in table:
            print(line)


if __name__ == "__main__":
    main()
