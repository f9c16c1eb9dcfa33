"""A child process that works within limits: what it gives, how it ends, and that it is replaced."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest

from aerie.common.sandbox import (
    BeginningError,
    BoundedProcess,
    InterruptedCallError,
    Limits,
    OverLimitError,
    RaisedError,
)

LIMITS = Limits(cpu_s=0.3, wait_s=20, memory_bytes=128 << 20, output_bytes=1 << 20)


@pytest.fixture(scope="module")
def process():
    """Calls into the standard library, whose functions can do all that is to be limited."""
    return BoundedProcess("builtins", LIMITS)


@pytest.mark.parametrize("value", [None, 1, 1.5, "a\N{GRINNING FACE}\ud800", [1, {"b": [True]}], {"ä": []}])
def test_what_json_can_say_goes_there_and_back(process, value):
    assert (
        process.call(
            "max",
            [value],
        )
        == value
    )


def test_a_limit_ends_the_call_and_not_what_comes_after(process):
    limits = {
        ("sum", "range(10**10)"): "it took more than 0.3 s of processor time",
        ("len", "'a' * 2_000_000_000"): "it took more than 128 MiB of memory",
        ("str", "'a' * 10_000_000"): "it made more than 1 MiB",
        ("str", "__import__('os').abort()"): r"it ended the process that it ran in \(SIGABRT\)",
    }
    for (function, expression), message in limits.items():
        with pytest.raises(OverLimitError, match=f"^{message}$"):
            process.call("eval", f"{function}({expression})")
        assert process.call("abs", -1) == 1


def test_what_waits_is_limited_too():
    process = BoundedProcess("time", Limits(wait_s=0.5))
    with pytest.raises(InterruptedCallError, match=r"^it took more than 0.5 s$"):
        process.call("sleep", 60)


def test_a_killed_process_is_reported(process):
    with pytest.raises(InterruptedCallError, match=r"^the process that it ran in was killed$"):
        process.call("eval", "__import__('os').kill(__import__('os').getpid(), 9)")
    assert process.call("abs", -1) == 1


def test_the_stack_is_limited():
    """What needs some 500 KiB of it. The limit is of the call's thread, whatever the process has."""
    deep = "(lambda f: f(f, 1500))(lambda f, left: left and [*map(f, [f], [left - 1])] and left)"
    given = f"(__import__('sys').setrecursionlimit(10**5), {deep})[1]"
    assert BoundedProcess("builtins", Limits(stack_bytes=4 << 20)).call("eval", given) == 1500
    with pytest.raises(OverLimitError, match=r"^it ended the process that it ran in \(SIG(SEGV|BUS)\)$"):
        BoundedProcess("builtins", Limits(stack_bytes=128 << 10)).call("eval", given)


def test_each_child_begins_once():
    """With an array of three bytes, which stays there from call to call, and ends with its child."""
    process = BoundedProcess("builtins", LIMITS, most=1, initialization=("bytearray", [3]))
    for length in (3, 4):
        assert process.call("__len__") == length
        process.call("append", 1)
    with pytest.raises(OverLimitError, match="it took more than 128 MiB of memory"):
        process.call("zfill", 2_000_000_000)
    assert process.call("__len__") == 3


@pytest.mark.parametrize(
    ("module", "beginning", "begin_s", "reason"),
    [
        ("builtins", ("int", ["x"]), 60, "invalid literal for int"),
        ("time", ("sleep", [60]), 0.5, "it took more than 0.5 s"),
        ("os", ("abort", []), 60, "it ended the process that it ran in"),
    ],
)
def test_a_failed_start_is_reported(module, beginning, begin_s, reason):
    process = BoundedProcess(module, Limits(begin_s=begin_s), initialization=beginning)
    with pytest.raises(BeginningError, match=rf"^its process could not begin: {reason}"):
        process.call("abs", 1)


def test_an_exception_is_one_line_and_the_child_goes_on(process):
    pid = process.call("eval", "__import__('os').getpid()")
    assert pid != os.getpid()
    with pytest.raises(RaisedError, match=r"^invalid literal .* 'x\\n a'$") as caught:
        process.call("int", "x\n a")
    assert caught.value.kind == "ValueError"
    with pytest.raises(RaisedError, match=r" \.\.\.$") as caught:
        process.call("int", "x" * 5000)
    assert len(str(caught.value)) < 300
    with pytest.raises(
        OverLimitError, match=r"^its input has a value that JSON cannot represent: Object of type object is"
    ):
        process.call("len", [object()])
    deep: list[Any] = []
    for _ in range(200_000):  # Python 3.12 and newer go deeper than 3.11
        deep = [deep]
    with pytest.raises((OverLimitError, RaisedError), match=r"nested too deeply|recursion"):
        process.call("len", deep)
    assert process.call("eval", "__import__('os').getpid()") == pid


def test_a_call_that_takes_its_time_holds_no_other(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    process = BoundedProcess("os", Limits())
    first = process.call("getpid")
    long = threading.Thread(target=process.call, args=("open", str(tmp_path / "fifo"), os.O_RDONLY))
    long.start()  # until somebody writes
    while process.call("getpid") == first:  # it has not begun
        time.sleep(0.01)
    assert long.is_alive()
    os.close(os.open(tmp_path / "fifo", os.O_WRONLY))
    long.join()


def test_it_ends_with_its_parent():
    program = """
        import os, sys
        from aerie.common.sandbox import BoundedProcess
        process = BoundedProcess("os")
        print(process.call("getpid"), flush=True)
        os._exit(0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    end = time.monotonic() + 120
    while os.path.exists(f"/proc/{int(done.stdout)}") and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{int(done.stdout)}")
