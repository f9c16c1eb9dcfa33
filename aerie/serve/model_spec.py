"""From the name of a model to an opened model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.commands import draft_model_options, find_draft_model, load_draft_model
from aerie.engine.checkpoint import Checkpoint, load_config_with_kinds, open_checkpoint
from aerie.engine.config import ModelConfig
from aerie.engine.errors import CheckpointError
from aerie.engine.memory_estimate import estimate_all_variants
from aerie.engine.open_session import prepare_runtime
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.page_pool import pages_for
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.scheduler import MAX_RUNNING_REQUESTS
from aerie.engine.strategies.decode_config import PROMPT_LOOKUP
from aerie.engine.tokenizer import Tokenizer, load_tokenizer, note_missing_template
from aerie.engine.variant_set import ROWS
from aerie.runtime import select_backend
from aerie.serve.worker import OpenedModel


class ModelFlags(NamedTuple):
    """The flags of `aerie serve` for a model; they mean the same on every machine. draft: "lookup" or a draft
    model, for autoregressive models. template_arguments: for the chat template. load_all_programs: compile
    and load all programs before the model is ready. max_positions: of a request, at most."""

    backend: str
    numerics: str | None
    variants: str | None
    kv_pool: int | None
    cache_dir: Path
    draft: str | None = None
    template_arguments: tuple[tuple[str, Any], ...] = ()
    load_all_programs: bool = False
    weights: str = "auto"
    max_positions: int | None = None

    def runtime_options(self) -> RuntimeOptions:
        """The options on this machine. Raises AerieError if the backend is not available."""
        return RuntimeOptions(
            None,
            select_backend(self.backend, self.numerics),
            self.cache_dir,
            variants=self.variants,
            decode=ROWS,
            kv_pool=self.kv_pool,
            compile_ahead=not self.load_all_programs,
            weights=self.weights,
            max_positions=self.max_positions,
        )


class ModelSpec(NamedTuple):
    """A model, by name or folder, and how it runs. draft, template_arguments, load_all_programs: as in
    ModelFlags. memory_limit: bytes for all models of the server; the pool gets at most a quarter of what is
    left. None means the size follows the available memory."""

    model: str
    options: RuntimeOptions
    report: Reporter
    draft: str | None = None
    memory_limit: int | None = None
    template_arguments: tuple[tuple[str, Any], ...] = ()
    load_all_programs: bool = False

    def open(self) -> OpenedModel:
        """Open the model. Raises AerieError."""
        folder = find_checkpoint(self.model)
        config = load_config_with_kinds(folder, self.options.weights)
        options = self._with_pool(self.options.limited(config))
        extras = self.draft, self.template_arguments, self.load_all_programs
        return open_model(self.model, options, self.report, *extras)

    def memory_bytes(self) -> int:
        """Estimated bytes of memory beyond what is allocated now, with all variants loaded and the draft
        model. Raises AerieError."""
        folder = find_checkpoint(self.model)
        config = self.options.limited(load_config_with_kinds(folder, self.options.weights))
        return estimate_all_variants(config, self._with_pool(config)).additional + self._draft_model_bytes(
            config, folder
        )

    def _with_pool(self, config: ModelConfig) -> RuntimeOptions:
        options = self.options
        if self.memory_limit is None or options.kv_pool is not None:
            return options
        remaining = max(0, self.memory_limit - estimate_all_variants(config, options).additional)
        pages = pages_for(config, None, MAX_RUNNING_REQUESTS, remaining)
        return replace(options, kv_pool=pages * PAGE_SIZE)

    def _draft_model_bytes(self, config: ModelConfig, folder: Path) -> int:
        """Memory of the draft model, with a KV cache for each running request."""
        if self.draft is None or self.draft == PROMPT_LOOKUP or not uses_drafts(config, folder, self.draft):
            return 0
        drafter = load_config_with_kinds(find_checkpoint(self.draft), self.options.weights)
        estimate = estimate_all_variants(drafter, draft_model_options(self.options))
        return estimate.additional + (MAX_RUNNING_REQUESTS - 1) * estimate.kv_cache


def open_model(
    model: str,
    options: RuntimeOptions,
    report: Reporter,
    draft: str | None = None,
    template_arguments: Iterable[tuple[str, Any]] = (),
    load_all_programs: bool = False,
) -> OpenedModel:
    """Open a model with a scheduler in the decode path `rows`. draft, template_arguments, load_all_programs:
    as in ModelFlags. Raises AerieError."""
    opened = _open_with_draft(model, options, report, draft, template_arguments)
    for session in filter(None, (opened.session, opened.draft_session) if load_all_programs else ()):
        session.load_all_programs()
    return opened


def _open_with_draft(
    model: str,
    options: RuntimeOptions,
    report: Reporter,
    draft: str | None,
    template_arguments: Iterable[tuple[str, Any]],
) -> OpenedModel:
    folder = find_checkpoint(model)
    checkpoint = open_checkpoint(folder, options.weights)
    tokenizer = prompt_tokenizer(folder, template_arguments)
    checkpoint = checkpoint.limited(options.max_positions)
    drafter = draft_model_of(checkpoint, folder, draft)
    note_missing_template(checkpoint.tokenizer, report.note)
    session = prepare_runtime(checkpoint, options, report)
    opened = OpenedModel(session, session.scheduler, tokenizer)
    if drafter is not None:
        draft_session, draft_source = load_draft_model(drafter, checkpoint.config, options, report)
        return replace(opened, draft=draft_source, draft_session=draft_session)
    return (
        replace(opened, draft=PROMPT_LOOKUP)
        if draft and uses_drafts(checkpoint.config, folder, draft)
        else opened
    )


def prompt_tokenizer(folder: Path, template_arguments: Iterable[tuple[str, Any]]) -> Tokenizer:
    """Load a tokenizer for prompts. template_arguments: for its chat template, if it has one. Raises
    CheckpointError or TemplateArgumentError."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.has_chat_template:
        tokenizer.template_arguments = dict(template_arguments)
    return tokenizer


def draft_model_of(checkpoint: Checkpoint, folder: Path, draft: str | None) -> Checkpoint | None:
    """Open the draft model for a checkpoint; None if there is none or drafts come from prompt lookup. Raises
    as find_draft_model."""
    return find_draft_model(draft, checkpoint) if uses_drafts(checkpoint.config, folder, draft) else None


def uses_drafts(config: ModelConfig, folder: Path, draft: str | None) -> bool:
    """Whether outputs of this model are drafted: it answers, is autoregressive, and is not the draft model
    itself."""
    if draft is None or config.diffusion is not None or config.roles.reason_against_answers:
        return False
    try:
        return draft == PROMPT_LOOKUP or find_checkpoint(draft) != folder
    except CheckpointError:
        return True  # which find_draft_model says in words of its own
