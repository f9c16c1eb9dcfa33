"""What a transfer waits for at a buffer: in a memtile for other transfers, in a core for its work too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from aerie.virtual_npu.timing.costs import NOTHING, Cost, cost, total
from aerie.virtual_npu.timing.replay import Event, Resource

LOCK = cost(lock_cycles=1)


@dataclass
class MemtileBuffer:
    """What one buffer of L2 holds now, and held before: who wrote it and who reads it."""

    writers: list[Event] = field(default_factory=list)
    readers: list[Event] = field(default_factory=list)
    readers_before: list[Event] = field(default_factory=list)
    room: list[Event] = field(default_factory=list)
    """Who must be done before what is there now may be written."""

    def order(self, event: Event, reads: bool, in_loop: bool) -> None:
        """Let a transfer wait for the data that it reads, or for the room that it writes to."""
        if reads:
            for writer in self.writers:
                event.after(writer)
            self.readers.append(event)
            return
        if self.readers:
            self.room = self.readers_before if in_loop else self.readers
            self.readers_before, self.readers, self.writers = self.readers, [], []
        for reader in self.room:
            event.after(reader)
        self.writers.append(event)


@dataclass
class CoreOrder:
    """Where one core is: its last event, the work since then, and the transfers it must wait for.

    add: makes an event of a resource.
    """

    resource: Resource
    add: Callable[[list[Resource], Cost], Event]
    last: Event | None = None
    pending: Cost = NOTHING
    waits: dict[object, Event] = field(default_factory=dict)
    arrivals: dict[SSAValue, Event | None] = field(default_factory=dict)
    """The core's event before it last took a buffer's data: from then on the half before that is free."""
    sent: dict[SSAValue, Event] = field(default_factory=dict)

    def work(self, cost: Cost) -> None:
        """Let the core work on."""
        self.pending = total(self.pending, cost)

    def flush(self) -> Event | None:
        """The event of what the core has computed since its last; returns the last."""
        if self.pending != NOTHING or self.waits:
            event = self.add([self.resource], self.pending)
            event.after(self.last)
            for transfer in self.waits.values():
                event.after(transfer)
            self.last, self.pending, self.waits = event, NOTHING, {}
        return self.last

    def receive(self, event: Event, buffer: SSAValue, in_loop: bool) -> None:
        """The core takes what a transfer brings; the transfer waits for room."""
        if buffer in self.waits or self.pending != NOTHING:
            self.flush()
        if in_loop or buffer in self.arrivals:
            event.after(self.arrivals.get(buffer) if in_loop else self.last)
        self.arrivals[buffer] = self.last
        self.waits[buffer] = event
        self.work(LOCK)

    def send(self, event: Event, buffer: SSAValue, in_loop: bool) -> None:
        """The core hands over what a transfer takes away; it goes on when the transfer before is done."""
        event.after(self.flush())
        before = self.sent.get(buffer) if in_loop else event
        self.sent[buffer] = event
        self.work(LOCK)
        if before is not None:
            self.waits[("sent", buffer)] = before
