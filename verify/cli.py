"""The command line of the gate.

Exit codes: 0 passed, or no step named; 1 failed, or one named; 2 nothing could be verified (one line says
why); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from llama32_1b.checkpoint import Checkpoint, find_checkpoint, open_checkpoint
from llama32_1b.cli import (
    Parser,
    add_commands,
    add_model,
    add_prompt,
    add_runtime,
    default_cache_dir,
    run_command,
)
from llama32_1b.commands import runtime_options
from llama32_1b.compiling import RuntimeOptions, choose_seq_len
from llama32_1b.errors import UserError
from llama32_1b.progress import Reporter
from llama32_1b.session import Session, prepare_runtime
from verify.diagnosis import add_diagnosis, diagnosis
from verify.files import make_folder
from verify.gate import Record, verify
from verify.identity import Case, Identity, identities
from verify.prompts import choose_prompts
from verify.reference import Reference, check_memory_beside, import_torch
from verify.report import print_record, save_record
from verify.subject import BROKEN, one_line

PASSED, FAILED = 0, 1


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m verify", description="Compare a model with Hugging Face transformers.")
    add_commands(
        parser,
        ("gate", gate, [add_model, add_runtime, _add_gate]),
        ("diagnosis", diagnosis, [add_model, add_runtime, add_prompt, add_diagnosis]),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    return run_command(build_parser(), argv)


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="every kind of prompt, and what must be identical to the bit"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=default_cache_dir().with_name("verify"),
        help="the folder of the JSON record (default: build/verify in the project)",
    )


def gate(arguments: argparse.Namespace) -> int:
    """Say PASS or FAIL: the model's answers and logits against those of transformers in bf16."""
    report, options = Reporter(), runtime_options(arguments)
    import_torch()  # what may be missing is looked for before anything is compiled in vain
    make_folder(arguments.out)
    checkpoint = open_checkpoint(find_checkpoint(arguments.model))
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    check_memory_beside(checkpoint.config, seq_len, options.backend.access.copies)
    reference = Reference.open(checkpoint.folder)
    session = prepare_runtime(checkpoint, options, report)
    record = _verify(session, reference, checkpoint, options, report, arguments.full)
    report.note(f"record: {_save(record, arguments)}")
    print_record(record)
    return FAILED if record.failures else PASSED


def _save(record: Record, arguments: argparse.Namespace) -> Path:
    """Write the record; each model, backend, kind of numbers and set of prompts has a file of its own."""
    kind = "verify-full" if arguments.full else "verify"
    model = Path(arguments.model).resolve().name
    numbers = record.numerics if record.rounding == "conv_even" else f"{record.numerics}-{record.rounding}"
    path: Path = arguments.out / f"{kind}-{model}-{record.backend}-{numbers}.json"
    try:
        save_record(record, arguments.model, path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); name another folder with --out") from None
    return path


def _verify(
    session: Session,
    reference: Reference,
    checkpoint: Checkpoint,
    options: RuntimeOptions,
    report: Reporter,
    full: bool,
) -> Record:
    prompts = choose_prompts(session, full)
    if not full:
        return verify(session, reference, prompts, report.note)

    def reopen(seq_len: int) -> Session:
        other = RuntimeOptions(seq_len, options.backend, options.cache_dir)
        return prepare_runtime(checkpoint, other, report)

    try:
        case = Case.take(session, prompts[0])
    except BROKEN as error:
        broken = Identity("in a fresh session", broken=one_line(error))
        return verify(session, reference, prompts, report.note).with_identities([broken])
    record = verify(session, reference, prompts, report.note)
    report.note("bit identity")
    return record.with_identities(list(identities(session, case, reopen)))
