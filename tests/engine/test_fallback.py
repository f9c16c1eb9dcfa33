"""An answer that the NPU fails in goes on from its KV cache on a stand-in: no token lost, none made twice.

First in numpy, with a failure at every single call; then the demo model on the virtual NPU behind a stand-in
for pyxrt. The stand-in proves plumbing: nothing here has run on an NPU.
"""

import io
import json
import shutil
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.cli import commands
from aerie.cli.arguments import default_cache_dir
from aerie.cli.chat import Chat
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.cli.command_line import main
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.forward import decode_step, next_token_logits, prefill
from aerie.engine.generate import raise_error
from aerie.engine.model import build_model, preload
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.session import Session
from aerie.engine.variant_set import VariantSet
from aerie.runtime import Backend, KernelCache, RunError, select_backend
from aerie.runtime.npu.device import NpuAccess
from aerie.runtime.toolchain import VirtualToolchain
from aerie.virtual_npu import pyxrt

PROMPT = [0, 17, 300, 41]
NEW = 5
CALLS_OF_PREFILL, CALLS_OF_A_TOKEN = 2 * 3 + 1, 2 * 2 + 1  # two layers, and the LM head


# in numpy


@pytest.fixture
def failing_cache(numpy_runner_class: Any):
    """A NumpyRunner with a backend, that fails for good at call number `fails_at`, counted from 0."""

    class FailingCache(numpy_runner_class):
        def __init__(self, config, name, fails_at=None, gain=1):
            super().__init__(config)
            self.backend = types.SimpleNamespace(name=name)
            self.fails_at, self.gain, self.closed = fails_at, gain, False

        def run(self, program, /, **arguments):
            assert not self.closed
            if self.fails_at is not None and len(self.calls) >= self.fails_at:
                raise RunError(f"program '{program.name}' is lost", "arguments: many")
            return super().run(program, **arguments)

        def rms_gemv_rope(self, x, **arrays):
            return super().rms_gemv_rope(x=(x * self.gain).astype(x.dtype), **arrays)

        def rms_gemms_rope(self, x, **arrays):
            values = super().rms_gemms_rope(x=x, **arrays)
            values["v"] = (values["v"] * self.gain).astype(x.dtype)
            return values

        def close(self):
            for results in self.results.values():
                for array in results.values():
                    array[...] = 0  # views into buffers that are gone
            self.closed = True

    return FailingCache


@pytest.fixture
def open_model(make_checkpoint, programs_without_text):
    """open_model(cache) -> the small model on that runner, weights in place; never ends by itself."""
    checkpoint = open_checkpoint(make_checkpoint())
    programs = programs_without_text(checkpoint.config.shape, 64)

    def open_one(runner):
        model = build_model(checkpoint, programs, runner, VariantSet(64))
        list(preload(model, checkpoint.weights))
        object.__setattr__(model.config, "eos_token_ids", ())
        return model

    return open_one


@pytest.fixture
def open_on(open_model):
    """open_on(cache, note, fallback) -> a session on that runner."""
    no_tokenizer: Any = None
    return lambda cache, note, fallback=None: Session(open_model(cache), no_tokenizer, cache, note, fallback)


@pytest.fixture
def answer(failing_cache, open_model, open_on):
    """answer(fails_at) -> tokens, notes and session of an answer whose first cache fails at that call."""

    def answer(fails_at, gain=1, temperature=0.0, sampler=None):
        notes: list[str] = []
        config = open_model(failing_cache(None, "spare")).config

        def fall_back():
            spare = failing_cache(config, "spare")
            return spare, open_model(spare)

        session = open_on(failing_cache(config, "npu", fails_at, gain), notes.append, fall_back)
        generation = session.generate(PROMPT, NEW, sampler or Sampler(temperature, seed=1))
        return list(generation), notes, session

    return answer


def test_a_failure_at_any_call_changes_no_token(answer):
    calls = CALLS_OF_PREFILL + (NEW - 1) * CALLS_OF_A_TOKEN
    wanted, notes, session = answer(None)
    assert (len(wanted), notes, session.backend) == (NEW, [], "npu")
    assert len(session.cache.calls) == calls
    for fails_at in range(calls):
        tokens, notes, session = answer(fails_at)
        assert tokens == wanted, f"failing at call {fails_at}"
        assert session.backend == "npu, then spare"
        token = 1 if fails_at < CALLS_OF_PREFILL else 2 + (fails_at - CALLS_OF_PREFILL) // CALLS_OF_A_TOKEN
        assert f"backend npu is given up at token {token} of the answer" in notes[0]
        assert notes[-1] == f"going on at token {token} of the answer on backend spare"
    assert answer(calls)[1] == []


def test_drawing_goes_on_where_it_was(answer):
    wanted, _, _ = answer(None, temperature=2.0)
    for fails_at in range(0, CALLS_OF_PREFILL + (NEW - 1) * CALLS_OF_A_TOKEN, 3):
        assert answer(fails_at, temperature=2.0)[0] == wanted


class Seeing(Sampler):
    """Greedy, and keeps the logits it was given."""

    def __init__(self):
        super().__init__()
        self.logits = []

    def __call__(self, logits, *context):
        self.logits.append(logits.copy())
        return super().__call__(logits, *context)


def by_hand(first, second, made):
    """Logits of an answer in which `first` makes that many tokens, and is lost in the next."""
    kv, logits = first.new_cache(len(PROMPT) + NEW), []
    hidden = prefill(first, PROMPT, kv)[-1]
    for token in range(NEW):
        logits.append(next_token_logits(first if token < made else second, hidden))
        hidden = decode_step(first if token < made - 1 else second, int(logits[-1].argmax()), kv)
    return logits


@pytest.mark.parametrize("made", [1, 2, 3])
@pytest.mark.parametrize("call", range(CALLS_OF_A_TOKEN))
def test_the_rest_is_what_the_stand_in_alone_makes_of_the_kv_cache(
    answer, failing_cache, open_model, made, call
):
    """The first cache computes something else, so that it shows in every logit who computed what."""
    config = open_model(failing_cache(None, "x")).config
    other, spare = (open_model(failing_cache(config, "x", gain=gain)) for gain in (3, 1))
    fails_at = CALLS_OF_PREFILL + (made - 1) * CALLS_OF_A_TOKEN + call
    seen = Seeing()
    answer(fails_at, gain=3, sampler=seen)
    np.testing.assert_array_equal(seen.logits, by_hand(other, spare, made))
    for alone in (1, 3):
        whole = Seeing()
        answer(None, gain=alone, sampler=whole)
        assert not np.array_equal(seen.logits, whole.logits)


def test_without_a_stand_in_the_failure_is_the_end(failing_cache, open_model, open_on):
    config = open_model(failing_cache(None, "x")).config
    made = open_on(failing_cache(config, "npu", 9), print).generate(PROMPT, NEW, Sampler())
    with pytest.raises(RunError, match="is lost"):
        list(made)
    assert len(made.token_ids) == 1
    with pytest.raises(RunError, match="is lost"):
        raise_error(RunError("it is lost"), "here")


def test_a_stand_in_that_fails_is_not_replaced(failing_cache, open_model, open_on):
    config = open_model(failing_cache(None, "x")).config
    notes: list[str] = []

    def fall_back():
        spare = failing_cache(config, "spare", fails_at=2)
        return spare, open_model(spare)

    session = open_on(failing_cache(config, "npu", 3), notes.append, fall_back)
    with pytest.raises(RunError, match="is lost"):
        list(session.generate(PROMPT, NEW, Sampler()))
    assert session.cache.backend.name == "spare"
    assert len([note for note in notes if "given up" in note]) == 1


# the demo model

QUESTION = "What is the capital of France?"


class Prebuilt(VirtualToolchain):
    """In the place of a compiler: the virtual NPU's programs, which `make run` and others compile too."""

    def compile(self, program, work, *_):
        cache = KernelCache(default_cache_dir(), select_backend("virtual"))
        return Path(shutil.copy(cache.compile_and_cache(program).path, work / "program.elf"))


@pytest.fixture(scope="module")
def prebuilt():
    return Prebuilt()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def virtual(prebuilt):
    return Backend("virtual", prebuilt, pyxrt, "backend virtual: for the test")


@pytest.fixture(scope="module")
def wanted(virtual, folder):
    """The virtual NPU's own answer: tokens and text."""
    options = RuntimeOptions(None, virtual, folder)
    session = prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter(io.StringIO()))
    generation = ask(session)
    return "".join(session.text(generation)), generation.token_ids


@pytest.fixture
def npu(monkeypatch, tmp_path, pyxrt_stand_in, prebuilt):
    """A backend npu on a stand-in for pyxrt."""
    monkeypatch.setenv("AERIE_NPU_LOCK", str(tmp_path / "aerie.lock"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Backend("npu", prebuilt, pyxrt_stand_in.PyxrtStandIn(), "backend npu: a stand-in", NpuAccess())


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def open_session(npu, virtual, folder, log):
    """A session on the stand-in that may fall back to the virtual NPU; `log` has its notes."""

    def open_one(fallback=virtual):
        options = RuntimeOptions(None, npu, folder, fallback)
        return prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter(log, terminal=False))

    return open_one


def ask(session, question=QUESTION):
    ids = session.tokenizer.encode_chat([{"role": "user", "content": question}])
    return session.generate(ids, 24, Sampler())


def layers(session):
    return session.model.config.num_hidden_layers


POINTS = {
    "the first program of the prompt": (lambda n: 0, "start", 1),
    "attention in the middle of the prompt": (lambda n: 3 * (n // 2) + 1, "start", 1),
    "the LM head after the prompt": (lambda n: 3 * n, "wait", 1),
    "the first program of token 2": (lambda n: 3 * n + 1, "wait", 2),
    "the last layer of token 4": (lambda n: 3 * n + 1 + 2 * (2 * n + 1) + 2 * n - 1, "wait", 4),
    "the LM head of token 3": (lambda n: 3 * n + 1 + 2 * n + 1 + 2 * n, "start", 3),
}


@pytest.mark.parametrize("point", POINTS)
def test_the_demo_answers_on(npu, pyxrt_stand_in, wanted, open_session, log, point):
    after, kind, token = POINTS[point]
    how = {"start": RuntimeError(pyxrt_stand_in.WEDGED), "wait": pyxrt_stand_in.TIMEOUT}[kind]
    session = open_session()
    assert session.backend == "npu"
    npu.pyxrt.fail(kind, how, after(layers(session)))
    generation = ask(session)
    text = "".join(session.text(generation))
    assert (text, generation.token_ids) == wanted
    assert session.backend == "npu, then virtual"
    assert f"is given up at token {token} of the answer" in log.getvalue()
    assert f"going on at token {token} of the answer on backend virtual" in log.getvalue()
    assert "failed on the NPU: " in log.getvalue()
    assert not any(npu.pyxrt.alive.values())  # device and lock are free for others


@pytest.mark.parametrize("kind", ["device", "hw_context", "sync"])
def test_a_device_lost_while_weights_are_loaded(npu, pyxrt_stand_in, wanted, open_session, log, kind):
    npu.pyxrt.fail(kind, pyxrt_stand_in.LOST, after=0 if kind == "device" else 2)
    session = open_session()
    assert "backend npu is given up while weights were loaded" in log.getvalue()
    assert "".join(session.text(ask(session))) == wanted[0]


def test_the_virtual_programs_are_compiled_when_they_are_needed(npu, open_session, log):
    session = open_session()
    list(ask(session))
    assert log.getvalue().count("programs: ") == 2  # decode's, and the prompt's
    assert "virtual" not in log.getvalue()


def test_chat_goes_on_after_a_device_lost_between_turns(npu, pyxrt_stand_in, wanted, open_session, log):
    session, out = open_session(), io.StringIO()
    lines = iter([QUESTION, "/reset", QUESTION, "/reset", QUESTION, "/exit"])

    def read(prompt):
        line = next(lines)
        if line == "/reset":
            npu.pyxrt.fail("start", pyxrt_stand_in.LOST)
        return line

    Chat(session, Sampler(), 24, note=lambda line: None, out=out, read=read).run()
    assert out.getvalue().splitlines() == [wanted[0]] * 3
    assert log.getvalue().count("given up at token 1 of the answer") == 1


def test_without_fallback_the_failure_ends_it(npu, pyxrt_stand_in, open_session):
    session = open_session(fallback=None)
    npu.pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT, after=3)
    with pytest.raises(RunError, match="ERT_CMD_STATE_TIMEOUT"):
        list(ask(session))


@pytest.fixture
def run(monkeypatch, npu, virtual, folder, capsys):
    """run(*flags) of the run command, where BACKEND=npu is the stand-in -> (exit code, stdout, stderr)."""
    backends = {"npu": npu, "virtual": virtual}
    monkeypatch.setattr(commands, "select_backend", lambda choice, *_, **__: backends[choice])

    def run(*flags):
        code = main(["run", "--prompt", QUESTION, "--cache-dir", str(folder), *flags])
        return code, *capsys.readouterr()

    return run


def test_the_command_line_falls_back_and_says_so(npu, pyxrt_stand_in, run, wanted):
    npu.pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT, after=60)
    code, out, err = run("--backend", "npu", "--fallback", "virtual", "--json")
    record = json.loads(out)
    assert (code, record["text"]) == (0, wanted[0])
    assert record["backend"] == "npu, then virtual"
    assert err.splitlines()[-1].endswith("| npu, then virtual")


def test_the_command_line_without_fallback(npu, pyxrt_stand_in, run):
    npu.pyxrt.fail("wait", pyxrt_stand_in.TIMEOUT, after=60)
    code, _, err = run("--backend", "npu")
    assert code == 2
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "failed on the NPU: it ended in ERT_CMD_STATE_TIMEOUT" in error
    assert "Traceback" not in err


def test_a_backend_is_no_fallback_for_itself(run, wanted):
    code, out, err = run("--backend", "virtual", "--fallback", "virtual")
    assert (code, out.strip()) == (0, wanted[0])
    assert err.splitlines()[-1].endswith("| virtual")


def test_other_fallbacks_are_refused(run):
    code, _, err = run("--backend", "virtual", "--fallback", "npu")
    assert code == 2
    assert "argument --fallback: invalid choice: 'npu'" in err
