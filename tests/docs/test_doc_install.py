"""install.md against the code: versions, commands and the doctor's record, and what can be run here."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest
from doc_transcripts import DOCS, blocks, check_command, session, table

from aerie.board.doctor.checks import CHECKS, GOALS
from aerie.board.doctor.command import SCHEMA, record
from aerie.board.doctor.machine import Finding, Status
from aerie.board.setup_npu import FETCH
from aerie.runtime.npu import versions

PAGE = "how-to/install.md"
TEXT = (DOCS / PAGE).read_text()
PROJECT = DOCS.parent


def test_versions() -> None:
    wanted = [value for value in vars(versions).values() if isinstance(value, versions.Wanted)]
    rows = {
        name: (version, source)
        for name, version, source in table(PAGE, "what", "version", "upstream's source")
    }
    assert rows == {w.name: (w.version, w.source) for w in wanted if w is not versions.DRIVER}


def test_what_must_not_be_used() -> None:
    for bad in versions.PEANO_KNOWN_BAD:
        (sentence,) = re.findall(rf"`{re.escape(bad.version)}` must not be used\. It ([^.]*)\.", TEXT)
        assert " ".join(sentence.split()).startswith(bad.reason.partition(" (")[0].removeprefix("it "))


def test_every_version_number_is_a_wanted_one() -> None:
    assert set(re.findall(r"llvm-aie==(\S+)", TEXT)) == {versions.PEANO.version}
    assert set(re.findall(r"git checkout (\w+)", TEXT)) == {versions.DRIVER_COMMIT.version}
    assert set(re.findall(r"https://github.com/Xilinx/\S+", TEXT)) == set(versions.WHEEL_PAGES)
    python, gcc = versions.OLDEST_PYTHON, versions.GCC.version
    assert f"Python {python[0]}.{python[1]} or newer, a C++ compiler (g++ {gcc} or newer" in TEXT
    assert f"locks {versions.MEMLOCK_BYTES >> 20} MiB" in TEXT
    assert f"From Linux {versions.KERNEL_WITH_DRIVER.version} on" in TEXT


def test_fetching_elsewhere() -> None:
    (shown,) = re.findall(r"^(pip download .*?)^make", TEXT, re.MULTILINE | re.DOTALL)
    said = FETCH[FETCH.index("pip download") : FETCH.index("; then here")]
    assert shlex.split(shown.replace("\\\n", " ")) == shlex.split(said)


def test_statuses() -> None:
    assert [status for status, _ in table(PAGE, "status", "meaning")] == [s.value for s in Status]


def test_the_record() -> None:
    entry = record({check.name: Finding(Status.OK, "", "") for check in CHECKS})
    shown = [name for name, _ in table(PAGE, "entry", "what it holds")]
    nested = [[key, *(f"{key}.{name}" for name in entry[key][0])] for key in ("checks", "goals")]
    assert shown == ["schema", *nested[0], *nested[1]]
    rows = dict(table(PAGE, "entry", "what it holds"))
    assert rows["schema"].startswith(f"{SCHEMA};")
    named = re.findall(r"\w+", rows["goals"].partition(":")[0].replace(" and ", " "))
    assert named == [goal.name for goal in GOALS]


def test_make_targets_and_variables() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    for target in re.findall(r"(?:^ *|`)make ([a-z-]+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for line in re.findall(r"(?:^ *|`)make [a-z-]+ ([^`\n]*)", TEXT, re.MULTILINE):
        for variable in re.findall(r"\b([A-Z_]+)=", line):
            assert re.search(rf"^{variable} +\?=", makefile, re.MULTILINE), variable


COMMANDS = [
    (command, expected)
    for language, _, body in blocks(PAGE)
    if language == "console"
    for command, expected in session(body)
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=[command[:40] for command, _ in COMMANDS])
def test_what_the_page_runs(command: str, expected: str) -> None:
    assert shutil.which("bash")
    check_command(PAGE, PROJECT, command, expected)
