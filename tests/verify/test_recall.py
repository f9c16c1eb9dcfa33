"""The recall probe: its questions have the answers that they say, and its model shows what chunks lose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.composed_prompt import parse_chunk_mode
from aerie.engine.reporter import Reporter
from aerie.engine.session import Session
from aerie.verify.chunk_check import try_mode
from aerie.verify.recall import __main__ as probe
from aerie.verify.recall import task, train
from aerie.verify.reference import Reference


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = probe.opened(probe.CHECKPOINT, Reporter())
    yield opened
    opened.cache.close()


@pytest.mark.parametrize("hops", [1, 2])
def test_a_question_is_answered_by_its_facts(hops: int) -> None:
    for question in task.questions(3, 50, hops):
        *texts, (ask, name) = question.chunks
        assert len(texts) == task.CHUNKS
        facts: dict[int, tuple[int, int]] = {}
        for number, text in enumerate(texts):
            names = text[1:-1] if number == 0 else text[:-1]
            pairs = [*zip(names[::2], names[1::2], strict=True)]
            assert len(pairs) == task.FACTS
            facts |= {first: (second, number) for first, second in pairs}
        places = []
        for _ in range(hops):
            name, place = facts[name]
            places.append(place)
        assert (name, task.VOCABULARY[ask]) == (question.answer, {1: task.ONE_HOP, 2: task.TWO_HOPS}[hops])
        assert len(set(places)) == hops, "facts of a question are in different chunks"


def test_equal_seeds_draw_equal_questions_and_others_differ() -> None:
    assert task.questions(1, 5, 2) == task.questions(1, 5, 2)
    assert task.questions(1, 5, 2) != task.questions(2, 5, 2)


@pytest.mark.parametrize("hops", [1, 2])
def test_which_recall_is_lost(session: Session, hops: int) -> None:
    """On few questions, of which chance would answer three in a hundred."""
    asked = task.questions(7, 48, hops)
    causal, block, link = probe.scores(session, asked, ("prefix", "block", "block+link-8"))
    assert causal.accuracy > 0.8
    assert causal.from_causal == 0
    assert block.from_causal > 10 * link.from_causal > 0
    assert block.accuracy < causal.accuracy - 0.3
    assert link.accuracy > causal.accuracy - 0.1


@pytest.mark.parametrize("mode", probe.MODES)
def test_the_modes_are_those_of_transformers(session: Session, mode: str) -> None:
    question = task.questions(5, 1, 2)[0]
    found = try_mode(
        "probe", session, Reference.open(probe.CHECKPOINT), question.chunks, parse_chunk_mode(mode)
    )
    assert found.failures == []


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--questions", "2"]) == 0
    printed = capsys.readouterr()
    assert all(mode in printed.out for mode in probe.MODES)
    assert "2 questions, hops: 2" in printed.err


def test_a_folder_without_a_model_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe.main(["--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_training_begins_and_its_checkpoint_opens(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few steps, which learn nothing yet."""
    monkeypatch.setattr(train, "MAX_STEPS", 3)
    monkeypatch.setattr(train, "EVERY", 1)
    monkeypatch.setattr("sys.argv", ["train", "--out", str(tmp_path / "model"), "--threads", "1"])
    train.main()
    assert "python -m aerie.verify.recall --model" in capsys.readouterr().out
    checkpoint = open_checkpoint(tmp_path / "model")
    committed = open_checkpoint(probe.CHECKPOINT)
    assert checkpoint.config == committed.config
    assert checkpoint.tokenizer.encode("Ann Bob .") == committed.tokenizer.encode("Ann Bob .")
    assert checkpoint.tokenizer.encode("Ann") == [task.FIRST_NAME]
    assert np.isfinite(np.asarray(checkpoint.weights.final_norm.read(), np.float32)).all()
