"""`run` is stopped or killed as it compiles, loads, reads the prompt or answers, and is run again.

Everything is in processes of their own, whose temporary files are in folders of the test; so is the cache of
those that are to compile.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.llama32_1b.synthetic.__main__ import main as synthesise

MARK = "TEST_RUN"
SIGINT, SIGTERM, SIGKILL = signal.SIGINT, signal.SIGTERM, signal.SIGKILL
STOPPED = 130

START = """
import runpy, sys
sys.argv = ["aerie", *sys.argv[1:]]
runpy.run_module("aerie", run_name="__main__", alter_sys=True)
"""


class Run:
    """The command `run` that runs. `lines` are those of standard error so far."""

    def __init__(self, folder, *arguments, **environment):
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "run", "--backend", "virtual", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "TMPDIR": str(self.temporary),
                MARK: self.mark.partition("=")[2],
                **environment,
            },
        )
        assert self.process.stdout
        assert self.process.stderr
        self._stdout, self._stderr = self.process.stdout, self.process.stderr
        self.lines, self.answer = [], ""
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self):
        for line in self._stderr:
            self.lines.append(line)

    def wait_for(self, beginning):
        """Until a line on standard error begins like this; "" waits for the answer's first letter."""
        end = time.monotonic() + 120
        if not beginning:
            self.answer = self._stdout.read(1)
        while beginning and not any(line.startswith(beginning) for line in self.lines):
            assert time.monotonic() < end, self.lines
            assert self.process.poll() is None, self.lines
            time.sleep(0.005)

    def end(self):
        """(exit code, standard output, standard error)."""
        self.answer += self._stdout.read()
        code = self.process.wait(timeout=120)
        self._listener.join()
        self._stdout.close()
        self._stderr.close()
        return code, self.answer, "".join(self.lines)

    def still_running(self):
        """Processes that it started, or itself."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:  # gone meanwhile, or another user's
                continue
        return found

    def check_nothing_is_left(self, patience_s=120):
        """No process, soon; no temporary file."""
        end = time.monotonic() + patience_s
        while self.still_running():
            assert time.monotonic() < end, "processes go on"
            time.sleep(0.1)
        assert list(self.temporary.iterdir()) == []


def stop(run, number, moment, after_s=0.0):
    """Send a signal once `moment` has come. Exit code and last line are what they should be."""
    run.wait_for(moment)
    time.sleep(after_s)
    run.process.send_signal(number)
    sent = time.monotonic()
    code, _, errors = run.end()
    assert "Traceback" not in errors, errors
    assert code == (-SIGKILL if number == SIGKILL else STOPPED), errors
    if number != SIGKILL:
        assert "stopped" in errors.splitlines()[-1]
        assert time.monotonic() - sent < 60
    run.check_nothing_is_left()


@pytest.mark.slow
def test_ctrl_c_while_it_compiles(tmp_path):
    """The compilers end with it, at once, and what was begun is gone."""
    asked = ("--prompt", "Hi", "--cache-dir", str(tmp_path / "programs"))
    stop(Run(tmp_path, *asked, VNPU_CACHE=str(tmp_path / "vnpu")), SIGINT, "compiling", 1.0)
    assert list((tmp_path / "programs" / "unfinished").iterdir()) == []
    assert not list(tmp_path.rglob(".work-*"))


def test_killed_in_its_answer(tmp_path):
    """The next run answers as if nothing had been."""
    asked = ("--prompt", "Count from 1 to 10.", "--cache-dir", str(default_cache_dir()))
    stop(Run(tmp_path, *asked), SIGKILL, "")
    code, answer, errors = Run(tmp_path, *asked).end()
    assert code == 0
    assert answer.startswith("1, 2, 3")
    assert "programs: 0 compiled, 6 from the cache" in errors


@pytest.mark.slow
def test_the_run_after_one_that_was_killed_while_it_compiled(tmp_path):
    """It compiles what is missing, in spite of compilers that may have outlived the first by seconds."""
    few = ("--variants", "8x512", "--decode", "rows")
    asked = ("--prompt", "What is the capital of France?", "--cache-dir", str(tmp_path / "programs"), *few)
    own = {"VNPU_CACHE": str(tmp_path / "vnpu"), "VNPU_OPT": "0"}
    first = Run(tmp_path, *asked, **own)
    first.wait_for("compiling")
    time.sleep(1.0)
    first.process.send_signal(SIGKILL)
    first.end()
    second = Run(tmp_path, *asked, **own)  # at once
    code, answer, errors = second.end()
    assert code == 0, errors
    assert "Paris" in answer
    first.check_nothing_is_left()
    second.check_nothing_is_left()
    assert list((tmp_path / "programs" / "unfinished").iterdir()) == []
    assert not list(tmp_path.rglob(".work-*"))


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """A layer of Llama-3.2-1B in a folder with its caches; what it answers when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("interrupted")
    assert synthesise([str(folder / "one"), "--layers", "1"]) == 0
    asked = (
        *("--model", str(folder / "one"), "--cache-dir", str(folder / "programs"), "--seq-len", "512"),
        *("--prompt", "to be or not to be", "--raw", "--n-tokens", "48"),
    )
    code, answer, errors = Run(folder, *asked).end()
    assert code == 0, errors
    return folder, asked, answer


LOADING, READING, ANSWERING = ("programs:", 0.3), ("weights:", 0.3), ("", 0.1)
STOPS = [(SIGINT, LOADING), (SIGINT, READING), (SIGTERM, ANSWERING), (SIGKILL, READING), (SIGKILL, ANSWERING)]
"""Each signal and each moment. SIGINT and SIGTERM are one handler's."""


@pytest.mark.slow
def test_a_layer_of_full_width_is_stopped_at_every_moment(layer):
    folder, asked, undisturbed = layer
    for number, moment in STOPS:
        stop(Run(folder, *asked), number, *moment)
    code, answer, errors = Run(folder, *asked).end()
    assert code == 0, errors
    assert answer == undisturbed
    assert "programs: 0 compiled, 6 from the cache" in errors
