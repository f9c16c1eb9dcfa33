"""`aerie quantize`: write a checkpoint as a GGUF file, quantised or in bf16."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from aerie.cli.checkpoints import find_checkpoint
from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.gguf_file_writer import FORMATS, plan_tensors, write_gguf
from aerie.engine.reporter import Reporter
from aerie.runtime.memory import format_file_bytes

DONE = 0
UNFINISHED = ".unfinished"


def add_quantize(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="an unquantised model, named as for `aerie run --model`"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write, such as model.gguf")
    parser.add_argument(
        "--format",
        choices=(*FORMATS,),
        default="q4_0",
        help="the type of its matrices; the LM head is Q8_0, or BF16 with bf16 (default: %(default)s)",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there already")


def quantize(arguments: argparse.Namespace) -> int:
    """Write a model as a GGUF file, quantised or in bf16, for Aerie and for llama.cpp."""
    out: Path = arguments.out.expanduser()
    _check_out(out, arguments.force)
    report = Reporter()
    checkpoint = open_checkpoint(find_checkpoint(arguments.model), "bf16")
    if (pooling := checkpoint.config.roles.pooling) and pooling.prompts:
        report.note(
            "note: a GGUF file has no prompts, so what the model puts before texts "
            f"({', '.join(pooling.prompts)}) is left out of it"
        )
    steps = len(plan_tensors(checkpoint, arguments.format))

    def write(path: Path) -> None:
        with report.bar("quantising", steps) as step:
            write_gguf(path, checkpoint, arguments.format, step)

    try:
        _write_atomically(out, write)
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror}); name another place") from None
    report.note(f"{out}: {format_file_bytes(out.stat().st_size)}, {arguments.format}")
    return DONE


def _check_out(out: Path, force: bool) -> None:
    """Raises UserError for a place that is not written to."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; name the file to write, such as {out / 'model.gguf'}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} for {out.name}; make it first")
    if out.exists() and not force:
        raise UserError(f"{out} is there already; name another file, or replace it with --force")


def _write_atomically(out: Path, write: Callable[[Path], None]) -> None:
    """Have `write` write a file beside `out`, which it becomes when it is complete."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}{UNFINISHED}")
    try:
        write(unfinished)
        os.replace(unfinished, out)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
