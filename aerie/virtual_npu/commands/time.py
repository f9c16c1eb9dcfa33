"""`time`: how long a program will take on the board, by a model, and what limits it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.common.progress import working
from aerie.virtual_npu.commands import common
from aerie.virtual_npu.console import print_json, print_table, read_text

if TYPE_CHECKING:
    from aerie.virtual_npu.timing import LaunchPrediction, Parameters, Prediction

_LAUNCHES = ("launch", "us", "limited by", "share", "DDR MB", "GB/s", "GMAC")
_PARTS = ("launch", "part", "kind", "busy us", "of launch", "KB")
_PARAMETERS = ("parameter", "value", "unit", "range", "meaning", "source")
_BUSIEST = 6
"""Parts shown for each launch; --json has all."""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "time",
        help="how long a program will take on NPU2, by a model, and what limits it",
        description="Predicts the time of a program on NPU2 from its text, for each launch, core and "
        "channel, and what limits it: by a model with published parameters. We have measured none of it.",
        epilog="exit status: 0 predicted, 2 wrong input, or a program that the model cannot follow",
    )
    parser.add_argument("file", nargs="?", type=Path, help="MLIR text")
    parser.add_argument(
        "--clock", type=float, metavar="GHZ", help="clock of the array, 0.4 to 2.0 (default: 1.808)"
    )
    parser.add_argument("--parameters", action="store_true", help="print the parameters and their sources")
    common.add_json(parser)
    parser.set_defaults(command=_time)


def _time(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.errors import VnpuUsageError
    from aerie.virtual_npu.timing import DEFAULT, predict

    clock = DEFAULT.clock_ghz if options.clock is None else options.clock
    parameters = dataclasses.replace(DEFAULT, clock_ghz=clock)
    if options.parameters:
        _show_parameters(parameters, options.json)
    elif options.file is None:
        raise VnpuUsageError("aerie vnpu time needs a program: give an MLIR file, or --parameters")
    else:
        with working(f"predicting {options.file}"):
            prediction = predict(read_text(options.file), parameters, str(options.file))
        if options.json:
            print_json({"ok": True, "clock_ghz": clock, **prediction.to_json()})
        else:
            _show(prediction, f"{options.file} on npu2 at {clock:g} GHz")
    return 0


def _show(prediction: Prediction, title: str) -> None:
    from aerie.virtual_npu.timing import NOTE

    print_table(title, _LAUNCHES, [_launch_row(one) for one in prediction.launches], "<><>>>>", sys.stdout)
    parts = [row for launch in prediction.launches for row in _part_rows(launch)]
    print_table("the busiest parts", _PARTS, parts, "<<<>>>", sys.stdout)
    print(f"total {prediction.total_us:.1f} us: {NOTE}")


def _launch_row(launch: LaunchPrediction) -> tuple[str, ...]:
    share = launch.path_us[launch.limited_by] / launch.us
    rate = launch.ddr_bytes / launch.us / 1e3
    numbers = (f"{launch.ddr_bytes / 1e6:.2f}", f"{rate:.1f}", f"{launch.macs / 1e9:.3f}")
    return (launch.name, f"{launch.us:.1f}", launch.limited_by, f"{share:.0%}", *numbers)


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
