"""`python -m benchmarks.board_times`: predictions of the timing model beside what others measured on NPU2.

Nobody of this project has run a board. Every predicted time is a prediction, and every measured one is from
the source that measurements.tsv names.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from aerie.cli.command_line import CommandParser, run_command, setup_process
from aerie.common.errors import UserError
from aerie.common.text_tables import compact_table, print_tables
from aerie.virtual_npu.timing import DEFAULT
from aerie.virtual_npu.timing.calibration import FIT_EVENTS
from aerie.virtual_npu.timing.fit import Predict, fit, parameter_ranges
from aerie.virtual_npu.timing.model import EVENTS_ENOUGH
from benchmarks.board_times import baselines, models
from benchmarks.board_times.errors import Predicted, Summary, factor_of, summarize
from benchmarks.board_times.limits import limits_table
from benchmarks.board_times.measurements import (
    FIT,
    LEFT_OUT,
    MICROSECONDS,
    TEST,
    Measurement,
    fit_rows,
    read_measurements,
)
from benchmarks.board_times.plot import scatter
from benchmarks.board_times.programs import NotBuildableError

CLOCKS_GHZ = tuple(round(1.2 + 0.05 * step, 2) for step in range(17))
"""What a box's clock is refitted among: 1.2 to 2.0 GHz."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = CommandParser(
        prog="python -m benchmarks.board_times",
        description="Compare the timing model with times that others measured on NPU2; none is by us.",
    )
    parser.add_argument(
        "--fit", action="store_true", help="refit the parameters from the fit rows first; takes minutes"
    )
    parser.add_argument(
        "--class", dest="kernels", action="append", help="only this class; may be given again"
    )
    parser.add_argument(
        "--programs",
        action="store_true",
        help="print what limits each launch of a token and of a prefill of Llama-3.2-1B, in Markdown",
    )
    parser.add_argument("--rows", action="store_true", help="also print each row")
    parser.add_argument(
        "--clock", action="store_true", help="also refit the clock of each box, on its test rows"
    )
    parser.add_argument(
        "--events",
        type=int,
        default=EVENTS_ENOUGH,
        metavar="N",
        help="events of a launch that are replayed (default: %(default)s); with fewer, a large launch is "
        "extrapolated from fewer points, in less time",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="write a plot of predicted over measured"
    )
    parser.set_defaults(command=compare)
    return parser


def compare(arguments: argparse.Namespace) -> int:
    """Predict every row that can be built, and print the errors by class."""
    if arguments.programs:
        print(limits_table())
        return 0
    rows = choose(read_measurements(), arguments.kernels)
    model, values = models.TimingModel(arguments.events), models.start_values()
    if arguments.fit:
        values, _ = fit(
            fit_rows(rows),
            models.TimingModel(FIT_EVENTS),
            values,
            [each for each in parameter_ranges() if each.name in models.FITTED],
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    predictors = {"model": lambda row: model(row, values), **all_baselines(rows)}
    if arguments.clock:
        predictors["model, clock refitted"] = refit_clock(rows, model, values)
    predictions = {name: predict_rows(rows, predictor) for name, predictor in predictors.items()}
    if arguments.plot:
        write_plot(arguments.plot, predictions["model"])
    unpredicted = {
        row.name: str(why) for row in rows if isinstance(why := model.program(row), NotBuildableError)
    }
    if arguments.json:
        print(json.dumps(to_json(predictions, values, unpredicted), indent=2))
        return 0
    print_report(Console(), predictions, unpredicted, arguments.rows)
    print_tables(Console(), limit_table(predictions["model"], model, values))
    if arguments.fit:
        print_parameters(values)
    return 0


def choose(rows: Iterable[Measurement], kernels: Sequence[str] | None) -> list[Measurement]:
    """Rows of these classes that are not left out. Raises UserError for a class that is unknown."""
    usable = [row for row in rows if row.role != LEFT_OUT]
    classes = sorted({row.kernel for row in usable})
    for kernel in kernels or ():
        if kernel not in classes:
            raise UserError(f"--class {kernel} is none of {', '.join(classes)}")
    return [row for row in usable if not kernels or row.kernel in kernels]


def all_baselines(rows: Sequence[Measurement]) -> dict[str, Callable[[Measurement], float | None]]:
    """What the model is compared with, by the heading of its column."""
    return {
        "bytes/bandwidth": baselines.bytes_over_bandwidth,
        "operations/peak": baselines.operations_over_peak,
        "affine fit": baselines.AffineFits(rows),
    }


def predict_rows(
    rows: Iterable[Measurement], predictor: Callable[[Measurement], float | None]
) -> list[Predicted]:
    """The rows in microseconds of which the predictor says anything."""
    pairs = ((row, predictor(row)) for row in rows if row.unit == MICROSECONDS)
    return [Predicted(row, predicted) for row, predicted in pairs if predicted]


def refit_clock(
    rows: Sequence[Measurement], model: Predict[Measurement], values: dict[str, float]
) -> Callable[[Measurement], float | None]:
    """The model with the clock of each box that suits its test rows best: one number for a box."""
    by_box = defaultdict(list)
    for row in rows:
        if row.role == TEST and row.unit == MICROSECONDS:
            by_box[row.box].append(row)

    def with_clock(ghz: float) -> Callable[[Measurement], float | None]:
        return lambda row: model(row, {**values, models.CLOCK: ghz})

    def median_error(chosen: Sequence[Measurement], ghz: float) -> float:
        predictions = predict_rows(chosen, with_clock(ghz))
        return summarize(predictions).median_error if predictions else 0.0

    clocks = {box: min(CLOCKS_GHZ, key=lambda ghz: median_error(own, ghz)) for box, own in by_box.items()}
    return lambda row: model(row, {**values, models.CLOCK: clocks.get(row.box, values[models.CLOCK])})


# ---- reports ----


def groups(predictions: Iterable[Predicted]) -> dict[tuple[str, str], list[Predicted]]:
    """Predictions by role and class; the class `all` has them all."""
    found = defaultdict(list)
    for each in predictions:
        found[each.row.role, each.row.kernel].append(each)
        found[each.row.role, "all"].append(each)
    return dict(sorted(found.items(), key=lambda item: (item[0][0], item[0][1] == "all", item[0][1])))


def error_table(predictor: str, predictions: Sequence[Predicted], role: str) -> Table:
    """Errors by class of one predictor, for rows of one role."""
    table = compact_table(
        f"{predictor}, {role} rows",
        ("class",),
        ("rows", "median", "within 30 %", "ordered pairs", "worst"),
        ("worst row",),
    )
    for (of_role, kernel), chosen in groups(predictions).items():
        if of_role == role:
            table.add_row(kernel, *cells(summarize(chosen)))
    return table


def cells(summary: Summary) -> list[str]:
    """The figures of a summary as they stand in a table."""
    return [
        str(summary.rows),
        f"{summary.median_error:.0%}",
        f"{summary.near / summary.rows:.0%}",
        f"{summary.ordered}/{summary.pairs}" if summary.pairs else "",
        f"{summary.worst.error:+.0%}",
        summary.worst.row.name,
    ]


def print_report(
    console: Console, predictions: dict[str, list[Predicted]], unpredicted: dict[str, str], each_row: bool
) -> None:
    """Print the errors of each predictor by class and role, and what has no prediction."""
    console.print("Predicted by a model; measured by others, never by us.", highlight=False)
    for predictor, chosen in predictions.items():
        roles = (FIT, TEST) if predictor in ("model", "affine fit") else (TEST,)
        print_tables(console, *(error_table(predictor, chosen, role) for role in roles))
    if each_row:
        table = compact_table("rows", ("row",), ("role", "measured µs", "predicted µs", "error"))
        for each in predictions["model"]:
            figures = (each.row.role, f"{each.row.value:g}", f"{each.predicted_us:.0f}", f"{each.error:+.0%}")
            table.add_row(each.row.name, *figures)
        print_tables(console, table)
    reasons: defaultdict[str, int] = defaultdict(int)
    for why in unpredicted.values():
        reasons[why] += 1
    for why, count in sorted(reasons.items(), key=lambda item: -item[1]):
        console.print(f"{count} rows without a prediction: {why}", highlight=False)


def limit_table(
    predictions: Sequence[Predicted], model: models.TimingModel, values: dict[str, float]
) -> Table:
    """Of test rows, by what limits them: the factors that `timing.prediction.ERROR_FACTORS` repeats."""
    by_limit = defaultdict(list)
    for each in predictions:
        if each.row.role == TEST:
            prediction = model.prediction(each.row, replace(DEFAULT, **values))
            assert prediction is not None  # there is a predicted time
            by_limit[prediction.limited_by].append(each)
            by_limit["all"].append(each)
    table = compact_table("model, test rows", ("limited by",), ("rows", "half within", "4 of 5 within"))
    for limit, chosen in by_limit.items():
        factors = (f"x {factor_of(chosen, share):.2f}" for share in (0.5, 0.8))
        table.add_row(limit, str(len(chosen)), *factors)
    return table


def print_parameters(values: dict[str, float]) -> None:
    """Print the fitted parameters, each beside its value before."""
    for name, before in models.start_values().items():
        print(f"{name} = {values[name]:g}" + ("" if values[name] == before else f" (was {before:g})"))


def to_json(
    predictions: dict[str, list[Predicted]], values: dict[str, float], unpredicted: dict[str, str]
) -> dict[str, Any]:
    """Everything as JSON values."""
    return {
        "note": "predicted by a model; measured by others, never by us",
        "parameters": values,
        "rows": [
            {
                "row": each.row.name,
                "role": each.row.role,
                "source": each.row.source,
                "measured_us": each.row.value,
                "predicted_us": round(each.predicted_us, 1),
            }
            for each in predictions["model"]
        ],
        "errors": {
            predictor: [
                {
                    "role": role,
                    "class": kernel,
                    "rows": summary.rows,
                    "median": round(summary.median_error, 4),
                    "worst": round(summary.worst.error, 4),
                    "within_30_percent": summary.near,
                    "pairs": summary.pairs,
                    "ordered": summary.ordered,
                }
                for (role, kernel), own in groups(chosen).items()
                for summary in (summarize(own),)
            ]
            for predictor, chosen in predictions.items()
        },
        "without_prediction": unpredicted,
    }


def write_plot(path: Path, predictions: Sequence[Predicted]) -> None:
    """Write the scatter plot. Raises UserError if the file cannot be written."""
    try:
        path.write_text(scatter(predictions))
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another file with --plot") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Do what `argv` asks for; returns the exit code."""
    return run_command(build_parser(), argv)


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
