"""From a model's name to one that is ready to answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.commands import beside, find_drafter, of_drafter
from aerie.engine.blocks import ROWS
from aerie.engine.checkpoint import Checkpoint, open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.config import ModelConfig, load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.footprint import foreseen
from aerie.engine.pages import PAGE, pages_for
from aerie.engine.progress import Reporter
from aerie.engine.scheduler import MOST_ANSWERS
from aerie.engine.session import prepare_runtime
from aerie.engine.strategies.manner import LOOKUP
from aerie.engine.tokenizer import Tokenizer, load_tokenizer, note_missing_template
from aerie.runtime import select_backend
from aerie.serve.worker import Opened


class Runtime(NamedTuple):
    """How a model is to run, in words that mean the same on every machine: as the flags of `aerie serve`.
    draft: lookup, or the model that guesses; of models that say one token after the other.
    template_arguments: given to the chat templates. warm: all programs are compiled and loaded before the
    model is ready, and none afterwards."""

    backend: str
    numerics: str | None
    variants: str | None
    kv_pool: int | None
    cache_dir: Path
    draft: str | None = None
    template_arguments: tuple[tuple[str, Any], ...] = ()
    warm: bool = False

    def options(self) -> RuntimeOptions:
        """On this machine. Raises AerieError."""
        return RuntimeOptions(
            None,
            select_backend(self.backend, self.numerics),
            self.cache_dir,
            variants=self.variants,
            decode=ROWS,
            kv_pool=self.kv_pool,
        )


class Opening(NamedTuple):
    """A model by its name or folder, and how it is run. draft, template_arguments, warm: as of Runtime.
    limit: of all models of the server together, bytes of memory, of which its pool may have a quarter; None:
    it looks what there is."""

    model: str
    options: RuntimeOptions
    report: Reporter
    draft: str | None = None
    limit: int | None = None
    template_arguments: tuple[tuple[str, Any], ...] = ()
    warm: bool = False

    def open(self) -> Opened:
        """Ready to answer. Raises AerieError."""
        folder = find_checkpoint(self.model)
        options = self._with_pool(load_config(folder))
        given = self.draft, self.template_arguments, self.warm
        return open_model(self.model, options, self.report, *given)

    def needs(self) -> int:
        """The bytes of memory that it takes beside others, with all variants in use and the model that
        guesses for it. Raises AerieError."""
        folder = find_checkpoint(self.model)
        config = load_config(folder)
        return foreseen(config, self._with_pool(config)).beside + self._of_drafter(config, folder)

    def _with_pool(self, config: ModelConfig) -> RuntimeOptions:
        options = self.options
        if self.limit is None or options.kv_pool is not None:
            return options
        left = max(0, self.limit - foreseen(config, options).beside)
        pages = pages_for(config, None, MOST_ANSWERS, left)
        return replace(options, kv_pool=pages * PAGE)

    def _of_drafter(self, config: ModelConfig, folder: Path) -> int:
        """A KV cache for each answer, too."""
        if self.draft is None or self.draft == LOOKUP or not guesses(config, folder, self.draft):
            return 0
        found = foreseen(load_config(find_checkpoint(self.draft)), of_drafter(self.options))
        return found.beside + (MOST_ANSWERS - 1) * found.kv_cache


def open_model(
    model: str,
    options: RuntimeOptions,
    report: Reporter,
    draft: str | None = None,
    template_arguments: Iterable[tuple[str, Any]] = (),
    warm: bool = False,
) -> Opened:
    """A model with a scheduler of the family `rows`. draft, template_arguments, warm: as of Runtime. Raises
    AerieError."""
    opened = _opened(model, options, report, draft, template_arguments)
    for session in filter(None, (opened.session, opened.drafter) if warm else ()):
        session.warm()
    return opened


def _opened(
    model: str,
    options: RuntimeOptions,
    report: Reporter,
    draft: str | None,
    template_arguments: Iterable[tuple[str, Any]],
) -> Opened:
    folder = find_checkpoint(model)
    checkpoint, tokenizer = open_checkpoint(folder), prompt_tokenizer(folder, template_arguments)
    drafter = drafter_of(checkpoint, folder, draft)
    note_missing_template(checkpoint.tokenizer, report.note)
    session = prepare_runtime(checkpoint, options, report)
    opened = Opened(session, session.scheduler_in(ROWS), tokenizer)
    if drafter is not None:
        guessing, drafting = beside(drafter, checkpoint.config, options, report)
        return replace(opened, draft=drafting, drafter=guessing)
    return replace(opened, draft=LOOKUP) if draft and guesses(checkpoint.config, folder, draft) else opened


def prompt_tokenizer(folder: Path, template_arguments: Iterable[tuple[str, Any]]) -> Tokenizer:
    """Of a checkpoint, for prompts. template_arguments: for its chat template, if it has one. Raises
    CheckpointError and TemplateArgumentError."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.has_chat_template:
        tokenizer.template_arguments = dict(template_arguments)
    return tokenizer


def drafter_of(checkpoint: Checkpoint, folder: Path, draft: str | None) -> Checkpoint | None:
    """The model that guesses for this one; none where nobody does, or by lookup. As find_drafter."""
    return find_drafter(draft, checkpoint) if guesses(checkpoint.config, folder, draft) else None


def guesses(config: ModelConfig, folder: Path, draft: str | None) -> bool:
    """Whether answers of this model are guessed: it says one token after the other, and is not the one that
    guesses."""
    if draft is None or config.diffusion is not None:
        return False
    try:
        return draft == LOOKUP or find_checkpoint(draft) != folder
    except CheckpointError:
        return True  # which find_drafter says in words of its own
