"""A session whose prompt is longer than its programs take: others are compiled and take their place."""

import types
from dataclasses import replace

import pytest

from aerie.engine import session as session_module
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.compiling import RuntimeOptions
from aerie.engine.errors import PromptTooLongError, TooLittleMemoryError
from aerie.engine.progress import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import prepare_runtime
from aerie.runtime import Profiler, RunError, select_backend

SHORT, LONG = [0, 17, 300, 41], [*range(3, 140)]


@pytest.fixture
def world(monkeypatch, make_checkpoint, programs_without_text, numpy_runner_class, tmp_path):
    """Sessions of the small checkpoint whose programs run in numpy, and what happened, in turn."""
    checkpoint = open_checkpoint(make_checkpoint())
    object.__setattr__(checkpoint.config, "eos_token_ids", ())
    happened, failing = [], {}

    class Cache(numpy_runner_class):
        def __init__(self, backend):
            super().__init__(checkpoint.config)
            self.backend, self.profiler = backend, Profiler()

        def close(self):
            happened.append("closed")

    def compile_programs(config, options, report):
        happened.append(f"compiled for {options.length(config)}")
        report.note(options.backend.reason)
        if error := failing.pop("compiling", None):
            raise error
        return programs_without_text(config.shape, options.length(config)), Cache(options.backend)

    def preload(model, checkpoint, report):
        happened.append("loading")
        if error := failing.pop("loading", None):
            raise error
        list(session_module.preload(model, checkpoint.weights))

    def open_cache(folder, backend, programs, config, profiler, report):
        return Cache(backend)

    for name, stand_in in {
        "compile_programs": compile_programs,
        "compile_into": lambda *given: happened.append("compiled for another backend"),
        "open_cache": open_cache,
        "_preload": preload,
    }.items():
        monkeypatch.setattr(session_module, name, stand_in)

    def open_session(seq_len=None, **options):
        chosen = RuntimeOptions(seq_len, select_backend("virtual"), tmp_path, **options)
        return prepare_runtime(checkpoint, chosen, Reporter())

    return types.SimpleNamespace(open=open_session, happened=happened, failing=failing)


def tokens(session, prompt):
    return list(session.generate(prompt, 4, Sampler()))


def test_the_answer_is_that_of_longer_programs_from_the_start(world, capsys):
    session = world.open()
    before = tokens(session, SHORT)
    assert session.model.seq_len == 128
    answer = tokens(session, LONG)
    assert session.model.seq_len == 256
    assert world.happened == ["compiled for 128", "loading", "compiled for 256", "closed", "loading"]
    assert "137 tokens are more than the programs take; from here on they take up to 256" in (
        capsys.readouterr().err
    )
    assert tokens(session, SHORT) == before
    assert answer == tokens(world.open(256), LONG)
    assert session.backend == "virtual"


def test_a_length_that_was_asked_for_stays(world):
    session = world.open(128)
    with pytest.raises(PromptTooLongError, match="give 192, or leave --seq-len out"):
        session.generate(LONG, 4, Sampler())
    assert world.happened == ["compiled for 128", "loading"]


def test_more_than_the_model_has_positions(world):
    session = world.open()
    with pytest.raises(PromptTooLongError, match="257 tokens long and the model has 256 positions"):
        session.make_room([5] * 257)
    assert world.happened == ["compiled for 128", "loading"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), RunError("no compiler"), TooLittleMemoryError("full")]
)
def test_compiling_that_ends_early_leaves_the_session_as_it_was(world, error):
    session = world.open()
    before = tokens(session, SHORT)
    world.failing["compiling"] = error
    with pytest.raises(type(error)):
        session.make_room(LONG)
    assert "closed" not in world.happened
    assert tokens(session, SHORT) == before


def test_loading_that_ends_early_is_done_again(world):
    session = world.open()
    before = tokens(session, SHORT)
    world.failing["loading"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        session.make_room(LONG)
    assert tokens(session, SHORT) == before
    assert world.happened[-2:] == ["closed", "loading"]


def test_a_fallback_takes_over_with_the_longer_programs(world):
    """One that is there still; after that, the backend that failed is not asked again."""
    spare = replace(select_backend("virtual"), name="spare")
    session = world.open(fallback=spare)
    world.failing["loading"] = RunError("lost", "arguments: many")
    answer = tokens(session, LONG)
    assert (session.backend, session.model.seq_len) == ("virtual, then spare", 256)
    assert answer == tokens(world.open(256), LONG)

    session = world.open(fallback=spare)
    session.recover(RunError("lost"), "here")
    assert (tokens(session, LONG), session.backend) == (answer, "virtual, then spare")
    assert session.fallback is None
