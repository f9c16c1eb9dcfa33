"""Training of the demo model, a few steps of it: the schedule, the loss, and the files it writes."""

import random
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from aerie.llama32_1b.demo import CHECKPOINT, train
from aerie.llama32_1b.demo.batches import TOKENS_PER_BATCH, Encoder, TrainingBatch, batches, epoch, misspell
from aerie.llama32_1b.demo.checkpoint_files import (
    RESIDUAL_SCALE,
    load_weights,
    new_model,
    shrink_residual,
    write_checkpoint,
)
from aerie.llama32_1b.demo.corpus import Exchange, question_list
from aerie.llama32_1b.demo.tokenizer import MAX_LENGTH

_TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
_ENCODER = Encoder(_TOKENIZER)


def test_the_first_stage_warms_up_and_falls_along_a_cosine() -> None:
    rates = train.first_rates(train.FIRST_STEPS)
    assert len(rates) == train.FIRST_STEPS
    assert rates.index(max(rates)) in (99, 100)
    assert max(rates) == pytest.approx(2e-3)
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] == pytest.approx(6.6e-4, rel=0.01)


def test_the_second_stage_ends_at_almost_nothing() -> None:
    rates = train.second_rates(train.SECOND_STEPS)
    assert len(rates) == train.SECOND_STEPS
    assert 5e-4 < max(rates) <= 6e-4
    assert rates[-1] < 2e-6


def test_batches_are_the_same_for_the_same_seed_and_of_bounded_size() -> None:
    first, second = (list(islice(batches(_ENCODER, 5), 60)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.weights, other.weights)
        assert one.ids.size <= max(TOKENS_PER_BATCH, MAX_LENGTH)
        assert one.ids.shape[1] <= MAX_LENGTH


def test_a_batch_has_weights_where_it_has_tokens() -> None:
    """All tokens but the first, which is given, are predicted; padding is not."""
    for batch in islice(batches(_ENCODER, 5), 20):
        lengths = 1 + (batch.weights > 0).sum(axis=1)
        for ids, weights, length in zip(batch.ids, batch.weights, lengths, strict=True):
            assert weights[0] == 0
            assert weights[1:length].all()
            assert not ids[length:].any()


def test_an_epoch_has_every_topic_and_long_chats() -> None:
    samples = epoch(_ENCODER, random.Random(2))
    assert sum(len(sample.ids) for sample in samples) > 20 * len(question_list())
    assert max(len(sample.ids) for sample in samples) > 400


def test_careless_questions_keep_their_answer() -> None:
    rng = random.Random(4)
    exchange = Exchange("capitals", "What is the capital of France?", "The capital of France is Paris.")
    typed = {misspell(exchange, rng) for _ in range(100)}
    assert {one.answer for one in typed} == {exchange.answer}
    assert {"what is the capital of france", "What's the capital of France?"} <= {
        one.question for one in typed
    }


def test_padding_has_no_weight_in_the_loss() -> None:
    torch.manual_seed(0)
    model = new_model(_TOKENIZER)
    sample = _ENCODER.conversation([question_list()[0]])
    alone = TrainingBatch(np.array([sample.ids]), np.array([sample.weights], np.float32))
    padded = TrainingBatch(np.pad(alone.ids, ((0, 0), (0, 9))), np.pad(alone.weights, ((0, 0), (0, 9))))
    with torch.no_grad():
        losses = [train.batch_loss(model, batch).item() for batch in (alone, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_shrunk_checkpoint_is_the_same_function(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = new_model(_TOKENIZER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
    write_checkpoint(model, _TOKENIZER, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.tensor([_ENCODER.conversation(question_list()[:3]).ids])
    with torch.no_grad():
        difference = (model(input_ids=ids).logits - loaded(input_ids=ids).logits).abs().max().item()
    assert loaded.config.rms_norm_eps == 1e-5
    assert difference < 1e-4


def test_shrinking_touches_only_the_residual_stream() -> None:
    changed = [
        "embed_tokens.weight",
        "l.self_attn.o_proj.weight",
        "l.mlp.down_proj.weight",
        "model.norm.weight",
    ]
    kept = ["l.self_attn.q_proj.weight", "l.mlp.up_proj.weight", "l.input_layernorm.weight"]
    shrunk = shrink_residual({name: torch.ones(2) for name in changed + kept}, RESIDUAL_SCALE)
    factors = {name: weight[0].item() for name, weight in shrunk.items()}
    assert [factors[name] for name in changed] == [1 / RESIDUAL_SCALE] * 3 + [RESIDUAL_SCALE]
    assert {factors[name] for name in kept} == {1.0}


def test_a_checkpoint_that_is_loaded_and_written_again_has_the_same_weights(tmp_path: Path) -> None:
    model = new_model(_TOKENIZER)
    load_weights(model, CHECKPOINT)
    write_checkpoint(model, _TOKENIZER, tmp_path)
    name = "model.safetensors"
    assert (tmp_path / name).read_bytes() == (CHECKPOINT / name).read_bytes()


def test_a_few_steps_of_both_stages_write_a_checkpoint_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "FIRST_STEPS", 2)
    monkeypatch.setattr(train, "SECOND_STEPS", 1)
    monkeypatch.setattr(train, "learn_tokenizer", lambda texts: _TOKENIZER)
    threads = str(torch.get_num_threads())
    monkeypatch.setattr("sys.argv", ["train", "--out", str(tmp_path / "new"), "--threads", threads])
    train.main()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        path.name for path in CHECKPOINT.iterdir()
    }
    printed = capsys.readouterr()
    assert re.search(r"step 2/2  loss \d\.\d+  .* s/step  0 min left", printed.err)
    assert re.search(r"step 1/1  loss \d\.\d+", printed.err)
    assert "python -m aerie.llama32_1b.demo.evaluate --checkpoint" in printed.out
