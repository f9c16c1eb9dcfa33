"""Half of the workers import the tests from the last file on.

pytest rewrites the assertions of a file where it is imported the first time, and keeps the bytecode. Workers
that all begin with the first file rewrite every file side by side; from both ends each rewrites half of them,
and finds the other half done.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def modules(root: Path) -> list[str]:
    """The names of all files of tests below a folder's `tests`, the last first."""
    files = sorted((root / "tests").rglob("test_*.py"), reverse=True)
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in files]


def is_turned(config: pytest.Config) -> bool:
    """Whether this process is a worker of the whole suite that begins with the last file: every second."""
    worker = str(getattr(config, "workerinput", {}).get("workerid", "gw0"))
    return config.args == config.getini("testpaths") and int(worker.removeprefix("gw")) % 2 == 1


def pytest_collection(session: pytest.Session) -> None:
    """Import from the last file on. What cannot be imported is reported where it is collected."""
    for module in modules(ROOT) if is_turned(session.config) else ():
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(module)
