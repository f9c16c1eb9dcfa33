"""Under load: who waits, who is refused, who goes away, and what fails; the others' answers stay the same."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from aerie import Model
from aerie.engine.sampler import Sampler
from aerie.engine.stop_strings import StopStrings
from aerie.serve.output_processor import OutputProcessor
from aerie.serve.service import ServerLimits
from tests.serve.conftest import PATIENCE_S, http_client, slow_steps

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FRANCE = "What is the capital of France?"
BODY = {"messages": [{"role": "user", "content": FRANCE}], "temperature": 0}
HEARTBEAT = ": still at work"
PARIS = "The capital of France is Paris."


def answer(http: httpx2.Client) -> str:
    content: str = http.post(CHAT, json=BODY).json()["choices"][0]["message"]["content"]
    return content


def endless(serving: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": "Tell a story. ", **serving.endless, **more}


def test_the_queue_is_bounded(serving: Any, limit: Any) -> None:
    limit(heartbeat_s=0.1)  # with which the stream of those that wait begins
    with ExitStack() as stack:
        http = stack.enter_context(serving.http)
        stack.enter_context(http.stream("POST", COMPLETIONS, json=endless(serving, n=32, stream=True)))
        stack.enter_context(http.stream("POST", COMPLETIONS, json=endless(serving, n=4, stream=True)))
        refused = http.post(CHAT, json=BODY)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert "36 answers run or wait, 1 more were requested, and 36 is the limit" in error["message"]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
    serving.wait_until(lambda: serving.running() == 0)
    with serving.http as http:
        assert answer(http) == PARIS


def steps_until_idle(serving: Any) -> int:
    """Engine steps until nothing is under way: how quick a cancellation is, however busy the machine."""
    stats = serving.service.worker.opened.scheduler.stats
    before: int = stats.steps
    serving.wait_until(lambda: serving.running() == 0)
    return stats.steps - before


@pytest.mark.parametrize("streams", [True, False])
def test_who_goes_away_is_cancelled(serving: Any, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(serving.service.worker, monkeypatch)
    body = endless(serving, n=4, stream=streams)
    if streams:
        with serving.http as http, http.stream("POST", COMPLETIONS, json=body) as response:
            next(lines := response.iter_lines())
            assert serving.running() == 4
            del lines  # with which the client closes the connection: it has to be held until here
    else:
        serving.abandoned(COMPLETIONS, body)
    assert steps_until_idle(serving) < 100  # the answers would take 400
    opened = serving.service.worker.opened
    manager = opened.scheduler.pool.manager
    serving.wait_until(lambda: manager.free_count == manager.page_count)


def test_a_heartbeat_while_nothing_comes(serving: Any, limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first token, and between two. The engine stands still until two of them have come."""
    limit(heartbeat_s=0.05)
    scheduler = serving.service.worker.opened.scheduler
    step, counted, go_on = scheduler.step, itertools.count(), threading.Event()

    def standing_still() -> None:
        if next(counted) in (0, 5):
            assert go_on.wait(PATIENCE_S)
            go_on.clear()
        step()

    monkeypatch.setattr(scheduler, "step", standing_still)
    lines: list[str] = []
    with serving.http as http, http.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
        for line in response.iter_lines():
            lines.append(line)
            if line == HEARTBEAT and lines.count(HEARTBEAT) in (2, 4):
                go_on.set()
    first = next(number for number, line in enumerate(lines) if line.startswith("data: "))
    assert lines[:first].count(HEARTBEAT) >= 2
    assert lines[first:].count(HEARTBEAT) >= 2
    assert lines.count("data: [DONE]") == 1
    with serving.http:
        chunks = serving.openai.chat.completions.create(model="demo", stream=True, **BODY)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS


def test_a_request_has_so_much_time(serving: Any, limit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = serving.service.worker
    step, counted = worker.opened.scheduler.step, itertools.count()

    def ageing() -> None:
        step()
        if next(counted) > 12:
            for job in worker._running:
                job.arrived_s -= 1000

    monkeypatch.setattr(worker.opened.scheduler, "step", ageing)
    limit(time_limit_s=500)
    with serving.http as http:
        made = http.post(COMPLETIONS, json=endless(serving)).json()
        assert made["choices"][0]["finish_reason"] == "length"
        assert 0 < made["usage"]["completion_tokens"] < 400
        limit(time_limit_s=0.2)
        # Once the request is there, the engine takes more than that.
        inbox = worker._inbox

        def wait() -> None:
            serving.wait_until(lambda: not inbox.empty())
            time.sleep(0.3)

        inbox.put(wait)
        late = http.post(CHAT, json=BODY)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "time_limit")
        assert "within the 0.2 s that a request has" in late.json()["error"]["message"]


def test_a_step_that_fails_ends_what_was_in_it(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("aerie.serve").propagate = True
    scheduler = serving.service.worker.opened.scheduler
    real, steps = scheduler.step, [0]

    def failing() -> None:
        steps[0] += 1
        if steps[0] in (3, 20):
            raise ValueError("broken in /home/somebody/engine.py")
        real()

    monkeypatch.setattr(scheduler, "step", failing)
    with serving.http as http:
        failed = http.post(CHAT, json=BODY)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "internal_error")
        assert "somebody" not in failed.text
        assert answer(http) == PARIS
        steps[0] = 15
        with http.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
            lines = [line for line in response.iter_lines() if line]
        assert '"code": "internal_error"' in lines[-1]
        assert answer(http) == PARIS
    assert "broken in /home/somebody/engine.py" in caplog.text


def test_a_request_that_cannot_be_begun_ends_alone(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = serving.service.worker.opened.scheduler
    real = scheduler.add_request

    def failing(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(scheduler, "add_request", real)
        raise ValueError("broken")

    monkeypatch.setattr(scheduler, "add_request", failing)
    with serving.http as http:
        assert http.post(CHAT, json=BODY).status_code == 500
        assert answer(http) == PARIS


def test_tokens_that_cannot_be_decoded_end_their_answer_alone(
    serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(answer: OutputProcessor) -> None:
        monkeypatch.undo()
        raise ValueError("broken")

    with serving.http as http:
        with http.stream("POST", COMPLETIONS, json=endless(serving, stream=True, max_tokens=100)) as other:
            lines = other.iter_lines()
            next(lines)
            monkeypatch.setattr(OutputProcessor, "next_delta", failing)
            assert [line for line in lines if line][-1].startswith(
                'data: {"error": {"message": "the server failed'
            )
        assert answer(http) == PARIS


@pytest.mark.parametrize("fails", ["sampler", "mask", "logprobs", "stop strings", "cut"])
def test_what_fails_in_one_answer_ends_it_alone(
    serving: Any, alone: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    """By an exception that is no Exception, as pyo3's panics are; the neighbour's answer stays the same."""
    logging.getLogger("aerie.serve").propagate = True

    class PanicError(BaseException):
        pass

    def failing(*_: Any, **__: Any) -> Any:
        raise PanicError("broken in /home/somebody/lib.rs")

    place = {
        "sampler": "aerie.engine.sampler.Sampler._penalise",
        "mask": "aerie.engine.grammar.GrammarMatcher.token_mask",
        "logprobs": "aerie.serve.output_processor.top_logprobs",
        "stop strings": "aerie.engine.stop_strings._prefix_length",
        "cut": "aerie.engine.stop_strings._prefix_length",
    }[fails]
    settings: dict[str, Any] = {"frequency_penalty": 1.0, "regex": "[a-z]+", "logprobs": True, "stop": ["x"]}
    name = {"sampler": "frequency_penalty", "mask": "regex", "logprobs": "logprobs"}.get(fails, "stop")
    body = endless(serving, seed=3, max_tokens=150, stream=True)
    bias = {int(token): each for token, each in body["logit_bias"].items()}
    own = alone.generate(body["prompt"], 150, raw=True, temperature=1.5, seed=3, logit_bias=bias).text
    with serving.http as http, http.stream("POST", COMPLETIONS, json=body) as other:
        lines = other.iter_lines()
        first = next(lines)
        if fails == "sampler":  # which penalises the neighbour's too
            penalise = Sampler._penalise
            monkeypatch.setattr(
                place, lambda self, *given: (failing if self.frequency_penalty else penalise)(self, *given)
            )
        else:
            monkeypatch.setattr(place, failing)
        if fails == "cut":  # which the neighbour's has none of
            real = StopStrings.flush
            monkeypatch.setattr(StopStrings, "flush", lambda self: (failing if self._stops else real)(self))
        with serving.http as asking:
            made = asking.post(CHAT, json={**BODY, name: settings[name]})
        monkeypatch.undo()
        rest = [line for line in (first, *lines) if line.startswith("data: {")]
    assert (made.status_code, made.json()["error"]["code"]) == (500, "internal_error")
    assert "somebody" not in made.text
    text = "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in rest)
    assert text == own
    assert "an answer failed, alone" in caplog.text
    assert "broken in /home/somebody/lib.rs" in caplog.text


TEXTS = {"input": [[5 + number % 50] * 400 for number in range(64)]}
"""64 texts of 400 tokens."""


def rows_beside_answers(worker: Any, patch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each step from now on in which an answer is under way. Steps take long, so that they are
    not over before the test has asked."""
    rows: list[int] = []
    slow_steps(worker, patch, 0.03)
    scheduler, step = worker.opened.scheduler, worker.opened.scheduler.step

    def counting() -> None:
        has_answer = any(isinstance(job.output, OutputProcessor) for job in worker._running)
        before = scheduler.stats.rows
        step()
        if has_answer:
            rows.append(scheduler.stats.rows - before)

    patch.setattr(scheduler, "step", counting)
    return rows


def test_embeddings_and_answers_share_the_steps(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chat has its tokens in hardly more steps than by itself, and 64 texts go on meanwhile; they have the
    same bits whoever is beside them. Who goes away is cancelled at once, in the middle of them too."""
    scheduler = serving.service.worker.opened.scheduler
    two = {**TEXTS, "input": TEXTS["input"][:2], "encoding_format": "base64"}
    with serving.http as http, serving.http as other, ThreadPoolExecutor(1) as beside:
        answer(other)
        alone = http.post("/v1/embeddings", json=two).json()["data"]
        steps = scheduler.stats.steps
        answer(other)
        usual = scheduler.stats.steps - steps
        rows = rows_beside_answers(serving.service.worker, monkeypatch)
        future = beside.submit(http.post, "/v1/embeddings", json=TEXTS, timeout=300)
        serving.wait_until(lambda: serving.running() == 2)
        for _ in range(3):
            rows.clear()
            assert answer(other) == PARIS
            assert len(rows) <= usual + 3
            assert sum(rows) >= 8 * (usual - 1)
        assert not future.done()
        monkeypatch.undo()
        again = other.post("/v1/embeddings", json=two).json()["data"]
        assert again == alone
        assert future.result().status_code == 200
    logprobs = {"prompt": TEXTS["input"][:32], "max_tokens": 1, "prompt_logprobs": 2}
    for path, body in (("/v1/embeddings", TEXTS), (COMPLETIONS, logprobs)):
        serving.abandoned(path, body)
        assert steps_until_idle(serving) < 100


def test_limits_hold_for_embeddings(serving: Any, limit: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The queue's, in which texts of a request wait two at a time, and the time of a request."""
    logging.getLogger("aerie.serve").propagate = True
    limit(time_limit_s=0.2)
    with serving.http as http, caplog.at_level(logging.INFO, "aerie.serve"):
        late = http.post("/v1/embeddings", json=TEXTS)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "time_limit")
        assert "within the 0.2 s that a request has" in late.json()["error"]["message"]
        serving.wait_until(lambda: re.search(r"ended=\S*error", caplog.text))
        limit(time_limit_s=60.0, queue=0, heartbeat_s=0.1)
        with http.stream("POST", COMPLETIONS, json=endless(serving, n=31, stream=True)):
            refused = http.post("/v1/embeddings", json=TEXTS)
            assert refused.status_code == 429
            assert "31 answers run or wait, 2 more were requested" in refused.json()["error"]["message"]
        serving.wait_until(lambda: serving.running() == 0)
        assert http.post("/v1/embeddings", json={"input": "Hi"}).status_code == 200
        serving.wait_until(lambda: "ended=read" in caplog.text)


def test_a_failed_answer_is_no_complete_one_in_the_log(
    serving: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor in the history of the last request; where all fail at once, too."""
    logging.getLogger("aerie.serve").propagate = True
    scheduler = serving.service.worker.opened.scheduler
    real, steps = scheduler._run, [0]

    def failing(pieces: Any, requests: Any = ()) -> Any:
        steps[0] += 1
        if steps[0] == 4:
            raise ValueError("broken")
        return real(pieces, requests)

    monkeypatch.setattr(scheduler, "_run", failing)
    with serving.http as http, caplog.at_level(logging.INFO, "aerie.serve"):
        assert http.post(CHAT, json=BODY).status_code == 500
        serving.wait_until(lambda: "POST /v1/chat" in caplog.text)
        assert "made=3 ended=error" in caplog.text
        assert serving.service.worker.history.last.reason == "error"


def test_aborts_do_not_touch_others(serving: Any, alone: Model) -> None:
    own = alone.generate(FRANCE, 20, temperature=1.5, seed=11).text
    body = {**BODY, "temperature": 1.5, "seed": 11, "max_tokens": 20}
    with serving.http as http:
        for number in range(12):
            with (
                serving.http as other,
                other.stream("POST", COMPLETIONS, json=endless(serving, stream=True)) as gone,
            ):
                lines = gone.iter_lines()
                if number % 2:
                    next(lines)
                made = http.post(CHAT, json=body).json()["choices"][0]["message"]["content"]
            assert made == own
    serving.wait_until(lambda: serving.running() == 0)
    manager = serving.service.worker.opened.scheduler.pool.manager
    serving.wait_until(lambda: manager.free_count == manager.page_count)


def test_the_log_has_no_text(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("aerie.serve").propagate = True
    with serving.http as http, caplog.at_level(logging.INFO, "aerie.serve"):
        answer(http)
        http.get("/v1/models/a%0Ab")
        http.get("/health")
    serving.wait_until(lambda: "a%0Ab" in caplog.text)
    assert "France" not in caplog.text
    assert re.search(
        r"1 POST /v1/chat/completions 200 \d\.\d{3} s model=demo prompt=22 cached=0 made=9 ended=stop",
        caplog.text,
    )
    assert "GET /v1/models/a%0Ab 404" in caplog.text
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("aerie")]
    assert not any("/health" in line for line in ours)


def test_a_server_that_is_asked_to_stop(
    starting: Any, server_of_all: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = starting(ServerLimits(drain_s=0.5))
    serving.wait_until(lambda: serving.service.opened)
    slow_steps(serving.service.worker, monkeypatch)
    with serving.http as http:
        with http.stream("POST", COMPLETIONS, json=endless(server_of_all, stream=True)) as response:
            lines = response.iter_lines()
            next(lines)
            serving.server.should_exit = True
            serving.wait_until(lambda: serving.models.shared.is_draining)
            with pytest.raises(httpx2.ConnectError):
                serving.http.get("/health")
            left = [line for line in lines if line]
        assert "the server was stopped before this answer was complete" in left[-1]
    serving.wait_until(lambda: serving.service.worker.ended.is_set())
    assert serving.service.worker.error is None


def test_a_process_from_its_start_to_sigterm() -> None:
    words = [sys.executable, "-m", "aerie", "serve", "--port", "0", "--backend", "virtual"]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, env={**os.environ, "AERIE_API_KEY": "k"}
    )
    try:
        assert process.stderr is not None
        (url,) = re.findall(r"demo at (http://127.0.0.1:\d+);", process.stderr.readline())
        with http_client(url, 60, headers={"Authorization": "Bearer k"}) as http:
            while http.get("/health").status_code == 503:
                time.sleep(0.05)
            with http.stream("POST", CHAT, json={**BODY, "stream": True}) as response:
                lines = response.iter_lines()
                first = next(lines)
                process.send_signal(signal.SIGTERM)
                text = "\n".join([first, *lines])
        assert "data: [DONE]" in text
        assert process.wait(PATIENCE_S) == 0
        assert "made=9 ended=stop" in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
