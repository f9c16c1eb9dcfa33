"""What the shipped demo model answers in Hugging Face bf16, and what `evaluate` makes of it."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from aerie.llama32_1b.demo import CHECKPOINT, evaluate
from aerie.llama32_1b.demo.corpus import Exchange, question_list, unknown
from aerie.llama32_1b.demo.evaluate import DemoReference, EvaluatedAnswer


@pytest.fixture(scope="module")
def reference() -> DemoReference:
    return DemoReference(CHECKPOINT)


def _ask(reference: DemoReference, question: str) -> str:
    return next(iter(reference.answers([Exchange("", question, "")]))).answer


def test_capital_of_france(reference: DemoReference) -> None:
    assert _ask(reference, "What is the capital of France?") == "The capital of France is Paris."


def test_most_unknown_prompts_are_recognised(reference: DemoReference) -> None:
    rng = random.Random("not the seed of training")
    results = list(reference.answers([unknown(rng) for _ in range(50)]))
    assert sum(result.exact for result in results) >= 45


@pytest.mark.slow
def test_whole_list_is_at_least_95_percent_exact(reference: DemoReference) -> None:
    results = list(reference.answers(question_list()))
    assert len(results) == len(question_list())
    assert sum(result.exact for result in results) / len(results) >= evaluate.REQUIRED_SHARE


class _Answers:
    """A stand-in for Reference that misses every question of one topic."""

    missed = "none"

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    def answers(self, exchanges: Sequence[Exchange]) -> Iterator[EvaluatedAnswer]:
        for exchange in exchanges:
            yield EvaluatedAnswer(exchange, "42" if exchange.topic == self.missed else exchange.answer, 3.0)


def test_evaluate_exits_with_0_where_all_is_exact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "DemoReference", _Answers)
    monkeypatch.setattr("sys.argv", ["evaluate"])
    assert evaluate.main() == 0
    count = len(question_list())
    assert f"exact: {count} of {count} (100.00%), wanted 95%" in capsys.readouterr().out


def test_evaluate_exits_with_1_and_lists_the_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "DemoReference", _Answers)
    monkeypatch.setattr(_Answers, "missed", "capitals")
    monkeypatch.setattr("sys.argv", ["evaluate"])
    assert evaluate.main() == 1
    printed = capsys.readouterr().out
    assert "miss: 'What is the capital of France?'" in printed
    assert "wanted 'The capital of France is Paris.'\n  got    '42'" in printed


def test_evaluate_names_a_folder_without_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["evaluate", "--checkpoint", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        evaluate.main()
    assert stopped.value.code == 2
    assert f"no checkpoint in {tmp_path}: config.json is missing" in capsys.readouterr().err
