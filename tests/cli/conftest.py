"""What tests of the command line share: sessions whose programs run in numpy, and the run command on them."""

from __future__ import annotations

import types
from typing import Any

import pytest

from aerie.cli import commands
from aerie.cli.command_line import main
from aerie.engine.model import build_model, preload
from aerie.engine.session import Session
from aerie.engine.variant_set import VariantSet
from aerie.multi_launch_builder import round_up_seq_len
from aerie.runtime import Profiler


class NumpyCache:
    """Stands where the KernelCache stands in a session."""

    def __init__(self):
        self.backend = types.SimpleNamespace(name="numpy")
        self.profiler = Profiler()


@pytest.fixture
def prepared(monkeypatch, numpy_runner_class, programs_without_text):
    """Sessions whose programs run in numpy; gives the list of the options they were prepared with."""
    prepared = []

    def prepare(checkpoint, options, report):
        prepared.append(options)
        report.note("prepared")
        config = checkpoint.config
        seq_len = options.seq_len or round_up_seq_len(max(128, options.prompt_tokens))
        cache: Any = NumpyCache()
        runner = numpy_runner_class(config)
        model = build_model(
            checkpoint,
            programs_without_text(config.shape, seq_len),
            runner,
            VariantSet(seq_len),
            cache.profiler.span,
        )
        list(preload(model, checkpoint.weights))
        return Session(model, checkpoint.tokenizer, cache, report.note)

    monkeypatch.setattr(commands, "prepare_runtime", prepare)
    return prepared


@pytest.fixture
def run(prepared, capsys, make_checkpoint):
    """run(*flags) of the run command on the small checkpoint -> (exit code, stdout, stderr)."""

    def run(*flags, model=None, command="run"):
        code = main([command, "--model", str(model or make_checkpoint()), *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
