"""`aerie inspect`: what each tensor of a model is in its file and on the device, and what is lost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from aerie.cli.checkpoints import find_checkpoint
from aerie.engine.config import load_config
from aerie.engine.quantised import KINDS
from aerie.engine.reporter import Reporter
from aerie.engine.weight_report import KindReport, TensorReport, report_tensors, sum_up
from aerie.engine.weights import Weights
from aerie.runtime.memory import format_file_bytes

DONE = 0
NOT_MEASURED = "-"


def add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model, named as for `aerie run --model`")
    parser.add_argument(
        "--weights",
        choices=KINDS,
        default=KINDS[0],
        help="what weights are on the device, as for `aerie run` (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def inspect(arguments: argparse.Namespace) -> int:
    """Show each tensor's kind in the file and on the device, and what is lost."""
    path = find_checkpoint(arguments.model)
    weights = Weights(path, load_config(path), arguments.weights)
    with Reporter().bar("reading weights", len([*weights.named()])) as step:
        reports = [*report_tensors(weights, step)]
    sums = sum_up(reports)
    if arguments.json:
        print(json.dumps(_to_json(arguments.model, reports, sums), indent=1, allow_nan=False))
    else:
        _print_tables(reports, sums)
    return DONE


def _to_json(model: str, reports: Sequence[TensorReport], sums: Sequence[KindReport]) -> dict[str, object]:
    return {
        "model": model,
        "stored_bytes": sum(each.stored_bytes for each in reports),
        "device_bytes": sum(each.device_bytes for each in reports),
        "kinds": [each.to_json() for each in sums],
        "tensors": [each.to_json() for each in reports],
    }


def _print_tables(reports: Sequence[TensorReport], sums: Sequence[KindReport]) -> None:
    from rich.console import Console

    from aerie.common.text_tables import compact_table, print_tables

    each = compact_table("tensors", ("tensor", "shape", "file", "device"), ("in file", "on device", "loss"))
    for report in reports:
        shape = "x".join(map(str, report.shape))
        sizes = map(format_file_bytes, (report.stored_bytes, report.device_bytes))
        each.add_row(report.name, shape, report.stored, report.kind, *sizes, _percent(report.loss))
    whole = compact_table(
        "sums", ("file", "device"), ("tensors", "in file", "on device", "loss", "largest loss")
    )
    for kind in sums:
        sizes = map(format_file_bytes, (kind.stored_bytes, kind.device_bytes))
        losses = map(_percent, (kind.loss, kind.largest_loss))
        whole.add_row(kind.stored, kind.kind, str(kind.tensors), *sizes, *losses)
    total = [
        sum(sizes) for sizes in zip(*((one.stored_bytes, one.device_bytes) for one in sums), strict=True)
    ]
    whole.add_row("all", "", str(len(reports)), *map(format_file_bytes, total), "", "")
    print_tables(Console(), each, whole)
    print("loss: relative RMS of the weights on the device against those of the file")


def _percent(loss: float | None) -> str:
    return NOT_MEASURED if loss is None else f"{100 * loss:.3f} %"
