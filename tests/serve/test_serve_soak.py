"""A bad day of the server: clients that go away, slow readers, many at once, bodies that make no sense.

A witness asks all the while, and its answers are those of the model by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from aerie import Model
from aerie.serve.service import ServerLimits

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
COUNTRIES = ("France", "Egypt", "Spain", "Italy", "Japan")
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/embeddings": {"input": "Hi"},
    "/tokenize": {"content": "Hi"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": [{"role": "user", "content": "Hi"}]},
}
FIELDS = [
    "messages",
    "prompt",
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "stream",
    "tools",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "echo",
    "input",
    "system",
    "content",
    "tokens",
    "user",
    "metadata",
    "prompt_logprobs",
    "repetition_penalty",
    "presence_penalty",
    "instructions",
    "text",
    "reasoning",
    "thinking",
    "encoding_format",
    "dimensions",
]
VALUES: list[Any] = [
    None, True, -1, 0, 1, 1e308, -1e308, 10**30, "", "x", "\ud800", [], {}, [[]], [1], ["x"], {"a": 1},
    float("inf"), "\N{MUSICAL SYMBOL G CLEF}" * 50, [None], [{"role": "user"}], {"include_usage": True},
]  # fmt: skip


def question(country: str) -> str:
    return f"What is the capital of {country}?"


def ask_of(country: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question(country)}]
    return {"messages": messages, "max_tokens": 20, "seed": len(country)}


class Day:
    """What clients do to a server, with what its answers are to be."""

    def __init__(self, serving: Any, alone: Model, endless: dict[str, Any]) -> None:
        self.serving, self.endless = serving, endless
        self.port = int(serving.url.rsplit(":", 1)[1])
        self.own = {
            each: alone.generate(question(each), 20, temperature=1.0, seed=len(each)).text
            for each in COUNTRIES
        }

    async def connected(self, body: dict[str, Any]) -> tuple[Any, Any, bytes]:
        """A connection, and the bytes of a request for it."""
        data = json.dumps(body).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return reader, writer, f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def aborts(self, count: int) -> None:
        """Each at a random moment, a tenth of them in the middle of the request."""

        async def one(number: int) -> None:
            rng = random.Random(number)
            story = {
                "prompt": "Tell a story " * rng.randint(1, 20),
                "n": rng.randint(1, 3),
                "stream": number % 2 > 0,
            }
            _, writer, whole = await self.connected({**self.endless, **story})
            writer.write(whole if number % 10 else whole[: rng.randint(1, len(whole))])
            await asyncio.sleep(rng.random() * 0.15)
            writer.transport.abort()

        await limited(8, (one(number) for number in range(count)))

    async def slow_readers(self, count: int) -> int:
        """How many had all of their answers."""

        async def one(_: int) -> bool:
            body = {**self.endless, "prompt": "Tell a story", "stream": True, "max_tokens": 30}
            reader, writer, whole = await self.connected(body)
            writer.write(whole)
            got = bytearray()
            while b"[DONE]" not in got:
                await asyncio.sleep(0.02)
                if not (come := await asyncio.wait_for(reader.read(300), 100)):
                    break
                got += come
            writer.transport.abort()
            return b"[DONE]" in got

        return sum(await asyncio.gather(*(one(number) for number in range(count))))

    async def nonsense(self, client: httpx2.AsyncClient, count: int) -> Counter[int]:
        """Of bodies that make little sense or none, how many had which status."""

        async def one(number: int) -> int:
            path, data = malformed(random.Random(number))
            headers = {"Content-Type": "application/json"}
            return (await client.post(path, content=data, headers=headers)).status_code

        return Counter(await limited(16, (one(number) for number in range(count))))

    async def is_right(self, client: httpx2.AsyncClient, country: str) -> bool:
        response = await client.post(CHAT, json=ask_of(country))
        assert response.status_code == 200, response.text
        answer = response.json()["choices"][0]["message"]["content"]
        return bool(answer == self.own[country])

    async def witness(self, client: httpx2.AsyncClient, over: asyncio.Event) -> list[bool]:
        """Whether each of its answers was right, until all is over."""
        made: list[bool] = []
        while not over.is_set():
            made.append(await self.is_right(client, COUNTRIES[len(made) % len(COUNTRIES)]))
        return made


def malformed(rng: random.Random) -> tuple[str, bytes]:
    path = rng.choice(list(BODIES))
    body = {**BODIES[path], **{rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.randint(0, 3))}}
    data, kind = json.dumps(body).encode(), rng.random()
    if kind < 0.15:
        data = data[: rng.randint(0, len(data))]
    elif kind < 0.3:
        data = bytes(rng.randrange(256) if rng.random() < 0.05 else byte for byte in data)
    elif kind < 0.33:
        data = b"[" * 2000
    return path, data


async def limited(most: int, every: Iterator[Coroutine[Any, Any, Any]]) -> list[Any]:
    """What they give, with so many under way at once."""
    gate = asyncio.Semaphore(most)

    async def one(work: Coroutine[Any, Any, Any]) -> Any:
        async with gate:
            return await work

    return await asyncio.gather(*(one(work) for work in every))


@contextmanager
def quiet_log() -> Iterator[None]:
    logger = logging.getLogger("aerie.serve")
    before, logger.level = logger.level, logging.ERROR
    yield
    logger.level = before


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


async def whole_day(day: Day, aborts: int, slow: int, nonsense: int) -> None:
    limits = httpx2.Limits(max_connections=100)
    async with httpx2.AsyncClient(base_url=day.serving.url, timeout=120, limits=limits) as client:
        over = asyncio.Event()
        witness = asyncio.create_task(day.witness(client, over))
        await day.aborts(aborts)
        assert await day.slow_readers(slow) == slow
        assert all(await asyncio.gather(*(day.is_right(client, COUNTRIES[n % 5]) for n in range(50))))
        statuses = await day.nonsense(client, nonsense // 2)
        before = resident_mib()
        statuses += await day.nonsense(client, nonsense - nonsense // 2)
        assert resident_mib() < before + 30
        assert set(statuses) <= {200, 400, 404}
        assert statuses[400] > nonsense / 2
        over.set()
        answers = await witness
        assert answers
        assert all(answers)


@pytest.mark.slow
def test_a_bad_day(starting: Any, serving: Any, alone: Model) -> None:
    own = starting(ServerLimits(queue=250))
    own.wait_until(lambda: own.service.opened)
    with quiet_log():
        asyncio.run(whole_day(Day(own, alone, serving.endless), 1000, 200, 5000))
    own.wait_until(lambda: own.running() == 0)
    manager = own.service.worker.opened.scheduler.pool.manager
    own.wait_until(lambda: manager.free_count == manager.page_count)
    assert not own.service._outputs


def test_a_bad_minute(serving: Any, limit: Any, alone: Model) -> None:
    limit(queue=250)
    with quiet_log():
        asyncio.run(whole_day(Day(serving, alone, serving.endless), 16, 4, 100))
    serving.wait_until(lambda: serving.running() == 0)
    manager = serving.service.worker.opened.scheduler.pool.manager
    serving.wait_until(lambda: manager.free_count == manager.page_count)
