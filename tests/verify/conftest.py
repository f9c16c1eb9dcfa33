"""Sessions and references that the tests of the gate share: opening one takes seconds, a fault in it none."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions, all_program_names
from aerie.engine.reporter import Reporter
from aerie.kernel_builder import dsl
from aerie.multi_launch_builder import program_store
from aerie.runtime import select_backend
from aerie.verify import layer_check
from aerie.verify.reference import Reference
from aerie.verify.schedule_identity import with_few_rows
from tests.engine.checkpoints import write_checkpoint
from tests.verify.faults import ONE_VARIANT, Healthy


@pytest.fixture(scope="session", autouse=True)
def reference_computes_once() -> Iterator[None]:
    """What a reference computes for the same tokens, step by step, serves all faults: they are in our side
    alone."""
    compute = layer_check.ReferencePasses

    @functools.lru_cache(maxsize=4)
    def computed(reference, token_ids, steps, numerics):
        return compute(reference, token_ids, steps, numerics)

    def passes(reference, token_ids, steps, numerics):
        return computed(reference, tuple(token_ids), tuple(map(tuple, steps)), numerics)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_check, "ReferencePasses", passes)
        yield


@pytest.fixture(scope="session")
def open_session():
    """open_session(checkpoint, seq_len=None, config=None, rounding="conv_even", sets_rounding=True,
    variants=None).

    A session on the virtual NPU, on the variants, or the model's default ones, with all their programs
    compiled, or on the six programs of `seq_len`. `config` replaces the checkpoint's; `rounding` is how its
    cores start out, `sets_rounding` whether kernels without an external C++ function set the rounding mode.
    """

    def make(checkpoint, seq_len=None, config=None, rounding="conv_even", sets_rounding=True, variants=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VNPU_ROUNDING", rounding)
            if not sets_rounding:
                patch.setattr(dsl.Kernel, "round_to_even", lambda _kernel, _buffer: None)
                patch.setattr(program_store, "programs_store", lambda: None)  # nor find the true ones
            options = RuntimeOptions(
                seq_len, select_backend("virtual"), default_cache_dir(), variants=variants
            )
            config = config or checkpoint.config
            session = prepare_runtime(replace(checkpoint, config=config), options, Reporter())
            if not seq_len:
                session.model.ensure_programs(all_program_names(config, session.model.variant_set))
            return session

    return make


@pytest.fixture(scope="session")
def healthy(demo_session, demo_checkpoint, open_session):
    """What faults are put into; what is rebuilt otherwise is so once."""
    built = {}

    def rebuild(**otherwise):
        key = repr(otherwise)
        if key not in built:
            built[key] = open_session(demo_checkpoint, **otherwise, variants=ONE_VARIANT)
        return built[key]

    return Healthy(demo_session, demo_checkpoint, rebuild)


@pytest.fixture(scope="session")
def write_llama(tmp_path_factory):
    """write_llama(**config) -> the folder of a random Llama."""
    return lambda **config: write_checkpoint(tmp_path_factory.mktemp("llama"), **config)


@pytest.fixture(scope="session")
def demo_checkpoint():
    return open_checkpoint(DEMO_FOLDER)


@pytest.fixture(scope="session")
def demo_session(open_session, demo_checkpoint):
    return open_session(demo_checkpoint)


@pytest.fixture(scope="session")
def demo_reference():
    return Reference.open(DEMO_FOLDER)


@pytest.fixture(scope="session")
def few_rows_session(demo_session):
    """The demo by its programs of 8 and 32 rows, in decode too."""
    return with_few_rows(demo_session)


@pytest.fixture(scope="session")
def six_session(open_session, demo_checkpoint):
    """The demo on the six programs of 128 tokens."""
    return open_session(demo_checkpoint, 128)
