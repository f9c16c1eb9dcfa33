"""Makes the folder that the reference gets: the settings of config.json, and the files of weights.

A checkpoint may come with code, with pickles, and with entries that name more of both on the Hub, and
transformers looks for them in several places. Nothing of a checkpoint is run: transformers gets a folder
without any of it, and the option to trust no code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aerie.engine.config_reader import read_json
from aerie.engine.folder import INDEX_FILE
from aerie.engine.weight_files import find_tensors

BESIDE = (
    *("rope_theta", "rope_scaling", "original_max_position_embeddings", "partial_rotary_factor"),
    "head_dim",
)
"""Entries that transformers reads besides those that a configuration declares."""


@contextmanager
def facts_and_weights(folder: Path, config_class: Any) -> Iterator[Path]:
    """A folder with the entries of `folder`/config.json that define a model of transformers' `config_class`,
    and with links to the files that ours reads. It exists until the context ends. Raises CheckpointError.
    """
    facts, files = _facts(read_json(folder / "config.json"), config_class), find_tensors(folder)
    with TemporaryDirectory(prefix="aerie-reference-") as work:
        shown = Path(work)
        (shown / "config.json").write_text(json.dumps(facts))
        links: dict[Path, str] = {}
        for tensor in files.tensors.values():
            links.setdefault(tensor.path, f"weights-{len(links)}.safetensors")
        for path, name in links.items():
            (shown / name).symlink_to(path.absolute())
        where = {name: links[tensor.path] for name, tensor in files.tensors.items()}
        (shown / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": where}))
        yield shown


def _facts(entries: dict[str, Any], config_class: Any) -> dict[str, Any]:
    """The entries that this class adds to those of all configurations, and those of BESIDE: none of them
    names a file or code.
    """
    from dataclasses import fields

    from transformers import PretrainedConfig

    common = {field.name for field in fields(PretrainedConfig)}
    known = {field.name for field in fields(config_class)} - common | set(BESIDE)
    return {name: value for name, value in entries.items() if name in known}
