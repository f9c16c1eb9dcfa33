"""The words of `aerie serve` that name models: which there are, under which names, with whose guesses."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from aerie.cli.checkpoints import DEMO
from aerie.common.errors import UserError

NAME = re.compile(r"([^=/\\\s]+)=(.+)")
"""A name and what it stands for. A path that has a = and is no folder here begins with a /, or with ./"""
UNITS: Mapping[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
BYTES = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)


def models_of(given: Sequence[str], folder: Path | None, name: str | None) -> dict[str, str]:
    """What each name stands for: a folder, or a model as `aerie run` takes it. given: of --model, each with a
    name or without. folder: of --models-dir. name: of --name. UserError."""
    pairs = [_named(model) for model in given] or ([] if folder else [(None, DEMO)])
    if name is not None:
        if len(pairs) != 1 or folder:
            there = "those of --models-dir" if folder else f"{len(pairs)}"
            raise UserError(
                f"--name is {name!r}, which is for one model, and there are {there}; name each by --model "
                "NAME=MODEL"
            )
        pairs = [(name, pairs[0][1])]
    every = [(own or _name_of(model), model) for own, model in pairs]
    return _without_doubles([*every, *(_in_folder(folder) if folder else ())])


def _named(given: str) -> tuple[str | None, str]:
    found = NAME.fullmatch(given)
    return (found[1], found[2]) if found and not Path(given).is_dir() else (None, given)


def _name_of(model: str) -> str:
    """A folder's own name: where it lies is nobody's business."""
    folder = Path(model).expanduser()
    return folder.resolve().name if folder.is_dir() else model


def _in_folder(folder: Path) -> Iterator[tuple[str, str]]:
    """The models in a folder, by their names. UserError where there are none."""
    try:
        found = sorted(one for one in folder.expanduser().iterdir() if (one / "config.json").is_file())
    except OSError as error:
        raise UserError(
            f"--models-dir is {folder}, and cannot be read ({error.strerror}); name a folder of models"
        ) from None
    if not found:
        raise UserError(
            f"--models-dir is {folder}, and no folder in it has a config.json; name one that holds models, "
            "each in a folder of its own"
        )
    yield from ((one.name, str(one)) for one in found)


def _without_doubles(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name, model in pairs:
        if name in named:
            raise UserError(
                f"two models are named {name!r}, {named[name]} and {model}; name one of them as --model "
                "NAME=MODEL"
            )
        named[name] = model
    return named


def drafts_of(given: Sequence[str], models: Mapping[str, str]) -> dict[str, str | None]:
    """Whose guesses each model has: of --draft for all, or with its name for one. UserError for a name that
    there is not, and for two of the same."""
    found: dict[str | None, str] = {}
    for each in given:
        name, draft = _named(each)
        if name is not None and name not in models:
            raise UserError(
                f"--draft names the model {name!r}, and there are {', '.join(models)}; name one of them"
            )
        if name in found:
            whose = "all models" if name is None else name
            raise UserError(
                f"--draft is given twice for {whose}, {found[name]} and {draft}; give one of them"
            )
        found[name] = draft
    return {name: found.get(name, found.get(None)) for name in models}


def aliases_of(given: Sequence[str], models: Mapping[str, str]) -> dict[str, list[str]]:
    """The other names of each model: of --alias, for the first, or for the one that it names. UserError for a
    model that there is not, and for a name that another has."""
    found: dict[str, list[str]] = {name: [] for name in models}
    for each in given:
        alias, _, name = each.partition("=")
        if (name := name or next(iter(models))) not in models:
            raise UserError(
                f"--alias {each} names the model {name!r}, and there are {', '.join(models)}; name one of "
                "them"
            )
        if alias in models or any(alias in others for others in found.values()):
            raise UserError(f"--alias is {alias!r}, which is a name here already; give another")
        found[name].append(alias)
    return found


def byte_count(text: str) -> int:
    """An argument type: bytes, as 6000000000, 512M or 1.5G; units are of 1024."""
    found = BYTES.fullmatch(text.strip())
    count = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 512M or 6G")
    return count


def seconds(text: str) -> float:
    """An argument type: seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value
