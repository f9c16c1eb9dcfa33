"""`aerie kernels`: look at the kernels.

    list                                  every kernel and what it computes
    show KERNEL [--param=value ...]       its MLIR
    check KERNEL [--param=value ...]      its results on the virtual NPU, compared with its reference; and
                                          whether it fits the device
    preflight KERNEL|FILE [--param=value ...]   what it uses of the device, and whether that fits
    tune KERNEL [--param=value ...]       tiles and cores, chosen by the time predicted for the device
    numerics [--size N]                   errors published for an NPU, and those on the virtual NPU

Missing parameters have the values of the kernel's first case; `none` means None. Without any, `check` runs
every case. Errors go to standard error. The exit status is 1 if a result is out of tolerance, an error
differs from the published one, or a kernel fails while it runs; 2 if something is refused or cannot be built.
`tune` runs nothing: its times are predictions. A parameter that is given stays as it is.
`check` prints one line about a case that does not fit the device; `preflight` prints all of it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from aerie.air_dialect import AirParseError, parse
from aerie.common.cli_parser import OneLineParser
from aerie.common.progress import working
from aerie.common.text_tables import text_table
from aerie.device import check
from aerie.device.npu2 import DEVICES, NPU2
from aerie.kernel_builder import published_errors, tuning
from aerie.kernel_builder.arguments import KernelBuilderError
from aerie.kernel_builder.kernels import all_kernels
from aerie.kernel_builder.spec import KernelDifference, KernelModule, KernelSpec, Parameters
from aerie.kernel_builder.testing import compare
from aerie.virtual_npu import ProgramError, VirtualNpuRuntimeError
from aerie.virtual_npu.console import print_json, print_table
from aerie.virtual_npu.timing import NOTE

WRONG_RESULT, REFUSED = 1, 2
HOW_SURE = (
    "the static check has seen the choice, compilers for the NPU have not: run make test-toolchain after a "
    "change of defaults"
)


class UsageError(KernelBuilderError):
    """A command line that cannot be served."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0; 1 for wrong results; 2 if it was refused or the program does not fit."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    try:
        return int(options.run(options, rest))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except (KernelBuilderError, AirParseError, ProgramError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG_RESULT if isinstance(error, VirtualNpuRuntimeError) else REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="aerie kernels", description="look at the kernels")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="every kernel and what it computes")
    listing.set_defaults(run=_list)
    show = commands.add_parser("show", help="a kernel's MLIR; --param=value sets a parameter")
    show.add_argument("kernel")
    show.set_defaults(run=_show)
    check = commands.add_parser(
        "check", help="a kernel's results against its reference; --param=value sets a parameter"
    )
    check.add_argument("kernel")
    check.set_defaults(run=_check)
    fit = commands.add_parser("preflight", help="what a kernel or an MLIR file takes of the device")
    fit.add_argument("target", metavar="KERNEL|FILE")
    fit.add_argument(
        "--device", default=NPU2.name, choices=sorted(DEVICES), help=f"the device (default: {NPU2.name})"
    )
    fit.set_defaults(run=_preflight)
    tuner = commands.add_parser(
        "tune", help="choose a kernel's tiles and cores by the time predicted for the device"
    )
    tuner.add_argument("kernel")
    tuner.add_argument(
        "--for",
        dest="device",
        default=NPU2.name,
        choices=[NPU2.name],
        help="the device (default: %(default)s, the one with a timing model)",
    )
    tuner.add_argument("--top", type=_count, default=5, metavar="N", help="forms to show (default: 5)")
    tuner.add_argument("--json", action="store_true", help="print one line of JSON")
    tuner.set_defaults(run=_tune)
    errors = commands.add_parser("numerics", help="errors published for an NPU, and those on the virtual NPU")
    errors.add_argument(
        "--size",
        type=_size,
        default=512,
        metavar="N",
        help="rows with at most N**3 multiply-adds; 4096 is all of them (default: %(default)s)",
    )
    errors.set_defaults(run=_numerics)
    return parser


def _size(text: str) -> int:
    smallest = min(row.work for row in published_errors.ROWS)
    if not text.isdecimal() or int(text) ** 3 < smallest:
        min_size = math.ceil(smallest ** (1 / 3))
        raise argparse.ArgumentTypeError(f"'{text}' leaves no row; give a whole number of {min_size} or more")
    return int(text)


def _list(_: argparse.Namespace, rest: list[str]) -> int:
    _check_no_more(rest)
    for name, spec in all_kernels().items():
        print(f"{name:<16} {spec.title}\n{'':<16} parameters: {', '.join(spec.parameters)}")
    return 0


def _show(options: argparse.Namespace, rest: list[str]) -> int:
    print(_built(options.kernel, rest).text, end="")
    return 0


def _check(options: argparse.Namespace, rest: list[str]) -> int:
    spec = _spec(options.kernel)
    cases = [_parameters(spec, rest)] if rest else spec.cases
    results = list(_compared(spec, cases))
    header = ("case", "result", "worst error", "allowed", "differ", "")
    print(text_table([header, *(_row(*result) for result in results)], "<<>>><"))
    wrong = [
        f"error: {spec.name} {case}: {name}: {found}" for case, name, found in results if not found.passes
    ]
    with working("checking what the device has room for"):
        misfits = [line for case in cases for line in _misfits(spec, case)]
    if wrong or misfits:
        print(*wrong, *misfits, sep="\n", file=sys.stderr)
    return WRONG_RESULT if wrong else REFUSED if misfits else 0


def _compared(spec: KernelSpec, cases: Sequence[Parameters]) -> Iterator[tuple[str, str, KernelDifference]]:
    """Case, result and difference; a terminal shows which case is built and run."""
    for number, case in enumerate(cases, 1):
        text = _parameters_text(case)
        with working(f"case {number} of {len(cases)}: {text}"):
            differences = compare(spec, case)
        for name, difference in differences.items():
            yield text, name, difference


def _misfits(spec: KernelSpec, case: Parameters) -> list[str]:
    """What of a case cannot be built for the device, one line each; the virtual NPU runs it anyway."""
    faults = check(spec.build(**case).module, NPU2).faults
    if not faults:
        return []
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    words = " ".join(f"--{name}={value}" for name, value in case.items())
    return [
        f"error: {spec.name} {_parameters_text(case)}: cannot be built for {NPU2.name}: {faults[0]}{more}; "
        f"`aerie kernels preflight {spec.name} {words}` shows all"
    ]


def _row(case: str, name: str, difference: KernelDifference) -> tuple[str, ...]:
    worst = difference.worst
    error, allowed = (f"{worst.error:.3g}", f"{worst.allowed:.3g}") if worst else ("0", "")
    verdict = "ok" if difference.passes else "WRONG"
    return case, name, error, allowed, f"{difference.differing} of {difference.size}", verdict


def _parameters_text(parameters: Parameters) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def _preflight(options: argparse.Namespace, rest: list[str]) -> int:
    path = Path(options.target)
    if options.target not in all_kernels() and (path.suffix or path.exists()):
        _check_no_more(rest)
        module = parse(_read(path), str(path))
    else:
        module = _built(options.target, rest).module
    report = check(module, DEVICES[options.device])
    print(report.table(), flush=True)
    for level, findings in (("warning", report.warnings), ("error", report.faults)):
        for fault in findings:
            print(f"{level}: {fault}", file=sys.stderr)
    return 0 if report.ok else REFUSED


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of forms; give a whole number of 1 or more")
    return int(text)


def _tune(options: argparse.Namespace, rest: list[str]) -> int:
    spec = _spec(options.kernel)
    parameters = _parameters(spec, rest)
    with working(f"tuning {spec.name}") as report:
        found = tuning.tune(spec, parameters, report)
    if options.json:
        print_json(found.to_json())
        return 0
    shown = list(found.timed[: options.top])
    shown += [each for each in (found.best, found.default) if each not in shown]
    title = f"{spec.name} {_parameters_text(parameters)} on {options.device}, predicted"
    header = ("tiles and cores", "us", "limited by", "TFLOP/s", "DDR GB/s", "")
    print_table(title, header, [_tuned_row(found, each) for each in shown], "<><>><", sys.stdout)
    for each in shown:
        if each.misfit:
            print(f"does not fit {options.device}: {_words(each.schedule)}: {each.misfit}")
    print(_tuned_line(found))
    print(f"forms timed: {len(found.timed)}, refused: {found.refused}", NOTE, HOW_SURE, sep="\n")
    return 0


def _tuned_row(found: tuning.Tuning, each: tuning.TimedSchedule) -> tuple[str, ...]:
    verdict = "choice" if each == found.best else "does not fit" if each.misfit else ""
    figures = (f"{each.us:.1f}", each.limited_by, f"{each.tflop_s:.2f}", f"{each.ddr_gb_s:.1f}")
    return (_words(each.schedule), *figures, verdict)


def _words(schedule: Parameters) -> str:
    words = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in schedule.items())
    return words or "(what it chooses by itself)"


def _tuned_line(found: tuning.Tuning) -> str:
    if found.best == found.default:
        least = f"{100 * tuning.LEAST_GAIN:g} %"
        return f"no form that fits is {least} faster than what the kernel chooses by itself"
    return (
        f"choice: {_words(found.best.schedule)}: {found.best.us:.1f} us in place of "
        f"{found.default.us:.1f} us, {found.gain:.2f} times as fast"
    )


def _numerics(options: argparse.Namespace, rest: list[str]) -> int:
    _check_no_more(rest)
    comparisons = list(_measured(published_errors.rows_up_to(options.size)))
    off = [number for number, row in enumerate(comparisons) if not row.agrees]
    print_table(
        "mean |error| / mean |result|",
        ("row", "published", "here", "ratio", "same digits"),
        [_numbers(row) for row in comparisons],
        "<>>><",
        sys.stdout,
        off,
    )
    print(
        "not compared:", *(f"  {row}: {why}" for row, why in published_errors.NOT_COMPARED.items()), sep="\n"
    )
    for row in (comparisons[number] for number in off):
        print(
            f"error: {row.name}: published {row.published}, here {row.measured:.2e}; "
            f"more than {published_errors.TOLERANCE:.0%} apart",
            file=sys.stderr,
        )
    return WRONG_RESULT if off else 0


def _measured(rows: Sequence[published_errors.PublishedError]) -> Iterator[published_errors.ErrorComparison]:
    """The comparisons; a terminal shows which one is running."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("", total=len(rows))
        for row, comparison in zip(rows, published_errors.compare(rows), strict=True):
            yield comparison
            bars.update(task, advance=1, description=row.name)


def _numbers(row: published_errors.ErrorComparison) -> tuple[str, ...]:
    mantissa, exponent = f"{row.measured:.3e}".split("e")
    here = f"{mantissa}e{int(exponent)}"
    return row.name, row.published, here, f"{row.ratio:.4f}", "yes" if row.same_digits else "no"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"cannot read {path}: {reason}; name an .mlir file or a kernel") from error


def _check_no_more(rest: list[str]) -> None:
    if rest:
        raise UsageError(f"unknown argument {rest[0]}; see aerie kernels --help")


def _spec(name: str) -> KernelSpec:
    specs = all_kernels()
    if name not in specs:
        raise UsageError(f"no kernel named '{name}'; there are: {', '.join(specs)}")
    return specs[name]


def _parameters(spec: KernelSpec, rest: list[str]) -> dict[str, Any]:
    """The parameters of the first case, changed by `--param=value` words."""
    return {**spec.cases[0], **dict(_parameter(spec, word) for word in rest)}


def _built(name: str, rest: list[str]) -> KernelModule:
    spec = _spec(name)
    return spec.build(**_parameters(spec, rest))


def _parameter(spec: KernelSpec, word: str) -> tuple[str, Any]:
    name, equals, text = word.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    if not word.startswith("--") or not equals or name not in spec.parameters:
        supported = ", ".join(spec.parameters)
        raise UsageError(
            f"'{word}' is no parameter of {spec.name}; write --name=value with one of: {supported}"
        )
    return name, _value(word, text)


def _value(word: str, text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise UsageError(
        f"'{word}' has no number after the equals sign; give an integer, a number, true, false or none"
    )


if __name__ == "__main__":
    sys.exit(main())
