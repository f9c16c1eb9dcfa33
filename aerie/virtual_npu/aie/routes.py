"""Where the words of each channel go: from flows, or along the connections and rules of switches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from aerie.air_dialect.aie import routing
from aerie.air_dialect.aie.formats import integer_of
from aerie.virtual_npu.aie.design import SHIM, Channel, Device, Place, place_of
from aerie.virtual_npu.codegen.op_errors import unsupported

Port = tuple[str, int]
CIRCUIT = -1
"""The id of words that are in no packet."""


@dataclass(frozen=True)
class Arbiter:
    """An arbiter of a switch; number -1: of the port before a channel, where nothing has been routed yet."""

    place: Place
    number: int
    port: int = 0


@dataclass
class Route:
    """The way of the packets of one id, or of all words where the id is CIRCUIT."""

    source: Channel
    id: int
    arbiters: list[Arbiter] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Of each arbiter: which one lies before it; -1 for none."""
    ports: list[int] = field(default_factory=list)
    """Of each arbiter: the port of its switch by which the route comes, counted through all that may send."""
    sinks: dict[Channel, bool] = field(default_factory=dict)
    """Receiving channels, and whether the header stays in what they receive."""
    switches: dict[Channel, int] = field(default_factory=dict)
    """How many switches are on the way to each of them."""

    def enter(self, arbiter: Arbiter, before: int, port: int) -> int:
        """Go through an arbiter; gives its number in this route."""
        if arbiter not in self.arbiters:
            self.arbiters.append(arbiter)
            self.parents.append(before)
            self.ports.append(port)
        return self.arbiters.index(arbiter)

    def end(self, sink: Channel, *, keeps_header: bool, switches: int | None = None) -> None:
        """Lead to a channel. switches: None for a way that has not been routed yet."""
        apart = sum(abs(a - b) for a, b in zip(self.source.place, sink.place, strict=True))
        self.sinks[sink] = keeps_header
        self.switches[sink] = apart + 1 if switches is None else switches


@dataclass(frozen=True)
class _Way:
    """How a route came to a switch."""

    is_packet: bool = False
    before: int = -1
    """The last of the route's arbiters."""
    switches: int = 0


@dataclass
class _Switch:
    """The connections of a tile's switch."""

    circuits: list[tuple[Port, Port]] = field(default_factory=list)
    rules: dict[Port, list[tuple[int, int, SSAValue]]] = field(default_factory=dict)
    """By port: mask, value and choice of an arbiter."""
    masters: list[tuple[Port, tuple[SSAValue, ...], bool]] = field(default_factory=list)
    """Ports, the choices that they listen to, whether they keep headers."""
    mux: dict[Port, Port] = field(default_factory=dict)
    """From a port of the shim's mux to another."""


def routes(device: Device, ids: Iterable[int]) -> list[Route]:
    """All routes of a device; `ids` are those that its packets may have."""
    switches = _switches(device)
    found: dict[tuple[Channel, int], Route] = {}
    if switches:
        senders = [channel for channel in device.channels if channel.sends]
        for channel in senders:
            for packet_id in (CIRCUIT, *sorted(set(ids))):
                route = _trace(switches, channel, packet_id)
                if route.sinks:
                    found[channel, packet_id] = route
        _add_token_routes(switches, found)
    _add_flows(device, found, set(found))
    for route in found.values():
        for sink in (route.source, *route.sinks):
            device.number_of(sink)
    return list(found.values())


def _add_token_routes(switches: dict[Place, _Switch], found: dict[tuple[Channel, int], Route]) -> None:
    """The ways of tokens that meet arbiters, which packets of data may hold, and those of answers."""
    for place, switch in switches.items():
        for _mask, packet_id, _choice in switch.rules.get(("TileControl", 0), ()):
            port = Channel(place, True, 0, "TileControl")
            route = _trace(switches, port, packet_id)
            if route.arbiters or route.sinks:
                found[port, packet_id] = route


# ---- flows that have not been routed ----


def _add_flows(
    device: Device, found: dict[tuple[Channel, int], Route], routed: set[tuple[Channel, int]]
) -> None:
    for source, sink in device.flows:
        _circuit(found, source, sink)
    for op in device.op.body.block.ops:
        if isinstance(op, routing.FlowOp):
            start = _end(op.source, op.source_bundle.data, op.source_channel.value.data, True)
            end = _end(op.dest, op.dest_bundle.data, op.dest_channel.value.data, False)
            if start is not None and end is not None and (start, CIRCUIT) not in routed:
                _circuit(found, start, end)
        elif isinstance(op, routing.PacketFlowOp):
            _add_packet_flow(op, found, routed)


def _circuit(found: dict[tuple[Channel, int], Route], source: Channel, sink: Channel) -> None:
    found.setdefault((source, CIRCUIT), Route(source, CIRCUIT)).end(sink, keeps_header=True)


def _add_packet_flow(
    op: routing.PacketFlowOp, found: dict[tuple[Channel, int], Route], routed: set[tuple[Channel, int]]
) -> None:
    keeps = "keep_pkt_header" in op.attributes
    ends = [inner for inner in op.body.block.ops if isinstance(inner, routing.PacketEndOp)]
    number = op.packet_id.value.data
    for source_op in ends:
        if not isinstance(source_op, routing.PacketSourceOp):
            continue
        source = _end(source_op.tile, source_op.bundle.data, source_op.channel.value.data, True)
        if source is None or (source, number) in routed:
            continue
        route = found.setdefault((source, number), Route(source, number))
        for dest_op in ends:
            if not isinstance(dest_op, routing.PacketDestOp):
                continue
            sink = _end(dest_op.tile, dest_op.bundle.data, dest_op.channel.value.data, False)
            if sink is not None:
                route.end(sink, keeps_header=keeps)
                route.enter(Arbiter(sink.place, -1, sink.number), -1, 0)
        if not route.sinks:
            del found[source, number]


_CONTROL = ("TileControl", "Ctrl")
_IGNORED = ("Trace", "South", "NOC", "PLIO")
"""Ports of traces and tokens, which move no data of a design."""


def _end(tile: SSAValue, bundle: str, number: int, sends: bool) -> Channel | None:
    """The channel at an end of a flow; None where it is none that moves data."""
    if bundle in ("DMA", "Core"):
        return Channel(place_of(tile), sends, number, bundle)
    if bundle in _CONTROL:
        return Channel(place_of(tile), sends, 0, _CONTROL[0])
    if bundle in _IGNORED:
        return None
    owner = tile.owner
    raise unsupported(owner, f"a flow at its port {bundle} : {number} is not supported: use DMA ports")  # type: ignore[arg-type]


# ---- switches ----


def _switches(device: Device) -> dict[Place, _Switch]:
    found: dict[Place, _Switch] = {}
    for op in device.op.body.block.ops:
        if not isinstance(op, routing.SwitchOp):
            continue
        switch = found.setdefault(place_of(op.tile), _Switch())
        for inner in op.body.block.ops if op.body.blocks else ():
            _read_connection(switch, inner, is_mux=isinstance(op, routing.ShimMuxOp))
    return found


def _read_connection(switch: _Switch, op: object, *, is_mux: bool) -> None:
    if isinstance(op, routing.ConnectOp):
        ends = (
            (op.source_bundle.data, op.source_channel.value.data),
            (op.dest_bundle.data, op.dest_channel.value.data),
        )
        if is_mux:
            switch.mux[ends[0]] = ends[1]
        else:
            switch.circuits.append(ends)
    elif isinstance(op, routing.MastersetOp):
        keeps = "keep_pkt_header" in op.attributes and bool(integer_of(op, "keep_pkt_header", 1))
        port = op.dest_bundle.data, op.dest_channel.value.data
        switch.masters.append((port, tuple(op.amsels), keeps))
    elif isinstance(op, routing.PacketRulesOp):
        rules = switch.rules.setdefault((op.source_bundle.data, op.source_channel.value.data), [])
        for rule in op.body.block.ops:
            if isinstance(rule, routing.RuleOp):
                rules.append((rule.mask.value.data, rule.value.value.data, rule.amsel))


_OPPOSITE = {
    "North": ("South", (0, 1)),
    "South": ("North", (0, -1)),
    "East": ("West", (1, 0)),
    "West": ("East", (-1, 0)),
}
_SENDING_BUNDLES = ("Core", "DMA", "TileControl", "Ctrl", "FIFO", "South", "West", "North", "East", "Trace")
"""In the order in which a switch counts its ports (aie-rt)."""
_PORTS_PER_BUNDLE = 8


def _port_number(port: Port) -> int:
    return _SENDING_BUNDLES.index(port[0]) * _PORTS_PER_BUNDLE + port[1]


_MUX_OUT = {("DMA", 0): ("North", 3), ("DMA", 1): ("North", 7)}
_MUX_IN = {("North", 2): ("DMA", 0), ("North", 3): ("DMA", 1)}
"""The connections of a shim's mux that are meant where none is written."""


def _trace(switches: dict[Place, _Switch], source: Channel, packet_id: int) -> Route:
    """Follow what a channel sends through the switches."""
    route = Route(source, packet_id)
    port: Port = source.port, source.number
    if source.place[1] == SHIM and source.port == "DMA":
        switch = switches.get(source.place, _Switch())
        leaving = switch.mux.get(port, _MUX_OUT.get(port))
        if leaving is None:
            return route
        port = "South", leaving[1]
    _follow(switches, source.place, port, route, _Way(), set())
    return route


def _follow(
    switches: dict[Place, _Switch], place: Place, port: Port, route: Route, way: _Way,
    passed: set[tuple[Place, Port]],
) -> None:  # fmt: skip
    if (place, port) in passed or place not in switches:
        return
    passed.add((place, port))
    switch = switches[place]
    way = replace(way, switches=way.switches + 1)
    for slave, master in switch.circuits:
        if slave == port:
            _go_on(switches, place, master, route, way, not way.is_packet, passed)
    if route.id == CIRCUIT:
        return
    choice = next((c for mask, value, c in switch.rules.get(port, ()) if route.id & mask == value), None)
    if choice is None:
        return
    amsel = choice.owner
    assert isinstance(amsel, routing.AmselOp)
    masters = [(master, keeps) for master, choices, keeps in switch.masters if choice in choices]
    if masters:
        before = route.enter(Arbiter(place, amsel.arbiter.value.data), way.before, _port_number(port))
        way = replace(way, is_packet=True, before=before)
    for master, keeps in masters:
        _go_on(switches, place, master, route, way, keeps, passed)


def _go_on(
    switches: dict[Place, _Switch], place: Place, master: Port, route: Route, way: _Way, keeps: bool,
    passed: set[tuple[Place, Port]],
) -> None:  # fmt: skip
    bundle, number = master
    if bundle in ("DMA", "Core", *_CONTROL):
        sink = Channel(
            place, False, 0 if bundle in _CONTROL else number, _CONTROL[0] if bundle in _CONTROL else bundle
        )
        route.end(sink, keeps_header=keeps, switches=way.switches)
    elif bundle == "South" and place[1] == SHIM:
        leaving = switches[place].mux.get(("North", number), _MUX_IN.get(("North", number)))
        if leaving is not None and leaving[0] == "DMA":
            route.end(Channel(place, False, leaving[1]), keeps_header=keeps, switches=way.switches)
    elif bundle in _OPPOSITE:
        opposite, step = _OPPOSITE[bundle]
        other = place[0] + step[0], place[1] + step[1]
        _follow(switches, other, (opposite, number), route, way, passed)
