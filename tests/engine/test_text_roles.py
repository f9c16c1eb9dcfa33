"""What a checkpoint says of vectors and scores: which files and entries are read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aerie.common.errors import UserError
from aerie.engine.checkpoint import open_checkpoint
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.gguf_file_writer import write_gguf
from aerie.engine.poolers import ScorePooler
from aerie.engine.pooling import LAST, LM_HEAD_ROWS, MEAN, SCORE_ROWS, PoolingConfig, text_before
from aerie.engine.reranking import check_reranker, score_rows
from aerie.engine.scheduler import Scheduler
from tests import gguf_files
from tests.engine import text_models
from tests.engine.checkpoints import edit_json, write_checkpoint
from tests.engine.text_models import NEW, OLD, PROMPTS, copied, write_entries, write_modules


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_models.write_embedding_model(tmp_path_factory.mktemp("roles") / "vectors")


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_models.write_reranker(tmp_path_factory.mktemp("roles") / "ranker")


@pytest.fixture
def embedding(vectors: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return copied(vectors, tmp_path / "vectors")


def test_the_files_of_sentence_transformers_are_read(embedding: Path) -> None:
    roles = load_config(embedding).roles
    assert roles.pooling == PoolingConfig("modules.json", LAST, True, PROMPTS, None, None)
    assert roles.scoring is None
    write_modules(embedding, OLD + "Transformer", OLD + "Pooling")
    write_entries(embedding, "1_Pooling/config.json", pooling_mode_mean_tokens=True, include_prompt=True)
    write_entries(
        embedding, "config_sentence_transformers.json", prompts=PROMPTS, default_prompt_name="document"
    )
    write_entries(embedding, "sentence_bert_config.json", max_seq_length=32, do_lower_case=False)
    expected = PoolingConfig("modules.json", MEAN, False, PROMPTS, "document", 32)
    assert load_config(embedding).roles.pooling == expected


def test_the_newer_form_of_the_files_is_read(embedding: Path) -> None:
    kinds = (f"{NEW}transformer.Transformer", "sentence_transformers.sentence_transformer.modules.Pooling")
    write_modules(embedding, *kinds)
    write_entries(embedding, "1_Pooling/config.json", embedding_dimension=256, pooling_mode="mean")
    (embedding / "config_sentence_transformers.json").unlink()
    assert load_config(embedding).roles.pooling == PoolingConfig("modules.json", MEAN, False)


def test_a_model_that_answers_has_no_roles(make_checkpoint: Any) -> None:
    roles = load_config(make_checkpoint()).roles
    assert (roles.pooling, roles.scoring) == (None, None)
    roles.check_answers()


def test_no_head_is_needed(vectors: Path, tmp_path: Path) -> None:
    """Qwen3-Embedding-8B is untied, and its files have no head."""
    untied = text_models.write_embedding_model(tmp_path / "untied", tie_word_embeddings=False)
    for folder in (vectors, untied):
        names = load_file(folder / "model.safetensors")
        assert not any(name.startswith(("model.", "lm_head")) for name in names)
        assert open_checkpoint(folder).config.tie_word_embeddings
    (untied / "modules.json").unlink()
    (untied / "config_sentence_transformers.json").unlink()
    with pytest.raises(CheckpointError, match="it was saved without its head, to make embeddings alone"):
        open_checkpoint(untied)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "pooling by cls": (
        "1_Pooling/config.json",
        {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": False},
        r"the pooling is 'cls'; only that of the last token \(lasttoken\) and of all \(mean\) is computed",
    ),
    "two poolings": (
        "1_Pooling/config.json",
        {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True},
        r"the pooling is 'mean, lasttoken'",
    ),
    "no pooling": ("1_Pooling/config.json", {"word_embedding_dimension": 256}, "the pooling is not named"),
    "another width": (
        "1_Pooling/config.json",
        {"word_embedding_dimension": 384, "pooling_mode_lasttoken": True},
        "word_embedding_dimension is 384, and hidden_size of config.json is 256",
    ),
    "means without the prompt": (
        "1_Pooling/config.json",
        {"pooling_mode": "mean", "include_prompt": False},
        "include_prompt is false: the mean leaves out the tokens of the prompt",
    ),
    "prompts that are none": (
        "config_sentence_transformers.json",
        {"prompts": {"query": 3}},
        r"prompts is \{'query': 3\}; it must be an object of texts",
    ),
    "a default that is none": (
        "config_sentence_transformers.json",
        {"prompts": PROMPTS, "default_prompt_name": "other"},
        "default_prompt_name is 'other', and no such prompt is there",
    ),
    "lower case": ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is true, and texts"),
    "a length of nothing": (
        "sentence_bert_config.json",
        {"max_seq_length": 0},
        "max_seq_length is 0; it must",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_whose_vectors_are_not_computed(name: str, embedding: Path) -> None:
    file, entries, message = REFUSED[name]
    write_entries(embedding, file, **entries)
    with pytest.raises(CheckpointError, match=message):
        load_config(embedding)


MODULES: dict[str, tuple[list[str], str]] = {
    "a further matrix": (
        [OLD + "Transformer", OLD + "Pooling", OLD + "Dense", OLD + "Normalize"],
        r"module 2 is 'sentence_transformers\.models\.Dense', and every vector goes through it",
    ),
    "code of its own": (
        ["modeling_zembed.ZembedTransformer", OLD + "Pooling"],
        r"module 0 is 'modeling_zembed\.ZembedTransformer', .* no code of a checkpoint is run",
    ),
    "another order": (
        [OLD + "Transformer", OLD + "Normalize", OLD + "Pooling"],
        "the modules are Transformer, Normalize, Pooling; only Transformer, Pooling and perhaps",
    ),
    "no transformer": ([OLD + "Pooling"], "the first module is Pooling in the folder itself; only models"),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_are_not_computed(name: str, embedding: Path) -> None:
    kinds, message = MODULES[name]
    write_modules(embedding, *kinds)
    with pytest.raises(CheckpointError, match=message):
        load_config(embedding)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"modules\.json has 0 modules; there must be 1 to 64"),
        ("{}", r"modules\.json holds dict, not an array"),
        ("[3]", "module 0 has no type or no path"),
        ("[" * 100_000, "it is nested too deep"),
        (
            json.dumps([{"path": "../x", "type": OLD + "Transformer"}]),
            r"module 0 lies in '\.\./x', which is no folder beside it",
        ),
    ],
    ids=["empty", "object", "number", "deep", "outside"],
)
def test_modules_that_cannot_be_read(content: str, message: str, embedding: Path) -> None:
    (embedding / "modules.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_config(embedding)


def test_files_that_are_missing(embedding: Path) -> None:
    (embedding / "1_Pooling" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no .*1_Pooling/config\.json, which modules\.json"):
        load_config(embedding)
    (embedding / "modules.json").unlink()
    with pytest.raises(CheckpointError, match=r"has config_sentence_transformers\.json and no modules\.json"):
        load_config(embedding)


@pytest.mark.parametrize("entry", [{"use_bidirectional_attention": True}, {"is_causal": False}])
def test_models_of_both_directions_are_refused(entry: dict[str, Any], embedding: Path) -> None:
    """EmbeddingGemma has the first, GTE-Qwen2 the second."""
    edit_json(embedding / "config.json", **entry)
    with pytest.raises(CheckpointError, match=rf"{next(iter(entry))} is .*: attention is causal"):
        load_config(embedding)


@pytest.mark.parametrize(
    ("prompts", "instruction", "expected"),
    [
        ({}, "Find", "Instruct: Find\nQuery:"),
        ({"query": "Instruct: Other\nQuery: "}, "Find", "Instruct: Find\nQuery: "),
        ({"query": "query: "}, "Find", "Instruct: Find\nQuery:"),
        ({"query": "query: "}, None, ""),
    ],
)
def test_an_instruction_stands_as_in_the_model_s_prompts(
    prompts: dict[str, str], instruction: str | None, expected: str
) -> None:
    assert text_before(PoolingConfig("", LAST, prompts=prompts), None, instruction) == expected


def test_the_default_prompt_counts_where_none_is_named() -> None:
    pooling = PoolingConfig("", LAST, prompts=PROMPTS, default_prompt="query")
    assert text_before(pooling, None, None) == PROMPTS["query"]
    assert text_before(pooling, "document", None) == ""
    with pytest.raises(UserError, match="prompt_name is 'x', and this model has no prompts; leave it out"):
        text_before(PoolingConfig("", LAST), "x", None)


def test_what_says_that_a_model_is_a_reranker(ranker: Path, tmp_path: Path) -> None:
    scoring = load_config(ranker).roles.scoring
    assert (scoring and (scoring.source, scoring.tensor)) == ("config.json", LM_HEAD_ROWS)
    named = copied(ranker, tmp_path / "my-Qwen3-Reranker-0.6B")
    edit_json(named / "config.json", classifier_from_token=None)
    assert load_config(named).roles.scoring
    snapshot = copied(named, tmp_path / "models--Qwen--Qwen3-Reranker-0.6B" / "snapshots" / "0a1b")
    assert load_config(snapshot).roles.scoring
    plain = copied(named, tmp_path / "plain")
    config = load_config(plain)
    assert config.roles.scoring is None
    with pytest.raises(UserError, match=r"\(Qwen3ForCausalLM\) is no reranker: it was not trained to score"):
        check_reranker(config)
    edit_json(plain / "config.json", classifier_from_token=["0", "1"])
    with pytest.raises(CheckpointError, match=r"classifier_from_token is \['0', '1'\]; only \['no', 'yes'\]"):
        load_config(plain)


def cross_encoder(folder: Path, *kinds: str) -> Path:
    write_modules(folder, *kinds)
    write_entries(folder, "config_sentence_transformers.json", model_type="CrossEncoder")
    return folder


LOGIT_SCORE = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"


def test_the_logits_that_a_cross_encoder_compares(ranker: Path, tmp_path: Path) -> None:
    folder = cross_encoder(copied(ranker, tmp_path / "cross"), OLD + "Transformer", LOGIT_SCORE)
    tokenizer = open_checkpoint(ranker).tokenizer
    yes, no = (tokenizer.encode(text, special=False)[0] for text in ("yes", "no"))
    write_entries(folder, "1_LogitScore/config.json", true_token_id=yes, false_token_id=no)
    assert open_checkpoint(folder).config.roles.scoring
    for entries, message in (
        ({"true_token_id": yes, "false_token_id": None}, "there is no false_token_id, so the score is one"),
        (
            {"true_token_id": no, "false_token_id": yes},
            rf"compares the tokens {no} and {yes}, and only 'yes'",
        ),
        ({"false_token_id": yes}, "there is no true_token_id"),
    ):
        write_entries(folder, "1_LogitScore/config.json", **entries)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(folder)
    cross_encoder(folder, OLD + "Transformer", OLD + "Pooling")
    with pytest.raises(CheckpointError, match="of rerankers only Transformer, and perhaps LogitScore, are"):
        load_config(folder)
    cross_encoder(folder, OLD + "Transformer")
    with pytest.raises(CheckpointError, match="a Qwen3ForCausalLM, and of these only Qwen3-Reranker is"):
        load_config(folder)
    cross_encoder(folder, OLD + "Transformer", LOGIT_SCORE)
    edit_json(folder / "config.json", classifier_from_token=None)
    write_entries(folder, "1_LogitScore/config.json", true_token_id=yes, false_token_id=no)
    with pytest.raises(CheckpointError, match="with its own prompt: a folder whose name has"):
        load_config(folder)


def test_words_that_are_several_tokens(ranker: Path, tmp_path: Path, make_checkpoint: Any) -> None:
    folder = copied(ranker, tmp_path / "cut")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((make_checkpoint() / name).read_bytes())
    with pytest.raises(CheckpointError, match="its tokenizer cuts 'yes' into 2 tokens and 'no' into 1"):
        open_checkpoint(folder)


def classifier(ranker: Path, folder: Path, labels: int = 1) -> Path:
    """The reranker with a head of its own in place of the LM head, as it is converted for other servers."""
    folder = copied(ranker, folder)
    tensors = load_file(folder / "model.safetensors")
    tokenizer = open_checkpoint(ranker).tokenizer
    yes, no = (
        tensors["model.embed_tokens.weight"][tokenizer.encode(text, special=False)[0]].astype(np.float32)
        for text in ("yes", "no")
    )
    tensors["score.weight"] = np.stack([yes - no] * labels)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    edit_json(
        folder / "config.json",
        architectures=["Qwen3ForSequenceClassification"],
        id2label={str(number): "x" for number in range(labels)},
    )
    return folder


def test_a_head_that_scores_gives_the_same_scores(ranker: Path, tmp_path: Path, numpy_model: Any) -> None:
    """The sigmoid of a difference is the softmax of two."""
    folder = classifier(ranker, tmp_path / "classifier")
    scores = []
    for each in (ranker, folder):
        model = numpy_model(each, 128)
        pooler = ScorePooler(model)
        request = (scheduler := Scheduler.with_own_pool(model)).add_prefill_only(
            [*range(20, 60)], pooler.add_rows, pooler.wanted
        )
        while not request.is_finished:
            scheduler.step()
        scores.append(pooler.result())
    assert scores[1] == pytest.approx(scores[0], abs=0.01)  # the difference is rounded to bf16
    with pytest.raises(UserError, match="says that this is a reranker, which scores documents"):
        load_config(folder).roles.check_answers()
    with pytest.raises(CheckpointError, match="the head has 2 labels, and a score is one of them"):
        load_config(classifier(ranker, tmp_path / "labels", 2))
    edit_json(folder / "config.json", classifier_from_token=None)
    with pytest.raises(
        CheckpointError, match="Qwen3ForSequenceClassification, whose head scores, and nothing"
    ):
        load_config(folder)
    edit_json(folder / "config.json", architectures=["LlamaForSequenceClassification"], model_type="llama")
    with pytest.raises(
        CheckpointError, match="its head scores texts, and of such models only Qwen3-Reranker"
    ):
        load_config(folder)


def test_pooling_in_gguf(vectors: Path, ranker: Path, tmp_path: Path) -> None:
    source = gguf_files.Source(write_checkpoint(tmp_path / "plain", family="Qwen3"))
    for number, pooling in ((1, MEAN), (3, LAST), (0, None)):
        path = gguf_files.write(tmp_path / f"{number}.gguf", source, keys={"qwen3.pooling_type": number})
        found = load_config(path).roles.pooling
        assert found == (pooling and PoolingConfig("qwen3.pooling_type", pooling))
    rank = {"qwen3.pooling_type": 4}
    path = gguf_files.write(tmp_path / "rank.gguf", source, keys=rank)
    with pytest.raises(CheckpointError, match=r"qwen3\.pooling_type is 4: it is a reranker, and of these"):
        load_config(path)
    labels = {**rank, "qwen3.classifier.output_labels": ["yes", "no"]}
    path = gguf_files.write(tmp_path / "labels.gguf", source, keys=labels)
    with pytest.raises(CheckpointError, match=r"tensor cls\.output\.weight is missing"):
        open_checkpoint(path)

    def add_head(tensors: dict[str, Any]) -> None:
        tensors["cls.output.weight"] = np.ones((2, 256), np.float32)

    path = gguf_files.write(tmp_path / "head.gguf", source, keys=labels, change=add_head)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.roles.scoring
    assert checkpoint.config.roles.scoring.tensor == SCORE_ROWS
    rows = score_rows(checkpoint.config.roles.scoring, checkpoint.tokenizer, checkpoint.weights)
    assert rows.shape == (2, 256)


def test_a_written_gguf_says_the_pooling(vectors: Path, ranker: Path, tmp_path: Path) -> None:
    path = tmp_path / "vectors.gguf"
    write_gguf(path, open_checkpoint(vectors, "bf16"), "bf16", lambda *_: None)
    assert load_config(path).roles.pooling == PoolingConfig("qwen3.pooling_type", LAST)
    text = "The capital of France"
    assert open_checkpoint(path).tokenizer.encode(text) == open_checkpoint(vectors).tokenizer.encode(text)
    with pytest.raises(CheckpointError, match="the head only scores, and it is not written as GGUF"):
        write_gguf(
            tmp_path / "ranker.gguf",
            open_checkpoint(classifier(ranker, tmp_path / "classifier"), "bf16"),
            "bf16",
            lambda *_: None,
        )
