"""The doctor never raises and never hangs, whatever a check or a tool does."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_machine import machine, put, tool

from board.doctor.checks import CHECKS, GOALS, Check, examine_all
from board.doctor.machine import LONGEST, Finding, Machine, Status

OK = Finding(Status.OK, "there", "there")

RAISED = (
    ValueError,
    KeyError,
    OSError,
    RuntimeError,
    MemoryError,
    SystemExit,
    KeyboardInterrupt,
    StopIteration,
)


def raising(error: type[BaseException]) -> Callable[[Machine], Finding]:
    def look(_: Machine) -> Finding:
        raise error("on purpose")

    return look


def check(
    name: str, look: Callable[[Machine], Finding], needs: tuple[str, ...] = (), limit_s: float = 30.0
) -> Check:
    return Check(name, name, "layer", look, needs, limit_s)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from((None, *RAISED)), max_size=8))
def test_what_one_check_raises_is_its_own_loss(errors: list[type[BaseException] | None]) -> None:
    checks = [check(str(i), raising(error) if error else lambda _: OK) for i, error in enumerate(errors)]
    results = examine_all(checks, Machine())
    assert list(results) == [str(i) for i in range(len(errors))]
    for finding, error in zip(results.values(), errors, strict=True):
        assert finding.status is (Status.UNKNOWN if error else Status.OK)
        if error:
            assert error.__name__ in finding.found
            assert "defect of Aerie" in finding.fix


def test_a_check_that_hangs() -> None:
    ever = threading.Event()

    def stuck(_: Machine) -> Finding:
        ever.wait()
        return OK

    checks = [
        check("stuck", stuck, limit_s=0.2),
        check("above", lambda _: OK, needs=("stuck",)),
        check("beside", lambda _: OK),
    ]
    started = time.monotonic()
    results = examine_all(checks, Machine())
    ever.set()
    assert time.monotonic() - started < 5
    assert (results["stuck"].status, results["stuck"].found) == (Status.UNKNOWN, "no answer within 0.2 s")
    assert results["above"].status is Status.SKIPPED
    assert results["beside"] == OK


@pytest.mark.parametrize(
    ("status", "above"),
    [
        (Status.OK, Status.OK),
        (Status.WARNING, Status.OK),
        (Status.FAILED, Status.SKIPPED),
        (Status.UNKNOWN, Status.SKIPPED),  # never taken for a yes
    ],
)
def test_what_is_built_upon(status: Status, above: Status) -> None:
    checks = [check("below", lambda _: Finding(status, "", "")), check("above", lambda _: OK, ("below",))]
    results = examine_all(checks, Machine())
    assert results["above"].status is above
    if above is Status.SKIPPED:
        assert results["above"].found == "not looked at without below"


def test_a_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = tool(tmp_path / "tool", "sleep 60 &", f"echo $! > {child}", "wait")
    started = time.monotonic()
    answer = machine(tmp_path).ask([str(script)], limit_s=0.5)
    assert time.monotonic() - started < 5
    assert answer.trouble == "no answer within 0.5 s"
    process = Path("/proc") / child.read_text().strip()
    while process.exists() and "Z" not in (process / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() - started < 5
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("exit 3", "it ended with exit code 3"),
        ("kill -KILL $$", "it was ended by SIGKILL"),
        ("printf 'fine\\n'", ""),
        ("head -c 100000 /dev/urandom", ""),
    ],
)
def test_how_a_tool_ends(tmp_path: Path, line: str, trouble: str) -> None:
    assert machine(tmp_path).ask([str(tool(tmp_path / "tool", line))]).trouble == trouble


@pytest.mark.parametrize("command", [["/no/such/tool"], ["/"], ["a\0b"]])
def test_what_cannot_be_started(tmp_path: Path, command: list[str]) -> None:
    assert machine(tmp_path).ask(command).trouble.startswith("it could not be started")


@given(st.text())
def test_findings_are_safe_to_print(text: str) -> None:
    finding = Finding(Status.OK, text, text, text).printable()
    for shown in (finding.found, finding.wanted, finding.fix):
        assert all(letter.isprintable() for letter in shown)
        assert len(shown) <= LONGEST + 4


READ_FILES = ("system", "memory", "disk", "driver", "node", "npu", "firmware", "memlock", "xrt")
FILES = (
    "/proc/meminfo",
    "/proc/sys/kernel/osrelease",
    "/etc/os-release",
    "/sys/module/amdxdna/version",
    "/sys/class/accel/accel0/device/vbnv",
    "/sys/class/accel/accel0/device/fw_version",
    "/dev/accel/accel0",
    "/opt/xilinx/xrt/version.json",
)
ODD = (
    b"",
    b"\xff\x00",
    b"npu4\n",
    b"2.26.95",
    b'{"BUILD_VERSION": "2.26"}',
    b"MemAvailable: 1 kB",
    b"9" * 5000,
)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(FILES), st.sampled_from(ODD) | st.binary(max_size=40)))
def test_whatever_the_files_of_a_machine_say(contents: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in contents.items():
            put(Path(folder), name).write_bytes(content)
        checks = [each for each in CHECKS if each.name in READ_FILES]
        results = examine_all(checks, machine(Path(folder)))
    assert not [finding for finding in results.values() if "the check itself failed" in finding.found]


def test_the_table_is_in_order() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for i, each in enumerate(CHECKS):
        assert set(each.needs) <= set(names[:i]), "a check is looked at after those it needs"
    assert all(set(goal.needs) <= set(names) for goal in GOALS)


def test_a_whole_examination_of_a_bare_machine(tmp_path: Path) -> None:
    quick = [each for each in CHECKS if each.name != "virtual_npu"]
    results = examine_all(quick, machine(tmp_path, model="no-such-folder"))
    assert not [name for name, finding in results.items() if "the check itself failed" in finding.found]
    assert results["checkpoint"].status is Status.FAILED
    assert results["launch"].status is Status.SKIPPED
