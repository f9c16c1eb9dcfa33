"""Made-up machines for the doctor: a root of files, and tools that are shell scripts. Stand-ins, no NPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from aerie.board.doctor.machine import ExaminedMachine


def tool(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


def put(root: Path, absolute: str, text: str = "") -> Path:
    """A file of the made-up machine."""
    path = root / absolute.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def machine(
    root: Path,
    tools: Mapping[str, Path] | None = None,
    wheels: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    model: str = "demo",
    python: str = sys.executable,
) -> ExaminedMachine:
    """A machine whose files lie in `root`, and which has these tools and wheels and no others."""
    return ExaminedMachine(
        root=root,
        python=python,
        environ={"PATH": os.environ["PATH"], **(environ or {})},
        find=lambda name: (tools or {}).get(name),
        version=lambda name: (wheels or {}).get(name),
        cache_dir=root,
        model=model,
    )


def with_pyxrt(folder: Path, source: str) -> dict[str, str]:
    """An environment whose Python imports this source as pyxrt, and the project as ever."""
    put(folder, "pyxrt.py", source)
    return {"PYTHONPATH": str(folder)}
