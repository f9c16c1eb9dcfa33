"""Texts that are replayed to measure drafts: their content, and that each answer has exactly their tokens."""

import pytest

from aerie.cli.arguments import default_cache_dir
from aerie.cli.checkpoints import DEMO_FOLDER
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.open_session import prepare_runtime
from aerie.engine.program_library import RuntimeOptions
from aerie.engine.reporter import Reporter
from aerie.engine.strategies.drafters import PromptLookupDrafter
from aerie.runtime import select_backend
from benchmarks import drafts

TEXTS = {text.name: text for text in drafts.texts()}


def guessed(text: drafts.RecordedText) -> float:
    """The share of an answer's tokens that lookup guesses one by one."""
    look, right = PromptLookupDrafter(), 0
    for number, token in enumerate(text.answer):
        right += list(look([*text.prompt, *text.answer[:number]], 1)) == [token]
    return right / len(text.answer)


def test_two_texts_repeat_themselves_and_one_does_not() -> None:
    assert sorted(TEXTS) == ["code_editing", "prose", "quoting_summary"]
    assert all(len(text.answer) >= 160 for text in TEXTS.values())
    assert guessed(TEXTS["code_editing"]) > 0.8
    assert guessed(TEXTS["quoting_summary"]) > 0.6
    assert guessed(TEXTS["prose"]) < 0.1


def test_a_replayed_answer_is_the_text_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RuntimeOptions(None, select_backend("virtual"), default_cache_dir(), variants="8,32x512")
    session = prepare_runtime(open_checkpoint(DEMO_FOLDER), options, Reporter())
    text = TEXTS["code_editing"]
    row = drafts.measure(session, text._replace(prompt=text.prompt[:60]), max_tokens=12)
    assert row.per_pass >= 1
    assert min(row.guide, row.rows, row.lookup) > 0
    monkeypatch.setattr(drafts.ReplaySampler, "__call__", lambda *_: 3)
    with pytest.raises(ValueError, match="the replayed answer is another"):
        drafts.measure(session, text._replace(prompt=text.prompt[:60]), max_tokens=12)
