"""`aerie verify|diagnosis`.

Exit codes: 0 passed, or no step at fault; 1 failed, or a step at fault; 2 nothing could be verified (one line
says why); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from aerie.cli.arguments import (
    CACHE_FOLDER_HELP,
    add_max_model_len,
    add_model,
    add_prompt,
    add_runtime,
    add_weights,
)
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import CommandParser, add_commands, run_command, setup_process
from aerie.cli.commands import runtime_options
from aerie.cli.prompts import tokenize_prompt
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.common.progress import working
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.context_end import STOP
from aerie.engine.memory_estimate import session_needs
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.quantised import KINDS
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.verify.bit_identity import BitIdentity, IdentityCase, identities_in_session, identities_reopened
from aerie.verify.bounds import session_numerics
from aerie.verify.chunk_check import ChunkModeResult, try_modes
from aerie.verify.conversation_check import check_fits, try_conversation
from aerie.verify.diagnosis import diagnose
from aerie.verify.diagnosis_report import as_json, print_diagnosis, render
from aerie.verify.gate import GateRecord, verify, verify_blocks
from aerie.verify.gate_prompts import QUICK_PROMPTS, Prompt, choose_prompts, full_prompt, longest_prompt
from aerie.verify.layer_check import LayerReport, reference_passes, try_layers
from aerie.verify.quality_command import add_quality, quality
from aerie.verify.random_model import (
    in_another_family,
    open_random_model,
    random_checkpoint,
    random_model_config,
    with_longer_context,
)
from aerie.verify.reading_check import ReadingError
from aerie.verify.reference import Reference, check_memory_with_reference, import_torch
from aerie.verify.report import make_folder, print_record, save_record, write_report
from aerie.verify.schedule_identity import rows_options, schedule_identities, with_few_rows
from aerie.verify.subject import FORWARD_ERRORS, one_line
from aerie.verify.token_ids import compare_token_ids

RIGHT, WRONG = 0, 1
MODEL = (add_model, add_runtime, add_weights, add_max_model_len)


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="aerie", description="Compare a model with Hugging Face transformers.")
    add_commands(
        parser,
        ("verify|gate", checked_gate, [*MODEL, _add_gate]),
        ("quality", quality, [add_quality]),
        ("diagnosis", diagnosis, [*MODEL, add_prompt, _add_diagnosis]),
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    return run_command(build_parser(), argv)


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--full", action="store_true", help="all prompts, and the runs that must be bit-identical"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        metavar="N",
        help=f"the number of prompts (default {QUICK_PROMPTS})",
    )
    parser.add_argument(
        "--conversation",
        type=int,
        metavar="TOKENS",
        help="compare the answers of a conversation of this length too (default: none)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the folder of the JSON record (default: verify in {CACHE_FOLDER_HELP})",
    )


def _add_diagnosis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        help=f"the folder of diagnosis.html and diagnosis.json (default: {CACHE_FOLDER_HELP})",
    )


def _open_both(
    checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter
) -> tuple[Session, Reference]:
    """Open the session and the reference, after a check that there is memory for both."""
    needs = session_needs(checkpoint.config, options)
    check_memory_with_reference(checkpoint.config, needs, options.backend.access.copies_per_buffer)
    with working("opening the reference in transformers"):
        reference = Reference.open(
            checkpoint.folder, ours=checkpoint.weights, is_long=checkpoint.config.is_long
        )
    if checkpoint.weights.quantised:
        count = len(checkpoint.weights.quantised)
        report.note(f"weights: {count} tensors in blocks, which a second reading of the files finds the same")
    return prepare_runtime(checkpoint, options, report), reference


def _open_checkpoint(arguments: argparse.Namespace) -> Checkpoint:
    checkpoint = open_checkpoint(find_checkpoint(arguments.model), arguments.weights)
    checkpoint.config.roles.check_answers()
    return checkpoint.limited(arguments.max_model_len)


def diagnosis(arguments: argparse.Namespace) -> int:
    """Print the first layer step that differs from transformers."""
    report, options = Reporter(), runtime_options(arguments)
    with working("loading torch"):
        import_torch()  # fails before anything is compiled
    checkpoint = _open_checkpoint(arguments)
    prompt = tokenize_prompt(checkpoint, arguments, options, report.note)
    session, reference = _open_both(checkpoint, prompt.options, report)
    report.note(f"diagnosis of {len(prompt.ids)} tokens")
    result = diagnose(session, reference, prompt.ids)
    about = {
        "model": arguments.model,
        "prompt": prompt.text,
        "backend": session.backend,
        "numerics": session_numerics(session),
    }
    page, record = (arguments.out or folders.cache_folder()) / "diagnosis.html", as_json(result, about)
    write_report(page, render(result, about))
    write_report(page.with_suffix(".json"), json.dumps(record, indent=1, allow_nan=False))
    print_diagnosis(result)
    report.note(f"page: {page}")
    return RIGHT if result.first is None else WRONG


def checked_gate(arguments: argparse.Namespace) -> int:
    """Print PASS or FAIL: compare the model's answers and logits with those of transformers in bf16."""
    try:
        return gate(arguments)
    except ReadingError as error:
        print(f"[verify] FAIL: {error}")
        return WRONG


def gate(arguments: argparse.Namespace) -> int:
    """The same; raises ReadingError where weights in blocks are read wrong."""
    report, options = Reporter(), runtime_options(arguments)
    with working("loading torch"):
        import_torch()  # fails before anything is compiled
    out = arguments.out or folders.cache_folder() / "verify"
    make_folder(out)
    checkpoint = _open_checkpoint(arguments)
    if checkpoint.config.diffusion is not None and (arguments.prompts, arguments.conversation) != (
        None,
        None,
    ):
        raise UserError(
            "--prompts (N_PROMPTS) and --conversation (CONVERSATION) are for models that generate token by "
            "token; this one fills in blocks: leave them out"
        )
    options = replace(options, prompt_tokens=longest_prompt(checkpoint.config, options))
    session, reference = _open_both(checkpoint, options, report)
    if checkpoint.config.diffusion is None:
        prompts = choose_prompts(session, arguments.full, arguments.prompts)
        if arguments.conversation is not None:
            check_fits(session, arguments.conversation)
        record = _verify(
            session, reference, checkpoint, options, report, arguments.full, prompts, arguments.conversation
        )
    else:
        record = _verify_blocks(session, reference, checkpoint, options, report, arguments.full)
    path = out / _record_name(record, arguments)
    save_record(record, arguments.model, path)
    report.note(f"record: {path}")
    print_record(record)
    return WRONG if record.failures else RIGHT


def _record_name(record: GateRecord, arguments: argparse.Namespace) -> str:
    """The record's file name: one per model, kind of weights, backend, numerics and set of prompts."""
    kind = "verify-full" if arguments.full else "verify"
    model = Path(arguments.model).resolve().name
    weights = "" if arguments.weights == KINDS[0] else f"-{arguments.weights}"
    numbers = record.numerics if record.rounding == "conv_even" else f"{record.numerics}-{record.rounding}"
    return f"{kind}-{model}{weights}-{record.backend}-{numbers}.json"


def _verify(
    session: Session,
    reference: Reference,
    checkpoint: Checkpoint,
    options: RuntimeOptions,
    report: Reporter,
    full: bool,
    prompts: Sequence[Prompt],
    conversation_tokens: int | None,
) -> GateRecord:
    """Check the prompts and the layers; with `full` also results that must be bit-identical.

    conversation_tokens: length of the conversation to check; None: none. Only one session of the model is
    open at a time: the first is closed before others are opened.
    """
    case = _case(session, prompts[0]) if full else None
    record = verify(session, reference, prompts, report.note)
    if conversation_tokens is not None:
        report.note(f"a conversation of {conversation_tokens} tokens")
        talk = try_conversation(session, reference, conversation_tokens)
        record = replace(record, conversations=[talk])
    record = record.with_identities([compare_token_ids(session.tokenizer, checkpoint.folder)])
    reports = _layer_reports(session, reference, report)
    same = list(identities_in_session(session, case)) if isinstance(case, IdentityCase) else []
    session.cache.close()
    record = record.with_layer_reports([*reports, _random_layers(session, checkpoint, options, report)])
    if case is None:
        return record
    report.note("bit identity")
    if isinstance(case, IdentityCase):
        same += identities_reopened(
            session, case, options, lambda other: prepare_runtime(checkpoint, other, report)
        )
    else:
        same.append(case)
    record = record.with_identities([*same, *_in_blocks(checkpoint, options, report)])
    report.note("chunks")
    return record.with_chunk_results([*_check_chunks(checkpoint, options, report)])


def _verify_blocks(
    session: Session,
    reference: Reference,
    checkpoint: Checkpoint,
    options: RuntimeOptions,
    report: Reporter,
    full: bool,
) -> GateRecord:
    """Check a block diffusion model, and random weights in its shape."""
    record = verify_blocks(session, reference, choose_prompts(session, full), "the model", full, report.note)
    record = record.with_identities([compare_token_ids(session.tokenizer, checkpoint.folder)])
    session.cache.close()
    alike = with_longer_context(random_model_config(checkpoint.config))
    with random_checkpoint(alike, report, checkpoint.weights.kind) as random:
        other, theirs = _open_both(random, options, report)
        prompts = choose_prompts(other, full=False)
        beside = verify_blocks(other, theirs, prompts, "random weights", full, report.note)
        layer_report = try_layers("random weights", other, theirs, full_prompt(other))
        other.cache.close()
    return replace(
        record, diffusion_results=[*record.diffusion_results, *beside.diffusion_results]
    ).with_layer_reports([layer_report])


def _case(session: Session, prompt: Prompt) -> IdentityCase | BitIdentity:
    """Record the results of a fresh session for later comparisons, or the error of that run."""
    try:
        return IdentityCase.record(session, prompt)
    except FORWARD_ERRORS as error:
        return BitIdentity("in a fresh session", broken=one_line(error))


def _layer_reports(session: Session, reference: Reference, report: Reporter) -> list[LayerReport]:
    """Check the layers of the model, and once more with its smallest variants, if it has variants."""
    report.note("every step of the model")
    ids = full_prompt(session)
    theirs = reference_passes(session, reference, ids)
    reports = [try_layers("the model", session, reference, ids, theirs)]
    if session.model.variant_set.variants:
        report.note("every step of the model, in few rows")
        reports.append(try_layers("in few rows", with_few_rows(session), reference, ids, theirs))
    return reports


def _random_layers(
    session: Session, checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter
) -> LayerReport:
    """Check the layers of random weights in the model's shape."""
    report.note("every step of random weights in its shape")
    alike = replace(options, seq_len=session.model.seq_len or None)
    with open_random_model(session.model.config, alike, report, checkpoint.weights.kind) as (other, theirs):
        return try_layers("random weights", other, theirs, full_prompt(other))


def _in_blocks(checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter) -> Iterator[BitIdentity]:
    """Compare all schedules, of the model and of random weights in its model family and in another one."""

    def open_session(model: Checkpoint, options: RuntimeOptions) -> Session:
        return prepare_runtime(model, options, report)

    for name, model in _kinds(checkpoint, report):
        yield from schedule_identities(name, model, options, open_session)


def _check_chunks(
    checkpoint: Checkpoint, options: RuntimeOptions, report: Reporter
) -> Iterator[ChunkModeResult]:
    """Check every mode of chunks, of the same models where they have chunks."""
    for name, model in _kinds(checkpoint, report):
        if model.config.states.layers:
            report.note(f"{name}: no chunks, as layers of a {model.config.architecture} keep states")
            continue
        stops = replace(rows_options(options, model.config), context_end=STOP)
        session, reference = _open_both(model, stops, report)
        yield from try_modes(name, session, reference)
        session.cache.close()


def _kinds(checkpoint: Checkpoint, report: Reporter) -> Iterator[tuple[str, Checkpoint]]:
    """Yield the model, and random weights in its model family and in another one, each with its name."""
    yield "the model", checkpoint
    alike = with_longer_context(random_model_config(checkpoint.config))
    for config in (alike, in_another_family(alike)):
        with random_checkpoint(config, report, checkpoint.weights.kind) as random:
            yield f"random {config.family.model_type}", random


if __name__ == "__main__":
    setup_process()
    sys.exit(main())
