"""From a model's name to one that is ready to answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from aerie.engine.blocks import ROWS
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.progress import Reporter
from aerie.engine.session import prepare_runtime
from aerie.engine.tokenizer import load_tokenizer, note_missing_template
from aerie.llama32_1b.find import find_checkpoint
from aerie.runtime import select_backend
from aerie.serve.worker import Opened


class Runtime(NamedTuple):
    """How a model is to run, in words that mean the same on every machine: as the flags of `aerie serve`."""

    backend: str
    numerics: str | None
    variants: str | None
    kv_pool: int | None
    cache_dir: Path

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


def open_model(model: str, options: RuntimeOptions, report: Reporter) -> Opened:
    """A model with a scheduler of the family `rows`. Raises AerieError."""
    folder = find_checkpoint(model)
    checkpoint = open_checkpoint(folder)
    note_missing_template(checkpoint.tokenizer, report.note)
    session = prepare_runtime(checkpoint, options, report)
    return Opened(session, session.scheduler_in(ROWS), load_tokenizer(folder))
