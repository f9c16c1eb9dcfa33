"""Finds the GGUF files of a model: one, or parts NAME-00001-of-0000N.gguf, from any of them or their folder.

The first part has the metadata, the others some of the tensors and keys of their own (llama.cpp,
llama-model-loader.cpp).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aerie.engine.folder import INDEX_FILE, SINGLE_FILE, check_file
from aerie.engine.gguf.block_types import QUANTISATION_VERSION
from aerie.engine.gguf.container import (
    FETCH,
    Container,
    GGUFError,
    Metadata,
    TensorEntry,
    is_gguf,
    read_container,
    short,
)

SUFFIX = ".gguf"
PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
PROJECTOR_PREFIXES = ("mmproj",)
"""What the names of files begin with that lie beside a model and are none: projectors of images."""
KEPT_OPEN = 8
"""Files whose headers are remembered: a command asks several times for those of its models."""
MAX_SHOWN = 4

KINDS = {
    "adapter": "it is a LoRA adapter, and no model: merge it into its base model (llama-export-lora)",
    "mmproj": "it is the projector of images of a model, and no model: give the model's own file",
    "imatrix": "it is an importance matrix, with which others quantise, and no model",
    "vocab": "it has a vocabulary, and no model",
}
"""Files that are no model, by `general.type`."""
NO_MODELS = {"clip": KINDS["mmproj"], "controlvector": "it is a control vector, and no model"}
"""The same by `general.architecture`."""


@dataclass(frozen=True)
class GGUFModel:
    """A model's files. path: the first one. tensors: of all files, by the files' names."""

    path: Path
    metadata: Metadata
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes of tensors by the name of their type, such as Q4_K; the most first."""
        stored = Counter[str]()
        for entry in self.tensors.values():
            stored[entry.kind.name] += entry.size
        return dict(stored.most_common())


def find_gguf(path: Path) -> GGUFModel | None:
    """The model in a file, or in a folder without safetensors that has one; None where there is no GGUF.

    Raises GGUFError for one that is damaged or incomplete, for a file that is no model, and for a folder with
    several models.
    """
    if not os.path.isdir(path):
        return open_gguf(path) if path.suffix == SUFFIX or is_gguf(path) else None
    if any(os.path.exists(path / name) for name in (SINGLE_FILE, INDEX_FILE)):
        return None
    first = _only_model(path)
    return None if first is None else open_gguf(first)


def open_gguf(path: Path) -> GGUFModel:
    """The model of a file, which may be any part of one. Raises GGUFError."""
    containers = _parts(path, _container(path))
    first = containers[0]
    _check_kind(first)
    tensors: dict[str, TensorEntry] = {}
    for container in containers:
        for name, entry in container.tensors.items():
            if name in tensors:
                raise GGUFError(
                    f"tensor {short(name)} is in {tensors[name].path} and in {entry.path}: which of them the "
                    "model has is not known; fetch the files again"
                )
            tensors[name] = entry
    _check_complete(first, tensors)
    _check_version(first, tensors)
    return GGUFModel(first.path, first.metadata, tensors)


def _only_model(folder: Path) -> Path | None:
    """The first file of the one model in a folder."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)
    except OSError as error:
        raise GGUFError(f"cannot read {folder}: {error.strerror}; give the file itself") from None
    models: dict[str, Path] = {}
    for file in files:
        part = PART.fullmatch(file.name)
        if not file.name.lower().startswith(PROJECTOR_PREFIXES):
            models.setdefault(part["name"] if part else file.name, file)
    if len(models) > 1:
        names = [file.name for file in models.values()]
        more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        raise GGUFError(
            f"{folder} has {len(names)} models in GGUF ({', '.join(names[:MAX_SHOWN])}{more}), and which is "
            f"meant is not known: give the file, such as {folder / names[0]}"
        )
    return next(iter(models.values()), None)


def _container(path: Path) -> Container:
    """The header of a file, as it is now. Raises GGUFError."""
    check_file(path, error=GGUFError)
    try:
        about = path.stat()
    except OSError as error:
        raise GGUFError(
            f"cannot read {path}: {error.strerror}; give the path of a file that is there"
        ) from None
    return _read_once(path, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(KEPT_OPEN)
def _read_once(path: Path, *_: int) -> Container:
    return read_container(path)


def _parts(path: Path, container: Container) -> Sequence[Container]:
    """All parts in their order, of which `container` is one; itself alone where it is no part."""
    count = container.metadata.get("split.count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        return [container]
    named = PART.fullmatch(path.name)
    if named is None or int(named["count"]) != count:
        raise GGUFError(
            f"{path} is one of {count} parts of a model, which are found by their names, and it is not "
            f"called NAME-00001-of-{count:05}.gguf or alike: call it so, with the others beside it"
        )
    paths = [
        path.with_name(f"{named['name']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)
    ]
    missing = next((part for part in paths if not part.is_file()), None)
    if missing is not None:
        raise GGUFError(
            f"there is no {missing}, and the model of {path.name} has {count} parts; fetch it too"
        )
    return [_part(part, number, count) for number, part in enumerate(paths)]


def _part(path: Path, number: int, count: int) -> Container:
    container = _container(path)
    says = tuple(container.metadata.get(key) for key in ("split.no", "split.count"))
    if says != (number, count):
        raise GGUFError(
            f"{path} says that it is part {says[0]!r} of {says[1]!r} (split.no, counted from 0, and "
            f"split.count), and by its name it is part {number} of {count}: fetch the parts again"
        )
    return container


def _check_kind(first: Container) -> None:
    kind, architecture = (first.metadata.get(f"general.{key}") for key in ("type", "architecture"))
    why = NO_MODELS.get(str(architecture)) or KINDS.get(str(kind))
    if why:
        raise GGUFError(f"{first.path}: {why}")


def _check_complete(first: Container, tensors: Mapping[str, TensorEntry]) -> None:
    wanted = first.metadata.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise GGUFError(
            f"{first.path} and its other parts have {len(tensors)} tensors, and split.tensors.count is "
            f"{wanted!r}: {FETCH}"
        )


def _check_version(first: Container, tensors: Mapping[str, TensorEntry]) -> None:
    """Raises GGUFError for blocks whose layout is that of another version."""
    version = first.metadata.get("general.quantization_version", QUANTISATION_VERSION)
    name = next((name for name, entry in tensors.items() if entry.kind.values > 1), None)
    if name is not None and version != QUANTISATION_VERSION:
        raise GGUFError(
            f"{first.path}: tensor {name} has blocks of {tensors[name].kind.name} of version {version!r} "
            f"(general.quantization_version), and those of version {QUANTISATION_VERSION} are read: fetch "
            "another file of the same model"
        )
