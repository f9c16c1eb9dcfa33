"""The models of a server: which are loaded, which is loaded when it is asked for, and which gives way to it.

A model has the memory that its footprint foresees, from before it is loaded until it is unloaded. Where the
limit has no room for another, those give way that nobody asks anything, the one that was asked longest ago
first; those that are asked something never do, and what has no room waits. Room is made for one model after
the other, in the order in which they were asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.runtime.memory import available_bytes, format_bytes
from aerie.serve.errors import ApiError
from aerie.serve.metrics import Metrics
from aerie.serve.service import LOADING_S, Common, Limits, Offer, Service, State, TooLargeError

LOOK_S = 1.0
"""So often it is looked whether other programs gave memory back."""


class Memory(NamedTuple):
    """limit: bytes that all models have together, None for any. available: what the system could give."""

    limit: int | None = None
    available: Callable[[], int | None] = available_bytes


class Models:
    """See the module. All is called within the event loop.

    preload: all are loaded at the start, else the first alone. idle_s: a model that nobody asks anything for
    so many seconds is unloaded; None: none is for that.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        limits: Limits | None = None,
        memory: Memory | None = None,
        preload: bool = False,
        idle_s: float | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.common = Common(limits or Limits(), self.metrics, len(offers) > 1)
        self.memory, self.idle_s = memory or Memory(), idle_s
        self.all = {offer.name: Service(offer, self.common) for offer in offers}
        self._at_start = [*self.all.values()][: None if preload else 1]
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    @property
    def limits(self) -> Limits:
        return self.common.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self.common.limits = limits

    @property
    def first(self) -> Service:
        """The one that is meant where a request names none."""
        return next(iter(self.all.values()))

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to serve: there is one model, and its thread ended by an error."""
        return len(self.all) == 1 and self.error is not None

    @property
    def error(self) -> BaseException | None:
        """Why the only model cannot be served."""
        return self.first.fatal if len(self.all) == 1 else None

    @property
    def is_starting(self) -> bool:
        """Whether a model that the server starts with is not there yet."""
        return any(not service.was_settled for service in self._at_start)

    def begin(self) -> None:
        """Load what the server starts with."""
        for service in self._at_start:
            service.is_wanted = True
            self.load(service)

    async def end(self) -> None:
        """End all threads. Answers under way have been waited for."""
        for service in self.all.values():
            if service.loading:
                service.loading.cancel()
        await asyncio.gather(*(service.end() for service in self.all.values()))

    def drain(self) -> None:
        """Take no more requests, and give those under way `drain_s`; then they end with an error."""
        if not self.common.is_draining:
            self.common.is_draining = True
            for service in self.all.values():
                service.drain()

    def named(self, name: str | None) -> Service:
        """The model that a request names so. ApiError 404 where there is none."""
        if name is None:
            return self.first
        for service in self.all.values():
            if name in (service.name, *service.aliases):
                return service
        known = ", ".join(map(repr, self.all))
        there = "there is" if len(self.all) == 1 else "there are"
        raise ApiError(
            404,
            f"there is no model {name[:80]!r} here; {there} {known}" if name else "model is empty",
            "model",
            "model_not_found",
        )

    def hold(self, service: Service) -> None:
        """A request of this model is under way, from now until `let_go`: it is not unloaded."""
        service.held(asyncio.get_running_loop().time())

    def let_go(self, service: Service) -> None:
        """A request that held it is over."""
        loop = asyncio.get_running_loop()
        if not service.let_go(loop.time()):
            return
        self._freed.set()
        if service.state is State.WAITING and not service.is_wanted and service.loading:
            service.loading.cancel()
        if self.idle_s is not None:
            service.timer = loop.call_later(self.idle_s, self._unload_idle, service)

    async def loaded(self, service: Service) -> None:
        """Wait until it is loaded, which it is now if it is not, for `load_s` at most. ApiError."""
        if self.common.is_draining or service.state is State.LOADED:
            service.check()
            return
        if error := service.recent_failure():
            raise error
        if service.holds > (most := MAX_RUNNING_REQUESTS + self.limits.queue):
            raise ApiError(
                429,
                f"{most} requests wait for the model {service.name!r} to be loaded, and that is the limit; "
                f"ask again in {LOADING_S} s",
                code="queue_full",
                retry_after=LOADING_S,
            )
        try:
            async with asyncio.timeout(self.limits.load_s):
                await asyncio.shield(self.load(service))
        except TimeoutError:
            raise self._not_yet(service) from None
        except Exception as error:
            raise service.failure() from error

    def load(self, service: Service) -> asyncio.Task[None]:
        """Have it loaded; gives what is done when it is, and raises why it is not."""
        if service.loading is None or service.loading.done():
            service.state = State.LOADING
            service.loading = asyncio.create_task(self._load(service))
            service.loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return service.loading

    async def begin_load(self, service: Service) -> None:
        """Have it loaded, whoever asks it anything, and go on once that is under way. ApiError 400 for one
        that is loaded, or is too large for the limit."""
        if service.state not in (State.UNLOADED, State.UNLOADING, State.FAILED):
            raise ApiError(400, f"the model {service.name!r} is {service.state.value} already", "model")
        service.is_wanted = True
        loading = self.load(service)
        await asyncio.wait({loading}, timeout=0.5)
        if loading.done() and not loading.cancelled() and loading.exception():
            raise service.failure()

    async def unload(self, service: Service) -> None:
        """Free all that it has. ApiError 400 for one that is not loaded, 409 for one that is in use."""
        if service.state not in (State.LOADED, State.UNLOADING):
            raise ApiError(
                400, f"the model {service.name!r} is {service.state.value}; name one that is loaded", "model"
            )
        if service.holds:
            raise ApiError(
                409,
                f"{service.holds} requests of the model {service.name!r} are under way; unload it when they "
                "are over",
                "model",
                "in_use",
            )
        await asyncio.shield(self._unload(service))

    async def _load(self, service: Service) -> None:
        try:
            if service.unloading:
                await asyncio.shield(service.unloading)
            needs = await asyncio.to_thread(service.offer.needs)
            async with self._turn:
                await self._make_room(service, needs)
                service.begin(needs)
            await service.settled()
        except asyncio.CancelledError:
            service.give_up()
            raise
        except Exception as error:
            await service.failed(error)
            self._freed.set()
            raise

    async def _make_room(self, service: Service, needs: int) -> None:
        limit = self.memory.limit
        if limit is not None and needs > limit:
            raise TooLargeError(
                f"the model {service.name!r} takes about {format_bytes(needs)} of memory, and "
                f"{format_bytes(limit)} is the "
                "limit of all models (--memory); ask for another"
            )
        service.needs = needs
        while self._lacks(needs):
            if idle := [other for other in self.all.values() if other.is_idle]:
                await asyncio.shield(self._unload(min(idle, key=lambda other: other.used_s)))
            elif any(other.taken for other in self.all.values()):
                service.state = State.WAITING
                await self._some_freed()
            else:
                break  # the engine looks by itself, and says what could be done
        service.state = State.LOADING

    async def _some_freed(self) -> None:
        self._freed.clear()
        try:
            async with asyncio.timeout(LOOK_S):
                await self._freed.wait()
        except TimeoutError:
            return

    def _lacks(self, needs: int) -> bool:
        """Whether a model that takes so many bytes has no room now."""
        limit, available = self.memory.limit, self.memory.available()
        if limit is None:
            return False
        return needs > limit - self._taken() or (available is not None and needs > available)

    def _taken(self) -> int:
        return sum(service.taken for service in self.all.values())

    def _not_yet(self, service: Service) -> ApiError:
        """What is said to who waited long enough."""
        if service.state is not State.WAITING:
            return service.is_loading()
        limit = self.memory.limit or 0
        return ApiError(
            503,
            f"there is no room for the model {service.name!r} yet: it takes about "
            f"{format_bytes(service.needs)} of "
            f"memory, others that answer requests have {format_bytes(self._taken())}, and "
            f"{format_bytes(limit)} is the limit "
            "of all; ask again",
            code="no_room",
            retry_after=round(self.limits.load_s) or 1,
        )

    def _unload(self, service: Service) -> asyncio.Task[None]:
        if service.unloading is None or service.unloading.done():
            service.state = State.UNLOADING
            service.unloading = asyncio.create_task(self._unloaded(service))
        return service.unloading

    async def _unloaded(self, service: Service) -> None:
        await service.close()
        self._freed.set()

    def _unload_idle(self, service: Service) -> None:
        if service.is_idle:
            self._unload(service)
