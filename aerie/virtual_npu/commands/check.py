"""`check`: what a program takes of the device, against its limits, and what in it cannot be built."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.virtual_npu.commands import common
from aerie.virtual_npu.commands.common import DEVICE_NAMES
from aerie.virtual_npu.console import print_json, print_table

if TYPE_CHECKING:
    from aerie.device import CheckReport

FITS, EXCEEDED = 0, 1
ALIGNMENT = "<<>><<"


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "check",
        help="what a program takes of the device, against its limits",
        description="What a program takes of the device, counted from its text, and what cannot be built.",
        epilog="exit status: 0 it fits, 1 a limit is exceeded, 2 wrong input",
    )
    common.add_file(parser)
    parser.add_argument(
        "--device", choices=DEVICE_NAMES, default=DEVICE_NAMES[0], help="npu2 (default) or npu1"
    )
    parser.add_argument(
        "--kernel-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="folder with the sources of external kernels, looked at before kernels_cc; may be repeated",
    )
    parser.add_argument(
        "--omit-ping-pong-transform",
        choices=("L1", "L2", "all"),
        default="",
        help="aircc's option: no double buffering in this memory, or in any",
    )
    parser.add_argument(
        "--omit-auto-broadcast",
        action="store_true",
        help="aircc's option: a transfer that all cores share stays one per core",
    )
    parser.add_argument(
        "--air-runtime-loop-tiling-sizes",
        type=int,
        action="append",
        metavar="N",
        help="aircc's option, once for each dimension of a launch; 0: the option is not given",
    )
    parser.add_argument("--stack-size", type=_bytes, metavar="BYTES", help="stack of a core (aircc: 1024)")
    parser.add_argument("--bf16-emulation", action="store_true", help="aircc emulates f32 vectors with bf16")
    common.add_json(parser)
    parser.set_defaults(command=_check)


def _bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of bytes; give 1024 or more")
    return int(text)


def _tiling(sizes: list[int] | None) -> list[int] | None:
    """Return the tiling without zeros; None means that the option of aircc is unknown."""
    return None if sizes is None else [size for size in sizes if size > 0]


def _check(options: argparse.Namespace) -> int:
    from aerie.device import DEVICES, check
    from aerie.virtual_npu.console import read_text

    report = check(
        read_text(options.file),
        DEVICES[options.device],
        omit_ping_pong=options.omit_ping_pong_transform,
        omit_auto_broadcast=options.omit_auto_broadcast,
        loop_tiling=_tiling(options.air_runtime_loop_tiling_sizes),
        stack_bytes=options.stack_size,
        kernel_dirs=options.kernel_dir,
        bf16_emulation=options.bf16_emulation,
        filename=str(options.file),
    )
    if options.json:
        print_json(report.to_json())
    else:
        _show(report, options.file)
    return FITS if report.ok else EXCEEDED


def _show(report: CheckReport, path: Path) -> None:
    from aerie.device.report import HEADER

    title = f"{path} on {report.device.name}"
    alarming = {number for number, usage in enumerate(report.usages) if not usage.fits}
    print_table(title, HEADER, report.rows(), ALIGNMENT, sys.stdout, alarming)
    sys.stdout.flush()
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for fault in report.faults:
        print(f"error: {fault}", file=sys.stderr)
