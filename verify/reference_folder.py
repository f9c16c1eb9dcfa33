"""Makes the folder that the reference gets: the settings of config.json, and the files of weights.

A checkpoint may come with code, with pickles, and with entries that name more of both on the Hub, and
transformers looks for them in several places. Nothing of a checkpoint is run: transformers gets a folder
without any of it, and the option to trust no code.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aerie.engine.config import load_config
from aerie.engine.config_file import CONFIG, read_config
from aerie.engine.folder import INDEX_FILE
from aerie.engine.gguf.model_files import GGUFModel, find_gguf
from aerie.engine.quantised import ComputedTensor
from aerie.engine.weight_files import find_tensors
from aerie.engine.weights import stored_shapes
from aerie.verify.blocks_reference import DeviceKind
from aerie.verify.gguf_reference import DequantisedFiles
from aerie.verify.safetensors_reference import SafetensorsFiles

BESIDE = (
    *("rope_theta", "rope_scaling", "original_max_position_embeddings", "partial_rotary_factor"),
    "head_dim",
)
"""Entries that transformers reads besides those that a configuration declares."""


class ReferenceFolder:
    """The folder of `facts_and_weights`. It exists as long as this object does. Raises CheckpointError."""

    def __init__(self, folder: Path, config_class: Any, weights: str = "auto", is_long: bool = False) -> None:
        stack = ExitStack()
        self.path = stack.enter_context(facts_and_weights(folder, config_class, weights, is_long))
        weakref.finalize(self, stack.close)


@contextmanager
def facts_and_weights(
    folder: Path, config_class: Any, weights: str = "auto", is_long: bool = False
) -> Iterator[Path]:
    """A folder with the entries of `folder`/config.json that define a model of transformers' `config_class`,
    and with links to the files that ours reads; of quantised weights, with these in float32. It exists until
    the context ends. Raises CheckpointError.

    weights: one of quantised.KINDS. Of q4 and q8 the folder has the weights that the device's blocks stand
    for, read from the files without our code. is_long: whether longrope has the factors of long texts for
    all.
    """
    config, model, kind = read_config(folder), find_gguf(folder), DeviceKind(weights)
    with TemporaryDirectory(prefix="aerie-reference-") as work:
        shown = Path(work)
        facts = _facts(config.entries, config_class)
        (shown / CONFIG).write_text(json.dumps(_of_long_texts(facts) if is_long else facts))
        if model is None:
            where = _links_or_written(folder, config.entries, kind, shown)
        else:
            where = _dequantised(model, config.entries, kind, shown)
        (shown / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": where}))
        yield shown


def _links_or_written(
    folder: Path, config: Mapping[str, Any], kind: DeviceKind, shown: Path
) -> dict[str, str]:
    """Link the files of weights, or write them where they are quantised. Returns the file of each tensor."""
    files, links = find_tensors(folder), dict[Path, str]()
    are_computed = any(isinstance(tensor, ComputedTensor) for tensor in files.tensors.values())
    if are_computed or kind.name in ("q4", "q8"):
        paths = sorted({tensor.path for tensor in files.tensors.values()})
        return SafetensorsFiles(paths, config, kind).write(shown)
    for tensor in files.tensors.values():
        links.setdefault(tensor.path, f"weights-{len(links)}.safetensors")
    for path, name in links.items():
        (shown / name).symlink_to(path.absolute())
    return {name: links[tensor.path] for name, tensor in files.tensors.items()}


def _dequantised(
    model: GGUFModel, config: Mapping[str, Any], kind: DeviceKind, shown: Path
) -> dict[str, str]:
    """Write the weights of a GGUF model. Returns the file of each tensor."""
    paths = sorted({entry.path for entry in model.tensors.values()})
    files = DequantisedFiles(paths, config, model.architecture, kind)
    return files.write(list(stored_shapes(load_config(model.path))), shown)


def _facts(entries: Mapping[str, Any], config_class: Any) -> dict[str, Any]:
    """The entries that this class adds to those of all configurations, and those of BESIDE: none of them
    names a file or code.
    """
    from dataclasses import fields

    from transformers import PretrainedConfig

    common = {field.name for field in fields(PretrainedConfig)}
    known = {field.name for field in fields(config_class)} - common | set(BESIDE)
    return {name: value for name, value in entries.items() if name in known}


def _of_long_texts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same entries, in which longrope's factors of short texts are those of long ones: transformers takes
    one or the other by a text's length, and a session takes one for all."""
    return {
        name: {**entry, "short_factor": entry["long_factor"]}
        if isinstance(entry, Mapping) and "long_factor" in entry
        else entry
        for name, entry in facts.items()
    }
