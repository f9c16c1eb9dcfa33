"""Kernel texts, argument tables, and golden texts for the stitcher's tests."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_builder.arguments import Argument, ArgumentTable, Role
from kernel_builder.dtypes import bf16

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def text() -> Callable[[str], str]:
    """text("add"): the hand-written kernel module texts/add.mlir."""
    return lambda name: (HERE / "texts" / f"{name}.mlir").read_text()


@pytest.fixture(scope="session")
def table() -> Callable[..., ArgumentTable]:
    """table(x=(512, "input"), y=((8, 64), "output")): bf16 arguments, in the order written."""

    def make(**rows: tuple[int | tuple[int, ...], str]) -> ArgumentTable:
        shaped = {name: (s if isinstance(s, tuple) else (s,), role) for name, (s, role) in rows.items()}
        return ArgumentTable(Argument(name, s, bf16, Role(role)) for name, (s, role) in shaped.items())

    return make


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """golden(name, text): `text` must be golden/name, letter by letter; UPDATE_GOLDEN=1 writes it."""

    def check(name: str, found: str) -> None:
        path = HERE / "golden" / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.write_text(found)
        assert path.exists(), f"{path} is missing; UPDATE_GOLDEN=1 writes it"
        lines = difflib.unified_diff(path.read_text().splitlines(), found.splitlines(), "golden", "found")
        difference = "\n".join(lines)
        assert not difference, f"{difference}\nUPDATE_GOLDEN=1 accepts the new text"

    return check
