"""The demo's draft model: how guesses are counted, the shipped files, how often it agrees with the demo."""

import json
import random
import re
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from aerie.cli.checkpoints import find_checkpoint
from aerie.cli.command_line import main
from aerie.llama32_1b.demo import CHECKPOINT as TARGET
from aerie.llama32_1b.demo.checkpoint_files import load_weights, new_model
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.drafter import CHECKPOINT, evaluate, train
from aerie.llama32_1b.demo.drafter.evaluate import DraftScore, count_drafts, sum_scores
from aerie.llama32_1b.demo.evaluate import DemoReference

_TOKENIZER = Tokenizer.from_file(str(TARGET / "tokenizer.json"))


@pytest.fixture(scope="module")
def target() -> DemoReference:
    return DemoReference(TARGET)


@pytest.mark.parametrize(
    ("alike", "drafted", "accepted", "passes"),
    [
        ([True] * 5, 4, 4, 1),
        ([True] * 6, 5, 5, 2),
        ([False, True, True], 5, 2, 2),
        ([True, True, False, True, True, True, True, True, True], 9, 7, 3),
        ([False] * 3, 6, 0, 3),
    ],
)
def test_guesses_are_counted_as_decoding_counts_them(
    alike: list[bool], drafted: int, accepted: int, passes: int
) -> None:
    assert count_drafts(alike) == DraftScore(len(alike), sum(alike), drafted, accepted, passes)


def test_figures_add_up_and_are_printed() -> None:
    both = sum_scores([count_drafts([True] * 5), count_drafts([False, True, True])])
    assert both == DraftScore(8, 7, 9, 6, 3)
    assert str(both) == (
        "alike: 7 of 8 tokens (87.50%)\naccepted: 6 of 9 draft tokens, 2.67 of 4, wanted 3.6\n"
        "tokens per pass of the demo: 2.67"
    )


def test_guesses_one_after_the_other_are_as_many_as_are_counted(target: DemoReference) -> None:
    """Guessed as decoding does, on a draft model that is often wrong: the demo's first and last layer."""
    draft = train.new_drafter(_TOKENIZER).eval()
    for prompt, answer in evaluate.target_answers(target, question_list()[::400]):
        alike, at, accepted = evaluate.matching_tokens(draft, prompt, answer), 0, 0
        while at < len(answer):
            tokens, right = [*prompt, *answer[:at]], 0
            for wanted in answer[at : at + evaluate.DRAFTED]:
                with torch.inference_mode():
                    tokens.append(int(draft(torch.tensor([tokens])).logits[0, -1].argmax()))
                if tokens[-1] != wanted:
                    break
                right += 1
            at, accepted = at + right + 1, accepted + right
        assert count_drafts(alike).accepted == accepted


def test_it_begins_as_the_demo_without_its_inner_layers() -> None:
    whole, draft = new_model(_TOKENIZER), train.new_drafter(_TOKENIZER)
    load_weights(whole, TARGET)
    theirs, kept = whole.state_dict(), {"layers.0.": "layers.0.", "layers.1.": "layers.5."}
    for name, weight in draft.state_dict().items():
        own = next((own for own in kept if own in name), "")
        assert torch.equal(weight, theirs[name.replace(own, kept[own]) if own else name])


def test_a_few_steps_write_a_checkpoint_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = str(torch.get_num_threads())
    monkeypatch.setattr("sys.argv", ["train", "--out", str(tmp_path), "--steps", "2", "--threads", threads])
    train.main()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in CHECKPOINT.iterdir()}
    printed = capsys.readouterr()
    assert re.search(r"step 2/2  loss \d\.\d+  .* s/step  0 min left", printed.err)
    assert f"python -m aerie.llama32_1b.demo.drafter.evaluate --checkpoint {tmp_path}" in printed.out


def test_the_shipped_files_have_two_layers_and_the_demo_s_vocabulary() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 4_500_000
    own, theirs = (json.loads((folder / "config.json").read_text()) for folder in (CHECKPOINT, TARGET))
    assert own == {**theirs, "num_hidden_layers": 2}
    assert (CHECKPOINT / "tokenizer.json").read_bytes() == (TARGET / "tokenizer.json").read_bytes()


def test_it_is_found_by_its_name_and_answers_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_checkpoint("demo-drafter") == CHECKPOINT
    assert main(["run", "--model", "demo-drafter", "--prompt", "What is the capital of France?"]) == 0
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


def test_its_guesses_are_mostly_what_the_demo_says(target: DemoReference) -> None:
    asked = random.Random(11).sample(question_list(), 50)
    figures = evaluate.evaluate(target, DemoReference(CHECKPOINT).model, asked)
    assert evaluate.DRAFTED * figures.share >= evaluate.REQUIRED


@pytest.mark.parametrize(("right", "code"), [(9, 0), (8, 1)])
def test_evaluate_exits_with_1_where_guesses_are_wrong(
    right: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def evaluated(target: DemoReference, draft: object, exchanges: list[Exchange]) -> DraftScore:
        asked.append(len(exchanges))
        return DraftScore(12, right, 10, right, 3)

    monkeypatch.setattr(evaluate, "evaluate", evaluated)
    monkeypatch.setattr("sys.argv", ["evaluate"])
    assert evaluate.main() == code
    assert asked == [len(question_list())]
    assert f"accepted: {right} of 10 draft tokens" in capsys.readouterr().out


def test_evaluate_names_a_folder_without_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["evaluate", "--checkpoint", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        evaluate.main()
    assert stopped.value.code == 2
    assert f"no checkpoint in {tmp_path}: config.json is missing" in capsys.readouterr().err


def test_it_guesses_for_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["run", "--prompt", "Tell me about Norway.", "--json", "--decode", "rows"]
    assert main(asked) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*asked, "--draft", "demo-drafter"]) == 0
    output = capsys.readouterr()
    drafted = json.loads(output.out)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["passes"]["accepted"] > len(plain["token_ids"]) // 2
    assert " draft tokens right)" in output.err
