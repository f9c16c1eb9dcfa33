"""Which files hold a checkpoint's tensors, and where in them.

As transformers reads them: model.safetensors where it is there; else every file that the index names, with
all that is in it, whatever the index says of single tensors. Where the files leave open which is meant, a
note says what was read, or the checkpoint is refused. The index names files of the folder itself: a name that
leads out of it is refused. Links are followed, since the cache of Hugging Face is made of them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open

from aerie.engine.config_file import CONFIG
from aerie.engine.config_reader import ConfigReader
from aerie.engine.errors import ConfigError, WeightsError
from aerie.engine.folder import INDEX_FILE, SINGLE_FILE, check_file, other_formats, read_object
from aerie.engine.gguf.architectures import ARCHITECTURES, Architecture
from aerie.engine.gguf.model_config import config_entries
from aerie.engine.gguf.model_files import GGUFModel, find_gguf
from aerie.engine.gguf.named_tensors import name_in_file, named_tensors
from aerie.engine.gguf.tokenizer import missing_pre_tokenizer
from aerie.engine.quantised_files.assembly import assembled
from aerie.engine.quantised_files.raw import RAW_DTYPES
from aerie.engine.quantised_files.settings import read_settings
from aerie.engine.tensors import Tensor

METADATA = "__metadata__"
"""What is no tensor in a header of safetensors."""
MAX_INDEX_BYTES = 64 << 20
MAX_HEADER_BYTES = 16 << 20
"""Bytes of what a file of safetensors says of its tensors; a model of 1000 layers has less than 2 million."""


@dataclass(frozen=True)
class WeightFiles:
    """What a checkpoint holds: tensors by transformers' names. notes: which files count, where that might be
    doubted. config: what says which shapes they must have. may_be_transposed: whether matrices may lie (in,
    out). is_quantised: whether they may be quantised, so that notes give their sizes."""

    folder: Path
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()
    config: str = CONFIG
    may_be_transposed: bool = True
    is_quantised: bool = False

    @property
    def mismatch(self) -> str:
        """What is wrong where tensors and config contradict each other."""
        return "the files and the config do not belong together"

    def stored_name(self, name: str) -> str:
        """What the files call a tensor of transformers' name."""
        return self.tensors[name].name if name in self.tensors else name

    def elsewhere(self, name: str) -> str:
        """Where a tensor is that the files lack: for a message, empty where it is nowhere."""
        like = next((other for other in self.tensors if other.endswith(f".{name}")), None)
        if like:
            return f"the files call one {like}, which transformers would not take for it either"
        read = {tensor.path for tensor in self.tensors.values()}
        for path in sorted(self.folder.glob("*.safetensors")):
            if path not in read and name in _readable(path):
                return f"it is in {path.name}, which {INDEX_FILE} does not name: fetch that anew"
        return ""


def find_tensors(checkpoint: Path) -> WeightFiles:
    """Where each tensor of a checkpoint, a folder or a GGUF file, is. Raises CheckpointError."""
    model = find_gguf(checkpoint)
    return _folder_files(checkpoint) if model is None else GGUFWeightFiles.of(model)


@dataclass(frozen=True)
class GGUFWeightFiles(WeightFiles):
    """Those of a model in GGUF."""

    architecture: Architecture = ARCHITECTURES["llama"]

    @staticmethod
    def of(model: GGUFModel) -> GGUFWeightFiles:
        """Raises CheckpointError."""
        tensors = named_tensors(model, config_entries(model))
        about = tuple(missing_pre_tokenizer(model.metadata))
        return GGUFWeightFiles(
            model.path, tensors, about, "the metadata", False, True, ARCHITECTURES[model.architecture]
        )

    @property
    def mismatch(self) -> str:
        return "the file is damaged, or was made by a converter that knew the model too little: fetch another"

    def stored_name(self, name: str) -> str:
        return name_in_file(name, self.architecture)

    def elsewhere(self, name: str) -> str:  # noqa: ARG002
        return ""


def _folder_files(folder: Path) -> WeightFiles:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.exists() or not index.exists():
        return _as_quantised(WeightFiles(folder, tensors_in(single), _notes_of(single, index)))
    found: dict[str, Tensor] = {}
    for name in sorted(set(_read_index(index).values())):
        for tensor in tensors_in(folder / name).values():
            if tensor.name in found:
                raise WeightsError(
                    f"tensor {tensor.name} is in {found[tensor.name].path} and in {tensor.path}: which of "
                    "them the model has is not known; fetch the checkpoint again"
                )
            found[tensor.name] = tensor
    return _as_quantised(WeightFiles(folder, found))


def _as_quantised(files: WeightFiles) -> WeightFiles:
    """The same, with one tensor for each quantised matrix, if config.json says that there are any."""
    path = files.folder / CONFIG
    settings = read_settings(ConfigReader(path, read_object(path, ConfigError))) if path.exists() else None
    if settings is None:
        return files
    return replace(
        files, tensors=assembled(files.tensors, settings), may_be_transposed=False, is_quantised=True
    )


def _notes_of(single: Path, index: Path) -> tuple[str, ...]:
    """That an index does not count, where it names other files than the one that does."""
    if not index.exists():
        return ()
    try:
        others = set(_read_index(index).values()) - {SINGLE_FILE}
    except WeightsError:
        others = {"nothing that can be read"}
    if not others:
        return ()
    named = f"{min(others)} and others" if len(others) > 1 else min(others)
    return (
        f"note: weights are those of {single}; {INDEX_FILE} beside it names {named}, which is not read: "
        "remove what is old",
    )


def _read_index(path: Path) -> dict[str, str]:
    """The file of each tensor, by what stands in the index."""
    where = read_object(path, WeightsError, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
        raise WeightsError(f"{path} is not a safetensors index (it has no weight_map); fetch it again")
    out = next((name for name in where.values() if not _stays_inside(name)), None)
    if out is not None:
        raise WeightsError(
            f"{path} names the file {out!r}, which is not in the folder of the checkpoint; no other file is "
            "read: fetch the index again"
        )
    return where


def _stays_inside(name: str) -> bool:
    """Whether a name is one of a file in the folder, or in a folder below."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name


def _readable(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file that is only looked at for a message."""
    try:
        return tensors_in(path)
    except WeightsError:
        return {}


def tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of one file: the length of a JSON header in 8 bytes, the header, the bytes of all tensors.

    That all of it is there and in order is for the safetensors library to check, which maps it meanwhile.
    Raises WeightsError.
    """
    try:
        check_file(path, error=WeightsError)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise WeightsError(_damaged(path, f"its header has {length} bytes"))
            with safe_open(path, framework="np"):
                header = json.loads(file.read(length))
        return {tensor.name: tensor for tensor in _tensors(path, header, 8 + length)}
    except FileNotFoundError:
        raise _missing(path) from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(_damaged(path, _fault(path) or str(error))) from None
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError):
        raise WeightsError(_damaged(path, "it changed while it was read")) from None


def _damaged(path: Path, reason: str) -> str:
    return f"{path} is truncated or damaged ({reason}); fetch it again"


def _fault(path: Path) -> str:
    """What is wrong with a tensor of a file that the library refuses; "" where that is not seen."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            size = os.fstat(file.fileno()).st_size - 8 - length
        entries = sorted((entry["data_offsets"], name) for name, entry in header.items() if name != METADATA)
        for (first, end), name in entries:
            dtype, shape = header[name]["dtype"], header[name]["shape"]
            wanted = math.prod(shape) * RAW_DTYPES[dtype].itemsize
            if wanted != end - first:
                sizes = "x".join(map(str, shape))
                return f"tensor {name}, {dtype} of shape {sizes}, takes {wanted} bytes, and has {end - first}"
            if end > size:
                return f"tensor {name} ends at byte {end} of the data, and the data at byte {size}"
    except (OSError, ValueError, TypeError, LookupError, RecursionError, AttributeError, MemoryError):
        pass
    return ""


def _missing(path: Path) -> WeightsError:
    needed = f"a checkpoint needs {SINGLE_FILE}, or {INDEX_FILE} and every file it names"
    others = other_formats(path.parent) if path.name == SINGLE_FILE else ""
    return WeightsError(f"there is no {path}; {others or needed}")


def _tensors(path: Path, header: dict[str, Any], start: int) -> Iterator[Tensor]:
    """The tensors by the header of a file, whose data begin at byte `start`."""
    for name, entry in header.items():
        if name != METADATA:
            shape = tuple(entry["shape"])
            first = start + entry["data_offsets"][0]
            yield Tensor(path, name, entry["dtype"], shape, first, math.prod(shape[1:]))
