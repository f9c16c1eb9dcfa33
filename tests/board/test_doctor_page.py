"""How the doctor runs its checks, and what it says of them: the page, the record, the exit code."""

from __future__ import annotations

import io
import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from aerie.board.__main__ import main
from aerie.board.doctor.checks import CHECKS, GOALS, NOT_SET_UP_WITHOUT, DoctorCheck, not_set_up, run_checks
from aerie.board.doctor.command import NOTHING_RUNS, SCHEMA, WORKS, exit_code, next_steps, print_page, record
from aerie.board.doctor.machine import MAX_TEXT_LENGTH, CheckResult, CheckStatus, ExaminedMachine
from tests.board.made_up_machine import machine, put, tool

OK = CheckResult(CheckStatus.OK, "there", "there")

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


def raising(error: type[BaseException]) -> Callable[[ExaminedMachine], CheckResult]:
    def look(_: ExaminedMachine) -> CheckResult:
        raise error("on purpose")

    return look


def check(
    name: str,
    look: Callable[[ExaminedMachine], CheckResult],
    needs: tuple[str, ...] = (),
    limit_s: float = 30.0,
) -> DoctorCheck:
    return DoctorCheck(name, name, "layer", look, needs, limit_s)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from((None, *RAISED)), max_size=8))
def test_an_exception_fails_only_its_own_check(errors: list[type[BaseException] | None]) -> None:
    checks = [check(str(i), raising(error) if error else lambda _: OK) for i, error in enumerate(errors)]
    results = run_checks(checks, ExaminedMachine())
    assert list(results) == [str(i) for i in range(len(errors))]
    for finding, error in zip(results.values(), errors, strict=True):
        assert finding.status is (CheckStatus.UNKNOWN if error else CheckStatus.OK)
        if error:
            assert error.__name__ in finding.actual
            assert "defect of Aerie" in finding.fix


def test_a_check_that_hangs() -> None:
    ever = threading.Event()

    def stuck(_: ExaminedMachine) -> CheckResult:
        ever.wait()
        return OK

    checks = [
        check("stuck", stuck, limit_s=0.2),
        check("above", lambda _: OK, needs=("stuck",)),
        check("beside", lambda _: OK),
    ]
    started = time.monotonic()
    results = run_checks(checks, ExaminedMachine())
    ever.set()
    assert time.monotonic() - started < 120
    assert (results["stuck"].status, results["stuck"].actual) == (
        CheckStatus.UNKNOWN,
        "no answer within 0.2 s",
    )
    assert results["above"].status is CheckStatus.SKIPPED
    assert results["beside"] == OK


@pytest.mark.parametrize(
    ("status", "above"),
    [
        (CheckStatus.OK, CheckStatus.OK),
        (CheckStatus.WARNING, CheckStatus.OK),
        (CheckStatus.FAILED, CheckStatus.SKIPPED),
        (CheckStatus.UNKNOWN, CheckStatus.SKIPPED),  # never taken for a yes
    ],
)
def test_prerequisites_of_checks(status: CheckStatus, above: CheckStatus) -> None:
    checks = [check("below", lambda _: CheckResult(status, "", "")), check("above", lambda _: OK, ("below",))]
    results = run_checks(checks, ExaminedMachine())
    assert results["above"].status is above
    if above is CheckStatus.SKIPPED:
        assert results["above"].actual == "not looked at without below"


def test_a_tool_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    script = tool(tmp_path / "tool", "sleep 60 &", f"echo $! > {child}", "wait")
    started = time.monotonic()
    answer = machine(tmp_path).run_tool([str(script)], limit_s=0.5)
    assert time.monotonic() - started < 120
    assert answer.problem == "no answer within 0.5 s"
    process = Path("/proc") / child.read_text().strip()
    while process.exists() and "Z" not in (process / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() - started < 120
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
    assert machine(tmp_path).run_tool([str(tool(tmp_path / "tool", line))]).problem == trouble


@pytest.mark.parametrize("command", [["/no/such/tool"], ["/"], ["a\0b"]])
def test_tools_that_cannot_start(tmp_path: Path, command: list[str]) -> None:
    assert machine(tmp_path).run_tool(command).problem.startswith("it could not be started")


@given(st.text())
def test_findings_are_safe_to_print(text: str) -> None:
    finding = CheckResult(CheckStatus.OK, text, text, text).printable()
    for shown in (finding.actual, finding.required, finding.fix):
        assert all(letter.isprintable() for letter in shown)
        assert len(shown) <= MAX_TEXT_LENGTH + 4


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
        results = run_checks(checks, machine(Path(folder)))
    assert not [finding for finding in results.values() if "the check itself failed" in finding.actual]


def test_the_table_is_in_order() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for i, each in enumerate(CHECKS):
        assert set(each.needs) <= set(names[:i]), "a check is looked at after those it needs"
    assert all(set(goal.needs) <= set(names) for goal in GOALS)


def test_a_whole_examination_of_a_bare_machine(tmp_path: Path) -> None:
    quick = [each for each in CHECKS if each.name != "virtual_npu"]
    results = run_checks(quick, machine(tmp_path, model="no-such-folder"))
    assert not [name for name, finding in results.items() if "the check itself failed" in finding.actual]
    assert results["checkpoint"].status is CheckStatus.FAILED
    assert results["launch"].status is CheckStatus.SKIPPED


STATUSES = [status.value for status in CheckStatus]


def results(**broken: CheckStatus) -> dict[str, CheckResult]:
    """Everything is well but for the checks that are named."""
    return {
        check.name: CheckResult(status, f"{check.title} found", "wanted", f"mend {check.name}")
        if (status := broken.get(check.name))
        else CheckResult(CheckStatus.OK, f"{check.title} found", "wanted")
        for check in CHECKS
    }


def page(found: dict[str, CheckResult], whole: bool = False, width: int = 80) -> str:
    out = io.StringIO()
    print_page(found, Console(file=out, width=width), whole)
    return out.getvalue()


def without_a_board(**others: CheckResult) -> dict[str, CheckResult]:
    """As examine_all finds a machine on which nobody has begun to set a board up."""
    missing = CheckResult(CheckStatus.FAILED, "missing", "wanted", "mend it", absent=True)
    found = {**results(), **{name: missing for parts in NOT_SET_UP_WITHOUT.values() for name in parts}}
    found["air_bindings"] = CheckResult(
        CheckStatus.WARNING, "stand-ins", "air.ir", "make setup-npu", absent=True
    )
    found["aiebu_asm"] = found["stages"] = missing
    found["npu"] = CheckResult(CheckStatus.UNKNOWN, "unknown", "npu2", "enable it")
    found["memlock"] = CheckResult(CheckStatus.FAILED, "8 MiB", "unlimited", "sudo prlimit")
    for name in ("firmware", "bindings", "launch"):
        found[name] = CheckResult(CheckStatus.SKIPPED, "not looked at", "")
    return {**found, **others}


def test_without_a_board_nothing_has_failed() -> None:
    """What works comes first, then what to do, and one hint how to begin with a board."""
    text = page(without_a_board())
    assert text.splitlines()[:8] == [
        "what works now",
        "  run on the virtual NPU  yes",
        "  test the compilers      not set up",
        "  compile for the NPU     not set up",
        "  run on the NPU          not set up",
        "",
        "next",
        '  make run PROMPT="..."',
    ]
    assert not {"failed", "unknown", "skipped", "warning", "fix:", "mend"} & set(
        text.replace(",", " ").split()
    )
    group = text.partition("not set up, and needed for a board only\n")[2]
    assert "  NPU            driver, device node, device, firmware, locked memory\n" in group
    assert "  what runs      one kernel\n" in group
    assert group.count("docs/how-to/install.md") == 1


def test_the_full_page_shows_missing_parts_too() -> None:
    found = without_a_board()
    text = page(found, whole=True)
    assert [check.title for check in CHECKS if f"  {check.title}" not in text] == []
    assert text.count("  not set up  ") == len(not_set_up(found)) == 16
    assert text.count("fix: sudo prlimit") == 1


@pytest.mark.parametrize(
    ("there", "shown"),
    [
        (
            {"peano": CheckResult(CheckStatus.FAILED, "known to be bad", "another", "install it")},
            "known to be bad",
        ),
        ({"driver": CheckResult(CheckStatus.OK, "amdxdna", "amdxdna")}, "8 MiB"),
        (
            {"pyxrt": CheckResult(CheckStatus.FAILED, "built for another Python", "", "make setup")},
            "built for another",
        ),
        (
            {"compiler": CheckResult(CheckStatus.FAILED, "none", "g++", "apt install g++", absent=True)},
            "apt install g++",
        ),
    ],
    ids=lambda there: next(iter(there)) if isinstance(there, dict) else "",
)
def test_a_wrong_part_has_failed(there: dict[str, CheckResult], shown: str) -> None:
    """A check of an incomplete layer is shown: a user who has started a layer sees each of its parts."""
    found = without_a_board(**there)
    text = page(found)
    assert shown in text
    assert "  failed  " in text
    layer = next(check.layer for check in CHECKS if check.name in there)
    assert not [check.name for check in CHECKS if check.layer == layer and check.name in not_set_up(found)]


def test_a_machine_with_the_device_gets_advice_on_compilers() -> None:
    ok = CheckResult(CheckStatus.OK, "there", "there")
    found = without_a_board(**dict.fromkeys(("driver", "node", "npu", "firmware", "memlock"), ok))
    assert "to test the compilers and to compile for the NPU and to run on the NPU: mend it" in list(
        next_steps(found)
    )


def verdicts(found: dict[str, CheckResult]) -> dict[str, str | None]:
    return {goal["name"]: goal["obstacle"] for goal in record(found)["goals"]}


def test_all_is_well() -> None:
    found = results()
    assert verdicts(found) == dict.fromkeys(("virtual", "compile", "stages", "npu"))
    assert page(found).count("  yes") == 4
    assert list(next_steps(found)) == ['make run BACKEND=npu PROMPT="..."']
    assert exit_code(found) == WORKS


@pytest.mark.parametrize(
    ("broken", "obstacles"),
    [
        ({"aiebu_asm": CheckStatus.FAILED}, (None, None, "aiebu_asm", "aiebu_asm")),
        ({"npu": CheckStatus.UNKNOWN, "launch": CheckStatus.SKIPPED}, (None, None, None, "npu")),
        ({"npu": CheckStatus.FAILED, "peano": CheckStatus.FAILED}, (None, None, "peano", "npu")),
        (
            {"compiler": CheckStatus.FAILED, "virtual_npu": CheckStatus.SKIPPED},
            ("compiler", None, None, None),
        ),
        ({"stages": CheckStatus.FAILED}, (None, "stages", None, None)),
        ({"launch": CheckStatus.FAILED}, (None, None, None, "launch")),
        ({"checkpoint": CheckStatus.FAILED}, ("checkpoint", None, None, "checkpoint")),
        (
            {"memory": CheckStatus.WARNING, "xrt": CheckStatus.FAILED, "firmware": CheckStatus.UNKNOWN},
            (None, None, None, None),
        ),
    ],
)
def test_the_first_obstacle(broken: dict[str, CheckStatus], obstacles: tuple[str | None, ...]) -> None:
    found = results(**broken)
    assert tuple(verdicts(found).values()) == obstacles
    for goal, obstacle in zip(GOALS, obstacles, strict=True):
        if obstacle:
            assert any(f"{goal.title}" in step and f"mend {obstacle}" in step for step in next_steps(found))


def test_nothing_can_be_run() -> None:
    found = results(compiler=CheckStatus.FAILED, npu=CheckStatus.FAILED)
    assert exit_code(found) == NOTHING_RUNS
    assert next(iter(next_steps(found))) == "make compile BACKEND=npu"


def test_each_goal_alone_is_enough() -> None:
    assert exit_code(results(compiler=CheckStatus.FAILED)) == WORKS
    assert exit_code(results(npu=CheckStatus.FAILED)) == WORKS


def test_the_page_shows_every_check_and_how_to_mend_it() -> None:
    found = results(peano=CheckStatus.FAILED, memory=CheckStatus.WARNING)
    text = page(found)
    for check in CHECKS:
        assert f"{check.title} found" in text
    assert "fix: mend peano" in text
    assert "fix: mend memory" in text
    assert text.count("wanted: wanted") == 2


@pytest.mark.parametrize("width", [50, 80, 200])
def test_no_line_is_longer_than_the_console_is_wide(width: int) -> None:
    long = CheckResult(CheckStatus.WARNING, "x " * 150, "[bold]wanted[/bold]", f"cat /{'folder/' * 30}")
    text = page({**results(), "disk": long}, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert re.sub(r"[^x]", "", text.partition("disk  ")[2].partition("wanted:")[0]) == "x" * 150
    assert "folder/" * 30 in "".join(text.split())
    assert "[bold]wanted[/bold]" in text  # no markup: a tool's words are shown as they are


def test_the_record() -> None:
    found = results(peano=CheckStatus.FAILED)
    entry = record(found)
    assert json.loads(json.dumps(entry)) == entry
    assert set(entry) == {"schema", "checks", "goals"}
    assert entry["schema"] == SCHEMA == 1
    assert [check["name"] for check in entry["checks"]] == [check.name for check in CHECKS]
    for check in entry["checks"]:
        assert set(check) == {"name", "layer", "status", "found", "wanted", "fix"}
        assert check["status"] in STATUSES
    assert [set(goal) for goal in entry["goals"]] == [{"name", "works", "obstacle"}] * len(GOALS)


@given(st.fixed_dictionaries({check.name: st.sampled_from(list(CheckStatus)) for check in CHECKS}))
def test_any_state_has_a_page_and_a_record(states: dict[str, CheckStatus]) -> None:
    found = {name: CheckResult(status, "found", "wanted", "fix") for name, status in states.items()}
    assert page(found).count("fix: fix") == len(CHECKS), "nothing of it is absent"
    runs = {goal["name"] for goal in record(found)["goals"] if goal["works"]}
    assert exit_code(found) == (WORKS if runs & {"virtual", "npu"} else NOTHING_RUNS)


def test_the_record_has_no_user_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("USER", "ada")
    disk = CheckResult(CheckStatus.WARNING, "free at /home/ada/aerie/build", "by ada", "chown ada")
    entry = next(check for check in record({**results(), "disk": disk})["checks"] if check["name"] == "disk")
    assert entry["found"] == "free at ~/aerie/build"
    assert (entry["wanted"], entry["fix"]) == ("by <user>", "chown <user>")


def test_the_whole_doctor(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["doctor", "--json", "--model", str(tmp_path)])
    entry = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["status"] for check in entry["checks"]}
    assert states["virtual_npu"] == "ok"
    assert states["checkpoint"] == "failed"
    assert f"{Path.home()}/" not in json.dumps(entry)
    goals = {goal["name"]: goal["obstacle"] for goal in entry["goals"]}
    assert goals["virtual"] == "checkpoint"
    assert code == NOTHING_RUNS


def test_the_whole_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == WORKS
    text = capsys.readouterr().out
    assert "run on the virtual NPU  yes" in text
    assert "\x1b" not in text
