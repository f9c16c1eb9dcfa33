"""The flags of `aerie serve` that name models: --model, --models-dir, --name, --alias and --draft."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aerie.cli.checkpoints import DEMO
from aerie.cli.model_folders import gguf_files
from aerie.common.errors import UserError
from aerie.engine.gguf.model_files import PART, SUFFIX

NAME = re.compile(r"([^=/\\\s]+)=(.+)")
"""A name and its value. A path with a = that is no folder here must start with / or ./"""
UNITS: Mapping[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_models(values: Sequence[str], folder: Path | None, name: str | None) -> dict[str, str]:
    """Return the model (a folder or what `aerie run` takes) by its served name. values: of --model, with or
    without a name. folder: of --models-dir. name: of --name. Raises UserError if a name is used twice, --name
    does not fit, or the folder has no model."""
    pairs = [_split_name(model) for model in values] or ([] if folder else [(None, DEMO)])
    if name is not None:
        if len(pairs) != 1 or folder:
            count = "those of --models-dir" if folder else f"{len(pairs)}"
            raise UserError(
                f"--name is {name!r}, which is for one model, and there are {count}; name each by --model "
                "NAME=MODEL"
            )
        pairs = [(name, pairs[0][1])]
    named = [(own or _default_name(model), model) for own, model in pairs]
    return _check_unique([*named, *(_in_folder(folder) if folder else ())])


def _split_name(value: str) -> tuple[str | None, str]:
    match = NAME.fullmatch(value)
    return (match[1], match[2]) if match and not Path(value).is_dir() else (None, value)


def _default_name(model: str) -> str:
    """The name of a folder or a file without its path: clients need not know where it is."""
    path = Path(model).expanduser()
    if path.is_file():
        return _file_name(path)
    return path.resolve().name if path.is_dir() else model


def _file_name(path: Path) -> str:
    """Of a GGUF file, without what says that it is one, or that it is a part."""
    part = PART.fullmatch(path.name)
    return part["name"] if part else path.name.removesuffix(SUFFIX)


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and path of each model in a folder. Raises UserError if there is none."""
    folder = folder.expanduser()
    try:
        models = [(path.name, path) for path in folder.iterdir() if (path / "config.json").is_file()]
        models += [(_file_name(path), path) for path in gguf_files(folder)]
    except OSError as error:
        raise UserError(
            f"--models-dir is {folder}, and cannot be read ({error.strerror}); name a folder of models"
        ) from None
    if not models:
        raise UserError(
            f"--models-dir is {folder}, and no folder in it has a config.json, and no file is in GGUF; name "
            "one that holds models"
        )
    yield from ((name, str(path)) for name, path in sorted(models))


def _check_unique(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, model in pairs:
        if name in named:
            raise UserError(
                f"two models are named {name!r}, {named[name]} and {model}; name one of them as --model "
                "NAME=MODEL"
            )
        named[name] = model
    return named


def parse_drafts(values: Sequence[str], models: Mapping[str, str]) -> dict[str, str | None]:
    """Return the draft of each model. values: of --draft, for all models or, with a name, for one. Raises
    UserError if a name is unknown or given twice."""
    drafts: dict[str | None, str] = {}
    for value in values:
        name, draft = _split_name(value)
        if name is not None and name not in models:
            raise UserError(
                f"--draft names the model {name!r}, and there are {', '.join(models)}; name one of them"
            )
        if name in drafts:
            owner = "all models" if name is None else name
            raise UserError(
                f"--draft is given twice for {owner}, {drafts[name]} and {draft}; give one of them"
            )
        drafts[name] = draft
    return {name: drafts.get(name, drafts.get(None)) for name in models}


def parse_aliases(values: Sequence[str], models: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the other names of each model. values: of --alias, for the first model or the one that it names.
    Raises UserError if the model is unknown or the alias is taken."""
    aliases: dict[str, list[str]] = {name: [] for name in models}
    for value in values:
        alias, _, name = value.partition("=")
        if (name := name or next(iter(models))) not in models:
            raise UserError(
                f"--alias {value} names the model {name!r}, and there are {', '.join(models)}; name one of "
                "them"
            )
        if alias in models or any(alias in others for others in aliases.values()):
            raise UserError(f"--alias is {alias!r}, which is a name here already; give another")
        aliases[name].append(alias)
    return aliases


def byte_count(text: str) -> int:
    """Argument type: bytes, as 6000000000, 512M or 1.5G; units are powers of 1024."""
    match = BYTES.fullmatch(text.strip())
    count = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 512M or 6G")
    return count


def seconds(text: str) -> float:
    """Argument type: seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value
