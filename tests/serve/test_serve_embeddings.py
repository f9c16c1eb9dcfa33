"""Embedding models and rerankers over HTTP: vectors as in Python, prompts, dimensions, scores, refusals."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from aerie import Model, load
from aerie.serve.models import ModelManager
from aerie.serve.service import ServedModel, ServerLimits
from tests.engine import text_models
from tests.engine.text_models import PROMPTS, TEXTS
from tests.serve.conftest import VARIANTS, Serving, opened, start_models

LONG = "word " * 600
DOCUMENTS = ["Rome is in Italy.", "Oslo", "Paris is the capital of France."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An embedding model and a reranker with the same programs."""
    made = tmp_path_factory.mktemp("texts")
    return {
        "vectors": text_models.as_embedding_model(text_models.write_demo_as_qwen3(made / "vectors")),
        "ranker": text_models.as_reranker(text_models.write_demo_as_qwen3(made / "ranker")),
    }


@pytest.fixture(scope="module")
def texts_server(folders: dict[str, Path]) -> Iterator[Serving]:
    served = [ServedModel(name, partial(opened, str(folder))) for name, folder in folders.items()]
    serving, stop = start_models(ModelManager(served, ServerLimits()))
    try:
        serving.wait_until(lambda: serving.server.started)
        yield serving
    finally:
        stop()


@pytest.fixture(scope="module")
def own(folders: dict[str, Path]) -> Iterator[dict[str, Model]]:
    """The same models in Python."""
    with (
        load(folders["vectors"], backend="virtual", variants=VARIANTS) as one,
        load(folders["ranker"], backend="virtual", variants=VARIANTS) as two,
    ):
        yield {"vectors": one, "ranker": two}


def post(serving: Serving, path: str, **body: Any) -> Any:
    with serving.http as http:
        return http.post(path, json=body)


def vectors_of(serving: Serving, **body: Any) -> np.ndarray:
    made = post(serving, "/v1/embeddings", model="vectors", **body)
    assert made.status_code == 200, made.text
    return np.array([each["embedding"] for each in made.json()["data"]], np.float32)


def test_vectors_have_the_bits_that_they_have_in_python(texts_server: Serving, own: dict[str, Model]) -> None:
    """Alone, in batches of any order, and where pages of the same beginning are there already."""
    expected = own["vectors"].embed(TEXTS)
    assert [own["vectors"].embed(text).tobytes() for text in TEXTS] == [each.tobytes() for each in expected]
    backwards = own["vectors"].embed(TEXTS[::-1])[::-1]
    assert backwards.tobytes() == expected.tobytes()
    for _ in range(2):
        assert vectors_of(texts_server, input=[*TEXTS]).tobytes() == expected.tobytes()
    alone = np.concatenate([vectors_of(texts_server, input=text) for text in TEXTS])
    assert alone.tobytes() == expected.tobytes()


def test_openai_s_client_gets_vectors_that_are_cut(texts_server: Serving, own: dict[str, Model]) -> None:
    client: openai.OpenAI = texts_server.openai
    made = client.embeddings.create(model="vectors", input=[*TEXTS], dimensions=32, user="me")
    found = np.array([each.embedding for each in made.data], np.float32)
    assert found.shape == (len(TEXTS), 32)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-6)
    whole = own["vectors"].embed(TEXTS)[:, :32]
    assert found == pytest.approx(whole / np.linalg.norm(whole, axis=1, keepdims=True), abs=1e-6)
    floats = client.embeddings.create(model="vectors", input=[*TEXTS], dimensions=32, encoding_format="float")
    assert floats.usage.prompt_tokens == made.usage.prompt_tokens > 0
    assert np.array([each.embedding for each in floats.data], np.float32).tobytes() == found.tobytes()
    raw = post(texts_server, "/v1/embeddings", model="vectors", input="Oslo", encoding_format="base64")
    data = base64.b64decode(raw.json()["data"][0]["embedding"])
    assert data == own["vectors"].embed("Oslo").astype("<f4").tobytes()


def test_prompts_and_instructions_stand_before_the_text(texts_server: Serving) -> None:
    plain = vectors_of(texts_server, input=PROMPTS["query"] + "Oslo")
    named = vectors_of(texts_server, input="Oslo", prompt_name="query")
    said = vectors_of(texts_server, input="Oslo", instruction="Find passages")
    assert plain.tobytes() == named.tobytes() == said.tobytes()
    other = vectors_of(texts_server, input="Oslo", instruction="Find cities")
    assert other.tobytes() != plain.tobytes()
    document = vectors_of(texts_server, input="Oslo", prompt_name="document")
    assert document.tobytes() == vectors_of(texts_server, input="Oslo").tobytes()


def test_the_end_token_is_there_for_texts_and_not_for_token_ids(
    texts_server: Serving, own: dict[str, Model], folders: dict[str, Path]
) -> None:
    ids = own["vectors"].encode("Oslo", raw=True)
    assert ids[-1] == text_models.end_token(folders["vectors"])
    text = vectors_of(texts_server, input="Oslo")
    assert vectors_of(texts_server, input=ids).tobytes() == text.tobytes()
    assert vectors_of(texts_server, input=[ids, ids[:-1]])[0].tobytes() == text.tobytes()
    assert vectors_of(texts_server, input=ids[:-1]).tobytes() != text.tobytes()


def test_ollama_s_embed_cuts_what_is_too_long(texts_server: Serving, own: dict[str, Model]) -> None:
    model = own["vectors"]
    for path, body in (("/api/embed", {"input": LONG}), ("/api/embeddings", {"prompt": LONG})):
        made = post(texts_server, path, model="vectors", **body).json()
        vector = made["embeddings"][0] if "embeddings" in made else made["embedding"]
        ids = model.encode(LONG, raw=True)
        assert np.array(vector, np.float32).tobytes() == model.embed([*ids[:511], ids[-1]]).tobytes()
    cut = post(texts_server, "/api/embed", model="vectors", input="Oslo", dimensions=16).json()
    assert np.array(cut["embeddings"], np.float32).tobytes() == model.embed(["Oslo"], dimensions=16).tobytes()
    refused = post(texts_server, "/api/embed", model="vectors", input=LONG, truncate=False)
    assert (refused.status_code, "the model has 512 positions" in refused.json()["error"]) == (400, True)
    with texts_server.http as http:
        shown = http.post("/api/show", json={"model": "vectors"}).json()
    assert shown["capabilities"] == ["embedding"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"input": "x", "dimensions": 0},
        "dimensions",
        "dimensions is 0, and the vectors of this model have 256",
    ),
    ({"input": "x", "dimensions": 257}, "dimensions", "give 1 to 256, or leave it out"),
    ({"input": "x", "dimensions": 2.5}, "dimensions", "dimensions is 2.5: Input should be a valid integer"),
    ({"input": "x", "dimensions": "8"}, "dimensions", "dimensions is '8': Input should be a valid integer"),
    ({"input": ""}, "input", "a text is empty, and the vector of nothing means nothing"),
    ({"input": ["x", ""]}, "input", "a text is empty"),
    (
        {"input": "x", "prompt_name": "q"},
        "prompt_name",
        "this model has the prompts 'query', 'document'; give",
    ),
    (
        {"input": "x", "prompt_name": "query", "instruction": "y"},
        "prompt_name",
        "exclude each other; give one",
    ),
]


@pytest.mark.parametrize(("body", "param", "words"), WRONG)
def test_what_cannot_be_embedded(texts_server: Serving, body: Any, param: str, words: str) -> None:
    refused = post(texts_server, "/v1/embeddings", model="vectors", **body)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert (error["param"], error["code"]) in ((param, "invalid_value"), (None, "invalid_value"))


def test_a_text_that_is_too_long_is_refused(texts_server: Serving) -> None:
    refused = post(texts_server, "/v1/embeddings", model="vectors", input=LONG)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "the model has 512 positions" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_an_embedding_model_answers_nothing(texts_server: Serving, path: str) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"/v1/completions": {"prompt": "Hello"}, "/v1/responses": {"input": "Hello"}}.get(
        path, {"messages": messages, "max_tokens": 2}
    )
    refused = post(texts_server, path, model="vectors", **body)
    assert refused.status_code == 400
    assert "modules.json says that this is an embedding model, which makes vectors" in refused.text


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking"])
def test_documents_are_ranked(texts_server: Serving, own: dict[str, Model], path: str) -> None:
    expected = own["ranker"].rerank("Where is Rome?", DOCUMENTS)
    assert [each.relevance_score for each in expected] == sorted(
        (each.relevance_score for each in expected), reverse=True
    )
    given = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, DOCUMENTS[2]]
    made = post(texts_server, path, model="ranker", query="Where is Rome?", documents=given).json()
    assert made["results"] == [
        {"index": each.index, "relevance_score": each.relevance_score} for each in expected
    ]
    assert made["usage"]["prompt_tokens"] == made["usage"]["total_tokens"] > 3 * len(DOCUMENTS)
    best = post(
        texts_server,
        path,
        model="ranker",
        query="Where is Rome?",
        documents=given,
        top_n=1,
        return_documents=True,
    ).json()["results"]
    assert best == [made["results"][0] | {"document": {"text": DOCUMENTS[expected[0].index]}}]


def test_a_document_is_cut_where_that_is_asked_for(texts_server: Serving) -> None:
    body: dict[str, Any] = {"model": "ranker", "query": "Where?"}
    refused = post(texts_server, "/v1/rerank", documents=["Oslo", LONG], **body)
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    cut = post(texts_server, "/v1/rerank", documents=[LONG], max_tokens_per_doc=5, **body).json()["results"]
    other = post(texts_server, "/v1/rerank", documents=[LONG + "more"], max_tokens_per_doc=5, **body).json()[
        "results"
    ]
    assert cut == other


@pytest.mark.parametrize(
    ("changes", "param", "words"),
    [
        ({"query": 1}, "query", "query is 1: Input should be a valid string"),
        ({"query": ""}, "query", "query is empty, so no document can answer it; give it some text"),
        ({"top_n": 0}, "top_n", "top_n is 0; give 1 or more, or leave it out"),
        ({"max_tokens_per_doc": -1}, "max_tokens_per_doc", "max_tokens_per_doc is -1; give 1 or more"),
        ({"documents": []}, "documents", "at least 1 item"),
        ({"documents": [{"title": "x"}]}, "documents[0].text", "documents[0].text is missing; give it"),
        (
            {"model": "vectors"},
            "model",
            "this model (Qwen3ForCausalLM) is no reranker: it was not trained to",
        ),
    ],
)
def test_what_cannot_be_ranked(texts_server: Serving, changes: Any, param: str, words: str) -> None:
    body = {"model": "ranker", "query": "x", "documents": ["y"], **changes}
    refused = post(texts_server, "/v1/rerank", **body)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert words in error["message"]
    assert error["param"] == param
