"""What the doctor prints: the page, the record, the exit code; and that neither names anybody."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from board.__main__ import main
from board.doctor.checks import CHECKS, GOALS
from board.doctor.command import NOTHING_RUNS, SCHEMA, WORKS, exit_code, next_steps, print_page, record
from board.doctor.machine import Finding, Status

STATUSES = [status.value for status in Status]


def results(**broken: Status) -> dict[str, Finding]:
    """Everything is well but for the checks that are named."""
    return {
        check.name: Finding(status, f"{check.title} found", "wanted", f"mend {check.name}")
        if (status := broken.get(check.name))
        else Finding(Status.OK, f"{check.title} found", "wanted")
        for check in CHECKS
    }


def page(found: dict[str, Finding]) -> str:
    out = io.StringIO()
    print_page(found, Console(file=out))
    return out.getvalue()


def verdicts(found: dict[str, Finding]) -> dict[str, str | None]:
    return {goal["name"]: goal["obstacle"] for goal in record(found)["goals"]}


def test_all_is_well() -> None:
    found = results()
    assert verdicts(found) == {"virtual": None, "compile": None, "npu": None}
    assert page(found).count("  yes") == 3
    assert list(next_steps(found)) == ['make run BACKEND=npu PROMPT="..."']
    assert exit_code(found) == WORKS


@pytest.mark.parametrize(
    ("broken", "obstacles"),
    [
        ({"aiebu_asm": Status.FAILED}, (None, "aiebu_asm", "aiebu_asm")),
        ({"npu": Status.UNKNOWN, "launch": Status.SKIPPED}, (None, None, "npu")),
        ({"npu": Status.FAILED, "peano": Status.FAILED}, (None, "peano", "npu")),
        ({"compiler": Status.FAILED, "virtual_npu": Status.SKIPPED}, ("compiler", None, None)),
        ({"launch": Status.FAILED}, (None, None, "launch")),
        ({"checkpoint": Status.FAILED}, ("checkpoint", None, "checkpoint")),
        ({"memory": Status.WARNING, "xrt": Status.FAILED, "firmware": Status.UNKNOWN}, (None, None, None)),
    ],
)
def test_the_first_obstacle(broken: dict[str, Status], obstacles: tuple[str | None, ...]) -> None:
    found = results(**broken)
    assert tuple(verdicts(found).values()) == obstacles
    for goal, obstacle in zip(GOALS, obstacles, strict=True):
        if obstacle:
            assert any(f"{goal.title}" in step and f"mend {obstacle}" in step for step in next_steps(found))


def test_nothing_can_be_run() -> None:
    found = results(compiler=Status.FAILED, npu=Status.FAILED)
    assert exit_code(found) == NOTHING_RUNS
    assert next(iter(next_steps(found))) == "make compile BACKEND=npu"


def test_each_goal_alone_is_enough() -> None:
    assert exit_code(results(compiler=Status.FAILED)) == WORKS
    assert exit_code(results(npu=Status.FAILED)) == WORKS


def test_the_page_shows_every_check_and_how_to_mend_it() -> None:
    found = results(peano=Status.FAILED, memory=Status.WARNING)
    text = page(found)
    for check in CHECKS:
        assert f"{check.title} found" in text
    assert "fix: mend peano" in text
    assert "fix: mend memory" in text
    assert text.count("wanted: wanted") == 2


def test_lines_are_not_broken_in_a_pipe() -> None:
    long = "x " * 150
    found = {**results(), "disk": Finding(Status.WARNING, long.strip(), "[bold]wanted[/bold]", "fix")}
    assert long.strip() in page(found)
    assert "[bold]wanted[/bold]" in page(found)  # no markup: a tool's words are shown as they are


def test_the_record() -> None:
    found = results(peano=Status.FAILED)
    entry = record(found)
    assert json.loads(json.dumps(entry)) == entry
    assert set(entry) == {"schema", "checks", "goals"}
    assert entry["schema"] == SCHEMA == 1
    assert [check["name"] for check in entry["checks"]] == [check.name for check in CHECKS]
    for check in entry["checks"]:
        assert set(check) == {"name", "layer", "status", "found", "wanted", "fix"}
        assert check["status"] in STATUSES
    assert [set(goal) for goal in entry["goals"]] == [{"name", "works", "obstacle"}] * len(GOALS)


@given(st.fixed_dictionaries({check.name: st.sampled_from(list(Status)) for check in CHECKS}))
def test_any_state_has_a_page_and_a_record(states: dict[str, Status]) -> None:
    found = {name: Finding(status, "found", "wanted", "fix") for name, status in states.items()}
    assert page(found).count("fix: fix") == len(CHECKS)
    runs = {goal["name"] for goal in record(found)["goals"] if goal["works"]}
    assert exit_code(found) == (WORKS if runs & {"virtual", "npu"} else NOTHING_RUNS)


def test_the_record_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("USER", "ada")
    disk = Finding(Status.WARNING, "free at /home/ada/aerie/build", "by ada", "chown ada")
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
