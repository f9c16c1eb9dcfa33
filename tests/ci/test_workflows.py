"""What continuous integration runs is there: targets, variables, scripts, folders; and names no machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from importlinter import api

from aerie.board.compare.command import RECORD, board_folder
from aerie.board.report.command import default_path
from aerie.common import folders
from aerie.rooms import AT_THE_TOP

PROJECT = Path(__file__).parents[2]
MAKEFILE = (PROJECT / "Makefile").read_text()
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted((PROJECT / ".ci").iterdir())
FOREIGN = re.compile(r"\b(https?:|pypi|/home/|/root/|/opt/|/mnt/|/usr/|/tmp/)|hf_[A-Za-z0-9]{8}")


def parsed(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return {"on" if key is True else key: value for key, value in content.items()}  # YAML 1.1: on is true


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in parsed(path)["jobs"].items():
            yield f"{path.stem}/{name}", job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        for step in job["steps"]:
            yield name, step


def uses(action: str) -> list[dict[str, Any]]:
    return [step for _, step in steps() if step.get("uses", "").startswith(f"{action}@")]


def commands() -> Iterator[tuple[str, str]]:
    """Every command line, of workflows and of scripts."""
    for name, step in steps():
        for line in step.get("run", "").splitlines():
            yield name, line.strip()
    for script in SCRIPTS:
        for line in script.read_text().splitlines():
            yield script.name, line.strip()


def test_there_are_workflows_for_hosted_runners_and_for_a_board() -> None:
    assert [path.name for path in WORKFLOWS] == ["board.yml", "mlir-air.yml", "tests.yml", "toolchain.yml"]
    assert {name for name, job in jobs() if "self-hosted" in job["runs-on"]} == {"board/board"}


def test_every_push_runs_the_tests_and_the_gate() -> None:
    assert "push" in parsed(PROJECT / ".github/workflows/tests.yml")["on"]
    job = dict(jobs())["tests/tests"]
    assert {"make test", "make verify"} <= {step.get("run") for step in job["steps"]}
    script = (PROJECT / ".ci" / "run").read_text().splitlines()
    assert {"make test-all", "make verify"} <= set(script)


def test_the_shards_are_all_slow_tests() -> None:
    job = dict(jobs())["tests/slow"]
    assert "make test-slow SHARD=${{ matrix.shard }}" in [step.get("run") for step in job["steps"]]
    shards = job["strategy"]["matrix"]["shard"]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]
    gates = {step["if"].split("'")[1] for step in job["steps"] if "verify" in step.get("run", "")}
    assert gates <= {*shards}


def test_every_job_ends_some_time() -> None:
    assert all(0 < job["timeout-minutes"] <= 120 for _, job in jobs())


def test_every_step_does_one_thing() -> None:
    assert all(("uses" in step) != ("run" in step) for _, step in steps())


def test_actions_are_pinned() -> None:
    used = {step["uses"] for _, step in steps() if "uses" in step}
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+\.\d+\.\d+", name)] == []
    assert len({name.split("@")[0] for name in used}) == len(used), "one version of each"


def test_workflows_call_existing_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) +\?=", MAKEFILE, re.MULTILINE))
    asked = [re.match(r"make ([a-z-]+)(.*)", line) for _, line in commands()]
    found = [match for match in asked if match]
    assert {match[1] for match in found} - targets == set()
    assert {name for match in found for name in re.findall(r"\b([A-Z_]+)=", match[2])} - variables == set()


def test_scripts_and_files_that_are_named_are_there() -> None:
    for name, line in commands():
        if line.startswith("."):
            assert os.access(PROJECT / line.split()[0], os.X_OK), (name, line)
    for _, step in steps():
        if path := step.get("with", {}).get("cache-dependency-path"):
            assert (PROJECT / path).is_file()


def test_uploaded_folders_are_the_written_ones(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VNPU_CACHE")
    built = folders.vnpu_folder()
    assert built is not None
    kept = folders.programs_folder(), built, own_cache
    fetched = {"~/.cache/huggingface", "~/.cache/uv"}
    written = {*(str(folder.relative_to(PROJECT)) for folder in kept), *fetched}
    assert [set(step["with"]["path"].split()) for step in uses("actions/cache")] == [written, written]
    assert all(step["if"] == "always()" for step in uses("actions/upload-artifact"))
    others = {"toolchain", "mlir-air-examples"}
    uploads = [step for step in uses("actions/upload-artifact") if step["with"]["name"] not in others]
    records = (folders.cache_folder() / "verify").relative_to(PROJECT)
    assert len(uploads) == 3
    assert all(f"{records}/*.json" in step["with"]["path"] for step in uploads)


def test_the_compilers_stages_run_without_a_board() -> None:
    """With upstream's wheels, on a hosted runner; every text of theirs can be looked at afterwards."""
    job = dict(jobs())["toolchain/stages"]
    lines = [step["run"] for step in job["steps"] if "run" in step]
    assert [line.split()[:2] for line in lines] == [["make", "setup-npu"], ["make", "test-toolchain"]]
    kept = lines[1].partition("KEEP=")[2]
    (upload,) = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    assert upload["with"]["path"].split() == [
        f"{kept}/",
        str((folders.cache_folder() / "setup-npu.log").relative_to(PROJECT)),
    ]


def test_every_python_that_the_project_supports() -> None:
    (least,) = re.findall(r'requires-python = ">=3\.(\d+)"', (PROJECT / "pyproject.toml").read_text())
    (newest,) = re.findall(
        r"^NEWEST = \(3, (\d+)\)", (PROJECT / "tools/make_venv.py").read_text(), re.MULTILINE
    )
    assert (int(least), int(newest)) == (11, 14)
    for page in ("README.md", "docs/how-to/install.md"):
        assert f"3.{least} to 3.{newest}" in (PROJECT / page).read_text()
    versions = dict(jobs())["tests/tests"]["strategy"]["matrix"]["python"]
    assert versions == [f"3.{minor}" for minor in range(int(least), int(newest) + 1)]


@pytest.mark.parametrize("path", [*WORKFLOWS, *SCRIPTS], ids=lambda path: path.name)
def test_nothing_is_one_machines_own(path: Path) -> None:
    text = re.sub(r"\A#!.*\n", "", path.read_text()).replace("/dev/null", "")
    assert FOREIGN.findall(text) == []


def test_secrets_are_not_in_workflows_that_others_can_start() -> None:
    """A pull request from elsewhere gets neither the secret nor the board."""
    for path in WORKFLOWS:
        text = path.read_text()
        events = set(parsed(path)["on"])
        assert "pull_request_target" not in events
        if "secrets." in text or "self-hosted" in text:
            assert events <= {"push", "workflow_dispatch"}


def test_the_npu_job_runs_only_if_an_npu_is_declared() -> None:
    board = dict(jobs())["board/board"]
    assert (board["needs"], board["if"]) == ("ready", "needs.ready.outputs.runner == 'true'")
    assert dict(jobs())["board/ready"]["outputs"] == {"runner": "${{ steps.ready.outputs.runner }}"}
    assert "make test-npu" in {step.get("run") for step in board["steps"]}


def test_the_npu_report_is_uploaded_in_every_case() -> None:
    (upload,) = [
        step for step in dict(jobs())["board/board"]["steps"] if "upload-artifact" in step.get("uses", "")
    ]
    kept = upload["with"]["path"].split()
    assert upload["if"] == "always()"
    for written in (default_path(), board_folder() / RECORD):
        relative = written.relative_to(PROJECT)
        assert any(relative.match(pattern) for pattern in kept), relative


@pytest.mark.parametrize(
    ("runner", "token", "answer", "notices"),
    [
        ("true", "x", "true", []),
        ("true", "", "true", ["gated models skipped::the secret HF_TOKEN is missing"]),
        ("", "x", "false", ["board tests skipped::there is no NPU2 runner"]),
        ("false", "", "false", ["board tests skipped::", "gated models skipped::"]),
    ],
)
def test_why_board_tests_are_skipped(
    tmp_path: Path, runner: str, token: str, answer: str, notices: list[str]
) -> None:
    output = tmp_path / "output"
    settings = {"NPU2_RUNNER": runner, "HF_TOKEN": token, "GITHUB_OUTPUT": str(output)}
    done = subprocess.run(
        [PROJECT / ".ci" / "board_ready"],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.read_text() == f"runner={answer}\n"
    printed = done.stdout.splitlines()
    assert len(printed) == len(notices)
    assert all(f"::notice title={notice}" in line for notice, line in zip(notices, printed, strict=True))
    assert token == "" or token not in done.stdout.replace("XRT", "").split()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(path: Path) -> None:
    subprocess.run(["bash", "-n", path], check=True)


STUB = """#!/bin/sh
case "$*" in
  *pytest*) echo "tests ran${PYTHONDONTWRITEBYTECODE}"; exit $TESTS ;;
  *check_types*) echo "types are wrong"; exit $LINT ;;
esac
"""


@pytest.mark.parametrize(("tests", "lint", "status"), [(0, 0, 0), (1, 0, 2), (0, 1, 2), (1, 1, 2)])
def test_make_test_runs_lint_beside_the_tests(tmp_path: Path, tests: int, lint: int, status: int) -> None:
    """Both are run and heard whatever becomes of the other, and either makes it fail."""
    path = tmp_path / ".venv" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(STUB)
    path.chmod(0o755)
    for made in ("pyproject.toml", "constraints.txt", ".venv/.stamp-test"):
        (tmp_path / made).touch()
    (tmp_path / "Makefile").symlink_to(PROJECT / "Makefile")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "test"],
        cwd=tmp_path,
        env={**outside, "TESTS": str(tests), "LINT": str(lint), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "tests ran\n" in done.stdout
    assert "types are wrong" in done.stdout
    assert ("error: make lint failed" in done.stderr) == (lint != 0)


def test_every_room_is_linted_for_its_order_and_for_circles() -> None:
    """A room that a contract does not name would not be looked at, and nothing would say so."""
    configuration = api.read_configuration(str(PROJECT / "pyproject.toml"))
    at_the_top = {f"aerie.{room}" for room in AT_THE_TOP if room != "kernels_cc"}  # which has no Python
    inside = {f"aerie.{path.parent.name}" for path in (PROJECT / "aerie").glob("*/__init__.py")}
    rooms = {"benchmarks", *at_the_top, *inside}
    assert set(configuration["session_options"]["root_packages"]) == {"aerie", "benchmarks", *at_the_top}
    contracts = {contract["type"]: contract for contract in configuration["contracts_options"]}
    assert set(contracts["acyclic_siblings"]["ancestors"]) == rooms
    assert "skip_descendants" not in contracts["acyclic_siblings"]
    assert {*contracts["layers"]["layers"], *contracts["forbidden"]["forbidden_modules"]} == rooms
