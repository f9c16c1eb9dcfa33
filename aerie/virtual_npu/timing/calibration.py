"""Refits the parameters to times that were measured on one board: `aerie vnpu time --calibrate FILE`.

`make test-npu` writes the file: each program's text with its measured times. The refitted parameters are
those of that board, within the ranges that the published sources allow.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from aerie.common.errors import ProgramError
from aerie.virtual_npu.errors import OptionError
from aerie.virtual_npu.timing.fit import fit, parameter_ranges
from aerie.virtual_npu.timing.model import TimedProgram
from aerie.virtual_npu.timing.parameters import DEFAULT, Parameters

FORMAT, MEASURED_FORMAT = 1, 2
"""The versions of the files that are read here: of parameters, and of measured times."""
MEASURED_ON = "npu"
RIGHT = ("same", "near")
"""How a program ended whose results were those of the virtual NPU; others say nothing of its time."""
MAX_FILE_BYTES = 256 * 2**20
FIT_EVENTS = 3_000
"""Events of a launch that are replayed in a fit, which predicts each program hundreds of times."""


@dataclass(frozen=True)
class MeasuredProgram:
    """A program's text, and the median of its measured times in microseconds.

    status: how it ended; what is not in RIGHT is left out of a fit.
    """

    name: str
    text: str
    value: float
    status: str = RIGHT[0]

    @property
    def series(self) -> str:
        return self.name


@dataclass(frozen=True)
class CalibratedRow:
    """A program's measured time, and its predictions before and after the fit, in microseconds."""

    name: str
    measured_us: float
    before_us: float
    after_us: float


@dataclass(frozen=True)
class Calibration:
    """The refitted parameters, the programs that they were fitted to, and those that were left out, by name
    with the reason: their results were wrong, or the model cannot follow them."""

    parameters: Parameters
    rows: tuple[CalibratedRow, ...]
    left_out: Mapping[str, str]

    @property
    def changed(self) -> dict[str, tuple[float, float]]:
        """Parameters that moved: the value before and after."""
        pairs = {
            f.name: (getattr(DEFAULT, f.name), getattr(self.parameters, f.name)) for f in fields(DEFAULT)
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def read_measured(path: Path) -> list[MeasuredProgram]:
    """The programs of a file that `make test-npu` wrote. A last line that a crash cut short is no program.
    Raises OptionError for anything else."""
    head, *lines = _read(path).splitlines(keepends=True) or [b""]
    about = _parse(head, path, MEASURED_FORMAT)
    if about.get("backend") != MEASURED_ON:
        raise OptionError(
            f"{path} has times of the backend {str(about.get('backend'))[:40]!r}, not of {MEASURED_ON!r}; "
            "only times of a board say anything of a board: give the file that make test-npu wrote"
        )
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        raise OptionError(f"{path} has no programs: give the file that make test-npu wrote")
    return [_measured(_load(line, path), number, path) for number, line in enumerate(whole)]


def _measured(one: Any, number: int, path: Path) -> MeasuredProgram:
    entry = one if isinstance(one, dict) else {}
    name, text, times = (entry.get(key) for key in ("name", "text", "measured_us"))
    is_right = (
        isinstance(name, str)
        and isinstance(text, str)
        and isinstance(times, list)
        and bool(times)
        and all(isinstance(us, int | float) and math.isfinite(us) and us > 0 for us in times)
    )
    if not is_right:
        raise OptionError(
            f"{path}: program {number} is no name, text and measured_us, a list of positive numbers: give "
            "the file as make test-npu wrote it"
        )
    status = str(entry.get("status", RIGHT[0]))[:40]
    return MeasuredProgram(str(name), str(text), statistics.median(times or ()), status)


def calibrate(programs: Sequence[MeasuredProgram], report: Callable[[str], None]) -> Calibration:
    """Refit all parameters. Raises OptionError if no program has right results that the model can follow."""
    timed: dict[str, TimedProgram] = {}
    left_out: dict[str, str] = {}
    for one in programs:
        if one.status not in RIGHT:
            left_out[one.name] = f"its results were wrong ({one.status}), so its time is that of a mistake"
            continue
        try:
            program = TimedProgram(one.text, one.name, FIT_EVENTS)
            program.predict()
            timed[one.name] = program
        except ProgramError as error:
            left_out[one.name] = str(error)
    rows = [one for one in programs if one.name in timed]
    if not rows:
        reason = next(iter(left_out.values()))
        raise OptionError(f"none of these programs can be fitted to; the first: {reason}")

    def predict(row: MeasuredProgram, values: Mapping[str, float]) -> float:
        return timed[row.name].predict(replace(DEFAULT, **values)).total_us

    start = {each.name: getattr(DEFAULT, each.name) for each in fields(DEFAULT)}
    values, _ = fit(rows, predict, start, parameter_ranges(), report)
    compared = (CalibratedRow(row.name, row.value, predict(row, start), predict(row, values)) for row in rows)
    return Calibration(replace(DEFAULT, **values), tuple(compared), left_out)


def parameters_to_json(parameters: Parameters) -> dict[str, object]:
    """What `read_parameters` reads."""
    values = {each.name: getattr(parameters, each.name) for each in fields(parameters)}
    return {"format": FORMAT, "parameters": values}


def read_parameters(path: Path) -> Parameters:
    """The parameters of a file that --out wrote. Raises OptionError for anything else, and for a value
    outside its range."""
    values = _parse(_read(path), path, FORMAT).get("parameters")
    known = {each.name for each in fields(Parameters)}
    if not isinstance(values, dict) or not values:
        raise OptionError(f"{path} has no parameters: give a file that --calibrate ... --out FILE wrote")
    for name, value in values.items():
        if name not in known:
            raise OptionError(
                f"{path}: {name[:40]!r} is no parameter; aerie vnpu time --parameters lists them"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OptionError(f"{path}: {name} is {str(value)[:40]!r}: give a number")
    return replace(DEFAULT, **values)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise OptionError(f"{path} has more than {MAX_FILE_BYTES} bytes, so it is none of ours")
        return path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}): name another file") from None


def _load(text: bytes, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(f"{path} is no JSON: give a file that Aerie wrote") from None


def _parse(text: bytes, path: Path, version: int) -> dict[str, Any]:
    """An object of this version."""
    record = _load(text, path)
    if not isinstance(record, dict) or record.get("format") != version:
        found = record.get("format") if isinstance(record, dict) else None
        raise OptionError(
            f"{path} has format {str(found)[:40]!r}, and {version} is what is read here: write the file anew "
            "with this version"
        )
    return record
