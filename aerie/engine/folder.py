"""What lies in a checkpoint's folder: which of its files are read, what each must be, and what others are.

A checkpoint is anybody's data. A file of it is looked at before it is read: a pipe or a device has
no end, and a pointer of Git LFS only says which file there should be.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from aerie.engine.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

MAX_CONFIG_BYTES = 16 << 20
"""Bytes of config.json and its like, which have some thousands; read whole."""
MAX_TOKENIZER_BYTES = 128 << 20
"""Bytes of a file of the tokenizer; the largest published ones have 35 million."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
"""What the libraries below read of a tokenizer, where it is there."""

POINTER = b"version https://git-lfs.github.com/spec/"
MAX_POINTER_BYTES = 1024

OTHERS = (
    (
        ("adapter_model.*", "adapter_config.json"),
        "an adapter is no model: merge it into its base model (peft's merge_and_unload), and save that",
    ),
    (("*.gguf",), "give that file itself"),
    (
        ("*.ggml", "ggml-*.bin"),
        "GGML, which came before GGUF, is not read: fetch the model as GGUF or safetensors",
    ),
    (
        ("model-*-of-*.safetensors",),
        "parts are found by model.safetensors.index.json: fetch it too",
    ),
    (
        ("consolidated*", "params.json"),
        "this is the format of Meta or Mistral: fetch config.json and model*.safetensors of the same model",
    ),
    (
        ("openvino*", "model_index.json", "genai_config.json"),
        "this is a model of OpenVINO, Diffusers or ONNX Runtime, which is not read: fetch the safetensors or "
        "a GGUF file of a model of text",
    ),
    (
        ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"),
        "a pickle can run code and is never read: fetch the safetensors of the same model, or have "
        "transformers save it anew (save_pretrained)",
    ),
    (
        ("weights*.npz",),
        "this is MLX's older format, which is not read: fetch safetensors or a GGUF file of the same model",
    ),
    (
        (
            *("*.onnx", "onnx", "*.h5", "*.msgpack", "*.npz", "*.tflite", "*.xml", "*.mlmodel"),
            *("*.mlpackage", "*.task", "*.litertlm", "*.pte", "*.q4nx"),
        ),
        "that format is not read: fetch the safetensors or a GGUF file of the same model",
    ),
    (("*.safetensors",), "if it is the whole model, rename it to model.safetensors"),
)
"""Files of weights that are not read, by name, with what to do. Errors name the first that is there."""
MAX_NAMED = 3


def check_file(
    path: Path, largest: int | None = None, error: type[CheckpointError] = CheckpointError
) -> None:
    """Raises `error` for what is there and can be no file of a checkpoint: no file at all, one of more than
    `largest` bytes, a pointer of Git LFS."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise error(f"{path} is no file; fetch the checkpoint again")
        with path.open("rb") as file:
            begin = file.read(len(POINTER)) if about.st_size <= MAX_POINTER_BYTES else b""
    except FileNotFoundError:
        return  # whoever wants it says so
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror}; fetch it again") from None
    if begin == POINTER:
        raise error(
            f"{path} is a Git LFS pointer, not the file: run `git lfs pull` in {path.parent}, or fetch the "
            "file from Hugging Face"
        )
    if largest is not None and about.st_size > largest:
        raise error(
            f"{path} has {about.st_size} bytes, and no more than {largest} are read of such a file; it is "
            "damaged: fetch it again"
        )


def check_tokenizer_files(folder: Path) -> None:
    """CheckpointError as check_file, for all that a tokenizer may be read from."""
    for name in TOKENIZER_FILES:
        check_file(folder / name, MAX_TOKENIZER_BYTES)


def read_object(path: Path, error: type[CheckpointError], largest: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file. FileNotFoundError where there is no file, `error` where it has no object."""
    content = _read_json(path, error, largest)
    if not isinstance(content, dict):
        raise error(f"{path} holds {type(content).__name__}, not an object; fetch it again")
    return content


def read_array(path: Path, error: type[CheckpointError], largest: int = MAX_CONFIG_BYTES) -> list[Any]:
    """The array in a JSON file. Raises as read_object."""
    content = _read_json(path, error, largest)
    if not isinstance(content, list):
        raise error(f"{path} holds {type(content).__name__}, not an array; fetch it again")
    return content


def _read_json(path: Path, error: type[CheckpointError], largest: int) -> Any:
    check_file(path, largest, error)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except RecursionError:
        raise error(f"cannot read {path}: it is nested too deep; fetch it again") from None
    except (OSError, ValueError) as failure:
        raise error(f"cannot read {path}: {failure}; fetch it again") from None


def other_formats(folder: Path) -> str:
    """What there is of a model in place of what is read, with what to do; empty where there is nothing."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        return ""
    return "" if SINGLE_FILE in names or INDEX_FILE in names else advice_on(names)


def advice_on(names: Sequence[str]) -> str:
    """What to do with files of these names, for the first kind of OTHERS among them; empty for none."""
    for patterns, advice in OTHERS:
        found = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
        if found:
            more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
            return f"there is {', '.join(found[:MAX_NAMED])}{more}: {advice}"
    return ""
