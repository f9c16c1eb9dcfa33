"""The command `diagnosis`: where ours parts from transformers, for one prompt."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from llama32_1b.checkpoint import find_checkpoint, open_checkpoint
from llama32_1b.cli import default_cache_dir
from llama32_1b.commands import prompt_ids, runtime_options
from llama32_1b.compiling import choose_seq_len
from llama32_1b.errors import UserError
from llama32_1b.progress import Reporter
from llama32_1b.session import Session, prepare_runtime
from verify.bounds import numerics_of
from verify.diagnosis_report import as_json, print_diagnosis
from verify.files import write_whole
from verify.ladder import Diagnosis, diagnose
from verify.page import render
from verify.reference import Reference, check_memory_beside, import_torch

NOTHING_NAMED, NAMED = 0, 1


def add_diagnosis(parser: argparse.ArgumentParser) -> None:
    """The arguments of `diagnosis` alone."""
    parser.add_argument(
        "--out",
        type=Path,
        default=default_cache_dir().parent,
        help="the folder of diagnosis.html and diagnosis.json (default: build in the project)",
    )


def diagnosis(arguments: argparse.Namespace) -> int:
    """Name the first step that is not what transformers computes, from the kernels up to the answer."""
    report, options = Reporter(), runtime_options(arguments)
    import_torch()  # before anything is compiled in vain
    checkpoint = open_checkpoint(find_checkpoint(arguments.model))
    ids = prompt_ids(checkpoint, arguments, options)
    seq_len = choose_seq_len(checkpoint.config, options.seq_len)
    check_memory_beside(checkpoint.config, seq_len, options.backend.access.copies)
    reference = Reference.open(checkpoint.folder)
    session = prepare_runtime(checkpoint, options, report)
    report.note(f"diagnosis of {len(ids)} tokens")
    found = diagnose(session, reference, ids)
    page = _save(found, _about(arguments, session), arguments.out)
    print_diagnosis(found)
    report.note(f"page: {page}")
    return NOTHING_NAMED if found.first is None else NAMED


def _about(arguments: argparse.Namespace, session: Session) -> dict[str, str]:
    return {
        "model": arguments.model,
        "prompt": arguments.prompt,
        "backend": session.backend,
        "numerics": numerics_of(session),
    }


def _save(found: Diagnosis, about: dict[str, str], folder: Path) -> Path:
    """Write the page and the record; returns the page's path."""
    page = folder / "diagnosis.html"
    try:
        write_whole(page, render(found, about))
        write_whole(folder / "diagnosis.json", json.dumps(as_json(found, about), indent=1, allow_nan=False))
    except OSError as error:
        raise UserError(f"cannot write {page} ({error.strerror}); name another folder with --out") from None
    return page
