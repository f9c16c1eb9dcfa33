"""model.embed and model.rerank: forms of their arguments, and what is refused; their values are compared in
tests/engine/test_poolers.py, and with the server's in tests/serve/test_serve_embeddings.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aerie import FinishReason, Model, RankedDocument, load
from aerie.common.errors import UserError
from aerie.engine.errors import PromptError
from aerie.engine.forward import prefill
from aerie.engine.head import final_norm
from aerie.engine.numerics import widen
from tests.engine import text_models

FRANCE = "What is the capital of France?"
TEXTS = ["Oslo", FRANCE, "The capital of Spain is Madrid. " * 6]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """A model that answers."""
    with load("demo", backend="virtual", decode="rows") as opened:
        yield opened


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = tmp_path_factory.mktemp("texts")
    return {
        "vectors": text_models.as_embedding_model(text_models.write_demo_as_qwen3(made / "vectors")),
        "ranker": text_models.as_reranker(text_models.write_demo_as_qwen3(made / "ranker")),
    }


def test_a_model_that_answers_gives_the_mean_of_its_tokens(model: Model) -> None:
    ids = model.encode(FRANCE, raw=True)
    loaded = model._open().model
    normed = widen(final_norm(loaded, prefill(loaded, ids, loaded.new_cache(len(ids)))))
    mean = normed.mean(axis=0)
    vector = model.embed(FRANCE)
    assert (vector.shape, vector.dtype) == ((256,), np.dtype(np.float32))
    np.testing.assert_array_equal(vector, mean / np.linalg.norm(mean))
    np.testing.assert_array_equal(model.embed(FRANCE, normalize=False), mean)
    np.testing.assert_array_equal(model.embed(ids), vector)
    np.testing.assert_array_equal(model.embed(np.array(ids)), vector)
    assert str(model.generate(FRANCE)) == "The capital of France is Paris."


def test_vectors_keep_their_bits_beside_answers(model: Model) -> None:
    alone = [model.embed(text) for text in TEXTS]
    with model.stream(FRANCE) as stream:
        next(iter(stream))
        together = model.embed(TEXTS)
        assert stream.result().finish_reason is FinishReason.STOP
    assert together.shape == (len(TEXTS), 256)
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(
        asyncio.run(model.aembed(TEXTS, dimensions=9)), model.embed(TEXTS, dimensions=9)
    )
    assert model.embed([]).shape == (0, 256)
    assert model.embed([TEXTS[0]]).shape == (1, 256)


def test_what_is_cut_has_length_1_again(model: Model) -> None:
    whole = model.embed(FRANCE, normalize=False)
    cut = model.embed(FRANCE, dimensions=10)
    np.testing.assert_array_equal(cut, whole[:10] / np.linalg.norm(whole[:10]))
    np.testing.assert_array_equal(model.embed(FRANCE, dimensions=10, normalize=False), whole[:10])


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("", {}, "a text is empty, and the vector of nothing means nothing; leave it out"),
        (["x", ""], {}, "a text is empty"),
        ([[]], {}, "the prompt is empty"),
        ("word " * 600, {}, "tokens long and the model has 512 positions"),
        ([[5] * 513], {}, "the prompt is 513 tokens long and the model has 512 positions"),
        ([[1 << 20]], {}, "the prompt holds token 1048576 and the model's vocabulary ends at"),
        (None, {}, "a text to embed is a text or a list of token ids, and not None; give one, or several"),
        ([None], {}, "a text to embed is a text or a list of token ids, and not None; give one"),
        ([{"role": "user"}], {}, "a text to embed is a text or a list of token ids, and not {'role'"),
        ("\udcff", {}, "the text is not valid UTF-8"),
        ("x", {"dimensions": 0}, "dimensions is 0, and the vectors of this model have 256; give 1 to 256"),
        ("x", {"dimensions": 257}, "dimensions is 257, and the vectors of this model have 256"),
        ("x", {"dimensions": 2.5}, "dimensions is 2.5, of the type float; give a whole number, or None"),
        ("x", {"prompt_name": "query"}, "prompt_name is 'query', and this model has no prompts; leave it"),
        ("x", {"prompt_name": 1}, "prompt_name is 1, of the type int; give a text, or None"),
        ("x", {"normalize": 1}, "normalize is 1, of the type int; give True, False or None"),
    ],
)
def test_what_cannot_be_embedded(model: Model, texts: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        model.embed(texts, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_embedding_model_answers_nothing(folders: dict[str, Path]) -> None:
    """And its programs are those of prompts alone: it needs no LM head."""
    with load(folders["vectors"], backend="virtual") as vectors:
        assert "decode rows" in repr(vectors)
        vectors.embed(TEXTS)
        assert not any("lm_head" in name or "gemv" in name for name in vectors._open().model.programs)
        for ask in (vectors.generate, vectors.logits):
            with pytest.raises(UserError, match=r"modules\.json says that this is an embedding model"):
                ask("Hello")
        with pytest.raises(UserError, match="this is an embedding model"):
            vectors.log_likelihoods(["Hello"])
        (result,) = vectors.generate_batch(["Hello"])
        assert result.error
        assert "this is an embedding model" in result.error
        with pytest.raises(UserError, match="is no reranker: it was not trained to score documents"):
            vectors.rerank("x", ["y"])


def test_a_text_longer_than_the_checkpoint_takes(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = text_models.copied(folders["vectors"], tmp_path / "short")
    text_models.write_entries(folder, "sentence_bert_config.json", max_seq_length=4)
    with load(folder, backend="virtual") as short:
        assert short.embed("Oslo").shape == (256,)
        with pytest.raises(PromptError, match="tokens long and the model has 4 positions"):
            short.embed(FRANCE)


def test_documents_are_ranked(folders: dict[str, Path]) -> None:
    documents = ["Rome is in Italy.", "Oslo", "", "Paris is the capital of France.", "Oslo"]
    with load(folders["ranker"], backend="virtual") as ranker:
        found = ranker.rerank("Where is Rome?", documents)
        assert [found[0], *found[1:]] == sorted(found, key=lambda each: (-each.relevance_score, each.index))
        assert sorted((each.index, each.document) for each in found) == [*enumerate(documents)]
        scores = {each.index: each.relevance_score for each in found}
        assert all(0 < score < 1 for score in scores.values())
        assert scores[1] == scores[4]
        for index, document in enumerate(documents):
            assert ranker.rerank("Where is Rome?", [document]) == [RankedDocument(0, scores[index], document)]
        assert asyncio.run(ranker.arerank("Where is Rome?", documents, top_n=2)) == found[:2]
        other = ranker.rerank("Where is Rome?", documents, instruction="Find cities")
        assert {each.relevance_score for each in other} != set(scores.values())
        injected = ranker.rerank("Where is Rome?", ["<|eot_id|>"])
        assert injected[0].relevance_score not in scores.values()
        for query, texts, options, message in (
            ("", ["x"], {}, "query is empty, so no document can answer it; give it some text"),
            ("x", "y", {}, "documents is 'y'; give a list of texts"),
            ("x", ["y", 3], {}, r"documents is \['y', 3\]; give a list of texts"),
            ("x", ["y"], {"top_n": 0}, "top_n is 0; give 1 or more, or leave it out"),
            ("x", ["word " * 600], {}, "tokens long and the model has 512 positions"),
            (3, ["y"], {}, "query is 3, of the type int; give a text"),
        ):
            with pytest.raises(UserError, match=message):
                ranker.rerank(query, texts, **options)  # type: ignore[arg-type]
        assert len(ranker.rerank("x", ["word " * 600], max_tokens_per_doc=8)) == 1
        assert ranker.generate("Hello", max_tokens=2).token_ids
