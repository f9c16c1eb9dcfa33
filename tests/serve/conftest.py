"""A server with the demo model, on a port of this machine, and the model by itself to compare with."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from openai import DefaultHttpxClient, OpenAI

from aerie import Model, load
from aerie.common import folders
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend
from aerie.serve.cli import DrainingServer, make_server
from aerie.serve.model_spec import open_model
from aerie.serve.models import ModelManager
from aerie.serve.service import ModelService, ServedModel, ServerLimits
from aerie.serve.worker import ModelThread, OpenedModel

PATIENCE_S = 120.0
"""How long a test waits for what comes at once on an idle machine. There is room for a busy one, and for a
program that is compiled meanwhile."""
VARIANTS = "8,32x512"
"""Of the models of servers: two thirds of the programs that they have by default."""
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of servers on this machine, which have no TLS: to read the system's certificates takes 0.1 CPU
seconds a client."""
ENDLESS = {"temperature": 1.5, "logit_bias": {}, "max_tokens": 400}
"""Of a request that goes on to its last token; the bias is filled in with the tokens that would end it."""


@dataclass
class Serving:
    """A server that runs in a thread."""

    models: ModelManager
    server: DrainingServer
    url: str
    endless: dict[str, Any]
    openai: OpenAI

    @property
    def http(self) -> httpx2.Client:
        """A client whose connections nobody else has."""
        return http_client(self.url)

    @property
    def service(self) -> ModelService:
        """The first model."""
        return self.models.default_model

    def running(self) -> int:
        return sum(service.running + service.waiting for service in self.models.all.values())

    def wait_until(self, is_so: Callable[[], object]) -> None:
        began = time.monotonic()
        while not is_so():
            assert time.monotonic() - began < PATIENCE_S
            time.sleep(0.005)

    def abandoned(self, path: str, body: dict[str, Any]) -> None:
        """Send a request, and close the connection once it is under way."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        host, port = urlsplit(self.url).netloc.split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
            self.wait_until(self.running)


def http_client(url: str, timeout: float | httpx2.Timeout = PATIENCE_S, **options: Any) -> httpx2.Client:
    """A client of a server on this machine. timeout: seconds."""
    return httpx2.Client(base_url=url, timeout=timeout, verify=PLAIN, **options)


def openai_client(url: str, timeout: float = 600) -> OpenAI:
    """OpenAI's client of a server on this machine. timeout: seconds."""
    http = DefaultHttpxClient(verify=PLAIN)
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=timeout, http_client=http)


def opened(model: str, draft: str | None = None) -> OpenedModel:
    """A model of those that are shipped."""
    backend = select_backend("virtual")
    folder = folders.programs_folder()
    options = RuntimeOptions(None, backend, folder, variants=VARIANTS, decode=ROWS, kv_pool=64 * 256)
    return open_model(model, options, Reporter(quiet=True), draft)


def slow_steps(worker: ModelThread, patch: pytest.MonkeyPatch, seconds: float = 0.1) -> None:
    """From now on a step takes so long: an answer of 400 tokens is under way for as long as a test needs it,
    however busy the machine."""
    assert worker.opened is not None
    scheduler = worker.opened.scheduler
    real = scheduler.step

    def step() -> None:
        time.sleep(seconds)
        real()

    patch.setattr(scheduler, "step", step)


def demo() -> OpenedModel:
    return opened("demo")


def start(
    limits: ServerLimits, opening: Callable[[], OpenedModel] = demo
) -> tuple[Serving, Callable[[], None]]:
    """A server with one model, and what stops it."""
    return start_models(ModelManager([ServedModel("demo", opening)], limits))


def start_models(models: ModelManager) -> tuple[Serving, Callable[[], None]]:
    """A server, and what stops it."""
    server = make_server(models)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=partial(server.run, sockets=[listening]))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    client = openai_client(url)
    serving = Serving(models, server, url, {}, client)

    def stop() -> None:
        client.close()
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()
        assert not thread.is_alive()

    return serving, stop


@pytest.fixture(scope="session")
def server_of_all() -> Iterator[Serving]:
    logging.getLogger("aerie.serve").setLevel(logging.INFO)
    serving, stop = start(ServerLimits(queue=4))
    try:
        serving.wait_until(lambda: serving.server.started and serving.service.opened)
        opened = serving.service.worker.opened
        assert opened is not None
        eos = opened.session.model.config.eos_token_ids
        serving.endless = {**ENDLESS, "logit_bias": {str(token): -100.0 for token in eos}}
        yield serving
    finally:
        stop()


@pytest.fixture
def serving(server_of_all: Serving) -> Iterator[Serving]:
    """The server, with the limits that it began with, and nothing under way."""
    server_of_all.wait_until(lambda: server_of_all.running() == 0)
    limits = server_of_all.models.limits
    yield server_of_all
    server_of_all.models.limits = limits


@pytest.fixture
def limit(serving: Serving) -> Callable[..., None]:
    """limit(queue=0): other limits, for a test."""

    def change(**changes: Any) -> None:
        serving.models.limits = replace(serving.models.limits, **changes)

    return change


@pytest.fixture(scope="session")
def alone() -> Iterator[Model]:
    """The model by itself, in the same decode path."""
    with load("demo", backend="virtual", variants=VARIANTS, decode="rows") as model:
        yield model


@pytest.fixture
def starting_models() -> Iterator[Callable[[ModelManager], Serving]]:
    """starting_models(models): a server of the test's own."""
    stops: list[Callable[[], None]] = []

    def begin(models: ModelManager) -> Serving:
        serving, stop = start_models(models)
        stops.append(stop)
        serving.wait_until(lambda: serving.server.started)
        return serving

    yield begin
    for stop in stops:
        stop()


@pytest.fixture
def starting(starting_models: Callable[[ModelManager], Serving]) -> Callable[..., Serving]:
    """starting(limits, opening): the same, of one model."""

    def begin(limits: ServerLimits, opening: Callable[[], OpenedModel] = demo) -> Serving:
        return starting_models(ModelManager([ServedModel("demo", opening)], limits))

    return begin
