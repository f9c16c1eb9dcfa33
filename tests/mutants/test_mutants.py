"""The table of mutants fits the tree: each text is there once, each file of tests is there, and what is made
of it is a program. Trying all is `python -m tests.mutants`; here it is tried on a tree of one line."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.drawing import draw
from tests.mutants.running import KILLED, NO_VERDICT, SURVIVED, Copy, Keys, Results, Settings, Trial
from tests.mutants.table import ROOT, Mutant, TableError, load, test_id

TABLE = load()
MIN_MUTANTS, MIN_ROOMS = 66, 6


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.id)
def test_a_mutant_can_be_put_into_the_tree(mutant: Mutant) -> None:
    path = mutant.place(ROOT)
    assert mutant.test_ids(ROOT)
    if path.suffix == ".py":
        ast.parse(path.read_text().replace(mutant.old, mutant.new))


def test_there_are_enough_of_them() -> None:
    assert len(TABLE) >= MIN_MUTANTS
    assert len({mutant.room for mutant in TABLE}) >= MIN_ROOMS
    assert not [name for name, count in Counter(mutant.id for mutant in TABLE).items() if count > 1]


def test_a_drawn_mutant_is_the_same_for_the_same_seed() -> None:
    rooms = ["engine", "verify"]
    drawn = draw(ROOT, rooms, 4, seed=1)
    assert drawn == draw(ROOT, rooms, 4, seed=1)
    assert drawn != draw(ROOT, rooms, 4, seed=2)
    for mutant in drawn:
        path = mutant.place(ROOT)
        ast.parse(path.read_text().replace(mutant.old, mutant.new))


def test_what_is_not_there_is_refused() -> None:
    strange = Mutant("engine", "x", "aerie.engine.page_pool", "no such text", "y", "nothing", ("test_pages",))
    with pytest.raises(TableError, match=r"must occur once in aerie\.engine\.page_pool.*occurs nowhere"):
        strange.place(ROOT)
    with pytest.raises(TableError, match="there are 0 files"):
        test_id(ROOT, "test_of_nothing")


SLOW_TEST = """
import pytest
from aerie.sums import add

@pytest.mark.slow
def test_add():
    assert add(2, 3) == 5
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A product of one line, and a file of tests each for it and for nothing."""
    root = tmp_path / "tree"
    files = {
        "aerie/__init__.py": "",
        "aerie/sums.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
        "tests/test_sums.py": "from aerie.sums import add\ndef test_add():\n    assert add(2, 3) == 5\n",
        "tests/test_broken.py": "def test_broken():\n    assert False\n",
        "tests/test_slow.py": SLOW_TEST,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_what_comes_of_a_mutant(tree: Path, tmp_path: Path) -> None:
    """It is killed, survives, or has no verdict; is known the next time; and the tree stays as it was."""
    minus = Mutant("sums", "minus", "aerie.sums", "a + b", "a - b", "a difference", ("test_sums",))
    mutants = [
        minus,
        replace(minus, name="turned", new="b + a"),
        replace(minus, name="unasked", tests=("test_broken",)),
    ]
    copy, lines = Copy(tree, tmp_path / "copy"), list[str]()
    copy.check_imports(["aerie.sums"])
    for _ in range(2):
        results = Results(tmp_path / "results.json")
        trial = Trial(Keys(tree), results, [copy], Settings(timeout=60), lines.append)
        found = [trial.try_(mutant) for mutant in mutants]
        assert [each.outcome for each in found] == [KILLED, SURVIVED, NO_VERDICT]
    assert (found[0].by, found[2].by) == (
        "tests/test_sums.py::test_add",
        "test_broken does not pass in the tree as it is",
    )
    assert [line.split()[0] for line in lines].count("sums/minus:") == 1
    assert (
        json.loads((tmp_path / "results.json").read_text())["mutants"]["sums/turned"]["outcome"] == SURVIVED
    )
    assert "a + b" in (tree / "aerie" / "sums.py").read_text()


def test_a_slow_test_is_run_where_it_is_named_by_itself(tree: Path, tmp_path: Path) -> None:
    copy = Copy(tree, tmp_path / "copy")
    lines = list[str]()
    trial = Trial(Keys(tree), Results(None), [copy], Settings(timeout=60), lines.append)
    in_a_file = Mutant("sums", "file", "aerie.sums", "a + b", "a - b", "a difference", ("test_slow",))
    by_itself = replace(in_a_file, name="named", tests=("test_sums", "test_slow::test_add"))
    assert trial.try_(in_a_file).outcome == NO_VERDICT
    assert "test_slow: no test of it is run, as all are slow; name one by itself (" in lines[0]
    assert trial.try_(by_itself).outcome == KILLED
    by_itself = replace(in_a_file, name="alone", tests=("test_slow::test_add",))
    assert trial.try_(by_itself).by == "tests/test_slow.py::test_add"


def test_a_copy_that_is_not_what_is_imported_is_refused(tree: Path, tmp_path: Path) -> None:
    copy = Copy(tree, tmp_path / "copy")
    with pytest.raises(TableError, match=r"would import .*json.*, which no mutant changes"):
        copy.check_imports(["json"])
