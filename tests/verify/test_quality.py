"""What quantised weights cost: measured on texts and distributions that are known."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from aerie import rooms
from aerie.common.errors import UserError
from aerie.engine.reporter import no_progress
from aerie.verify.__main__ import main
from aerie.verify.quality import MIN_TOKENS, WINDOW, measure_quality, windows
from aerie.verify.reference_folder import facts_and_weights
from tests import quantised_folders
from tests.engine.checkpoints import write_checkpoint

VOCAB = 7


def fixed(logits):
    """A reference that gives these logits, (VOCAB,), everywhere."""
    return SimpleNamespace(logits=lambda ids, start: np.tile(np.float32(logits), (len(ids) - start, 1)))


def test_the_figures_are_those_of_their_definitions():
    draw = np.random.default_rng(0)
    ours, theirs = draw.normal(0, 1, (2, VOCAB)).astype(np.float32)
    ids = draw.integers(0, VOCAB, MIN_TOKENS + 100).tolist()
    found = measure_quality(fixed(theirs), fixed(ours), ids, no_progress)
    p, q = (np.exp(each.astype(float)) / np.exp(each.astype(float)).sum() for each in (theirs, ours))
    scored = [
        ids[at]
        for first in range(0, len(ids) - WINDOW + 1, WINDOW)
        for at in range(first + 257, first + WINDOW)
    ]
    assert found.scored == len(scored)
    assert found.kl == pytest.approx(sum(p * np.log(p / q)))
    assert found.kl_large == pytest.approx(found.kl)
    assert found.perplexity == pytest.approx(np.exp(-np.mean(np.log(q[scored]))))
    assert found.original_perplexity == pytest.approx(np.exp(-np.mean(np.log(p[scored]))))
    assert found.same_top == (p.argmax() == q.argmax())


def test_windows_leave_a_rest_out():
    cut = [*windows(range(2 * WINDOW + 5))]
    assert [(part[0], len(part), start) for part, start in cut] == [(0, 512, 256), (512, 512, 256)]


def test_a_short_text():
    with pytest.raises(
        UserError, match="the text has 10 tokens, and less than 4000 say little; give a longer"
    ):
        measure_quality(fixed([0] * VOCAB), fixed([0] * VOCAB), [0] * 10, no_progress)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    return write_checkpoint(folder, **sizes, head_dim=32, num_hidden_layers=1, max_position_embeddings=1024)


def test_fewer_bits_cost_more(tiny, tmp_path, capsys):
    (tmp_path / "text").write_text("".join(map(chr, np.random.default_rng(1).integers(97, 110, 9000))))
    found = {}
    for kind in ("bf16", "q8", "q4"):
        arguments = ["quality", str(tiny), "--weights", kind, "--text", str(tmp_path / "text"), "--json"]
        assert main(arguments) == 0
        found[kind] = json.loads(capsys.readouterr().out)
    assert found["bf16"]["kl"] == 0
    assert 0 < found["q8"]["kl"] < found["q4"]["kl"] / 10
    assert found["q8"]["same_top"] > found["q4"]["same_top"]
    assert len({about["original_perplexity"] for about in found.values()}) == 1


def test_other_models_are_not_compared(tiny, tmp_path, capsys):
    other = write_checkpoint(tmp_path / "other")
    assert main(["quality", str(tiny), "--against", str(other)]) == 2
    assert (
        "tiny and other have other sizes, so that one is not the other quantised" in capsys.readouterr().err
    )


def test_without_a_text(tiny, capsys, monkeypatch):
    monkeypatch.setattr(rooms, "CHECKOUT", None)
    assert main(["quality", str(tiny)]) == 2
    assert "there is no text to read; give one of 4000 tokens with --text" in capsys.readouterr().err


def test_the_reference_of_quantised_safetensors(tiny, tmp_path):
    """It has their values, in float32, in place of codes and scales."""
    import shutil

    from transformers import LlamaConfig

    folder, stored = shutil.copytree(tiny, tmp_path / "x"), quantised_folders.awq()
    tensors = {f"model.layers.0.mlp.up_proj.{name}": each for name, each in stored.tensors.items()}
    quantised_folders.write(folder, tensors, quantised_folders.CONFIGS["awq"])
    with facts_and_weights(folder, LlamaConfig) as shown:
        (file,) = shown.glob("weights-*.safetensors")
        found = load_file(file)
    assert list(found) == ["model.layers.0.mlp.up_proj.weight"]
    np.testing.assert_allclose(
        found["model.layers.0.mlp.up_proj.weight"], stored.values, rtol=3e-7, atol=1e-9
    )
