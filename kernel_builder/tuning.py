"""Chooses a kernel's tiles and cores by the time that the timing model predicts for the device.

Every schedule that the kernel lists (`KernelSpec.schedules`) is built and timed; then the static check looks
at the fastest, and the first that it accepts is the choice. No schedule changes a bit of a result. What was
found is kept in the store of programs, under the hash of all that it depends on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aerie.common.fingerprint import hash_key, package_digest
from aerie.common.store import Store, programs_store
from aerie.device import check
from aerie.device.npu2 import NPU2
from aerie.kernel_builder.arguments import IllegalShapeError, KernelBuilderError
from aerie.kernel_builder.spec import KernelModule, KernelSpec, Parameters
from aerie.virtual_npu.timing import DEFAULT, NOTE, TimingError
from aerie.virtual_npu.timing.model import TimedProgram

EVENTS_ENOUGH = 3_000
"""Events of a launch that are replayed: the points of a launch are alike, and forms are compared."""
LEAST_GAIN = 0.01
"""A form that is faster by less is no better: the model's own steps are as large."""
ROOMS = ("air_dialect", "device", "virtual_npu", "kernel_builder")
"""Whose code a kept result depends on."""


class NothingToTuneError(KernelBuilderError):
    """A kernel has no schedules, or the parameters leave none open."""


@dataclass(frozen=True)
class TimedSchedule:
    """One schedule with its predicted time.

    schedule: the parameters that fix it; empty for what the kernel chooses by itself. us: microseconds.
    limited_by: a word of `timing.prediction.LIMITS`. tflop_s: 10**12 operations in a second. ddr_gb_s: bytes
    to and from DDR, in 10**9 a second. misfit: why it cannot be built for the device, as far as it was
    checked, or ''.
    """

    schedule: Mapping[str, int]
    us: float
    limited_by: str
    error_factor: float
    tflop_s: float
    ddr_gb_s: float
    misfit: str = ""


@dataclass(frozen=True)
class Tuning:
    """What was found for one kernel.

    default: what the kernel chooses by itself. best: the fastest that fits the device, the default unless one
    is faster by LEAST_GAIN. timed: all forms, fastest first. refused: how many the kernel does not build.
    """

    kernel: str
    parameters: Parameters
    default: TimedSchedule
    best: TimedSchedule
    timed: tuple[TimedSchedule, ...]
    refused: int

    @property
    def gain(self) -> float:
        """How many times as fast the choice is as the default."""
        return self.default.us / self.best.us

    def to_json(self) -> dict[str, Any]:
        """The tuning as JSON values."""
        return {"note": NOTE, "measured": False, "device": NPU2.name, **asdict(self)}


def tune(spec: KernelSpec, parameters: Parameters, report: Callable[[str], None]) -> Tuning:
    """The kept result for these parameters, or a new one. Parameters that are given stay as they are.

    report: told which form is being timed. Raises NothingToTuneError, IllegalShapeError for a shape that the
    kernel refuses, and TimingError for one that the model cannot follow.
    """
    schedules = list(open_schedules(spec, parameters))
    store, name = programs_store(), f"tuned-{spec.name}-{_key(spec, parameters)}.json"
    if kept := store and store.read(name):
        return _from_json(json.loads(kept))
    found = _search(spec, parameters, schedules, report)
    if store:
        _keep(store, name, found)
    return found


def open_schedules(spec: KernelSpec, parameters: Parameters) -> Iterator[dict[str, int]]:
    """The kernel's schedules that agree with what is given. Raises NothingToTuneError if there is none."""
    if spec.schedules is None:
        raise NothingToTuneError(
            f"{spec.name} has one schedule for each shape, so there is nothing to choose; "
            "tune a kernel with tiles, such as gemm"
        )
    spec.build(**parameters)  # a shape that is illegal is refused here, in the kernel's own words
    found = False
    for schedule in spec.schedules(parameters):
        if all(parameters.get(name) in (None, value) for name, value in schedule.items()):
            found = True
            yield schedule
    if not found:
        raise NothingToTuneError(
            f"the parameters of {spec.name} leave no schedule open; leave out those of tiles and cores"
        )


def _search(
    spec: KernelSpec,
    parameters: Parameters,
    schedules: list[dict[str, int]],
    report: Callable[[str], None],
) -> Tuning:
    report(f"{spec.name}: what it chooses by itself")
    module = spec.build(**parameters)
    default, seen, refused = _timed({}, module), {module.text}, 0
    timed = [default]
    for number, schedule in enumerate(schedules, 1):
        least = min(each.us for each in timed)
        report(f"{spec.name}: form {number} of {len(schedules)}, the fastest takes {least:.1f} us")
        try:
            module = spec.build(**{**parameters, **schedule})
            if module.text not in seen:
                seen.add(module.text)
                timed.append(_timed(schedule, module))
        except (IllegalShapeError, TimingError):
            refused += 1
    timed.sort(key=lambda each: each.us)
    report(f"{spec.name}: whether the fastest fit the device")
    best, checked = _first_that_fits(spec, parameters, timed, default)
    return Tuning(spec.name, dict(parameters), default, best, tuple(checked), refused)


def _timed(schedule: Mapping[str, int], module: KernelModule) -> TimedSchedule:
    prediction = TimedProgram(module.text, module.name, EVENTS_ENOUGH).predict()
    us, launches = prediction.total_us, prediction.launches
    return TimedSchedule(
        schedule=schedule,
        us=round(us, 1),
        limited_by=prediction.limited_by,
        error_factor=max(launch.error_factor for launch in launches),
        tflop_s=round(sum(2 * launch.macs for launch in launches) / us / 1e6, 3),
        ddr_gb_s=round(sum(launch.ddr_bytes for launch in launches) / us / 1e3, 2),
    )


def _first_that_fits(
    spec: KernelSpec, parameters: Parameters, timed: list[TimedSchedule], default: TimedSchedule
) -> tuple[TimedSchedule, list[TimedSchedule]]:
    """The fastest form that the static check accepts, or the default; and all forms, with what was found."""
    checked = list(timed)
    for i, each in enumerate(timed):
        if each is default or each.us * (1 + LEAST_GAIN) > default.us:
            break
        faults = check(spec.build(**{**parameters, **each.schedule}).module, NPU2).faults
        if not faults:
            return each, checked
        checked[i] = replace(each, misfit=str(faults[0]))
    return default, checked


# ---- kept results ----


def _key(spec: KernelSpec, parameters: Parameters) -> str:
    given = {
        "kernel": spec.name,
        "parameters": json.dumps(parameters, sort_keys=True),
        "model": json.dumps(asdict(DEFAULT)),
    }
    return hash_key({**given, **{room: package_digest(room) for room in ROOMS}})


def _keep(store: Store, name: str, found: Tuning) -> None:
    def write(work: Path) -> Path:
        path = work / name
        path.write_text(json.dumps(found.to_json(), allow_nan=False))
        return path

    with suppress(OSError):  # what cannot be kept is found again
        store.get_or_make(name, write)


def _from_json(record: Mapping[str, Any]) -> Tuning:
    default, best = (TimedSchedule(**record[name]) for name in ("default", "best"))
    timed = tuple(TimedSchedule(**each) for each in record["timed"])
    return Tuning(record["kernel"], record["parameters"], default, best, timed, record["refused"])
