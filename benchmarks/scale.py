"""Simulate 1 to 64 engines that share conversations: `python -m benchmarks.scale` prints the tables of the
page.

Simulated: when requests arrive, to which engine each is sent, what its page pool still has of the prompt, and
how long its steps take. Not simulated: the network, Ray, the proxy's time, token values, and the memory that
running requests take from the pool. The times are those of the virtual NPU on two CPU cores
(docs/dev/performance-notes.md, AVX512-BF16, the size of Llama-3.2-1B), as no NPU was measured. The routing
policy `affinity` is the server's own class.

Requests are turns of conversations: each has the system prompt of one of several applications, the
conversation so far, and something new. Conversations start as a Poisson process; the next turn comes some
time after the output. Everything follows from the seed. The page is docs/dev/routing-simulation.md.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.serve.prefix_affinity import LOAD_SLACK, PrefixAffinity

RANDOM, LEAST, AFFINITY = POLICIES = ("random", "least loaded", "affinity")
BOXES = (1, 2, 4, 8, 16, 32, 64)
RATES = (0.1, 0.2, 0.4, 0.6, 0.8)
SLACKS = (0, 2, 8, 32)
DEFAULT_BOXES = 16


class StepTimes(NamedTuple):
    """Times of an engine step, in seconds. From docs/dev/performance-notes.md: prompts of 64 and 2048 tokens
    take 0.21 and 5.5 s; 1 and 16 requests together make 13.1 and 166.4 tokens/s. pages: of a pool of a
    quarter of 23.5 GiB, at 32 KiB a position. chunk: maximum prompt tokens of a step (docs/how-to/serve.md).
    """

    prompt_token_s: float = (5.5 - 0.21) / (2048 - 64)
    row_s: float = (16 / 166.4 - 1 / 13.1) / 15
    step_s: float = 1 / 13.1 - (16 / 166.4 - 1 / 13.1) / 15
    pages: int = 3008
    chunk: int = 512


class Traffic(NamedTuple):
    """The load. rate: requests per second and engine. Lengths in tokens and `turns` are means of geometric
    distributions, except `system`, the prefix of all prompts of an application; `think_s` is the mean of an
    exponential one. Of `apps` applications per engine, at least one in all, the k-th has 1/k of the
    conversations of the first. seconds: new conversations start during this time; all run to their end."""

    rate: float = 0.15
    system: int = 1024
    user_tokens: int = 64
    answer: int = 128
    turns: int = 5
    think_s: float = 15.0
    apps: float = 4
    seconds: float = 1000.0


ONE_APP = Traffic(rate=0.4, apps=0)


@dataclass(eq=False)
class SimulatedRequest:
    """One request. keys: of the pages of its prompt and then its output. Lengths are in tokens."""

    conversation: int
    number: int
    prompt: int
    answer: int
    keys: list[bytes]
    arrived_s: float = 0.0
    cached: int = 0
    to_prefill: int = 0
    remaining: int = 0
    first_s: float = math.nan
    finished_s: float = math.nan


@dataclass
class SimulatedConversation:
    """One conversation. user_tokens, answers: lengths of its turns. thinks_s: pauses after them."""

    start_s: float
    app: int
    user_tokens: Sequence[int]
    answers: Sequence[int]
    thinks_s: Sequence[float]


class SimulatedEngine:
    """An engine: its pool and its steps. ends_s: when it looks at its queue next."""

    def __init__(self, costs: StepTimes) -> None:
        self._step_times = costs
        self._pool: OrderedDict[bytes, None] = OrderedDict()
        self._waiting: deque[SimulatedRequest] = deque()
        self._running: list[SimulatedRequest] = []
        self._steps_in_progress = (0.0, 0, 0.0)
        self.ends_s = math.inf
        self.busy_s = 0.0

    @property
    def load(self) -> int:
        """Running and queued requests."""
        return len(self._waiting) + len(self._running)

    def submit(self, request: SimulatedRequest, now_s: float) -> None:
        """Queue a request. A series of steps in progress ends with its current step."""
        self._waiting.append(request)
        began_s, steps, each_s = self._steps_in_progress
        if not steps:
            self._start_steps(now_s)
        elif len(self._running) < MAX_RUNNING_REQUESTS:
            remaining_steps = min(steps, max(1, math.ceil((now_s - began_s) / each_s)))
            self._steps_in_progress = (began_s, remaining_steps, each_s)
            self.ends_s = began_s + remaining_steps * each_s

    def step(self) -> list[SimulatedRequest]:
        """End the steps in progress, and start new ones. Returns the finished requests."""
        now_s, (began_s, steps, _) = self.ends_s, self._steps_in_progress
        self.busy_s += now_s - began_s
        budget = self._step_times.chunk
        for request in self._running:
            if request.to_prefill:
                budget -= (computed := min(request.to_prefill, budget))
                request.to_prefill -= computed
                if not request.to_prefill:
                    request.first_s, request.remaining = now_s, request.remaining - 1
                    self._cache(request.keys[: request.prompt // PAGE_SIZE])
            else:
                request.remaining -= steps
        finished = [request for request in self._running if not request.remaining]
        for request in finished:
            request.finished_s = now_s
            self._cache(request.keys)
        self._running = [request for request in self._running if request.remaining]
        self._start_steps(now_s)
        return finished

    def _start_steps(self, now_s: float) -> None:
        while self._waiting and len(self._running) < MAX_RUNNING_REQUESTS:
            self._running.append(request := self._waiting.popleft())
            request.cached = min(self._cached_pages(request.keys) * PAGE_SIZE, request.prompt - 1)
            request.to_prefill, request.remaining = request.prompt - request.cached, request.answer
        if not self._running:
            self._steps_in_progress, self.ends_s = (now_s, 0, 0.0), math.inf
            return
        prefill_tokens = min(self._step_times.chunk, sum(request.to_prefill for request in self._running))
        steps = 1 if prefill_tokens else min(request.remaining for request in self._running)
        rows = sum(not request.to_prefill for request in self._running)
        each_s = (
            self._step_times.step_s
            + rows * self._step_times.row_s
            + prefill_tokens * self._step_times.prompt_token_s
        )
        self._steps_in_progress, self.ends_s = (now_s, steps, each_s), now_s + steps * each_s

    def _cached_pages(self, keys: Sequence[bytes]) -> int:
        """How many pages of the prefix the pool has."""
        return next((number for number, key in enumerate(keys) if key not in self._pool), len(keys))

    def _cache(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self._pool[key] = None
            self._pool.move_to_end(key)
        while len(self._pool) > self._step_times.pages:
            self._pool.popitem(last=False)


@dataclass
class SimulationResult:
    """The result of a simulation. in_system_s: the integral over time of the requests in the system, counted
    separately."""

    requests: list[SimulatedRequest]
    request_count: int
    in_system_s: float
    ended_s: float
    busy_s: list[float] = field(default_factory=list)

    @property
    def hits(self) -> float:
        """The share of prompt tokens found in a pool."""
        return sum(turn.cached for turn in self.requests) / sum(turn.prompt for turn in self.requests)

    def first_s(self, percent: float) -> float:
        """The percentile of the seconds to the first token."""
        return float(np.percentile([turn.first_s - turn.arrived_s for turn in self.requests], percent))

    @property
    def spread(self) -> float:
        """The busiest engine's time in steps over the mean."""
        return max(self.busy_s) / (sum(self.busy_s) / len(self.busy_s))


def make_conversations(traffic: Traffic, boxes: int, seed: int) -> list[SimulatedConversation]:
    """The conversations, the same for every policy."""
    draw = np.random.default_rng([seed, boxes])
    count = int(draw.poisson(traffic.rate * boxes * traffic.seconds / traffic.turns))
    weights = 1 / np.arange(1, max(1, round(traffic.apps * boxes)) + 1)
    apps = draw.choice(len(weights), count, p=weights / weights.sum())
    starts = np.sort(draw.uniform(0, traffic.seconds, count))
    turns = draw.geometric(1 / traffic.turns, count)

    def lengths(mean: int, turn_count: int) -> list[int]:
        return [int(value) for value in draw.geometric(1 / mean, turn_count)]

    return [
        SimulatedConversation(
            float(start),
            int(app),
            lengths(traffic.user_tokens, turn_count),
            lengths(traffic.answer, turn_count),
            [float(value) for value in draw.exponential(traffic.think_s, turn_count)],
        )
        for start, app, turn_count in zip(starts, apps, turns, strict=True)
    ]


def make_requests(
    number: int, conversation: SimulatedConversation, system: int
) -> Iterator[SimulatedRequest]:
    """The requests of a conversation: each prompt has the whole conversation so far."""
    context, keys = system, [b"app %d %d" % (conversation.app, page) for page in range(system // PAGE_SIZE)]
    for turn_number, (user_tokens, answer) in enumerate(
        zip(conversation.user_tokens, conversation.answers, strict=True)
    ):
        prompt = context + user_tokens
        context = prompt + answer
        keys = [*keys, *(b"%d %d" % (number, page) for page in range(len(keys), context // PAGE_SIZE))]
        yield SimulatedRequest(number, turn_number, prompt, answer, keys)


class Router:
    """Chooses the engine of a request, by index."""

    def __init__(self, policy: str, boxes: int, slack: float, seed: int) -> None:
        self._policy, self._draw = policy, np.random.default_rng([seed, boxes, 1])
        self._names = [f"{number:02}" for number in range(boxes)]
        self._affinity = PrefixAffinity(slack)

    def __call__(self, request: SimulatedRequest, engines: Sequence[SimulatedEngine]) -> int:
        if self._policy == RANDOM:
            return int(self._draw.integers(len(engines)))
        loads = {name: float(engine.load) for name, engine in zip(self._names, engines, strict=True)}
        keys = request.keys[: request.prompt // PAGE_SIZE] if self._policy == AFFINITY else []
        if self._policy == LEAST:
            min_load = min(loads.values())
            return int(
                self._draw.choice(
                    [number for number, engine in enumerate(engines) if engine.load == min_load]
                )
            )
        name = self._affinity.choose(keys, loads)
        self._affinity.record(keys, name)
        return int(name)


def simulate(
    policy: str,
    boxes: int,
    traffic: Traffic = Traffic(),  # noqa: B008
    slack: float = LOAD_SLACK,
    seed: int = 0,
) -> SimulationResult:
    """Simulate from the first conversation to the end of the last. slack: of PrefixAffinity."""
    engines = [SimulatedEngine(StepTimes()) for _ in range(boxes)]
    conversations, route = make_conversations(traffic, boxes, seed), Router(policy, boxes, slack, seed)
    requests_by_conversation = [
        list(make_requests(number, each, traffic.system)) for number, each in enumerate(conversations)
    ]
    events = [(each.start_s, number, -1) for number, each in enumerate(conversations)]
    result = SimulationResult([], sum(map(len, requests_by_conversation)), 0.0, 0.0)
    in_system, before_s = 0, 0.0
    heapq.heapify(events)
    while events:
        now_s, conversation, engine = heapq.heappop(events)
        result.in_system_s += in_system * (now_s - before_s)
        before_s = now_s
        if engine < 0:
            request = requests_by_conversation[conversation].pop(0)
            request.arrived_s, engine = now_s, route(request, engines)
            engines[engine].submit(request, now_s)
            in_system += 1
        elif engines[engine].ends_s != now_s:
            continue  # what was planned to end now was cut short, and looked at already
        else:
            for request in engines[engine].step():
                in_system -= 1
                result.requests.append(request)
                if requests_by_conversation[request.conversation]:
                    after_s = conversations[request.conversation].thinks_s[request.number]
                    heapq.heappush(events, (now_s + after_s, request.conversation, -1))
        if engines[engine].ends_s < math.inf:
            heapq.heappush(events, (engines[engine].ends_s, -1, engine))
    result.ended_s, result.busy_s = before_s, [engine.busy_s for engine in engines]
    return result


def table_row(first: str, policy: str, result: SimulationResult) -> str:
    """One row of a table."""
    return (
        f"| {first} | {policy} | {len(result.requests)} | {result.hits:.2f} | {result.first_s(50):.2f} | "
        f"{result.first_s(95):.2f} | {result.spread:.2f} |"
    )


def table_heading(first: str) -> str:
    """The heading of a table."""
    titles = ("policy", "requests", "tokens found", "first token, median, s", "95 %", "busiest over mean")
    return f"| {' | '.join((first, *titles))} |\n|{' --- |' * (1 + len(titles))}"


def table_by_boxes(boxes: Sequence[int] = BOXES) -> Iterator[str]:
    """All policies at one rate."""
    yield table_heading("boxes")
    for each in boxes:
        for policy in POLICIES if each > 1 else POLICIES[:1]:
            yield table_row(str(each), policy, simulate(policy, each))


def table_by_rate(rates: Sequence[float] = RATES) -> Iterator[str]:
    """All policies at DEFAULT_BOXES engines."""
    yield table_heading("requests/s and box")
    for rate in rates:
        for policy in POLICIES:
            yield table_row(f"{rate:g}", policy, simulate(policy, DEFAULT_BOXES, Traffic(rate=rate)))


def table_by_slack(slacks: Sequence[float] = SLACKS) -> Iterator[str]:
    """The slack of PrefixAffinity, where all conversations at DEFAULT_BOXES engines have the same prefix."""
    yield table_heading("slack")
    for slack in slacks:
        yield table_row(f"{slack:g}", AFFINITY, simulate(AFFINITY, DEFAULT_BOXES, ONE_APP, slack))


def main() -> None:
    """Print all tables."""
    for number, table in enumerate((table_by_boxes(), table_by_rate(), table_by_slack())):
        if number:
            print()
        for line in table:
            print(line)


if __name__ == "__main__":
    main()
