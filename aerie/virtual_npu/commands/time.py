"""`time`: how long a program will take on the board, by a model, and what limits it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.common.progress import working
from aerie.virtual_npu.commands import common
from aerie.virtual_npu.console import print_json, print_table, read_text

if TYPE_CHECKING:
    from aerie.virtual_npu.timing import LaunchPrediction, Parameters, Prediction
    from aerie.virtual_npu.timing.calibration import Calibration

_LAUNCHES = ("launch", "us", "4 of 5 within", "limited by", "share", "DDR MB", "GB/s", "GMAC")
_PARTS = ("launch", "part", "kind", "busy us", "of launch", "KB")
_CALIBRATED = ("program", "measured us", "before us", "after us", "error")
_PARAMETERS = ("parameter", "value", "unit", "range", "meaning", "source")
_BUSIEST = 6
"""Parts shown for each launch; --json has all."""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "time",
        help="how long a program will take on NPU2, by a model, and what limits it",
        description="Predicts the time of a program on NPU2 from its text, for each launch, core and "
        "channel, and what limits it: by a model with published parameters, or with those that --calibrate "
        "refitted to a board. We have measured none of it.",
        epilog="exit status: 0 predicted, 2 wrong input, or a program that the model cannot follow",
    )
    parser.add_argument("file", nargs="?", type=Path, help="MLIR text")
    parser.add_argument(
        "--clock", type=float, metavar="GHZ", help="clock of the array, 0.4 to 2.0 (default: 1.808)"
    )
    parser.add_argument("--parameters", action="store_true", help="print the parameters and their sources")
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="refit the parameters to the times that make test-npu measured on a board; takes minutes",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="with --calibrate: write the refitted parameters as JSON"
    )
    parser.add_argument(
        "--parameters-from", type=Path, metavar="FILE", help="predict with the parameters of such a file"
    )
    common.add_json(parser)
    parser.set_defaults(command=_time)


def _time(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.errors import VnpuUsageError
    from aerie.virtual_npu.timing import predict

    if options.calibrate:
        return _calibrate(options)
    if options.out:
        raise VnpuUsageError("--out says where --calibrate writes the parameters: add --calibrate FILE")
    parameters = _chosen_parameters(options)
    if options.parameters:
        _show_parameters(parameters, options.json)
    elif options.file is None:
        raise VnpuUsageError(
            "aerie vnpu time needs a program: give an MLIR file, or --parameters, or --calibrate FILE"
        )
    else:
        with working(f"predicting {options.file}"):
            prediction = predict(read_text(options.file), parameters, str(options.file))
        if options.json:
            print_json({"ok": True, "clock_ghz": parameters.clock_ghz, **prediction.to_json()})
        else:
            _show(prediction, f"{options.file} on npu2 at {parameters.clock_ghz:g} GHz")
    return 0


def _chosen_parameters(options: argparse.Namespace) -> Parameters:
    """The parameters of a file or of the table, with the clock that was asked for."""
    from aerie.virtual_npu.timing import DEFAULT
    from aerie.virtual_npu.timing.calibration import read_parameters

    chosen = read_parameters(options.parameters_from) if options.parameters_from else DEFAULT
    return chosen if options.clock is None else dataclasses.replace(chosen, clock_ghz=options.clock)


def _calibrate(options: argparse.Namespace) -> int:
    """Refit, print both tables, and write the parameters where --out says."""
    from aerie.virtual_npu.timing.calibration import calibrate, parameters_to_json, read_measured

    programs = read_measured(options.calibrate)
    if options.out:
        _write(options.out, "")  # what cannot be written is said before the minutes of the fit
    found = calibrate(programs, lambda line: print(line, file=sys.stderr, flush=True))
    if options.out:
        _write(options.out, json.dumps(parameters_to_json(found.parameters), indent=1) + "\n")
    if options.json:
        rows = [dataclasses.asdict(row) for row in found.rows]
        written = parameters_to_json(found.parameters)
        print_json({"ok": True, **written, "programs": rows, "left_out": dict(found.left_out)})
    else:
        _show_calibration(found)
    return 0


def _write(path: Path, text: str) -> None:
    from aerie.virtual_npu.errors import OptionError

    try:
        path.write_text(text)
    except OSError as error:
        raise OptionError(f"cannot write {path} ({error.strerror}); name another --out") from None


def _show_calibration(found: Calibration) -> None:
    rows = [
        (
            row.name,
            f"{row.measured_us:.1f}",
            f"{row.before_us:.1f}",
            f"{row.after_us:.1f}",
            f"{row.after_us / row.measured_us - 1:+.0%}",
        )
        for row in found.rows
    ]
    print_table("measured on the board, and predicted", _CALIBRATED, rows, "<>>>>", sys.stdout)
    moved = [(name, f"{before:g}", f"{after:g}") for name, (before, after) in found.changed.items()]
    print_table("parameters that moved", ("parameter", "before", "after"), moved, "<>>", sys.stdout)
    for name, reason in found.left_out.items():
        print(f"left out: {name}: {reason}")
    print(
        f"{len(found.rows)} programs for {len(dataclasses.fields(found.parameters))} parameters; the errors "
        "above are those of the fit, and others will be larger"
    )


def _show(prediction: Prediction, title: str) -> None:
    from aerie.virtual_npu.timing import NOTE

    print_table(title, _LAUNCHES, [_launch_row(one) for one in prediction.launches], "<>><>>>>", sys.stdout)
    parts = [row for launch in prediction.launches for row in _part_rows(launch)]
    print_table("the busiest parts", _PARTS, parts, "<<<>>>", sys.stdout)
    print(f"total {prediction.total_us:.1f} us: {NOTE}")


def _launch_row(launch: LaunchPrediction) -> tuple[str, ...]:
    share = launch.path_us[launch.limited_by] / launch.us
    rate = launch.ddr_bytes / launch.us / 1e3
    numbers = (f"{launch.ddr_bytes / 1e6:.2f}", f"{rate:.1f}", f"{launch.macs / 1e9:.3f}")
    sure = f"x {launch.error_factor:g}"
    return (launch.name, f"{launch.us:.1f}", sure, launch.limited_by, f"{share:.0%}", *numbers)


def _part_rows(launch: LaunchPrediction) -> list[tuple[str, ...]]:
    busiest = sorted(launch.parts, key=lambda part: -part.busy_us)[:_BUSIEST]
    return [
        (
            launch.name,
            part.name,
            part.kind,
            f"{part.busy_us:.1f}",
            f"{part.busy_us / launch.us:.0%}",
            f"{part.nbytes / 1e3:.1f}",
        )
        for part in busiest
    ]


def _show_parameters(parameters: Parameters, as_json: bool) -> None:
    table = parameters.describe()
    if as_json:
        print_json({"ok": True, "parameters": table})
        return
    rows = [
        (
            one["name"],
            f"{one['value']:g}",
            one["unit"],
            f"{one['low']:g} to {one['high']:g}",
            one["meaning"],
            one["source"],
        )
        for one in table
    ]
    print_table("parameters of the timing model", _PARAMETERS, rows, "<><<<<", sys.stdout)
