"""`generate`: programs drawn at random, to try a compiler, the static check or the virtual NPU with."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerie.virtual_npu.errors import OptionError

if TYPE_CHECKING:
    from aerie.virtual_npu.random_programs import RandomProgram

LABELS = "labels.jsonl"
MAX_NUMBER = 100_000
STACK_BYTES = 2048
"""The stack that the programs are drawn for: some divide scalars."""


def add(commands: Any) -> None:
    """Add the parser."""
    parser = commands.add_parser(
        "generate",
        help="write random programs, with the expected verdict of each",
        description="Write programs drawn at random from a grammar: the same seed gives the same text. "
        f"Beside them, {LABELS} has a line for each with its shape, its features, what upstream's tools are "
        "known to say of these, who says so, and what `aerie vnpu check --stack-size 2048` says.",
        epilog="exit status: 0 written, 2 wrong input",
    )
    parser.add_argument("--seed", type=_number, default=0, metavar="N", help="the first seed (default 0)")
    parser.add_argument("--count", type=_number, default=100, metavar="M", help="how many (default 100)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    parser.set_defaults(command=_generate)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 0 to {MAX_NUMBER}")
    return int(text)


def _generate(options: argparse.Namespace) -> int:
    from aerie.virtual_npu.random_programs import random_program

    programs = [random_program(seed) for seed in range(options.seed, options.seed + options.count)]
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        for program in programs:
            (options.out / f"{program.name}.mlir").write_text(program.text)
        lines = list(_labels(programs))
        (options.out / LABELS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    except OSError as error:
        raise OptionError(f"cannot write {error.filename}: {error.strerror}; name another --out") from error
    known = sum((line["check"] == "accepted") == (line["expected"] == "accepted") for line in lines)
    print(f"{len(programs)} programs in {options.out}; the check agrees with the expected verdict of {known}")
    return 0


def _labels(programs: list[RandomProgram]) -> Iterator[dict[str, object]]:
    from aerie.device import check

    for program in programs:
        report = check(program.text, stack_bytes=STACK_BYTES, filename=f"{program.name}.mlir")
        verdict = "accepted" if report.ok else "refused"
        yield {
            **program.to_json(),
            "check": verdict,
            "kinds": sorted({fault.kind for fault in report.faults}),
        }
