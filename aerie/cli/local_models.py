"""List the models on this machine, with their sizes, architectures and weight types, and whether they run.

Only headers are read: the config or metadata, and the names, shapes and types of the tensors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from aerie.cli import package_models
from aerie.cli.checkpoints import BUILT_IN_MODELS
from aerie.cli.hub import HUB
from aerie.cli.model_folders import (
    LM_STUDIO,
    OLLAMA,
    gguf_files,
    lm_studio_models,
    ollama_models,
)
from aerie.common.errors import AerieError
from aerie.engine.config import load_config
from aerie.engine.errors import CheckpointError
from aerie.engine.folder import INDEX_FILE, SINGLE_FILE, read_object
from aerie.engine.gguf.model_files import GGUFModel, find_gguf
from aerie.engine.memory_estimate import footprint, needs_for_prompt
from aerie.engine.program_library import check_shape, variant_set_for
from aerie.engine.reporter import Reporter
from aerie.engine.weights import Weights
from aerie.multi_launch_builder import UnsupportedShapeError
from aerie.runtime.memory import available_bytes, format_bytes

USUAL_PROMPT = 512
"""Prompt length, in tokens, for the memory estimate."""
UNREADABLE = (AerieError, UnsupportedShapeError, OSError)


@dataclass(frozen=True)
class LocalModel:
    """One model. name: the value of --model. where: which program or folder has it. nbytes: size of its
    files. family: its architecture. weights: the types of its weights. problem: why it does not run; None if
    it runs or is not downloaded yet. is_here: whether it is on this machine."""

    name: str
    where: str
    nbytes: int = 0
    family: str = ""
    weights: str = ""
    problem: str | None = None
    is_here: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "where": self.where,
            "bytes": self.nbytes,
            "family": self.family or None,
            "weights": self.weights or None,
            "here": self.is_here,
            "runs": self.problem is None if self.is_here else None,
            "problem": self.problem,
        }


def local_models(folders: Iterable[Path] = (), report: Reporter | None = None) -> list[LocalModel]:
    """Return all models on this machine, grouped by place. folders: additional folders with GGUF files or
    checkpoints. Raises CheckpointError if one of them is no folder."""
    found, models = [*_places(folders)], list[LocalModel]()
    with (report or Reporter(quiet=True)).bar("looking at models", len(found)) as on_progress:
        for number, model in enumerate(found):
            on_progress("", number)  # the name of a file may be anything
            models.append(model if isinstance(model, LocalModel) else described(*model))
    return models


class _Place(NamedTuple):
    """The path of a model whose header is not read yet."""

    name: str
    where: str
    path: Path


def _places(folders: Iterable[Path]) -> Iterator[LocalModel | _Place]:
    for name, folder in BUILT_IN_MODELS.items():
        yield _Place(name, "comes with the project", folder)
    yield from _of_packages()
    yield from _of_hub()
    for manifest in ollama_models():
        name, problem = OLLAMA + manifest.name, manifest.problem()
        if problem or manifest.model is None:
            yield LocalModel(name, "Ollama", problem=problem)
        else:
            yield _Place(name, "Ollama", manifest.model)
    for name, path in lm_studio_models():
        yield _Place(LM_STUDIO + name, "LM Studio", path)
    for folder in folders:
        yield from _in_folder(folder)


def described(name: str, where: str, path: Path) -> LocalModel:
    """Read the header of the model in a folder or a GGUF file. Errors become its `problem`."""
    model = LocalModel(name, where)
    try:
        gguf = find_gguf(path)
        model = replace(model, **(_of_gguf(gguf) if gguf else _of_folder(path)))
        return replace(model, problem=_problem(path))
    except UNREADABLE as error:
        return replace(model, problem=str(error))


def _problem(path: Path) -> str | None:
    """Why a model does not run in this process. Raises AerieError or UnsupportedShapeError if its files are
    damaged or not supported."""
    config = load_config(path)
    check_shape(config)
    Weights(path, config)  # which looks at every tensor's shape and type
    tokens = min(USUAL_PROMPT, config.context)
    needed = footprint(config, needs_for_prompt(config, variant_set_for(config), tokens))
    free = available_bytes()
    if free is not None and needed.total > free:
        return (
            f"it takes {format_bytes(needed.total)} of memory ({needed}), and {format_bytes(free)} are free"
        )
    return None


def _of_gguf(model: GGUFModel) -> dict[str, Any]:
    """Return fields of LocalModel for a model in GGUF."""
    files = {entry.path for entry in model.tensors.values()} | {model.path}
    return {
        "nbytes": sum(file.stat().st_size for file in files),
        "family": model.architecture,
        "weights": "+".join([*model.stored_bytes][:2]),
    }


def _of_folder(folder: Path) -> dict[str, Any]:
    """Return fields of LocalModel for a folder with safetensors files."""
    files = [path for path in folder.glob("*.safetensors") if path.is_file()]
    about = {"nbytes": sum(path.stat().st_size for path in files)}
    try:
        config = read_object(folder / "config.json", CheckpointError)
    except (CheckpointError, FileNotFoundError):
        return about
    return {**about, "family": _word(config.get("model_type")), "weights": _weights_of(config)}


def _weights_of(config: dict[str, Any]) -> str:
    quantised = config.get("quantization_config") or config.get("quantization")
    if isinstance(quantised, dict):
        method, bits = (_word(quantised.get(key)) for key in ("quant_method", "bits"))
        return " ".join(filter(None, (method or "quantised", bits and f"{bits} bits")))
    return _word(config.get("dtype") or config.get("torch_dtype"))


def _word(value: Any) -> str:
    """Return a value of config.json as text for the table; "" if it is neither text nor a number."""
    return str(value)[:40] if isinstance(value, str | int) else ""


def _of_packages() -> Iterator[LocalModel | _Place]:
    for name, model in package_models.PACKAGE_MODELS.items():
        path = package_models.package_file(name)
        if path.is_file():
            yield _Place(name, str(path.parent), path)
        else:
            where = f"`aerie pull {name}` fetches {format_bytes(model.download_size)}"
            yield LocalModel(name, where, model.size, is_here=False)


def _of_hub() -> Iterator[_Place]:
    """Yield the checkpoints and the GGUF files in Hugging Face's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    for folder in sorted(Path(HF_HUB_CACHE).glob("models--*--*")):
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(folder)
        if snapshot is None:
            continue
        for path in gguf_files(snapshot, "**"):
            yield _Place(f"{HUB}{name}:{path.relative_to(snapshot).as_posix()}", "Hugging Face", path)
        if os.path.isfile(snapshot / "config.json") and any(snapshot.glob("*.safetensors")):
            yield _Place(name, "Hugging Face", snapshot)


def _snapshot(folder: Path) -> Path | None:
    """Return the snapshot of the main branch, or the newest one; None if there is none."""
    try:
        commit = (folder / "refs" / "main").read_text().strip()
        snapshots = sorted((folder / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime)
    except (OSError, ValueError):
        return None
    return next((path for path in snapshots if path.name == commit), snapshots[-1] if snapshots else None)


def _in_folder(folder: Path) -> Iterator[_Place]:
    """Yield the checkpoints and GGUF files in a folder and in its subfolders."""
    if not os.access(folder, os.R_OK | os.X_OK) or not os.path.isdir(folder):
        raise CheckpointError(f"{folder} is no readable folder; give one with GGUF files or checkpoints")
    for path in [*gguf_files(folder), *gguf_files(folder, "*")]:
        yield _Place(str(path), str(folder), path)
    for path in [folder, *sorted(folder.iterdir())]:
        if any(os.path.isfile(path / name) for name in (SINGLE_FILE, INDEX_FILE)):
            yield _Place(str(path), str(folder), path)
