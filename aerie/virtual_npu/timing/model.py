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
from aerie.virtual_npu.timing.replay import Replay, replay

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

    def predict(self, parameters: Parameters = DEFAULT) -> Prediction:
        """The predicted time of one execution, launch by launch. Raises TimingError for a program that the
        model cannot follow."""
        bodies = Bodies(self._module, parameters)
        launches = enumerate(self._launches)
        return Prediction(
            tuple(_launch(launch, bodies, i == 0, self._events_enough) for i, launch in launches)
        )


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


def _launch(launch: LaunchOp, bodies: Bodies, is_first: bool, events_enough: int) -> LaunchPrediction:
    sizes = [constant_int(size) or 1 for size in launch.sizes]
    points = math.prod(sizes)
    events = LaunchEvents(launch, bodies)
    chosen = _walk_points(events, sizes, points, events_enough)
    events.limit_shim()
    result = replay(events.events, bodies.parameters)
    if result.done < len(events.events):
        raise TimingError(
            f"launch {launch_name(launch)}: {len(events.events) - result.done} of {len(events.events)} "
            "events wait for each other, so the program would hang: `aerie vnpu run` shows where"
        )
    if not result.cycles * points < MAX_CYCLES:
        raise TimingError(
            f"launch {launch_name(launch)} takes more than {MAX_CYCLES:g} cycles, which is years: look at "
            "the bounds of its loops"
        )
    return _summary(launch, events, result, (points, chosen), is_first)


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


def _summary(
    launch: LaunchOp, events: LaunchEvents, result: Replay, counts: tuple[int, int], is_first: bool
) -> LaunchPrediction:
    parameters = events.parameters
    points, chosen = counts
    scale = points / chosen
    us = scale / (parameters.clock_ghz * 1e3)
    start = parameters.dispatch_us if is_first else parameters.launch_us
    path = {kind: cycles * us for kind, cycles in result.path.items() if cycles > 0}
    path["dispatch"] = start
    parts = [
        PartPrediction(one.name, one.kind, one.busy * us, int(one.nbytes * scale))
        for one in events.resources.values()
    ]
    return LaunchPrediction(
        name=launch_name(launch),
        us=result.cycles * us + start,
        limited_by=max(path, key=lambda kind: path[kind]),
        path_us=dict(sorted(path.items(), key=lambda item: -item[1])),
        parts=tuple(parts),
        ddr_bytes=int(events.ddr_bytes * scale),
        macs=int(events.macs * scale),
        points=points,
        simulated_points=chosen,
    )
