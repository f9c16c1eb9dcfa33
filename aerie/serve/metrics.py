"""The counters of /metrics, in the text format of Prometheus, and the log line of each request."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MAX_PATH_LENGTH = 80
GAUGES = {
    "running": "Answers under way",
    "waiting": "Answers that wait for their turn",
    "model_loaded": "1 where the model is loaded",
    "model_memory_bytes": "Memory that is foreseen for the model while it is loaded",
}


@dataclass
class RequestLog:
    """What is logged and counted of a request; no text of it. Counts are in tokens."""

    method: str
    path: str
    client: str
    began_s: float = field(default_factory=time.perf_counter)
    status: int = 0
    """0 until the response starts; it stays 0 if the client disconnects before that."""
    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    first_token_s: float | None = None
    load_s: float = 0.0
    """How long the request waited for its model to be loaded."""
    finish_reasons: list[str] = field(default_factory=list)

    def note_first_token(self) -> None:
        """Set first_token_s, at the first call only."""
        if self.first_token_s is None:
            self.first_token_s = time.perf_counter() - self.began_s

    def note_loaded(self) -> None:
        """Set load_s."""
        self.load_s = time.perf_counter() - self.began_s

    def token_counts(self) -> dict[str, int]:
        """Token counts by the label `kind` of the metric."""
        return {
            "prompt": self.prompt_tokens,
            "cached": self.cached_tokens,
            "made": self.completion_tokens,
            "drafted": self.drafted,
            "accepted": self.accepted,
        }

    def __str__(self) -> str:
        path = quote(self.path[:MAX_PATH_LENGTH], safe="/-_.~")
        text = f"{self.client} {self.method} {path} {self.status} {time.perf_counter() - self.began_s:.3f} s"
        if self.model:
            text += f" model={quote(self.model)} prompt={self.prompt_tokens}"
            text += f" cached={self.cached_tokens} made={self.completion_tokens}"
            text += f" ended={','.join(self.finish_reasons) or 'cancelled'}"
        return text


class Metrics:
    """Counts since the start of the server, by model where they belong to one."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "aerie_requests", "Requests, by address and status", ["path", "status"], registry=registry
        )
        self._tokens = Counter(
            "aerie_tokens",
            "Tokens: of prompts, of these found in the pool, generated, drafted, and of these right",
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
        """Moving average of the seconds of requests with output."""
        self.last: dict[str, float | None] = {}
        """Of the last request of any model: seconds to its first token, tokens/s after it, and token
        counts."""
        self.totals: collections.Counter[str] = collections.Counter()
        """Number of all requests, and their token counts."""
        self._loads = Counter(
            "aerie_model_loads", "Times that a model was loaded", ["model"], registry=registry
        )
        self._gauges = {
            name: Gauge(f"aerie_{name}", what, ["model"], registry=registry) for name, what in GAUGES.items()
        }

    def set_gauges(self, model: str, values: Mapping[str, Callable[[], float]]) -> None:
        """Register the functions that give the values of a model's gauges, by name in GAUGES; the others are
        0."""
        for name, gauge in self._gauges.items():
            gauge.labels(model).set_function(values.get(name, float))

    def count_load(self, model: str) -> None:
        self._loads.labels(model).inc()

    def count(self, log: RequestLog, address: str) -> None:
        """Count a finished request. address: the route, for the label `path`."""
        self._requests.labels(address, str(log.status)).inc()
        for kind, tokens in log.token_counts().items():
            if tokens:
                self._tokens.labels(kind, log.model).inc(tokens)
        if log.first_token_s is not None:
            self._first.labels(log.model).observe(log.first_token_s)
        seconds = time.perf_counter() - log.began_s
        self._whole.labels(log.model).observe(seconds)
        if log.completion_tokens:
            self.mean_s += (seconds - self.mean_s) / 8
        if log.prompt_tokens:
            self._record_last(log, seconds)

    def _record_last(self, log: RequestLog, seconds: float) -> None:
        """Update the figures of Lemonade's /v1/stats."""
        counts = {
            "input_tokens": log.prompt_tokens - log.cached_tokens,
            "output_tokens": log.completion_tokens,
            "prompt_tokens": log.prompt_tokens,
            "cache_tokens": log.cached_tokens,
        }
        decode_s = seconds - (log.first_token_s or 0.0)
        tokens_per_s = (
            (log.completion_tokens - 1) / decode_s if log.completion_tokens > 1 and decode_s else None
        )
        self.last = {"time_to_first_token": log.first_token_s, "tokens_per_second": tokens_per_s, **counts}
        self.totals.update({"request_count_total": 1, **{f"{name}_total": n for name, n in counts.items()}})

    def text(self) -> bytes:
        return generate_latest(self.registry)
