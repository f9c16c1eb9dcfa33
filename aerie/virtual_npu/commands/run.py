"""`run`: build a program and run one of its functions."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.common.shown_names import symbol_name
from aerie.virtual_npu import child_process
from aerie.virtual_npu.commands import common
from aerie.virtual_npu.commands.common import DEVICE_NAMES
from aerie.virtual_npu.console import print_json, print_table
from aerie.virtual_npu.errors import OptionError, VirtualNpuRuntimeError
from aerie.virtual_npu.options import RACES, StopPoint

if TYPE_CHECKING:
    from aerie.virtual_npu.arrays import Array
    from aerie.virtual_npu.library import EntryPoint
    from aerie.virtual_npu.program import Program, Result


NO_DEVICE = "none"
TIME_LIMIT = 5.0


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser("run", help="build a program and run one of its functions")
    add_running(parser)
    parser.add_argument(
        "--out", type=Path, metavar="NPZ", help="file for every argument after the run; left out: a summary"
    )
    parser.add_argument(
        "--device",
        choices=(*DEVICE_NAMES, NO_DEVICE),
        help=f"print one line if the program would not fit {DEVICE_NAMES[0]} (default with checks), "
        f"{DEVICE_NAMES[1]}, or {NO_DEVICE}: do not look",
    )
    parser.add_argument("--sanitize", action="store_true", help="run under AddressSanitizer and UBSan")
    parser.add_argument("--stats", action="store_true", help="what every tile and channel moved and called")
    parser.add_argument("--trace", type=Path, metavar="JSON", help="file for a trace that Perfetto shows")
    _add_stops(parser)
    common.add_json(parser)
    parser.set_defaults(command=_run)


def _add_stops(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stop-at",
        action="append",
        default=[],
        metavar="LINE",
        help="end the run before an operation of this line of the text, and say where everything stands; "
        "LINE:3 at the third time, LINE@X,Y on tile (X, Y); of several, the first that is reached",
    )
    parser.add_argument(
        "--show",
        action="append",
        default=[],
        metavar="BUFFER",
        help="with --stop-at: print what a buffer of L1, L2 or L3 holds there: its name in the text, "
        "NAME@X,Y that of another tile, NAME[0:4, :] a part, a line what is allocated there, all: a list",
    )
    parser.add_argument(
        "--show-out",
        type=Path,
        metavar="NPZ",
        help="with --show: file for the whole contents of these buffers",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """Add what decides how a run ends, which `reduce` has too."""
    common.add_file(parser)
    common.add_arguments(parser)
    common.add_building(parser)
    common.add_cache(parser)
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="NPZ",
        help="what arguments shall be after the run: shows the first difference, and what wrote it",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="T",
        help="how far floats may be from --expect, in units of 1 + |expected| (default: no bit may differ)",
    )
    parser.add_argument("--perturb", type=int, metavar="N", help="run again under N other legal schedules")
    parser.add_argument(
        "--garbage", type=int, metavar="N", help="run again N times on memory that begins as garbage"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="the first seed of --perturb and --garbage (default: 1)"
    )
    parser.add_argument(
        "--races",
        choices=RACES,
        default=RACES[0],
        help="a data race ends the run, or is noted (default: error)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="S",
        help="with checks, end the run when a loop computes for S seconds while nothing moves and no end is "
        f"in sight; 0: never (default: {TIME_LIMIT:g})",
    )


def _run(options: argparse.Namespace) -> int:
    check_combination(options)
    if options.sanitize and not child_process.is_asan_loaded():
        return child_process.rerun_sanitized(options.words)
    from aerie.virtual_npu import arrays
    from aerie.virtual_npu.commands import shown_buffers

    program = common.program(options, options.file)
    entry = program.entry(options.entry)
    misfits = _misfits(options, program)
    try:
        result = run_program(options, program, stats=options.stats, trace=options.trace is not None)
    except VirtualNpuRuntimeError as error:
        if options.trace and error.record:
            _write_trace(options.trace, error.record)
        raise
    if options.out:
        arrays.write_npz(options.out, result.outputs)
    if options.show_out and result.stop:
        shown_buffers.write(options.show_out, result.stop.buffers)
    if options.trace and result.record:
        _write_trace(options.trace, result.record)
    _report(options, entry, result, misfits)
    return 0


def run_program(
    options: argparse.Namespace, program: Program, *, stats: bool = False, trace: bool = False
) -> Result:
    """Run a program as the options of `add_running` say. Raises ProgramError."""
    from aerie.virtual_npu import arrays

    entry = program.entry(options.entry)
    arguments = common.arguments(options, entry)
    expect = arrays.read_expected(options.expect, entry) if options.expect else None
    child_process.announce_run(program.library.kernels, options.checks)
    with interruptible(options.checks):
        return program.run(
            *arguments,
            entry=entry.name,
            perturb=options.perturb or 0,
            seed=options.seed or 1,
            stats=stats,
            trace=trace,
            races=options.races,
            garbage=options.garbage or 0,
            time_limit=options.time_limit,
            expect=expect,
            tolerance=options.tolerance,
            stop_at=getattr(options, "stop_at", ()),
            show=getattr(options, "show", ()),
        )


def _device(options: argparse.Namespace) -> str:
    """The device that the program is held to; none by default where nothing else is checked."""
    return options.device or (DEVICE_NAMES[0] if options.checks else NO_DEVICE)


def _misfits(options: argparse.Namespace, program: Program) -> list[str]:
    """What keeps the program from being built for the device, a sentence each."""
    name = _device(options)
    if name == NO_DEVICE:
        return []

    def find() -> list[str]:
        return [str(fault) for fault in program.check(name).faults]

    if not options.cache or program.library.kernels:
        return find()
    from aerie.virtual_npu import cache

    return cache.misfits(program.source, name, find)


def _misfit_line(options: argparse.Namespace, misfits: Sequence[str]) -> str:
    more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
    return (
        f"note: this cannot be built for {_device(options)}: {misfits[0]}{more}; `aerie vnpu check` "
        f"shows all, --device {NO_DEVICE} looks for nothing"
    )


@contextlib.contextmanager
def interruptible(checks: bool) -> Iterator[None]:
    """Ctrl-C ends the program, with checks by a KeyboardInterrupt that says where everything stood.

    Without checks it ends the process at once: loops do not look for signals.
    """
    handler = signal.signal(signal.SIGINT, interrupt if checks else signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def interrupt(number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt, once: a terminal sends the signal to this process, and its parent does too."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def check_combination(options: argparse.Namespace) -> None:
    """Raises OptionError for what does not go together, with what to do."""
    needs_checks = {
        "--perturb": options.perturb is not None,
        "--garbage": options.garbage is not None,
        "--trace": getattr(options, "trace", None) is not None,
        "--stop-at": bool(getattr(options, "stop_at", ())),
        "--stats": getattr(options, "stats", False),
        "--races note": options.races != RACES[0],
    }
    for name, is_set in needs_checks.items():
        if is_set and not options.checks:
            raise OptionError(f"{name} needs a program built with checks: leave out --no-checks")
    _check_stops(options)
    if options.perturb is not None and options.perturb < 1:
        raise OptionError(
            f"--perturb {options.perturb} runs nothing: give the number of schedules, 1 or more"
        )
    if options.garbage is not None and options.garbage < 1:
        raise OptionError(f"--garbage {options.garbage} runs nothing: give the number of runs, 1 or more")
    if options.tolerance < 0 or (options.tolerance and not options.expect):
        raise OptionError(
            f"--tolerance {options.tolerance:g} is how far floats may be from --expect NPZ: give both, and "
            "0 or more"
        )
    if options.seed is not None and options.perturb is None and options.garbage is None:
        raise OptionError("--seed chooses the schedules of --perturb N and what --garbage N draws: give one")
    if options.seed is not None and not 1 <= options.seed < 1 << 63:
        raise OptionError(f"--seed {options.seed} is no seed of a schedule: give a whole number from 1 on")


def _check_stops(options: argparse.Namespace) -> None:
    stop_at, show = getattr(options, "stop_at", ()), getattr(options, "show", ())
    for text in stop_at:
        StopPoint.of(text)
    if show and not stop_at:
        raise OptionError(f"--show {show[0]} looks at a buffer where a run stops: give --stop-at LINE too")
    if getattr(options, "show_out", None) and not show:
        raise OptionError(f"--show-out {options.show_out} has no buffer to hold: name them with --show")
    compared = {"--expect": options.expect, "--perturb": options.perturb, "--garbage": options.garbage}
    for name, value in compared.items():
        if stop_at and value is not None:
            raise OptionError(f"--stop-at ends the run before there is a result for {name}: give one of them")


def _write_trace(path: Path, record: dict[str, Any]) -> None:
    from aerie.virtual_npu.arrays import write_output_file

    text = json.dumps(chrome_trace(record))
    write_output_file(path, lambda file: file.write(text.encode()))


def _report(options: argparse.Namespace, entry: EntryPoint, result: Result, misfits: Sequence[str]) -> None:
    from aerie.virtual_npu.commands import shown_buffers
    from aerie.virtual_npu.stops import ALL

    if options.json:
        print_json({**_fields(options, entry, result), "device": _device(options), "misfits": list(misfits)})
        return
    if misfits:
        print(_misfit_line(options, misfits), file=sys.stderr)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    if result.stop:
        print(result.stop.message)
        shown_buffers.show(result.stop.buffers, as_list=ALL in options.show)
    elif not options.out:
        rows = [_summary_row(row) for row in summary(entry, result.outputs)]
        header = ("argument", "shape", "dtype", "min", "mean", "max", "crc32")
        print_table(f"{symbol_name(entry.name)} after the run", header, rows, "<<<>>><", sys.stdout)
    if options.stats and result.record:
        print_stats(result.record["stats"])
    if options.perturb:
        print(f"{result.schedules} schedules, same results")
    if options.garbage:
        print(f"{options.garbage} times garbage in memory, same results")


def _fields(options: argparse.Namespace, entry: EntryPoint, result: Result) -> dict[str, Any]:
    from aerie.virtual_npu.commands import shown_buffers

    fields: dict[str, Any] = {
        "ok": True,
        "entry": entry.name,
        "outputs": summary(entry, result.outputs),
        "out": str(options.out) if options.out else None,
        "notes": list(result.notes),
        "schedules": result.schedules,
    }
    if options.stats and result.record:
        fields["stats"] = result.record["stats"]
    if options.trace:
        fields["trace"] = str(options.trace)
    if result.stop:
        fields["stop"] = shown_buffers.fields(result.stop)
    return fields


def summary(entry: EntryPoint, outputs: Sequence[Array]) -> list[dict[str, Any]]:
    """Per argument: name, shape, dtype, smallest, mean, largest finite value (or None), CRC-32."""
    import numpy as np

    from aerie.virtual_npu.arrays import array_numbers

    rows = []
    for i, (argument, array) in enumerate(zip(entry.arguments, outputs, strict=True)):
        values = array_numbers(array, argument)
        finite = values[np.isfinite(values)].astype(np.float64)
        extremes = (finite.min(), finite.mean(), finite.max()) if finite.size else (None, None, None)
        low, mean, high = (None if value is None else float(value) for value in extremes)
        checksum = f"{zlib.crc32(array.tobytes()):08x}"
        row: dict[str, Any] = {"name": f"arg{i}", "shape": list(argument.shape), "dtype": argument.dtype}
        row |= {"min": low, "mean": mean, "max": high, "not_finite": values.size - finite.size}
        rows.append({**row, "crc32": checksum})
    return rows


def _summary_row(row: dict[str, Any]) -> list[str]:
    numbers = ["" if row[name] is None else f"{row[name]:.6g}" for name in ("min", "mean", "max")]
    odd = f" ({row['not_finite']} not finite)" if row["not_finite"] else ""
    return [
        row["name"],
        "x".join(map(str, row["shape"])) or "scalar",
        row["dtype"] + odd,
        *numbers,
        row["crc32"],
    ]


_TILES = {
    "where": "tile or body",
    "line": "line",
    "bytes_in": "bytes in",
    "bytes_out": "bytes out",
    "transfers": "transfers",
    "kernel_calls": "kernel calls",
    "peak_l1_bytes": "peak L1 bytes",
}
_CHANNELS = {
    "name": "channel",
    "transfers": "transfers",
    "bytes": "bytes",
    "most_in_flight": "most in flight",
}


def print_stats(stats: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The two tables, on standard output."""
    _print("per tile", _TILES, stats["tiles"])
    if stats["channels"]:
        _print("per channel", _CHANNELS, stats["channels"])


def _print(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    known = [key for key in columns if all(key in row for row in rows)]
    cells = [[str(row[key]) for key in known] for row in rows]
    print_table(title, [columns[key] for key in known], cells, "<" + ">" * (len(known) - 1), sys.stdout)


CLOCK = (
    "program order of the schedule: one step per event; not hardware time, and nothing about how long "
    "anything takes on an NPU"
)


def chrome_trace(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Perfetto and chrome://tracing read it: a line per tile, engine and channel.

    `ts` and `dur` are steps of the schedule, of a module with aie.device cycles; shown as microseconds.
    """
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        for number, name in enumerate(record.get("threads", ()))
    ]
    clock = record.get("clock", CLOCK)
    process = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"virtual NPU ({clock})"}}
    return {
        "traceEvents": [process, *named, *record.get("trace", ())],
        "displayTimeUnit": "ns",
        "otherData": {"clock": clock, "events_left_out": record.get("events_left_out", 0)},
    }
