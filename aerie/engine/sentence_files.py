"""Reads the files of sentence-transformers: which modules make a vector of a text, or score a document.

`modules.json` names classes. Their names are compared with a few that are known, and none is imported or run.
A module that is not computed here changes every vector, so it is refused by its name. Names and entries:
sentence_transformers/base/model.py and the `modules` beside it (5.4), and `models` of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aerie.engine.config_reader import ConfigReader, read_json, short
from aerie.engine.errors import ConfigError
from aerie.engine.folder import read_array, read_object
from aerie.engine.pooling import LAST, LM_HEAD_ROWS, MEAN, PoolingConfig, ScoringConfig

MODULES, SENTENCE = "modules.json", "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
OTHER_FILES = (SENTENCE, TRANSFORMER)
MAX_MODULES = 64
LIBRARY = "sentence_transformers."
COMPUTED = ("Transformer", "Pooling", "Normalize", "LogitScore")
POOLING_NAMES = {"lasttoken": LAST, "mean": MEAN}
"""By `pooling_mode` of a Pooling."""
POOLING_FLAG = re.compile(r"pooling_mode_(\w+?)(_tokens?)?")
"""In older files each kind has an entry of its own, such as pooling_mode_mean_tokens."""
FOLDER_NAME = re.compile(r"[\w-]+")


class _Module(NamedTuple):
    """A module: the name of its class, and its folder; "" is that of the checkpoint."""

    kind: str
    folder: str


def has_modules(folder: Path) -> bool:
    """Whether sentence-transformers saved this checkpoint. Raises ConfigError where modules.json is missing
    among its files."""
    if (folder / MODULES).is_file():
        return True
    found = next((name for name in OTHER_FILES if (folder / name).is_file()), None)
    if found:
        raise ConfigError(
            f"{folder} has {found} and no {MODULES}, which says how texts become vectors; fetch that too, or "
            f"remove {found} to have the mean of all tokens"
        )
    return False


def read_pooling(folder: Path, config: ConfigReader) -> PoolingConfig:
    """How the modules make vectors. Raises ConfigError for modules that are not computed."""
    modules = _read_modules(folder)
    kinds = [module.kind for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise ConfigError(
            f"{folder / MODULES}: the modules are {', '.join(kinds)}; only Transformer, Pooling and perhaps "
            "Normalize, in this order, are computed: take another embedding model"
        )
    path = folder / SENTENCE
    sentence = ConfigReader(path, read_json(path) if path.exists() else {})
    prompts = _prompts(sentence)
    return PoolingConfig(
        source=MODULES,
        pooling=_pooling(folder / modules[1].folder / "config.json", config),
        is_normalised=bool(kinds[2:]),
        prompts=prompts,
        default_prompt=_default_prompt(sentence, prompts),
        max_tokens=_max_tokens(folder / TRANSFORMER),
    )


def is_cross_encoder(folder: Path) -> bool:
    """Whether the files are those of a CrossEncoder, which scores pairs of texts."""
    path = folder / SENTENCE
    return path.exists() and read_json(path).get("model_type") == "CrossEncoder"


def read_scoring(folder: Path) -> ScoringConfig | None:
    """The tokens whose logits the modules of a CrossEncoder compare; None if its head is not the LM head.
    Raises ConfigError for modules that are not computed."""
    modules = _read_modules(folder)
    kinds = [module.kind for module in modules]
    if kinds == ["Transformer"]:
        return None
    if kinds != ["Transformer", "LogitScore"]:
        raise ConfigError(
            f"{folder / MODULES}: the modules are {', '.join(kinds)}; of rerankers only Transformer, and "
            "perhaps LogitScore, are computed: take Qwen3-Reranker"
        )
    path = folder / modules[1].folder / "config.json"
    entries = ConfigReader(path, _read_required(path))
    yes = entries.positive_int("true_token_id", least=0)
    if entries.get("false_token_id") is None:
        raise ConfigError(
            f"{path}: there is no false_token_id, so the score is one logit; only the two logits of "
            "Qwen3-Reranker are compared: take that"
        )
    return ScoringConfig(MODULES, LM_HEAD_ROWS, yes, entries.positive_int("false_token_id", least=0))


def _read_modules(folder: Path) -> list[_Module]:
    path = folder / MODULES
    items = read_array(path, ConfigError)
    if not 1 <= len(items) <= MAX_MODULES:
        raise ConfigError(
            f"{path} has {len(items)} modules; there must be 1 to {MAX_MODULES}: fetch it again"
        )
    modules = [_module(path, number, item) for number, item in enumerate(items)]
    if modules[0] != _Module("Transformer", ""):
        raise ConfigError(
            f"{path}: the first module is {modules[0].kind} in {modules[0].folder or 'the folder itself'}; "
            "only models that begin with a Transformer in the folder itself are run"
        )
    return modules


def _module(path: Path, number: int, item: Any) -> _Module:
    kind, folder = (item.get(name) if isinstance(item, Mapping) else None for name in ("type", "path"))
    if not isinstance(kind, str) or not isinstance(folder, str):
        raise ConfigError(f"{path}: module {number} has no type or no path; fetch it again")
    name = kind.rpartition(".")[2]
    if not kind.startswith(LIBRARY) or name not in COMPUTED:
        raise ConfigError(
            f"{path}: module {number} is {short(kind)}, and every vector goes through it; of modules only "
            f"{', '.join(COMPUTED)} are computed, and no code of a checkpoint is run: take another model"
        )
    if folder and not FOLDER_NAME.fullmatch(folder):
        raise ConfigError(
            f"{path}: module {number} lies in {short(folder)}, which is no folder beside it; fetch it again"
        )
    return _Module(name, folder)


def _read_required(path: Path) -> Mapping[str, Any]:
    try:
        return read_object(path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(f"there is no {path}, which {MODULES} names; fetch it too") from None


def _pooling(path: Path, config: ConfigReader) -> str:
    entries = ConfigReader(path, _read_required(path))
    hidden = config.positive_int("hidden_size")
    for name in ("word_embedding_dimension", "embedding_dimension"):
        if (width := entries.get(name, hidden)) != hidden:
            raise ConfigError(
                f"{path}: {name} is {short(width)}, and hidden_size of {config.path.name} is {hidden}; the "
                "two do not belong together: fetch the checkpoint again"
            )
    names = _pooling_names(entries)
    if len(names) != 1 or names[0] not in POOLING_NAMES:
        raise ConfigError(
            f"{path}: the pooling is {short(', '.join(names)) if names else 'not named'}; only that of the "
            "last token (lasttoken) and of all (mean) is computed: take another embedding model"
        )
    pooling = POOLING_NAMES[names[0]]
    if pooling == MEAN and not entries.flag("include_prompt", default=True):
        raise ConfigError(
            f"{path}: include_prompt is false: the mean leaves out the tokens of the prompt, and only means "
            "of all tokens are computed; take another embedding model"
        )
    return pooling


def _pooling_names(entries: ConfigReader) -> Sequence[str]:
    if (named := entries.get("pooling_mode")) is not None:
        return [str(each) for each in named] if isinstance(named, list) else [str(named)]
    found = ((POOLING_FLAG.fullmatch(name), value) for name, value in entries.entries.items())
    return [match[1] for match, value in found if match and value is True]


def _prompts(sentence: ConfigReader) -> Mapping[str, str]:
    prompts = sentence.get("prompts", {})
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ConfigError(f"{sentence.path}: prompts is {short(prompts)}; it must be an object of texts")
    return prompts


def _default_prompt(sentence: ConfigReader, prompts: Mapping[str, str]) -> str | None:
    name = sentence.get("default_prompt_name")
    if name is None:
        return None
    if not isinstance(name, str) or name not in prompts:
        raise ConfigError(
            f"{sentence.path}: default_prompt_name is {short(name)}, and no such prompt is there; fetch it "
            "again"
        )
    return name


def _max_tokens(path: Path) -> int | None:
    """The longest text, in tokens, with what is put before it."""
    entries = ConfigReader(path, read_json(path) if path.exists() else {})
    if entries.flag("do_lower_case", default=False):
        raise ConfigError(
            f"{path}: do_lower_case is true, and texts are taken as they are; take another embedding model"
        )
    return entries.positive_int_or_none("max_seq_length", if_absent=None)
