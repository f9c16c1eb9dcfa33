"""Several models in one server: loaded when they are asked for, under a limit, and apart from each other."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import httpx2
import pytest

from aerie import Model, load
from aerie.common import folders
from aerie.engine.errors import CheckpointError, TooLittleMemoryError
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend
from aerie.runtime.memory import resident_bytes, return_freed_memory
from aerie.serve.app import make_app
from aerie.serve.model_spec import ModelSpec
from aerie.serve.models import MemoryLimit, ModelManager
from aerie.serve.service import RELOAD_DELAY_S, ModelState, ServedModel, ServerLimits
from aerie.serve.worker import OpenedModel
from tests.serve.conftest import PATIENCE_S, VARIANTS, Serving, http_client, opened, slow_steps, start_models

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
FRANCE = "What is the capital of France?"
USER = [{"role": "user", "content": FRANCE}]
SHIPPED = ("demo", "demo-diffusion", "demo-drafter")
MIB = 2**20
Endless = Callable[[Serving, str], dict[str, Any]]


def offers(*names: str, needs: int = 0) -> list[ServedModel]:
    return [ServedModel(name, partial(opened, name), lambda: needs) for name in names]


def states(serving: Serving) -> dict[str, str]:
    with serving.http as http:
        by_name: dict[str, str] = http.get("/health").json().get("models", {})
    return by_name


def ask(serving: Serving, model: str | None, **more: Any) -> httpx2.Response:
    body = {"messages": USER, "temperature": 0, "max_tokens": 12, **more}
    with serving.http as http:
        return http.post(CHAT, json={**body, **({} if model is None else {"model": model})})


def error_of(response: httpx2.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


def loaded(serving: Serving, *names: str) -> None:
    serving.wait_until(lambda: all(states(serving).get(name) == "loaded" for name in names))


@pytest.fixture(scope="module")
def three() -> Iterator[Serving]:
    """A server of the three that are shipped, without a limit."""
    serving, stop = start_models(ModelManager(offers(*SHIPPED)))
    serving.wait_until(lambda: serving.server.started and serving.service.state is ModelState.LOADED)
    yield serving
    stop()


@pytest.fixture(scope="module")
def each() -> Iterator[dict[str, Model]]:
    """The same by themselves."""
    models = {name: load(name, backend="virtual", variants=VARIANTS, decode="rows") for name in SHIPPED}
    yield models
    for model in models.values():
        model.close()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Endless:
    """endless(serving, model): a stream that goes on for long."""
    return partial(_endless, monkeypatch)


def _endless(patch: pytest.MonkeyPatch, serving: Serving, model: str) -> dict[str, Any]:
    worker = serving.models.all[model].worker
    assert worker.opened is not None
    slow_steps(worker, patch)
    eos = worker.opened.session.model.config.eos_token_ids
    bias = {str(token): -100.0 for token in eos}
    return {"model": model, "prompt": "x", "max_tokens": 400, "stream": True, "logit_bias": bias}


def test_a_model_is_loaded_when_it_is_asked_for(three: Serving, each: dict[str, Model]) -> None:
    assert states(three) == {"demo": "loaded", "demo-diffusion": "unloaded", "demo-drafter": "unloaded"}
    with three.http as http:
        for path in ("/props", "/slots", "/npu/programs", "/npu/request", "/npu/request/trace"):
            assert error_of(http.get(path, params={"model": "demo-drafter"}))[1] == "not_loaded"
    for name in (None, *SHIPPED):
        made = ask(three, name).json()
        assert made["choices"][0]["message"]["content"] == each[name or "demo"].generate(FRANCE, 12).text
        assert made["model"] == (name or "demo")
    with three.http as http:
        listed = http.get("/v1/models").json()["data"]
        assert [(one["id"], one["status"]) for one in listed] == [(n, {"value": "loaded"}) for n in SHIPPED]
        assert http.get("/models").json()["data"] == listed
        assert http.get("/v1/models/demo-drafter").json()["max_model_len"] == 512
        assert http.get("/props", params={"model": "demo-drafter"}).json()["model_alias"] == "demo-drafter"
        assert http.get("/slots?model=demo-drafter").json()[0]["n_ctx"] == 512
        text = http.get("/metrics").text
    assert 'aerie_model_loads_total{model="demo-diffusion"} 1.0' in text
    assert 'aerie_model_loaded{model="demo-drafter"} 1.0' in text
    assert 'aerie_tokens_total{kind="made",model="demo-drafter"}' in text


def test_in_the_words_of_lemonade(starting_models: Callable[[ModelManager], Serving]) -> None:
    serving = starting_models(ModelManager(offers("demo", "demo-drafter")))

    def post(path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        with serving.http as http:
            response = http.post(f"/api/v1/{path}", json=body)
        return response.status_code, response.json()

    def loaded() -> list[str]:
        with serving.http as http:
            return [one["model_name"] for one in http.get("/api/v1/health").json()["all_models_loaded"]]

    loading = post("load", model_name="demo-drafter")
    assert loading == (200, {"status": "success", "message": "Loaded model: demo-drafter"})
    assert post("load", model_name="demo")[0] == 200
    assert loaded() == ["demo", "demo-drafter"]
    unloaded = (200, {"status": "success", "message": "Model unloaded successfully"})
    assert post("unload", model_name="demo") == unloaded
    assert loaded() == ["demo-drafter"]
    with serving.http as http:
        known = http.get("/api/v1/models/demo").json()
    assert (known["downloaded"], known["max_context_window"]) == (True, 512)
    assert "max_model_len" not in known
    assert post("unload", model_name="demo")[1]["error"]["message"].endswith("name one that is loaded")
    assert post("load", model_name="gpt")[0] == 404
    assert post("unload") == unloaded == post("unload")
    assert loaded() == []
    ask(serving, "demo")
    ask(serving, "demo")
    with serving.http as http:
        stats = http.get("/api/v1/stats").json()
    tokens = stats["prompt_tokens"]
    assert (stats["request_count_total"], stats["prompt_tokens_total"]) == (2, 2 * tokens)
    assert (stats["output_tokens"], stats["output_tokens_total"]) == (9, 18)
    assert stats["input_tokens"] + stats["cache_tokens"] == tokens
    assert stats["time_to_first_token"] > 0 < stats["tokens_per_second"]


@pytest.mark.parametrize("path", [CHAT, "/v1/models/gpt", "/props?model=gpt", "/models/load"])
def test_a_model_that_there_is_not(three: Serving, path: str) -> None:
    with three.http as http:
        posts = path in (CHAT, "/models/load")
        response = http.post(path, json={"model": "gpt", "messages": USER}) if posts else http.get(path)
        if path == "/models/load":
            response = http.post(path, json={"model": "gpt"})
    status, code, message = error_of(response)
    assert (status, code) == (404, "model_not_found")
    assert message == "there is no model 'gpt' here; there are 'demo', 'demo-diffusion', 'demo-drafter'"


def test_answers_of_several_models_at_once_are_those_alone(three: Serving, each: dict[str, Model]) -> None:
    for name in SHIPPED:
        assert ask(three, name).status_code == 200
    asked: list[tuple[str, dict[str, Any]]] = [
        (name, {"temperature": temperature, "seed": number})
        for number, temperature in enumerate((0.0, 0.8))
        for name in SHIPPED
    ]

    def content(one: tuple[str, dict[str, Any]]) -> tuple[str, list[float]]:
        name, settings = one
        marks = {} if name == "demo-diffusion" else {"logprobs": True}
        choice = ask(three, name, max_tokens=16, **settings, **marks).json()["choices"][0]
        logs = [mark["logprob"] for mark in choice["logprobs"]["content"]] if marks else []
        return choice["message"]["content"], logs

    own = [content(one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as threads:
        assert list(threads.map(content, asked)) == own
    assert [text for text, _ in own] == [
        each[name].generate(FRANCE, 16, **settings).text for name, settings in asked
    ]


def test_who_is_idle_longest_gives_way(starting_models: Callable[[ModelManager], Serving]) -> None:
    serving = starting_models(ModelManager(offers(*SHIPPED, needs=40), memory=MemoryLimit(100, lambda: None)))
    loaded(serving, "demo")
    assert ask(serving, "demo-drafter").status_code == 200
    assert ask(serving, "demo").status_code == 200
    assert ask(serving, "demo-diffusion").status_code == 200
    assert states(serving) == {"demo": "loaded", "demo-diffusion": "loaded", "demo-drafter": "unloaded"}
    with serving.http as http:
        metrics = http.get("/metrics").text
    assert 'aerie_model_memory_bytes{model="demo"} 40.0' in metrics
    assert 'aerie_model_memory_bytes{model="demo-drafter"} 0.0' in metrics


def test_who_answers_does_not_give_way(
    starting_models: Callable[[ModelManager], Serving], endless: Endless
) -> None:
    limits = ServerLimits(load_wait_s=0.3, heartbeat_s=0.1)
    serving = starting_models(
        ModelManager(
            offers("demo", "demo-drafter", needs=60 * MIB), limits, MemoryLimit(100 * MIB, lambda: None)
        )
    )
    loaded(serving, "demo")
    with serving.http as http, http.stream("POST", COMPLETIONS, json=endless(serving, "demo")) as response:
        lines = response.iter_lines()
        next(lines)
        status, code, message = error_of(refused := ask(serving, "demo-drafter"))
        assert (status, code, refused.headers["retry-after"]) == (503, "no_room", "1")
        assert message == (
            "there is no room for the model 'demo-drafter' yet: it takes about 60 MiB of memory, others that "
            "answer requests have 60 MiB, and 100 MiB is the limit of all; try again"
        )
        serving.wait_until(lambda: states(serving)["demo-drafter"] == "unloaded")  # nobody waits any more
        serving.models.limits = ServerLimits(load_wait_s=30, heartbeat_s=0.1)
        body = {"model": "demo-drafter", "messages": USER, "temperature": 0, "stream": True}
        with serving.http as other, other.stream("POST", CHAT, json=body) as waiting:
            received = waiting.iter_lines()
            assert (waiting.status_code, next(received)) == (200, ": still at work")
            assert states(serving) == {"demo": "loaded", "demo-drafter": "waiting"}
            response.close()
            assert [line for line in received if line][-1] == "data: [DONE]"
    assert states(serving) == {"demo": "unloaded", "demo-drafter": "loaded"}


def test_what_can_never_fit(starting_models: Callable[[ModelManager], Serving]) -> None:
    small, large = offers("demo", needs=MIB), offers("demo-drafter", needs=300 * MIB)
    serving = starting_models(ModelManager([*small, *large], memory=MemoryLimit(200 * MIB, lambda: None)))
    loaded(serving, "demo")
    expected = (
        "the model 'demo-drafter' takes about 300 MiB of memory, and 200 MiB is the limit of all "
        "models (--memory); request another model"
    )
    assert error_of(ask(serving, "demo-drafter")) == (400, "model_too_large", expected)
    with serving.http as http:
        load = http.post("/models/load", json={"model": "demo-drafter"})
        listed = http.get("/v1/models/demo-drafter").json()["status"]
    assert error_of(load) == (400, "model_too_large", expected)
    assert listed == {"value": "failed", "failed": True, "reason": expected}
    assert states(serving)["demo"] == "loaded"


def test_memory_that_others_took(starting_models: Callable[[ModelManager], Serving]) -> None:
    available = [100]
    memory = MemoryLimit(100, lambda: available[0])
    serving = starting_models(ModelManager(offers("demo", "demo-drafter", needs=40), memory=memory))
    loaded(serving, "demo")
    available[0] = 20
    assert ask(serving, "demo-drafter").status_code == 200  # alone, and the engine looks by itself
    assert states(serving) == {"demo": "unloaded", "demo-drafter": "loaded"}


BROKEN: list[tuple[BaseException, str, str]] = [
    (
        CheckpointError("/home/x/models/it/config.json: hidden_size is missing\nand more"),
        "failed",
        "config.json: hidden_size is missing",
    ),
    (TooLittleMemoryError("it takes 9 GiB of memory and 1 GiB are available"), "no_room", "it takes 9 GiB"),
    (KeyError("/home/secret"), "failed", "the server's log has the reason"),
    (SystemExit(3), "failed", "the server's log has the reason"),
]


def test_health_of_the_only_model_that_cannot_be_loaded() -> None:
    """Until the server has ended."""

    async def asked() -> httpx2.Response:
        models = ModelManager(offers("demo"))
        await models.default_model.mark_failed(CheckpointError("config.json: hidden_size is missing"))
        transport = httpx2.ASGITransport(make_app(models))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.get("/health")

    message = "the model 'demo' could not be loaded: config.json: hidden_size is missing"
    assert error_of(asyncio.run(asked())) == (503, "failed", message)


@pytest.mark.parametrize(("error", "code", "reason"), BROKEN)
def test_a_model_that_cannot_be_loaded_ends_nothing_else(
    starting_models: Callable[[ModelManager], Serving], error: BaseException, code: str, reason: str
) -> None:
    tries: list[float] = []

    def opening() -> OpenedModel:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise error
        return opened("demo-drafter")

    serving = starting_models(ModelManager([*offers("demo"), ServedModel("broken", opening)]))
    loaded(serving, "demo")
    for _ in range(2):
        response = ask(serving, "broken")
        status, found, message = error_of(response)
        assert (status, found, response.headers["retry-after"]) == (503, code, str(RELOAD_DELAY_S))
        assert message.startswith(f"the model 'broken' could not be loaded: {reason}")
        assert "/home" not in message
        assert "\n" not in message
    assert len(tries) == 1
    with serving.http as http:
        load_status = http.get("/v1/models/broken").json()["status"]
        assert (load_status["value"], load_status["failed"], load_status["reason"].startswith(reason)) == (
            "failed",
            True,
            True,
        )
        assert error_of(http.get("/props?model=broken"))[1] == code
        assert ask(serving, "demo").status_code == 200
        assert http.post("/models/load", json={"model": "broken"}).json() == {"success": True}
    loaded(serving, "broken")
    assert ask(serving, "broken").status_code == 200


def test_the_first_of_several_may_fail(starting_models: Callable[[ModelManager], Serving]) -> None:
    def opening() -> OpenedModel:
        raise CheckpointError("it is damaged")

    serving = starting_models(ModelManager([ServedModel("broken", opening), *offers("demo")]))
    serving.wait_until(lambda: not serving.models.is_starting)
    assert states(serving) == {"broken": "failed", "demo": "unloaded"}
    assert ask(serving, "demo").status_code == 200


def test_a_model_whose_thread_ends(
    starting_models: Callable[[ModelManager], Serving], endless: Endless
) -> None:
    serving = starting_models(ModelManager(offers("demo", "demo-drafter")))
    loaded(serving, "demo")
    with serving.http as http, http.stream("POST", COMPLETIONS, json=endless(serving, "demo")) as response:
        lines = response.iter_lines()
        next(lines)

        def defect() -> None:
            raise SystemExit

        serving.service.worker._inbox.put(defect)
        assert "the server failed in this request" in [line for line in lines if line][-1]
    serving.wait_until(lambda: states(serving)["demo"] == "failed")
    assert ask(serving, "demo-drafter").status_code == 200


OUT_OF_RANGE = {
    CHAT: {"messages": USER, "max_tokens": 2, "temperature": -1},
    "/v1/responses": {"input": FRANCE, "temperature": -1},
    "/v1/messages": {"messages": USER, "max_tokens": 2, "top_p": 5},
}
"""Bodies whose setting only a loaded model refuses."""


def test_while_a_model_is_loaded(
    starting_models: Callable[[ModelManager], Serving], caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()

    def opening() -> OpenedModel:
        assert go_on.wait(PATIENCE_S)
        return opened("demo-drafter")

    models = ModelManager([*offers("demo"), ServedModel("slow", opening)], ServerLimits(heartbeat_s=0.1))
    serving = starting_models(models)
    loaded(serving, "demo")
    streams = [(path, {"model": "slow", "stream": True, **body}) for path, body in OUT_OF_RANGE.items()]

    def stream(one: tuple[str, dict[str, Any]]) -> list[str]:
        with serving.http as http, http.stream("POST", one[0], json=one[1]) as response:
            assert response.status_code == 200
            lines: list[str] = []
            for line in response.iter_lines():
                lines += [line] if line else []
                waiting.update({one[0]: True} if line else {})
            return lines

    waiting: dict[str, bool] = {}
    with ThreadPoolExecutor(5) as threads:
        futures = [threads.submit(stream, one) for one in streams]
        whole = threads.submit(ask, serving, "slow")
        serving.wait_until(lambda: serving.models.all["slow"].active_requests == 4)
        assert ask(serving, "demo").status_code == 200
        with serving.http as http:
            for wrong in ("load", "unload"):
                response = http.post(f"/models/{wrong}", json={"model": "slow"})
                assert error_of(response)[2].startswith("the model 'slow' is loading")
        models.limits = ServerLimits(load_wait_s=0.05)
        assert error_of(ask(serving, "slow"))[:2] == (503, "loading")
        models.all["slow"].active_requests += 96
        assert error_of(ask(serving, "slow")) == (
            429,
            "queue_full",
            "96 requests wait for the model 'slow' to be loaded, and that is the limit; try again in 2 s",
        )
        models.all["slow"].active_requests -= 96
        serving.wait_until(lambda: len(waiting) == 3)
        go_on.set()
        assert whole.result().status_code == 200
        chat, responses, messages = (one.result() for one in futures)
    for lines in (chat, responses, messages):
        assert lines[0] == ": still at work"
    assert '"param": "temperature"' in chat[-1]
    assert "event: error" in responses[-2]
    assert '"type": "error"' in responses[-1]
    assert "event: error" in messages[-2]
    assert '"type": "invalid_request_error"' in messages[-1]


def test_a_client_that_goes_away_while_it_waits_for_room(
    starting_models: Callable[[ModelManager], Serving], endless: Endless
) -> None:
    models = ModelManager(offers("demo", "demo-drafter", needs=60), memory=MemoryLimit(100, lambda: None))
    serving = starting_models(models)
    loaded(serving, "demo")
    with serving.http as http, http.stream("POST", COMPLETIONS, json=endless(serving, "demo")) as response:
        next(lines := response.iter_lines())
        impatient = httpx2.Timeout(PATIENCE_S, read=0.3)
        with http_client(serving.url, impatient) as other, pytest.raises(httpx2.ReadTimeout):
            other.post(CHAT, json={"model": "demo-drafter", "messages": USER})
        serving.wait_until(lambda: states(serving)["demo-drafter"] == "unloaded")
        next(lines)


def test_loading_and_unloading_by_request(
    starting_models: Callable[[ModelManager], Serving], endless: Endless
) -> None:
    serving = starting_models(ModelManager(offers("demo", "demo-drafter"), ServerLimits(api_key="k")))
    with http_client(serving.url, 30) as anybody:
        for path in ("/models/load", "/models/unload"):
            assert anybody.post(path, json={"model": "demo"}).status_code == 401
    headers = {"Authorization": "Bearer k"}
    with http_client(serving.url, 30, headers=headers) as http:

        def posted(path: str, model: str = "demo-drafter") -> httpx2.Response:
            return http.post(f"/models/{path}", json={"model": model})

        loaded(serving, "demo")
        assert (
            error_of(posted("unload"))[2] == "the model 'demo-drafter' is unloaded; name one that is loaded"
        )
        assert posted("load").json() == {"success": True}
        loaded(serving, "demo-drafter")
        assert error_of(posted("load"))[2] == "the model 'demo-drafter' is loaded already"
        with http.stream("POST", COMPLETIONS, json=endless(serving, "demo-drafter")) as response:
            next(lines := response.iter_lines())
            status, code, message = error_of(posted("unload"))
            assert (status, code) == (409, "in_use")
            assert message.startswith("1 requests of the model 'demo-drafter' are under way")
            next(lines)
        serving.wait_until(lambda: not serving.models.all["demo-drafter"].active_requests)
        assert posted("unload").json() == {"success": True}
        assert states(serving) == {"demo": "loaded", "demo-drafter": "unloaded"}
        assert error_of(http.get("/props?model=demo-drafter"))[1] == "not_loaded"
        assert error_of(http.post("/models/load", json={}))[2] == "model is missing; give it"


def test_what_nobody_asks_for_is_unloaded(starting_models: Callable[[ModelManager], Serving]) -> None:
    serving = starting_models(ModelManager(offers("demo"), idle_s=0.2))
    loaded(serving, "demo")
    for _ in range(2):
        assert ask(serving, "demo").status_code == 200
        serving.wait_until(lambda: states(serving)["demo"] == "unloaded")
    assert not serving.models.is_over


def test_all_are_loaded_at_the_start(starting_models: Callable[[ModelManager], Serving]) -> None:
    serving = starting_models(ModelManager(offers("demo", "demo-drafter"), preload=True))
    serving.wait_until(lambda: not serving.models.is_starting)
    assert set(states(serving).values()) == {"loaded"}


WINDOW = 4
"""Loads and unloads whose memory is compared with that of as many before."""


def test_memory_comes_back(starting_models: Callable[[ModelManager], Serving]) -> None:
    options = RuntimeOptions(None, select_backend("virtual"), folders.programs_folder(), decode=ROWS)
    opening = ModelSpec("demo", options, Reporter(quiet=True), "demo-drafter", 300 * MIB)
    serving = starting_models(
        ModelManager([*offers("demo-drafter"), ServedModel("demo", opening.open, opening.memory_bytes)])
    )
    loaded(serving, "demo-drafter")
    service = serving.models.all["demo"]
    after: list[tuple[int, int]] = []

    def ours() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name.startswith(("model", "encoding", "slots"))]

    def growth() -> float:
        """MiB between the medians of the last two windows."""
        left = [resident for resident, _ in after]
        return (median(left[-WINDOW:]) - median(left[-2 * WINDOW : -WINDOW])) / MIB

    with serving.http as http:
        while len(after) < 3 * WINDOW or (growth() >= 6 and len(after) < 6 * WINDOW):
            return_freed_memory()
            before = resident_bytes()
            assert ask(serving, "demo", max_tokens=30).status_code == 200
            assert service.worker.opened is not None
            for arrays in service.worker.opened.scheduler.pool.layers:
                for array in arrays:
                    array[...] = 1
            assert 20 * MIB < service.reserved_bytes < 300 * MIB
            assert resident_bytes() - before < service.reserved_bytes
            assert http.post("/models/unload", json={"model": "demo"}).json() == {"success": True}
            after.append((resident_bytes(), len(ours())))
    # A thread keeps the buffers that it has once needed: steps of 4 MiB, early or late. A leak goes on.
    assert growth() < 6
    assert after[-1][1] == after[0][1]


@pytest.mark.slow
def test_many_clients_of_models_that_give_way_to_each_other(
    starting_models: Callable[[ModelManager], Serving], each: dict[str, Model]
) -> None:
    names = (*SHIPPED, "again")
    several = [*offers(*SHIPPED, needs=40), ServedModel("again", partial(opened, "demo"), lambda: 40)]
    serving = starting_models(
        ModelManager(several, ServerLimits(load_wait_s=100), MemoryLimit(100, lambda: None))
    )
    own = {name: each.get(name, each["demo"]).generate(FRANCE, 12).text for name in names}

    def client(number: int) -> list[bool]:
        chosen = random.Random(number)
        equal = []
        for _ in range(25):
            name = chosen.choice(names)
            made = ask(serving, name)
            equal.append(
                made.status_code == 200 and made.json()["choices"][0]["message"]["content"] == own[name]
            )
            if chosen.random() < 0.2:
                with (
                    http_client(serving.url, 0.02) as gone,
                    suppress(httpx2.TimeoutException),
                ):
                    gone.post(CHAT, json={"model": chosen.choice(names), "messages": USER})
        return equal

    with ThreadPoolExecutor(8) as threads:
        assert all(all(equal) for equal in threads.map(client, range(8)))
    every = serving.models.all.values()
    serving.wait_until(
        lambda: all(service.state in (ModelState.LOADED, ModelState.UNLOADED) for service in every)
    )
    assert sum(service.reserved_bytes for service in every) <= 100
    assert not any(service.active_requests for service in every)
    with serving.http as http:
        lines = [
            line for line in http.get("/metrics").text.splitlines() if "aerie_model_loads_total{" in line
        ]
    assert sum(float(line.split()[-1]) for line in lines) > 8
