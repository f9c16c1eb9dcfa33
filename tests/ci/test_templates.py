"""What GitHub asks of whoever opens an issue or sends a change: forms it can show, commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aerie.__main__ import COMMANDS, TOOLS

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / ".github"
FORMS = sorted(path for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {"textarea", "input", "dropdown"}
TEXTS = [*FORMS, FOLDER / "PULL_REQUEST_TEMPLATE.md"]


def parsed(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)
    return content


def test_issue_forms() -> None:
    assert [path.stem for path in FORMS] == ["bug", "hang", "missing-model", "wrong-answer"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_shows(path: Path) -> None:
    form = parsed(path)
    assert set(form) == {"name", "description", "labels", "body"}
    assert len(form["description"]) <= 200
    fields = form["body"]
    assert {field["type"] for field in fields} <= KINDS
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids)
    assert all(field["attributes"]["label"] for field in fields)
    assert all(field["attributes"]["options"] for field in fields if field["type"] == "dropdown")
    assert any(field.get("validations", {}).get("required") for field in fields)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_asks_for_the_report(path: Path) -> None:
    """But where a model is refused, which happens before anything runs."""
    asks = [field for field in parsed(path)["body"] if field["id"] == "report"]
    assert [field["validations"] for field in asks] == (
        [] if path.stem == "missing-model" else [{"required": True}]
    )
    assert all("`aerie report`" in field["attributes"]["description"] for field in asks)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_commands_and_targets_exist(path: Path) -> None:
    text = " ".join(path.read_text().split())
    targets = set(re.findall(r"^([a-z-]+):.*##", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    assert set(re.findall(r"`aerie ([a-z-]+)", text)) <= {command.name for command in (*COMMANDS, *TOOLS)}


@pytest.mark.parametrize(
    "words",
    sorted(
        {
            words
            for path in TEXTS
            for words in re.findall(r"`aerie ([^`]+)`", " ".join(path.read_text().split()))
        }
    ),
)
def test_options_exist(words: str) -> None:
    command = [word for word in words.partition(" --")[0].split() if word.islower()]
    shown = subprocess.run(
        [sys.executable, "-m", "aerie", *command, "--help"], capture_output=True, text=True, cwd=PROJECT
    )
    assert shown.returncode == 0
    assert [option for option in re.findall(r"--[a-z-]+", words) if option not in shown.stdout] == []
