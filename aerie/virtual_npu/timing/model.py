"""`predict`: the time of a program on NPU2, from its text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aerie.air_dialect import AirParseError, parse
from aerie.air_dialect.index_constants import constant_int
from aerie.air_dialect.ops import LaunchOp
from aerie.air_dialect.verifiers import parent_ops
from aerie.device.errors import ParseError
from aerie.virtual_npu.timing.bodies import Bodies, TimingError
from aerie.virtual_npu.timing.events import LaunchEvents, launch_name
from aerie.virtual_npu.timing.parameters import DEFAULT, Parameters
from aerie.virtual_npu.timing.prediction import LaunchPrediction, PartPrediction, Prediction
from aerie.virtual_npu.timing.replay import Graph, Replay

EVENTS_ENOUGH = 30_000
MIN_POINTS = 2
MAX_CYCLES = 1e18


class TimedProgram:
    """A program that is parsed once, to be predicted with several sets of parameters.

    text: MLIR of the AIR dialect, as `aircc` takes it. filename names it in messages. events_enough: with so
    many events replayed, the other points of a launch are extrapolated. Raises ParseError for text that does
    not parse, TimingError for a program without a launch, or with one that the host starts in a loop.
    """

    def __init__(self, text: str, filename: str = "<input>", events_enough: int = EVENTS_ENOUGH) -> None:
        try:
            self._module = parse(text, filename, check_loops=True)
        except AirParseError as error:
            raise ParseError(str(error)) from error
        self._events_enough = events_enough
        self._launches = [op for op in self._module.walk() if isinstance(op, LaunchOp)]
        if not self._launches:
            raise TimingError(
                f"{filename} has no air.launch, so there is nothing to time: give a program before it is "
                "lowered"
            )
        for launch in self._launches:
            _check_runs_once(launch)
        self._graphs: dict[bool, list[LaunchGraph]] = {}

    def predict(
        self, parameters: Parameters = DEFAULT, dispatched: bool = True, loads: bool | None = None
    ) -> Prediction:
        """The predicted time of one execution, launch by launch. The events of a launch are found once, and
        then replayed.

        dispatched: the host starts the program with its first launch; otherwise the launches follow others.
        loads: each launch loads its design, as launches of an ELF do. None: if there are several, since they
        replace each other's. Raises TimingError for a program that the model cannot follow.
        """
        loads = len(self._launches) > 1 if loads is None else loads
        if loads not in self._graphs:
            bodies, enough = Bodies(self._module), self._events_enough
            self._graphs[loads] = [LaunchGraph(each, bodies, enough, loads) for each in self._launches]
        graphs = self._graphs[loads]
        first = graphs[0] if dispatched else None
        return Prediction(tuple(graph.predict(parameters, graph is first) for graph in graphs))


def predict(text: str, parameters: Parameters = DEFAULT, filename: str = "<input>") -> Prediction:
    """The predicted time of one execution of a program. Raises as TimedProgram and its `predict`."""
    return TimedProgram(text, filename).predict(parameters)


def _check_runs_once(launch: LaunchOp) -> None:
    """Raises TimingError for a launch that the host starts in a loop or under a condition."""
    around = next((op for op in parent_ops(launch) if op.name.startswith(("scf.", "affine."))), None)
    if around is not None:
        raise TimingError(
            f"launch {launch_name(launch)} is inside {around.name}, and the timing model takes each launch "
            "once: put the iterations in the launch's grid"
        )


class LaunchGraph:
    """The events of some points of a launch, to be replayed; the other points are extrapolated.

    Raises TimingError for a launch that the model cannot follow.
    """

    def __init__(self, launch: LaunchOp, bodies: Bodies, events_enough: int, loads: bool) -> None:
        self._loads = loads
        sizes = [constant_int(size) or 1 for size in launch.sizes]
        self._name, self._points = launch_name(launch), math.prod(sizes)
        events = LaunchEvents(launch, bodies, events_enough, waits=loads)
        self._chosen = _walk_points(events, sizes, self._points, events_enough)
        self._locks = events.ports.locks()
        events.ports.limit_shim()
        self._ddr_bytes, self._macs, self._scale = events.ddr_bytes, events.macs, events.scale
        self._graph = Graph(
            events.events, [*events.ports.resources.values()], (events.halfway, events.walked)
        )

    def predict(self, parameters: Parameters, is_first: bool) -> LaunchPrediction:
        """The launch with these parameters. is_first: the host starts the program with it."""
        start_us = is_first * parameters.dispatch_us + self._loads * self._locks * parameters.load_us
        result = self._graph.replay(parameters)
        if result.done < len(self._graph):
            raise TimingError(
                f"launch {self._name}: {len(self._graph) - result.done} of {len(self._graph)} "
                "events wait for each other, so the program would hang: `aerie vnpu run` shows where"
            )
        if not result.cycles * self._points < MAX_CYCLES:
            raise TimingError(
                f"launch {self._name} takes more than {MAX_CYCLES:g} cycles, which is years: look at "
                "the bounds of its loops"
            )
        return self._summary(result, parameters, start_us)

    def _longer(self, result: Replay) -> float:
        """How many times as long as the replay the launch takes: iterations that were not walked take as long
        as those of the second half."""
        if self._scale == 1:
            return 1.0
        halfway, walked = result.marks
        return 1 + (self._scale - 1) * 2 * (walked - halfway) / result.cycles

    def _summary(self, result: Replay, parameters: Parameters, start_us: float) -> LaunchPrediction:
        scale = self._points / self._chosen * self._scale
        us = self._points / self._chosen / (parameters.clock_ghz * 1e3)
        longer = self._longer(result)
        path = {kind: cycles * longer * us for kind, cycles in result.path.items() if cycles > 0}
        path["dispatch"] = path.get("dispatch", 0.0) + start_us
        parts = [
            PartPrediction(one.name, one.kind, busy * self._scale * us, int(nbytes * scale))
            for one, busy, nbytes in zip(self._graph.resources, result.busy, result.nbytes, strict=True)
        ]
        return LaunchPrediction(
            name=self._name,
            us=result.cycles * longer * us + start_us,
            limited_by=max(path, key=lambda kind: path[kind]),
            path_us=dict(sorted(path.items(), key=lambda item: -item[1])),
            parts=tuple(parts),
            ddr_bytes=round(self._ddr_bytes * self._points / self._chosen),
            macs=round(self._macs * self._points / self._chosen),
            points=self._points,
            simulated_points=self._chosen,
        )


def _walk_points(events: LaunchEvents, sizes: Sequence[int], points: int, events_enough: int) -> int:
    """Walk enough points of a launch, spread evenly over its grid; returns how many."""
    events.walk_point(_ids(sizes, 0))
    each = max(1, len(events.events))
    chosen = min(points, max(MIN_POINTS, events_enough // each))
    for i in range(1, chosen):
        events.walk_point(_ids(sizes, i * points // chosen))
    return chosen


def _ids(sizes: Sequence[int], number: int) -> list[int]:
    ids = []
    for size in reversed(sizes):
        ids.append(number % size)
        number //= size
    return ids[::-1]
