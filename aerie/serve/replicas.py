"""Replicas of the engine under Ray Serve: one process per NPU, on one machine or several.

A replica is the server of app.py without its socket: it receives a request as an ASGI scope and a body, and
returns the messages of the response. replica_proxy.py has the socket and outlives the replicas. Ray restarts
a replica whose process has ended, and adds replicas under load.

`pip install 'ray[serve]'`; written to the API of Ray Serve 2.60 (docs.ray.io/en/latest/serve).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import RequestRouter
from starlette.types import Message, Scope

from aerie.common.errors import UserError
from aerie.engine.reporter import Reporter
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.serve.app import make_app
from aerie.serve.model_spec import ModelFlags, open_model
from aerie.serve.models import ModelManager
from aerie.serve.prefix_affinity import PrefixAffinity
from aerie.serve.replica_proxy import LOG_MESSAGE_TYPE, SendToReplica
from aerie.serve.service import ServedModel, ServerLimits

NPU_RESOURCE = "npu"
"""The Ray resource that a replica takes one of: `ray start --resources '{"npu": 1}'`."""


QUEUE_FULL_ERROR = BackPressureError
VIRTUAL_BACKEND = "virtual"
LOG_FIELDS = (
    *("model", "prompt_tokens", "completion_tokens", "cached_tokens", "drafted", "accepted"),
    *("first_token_s", "finish_reasons"),
)
"""Fields of RequestLog that only the replica knows. The proxy needs them for the log and the metrics."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Shared memory for what Ray carries between processes: requests and responses are small."""


class ReplicaConfig(NamedTuple):
    """What a replica is started with, on its own machine."""

    name: str
    model: str
    flags: ModelFlags
    limits: ServerLimits
    aliases: tuple[str, ...] = ()


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ray's request router by PrefixAffinity. The last argument of Replica.answer has the prefix keys."""

    def initialize_state(self, **_: Any) -> None:
        self._affinity = PrefixAffinity()
        # Ray's queue lengths count a request only once it was sent: requests of one moment would all see the
        # same idle replica. An entry goes when Ray drops the request, answered or not.
        self._being_routed: WeakValueDictionary[str, _Choice] = WeakValueDictionary()

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """The replica by PrefixAffinity first, then all others: Ray takes the one with the shortest queue if
        the first is full."""
        if not candidate_replicas:
            return []
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        request_id = pending_request.metadata.internal_request_id if pending_request is not None else ""
        chosen = Counter(one.replica for key, one in self._being_routed.items() if key != request_id)
        loads = {
            name: (self.replica_queue_len_cache.get(replica.replica_id) or 0) + chosen[name]
            for name, replica in by_name.items()
        }
        first = self._affinity.choose(_keys(pending_request), loads)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
            pending_request.routing_context.choice = self._being_routed[request_id] = _Choice(first)
        return [[by_name[first]], [replica for name, replica in by_name.items() if name != first]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:  # noqa: ARG002
        self._being_routed.pop(pending_request.metadata.internal_request_id, None)
        self._affinity.record(_keys(pending_request), replica_id.unique_id)


@dataclass(eq=False)
class _Choice:
    """The replica chosen for a request that is not sent yet. The request's routing_context keeps it alive."""

    replica: str


def _keys(pending_request: Any) -> Sequence[bytes]:
    return pending_request.args[-1] if pending_request is not None and pending_request.args else ()


class Replica:
    """The server with its opened model. Raises RuntimeError if the model cannot be opened."""

    def __init__(self, recipe: ReplicaConfig) -> None:
        runtime = recipe.flags
        options = (
            runtime.runtime_options(),
            Reporter(quiet=True),
            runtime.draft,
            runtime.template_arguments,
            runtime.load_all_programs,
        )
        open_once = partial(open_model, recipe.model, *options)
        try:
            opened = open_once()  # here: Ray sends requests only after this returns
        except Exception as error:
            raise RuntimeError(f"the replica has no model: {error}") from error
        self._models = ModelManager(
            [ServedModel(recipe.name, lambda: opened, aliases=recipe.aliases)], recipe.limits
        )
        self._app = make_app(self._models)
        self._models.start()

    def check_health(self) -> None:
        """Raise RuntimeError if the model is lost. Ray calls this regularly, and replaces the replica
        then."""
        if error := self._models.error:
            raise RuntimeError(f"the replica has no model: {error}")

    async def answer(
        self,
        scope: Scope,
        body: bytes,
        keys: Sequence[bytes],  # noqa: ARG002
    ) -> AsyncGenerator[Message]:
        """Yield the messages of the response. keys: prefix_affinity.prefix_keys of the prompt, for the
        router. Cancel it to cancel the outputs."""
        responses: asyncio.Queue[Message | None] = asyncio.Queue()
        scope = {**scope, "state": {}}  # the guard in this process fills it
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await asyncio.Future[Message]()

        work = asyncio.ensure_future(self._app(scope, receive, responses.put))
        work.add_done_callback(lambda _: responses.put_nowait(None))
        try:
            while (message := await responses.get()) is not None:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    yield {
                        "type": LOG_MESSAGE_TYPE,
                        **{name: getattr(scope["state"]["request_log"], name) for name in LOG_FIELDS},
                    }
                yield message
        finally:
            work.cancel()


def deployment(recipe: ReplicaConfig, min_replicas: int, max_replicas: int) -> Any:
    """An application of Ray Serve with `min_replicas` to `max_replicas` replicas, scaled by the running
    requests."""
    scale = {
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "target_ongoing_requests": MAX_RUNNING_REQUESTS // 2,
    }
    return (
        serve.deployment(Replica)
        .options(
            **(
                {"autoscaling_config": scale}
                if max_replicas > min_replicas
                else {"num_replicas": min_replicas}
            ),
            max_ongoing_requests=MAX_RUNNING_REQUESTS + recipe.limits.queue,
            max_queued_requests=max(1, recipe.limits.queue),
            ray_actor_options={"num_cpus": 0, "resources": {NPU_RESOURCE: 1}},
            health_check_period_s=5,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        )
        .bind(recipe)
    )


@contextmanager
def running_replicas(
    recipe: ReplicaConfig, min_replicas: int, max_replicas: int, cluster: str | None
) -> Iterator[SendToReplica]:
    """Start replicas, yield the function that sends requests to them, and stop them afterwards. cluster: the
    address of Ray's head, or "auto" for the one of this machine; None starts a cluster for this process.
    Raises UserError if too few NPUs are there or Ray fails."""
    _join(cluster, max_replicas if recipe.flags.runtime_options().backend.name == VIRTUAL_BACKEND else 1)
    try:
        if (available := int(ray.cluster_resources().get(NPU_RESOURCE, 0))) < min_replicas:
            raise UserError(
                f"--replicas is {min_replicas}, each takes one of Ray's resource {NPU_RESOURCE}, and there "
                f"are {available}; add machines (ray start --address HEAD:6379 --resources "
                f"'{{\"{NPU_RESOURCE}\": 1}}', then --cluster), or ask for fewer"
            )
        try:
            yield _deployed(recipe, min_replicas, max_replicas)
        finally:
            serve.delete(recipe.name)  # other applications of the cluster stay
    finally:
        ray.shutdown()


def _join(cluster: str | None, npus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage data
    own: dict[str, Any] = {
        "resources": {NPU_RESOURCE: npus},
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    try:
        ray.init(cluster or "local", logging_level="ERROR", log_to_driver=False, **({} if cluster else own))
    except ConnectionError as error:
        raise UserError(
            f"--cluster is {cluster}, and no Ray is there ({str(error)[:200]}); start it with "
            f"ray start --head --resources '{{\"{NPU_RESOURCE}\": 1}}', or leave --cluster out"
        ) from None


def _deployed(recipe: ReplicaConfig, min_replicas: int, max_replicas: int) -> SendToReplica:
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    try:
        handle = serve.run(
            deployment(recipe, min_replicas, max_replicas), name=recipe.name, route_prefix=None
        )
    except RuntimeError as error:
        raise UserError(f"the replicas could not be started ({error}); ray's logs are in /tmp/ray") from None

    async def send(scope: Scope, body: bytes, keys: Sequence[bytes]) -> AsyncGenerator[Message]:
        response = handle.options(stream=True).answer.remote(scope, body, keys)
        try:
            async for message in response:
                yield message
        finally:
            response.cancel()

    return send
