"""Reads the block diffusion settings of a model from its checkpoint.

`config.json` has the block size, under a name that depends on the family, and may have the mask token. If
not, the tokenizer's files have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aerie.engine.config_reader import ConfigReader, read_json
from aerie.engine.errors import ConfigError
from aerie.engine.model_family import DiffusionConfig, FamilyDiffusion

MAX_BLOCK_SIZE = 64
"""Maximum tokens of a diffusion block. A page has as many positions, and no block is in two pages
(`page_pool.py`)."""


def read_diffusion(config: ConfigReader, family: FamilyDiffusion | None) -> DiffusionConfig | None:
    """The block diffusion settings; None for a family without. Raises ConfigError for a block size that
    cannot run, and if no file has the mask token."""
    if family is None:
        return None
    size = config.positive_int(family.size_entry, default=family.size)
    _check_size(config, family, size)
    return DiffusionConfig(size, _mask_token_id(config, family), family.shifted, family.sub_block)


def _check_size(config: ConfigReader, family: FamilyDiffusion, size: int) -> None:
    """Raises ConfigError unless a block is within a page, and a multiple of its parts."""
    given = f"{config.path}: {family.size_entry} is {size}; "
    if MAX_BLOCK_SIZE % size:
        raise ConfigError(
            f"{given}a page of keys and values has {MAX_BLOCK_SIZE} positions, and blocks must divide it: "
            f"only 1, 2, 4, 8, 16, 32 and {MAX_BLOCK_SIZE} tokens are supported"
        )
    if family.sub_block is not None and size % family.sub_block:
        raise ConfigError(
            f"{given}models of this family fill a block in parts of {family.sub_block} tokens, and only a "
            "multiple of that is supported"
        )


def _mask_token_id(config: ConfigReader, family: FamilyDiffusion) -> int:
    """The id of the mask token, from config.json, else from the tokenizer."""
    path, token = config.path, config.get("mask_token_id")
    if token is None:
        path, token = _of_tokenizer(config.path.parent, family.mask_token)
    vocab_size = config.positive_int("vocab_size")
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
        raise ConfigError(
            f"{path}: the mask token is {token!r}, which is not a token of the vocabulary of {vocab_size}; "
            "no block can be filled without it: correct mask_token_id in config.json"
        )
    return token


def _of_tokenizer(folder: Path, mask_token: str) -> tuple[Path, Any]:
    """The tokenizer's file with the id of the mask token, and the id. The token is the tokenizer's own mask
    token, else `mask_token`."""
    own = _read(folder / "tokenizer_config.json").get("mask_token")
    texts = [own.get("content") if isinstance(own, dict) else own, mask_token]
    for text in filter(None, texts):
        for path, tokens in _added_tokens(folder):
            if text in tokens:
                return path, tokens[text]
    raise ConfigError(
        f"{folder / 'config.json'}: there is no mask_token_id, and the tokenizer has no token "
        f"{mask_token!r}; what stands where no token is chosen yet is not known: add mask_token_id"
    )


def _added_tokens(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files that list added tokens, and the ids of these by their texts."""
    settings = _read(folder / "tokenizer_config.json")
    listed = settings.child("added_tokens_decoder").entries.items()
    yield settings.path, {_text(token): int(number) for number, token in listed if number.isdigit()}
    legacy = _read(folder / "added_tokens.json")
    yield legacy.path, dict(legacy.entries)
    whole = _read(folder / "tokenizer.json")
    yield whole.path, {_text(token): token["id"] for token in whole.items("added_tokens") if "id" in token}


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else ""


def _read(path: Path) -> ConfigReader:
    """The contents of a tokenizer's file; empty if it is absent, as few tokenizers have all files."""
    return ConfigReader(path, read_json(path) if path.is_file() else {})
