"""The commands on a model. Each takes parsed arguments and returns an exit code."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TextIO

from aerie.cli.answer_printer import print_answer
from aerie.cli.chat import Chat, completions
from aerie.cli.chat_model import ChatModel
from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.line_input import line_editing, piped_line, typed_line
from aerie.cli.prompts import ENABLE_THINKING, note_fixed_thinking, read_text, tokenize_prompt
from aerie.cli.terminal import terminal_foreground
from aerie.common import folders
from aerie.common.errors import UserError
from aerie.common.progress import working
from aerie.engine.checkpoint import (
    Checkpoint,
    load_config_with_kinds,
    open_checkpoint,
    with_block_size,
)
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.conversation import Conversation
from aerie.engine.errors import CheckpointError
from aerie.engine.generate import FinishReason
from aerie.engine.grammar import GrammarCompiler
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions, choose_seq_len, compile_programs
from aerie.engine.reporter import Reporter, stop_on_interrupt
from aerie.engine.requests import Request
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.strategies.decode_config import PROMPT_LOOKUP, DecodeConfig
from aerie.engine.strategies.draft_model import check_drafter, draft_model_source
from aerie.engine.strategies.drafters import DraftSource
from aerie.engine.strategies.strategy import PassCounts
from aerie.engine.thinking import AnswerPart
from aerie.engine.thinking_plan import plan_thinking
from aerie.engine.tokenizer import check_text, note_missing_template
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend

DONE = 0
ONLY_THINKING = (
    "note: all of it was thinking, and no answer came; --n-tokens (N_TOKENS) allows more, and with "
    "--no-think the answer comes at once if the model can do so"
)
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def compile_(arguments: argparse.Namespace) -> int:
    """Compile a model's programs, so that a later run finds them ready; or estimate what they will cost."""
    if arguments.json and not arguments.estimate:
        raise UserError("--json prints what --estimate predicts: add --estimate")
    options, report = runtime_options(arguments, compile_only=True), Reporter()
    config = load_config_with_kinds(find_checkpoint(arguments.model), arguments.weights)
    config = config.with_max_positions(arguments.max_model_len)
    if arguments.estimate:
        from aerie.cli.estimate import estimate, print_estimate  # xDSL comes with it

        print_estimate(estimate(config, options, report), arguments.json)
        return DONE
    if arguments.draft is not None:  # draft tokens are checked in `rows`, whatever the decode path
        compile_programs(config, replace(options, decode=ROWS), report, all_variants=True)
    if arguments.draft is None or options.decode != ROWS:
        compile_programs(config, options, report, all_variants=True)
    if arguments.draft not in (None, PROMPT_LOOKUP):
        draft_config = load_config_with_kinds(find_checkpoint(arguments.draft), arguments.weights)
        compile_programs(draft_config, draft_model_options(options), report, all_variants=True)
    return DONE


def run(arguments: argparse.Namespace) -> int:
    """Request one prompt."""
    out = sys.stdout
    if arguments.json:  # JSON alone on standard output
        out = sys.stderr if sys.stderr.isatty() else None
    session, generation, answer = _answer(arguments, Reporter(), out)
    if arguments.json:
        print(json.dumps(_to_json(session, generation, answer)), flush=True)
    return _exit_code(generation)


def chat(arguments: argparse.Namespace) -> int:
    """Talk with the model; the conversation is kept until /reset."""
    report = Reporter()
    sampler, options = _sampler(arguments, report), _answering_options(arguments)
    options = replace(options, compile_ahead=True)
    checkpoint = _open_checkpoint(arguments, report)
    sampler.check_vocabulary(checkpoint.config.vocab_size)
    check_text(arguments.system or "", "the system message")
    note_missing_template(checkpoint.tokenizer, report.note)
    template_arguments = dict(arguments.template_arg)
    checkpoint.tokenizer.template_arguments = template_arguments
    think = template_arguments.get(ENABLE_THINKING)
    note_fixed_thinking(checkpoint.tokenizer, template_arguments, report.note)
    if arguments.system is not None or arguments.template_arg:  # a template may refuse them
        checkpoint.tokenizer.encode_chat(Conversation(arguments.system).messages("Hello"))
    decode_config = _decode_config(arguments, checkpoint, sampler)
    drafter = find_draft_model(arguments.draft, checkpoint)
    session = prepare_runtime(checkpoint, options, report)
    session.decode_config = _with_draft_model(decode_config, drafter, session, options, report)
    is_typed = sys.stdin.isatty()
    with terminal_foreground(), line_editing(report.note, completions) if is_typed else nullcontext():
        Chat(
            session,
            sampler,
            arguments.n_tokens,
            note=report.note,
            out=sys.stdout,
            read=typed_line if is_typed else piped_line,
            system=arguments.system,
            model=ChatModel(arguments.model, checkpoint.config, session.model.variant_set, session.backend),
            think=think if isinstance(think, bool) else None,
        ).run()
    return DONE


def profile(arguments: argparse.Namespace) -> int:
    """Request one prompt, and show where the time went."""
    from rich.console import Console

    session, generation, _ = _answer(arguments, Reporter(), sys.stdout)
    profiler = session.cache.profiler
    profiler.print(Console())
    if arguments.estimate:
        from aerie.cli.estimate import print_calls  # xDSL comes with it

        calls = {name: times.calls for name, times in profiler.programs.items()}
        print_calls(calls, session.model.programs, Reporter())
    return _exit_code(generation)


def mlir(arguments: argparse.Namespace) -> int:
    """Write every kernel and every program as MLIR text."""
    from aerie.multi_launch_builder.builder import write_mlir  # xDSL comes with it

    config = load_config(find_checkpoint(arguments.model))
    out = arguments.out or folders.cache_folder() / "mlir"
    try:
        with working(f"writing MLIR to {out}"):
            written = write_mlir(config.shape, choose_seq_len(config, arguments.seq_len), out)
    except OSError as error:
        raise UserError(f"cannot write to {out} ({error.strerror}); name another folder") from None
    Reporter().note(f"{len(written)} files written to {out}")
    return DONE


def _answer(
    arguments: argparse.Namespace, report: Reporter, out: TextIO | None
) -> tuple[Session, Request, AnswerPart]:
    """Answer the prompt, on `out` as the text comes, then print the figures. Everything that can be refused
    is refused first."""
    sampler, options = _sampler(arguments, report), _answering_options(arguments)
    file = arguments.json_schema
    schema = None if file is None else read_text(file, f"the file {file} of --json-schema")
    checkpoint = _open_checkpoint(arguments, report)
    sampler.check_vocabulary(checkpoint.config.vocab_size)
    grammars = GrammarCompiler(checkpoint.tokenizer, checkpoint.config)
    if schema is not None:
        sampler = replace(sampler, grammar=grammars.json(schema))
    decode_config = _decode_config(arguments, checkpoint, sampler)
    drafter = find_draft_model(arguments.draft, checkpoint)
    prompt = tokenize_prompt(checkpoint, arguments, options, report.note)
    start = None if arguments.raw else checkpoint.tokenizer.thinking_start(prompt.ids)
    sampler = replace(sampler, thinking=plan_thinking(start, grammars, None, sampler.grammar))
    session = prepare_runtime(checkpoint, prompt.options, report)
    decode_config = _with_draft_model(decode_config, drafter, session, options, report)
    with stop_on_interrupt() as interrupted:
        generation = session.generate(prompt.ids, arguments.n_tokens, sampler, interrupted, decode_config)
        answer = print_answer(session.text(generation), out, start)
    parts = [str(generation.figures), generation.finish_text, session.backend]
    if passes := _passes(generation):
        parts.insert(1, passes.summary(len(generation.token_ids)))
    report.note(" | ".join(parts))
    if answer.thinking and not answer.text:
        report.note(ONLY_THINKING)
    return session, generation, answer


def _exit_code(generation: Request) -> int:
    return INTERRUPTED if generation.finish_reason is FinishReason.INTERRUPTED else DONE


def _passes(request: Request) -> PassCounts | None:
    """What it took, where that is not a pass for each token."""
    return request.pass_counts if request.pass_counts.drafted or request.pass_counts.blocks else None


def _to_json(session: Session, generation: Request, answer: AnswerPart) -> dict[str, object]:
    """What --json prints. Times are in seconds. tokens_per_s is null without a second token, passes is null
    if each token took one."""
    figures, reason = generation.figures, generation.finish_reason
    passes = _passes(generation)
    return {
        "text": answer.text,
        "thinking": answer.thinking,
        "token_ids": generation.token_ids,
        "prompt_token_ids": list(generation.prompt_ids),
        "finish_reason": reason.value if reason else None,
        "ttft_s": figures.ttft_s,
        "tokens_per_s": figures.tokens_per_s,
        "passes": asdict(passes) if passes else None,
        "backend": session.backend,
    }


def _open_checkpoint(arguments: argparse.Namespace, report: Reporter) -> Checkpoint:
    checkpoint = open_checkpoint(find_checkpoint(arguments.model), arguments.weights)
    checkpoint.config.roles.check_answers()
    checkpoint = checkpoint.limited(arguments.max_model_len)
    return with_block_size(checkpoint, arguments.block_size, report.note)


def _decode_config(arguments: argparse.Namespace, checkpoint: Checkpoint, sampler: Sampler) -> DecodeConfig:
    """How answers are made; with drafts by lookup in place of those of a model, which is not there yet.
    UserError for what the model cannot be asked for."""
    decode_config = DecodeConfig(
        rule=arguments.rule,
        steps=arguments.steps,
        threshold=arguments.threshold,
        entropy=arguments.entropy,
        draft=None if arguments.draft is None else PROMPT_LOOKUP,
    )
    if arguments.draft and checkpoint.config.diffusion:
        decode_config = replace(decode_config, draft=arguments.draft)  # the refusal names what was given
    decode_config.strategy_factory(checkpoint.config, sampler)
    return decode_config


def find_draft_model(draft: str | None, checkpoint: Checkpoint) -> Checkpoint | None:
    """Open the draft model of --draft, with weights of the kind that the model's were asked for as; None if
    there is none. Raises as find_checkpoint, and UserError if it does not fit the model."""
    if draft is None or draft == PROMPT_LOOKUP:
        return None
    try:
        draft_model = open_checkpoint(find_checkpoint(draft), checkpoint.weights.kind)
        draft_model.config.roles.check_answers()
    except CheckpointError as error:
        raise CheckpointError(
            f"--draft {draft!r} (DRAFT) is not {PROMPT_LOOKUP!r}, so it is to be a model: {error}"
        ) from None
    ours, theirs = ((each.config, each.tokenizer) for each in (checkpoint, draft_model))
    check_drafter(ours, theirs, draft)
    return draft_model


def _with_draft_model(
    decode_config: DecodeConfig,
    drafter: Checkpoint | None,
    session: Session,
    options: RuntimeOptions,
    report: Reporter,
) -> DecodeConfig:
    """The decode configuration with drafts from this model, which is prepared here."""
    if drafter is None:
        return decode_config
    _, drafting = load_draft_model(drafter, session.model.config, options, report)
    return replace(decode_config, draft=drafting)


def load_draft_model(
    draft_model: Checkpoint, target: ModelConfig, options: RuntimeOptions, report: Reporter
) -> tuple[Session, DraftSource]:
    """Prepare the draft model. Returns its session, and the source of drafts for the target."""
    draft_session = prepare_runtime(draft_model, draft_model_options(options), report)
    return draft_session, draft_model_source(lambda: draft_session.model, threading.Lock(), target)


def draft_model_options(options: RuntimeOptions) -> RuntimeOptions:
    """The options of a draft model beside a model with these options."""
    return RuntimeOptions(None, options.backend, options.cache_dir, weights=options.weights)


def _sampler(arguments: argparse.Namespace, report: Reporter) -> Sampler:
    sampler = Sampler(
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.seed,
        arguments.min_p,
        arguments.repetition_penalty,
        arguments.presence_penalty,
        arguments.frequency_penalty,
        dict(arguments.logit_bias),
    )
    if sampler.greedy and (sampler.top_k or sampler.top_p < 1 or sampler.min_p):
        report.note("note: --top-k, --top-p and --min-p change nothing at --temperature 0, which is greedy")
    return sampler


def runtime_options(arguments: argparse.Namespace, compile_only: bool = False) -> RuntimeOptions:
    """The length, backend and cache folder of the arguments. Raises BackendError.

    Call it before the model is opened, as that may download it.
    """
    backend = select_backend(arguments.backend, arguments.numerics, compile_only=compile_only)
    folder = arguments.cache_dir or folders.programs_folder()
    return RuntimeOptions(
        arguments.seq_len,
        backend,
        folder,
        variants=arguments.variants,
        decode=arguments.decode,
        weights=getattr(arguments, "weights", "auto"),  # which not every command has
    )


def _devices(text: str) -> tuple[int, ...]:
    """Parse device numbers. Raises UserError if there is none, or one is named twice."""
    names = text.split(",")
    if not all(name.strip().isdecimal() for name in names) or len({*map(int, names)}) < len(names):
        raise UserError(
            f"--devices '{text}' (DEVICES) names no devices; give a number, as 0, or several, each "
            "once, as 0,1"
        )
    return tuple(map(int, names))


def _answering_options(arguments: argparse.Namespace) -> RuntimeOptions:
    """runtime_options with --context-end, --devices and --fallback, which is dropped if it names the same
    backend."""
    options, devices = runtime_options(arguments), _devices(arguments.devices)
    backend = replace(options.backend, device=devices[0])
    options = replace(options, context_end=arguments.context_end, backend=backend, devices=devices)
    if arguments.fallback is None:
        return options
    fallback = select_backend(arguments.fallback)
    return options if fallback.name == options.backend.name else replace(options, fallback=fallback)
