"""The demo model that fills in blocks: its training's data, and what the shipped one answers."""

import random
from itertools import islice

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.cli.command_line import main
from aerie.llama32_1b.demo import CHECKPOINT as DEMO_CHECKPOINT
from aerie.llama32_1b.demo.batches import Encoder, Sample
from aerie.llama32_1b.demo.corpus import question_list
from aerie.llama32_1b.demo.diffusion import BLOCK, CHECKPOINT, MASK_TOKEN
from aerie.llama32_1b.demo.diffusion.checkpoint_files import config, end_ids, load_model, new_tokenizer
from aerie.llama32_1b.demo.diffusion.evaluate import DiffusionScore, evaluate, is_good_enough, open_session
from aerie.llama32_1b.demo.diffusion.noise import (
    add_noise,
    attention_mask,
    batch_of,
    block_text,
    noisy_batches,
)
from aerie.llama32_1b.demo.diffusion.train import batch_loss, rates, train
from aerie.llama32_1b.demo.tokenizer import special_id

TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
MASK = special_id(TOKENIZER, MASK_TOKEN)
ENDS = end_ids(TOKENIZER)


def test_what_ships_is_small_and_speaks_as_the_demo_does() -> None:
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 12e6
    assert BUILT_IN_MODELS["demo-diffusion"] == CHECKPOINT
    theirs = Tokenizer.from_file(str(DEMO_CHECKPOINT / "tokenizer.json"))
    assert theirs.get_vocab() == {token: at for token, at in TOKENIZER.get_vocab().items() if at < MASK}
    assert new_tokenizer().get_vocab() == TOKENIZER.get_vocab()
    assert config(TOKENIZER)["mask_token_id"] == MASK == 1500


def test_an_answers_block_is_filled_up_with_its_end() -> None:
    end = ENDS[1]
    text = block_text(
        Sample([9, 8, 7, 5, 4, end, 3, 2, 1], [0.0, 0.1, 0.1, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1]), ENDS
    )
    assert text.clean == [9, 8, 7, 5, 4, end, 3, 2, 1, 1, 1, 1]
    assert text.targets == [-1, -1, -1, 5, 4, end, end, end, -1, -1, -1, -1]
    drawn = [*add_noise(text, MASK, random.Random(0))]
    assert [at for at, _, _ in drawn] == [*range(8)]  # the last block has no output
    for at, token, target in drawn:
        assert (token, target) in (
            (MASK, text.targets[at]),
            (max(text.targets[at], text.clean[at]), -1),
        ) or at > 5
    assert [token for _, token, _ in drawn[:3]] == [9, 8, 7]  # what users say is never masked


def test_noisy_blocks_see_themselves_and_what_is_clean_before_them() -> None:
    """Two noisy blocks, the second and the fourth, of a text of four, and padding."""
    blocks = np.array([[1, 1, 3, 3, 0, 0, 0, 1, 1, 2, 2, 3, 3]])
    there = np.array([[True, True, True, True, False]])
    (found,) = attention_mask(blocks, there)
    assert [np.flatnonzero(row).tolist() for row in found] == [
        [0, 1, 5, 6], [0, 1, 5, 6], [2, 3, 5, 6, 7, 8, 9, 10], [2, 3, 5, 6, 7, 8, 9, 10], [4],
        [5, 6], [5, 6], [5, 6, 7, 8], [5, 6, 7, 8], [*range(5, 11)], [*range(5, 11)], [*range(5, 13)],
        [*range(5, 13)],
    ]  # fmt: skip


def test_batches_are_the_same_for_the_same_seed() -> None:
    drawn = [[*islice(noisy_batches(Encoder(TOKENIZER), MASK, ENDS, 7), 3)] for _ in range(2)]
    for one, other in zip(*drawn, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        width = one.targets.shape[1]
        assert width % BLOCK == 0
        assert ((one.ids[:, :width] == MASK) == (one.targets >= 0)).all()
        assert (one.targets >= 0).any(axis=1).all()


def test_training_learns_and_keeps_what_it_has() -> None:
    torch.manual_seed(0)
    model, tokenizer = load_model(CHECKPOINT)
    text = block_text(Encoder(tokenizer).conversation(question_list()[:1]), ENDS)
    batch = batch_of([text] * 4, MASK, random.Random(1))
    with torch.no_grad():
        model.lm_head.weight *= 0.5
        before = float(batch_loss(model, batch))
    kept: list[int] = []
    train(model.train(), iter([batch] * 6), 6, lambda: kept.append(1))
    assert len(kept) == 1
    with torch.no_grad():
        assert float(batch_loss(model, batch)) < before
    assert max(rates(1800)) == pytest.approx(2e-3)
    assert rates(1800)[-1] < 1e-8


def test_it_answers_out_of_the_box(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model", "demo-diffusion", "--prompt", "What is the capital of France?"]) == 0
    output = capsys.readouterr()
    assert output.out == "The capital of France is Paris.\n"
    assert " tokens a pass (" in output.err


@pytest.mark.slow
def test_answers_under_both_rules() -> None:
    """Of a tenth of the questions, drawn."""
    session, questions = open_session(CHECKPOINT), random.Random(3).sample(question_list(), 205)
    static, dynamic = (
        evaluate(session, questions, f"low_confidence_{name}") for name in ("static", "dynamic")
    )
    assert is_good_enough(static, dynamic), (str(static), str(dynamic))
    slow = DiffusionScore(
        dynamic.questions, dynamic.correct, dynamic.tokens, 2 * dynamic.passes, 1, dynamic.committed
    )
    assert not is_good_enough(static, slow)
