"""The timing model as a function of a measurement: its program is built once, and then predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache

from aerie.virtual_npu.timing import DEFAULT, Parameters, Prediction
from aerie.virtual_npu.timing.model import EVENTS_ENOUGH, TimedProgram
from benchmarks.board_times.measurements import MICROSECONDS, Measurement
from benchmarks.board_times.programs import BoardProgram, NotBuildableError, build_program

CLOCK = "clock_ghz"
BOXES: Mapping[str, Mapping[str, float]] = {"STX-EMB": {"ddr_gb_s": 39.3, "dispatch_us": 140.0}}
"""Parameters of a box that differ from the table's, where its owner published a law of them. STX-EMB, under
Windows: the slope of streaming (vegah/LLMNpuTest), and the intercept of fits of GEMMs
(vegah/Npu-Embeddings), which its owner made from GEMMs that are partly test rows here.
"""

FITTED = (
    *("text_product_macs", "vector_memory_cycles", "vector_arithmetic_cycles", "loop_cycles", "call_cycles"),
    *("ddr_burst_bytes", "dispatch_us"),
)
"""The parameters that a fit moves: what no source measured by itself. With all of them free, a fit of 45 rows
trades one for another (a task of a shim channel for a launch's dispatch), and fits rows of the test less."""


class TimingModel:
    """Predicts measurements. Programs, and what cannot be built, are kept between calls.

    events_enough: as of `TimedProgram`; fewer are faster, and a large launch is extrapolated from fewer
    points.
    """

    def __init__(self, events_enough: int = EVENTS_ENOUGH) -> None:
        self._events_enough = events_enough
        self._programs: dict[str, BoardProgram | NotBuildableError] = {}

    def program(self, row: Measurement) -> BoardProgram | NotBuildableError:
        """The row's program, or why there is none."""
        if row.name not in self._programs:
            try:
                self._programs[row.name] = build_program(row)
            except NotBuildableError as error:
                self._programs[row.name] = error
        return self._programs[row.name]

    def prediction(self, row: Measurement, parameters: Parameters = DEFAULT) -> Prediction | None:
        """The model's prediction; None for a row without a program, or in another unit."""
        program = self.program(row)
        if isinstance(program, NotBuildableError) or row.unit != MICROSECONDS:
            return None
        own = replace(parameters, **BOXES.get(row.box, {}))
        loads = True if row.is_from_elf else None
        return _predict(program.text, own, self._events_enough, not row.is_one_of_several, loads)

    def __call__(self, row: Measurement, values: Mapping[str, float]) -> float | None:
        """Microseconds with these values of parameters; None where `prediction` is."""
        prediction = self.prediction(row, replace(DEFAULT, **values))
        return prediction.total_us if prediction else None


@cache
def _predict(
    text: str, parameters: Parameters, events_enough: int, dispatched: bool, loads: bool | None
) -> Prediction:
    return _timed(text, events_enough).predict(parameters, dispatched, loads)


@cache
def _timed(text: str, events_enough: int) -> TimedProgram:
    return TimedProgram(text, events_enough=events_enough)


def start_values() -> dict[str, float]:
    """The parameters as the model has them."""
    return {each.name: getattr(DEFAULT, each.name) for each in fields(Parameters)}
