"""The table of mutants fits the tree: each text is there once, each file of tests is there, and what is made
of it is a program. Trying them is `python -m tests.mutants`."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.mutants.drawing import draw
from tests.mutants.table import ROOT, Mutant, TableError, load, test_id

TABLE = load()
LEAST_MUTANTS, LEAST_ROOMS = 66, 6


@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.id)
def test_a_mutant_can_be_put_into_the_tree(mutant: Mutant) -> None:
    path = mutant.place(ROOT)
    assert mutant.test_ids(ROOT)
    if path.suffix == ".py":
        ast.parse(path.read_text().replace(mutant.old, mutant.new))


def test_there_are_enough_of_them() -> None:
    assert len(TABLE) >= LEAST_MUTANTS
    assert len({mutant.room for mutant in TABLE}) >= LEAST_ROOMS
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
    strange = Mutant("engine", "x", "aerie.engine.pages", "no such text", "y", "nothing", ("test_pages",))
    with pytest.raises(TableError, match=r"must occur once in aerie\.engine\.pages.*occurs nowhere"):
        strange.place(ROOT)
    with pytest.raises(TableError, match="there are 0 files"):
        test_id(ROOT, "test_of_nothing")
