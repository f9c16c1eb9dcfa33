"""Checkpoints and models shared by the tests of the driver."""

from __future__ import annotations

import importlib.util
import shutil
import types
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from aerie.cli import commands
from aerie.cli.arguments import main
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.model import LoadedModel, build_model, preload
from aerie.engine.session import Session
from aerie.engine.variant_set import VariantSet
from aerie.multi_launch_builder import Program, round_up_seq_len
from aerie.multi_launch_builder.programs import plan_programs
from aerie.runtime import Profiler


def load_helper(name):
    """A module beside this file: tests are no package, so it cannot be imported by name."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


helpers = load_helper("checkpoints")
NumpyRunner = load_helper("numpy_runner").NumpyRunner


def argument_tables(shape, seq_len):
    """The programs' tables without their MLIR text, which the numpy runner does not read."""
    plans = plan_programs(shape, seq_len)
    return {name: Program(name, "", plan.arguments, (), ()).with_plan(plan) for name, plan in plans.items()}


@pytest.fixture(scope="session")
def programs_without_text():
    """programs_without_text(shape, seq_len) -> the six programs, not built."""
    return argument_tables


@pytest.fixture(scope="session")
def checkpoints():
    """The module that writes checkpoints."""
    return helpers


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """make_checkpoint(**changes) -> folder of a tiny random Llama; the same changes give the same folder."""
    made = {}

    def make(**changes):
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = helpers.write_checkpoint(tmp_path_factory.mktemp("llama"), **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def against():
    """The module that compares a model's logits with those of transformers."""
    return load_helper("against_transformers")


@pytest.fixture
def damaged(make_checkpoint, tmp_path):
    """A copy of the small checkpoint that a test may damage."""
    return shutil.copytree(make_checkpoint(), tmp_path / "damaged")


@pytest.fixture
def change_tensors(damaged):
    """Rewrite the checkpoint's one file after `change(tensors)`."""

    def rewrite(change):
        tensors = load_file(damaged / "model.safetensors")
        change(tensors)
        save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
        return damaged

    return rewrite


@pytest.fixture(scope="session")
def numpy_runner_class():
    """Computes the six programs in numpy."""
    return NumpyRunner


@pytest.fixture(scope="session")
def numpy_model():
    """numpy_model(folder, seq_len) -> LoadedModel whose programs run in numpy."""

    def make(folder, seq_len=64) -> LoadedModel:
        checkpoint = open_checkpoint(folder)
        programs = argument_tables(checkpoint.config.shape, seq_len)
        model = build_model(checkpoint, programs, NumpyRunner(checkpoint.config), VariantSet(seq_len))
        list(preload(model, checkpoint.weights))
        return model

    return make


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
        cache = NumpyCache()
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
