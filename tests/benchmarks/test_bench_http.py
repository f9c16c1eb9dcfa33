"""What HTTP costs: what is subtracted from what, how a client reads, what it refuses, a run on the demo."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.engine.config import load_config
from aerie.engine.generate import FinishReason
from benchmarks import client, http, sides
from benchmarks.client import Client, decode_chunked
from benchmarks.figures import CONCURRENT_CLIENTS, TARGETS

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(payload: dict[str, Any] | str) -> bytes:
    event = f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def delta(text: str, **more: Any) -> bytes:
    return chunk({"choices": [{"delta": {"content": text}}], **more})


WHOLE = [HEAD, delta(""), delta("Par"), delta("is"), delta("", timings={"predicted_n": 2}), chunk("[DONE]")]


@pytest.fixture
def answering() -> Iterator[Callable[..., Client]]:
    """answering(parts): a client of a server that gives these parts of a response to each request."""
    closed: list[socket.socket] = []

    def begin(*parts: bytes) -> Client:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.settimeout(5)
        closed.append(listening)

        def answer(connection: socket.socket) -> None:
            with connection:
                while connection.recv(1 << 16):
                    for part in parts:
                        connection.sendall(part)
                    if not parts or parts[-1] == HEAD:
                        return

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return Client(listening.getsockname()[1])

    yield begin
    for each in closed:
        each.close()


def test_what_the_engine_takes_alone_is_subtracted() -> None:
    found = http.overhead_from({"seconds": 0.310, "first_seconds": 0.012}, 0.010, 0.208, 100)
    assert found.first_s == pytest.approx(0.002)
    assert found.engine_token_s == pytest.approx(0.002)
    assert found.token_s == pytest.approx(0.298 / 99 - 0.002)


def test_a_client_reads_answers_one_after_the_other_and_many_at_once(answering: Any) -> None:
    asking = answering(*WHOLE, b"0\r\n\r\n")
    for prompts in (["a"], ["a"], ["a", "b", "c"]):
        made = asking.streamed(prompts, 2)
        assert made["texts"] == ["Paris"] * len(prompts)
        assert made["first_seconds"] < 5


def test_what_the_client_computes_itself_does_not_count(
    answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = {name: iter(range(0, 1000, step)) for name, step in (("perf_counter", 10), ("process_time", 1))}
    monkeypatch.setattr(
        client, "time", SimpleNamespace(**{name: clock.__next__ for name, clock in clocks.items()})
    )
    made = answering(b"".join(WHOLE) + b"0\r\n\r\n").streamed(["a"], 2)
    assert (made["first_seconds"], made["seconds"], made["cpu_seconds"]) == (9, 9, 1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3\r\n\r\nno!"],
            "the server refused (HTTP/1.1 400 Bad Request): no!",
        ),
        ([HEAD], "the server ended in the middle of an answer; its log has the reason"),
        (
            [HEAD, delta("a"), chunk({"error": {"message": "it broke"}}), b"0\r\n\r\n"],
            "the server's answer failed: it broke",
        ),
        ([*WHOLE, b"0\r\n\r\n"], "an answer over HTTP has 2 tokens, and 3 were asked for"),
    ],
)
def test_what_is_no_answer(answering: Any, parts: list[bytes], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        answering(*parts).streamed(["a"], 3)


def test_an_answer_without_text(answering: Any) -> None:
    with pytest.raises(UserError, match=r"^the server's answer has no text: b'HTTP"):
        answering(HEAD, delta("", timings={"predicted_n": 1}), b"0\r\n\r\n").streamed(["a"], 1)


def test_a_server_that_says_nothing(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_S", 0.05)
    with pytest.raises(UserError, match=r"^the server sent nothing for 0\.05 s; its log has more$"):
        answering(b"HTTP/1.1 200 OK\r\n").streamed(["a"], 1)


def test_chunks() -> None:
    assert decode_chunked(b"3\r\nabc\r\nb\r\n0123456789\n\r\n0\r\n\r\n") == b"abc0123456789\n"


def test_answers_must_be_the_engines() -> None:
    http.check_same(["a", "b"], ["a", "b"])
    with pytest.raises(UserError, match=r"^over HTTP an answer is 'c', and the engine's is 'b'$"):
        http.check_same(["a", "c"], ["a", "b"])


def test_no_token_ends_an_answer_of_an_endless_checkpoint(tmp_path: Path) -> None:
    for _ in range(2):  # what was there before is replaced
        made = http.without_eos(DEMO_FOLDER, tmp_path / "endless")
    assert load_config(DEMO_FOLDER).eos_token_ids
    assert load_config(made).eos_token_ids == ()
    assert (made / "model.safetensors").stat().st_size > 1000


def test_an_answer_of_the_engine_that_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(error="", token_ids=[1], finish_reason=FinishReason.STOP, text="a")
    side = sides.AerieSide("folder", "cache")
    side.__dict__["_model_of_api"] = SimpleNamespace(generate_batch=lambda prompts, tokens: [made])
    assert side.time_answers(["a"], 1)["texts"] == ["a"]
    with pytest.raises(
        UserError, match=r"^an answer of the engine has 1 tokens, and 2 were asked for; stop$"
    ):
        side.time_answers(["a"], 2)


def test_a_server_that_cannot_load_its_model(tmp_path: Path) -> None:
    log = tmp_path / "log"
    message = (
        r"^the server ended with exit code 2 before its model was loaded; it printed: error: .*none.* "
        rf"\(all of it: {re.escape(str(log))}\)$"
    )
    with pytest.raises(UserError, match=message), http.running_server(tmp_path / "none", log, tmp_path, {}):
        raise AssertionError


def test_a_server_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READY_S", 0.1)
    (tmp_path / "log").write_text("demo at http://127.0.0.1:1; Ctrl-C ends\n")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(UserError, match=r"^the server has not loaded its model in 0\.1 s; its output:"):
            http._loaded(process, tmp_path / "log")
        process.kill()


@pytest.mark.slow
def test_a_whole_run_on_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    arguments = http.build_parser().parse_args(["--rounds", "2", "--tokens", "20"])
    monkeypatch.setattr(folders, "cache_folder", lambda: tmp_path)
    assert http.run(arguments) == 0
    shown = capsys.readouterr()
    assert "round 2 of 2" in shown.err
    figures = {
        label: re.search(rf"{label} +(-?\d+\.\d+)", shown.out)
        for label in ("first token, ms", "streamed token, ms", "clients, tokens/s", "over the engine's")
    }
    assert all(figures.values()), shown.out
    assert f"{CONCURRENT_CLIENTS} clients" in shown.out
    assert f"<= {TARGETS['http_token_ms'][1]:g}" in shown.out
    ratio = figures["over the engine's"]
    assert ratio is not None
    assert float(ratio[1]) > 0
