"""Tells an embedding model and a reranker from a model that answers, by what its checkpoint says.

Nothing in the files of Qwen3-Reranker tells it from a Qwen3 that answers, and other rerankers of its shape
have other prompts. So it counts as one by its name, or by `classifier_from_token`, vLLM's entry for it.
A file that llama.cpp's converter made has `pooling_type` (llama.h, llama_pooling_type).
"""

from __future__ import annotations

import re
from pathlib import Path

from aerie.engine.config_reader import ConfigReader, short
from aerie.engine.errors import ConfigError
from aerie.engine.gguf.model_config import MetadataReader
from aerie.engine.gguf.model_files import GGUFModel, find_gguf
from aerie.engine.model_family import ModelFamily
from aerie.engine.pooling import LAST, LM_HEAD_ROWS, MEAN, SCORE_ROWS, PoolingConfig, ScoringConfig, TextRoles
from aerie.engine.sentence_files import has_modules, is_cross_encoder, read_pooling, read_scoring

RERANKER_NAME = re.compile(r"qwen3[-_. ]?reranker", re.IGNORECASE)
TOKENS_ENTRY, TOKENS = "classifier_from_token", ["no", "yes"]
HOW_TO_SAY_SO = (
    f'a folder whose name has "Qwen3-Reranker" in it is taken for one, or a config.json with '
    f'"{TOKENS_ENTRY}": ["no", "yes"]'
)

GGUF_POOLING = {1: MEAN, 3: LAST}
GGUF_NONE, GGUF_RANK = 0, 4
GGUF_LABELS = ["yes", "no"]


def read_roles(checkpoint: Path, config: ConfigReader, family: ModelFamily) -> TextRoles:
    """What a checkpoint, a folder or a GGUF file, is beside a model that answers. Raises ConfigError for an
    embedding model or a reranker that is not computed."""
    model = find_gguf(checkpoint)
    if model is not None:
        return _of_gguf(MetadataReader(model), model, family)
    return _of_folder(checkpoint, config, family)


def _of_folder(folder: Path, config: ConfigReader, family: ModelFamily) -> TextRoles:
    if family.scoring_architecture and family.scoring_architecture in config.items("architectures"):
        return TextRoles(scoring=_score_head(folder, config))
    if has_modules(folder):
        if not is_cross_encoder(folder):
            return TextRoles(read_pooling(folder, config))
        return TextRoles(scoring=_of_cross_encoder(folder, config, family))
    if family.scoring_architecture and (source := _reranker_source(folder, config)):
        return TextRoles(scoring=ScoringConfig(source, LM_HEAD_ROWS))
    return TextRoles()


def _of_cross_encoder(folder: Path, config: ConfigReader, family: ModelFamily) -> ScoringConfig:
    scoring = read_scoring(folder)
    if scoring is None or not family.scoring_architecture or not _reranker_source(folder, config):
        raise ConfigError(
            f"{folder}: it is a CrossEncoder of sentence-transformers, a {family.name}, and of these only "
            f"Qwen3-Reranker is computed, with its own prompt: {HOW_TO_SAY_SO}"
        )
    return scoring


def _score_head(folder: Path, config: ConfigReader) -> ScoringConfig:
    """The head of a class that scores in place of answering."""
    if has_modules(folder):
        read_scoring(folder)  # which refuses modules that are not computed
    if not _reranker_source(folder, config):
        raise ConfigError(
            f"{config.path}: the architecture is {config.items('architectures')[0]}, whose head scores, and "
            f"nothing says that it scores documents for a query: {HOW_TO_SAY_SO}"
        )
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise ConfigError(
            f"{config.path}: the head has {short(count)} labels, and a score is one of them; take a reranker "
            "with num_labels 1"
        )
    return ScoringConfig(config.path.name, SCORE_ROWS, 0)


def _reranker_source(folder: Path, config: ConfigReader) -> str | None:
    """What says that this is Qwen3-Reranker; None if nothing does. A snapshot of Hugging Face's cache has the
    name two folders above."""
    tokens = config.get(TOKENS_ENTRY)
    if tokens is not None:
        if tokens != TOKENS:
            raise ConfigError(
                f"{config.path}: {TOKENS_ENTRY} is {short(tokens)}; only {TOKENS} of Qwen3-Reranker are "
                "compared: leave it out to have the model answer"
            )
        return config.path.name
    path = folder.absolute()
    names = [path.name, path.parents[1].name if path.parent.name == "snapshots" else ""]
    return next((f"the name {name}" for name in names if RERANKER_NAME.search(name)), None)


def _of_gguf(keys: MetadataReader, model: GGUFModel, family: ModelFamily) -> TextRoles:
    value = keys.get("pooling_type") or GGUF_NONE
    if value == GGUF_NONE:
        named = family.scoring_architecture and RERANKER_NAME.search(model.path.name)
        scoring = ScoringConfig(f"the name {model.path.name}", LM_HEAD_ROWS) if named else None
        return TextRoles(scoring=scoring)
    if isinstance(value, int) and value in GGUF_POOLING:
        return TextRoles(PoolingConfig(keys.key("pooling_type"), GGUF_POOLING[value]))
    if value != GGUF_RANK:
        raise keys.fail(
            "pooling_type",
            f"only {', '.join(f'{number} ({name})' for number, name in GGUF_POOLING.items())} and "
            f"{GGUF_RANK} (rank) are computed: take another embedding model",
        )
    if not family.scoring_architecture or keys.get("classifier.output_labels") != GGUF_LABELS:
        raise keys.fail(
            "pooling_type",
            "it is a reranker, and of these only Qwen3-Reranker, with the labels yes and no "
            "(classifier.output_labels), is computed: take that",
        )
    return TextRoles(scoring=ScoringConfig(keys.key("pooling_type"), SCORE_ROWS, 0, 1))
