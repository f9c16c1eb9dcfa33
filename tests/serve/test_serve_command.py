"""The words of `aerie serve`, and what is refused before anything is loaded."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from aerie.serve.cli import _limits, build_parser


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Where the log goes is as before afterwards."""
    logger = logging.getLogger("aerie.serve")
    before = logger.handlers, logger.propagate
    yield
    logger.handlers, logger.propagate = before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_others_need_a_key(command_line: Any, host: str) -> None:
    done = command_line("serve", ["serve", "--host", host])
    assert done.status == 2
    assert f"--host {host} lets other machines ask, and there is no API key; give --api-key" in done.err


def test_a_port_that_is_taken(command_line: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command_line("serve", ["serve", "--port", str(port)])
    assert done.status == 2
    assert f"error: cannot listen on 127.0.0.1 port {port} (Address already in use); give another" in done.err
    done = command_line("serve", ["serve", "--port", "70000"])
    assert (done.status, "--port is 70000, and ports go to 65535; give another" in done.err) == (2, True)


def test_a_model_that_is_not_there(command_line: Any) -> None:
    done = command_line("serve", ["serve", "--port", "0", "--model", "no-such-folder"])
    assert done.status == 2
    assert "error: --model 'no-such-folder' is neither a folder" in done.err


def test_words_become_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_API_KEY", "from the environment")
    words = "serve --host 0.0.0.0 --queue 3 --time-limit 5 --drain 2 --max-body 1000"
    words += " --cors-origin http://a --cors-origin http://b"
    limits = _limits(build_parser().parse_args(words.split()))
    assert (limits.queue, limits.time_limit_s, limits.drain_s, limits.body_bytes) == (3, 5.0, 2.0, 1000)
    assert (limits.api_key, limits.origins) == ("from the environment", ("http://a", "http://b"))
    assert not limits.is_local
    given = _limits(build_parser().parse_args(["serve", "--api-key", "given"]))
    assert (given.api_key, given.is_local) == ("given", True)
