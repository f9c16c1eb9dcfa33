"""The lit suite (tests/lit), run once: a test per file, with lit's output where it fails."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[1] / "lit"
SUFFIXES = (".mlir", ".test")
FILES = sorted(str(path.relative_to(SUITE)) for path in SUITE.rglob("*") if path.suffix in SUFFIXES)
SLOW = [name for name in FILES if re.search("REQUIRES:.*\\bslow\\b", (SUITE / name).read_text())]


@dataclass(frozen=True)
class Outcome:
    """What lit says of one file: why it was skipped, what it printed when it failed; neither: it passed."""

    skipped: str = ""
    failed: str = ""


def outcomes(folder: Path, *arguments: str) -> dict[str, Outcome]:
    """Run lit, with its outputs in `folder`: the outcome of each file, by its path in the suite."""
    report = folder / "lit.xml"
    command = [str(Path(sys.executable).parent / "lit"), "-q", f"--xunit-xml-output={report}"]
    subprocess.run([*command, f"-Dout={folder}", *arguments], capture_output=True, check=False)
    return dict(_read(report))


def _read(report: Path) -> Iterator[tuple[str, Outcome]]:
    for case in ET.parse(report).iter("testcase"):
        folder = case.attrib["classname"].partition(".")[2].partition(".")[0]
        skipped, failed = case.find("skipped"), case.find("failure")
        reason = "" if skipped is None else skipped.attrib.get("message", "skipped")
        yield (
            f"{folder}/{case.attrib['name']}",
            Outcome(reason, "" if failed is None else failed.text or "failed"),
        )


def settle(outcome: Outcome) -> None:
    """The outcome as pytest's."""
    if outcome.failed:
        pytest.fail(outcome.failed, pytrace=False)
    if outcome.skipped:
        pytest.skip(outcome.skipped)


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All files, side by side; those that take minutes, or the board, are skipped."""
    return outcomes(tmp_path_factory.mktemp("lit"), "-Dboard=0", str(SUITE))


@pytest.mark.parametrize("name", [name for name in FILES if name not in SLOW])
def test_lit(suite: dict[str, Outcome], name: str) -> None:
    settle(suite[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_slow_lit(tmp_path: Path, name: str) -> None:
    settle(outcomes(tmp_path, "-Dslow=1", str(SUITE / name))[name])


def test_lit_runs_all_of_these_files(suite: dict[str, Outcome]) -> None:
    assert sorted(suite) == FILES


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("board/")])
def test_the_board_is_left_to_make_test_npu(suite: dict[str, Outcome], name: str) -> None:
    assert "ryzen_ai_npu2" in suite[name].skipped


def test_a_test_that_needs_an_npu_is_skipped_with_a_reason() -> None:
    """A file that asks for the NPU is skipped without one, never passed."""
    for name in FILES:
        text = (SUITE / name).read_text()
        asks = re.search("--backend npu|BACKEND=npu", text) is not None
        assert asks == ("REQUIRES: ryzen_ai_npu2, peano" in text) == name.startswith("board/"), name


def test_a_failure_shows_what_the_command_printed(tmp_path: Path) -> None:
    """lit itself, on a suite of two files: one fails, one needs what no machine has."""
    (tmp_path / "lit.cfg.py").write_text(
        f"lit_config.load_config(config, {str(SUITE / 'lit.cfg.py')!r})\nconfig.test_source_root = None\n"
    )
    (tmp_path / "dialect").mkdir()
    (tmp_path / "dialect" / "wrong.mlir").write_text(
        "// RUN: %air %s | filecheck %s\n// CHECK: air.nothing\nfunc.func @f()\n"
    )
    (tmp_path / "dialect" / "absent.mlir").write_text("// REQUIRES: abacus\n// RUN: %air %s\n")
    found = outcomes(tmp_path, str(tmp_path))
    assert 'Couldn\'t match "air.nothing"' in found["dialect/wrong.mlir"].failed
    assert found["dialect/absent.mlir"].skipped == "Missing required feature(s): abacus"


def golden(file: Path, found: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SUITE / "support" / "golden.py"), str(file), *flags]
    return subprocess.run(command, input=found, capture_output=True, text=True, check=False)


def test_a_golden_text_is_compared_letter_by_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text("// RUN: this\none\ntwo\n")
    assert golden(path, "one\ntwo\n").returncode == 0
    done = golden(path, "one\nthree\n")
    assert done.returncode == 1
    assert "-two\n+three\n" in done.stdout
    assert "`make lit REFRESH=1` takes it over" in done.stdout


def test_a_golden_text_that_misses_is_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text("// RUN: this\n")
    assert golden(path, "one\n").returncode == 1
    assert golden(path, "one\n", "--refresh").returncode == 0
    assert path.read_text() == "// RUN: this\none\n"


def test_a_command_that_printed_nothing_is_no_golden_text(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text("// RUN: this\none\n")
    done = golden(path, "", "--refresh")
    assert (done.returncode, path.read_text()) == (1, "// RUN: this\none\n")
    assert done.stdout.startswith("error: there is no text on standard input")
