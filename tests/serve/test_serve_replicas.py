"""Two replicas under Ray: the bits of one engine alone, and what the death of one costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from aerie.serve.replica_proxy import REPLICA_LOST
from tests.serve.conftest import openai_client

pytestmark = pytest.mark.slow
pytest.importorskip("ray", reason="replicas need the extra ray, which make test does not install")

READY_S = 120.0
TEXTS = ("What is the capital of France? ", "What is the capital of Italy? ", "How many legs has a spider? ")
LONG = "How many legs has a spider, and how many has an ant? " * 8


class Replicated:
    """`aerie serve --replicas 2` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.openai = openai_client(url, 60)

    def replicas(self) -> list[int]:
        """The processes of the replicas, as far as they are descendants of ours."""
        parents, titles = {}, {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
                titles[int(stat.parent.name)] = (stat.parent / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended

        def is_ours(pid: int) -> bool:
            return pid == self.process.pid or (pid in parents and is_ours(parents[pid]))

        return [pid for pid, title in titles.items() if b"ServeReplica" in title and is_ours(pid)]


@dataclass
class ReceivedStream:
    """What came of a stream: of each token its text, logprob and likeliest others; and how it ended."""

    marks: list[Any] = field(default_factory=list)
    is_done: bool = False
    error: Any = None


def stream(url: str, asked: dict[str, Any], received: ReceivedStream) -> None:
    """Stream a chat into `received`."""
    body = {"model": "demo", "stream": True, "logprobs": True, "top_logprobs": 2, **asked}
    with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            received.is_done = received.is_done or line == "data: [DONE]"
            received.error = event.get("error", received.error)
            for choice in event.get("choices", []):
                received.marks += (choice["logprobs"] or {}).get("content") or []


def streaming(
    url: str, asked: Sequence[dict[str, Any]]
) -> tuple[list[ReceivedStream], list[threading.Thread]]:
    """All at once, each in a thread."""
    received = [ReceivedStream() for _ in asked]
    threads = [
        threading.Thread(target=stream, args=(url, *each)) for each in zip(asked, received, strict=True)
    ]
    for thread in threads:
        thread.start()
    return received, threads


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicated]:
    log = tmp_path_factory.mktemp("replicas") / "log"
    command = [sys.executable, "-m", "aerie", "serve", "--replicas", "2", "--port", "0", "--kv-pool", "16384"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--backend", "virtual"], stderr=file, text=True)
    try:
        wait_until(lambda: "Ctrl-C ends" in log.read_text() or process.poll() is not None)
        (line,) = [line for line in log.read_text().splitlines() if "Ctrl-C ends" in line]
        replicated = Replicated(process, line.split(" at ")[1].partition(";")[0])
        assert len(replicated.replicas()) == 2
        yield replicated
        replicated.openai.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def wait_until(is_so: Any) -> None:
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < READY_S
        time.sleep(0.2)


def test_answers_have_the_bits_of_one_engine(replicated: Replicated, serving: Any) -> None:
    # The second time from the pages of whoever had it first.
    asked = [
        {"messages": [{"role": "user", "content": text * 8}], "temperature": 0.9, "seed": 5, "max_tokens": 24}
        for text in TEXTS * 2
    ]
    ours, threads = streaming(replicated.url, asked)
    theirs = [ReceivedStream() for _ in asked]
    for one, received in zip(asked, theirs, strict=True):
        stream(serving.url, one, received)
    for thread in threads:
        thread.join()
    assert all(received.is_done and received.marks for received in ours)
    assert ours == theirs


def test_a_prompt_goes_where_its_pages_are(replicated: Replicated) -> None:
    def cached() -> int:
        made = replicated.openai.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": LONG}], max_tokens=1
        )
        assert made.usage is not None
        assert made.usage.prompt_tokens_details is not None
        return made.usage.prompt_tokens_details.cached_tokens or 0

    assert cached() == 0
    assert [cached() for _ in range(4)] == [128] * 4


def test_a_replica_that_ends_costs_its_own_answers_alone(replicated: Replicated, serving: Any) -> None:
    before = replicated.replicas()
    asked = [
        {**serving.endless, "messages": [{"role": "user", "content": text}], "seed": 3}
        for text in (LONG.replace("legs", "arms"), LONG.replace("legs", "eyes"))
    ]
    # One after the other: of two prompts at the same moment the router knows no load yet, and one replica may
    # get both.
    first, threads = streaming(replicated.url, asked[:1])
    wait_until(lambda: first[0].marks)
    second, more = streaming(replicated.url, asked[1:])
    received, threads = [*first, *second], [*threads, *more]
    wait_until(lambda: all(len(each.marks) > 3 for each in received))
    os.kill(before[0], signal.SIGKILL)
    for thread in threads:
        thread.join()
    (lost,) = [each for each in received if each.error]
    (kept,) = [each for each in received if not each.error]
    assert lost.error == REPLICA_LOST.body["error"]
    assert not lost.is_done
    assert kept.is_done
    alone = [ReceivedStream(), ReceivedStream()]
    for one, each in zip(asked, alone, strict=True):
        stream(serving.url, one, each)
    assert kept == alone[received.index(kept)]
    expected = alone[received.index(lost)].marks
    assert lost.marks == expected[: len(lost.marks)]  # what came before was right
    assert len(lost.marks) < len(expected)
    wait_until(lambda: len(set(replicated.replicas()) - {before[0]}) == 2)
    again, threads = streaming(replicated.url, asked)
    for thread in threads:
        thread.join()
    assert again == alone
