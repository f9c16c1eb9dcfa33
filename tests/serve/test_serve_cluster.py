"""Messages if Ray cannot run replicas, and the calls to Ray; no cluster is started."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray itself
    pytest.importorskip("ray.serve", reason="replicas need the extra ray, which make test does not install")

import ray

from aerie.common.errors import UserError
from aerie.serve import replicas
from aerie.serve.metrics import RequestLog
from aerie.serve.model_spec import ModelFlags
from aerie.serve.prefix_affinity import prefix_keys
from aerie.serve.replica_proxy import LOG_MESSAGE_TYPE
from aerie.serve.replicas import PrefixRouter, ReplicaConfig, deployment, running_replicas
from aerie.serve.service import ServerLimits

RECIPE = ReplicaConfig(
    "demo", "demo", ModelFlags("virtual", None, None, None, Path("cache")), ServerLimits(queue=8)
)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is shut down, in order; Ray itself is not asked."""
    calls: list[str] = []
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "npu": 2.0})
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("ray"))
    monkeypatch.setattr(ray.serve, "delete", calls.append)
    monkeypatch.setattr(ray.serve, "start", lambda **_: None)
    return calls


def begin(least: int = 2, cluster: str | None = None) -> None:
    with running_replicas(RECIPE, least, least, cluster):
        pass


def test_fewer_npus_than_replicas(ended: list[str]) -> None:
    with pytest.raises(UserError) as error:
        begin(3)
    assert str(error.value) == (
        "--replicas is 3, each takes one of Ray's resource npu, and there are 2; add machines (ray start "
        "--address HEAD:6379 --resources '{\"npu\": 1}', then --cluster), or ask for fewer"
    )
    assert ended == ["ray"]


def test_no_cluster_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UserError) as error:
        begin(cluster="192.0.2.1:6379")
    assert str(error.value) == (
        "--cluster is 192.0.2.1:6379, and no Ray is there (nobody listens); start it with ray start --head "
        "--resources '{\"npu\": 1}', or leave --cluster out"
    )


def test_replicas_that_cannot_be_started(ended: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the replica has no model: no room")

    monkeypatch.setattr(ray.serve, "run", fail)
    with pytest.raises(UserError) as error:
        begin()
    expected = (
        "the replicas could not be started (the replica has no model: no room); ray's logs are in /tmp/ray"
    )
    assert str(error.value) == expected
    assert ended == ["demo", "ray"]


def test_a_replica_without_its_model_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = object.__new__(replicas.Replica)
    models = SimpleNamespace(error=UserError("no room"))
    monkeypatch.setattr(replica, "_models", models, raising=False)
    with pytest.raises(RuntimeError, match="the replica has no model: no room"):
        replica.check_health()


def test_a_replica_gives_the_messages_of_its_app_and_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {"request_log": RequestLog("POST", "/", "-", model="demo", completion_tokens=3)}
        try:
            await send({"type": "http.response.body", "body": (await receive())["body"], "more_body": True})
            await send({"type": "http.response.body", "body": b"last"})
            await receive()  # until the client goes away, which is not heard here
        finally:
            ended.append(True)

    async def asked() -> list[Any]:
        answer = replica.answer({}, b"first", [])
        made = [await anext(answer) for _ in range(3)]
        await answer.aclose()
        await asyncio.sleep(0)
        return made

    replica = object.__new__(replicas.Replica)
    monkeypatch.setattr(replica, "_app", app, raising=False)
    first, line, last = asyncio.run(asked())
    assert (first["body"], last["body"], ended) == (b"first", b"last", [True])
    assert (line["type"], line["model"], line["completion_tokens"]) == (LOG_MESSAGE_TYPE, "demo", 3)


def test_the_calls_of_ray() -> None:
    fixed, scaled = (deployment(RECIPE, 2, most)._bound_deployment for most in (2, 6))
    assert fixed.num_replicas == 2
    assert fixed.ray_actor_options["resources"] == {"npu": 1}
    assert (fixed.max_ongoing_requests, fixed.max_queued_requests) == (32 + 8, 8)
    scaling = scaled._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 6, 16)


def test_the_router_ranks_by_affinity_and_then_all_others() -> None:
    router = object.__new__(PrefixRouter)
    router.initialize_state()
    router._replica_queue_len_cache = SimpleNamespace(get={"b": 3, "c": None}.get)
    several = [SimpleNamespace(replica_id=_Name(each)) for each in "abc"]
    keys = prefix_keys(range(128))
    pending = _pending("1", keys)
    router.on_request_routed(pending, _Name("b"), None)
    first, others = asyncio.run(router.choose_replicas(several, pending))
    assert [each.replica_id.unique_id for each in (*first, *others)] == ["b", "a", "c"]
    assert pending.routing_context.should_backoff
    assert asyncio.run(router.choose_replicas([], pending)) == []
    assert len(asyncio.run(router.choose_replicas(several))[0]) == 1


def test_requests_of_one_moment_go_to_different_replicas() -> None:
    """Before Ray knows of any of them. One that is given up counts no longer."""
    router = object.__new__(PrefixRouter)
    router.initialize_state()
    router._replica_queue_len_cache = SimpleNamespace(get=lambda _: None)
    several = [SimpleNamespace(replica_id=_Name(each)) for each in "ab"]

    def choose(pending: Any) -> str:
        return str(asyncio.run(router.choose_replicas(several, pending))[0][0].replica_id)

    waiting = [_pending(str(number), ()) for number in range(4)]
    chosen = [choose(each) for each in waiting]
    first, second, *rest = chosen
    assert first != second
    assert rest == [first, second]
    assert [choose(each) for each in waiting] == chosen  # Ray asks again where a replica is full
    del waiting[0]
    assert choose(_pending("5", ())) == first


def _pending(request_id: str, keys: Sequence[bytes]) -> Any:
    """A request, as Ray has it before it is sent."""
    return SimpleNamespace(
        args=({}, b"", keys),
        metadata=SimpleNamespace(internal_request_id=request_id),
        routing_context=SimpleNamespace(should_backoff=False),
    )


class _Name(str):
    """A replica's id, as Ray has it."""

    @property
    def unique_id(self) -> str:
        return str(self)
