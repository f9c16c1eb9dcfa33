"""The models of a server: which are loaded, which load on request, and which are unloaded for others.

A model reserves its estimated memory from before it is loaded until it is unloaded. If another model does not
fit the limit, idle models are unloaded, the least recently used first. Models with active requests are never
unloaded; a model without room waits. Models get room one after the other, in the order of their first
request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.runtime.memory import available_bytes, format_bytes
from aerie.serve.errors import ApiError
from aerie.serve.metrics import Metrics
from aerie.serve.service import (
    LOADING_RETRY_S,
    ModelService,
    ModelState,
    ServedModel,
    ServerLimits,
    SharedState,
    TooLargeError,
)

LATEST: Final = ":latest"
"""Ollama's tag of a name without one."""
CHECK_INTERVAL_S = 1.0
"""Seconds between checks whether other programs have freed memory."""


class MemoryLimit(NamedTuple):
    """limit: maximum bytes of all loaded models together; None means no limit. available: returns the free
    memory of the system."""

    limit: int | None = None
    available: Callable[[], int | None] = available_bytes


class ModelManager:
    """Loads and unloads the models of a server. Call all methods in the event loop.

    preload: load all models at the start, not only the first. idle_s: seconds without a request after which a
    model is unloaded; None means never.
    """

    def __init__(
        self,
        served_models: Sequence[ServedModel],
        limits: ServerLimits | None = None,
        memory: MemoryLimit | None = None,
        preload: bool = False,
        idle_s: float | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.shared = SharedState(limits or ServerLimits(), self.metrics, len(served_models) > 1)
        self.memory, self.idle_s = memory or MemoryLimit(), idle_s
        self.all = {
            served_model.name: ModelService(served_model, self.shared) for served_model in served_models
        }
        self._at_start = [*self.all.values()][: None if preload else 1]
        self._room_lock, self._freed = asyncio.Lock(), asyncio.Event()

    @property
    def limits(self) -> ServerLimits:
        return self.shared.limits

    @limits.setter
    def limits(self, limits: ServerLimits) -> None:
        self.shared.limits = limits

    @property
    def default_model(self) -> ModelService:
        """The model of requests that name none."""
        return next(iter(self.all.values()))

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to serve: the only model has failed for good."""
        return len(self.all) == 1 and self.error is not None

    @property
    def error(self) -> BaseException | None:
        """Why the only model cannot be served; None if it can, or if there are several."""
        return self.default_model.fatal if len(self.all) == 1 else None

    @property
    def is_starting(self) -> bool:
        """Whether a model of the start is still loading."""
        return any(not service.was_settled for service in self._at_start)

    def start(self) -> None:
        """Load the models of the start."""
        for service in self._at_start:
            service.stays_loaded = True
            self.load(service)

    async def end(self) -> None:
        """End all threads. Call it after the running requests have finished."""
        for service in self.all.values():
            if service.loading:
                service.loading.cancel()
        await asyncio.gather(*(service.end() for service in self.all.values()))

    def drain(self) -> None:
        """Refuse new requests, and give running ones `drain_s` seconds; then end them with an error."""
        if not self.shared.is_draining:
            self.shared.is_draining = True
            for service in self.all.values():
                service.drain()

    def find(self, name: str | None) -> ModelService:
        """The model of this name or alias, with or without Ollama's tag for the only version; the default
        model for None. Raises ApiError 404 if there is none."""
        if name is None:
            return self.default_model
        for known_as in (name, name.removesuffix(LATEST)):
            for service in self.all.values():
                if known_as in (service.name, *service.aliases):
                    return service
        known = ", ".join(map(repr, self.all))
        are = "there is" if len(self.all) == 1 else "there are"
        raise ApiError(
            404,
            f"there is no model {name[:80]!r} here; {are} {known}" if name else "model is empty",
            "model",
            "model_not_found",
        )

    def acquire(self, service: ModelService) -> None:
        """Count a request of this model: the model stays loaded until `release`."""
        service.acquire(asyncio.get_running_loop().time())

    def release(self, service: ModelService) -> None:
        """End what `acquire` started."""
        loop = asyncio.get_running_loop()
        if not service.release(loop.time()):
            return
        self._freed.set()
        if service.state is ModelState.WAITING and not service.stays_loaded and service.loading:
            service.loading.cancel()
        if self.idle_s is not None:
            service.timer = loop.call_later(self.idle_s, self._unload_idle, service)

    async def wait_loaded(self, service: ModelService) -> None:
        """Load the model if needed, and wait at most `load_wait_s` seconds. Raises ApiError."""
        if self.shared.is_draining or service.state is ModelState.LOADED:
            service.check()
            return
        if error := service.recent_load_error():
            raise error
        if service.active_requests > (most := MAX_RUNNING_REQUESTS + self.limits.queue):
            raise ApiError(
                429,
                f"{most} requests wait for the model {service.name!r} to be loaded, and that is "
                f"the limit; try again in {LOADING_RETRY_S} s",
                code="queue_full",
                retry_after=LOADING_RETRY_S,
            )
        try:
            async with asyncio.timeout(self.limits.load_wait_s):
                await asyncio.shield(self.load(service))
        except TimeoutError:
            raise self._timeout_error(service) from None
        except Exception as error:
            raise service.load_error() from error

    def load(self, service: ModelService) -> asyncio.Task[None]:
        """Start loading the model. Returns the task, which raises the error of a failed load."""
        if service.loading is None or service.loading.done():
            service.state = ModelState.LOADING
            service.loading = asyncio.create_task(self._run_load(service))
            service.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return service.loading

    async def start_load(self, service: ModelService) -> None:
        """Load the model without a request. Returns when the load has started. Raises ApiError 400 if it is
        loaded already, or too large for the limit."""
        if service.state not in (ModelState.UNLOADED, ModelState.UNLOADING, ModelState.FAILED):
            raise ApiError(400, f"the model {service.name!r} is {service.state.value} already", "model")
        service.stays_loaded = True
        loading = self.load(service)
        await asyncio.wait({loading}, timeout=0.5)
        if loading.done() and not loading.cancelled() and loading.exception():
            raise service.load_error()

    async def unload(self, service: ModelService) -> None:
        """Free all memory of the model. Raises ApiError 400 if it is not loaded, 409 if it has active
        requests."""
        if service.state not in (ModelState.LOADED, ModelState.UNLOADING):
            raise ApiError(
                400, f"the model {service.name!r} is {service.state.value}; name one that is loaded", "model"
            )
        if service.active_requests:
            raise ApiError(
                409,
                f"{service.active_requests} requests of the model {service.name!r} are under way; unload it "
                "when they are over",
                "model",
                "in_use",
            )
        await asyncio.shield(self._unload(service))

    async def _run_load(self, service: ModelService) -> None:
        try:
            if service.unloading:
                await asyncio.shield(service.unloading)
            memory_bytes = await asyncio.to_thread(service.served_model.memory_bytes)
            async with self._room_lock:
                await self._make_room(service, memory_bytes)
                service.start(memory_bytes)
            await service.wait_settled()
        except asyncio.CancelledError:
            service.cancel_load()
            raise
        except Exception as error:
            await service.mark_failed(error)
            self._freed.set()
            raise

    async def _make_room(self, service: ModelService, memory_bytes: int) -> None:
        limit = self.memory.limit
        if limit is not None and memory_bytes > limit:
            raise TooLargeError(
                f"the model {service.name!r} takes about {format_bytes(memory_bytes)} of memory, and "
                f"{format_bytes(limit)} is the limit of all models (--memory); request another model"
            )
        service.memory_bytes = memory_bytes
        while self._lacks_room(memory_bytes):
            if idle := [other for other in self.all.values() if other.is_idle]:
                await asyncio.shield(self._unload(min(idle, key=lambda other: other.used_s)))
            elif any(other.reserved_bytes for other in self.all.values()):
                service.state = ModelState.WAITING
                await self._wait_freed()
            else:
                break  # the engine checks the memory itself, with advice in its error
        service.state = ModelState.LOADING

    async def _wait_freed(self) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(CHECK_INTERVAL_S):
                await self._freed.wait()
        except TimeoutError:
            return

    def _lacks_room(self, memory_bytes: int) -> bool:
        """Whether a model of this size does not fit now."""
        limit, available = self.memory.limit, self.memory.available()
        if limit is None:
            return False
        return memory_bytes > limit - self._reserved_bytes() or (
            available is not None and memory_bytes > available
        )

    def _reserved_bytes(self) -> int:
        return sum(service.reserved_bytes for service in self.all.values())

    def _timeout_error(self, service: ModelService) -> ApiError:
        """The error of a request that waited `load_wait_s` for its model."""
        if service.state is not ModelState.WAITING:
            return service.loading_error()
        limit = self.memory.limit or 0
        return ApiError(
            503,
            f"there is no room for the model {service.name!r} yet: it takes about "
            f"{format_bytes(service.memory_bytes)} of "
            f"memory, others that answer requests have {format_bytes(self._reserved_bytes())}, and "
            f"{format_bytes(limit)} is the limit of all; try again",
            code="no_room",
            retry_after=round(self.limits.load_wait_s) or 1,
        )

    def _unload(self, service: ModelService) -> asyncio.Task[None]:
        if service.unloading is None or service.unloading.done():
            service.state = ModelState.UNLOADING
            service.unloading = asyncio.create_task(self._run_unload(service))
        return service.unloading

    async def _run_unload(self, service: ModelService) -> None:
        await service.close()
        self._freed.set()

    def _unload_idle(self, service: ModelService) -> None:
        if service.is_idle:
            self._unload(service)
