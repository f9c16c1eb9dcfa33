"""Requests to all addresses of a server, most of them wrong, with healthy ones beside them.

    python -m tests.serve.fuzz --requests 20000 --seed 1
    python -m tests.serve.fuzz --seed 1 --only 4711

The first starts a server with the demo model and puts drawn requests to it (drawing.py); the second
puts one of these again, and shows what comes. What must hold: no request has a status of the server's own
failure, none ends the server, an error is one object of JSON, the log has no traceback; and the healthy
requests have their bits, and `/health` its answer at once. Exit code 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.serve.drawing import Drawing, Drawn

HEALTHY = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 5,
}
LATER = (429, 503)
"""Statuses that a healthy client may get: retry later."""
LIMIT_S = 60.0
BUSY = (501, 503, 507)
"""Of the server, and no failure: what is not built, has no room, or is not there now."""


@dataclass
class Report:
    """What came. failures: each kind of failure, with the first number that has it. healthy: requests beside;
    touched: those that had not their bits."""

    seed: int
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: dict[str, tuple[int, int]] = field(default_factory=dict)
    healthy: int = 0
    touched: int = 0
    worst_health_s: float = 0.0
    worst_chat_s: float = 0.0
    deaths: int = 0

    def fail(self, kind: str, number: int) -> None:
        first, count = self.failures.get(kind, (number, 0))
        self.failures[kind] = first, count + 1

    @property
    def is_well(self) -> bool:
        return not (self.failures or self.touched or self.deaths)

    def __str__(self) -> str:
        of_ours = sum(
            count for status, count in self.statuses.items() if status >= 500 and status not in BUSY
        )
        lines = [
            f"{self.requests} requests, {of_ours} with 5xx, {self.deaths} deaths, statuses "
            + ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items())),
            f"{self.healthy} healthy requests beside, {self.touched} touched, the slowest "
            f"{self.worst_chat_s:.2f} s; worst /health {self.worst_health_s:.3f} s",
        ]
        for kind, (number, count) in sorted(self.failures.items()):
            drawn = Drawing().request(self.seed, number)[1]
            lines.append(f"{count} x {kind}\n  --seed {self.seed} --only {number}: {drawn}")
        return "\n".join(lines)


def sent(port: int, drawn: Drawn) -> tuple[int, bytes]:
    """The status and the body that a request has. OSError, and HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.putrequest(drawn.method, drawn.target, skip_host=True, skip_accept_encoding=True)
        given = {name.lower() for name, _ in drawn.headers}
        if "host" not in given:
            connection.putheader("Host", "localhost")
        if drawn.body or drawn.method == "POST":
            connection.putheader("Content-Length", str(len(drawn.body)))
        for name, value in drawn.headers:
            connection.putheader(name, value.encode("latin-1", "replace"))
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # refused before all was sent: there is a response
            connection.endheaders(drawn.body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wrong_with(drawn: Drawn, status: int, body: bytes) -> str:
    """What must not be so of a response; empty where all is well."""
    if status >= 500 and status not in BUSY:
        return f"status {status}"
    if b"Traceback" in body or b"internal_error" in body:
        return "a failure of the server in a body"
    if status < 400 or drawn.method == "HEAD":
        return ""
    try:
        error = json.loads(body)["error"]
        is_text = isinstance(error, str) and urlsplit(drawn.target).path.startswith("/api/")  # Ollama's form
        message = error if is_text else error["message"]
        return "" if isinstance(message, str) and message else "an error says nothing"
    except (ValueError, KeyError, TypeError):
        return f"an error {status} is no JSON"


class Fuzz:
    """A run of so many requests by several threads against a server of this machine."""

    def __init__(self, port: int, seed: int, requests: int, threads: int = 4) -> None:
        self.report, self._port, self._requests, self._threads = Report(seed), port, requests, threads
        self._drawing, self._lock, self._next = Drawing(), threading.Lock(), 0
        self._is_over = False

    def run(self) -> Report:
        self._expected = self._answer()
        workers = [threading.Thread(target=self._work) for _ in range(self._threads)]
        witnesses = [threading.Thread(target=each) for each in (self._look, self._ask)]
        for each in (*workers, *witnesses):
            each.start()
        for each in workers:
            each.join()
        self._is_over = True
        for each in witnesses:
            each.join()
        return self.report

    def _work(self) -> None:
        while not self.report.deaths:
            with self._lock:
                number, self._next = self._next, self._next + 1
            if number >= self._requests:
                return
            self._put(number)

    def _put(self, number: int) -> None:
        (method, path), drawn = self._drawing.request(self.report.seed, number)
        try:
            status, body = sent(self._port, drawn)
            wrong = wrong_with(drawn, status, body)
        except ConnectionRefusedError:
            status, wrong = 0, "the server is gone"
        except (OSError, http.client.HTTPException) as error:
            status, wrong = 0, f"no response ({type(error).__name__})"
        with self._lock:
            self.report.requests += 1
            self.report.statuses[status] += 1
            self.report.deaths += wrong == "the server is gone"
            if wrong:
                self.report.fail(f"{method} {path}: {wrong}", number)

    def _look(self) -> None:
        while not self._is_over:
            began_s = time.perf_counter()
            with suppress(OSError, http.client.HTTPException):  # the workers show which process died
                sent(self._port, Drawn("GET", "/health"))
            self.report.worst_health_s = max(self.report.worst_health_s, time.perf_counter() - began_s)
            time.sleep(0.05)

    def _ask(self) -> None:
        while not self._is_over:
            began_s = time.perf_counter()
            try:
                answer = self._answer()
            except (OSError, http.client.HTTPException):
                answer = None
            self.report.worst_chat_s = max(self.report.worst_chat_s, time.perf_counter() - began_s)
            self.report.healthy += 1
            self.report.touched += answer not in (self._expected, *LATER)
            time.sleep(0.1)

    def _answer(self) -> Any:
        """The healthy request's choices, bit by bit as JSON has them; or the status."""
        body = json.dumps(HEALTHY).encode()
        status, answer = sent(
            self._port, Drawn("POST", "/v1/chat/completions", [("Content-Type", "application/json")], body)
        )
        return json.loads(answer)["choices"] if status == 200 else status


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, Path]]:
    """A server in a process of its own: its port, and its log."""
    log = folder / "log"
    words = ["serve", "--port", "0", "--slot-save-path", str(folder / "slots"), "--time-limit", "30"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "aerie.serve", *words], stdout=file, stderr=file, env={**os.environ}
        )
        try:
            yield _port(process, log), log
        finally:
            process.terminate()
            process.wait(60)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Once it answers."""
    for _ in range(1200):
        assert process.poll() is None, log.read_text(errors="replace")
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text(errors="replace")):
            try:
                if sent(int(found[1]), Drawn("GET", "/health"))[0] == 200:
                    return int(found[1])
            except OSError:
                pass
        time.sleep(0.1)
    raise AssertionError("the server does not answer")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--only", type=int, help="the one request of this number")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (port, log):
        if arguments.only is not None:
            drawn = Drawing().request(arguments.seed, arguments.only)[1]
            print(drawn)
            print(*sent(port, drawn))
            return 0
        report = Fuzz(port, arguments.seed, arguments.requests, arguments.threads).run()
        tracebacks = log.read_text(errors="replace").count("Traceback")
        print(report)
        print(f"{tracebacks} tracebacks in the log")
        if tracebacks:
            text = log.read_text(errors="replace")
            print(text[text.index("Traceback") : text.index("Traceback") + 6000])
        return 0 if report.is_well and not tracebacks else 1


if __name__ == "__main__":
    sys.exit(main())
