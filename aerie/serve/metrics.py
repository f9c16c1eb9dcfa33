"""What /metrics tells, in the text format of Prometheus, and the line in the log that each request leaves."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
LONGEST_PATH = 80
GAUGES = {
    "running": "Answers under way",
    "waiting": "Answers that wait for their turn",
    "model_loaded": "1 where the model is loaded",
    "model_memory_bytes": "Memory that is foreseen for the model while it is loaded",
}


@dataclass
class Line:
    """What is known of a request for the log and the counts, and no word of its text. Counts: of tokens."""

    method: str
    path: str
    client: str
    began_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    """0 until a response began: the client went away before."""
    model: str = ""
    prompt: int = 0
    made: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    first_s: float | None = None
    endings: list[str] = field(default_factory=list)

    def first_token(self) -> None:
        """A token has come; the first counts."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self.began_s

    def __str__(self) -> str:
        path = quote(self.path[:LONGEST_PATH], safe="/-_.~")
        told = f"{self.client} {self.method} {path} {self.status} {time.perf_counter() - self.began_s:.3f} s"
        if self.model:
            told += f" model={quote(self.model)} prompt={self.prompt} cached={self.cached} made={self.made}"
            told += f" ended={','.join(self.endings) or 'cancelled'}"
        return told


class Metrics:
    """Counts since the start, by model where they are of one."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "aerie_requests", "Requests, by address and status", ["path", "status"], registry=registry
        )
        self._tokens = Counter(
            "aerie_tokens",
            "Tokens of prompts, of these found in the pool, made, guessed, and of these right",
            ["kind", "model"],
            registry=registry,
        )
        self._first = Histogram(
            "aerie_time_to_first_token_seconds",
            "From a request to its first token",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self._whole = Histogram(
            "aerie_request_seconds",
            "From a request to the end of its response",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.mean_s = 0.0
        """Of the last answered requests, the last counting most."""
        self.last: dict[str, float | None] = {}
        """Of the last request of a model: seconds to its first token, tokens/s after it, and tokens."""
        self.totals: collections.Counter[str] = collections.Counter()
        """Of all: how many they were, and tokens."""
        self._loads = Counter(
            "aerie_model_loads", "Times that a model was loaded", ["model"], registry=registry
        )
        self._gauges = {
            name: Gauge(f"aerie_{name}", what, ["model"], registry=registry) for name, what in GAUGES.items()
        }

    def watch(self, model: str, values: Mapping[str, Callable[[], float]]) -> None:
        """What is asked when it is told, by its name in GAUGES; 0 where nothing is."""
        for name, gauge in self._gauges.items():
            gauge.labels(model).set_function(values.get(name, float))

    def loaded(self, model: str) -> None:
        self._loads.labels(model).inc()

    def count(self, line: Line, address: str) -> None:
        """A request of this address is over."""
        self._requests.labels(address, str(line.status)).inc()
        for kind in ("prompt", "cached", "made", "drafted", "accepted"):
            if tokens := getattr(line, kind):
                self._tokens.labels(kind, line.model).inc(tokens)
        if line.first_s is not None:
            self._first.labels(line.model).observe(line.first_s)
        spent_s = time.perf_counter() - line.began_s
        self._whole.labels(line.model).observe(spent_s)
        if line.made:
            self.mean_s += (spent_s - self.mean_s) / 8
        if line.prompt:
            self._note(line, spent_s)

    def _note(self, line: Line, spent_s: float) -> None:
        """For Lemonade's /v1/stats."""
        counts = {
            "input_tokens": line.prompt - line.cached,
            "output_tokens": line.made,
            "prompt_tokens": line.prompt,
            "cache_tokens": line.cached,
        }
        made_s = spent_s - (line.first_s or 0.0)
        speed = (line.made - 1) / made_s if line.made > 1 and made_s else None
        self.last = {"time_to_first_token": line.first_s, "tokens_per_second": speed, **counts}
        self.totals.update({"request_count_total": 1, **{f"{name}_total": n for name, n in counts.items()}})

    def text(self) -> bytes:
        return generate_latest(self.registry)
