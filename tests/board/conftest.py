"""What the tests of the board's tools share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def faulty_npu() -> Iterator[ModuleType]:
    """The stand-ins for a wrong NPU, importable by the processes that a test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "stand_ins"))
        yield importlib.import_module("faulty_npu")


@pytest.fixture(scope="session")
def programs(own_cache: Path) -> Path:
    """The cache of compiled programs that all tests share."""
    return own_cache / "programs"
