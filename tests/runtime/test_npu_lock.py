"""One process at a time on the NPU: which process waits, what it prints, and what never deadlocks."""

import json
import os
import re
import subprocess
import sys

import pytest
from filelock import FileLock

from aerie.runtime import RunError
from aerie.runtime.npu import lock as lock_module
from aerie.runtime.npu.lock import DeviceLock

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from aerie.runtime.npu.lock import DeviceLock
lock = DeviceLock()
lock.acquire(lambda line: print(line, flush=True))
print("held", flush=True)
sys.stdin.read()
lock.release()
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.delenv("AERIE_NPU_LOCK", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(folder):
    """start(*wrapper) -> a process that takes the lock, and frees it when its standard input ends."""
    started = []

    def start(*wrapper):
        process = subprocess.Popen(
            [*wrapper, sys.executable, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line_of(process):
    return process.stdout.readline().strip()


def test_the_second_process_waits_and_names_the_first(start, folder):
    first = start()
    assert line_of(first) == "held"
    second = start()
    lines = line_of(second)
    command = re.escape(f"({os.path.basename(sys.executable)})")
    assert re.match(
        rf"the NPU is in use by process {first.pid} {command}, since \d{{4}}-\d\d-\d\d [\d:]+ UTC; "
        r"waiting for it \(Ctrl-C stops\)$",
        lines,
    )
    first.communicate("")
    assert line_of(second) == "held"
    owner = DeviceLock().owner()
    assert owner
    assert owner.pid == second.pid


def test_the_lock_of_a_killed_process_is_free(start, folder):
    first = start()
    assert line_of(first) == "held"
    first.kill()
    first.wait()
    assert (folder / "aerie-npu.lock.owner").exists()
    assert DeviceLock().owner() is None
    assert line_of(start()) == "held"


def test_waiting_is_printed_repeatedly(start, folder, monkeypatch):
    first = start()
    assert line_of(first) == "held"
    monkeypatch.setattr(lock_module, "REPORT_INTERVAL_S", 1.1)
    lines = []

    def report(line):
        lines.append(line)
        if len(lines) == 2:
            first.communicate("")

    lock = DeviceLock()
    lock.acquire(report)
    lock.release()
    assert len(lines) == 2
    assert "waiting for it (Ctrl-C" in lines[0]
    assert "waiting for it, for 1 s now (Ctrl-C" in lines[1]


def test_ctrl_c_while_waiting_holds_nothing(start, folder):
    first = start()
    assert line_of(first) == "held"
    lock = DeviceLock()

    def interrupt(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lock.acquire(interrupt)
    first.communicate("")
    assert line_of(start()) == "held"


def test_upstreams_lock_is_honoured(start, folder):
    upstream = FileLock(folder / "npu.lock")
    with upstream:
        waiting = start()
        assert line_of(waiting) == (
            f"the NPU is in use by a process that locked {folder / 'npu.lock'}; waiting for it (Ctrl-C stops)"
        )
    assert line_of(waiting) == "held"


@pytest.mark.skipif(sys.platform != "linux", reason="flock is of util-linux")
def test_a_command_wrapped_in_flock_does_not_wait_for_its_wrapper(start, folder):
    """mlir-air's tests run `flock /tmp/npu.lock COMMAND`."""
    wrapped = start("flock", str(folder / "npu.lock"))
    assert line_of(wrapped) == "held"
    beside = start()
    assert "the NPU is in use by process" in line_of(beside)
    wrapped.communicate("")
    assert line_of(beside) == "held"


def test_one_process_may_hold_it_twice(start, folder):
    lock, again = DeviceLock(), DeviceLock()
    lock.acquire(print)
    again.acquire(print)
    lock.release()
    waiting = start()
    assert "the NPU is in use by process" in line_of(waiting)
    again.release()
    again.release()  # without effect
    assert line_of(waiting) == "held"


def test_what_is_written_of_the_owner(folder):
    lock = DeviceLock()
    lock.acquire(print)
    try:
        note = json.loads((folder / "aerie-npu.lock.owner").read_text())
    finally:
        lock.release()
    assert (note["pid"], sorted(note)) == (os.getpid(), ["command", "pid", "since"])
    assert len(note["command"].split()) <= lock_module.COMMAND_WORDS + 2
    assert not (folder / "aerie-npu.lock.owner").exists()


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"pid": 1}'])
def test_a_damaged_note_is_no_owner(folder, damage):
    (folder / "aerie-npu.lock.owner").write_text(damage)
    assert DeviceLock().owner() is None


def test_an_unwritable_note_blocks_no_process(folder, start):
    (folder / "aerie-npu.lock.owner").mkdir()
    process = start()
    assert line_of(process) == "held"
    beside = start()
    assert line_of(beside).startswith(f"the NPU is in use by a process that locked {folder / 'npu.lock'}")
    process.communicate("")
    assert line_of(beside) == "held"


def test_an_upstream_lock_that_cannot_be_used(folder):
    (folder / "npu.lock").mkdir()
    with pytest.raises(RunError, match=r"lock .*/npu.lock cannot be used \(.*\); .* \(chmod a\+rw\)$"):
        DeviceLock().acquire(print)


def test_a_lock_file_that_cannot_be_used(folder, monkeypatch):
    monkeypatch.setenv("AERIE_NPU_LOCK", str(folder / "file" / "lock"))
    (folder / "file").write_text("")
    with pytest.raises(
        RunError, match=r"the NPU's lock .*/file/lock cannot be used \(.*\); .*another with AERIE_NPU_LOCK"
    ):
        DeviceLock().acquire(print)
    other = DeviceLock(folder / "other.lock")  # nothing is held after the refusal
    waits: list[str] = []
    other.acquire(waits.append)
    other.release()
    assert waits == []
