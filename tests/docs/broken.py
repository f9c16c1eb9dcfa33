"""Copies of the demo checkpoint with one thing broken each, which pages show the messages of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from aerie.cli.checkpoints import DEMO_FOLDER


def _with(file: str, **entries: object) -> Callable[[Path], None]:
    """Entries of a JSON file replaced; None removes one."""

    def change(folder: Path) -> None:
        content = {**json.loads((folder / file).read_text()), **entries}
        (folder / file).write_text(
            json.dumps({key: value for key, value in content.items() if value is not None})
        )

    return change


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


BROKEN: dict[str, Callable[[Path], None]] = {
    "truncated": _truncated,
    "gemma": _with("config.json", architectures=["Gemma2ForCausalLM"], model_type="gemma2"),
    "ntk": _with("config.json", rope_scaling={"rope_type": "ntk", "factor": 4.0}),
}


def make_broken(folder: Path) -> None:
    """A checkpoint in `folder` for each name of BROKEN."""
    for name, change in BROKEN.items():
        shutil.copytree(DEMO_FOLDER, folder / name)
        change(folder / name)
