"""The words of `aerie serve`, and what is refused before anything is loaded."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aerie.serve.cli import _limits, _listen, build_parser
from aerie.serve.model_names import byte_count, parse_aliases, parse_drafts, parse_models


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


def test_no_event_waits_for_the_one_before_to_be_acknowledged() -> None:
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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


def test_models_by_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", "none", "x=y"):
        (tmp_path / name).mkdir()
    for name in ("b", "a"):
        (tmp_path / name / "config.json").touch()
    found = {"a": str(tmp_path / "a"), "b": str(tmp_path / "b")}
    assert parse_models([], tmp_path, None) == found
    assert list(parse_models([], tmp_path, None)) == ["a", "b"]
    (tmp_path / "gguf").mkdir()
    for name in ("c-Q8_0.gguf", "mmproj-c.gguf", "d-00001-of-00002.gguf", "d-00002-of-00002.gguf"):
        (tmp_path / "gguf" / name).touch()
    files = {
        name: str(tmp_path / "gguf" / path)
        for name, path in (("c-Q8_0", "c-Q8_0.gguf"), ("d", "d-00001-of-00002.gguf"))
    }
    assert parse_models([], tmp_path / "gguf", None) == files
    assert parse_models([files["d"]], None, None) == {"d": files["d"]}
    assert parse_models(["x=demo", "demo"], tmp_path, None) == {"x": "demo", "demo": "demo", **found}
    assert parse_models([], None, None) == {"demo": "demo"}
    assert parse_models(["demo"], None, "it") == {"it": "demo"}
    assert parse_models([str(tmp_path / "x=y")], None, None) == {"x=y": str(tmp_path / "x=y")}
    assert parse_models(["owner/name"], None, None) == {"owner/name": "owner/name"}


def test_drafts_and_aliases_by_model() -> None:
    models = {"demo": "demo", "it": "/models/it"}
    assert parse_drafts([], models) == {"demo": None, "it": None}
    assert parse_drafts(["lookup", "it=demo-drafter"], models) == {"demo": "lookup", "it": "demo-drafter"}
    assert parse_aliases(["gpt-4o", "fast=it"], models) == {"demo": ["gpt-4o"], "it": ["fast"]}
    assert [byte_count(text) for text in ("5", "2k", "1.5G", "3MiB")] == [5, 2048, 3 * 2**29, 3 * 2**20]


WRONG: list[tuple[str, str]] = [
    ("--model demo --model demo", "two models are named 'demo', demo and demo; name one of them as --model"),
    ("--model demo --model x=demo --name y", "--name is 'y', which is for one model, and there are 2; name"),
    ("--models-dir EMPTY --name y", "--name is 'y', which is for one model, and there are those of --models"),
    ("--models-dir EMPTY", "and no folder in it has a config.json, and no file is in GGUF; name "),
    ("--models-dir EMPTY/none", "and cannot be read (No such file or directory); name a folder of models"),
    ("--draft other=lookup", "--draft names the model 'other', and there are demo; name one of them"),
    ("--draft lookup --draft demo-drafter", "--draft is given twice for all models, lookup and demo-drafter"),
    ("--draft demo=lookup --draft demo=x", "--draft is given twice for demo, lookup and x; give one of them"),
    ("--alias x=other", "--alias x=other names the model 'other', and there are demo; name one of them"),
    ("--alias demo", "--alias is 'demo', which is a name here already; give another"),
    ("--alias x --alias x", "--alias is 'x', which is a name here already; give another"),
    ("--memory much", "argument --memory: 'much' is not a number of bytes, such as 512M or 6G"),
    ("--memory 0", "argument --memory: '0' is not a number of bytes, such as 512M or 6G"),
    ("--idle-unload -1", "argument --idle-unload: '-1' is not a number of seconds, 0 or more"),
    ("--load-wait x", "argument --load-wait: 'x' is not a number of seconds, 0 or more"),
    ("--model demo --model x=demo --replicas 2", "--replicas serves one model, and 2 were named; serve"),
    ("--replicas 2 --memory 1G", "--memory is of one engine, and replicas keep their model loaded; leave it"),
    ("--replicas 2 --idle-unload 5", "--idle-unload is of one engine, and replicas keep their model loaded"),
    ("--replicas 2 --preload", "--preload is of one engine, and replicas keep their model loaded; leave it"),
    (
        "--replicas 2 --keep-responses 9",
        "--keep-responses is 9, and with --replicas a client cannot name the replica",
    ),
    ("--memory 1M", "the model 'demo' takes about"),
    ("--draft no-such", "--draft 'no-such' (DRAFT) is not 'lookup', so it is to be a model: --model"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_what_is_wrong_with_names(command_line: Any, tmp_path: Path, words: str, message: str) -> None:
    given = words.replace("EMPTY", str(tmp_path)).split()
    done = command_line("serve", ["serve", "--port", "0", "--backend", "virtual", *given])
    assert done.status == 2
    assert message in done.err
