"""Replicas of the engine under Ray Serve: one process per NPU, on one machine or several.

A replica is the server of app.py without its socket: it is given a request as ASGI has it, and gives
the messages of the response back. replica_proxy.py has the socket, and what outlives a replica. Ray starts a
replica anew where its process has ended, and more of them where many answers are under way.

`pip install 'ray[serve]'`; written to the API of Ray Serve 2.60 (docs.ray.io/en/latest/serve).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError
from ray.serve.request_router import RequestRouter
from starlette.types import Message, Scope

from aerie.common.errors import UserError
from aerie.engine.progress import Reporter
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.serve.app import make_app
from aerie.serve.model_spec import Runtime, open_model
from aerie.serve.models import Models
from aerie.serve.prefix_affinity import Affinity
from aerie.serve.replica_proxy import LINE, Ask
from aerie.serve.service import Limits, Offer

NPU = "npu"
"""The resource of Ray that a replica takes one of: `ray start --resources '{"npu": 1}'`."""


FULL = BackPressureError
VIRTUAL = "virtual"
TOLD = ("model", "prompt", "made", "cached", "drafted", "accepted", "first_s", "endings")
"""What a replica alone knows of a request, for the log and the counts of the front."""
STORE_BYTES = 100 * 2**20
"""Of shared memory, for what Ray carries between processes: nothing of ours is large."""


class Recipe(NamedTuple):
    """What a replica is made with, on its own machine."""

    name: str
    model: str
    runtime: Runtime
    limits: Limits
    aliases: tuple[str, ...] = ()


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ray's routing by Affinity. A request's arguments are Replica.answer's, the keys last."""

    def initialize_state(self, **_: Any) -> None:
        self._affinity = Affinity()

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """The one by Affinity, then all others: Ray takes that with the shortest queue where it is full."""
        if not candidate_replicas:
            return []
        of = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {each: self.replica_queue_len_cache.get(of[each].replica_id) or 0 for each in of}
        first = self._affinity.choose(_keys(pending_request), loads)
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[of[first]], [replica for name, replica in of.items() if name != first]]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:  # noqa: ARG002
        self._affinity.note(_keys(pending_request), replica_id.unique_id)


def _keys(pending_request: Any) -> Sequence[bytes]:
    return pending_request.args[-1] if pending_request is not None and pending_request.args else ()


class Replica:
    """The server with its model, which is there when this returns. RuntimeError where it cannot be opened."""

    def __init__(self, recipe: Recipe) -> None:
        runtime = recipe.runtime
        how = runtime.options(), Reporter(quiet=True), runtime.draft, runtime.template_arguments, runtime.warm
        opening = partial(open_model, recipe.model, *how)
        try:
            opened = opening()  # here, as Ray sends no request before
        except Exception as error:
            raise RuntimeError(f"the replica has no model: {error}") from error
        self._models = Models([Offer(recipe.name, lambda: opened, aliases=recipe.aliases)], recipe.limits)
        self._app = make_app(self._models)
        self._models.begin()

    def check_health(self) -> None:
        """Ray asks from time to time, and makes another replica where this raises RuntimeError."""
        if error := self._models.error:
            raise RuntimeError(f"the replica has no model: {error}")

    async def answer(
        self,
        scope: Scope,
        body: bytes,
        keys: Sequence[bytes],  # noqa: ARG002
    ) -> AsyncGenerator[Message]:
        """The messages of the response. keys: affinity.page_keys of the prompt, for the router. Whoever
        listens no more cancels this, and with it the answers."""
        sent: asyncio.Queue[Message | None] = asyncio.Queue()
        scope = {**scope, "state": {}}  # which a guard fills, in this process
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return asked.pop() if asked else await asyncio.Future[Message]()

        work = asyncio.ensure_future(self._app(scope, receive, sent.put))
        work.add_done_callback(lambda _: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    yield {"type": LINE, **{name: getattr(scope["state"]["line"], name) for name in TOLD}}
                yield message
        finally:
            work.cancel()


def deployment(recipe: Recipe, least: int, most: int) -> Any:
    """`least` to `most` replicas, by how many answers are under way, as an application of Ray Serve."""
    scale = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": MOST_ANSWERS // 2}
    return (
        serve.deployment(Replica)
        .options(
            **({"autoscaling_config": scale} if most > least else {"num_replicas": least}),
            max_ongoing_requests=MOST_ANSWERS + recipe.limits.queue,
            max_queued_requests=max(1, recipe.limits.queue),
            ray_actor_options={"num_cpus": 0, "resources": {NPU: 1}},
            health_check_period_s=5,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        )
        .bind(recipe)
    )


@contextmanager
def running(recipe: Recipe, least: int, most: int, cluster: str | None) -> Iterator[Ask]:
    """Replicas that are ready, until the end of this. cluster: the address of Ray's head, or auto for the one
    of this machine; None: a cluster of this process alone, on this machine. Raises UserError."""
    _join(cluster, most if recipe.runtime.options().backend.name == VIRTUAL else 1)
    try:
        if (there := int(ray.cluster_resources().get(NPU, 0))) < least:
            raise UserError(
                f"--replicas is {least}, each takes one of Ray's resource {NPU}, and there are {there}; add "
                f"machines (ray start --address HEAD:6379 --resources '{{\"{NPU}\": 1}}', then --cluster), "
                "or ask for fewer"
            )
        try:
            yield _deployed(recipe, least, most)
        finally:
            serve.delete(recipe.name)  # and nothing else that the cluster may serve
    finally:
        ray.shutdown()


def _join(cluster: str | None, npus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
    own: dict[str, Any] = {
        "resources": {NPU: npus},
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
    }
    try:
        ray.init(cluster or "local", logging_level="ERROR", log_to_driver=False, **({} if cluster else own))
    except ConnectionError as error:
        raise UserError(
            f"--cluster is {cluster}, and no Ray is there ({str(error)[:200]}); start it with "
            f"ray start --head --resources '{{\"{NPU}\": 1}}', or leave --cluster out"
        ) from None


def _deployed(recipe: Recipe, least: int, most: int) -> Ask:
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    try:
        handle = serve.run(deployment(recipe, least, most), name=recipe.name, route_prefix=None)
    except RuntimeError as error:
        raise UserError(f"the replicas could not be started ({error}); ray's logs are in /tmp/ray") from None

    async def ask(scope: Scope, body: bytes, keys: Sequence[bytes]) -> AsyncGenerator[Message]:
        response = handle.options(stream=True).answer.remote(scope, body, keys)
        try:
            async for message in response:
                yield message
        finally:
            response.cancel()

    return ask
