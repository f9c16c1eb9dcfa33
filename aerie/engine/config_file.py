"""The entries of a checkpoint's config: those of config.json, or what a GGUF file says in its metadata."""

from __future__ import annotations

from pathlib import Path

from aerie.engine.config_reader import ConfigReader, read_json
from aerie.engine.gguf.model_config import config_entries
from aerie.engine.gguf.model_files import find_gguf
from aerie.engine.text_part import text_entries

CONFIG, GENERATION = "config.json", "generation_config.json"


def read_config(checkpoint: Path) -> ConfigReader:
    """The entries of a checkpoint, a folder or a GGUF file, by the names of config.json. CheckpointError."""
    model = find_gguf(checkpoint)
    if model is not None:
        return ConfigReader(model.path, config_entries(model))
    path = checkpoint / CONFIG
    return ConfigReader(path, text_entries(read_json(path)))


def read_generation(config: ConfigReader) -> ConfigReader:
    """What stands in generation_config.json beside config.json; the config where there is none."""
    path = config.path.with_name(GENERATION)
    return ConfigReader(path, read_json(path)) if config.path.name == CONFIG and path.exists() else config
