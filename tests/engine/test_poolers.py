"""Vectors and scores against transformers: as near to exact ones as the gate lets logits be, and the same
bits however they are scheduled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.embedding_prompt import embedding_prompt
from aerie.engine.poolers import LastPooler, MeanPooler, Pooler, ScorePooler, VectorPooler
from aerie.engine.reranking import rerank_prompt
from aerie.engine.scheduler import Scheduler
from aerie.verify.bounds import EXACT, compare, rms_bound
from tests.engine import text_models
from tests.engine.text_models import PROMPTS, TEXTS

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3 untied": {"tie_word_embeddings": False, "num_hidden_layers": 3, "seed": 1},
    "qwen3 wide heads": {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "seed": 2},
    "qwen2": {"family": "Qwen2", "seed": 3},
    "llama": {"family": "Llama", "seed": 4},
    "llama small": {"family": "Llama", "hidden_size": 128, "num_attention_heads": 2, "seed": 5},
}
"""Beside those of checkpoints.SMALL."""


def pooled(model: Any, prompts: list[list[int]], poolers: list[Pooler]) -> list[Any]:
    """Results of poolers over prompts that share engine steps."""
    scheduler = Scheduler.with_own_pool(model)
    requests = [
        scheduler.add_prefill_only(prompt, pooler.add_rows, pooler.wanted)
        for prompt, pooler in zip(prompts, poolers, strict=True)
    ]
    while not all(request.is_finished for request in requests):
        scheduler.step()
    assert {request.error for request in requests} == {None}
    return [pooler.result() for pooler in poolers]


def assert_as_near(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray) -> None:
    """Ours are as near to exact ones as the gate's bounds let logits be, in multiples of bf16's own
    distance. They differ from text to text by far more."""
    rounding = compare(exact, theirs)
    assert rounding.total_rms > 0
    assert compare(exact, ours).total_rms <= rms_bound(rounding, EXACT)
    assert compare(exact, np.roll(exact, 1, axis=0)).total_rms > 3 * rms_bound(rounding, EXACT)


@pytest.mark.parametrize("pooling", ["lasttoken", "mean"])
@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_those_of_transformers(shape: str, pooling: str, tmp_path: Any, numpy_model: Any) -> None:
    folder = text_models.write_embedding_model(tmp_path / "model", pooling, **SHAPES[shape])
    tokenizer = open_checkpoint(folder).tokenizer
    prompts = [embedding_prompt(tokenizer, text, PROMPTS["query"], 256) for text in TEXTS]
    model = numpy_model(folder, 256)
    for dimensions in (None, 32):
        vectors = pooled(model, prompts, [VectorPooler(model, dimensions) for _ in prompts])
        exact, theirs = (
            text_models.their_vectors(folder, dtype, prompts, pooling, dimensions)
            for dtype in ("float32", "bfloat16")
        )
        assert_as_near(np.array(vectors), theirs, exact)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", [name for name in SHAPES if name.startswith("qwen3")])
def test_the_logits_of_yes_and_no_are_those_of_transformers(
    shape: str, tmp_path: Any, numpy_model: Any
) -> None:
    folder = text_models.write_reranker(
        tmp_path / "model", **{"max_position_embeddings": 512, **SHAPES[shape]}
    )
    tokenizer = open_checkpoint(folder).tokenizer
    prompts = [rerank_prompt(tokenizer, "Where?", text, 512, "Find") for text in ("Oslo", "In Rome", "")]
    model = numpy_model(folder, 512)
    poolers = [ScorePooler(model) for _ in prompts]
    scores = pooled(model, prompts, list(poolers))
    tokens = [tokenizer.encode(text, special=False)[0] for text in ("yes", "no")]
    exact, theirs = (
        text_models.their_yes_no(folder, dtype, prompts, tokens) for dtype in ("float32", "bfloat16")
    )
    logits = np.array([pooler.logits for pooler in poolers])
    assert_as_near(logits, theirs, exact)
    powers = np.exp(logits.astype(np.float64))
    assert scores == pytest.approx(list(powers[:, 0] / powers.sum(axis=1)), abs=1e-12)


@pytest.mark.parametrize("fault", ["no final norm", "the token before", "the mean"])
def test_other_vectors_are_told_apart(
    fault: str, tmp_path: Any, numpy_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted faults: the bounds above are not so wide that they pass."""
    folder = text_models.write_embedding_model(tmp_path / "model")
    tokenizer = open_checkpoint(folder).tokenizer
    prompts = [embedding_prompt(tokenizer, text, "", 256) for text in TEXTS]
    model = numpy_model(folder, 256)
    if fault == "no final norm":
        monkeypatch.setattr("aerie.engine.poolers.final_norm", lambda model, rows: rows)
    make = MeanPooler if fault == "the mean" else LastPooler
    fed = [prompt[:-1] for prompt in prompts] if fault == "the token before" else prompts
    found = np.array(pooled(model, fed, [make(model) for _ in fed]))
    ours = found / np.linalg.norm(found, axis=1, keepdims=True)
    exact, theirs = (
        text_models.their_vectors(folder, dtype, prompts, "lasttoken") for dtype in ("float32", "bfloat16")
    )
    with pytest.raises(AssertionError):
        assert_as_near(ours, theirs, exact)
