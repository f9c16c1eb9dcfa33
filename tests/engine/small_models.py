"""Fixtures of small checkpoints, and of models whose programs run in numpy: a plugin for all tests."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.model import LoadedModel, build_model, preload
from aerie.engine.program_library import variant_set_for
from aerie.engine.variant_set import ROWS, VariantSet
from aerie.multi_launch_builder import Program, Variant, plan_variant_programs
from aerie.multi_launch_builder.programs import plan_programs
from aerie.multi_launch_builder.variants import state_layer_kinds
from tests.engine import against_transformers
from tests.engine import checkpoints as checkpoint_files
from tests.engine.numpy_rows_runner import NumpyRowsRunner
from tests.engine.numpy_runner import NumpyRunner


def argument_tables(shape, seq_len, names=None):
    """The programs' tables without their MLIR text, which the numpy runner does not read."""
    plans = plan_programs(shape, seq_len, names)
    return {name: Program(name, "", plan.arguments, (), ()).with_plan(plan) for name, plan in plans.items()}


def tables_of_rows(config):
    """The same of programs of 8 and 64 rows."""
    plans = plan_variant_programs(config.shape, [Variant(8, 512), Variant(64, 512)])
    return {name: Program(name, "", plan.arguments, (), ()).with_plan(plan) for name, plan in plans.items()}


@pytest.fixture(scope="session")
def programs_without_text():
    """programs_without_text(shape, seq_len) -> the six programs, not built."""
    return argument_tables


@pytest.fixture(scope="session")
def checkpoints():
    """The module that writes checkpoints."""
    return checkpoint_files


@pytest.fixture(scope="session")
def make_checkpoint(tmp_path_factory):
    """make_checkpoint(**changes) -> folder of a tiny random Llama; the same changes give the same folder."""
    made = {}

    def make(**changes):
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = checkpoint_files.write_checkpoint(tmp_path_factory.mktemp("llama"), **changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def against():
    """The module that compares a model's logits with those of transformers."""
    return against_transformers


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

    def make(folder, seq_len=64, max_positions=None) -> LoadedModel:
        checkpoint = open_checkpoint(folder)
        checkpoint = replace(checkpoint, config=checkpoint.config.with_max_positions(max_positions))
        config = checkpoint.config
        if config.delta:  # which has no six programs
            programs, variants = tables_of_rows(config), variant_set_for(config, "8,64x512", ROWS)
            runner: Any = NumpyRowsRunner(config)
        else:
            programs = argument_tables(config.shape, seq_len)
            variants = VariantSet(seq_len, state_kinds=state_layer_kinds(config.shape))
            runner = NumpyRunner(config)  # has what these programs need of a runner
        model = build_model(checkpoint, programs, runner, variants)
        list(preload(model, checkpoint.weights))
        return model

    return make
