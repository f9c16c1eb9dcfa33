"""Programs compiled in the background: which, when, in what process, and what happens if one is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aerie import load
from aerie.cli import commands
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.cli.command_line import build_parser
from aerie.engine import compile_ahead_child
from aerie.engine.compile_ahead import COMMAND, CompileAhead
from aerie.engine.config import load_config
from aerie.engine.executor import Executor
from aerie.engine.gathered_cache import GatheredCache
from aerie.engine.page_manager import PAGE_SIZE
from aerie.engine.program_library import ProgramLibrary, RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.sampler import Sampler
from aerie.engine.variant_set import TURN_TOKENS, VariantSet
from aerie.multi_launch_builder import Variant
from aerie.runtime import Backend, KernelCache, select_backend
from aerie.serve.model_spec import ModelFlags

SHAPE = load_config(DEMO_FOLDER).shape
VARIANTS = VariantSet(variants=tuple(Variant(n, m) for n in (8, 32, 128) for m in (512, 2048)))

COMPILES = """
import json, sys
for name in json.loads(sys.stdin.readline())["names"]:
    print(name, flush=True)
"""
COMPILES_ONE = COMPILES + "    sys.stdin.read()\n"
"""The child of a program that takes for ever after the first one: it waits for the end of its input."""
FAILS = "import sys; print('warning'); print('no room on the disk', file=sys.stderr); sys.exit(1)"


@pytest.fixture(scope="module")
def backend() -> Backend:
    return select_backend("virtual")


class Ahead(CompileAhead):
    """With a child that runs `script`, and an event for the first program that it has compiled."""

    def __init__(self, script: str, folder: Path, command: tuple[str, ...] = ()) -> None:
        self.notes: list[str] = []
        self.has_compiled = threading.Event()
        super().__init__(SHAPE, folder, self.notes.append, command or (sys.executable, "-c", script))

    def _mark_compiled(self, name: str) -> None:
        super()._mark_compiled(name)
        self.has_compiled.set()

    @property
    def compiled(self) -> set[str]:
        return self._compiled


def test_all_that_is_wanted_is_compiled_once(tmp_path, backend, monkeypatch):
    ahead, started = Ahead(COMPILES, tmp_path), []
    popen = subprocess.Popen

    def start(*words, **more):
        started.append(1)
        return popen(*words, **more)

    monkeypatch.setattr(subprocess, "Popen", start)
    ahead.want(["a", "b"], backend)
    ahead.wait()
    assert ahead.compiled == {"a", "b"}
    ahead.want(["b", "a"], backend)
    ahead.wait()
    ahead.want(["b", "c"], backend)
    ahead.wait()
    assert ahead.compiled == {"a", "b", "c"}
    assert (len(started), ahead.notes) == (2, [])


def test_what_is_compiled_needs_no_way(tmp_path, backend):
    ahead = Ahead(COMPILES_ONE, tmp_path)
    ahead.want(["a", "b"], backend)
    assert ahead.has_compiled.wait(60)
    ahead.make_way(["a"])
    child = ahead._child._process
    assert child is not None
    assert child.poll() is None
    ahead.stop()
    assert child.returncode == -signal.SIGTERM


def test_a_program_that_is_needed_ends_the_child(tmp_path, backend):
    """And the child that starts afterwards compiles what is left."""
    ahead = Ahead(COMPILES_ONE, tmp_path)
    ahead.want(["a", "b"], backend)
    assert ahead.has_compiled.wait(60)
    ahead.make_way(["b"])
    assert (ahead.compiled, ahead._child._process, ahead.notes) == ({"a"}, None, [])
    ahead.has_compiled.clear()
    ahead.want(["b"], backend)
    assert ahead.has_compiled.wait(60)
    ahead.stop()
    assert ahead.compiled == {"a", "b"}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ((sys.executable, "-c", FAILS), "no room on the disk"),
        ((sys.executable, "-c", "import sys; sys.exit(3)"), "its process ended with status 3"),
        (("/no/such/python",), "No such file or directory"),
    ],
)
def test_a_failure_is_noted_once(tmp_path, backend, command, reason):
    ahead = Ahead("", tmp_path, command)
    ahead.want(["a"], backend)
    ahead.wait()
    assert ahead.notes == []
    for _ in range(2):
        ahead.make_way(["a"])
        ahead.want(["b"], backend)
    ahead.wait()
    assert ahead.notes == [
        f"note: programs that a longer context needs could not be compiled in the background ({reason}); "
        "each is compiled when it is needed"
    ]
    assert ahead._child._process is None


def test_it_ends_with_the_session_and_with_the_process(tmp_path):
    """Without a call of close, too: what is registered for the interpreter's end runs."""
    script = (
        "import sys; from pathlib import Path; from tests.engine.test_compile_ahead import *;"
        f"ahead = Ahead(COMPILES_ONE, Path({str(tmp_path)!r})); ahead.want(['a'], select_backend('virtual'));"
        "ahead.has_compiled.wait(60); print(ahead._child._process.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


# the child itself


@pytest.fixture
def child(tmp_path) -> Iterator[Callable[..., Any]]:
    """child(patch) -> the real child, with a request on its input, and code that runs before it."""
    started = []

    def start(patch: str = "", names: str = "[]") -> Any:
        loaded, end = COMMAND[2].split("main; ")
        code = f"{loaded}main; import aerie.engine.compile_ahead_child as child\n{patch}\n{end}"
        process = subprocess.Popen(
            [*COMMAND[:2], code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdin
        process.stdin.write(
            f'{{"shape": {{}}, "cache_dir": "{tmp_path}", "backend": "virtual", "numerics": "exact", '
            f'"names": {names}}}\n'
        )
        process.stdin.flush()
        return process

    yield start
    for process in started:
        with process:
            process.kill()


WAITS = """import threading
def compiled(request, backend):
    print("waits", flush=True)
    threading.Event().wait()
    yield
child.compiled = compiled
"""


def test_the_child_ends_when_its_parent_does(child):
    process = child(WAITS)
    assert process.stdout.readline() == "waits\n"
    process.stdin.close()
    assert process.wait(60) == 1


def test_the_child_ends_by_a_signal(child):
    process = child(WAITS)
    assert process.stdout.readline() == "waits\n"
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM
    assert process.stderr.read() == ""


def test_the_child_reports_why_it_failed(child):
    process = child("child.compiled = lambda request, backend: 1 / 0")
    assert process.wait(60) == 1
    assert process.stderr.read() == "division by zero\n"


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="this system has no such scheduling")
def test_the_child_and_what_it_starts_get_idle_time_of_one_processor():
    ask = "import os; print(os.sched_getscheduler(0) == os.SCHED_IDLE, len(os.sched_getaffinity(0)))"
    code = (
        "import subprocess, sys; from aerie.engine.compile_ahead_child import use_idle_time; use_idle_time();"
        f"subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True 1\n"


def test_nothing_is_compiled_where_memory_is_short(tmp_path, backend, monkeypatch):
    request = {"cache_dir": str(tmp_path), "shape": vars(SHAPE), "names": ["lm_head_gemv"]}
    least = 2 * backend.toolchain.memory_bytes
    monkeypatch.setattr(compile_ahead_child, "available_bytes", lambda: least - 1)
    assert [*compile_ahead_child.compiled(request, backend)] == []
    monkeypatch.setattr(KernelCache, "compile_all", lambda *_, **__: {})
    monkeypatch.setattr(compile_ahead_child, "available_bytes", lambda: least)
    assert [*compile_ahead_child.compiled(request, backend)] == ["lm_head_gemv"]


def test_a_session_finds_what_the_child_compiled(tmp_path, backend):
    """The real child, and a cache that is shared by its locks."""
    notes: list[str] = []
    ahead = CompileAhead(SHAPE, tmp_path, notes.append)
    ahead.want(["lm_head_gemv"], backend)
    ahead.wait()
    ahead.make_way(["lm_head_gemv"])
    assert notes == []
    options = RuntimeOptions(None, backend, tmp_path)
    library = ProgramLibrary(load_config(DEMO_FOLDER), options, Reporter(quiet=True))
    library.ensure_compiled(["lm_head_gemv"])
    assert library.cache.artifact("lm_head_gemv").reused


# which programs, and when


def test_the_programs_of_the_next_turn():
    """In this context and in the next one, a program for each length of a message."""
    names = [*VARIANTS.programs_for_next_turn(100)]
    assert {name for name in names if "cached_attn" in name} == {
        f"cached_attn_ar{rows}_cl{context}" for rows in TURN_TOKENS for context in (512, 2048)
    }
    assert names.index("cached_attn_ar128_cl512") < names.index("cached_attn_ar8_cl2048")
    in_the_last = [*VARIANTS.programs_for_next_turn(600)]
    assert {name for name in in_the_last if "cl" in name} == {
        f"cached_attn_ar{rows}_cl2048" for rows in TURN_TOKENS
    }
    assert [*VARIANTS.programs_for_next_turn(2047)] == []
    assert [*VariantSet(128).programs_for_next_turn(100)] == []


def test_the_programs_of_the_next_context():
    """For one sequence 256 tokens before its end; side by side, each has a multiple of 256 positions."""
    model: Any = SimpleNamespace(
        config=SimpleNamespace(diffusion=None), variant_set=VARIANTS, seq_len=0, positions=2048
    )
    storage: Any = None
    executor = Executor(model, storage, GatheredCache(storage, VARIANTS.contexts))

    def attention(*lengths: int) -> list[str]:
        names = [*executor.programs_for_next_context(lengths)]
        return [name for name in names if name.startswith("cached_attn")]

    assert attention() == []
    assert attention(256) == []
    assert attention(257) == ["cached_attn_ar8_cl2048"]
    assert attention(1) == []
    assert attention(1, 1) == ["cached_attn_ar8_cl2048"]
    assert attention(2000) == []
    assert attention(*[200] * 8) == []
    model.positions = 512
    assert attention(257) == []
    model.seq_len = 128
    assert attention(1, 1) == []


@pytest.fixture
def asked_of() -> Iterator[Callable[..., tuple[Any, list[list[str]]]]]:
    """asked_of(decode) -> a scheduler of the demo, and what is asked to be compiled, call by call."""
    models = []

    def start(decode: str) -> tuple[Any, list[list[str]]]:
        models.append(model := load("demo", decode=decode))
        scheduler, asked = model.session_state.session().requests, list[list[str]]()
        wider = replace(
            scheduler.model.variant_set,
            decode_path=decode,
            variants=(*scheduler.model.variant_set.variants, Variant(8, 2048)),
        )
        listening = replace(
            scheduler.model,
            variant_set=wider,
            config=replace(scheduler.model.config, max_position_embeddings=2048),
            compile_ahead=lambda names: asked.append([*names]),
        )
        scheduler.switch_model(listening)
        return scheduler, asked

    yield start
    for model in models:
        model.close()


def test_the_end_of_an_answer_asks_for_the_next_turn(asked_of):
    scheduler, asked = asked_of("guide")
    request = scheduler.add_request([5, 6, 7], 3, Sampler(), decode_path="guide", is_conversation=True)
    assert len([*request]) == 3
    length = 3 + 3 - 1
    assert [*scheduler.model.variant_set.programs_for_next_turn(length)] in asked
    assert len([names for names in asked if names]) == 1


def test_a_sequence_near_the_end_of_its_context_asks_for_the_next_one(asked_of):
    """Once for each page that it fills, and not for each token."""
    scheduler, asked = asked_of("rows")
    endless = Sampler(logit_bias=dict.fromkeys(scheduler.model.config.eos_token_ids, -100.0))
    request = scheduler.add_request([5] * 380, 40, endless, decode_path="rows")
    assert len([*request]) == 40
    named = [names for names in asked if names]
    assert named
    assert all("cached_attn_ar8_cl1024" in names for names in named)
    assert len(asked) <= 420 // PAGE_SIZE + 1


# who compiles ahead


class Way:
    """In place of CompileAhead: it records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []

    def make_way(self, names: list[str]) -> None:
        self.calls.append(("make way", [*names]))

    def want(self, names: list[str], backend: Backend) -> None:
        self.calls.append((backend.name, [*names]))


def test_the_library_compiles_what_is_needed_now_itself(tmp_path, backend, monkeypatch):
    monkeypatch.setattr(KernelCache, "compile_all", lambda *_, **__: {})
    options = RuntimeOptions(None, backend, tmp_path)
    library: Any = ProgramLibrary(
        load_config(DEMO_FOLDER), options, Reporter(quiet=True), without=["lm_head_ar8"]
    )
    assert library.ahead is None
    library.compile_ahead(["lm_head_gemv"])
    library.ahead = way = Way()
    library.ensure_compiled(["lm_head_gemv"])
    library.ensure_compiled(["lm_head_gemv"])
    library.compile_ahead(["lm_head_gemv", "lm_head_ar8", "o_gemv_ffn"])
    assert way.calls == [("make way", ["lm_head_gemv"]), ("virtual", ["o_gemv_ffn"])]


@pytest.mark.parametrize(("knob", "is_ahead"), [("1", True), ("0", False)])
def test_the_knob(tmp_path, backend, monkeypatch, knob, is_ahead):
    monkeypatch.setenv("AERIE_COMPILE_AHEAD", knob)
    options = RuntimeOptions(None, backend, tmp_path, compile_ahead=True)
    library = ProgramLibrary(load_config(DEMO_FOLDER), options, Reporter(quiet=True))
    assert (library.ahead is not None) is is_ahead


def test_chats_servers_and_models_in_python_compile_ahead(monkeypatch, tmp_path):
    """An answer to one prompt does not, nor a server that has compiled everything."""
    opened: list[RuntimeOptions] = []

    class OpenedError(Exception):
        """Enough was seen."""

    def prepare(_: Any, options: RuntimeOptions, *__: Any) -> None:
        opened.append(options)
        raise OpenedError

    monkeypatch.setattr(commands, "prepare_runtime", prepare)
    monkeypatch.setattr("aerie.loading.prepare_runtime", prepare)
    for start in (
        lambda: commands.chat(build_parser().parse_args(["chat"])),
        lambda: load("demo"),
        lambda: commands.run(build_parser().parse_args(["run", "--prompt", "Hi"])),
    ):
        with pytest.raises(OpenedError):
            start()
    flags = ModelFlags("virtual", None, None, None, tmp_path)
    opened += [each.runtime_options() for each in (flags, flags._replace(load_all_programs=True))]
    assert [options.compile_ahead for options in opened] == [True, True, False, True, False]
